// SPDX-License-Identifier: MIT
// F27: tied parameters, an output head that shares the table of the embedding.
#include <string>

#include <gtest/gtest.h>

#include <heed/io/name_map.hpp>
#include <heed/nn/embedding.hpp>
#include <heed/nn/feed_forward.hpp>
#include <heed/train/checkpoint.hpp>
#include <heed/train/loss.hpp>
#include <heed/train/optimizer.hpp>

#include "common/temporary_directory.hpp"
#include "nn/backward_checks.hpp"

namespace {

using heed::Embedding;
using heed::Parameter;
using namespace backward_checks;

constexpr Index kVocabulary = 7, kWidth = 4;

struct TiedModel : heed::Module<TiedModel> {
  Embedding<double> embedding{{.vocab_size = kVocabulary, .embed_dim = kWidth, .scale = 2}};
  heed::FeedForward<double> layer{{.embed_dim = kWidth, .ffn_dim = 6, .activation = heed::Activation::GELU}};

  static void members(auto&& f) {
    f("embedding", &TiedModel::embedding);
    f("layer", &TiedModel::layer);
  }

  struct Cache {
    Embedding<double>::Cache ids;
    heed::FeedForward<double>::Cache layer;
    Embedding<double>::ProjectCache head;
    Tensor<double, 3> x, h, logits;
  };
  double loss(const Tensor<int, 2>& ids, const Tensor<int, 2>& targets, Cache& c, Context& context) const {
    c.x = c.h = Tensor<double, 3>(ids.extent(0), ids.extent(1), kWidth);
    c.logits = Tensor<double, 3>(ids.extent(0), ids.extent(1), kVocabulary);
    embedding.forward(ids, c.x.view(), c.ids, context);
    layer.forward(c.x.view(), c.h.view(), c.layer, context);
    embedding.project(c.h.view(), c.logits.view(), c.head, context);
    return heed::cross_entropy(c.logits, targets, c.logits, {}, context).value;
  }
  /// After loss(), which leaves the gradient in the logits.
  void backward(Cache& c, Context& context) {
    Tensor<double, 3> dh(c.h.extents()), dx(c.h.extents());
    embedding.project_backward(c.logits, dh.view(), c.head, context);
    layer.backward(dh, dx.view(), c.layer, context);
    embedding.backward(dx, c.ids, context);
  }
};

const Tensor<int, 2>& ids() {
  static const Tensor<int, 2> value = [] {
    Tensor<int, 2> x(2, 5);
    for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<int>((i * i + 3) % 5);
    return x;
  }();
  return value;
}
const Tensor<int, 2>& targets() {
  static const Tensor<int, 2> value = [] {
    Tensor<int, 2> x(2, 5);
    for (Index i = 0; i < x.size(); ++i) x.data()[i] = (ids().data()[i] * 3 + 1) % static_cast<int>(kVocabulary);
    return x;
  }();
  return value;
}

TEST(Tied, TheHeadIsALinearLayerWithTheTable) {
  Embedding<float> embedding({.vocab_size = 11, .embed_dim = 5, .scale = 3});
  initialize(embedding, 1);
  heed::Linear<float> linear(5, 11, false);
  const auto table = embedding.weight.value();
  std::copy_n(table.data(), table.size(), linear.weight.mutable_value().data());

  const auto x = random_tensor<float, 3>({2, 3, 5});
  const Tensor<float, 3> logits = embedding.project(x);
  EXPECT_TRUE(bits_equal(logits.view(), linear(x)));
  const Eigen::MatrixXf matrix = Eigen::MatrixXf::Random(3, 5);
  const Eigen::MatrixXf of_matrix = embedding.project(matrix);
  EXPECT_TRUE(of_matrix == Eigen::MatrixXf(linear(matrix)));

  Context context;
  Embedding<float>::ProjectCache cache;
  heed::Linear<float>::Cache linear_cache;
  Tensor<float, 3> y(2, 3, 11), dx(2, 3, 5), linear_dx(2, 3, 5);
  embedding.project(x.view(), y.view(), cache, context);
  EXPECT_TRUE(bits_equal(y.view(), logits));
  linear.forward(x.view(), y.view(), linear_cache, context);
  embedding.project_backward(logits, dx.view(), cache, context);
  linear.backward(logits, linear_dx.view(), linear_cache, context);
  EXPECT_TRUE(bits_equal(dx.view(), linear_dx));
  EXPECT_TRUE(bits_equal(embedding.weight.grad(), linear.weight.grad()));
  embedding.project_backward(logits, heed::kNotWanted, cache, context);
  EXPECT_EQ(embedding.weight.grad()(0), 2 * linear.weight.grad()(0));
}

TEST(Tied, OneGradientOfBothUses) {
  TiedModel model;
  fill_parameters<double>(model, 1);
  Context context;
  TiedModel::Cache cache, other;
  model.loss(ids(), targets(), cache, context);
  model.backward(cache, context);
  const auto report =
      heed::gradcheck([&] { return model.loss(ids(), targets(), other, context); }, ParameterList<double>(model));
  EXPECT_TRUE(report.passed) << report.text();
  EXPECT_EQ(report.checked, heed::parameter_count(model));
}

TEST(Tied, CountedSavedAndSteppedOnce) {
  TiedModel model, again;
  initialize(model, 1);
  initialize(again, 2);
  EXPECT_EQ(heed::parameter_count(model), 7 * 4 + 4 * 6 + 6 + 6 * 4 + 4);
  Context context;
  TiedModel::Cache cache;
  heed::AdamW<double> optimizer(model, {.learning_rate = 0.05}), its_optimizer(again, {.learning_rate = 0.05});
  const auto train = [&](TiedModel& m, heed::AdamW<double>& o, int steps) {
    double loss = 0;
    for (int i = 0; i < steps; ++i) {
      o.zero_grad();
      loss = m.loss(ids(), targets(), cache, context);
      m.backward(cache, context);
      o.step(context);
    }
    return loss;
  };
  const double first = train(model, optimizer, 1);
  const heed_test::TemporaryDirectory directory;
  heed::save_checkpoint(directory.path("training"), model, optimizer, context);
  const auto file = heed::SafeTensors::open(directory.path("training"));
  Index tables = 0;
  for (const std::string& name : file.names()) tables += file.shape(name) == std::vector<Index>{7, 4};
  EXPECT_EQ(tables, 3) << "the table and its two moments";
  heed::load_checkpoint(file, again, its_optimizer, context);
  const double last = train(model, optimizer, 30);
  EXPECT_LT(last, first / 2);
  EXPECT_EQ(train(again, its_optimizer, 30), last);
}

TEST(Tied, LoadedFromEitherNameOrBoth) {
  Embedding<float> source({.vocab_size = 7, .embed_dim = 4});
  initialize(source, 1);
  const heed_test::TemporaryDirectory directory;
  const std::string path = directory.path("model");
  const auto table = source.weight.matrix();
  const auto expect_loaded = [&](const std::vector<heed::NamedTensor>& tensors, const heed::NameMap& map) {
    heed::save_safetensors(path, tensors);
    Embedding<float> layer({.vocab_size = 7, .embed_dim = 4});
    heed::load_parameters(layer, path, map);
    EXPECT_TRUE(bits_equal(layer.weight.value(), source.weight.value()));
  };
  expect_loaded({{"weight", table}}, {});
  expect_loaded({{"lm_head.weight", table}}, {.rules = {{"weight", {"lm_head.weight"}}}});
  expect_loaded({{"weight", table}, {"lm_head.weight", table}}, {.ignored = {"lm_head.weight"}});
}

TEST(Tied, MistakesAreNamed) {
  Embedding<float> layer({.vocab_size = 7, .embed_dim = 4});
  initialize(layer, 1);
  Context context;
  Embedding<float>::ProjectCache cache;
  Tensor<float, 3> x(1, 2, 4), y(1, 2, 7);
  EXPECT_EQ(message_of<heed::ShapeError>([&] { layer.project(y); }),
            "heed::Embedding::project: x (1, 2, 7) has width 7 but the layer takes 4");
  EXPECT_THROW(layer.project(x.view(), x.view(), context), heed::ShapeError);
  EXPECT_THROW(layer.project_backward(y, x.view(), cache, context), heed::ShapeError) << "no project() before";
  layer.project(x.view(), y.view(), cache, context);
  EXPECT_THROW(layer.project_backward(x, heed::kNotWanted, cache, context), heed::ShapeError);
  EXPECT_THROW(layer.project_backward(y, x.view(), cache, context), heed::ValueError) << "dx is x";
}

/// One matrix that a user's own visit() shows under two names.
struct Shared {
  Parameter<double> weight{3, 2};
  template <class F>
  void visit(std::string_view, F&& f) {
    f("encoder.weight", weight);
    f("decoder.weight", weight);
  }
  template <class F>
  void visit(std::string_view, F&& f) const {
    f("encoder.weight", weight);
    f("decoder.weight", weight);
  }
};

TEST(Tied, AParameterWithTwoNamesIsCountedAndSteppedOnce) {
  Shared model;
  for (Index i = 0; i < 6; ++i) model.weight.mutable_value()(i) = 1;
  EXPECT_EQ(heed::parameter_count(model), 6);
  const ParameterList<double> list(model);
  ASSERT_EQ(list.size(), 1);
  EXPECT_EQ(list[0].name, "encoder.weight");
  heed::SGD<double> optimizer(model, {.learning_rate = 0.5});
  for (Index i = 0; i < 6; ++i) model.weight.grad()(i) = 1;
  EXPECT_NEAR(heed::global_grad_norm(list), std::sqrt(6.0), 1e-15);
  optimizer.step();
  EXPECT_EQ(model.weight.value()(0), 0.5);

  const heed_test::TemporaryDirectory directory;
  heed::save_parameters(model, directory.path("shared"));
  Shared again;
  heed::load_parameters(again, directory.path("shared"));
  EXPECT_TRUE(bits_equal(again.weight.value(), model.weight.value()));
}

}  // namespace
