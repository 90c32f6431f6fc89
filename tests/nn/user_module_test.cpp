// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <heed/compiled/layers.hpp>
#include <heed/core/buffer.hpp>
#include <heed/io/name_map.hpp>
#include <heed/io/safetensors.hpp>
#include <heed/mask/basic.hpp>
#include <heed/nn/activation.hpp>
#include <heed/nn/embedding.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/module.hpp>
#include <heed/nn/transformer.hpp>
#include <heed/train/loss.hpp>
#include <heed/train/optimizer.hpp>

#include "common/temporary_directory.hpp"
#include "nn/backward_checks.hpp"

namespace {

using namespace backward_checks;

// ---- a layer
// ---------------------------------------------------------------------------------------------------------

/// y = up(gelu(down(x))): a bottleneck adapter, a layer that the library does not have.
template <class T>
struct Adapter : heed::Layer<Adapter<T>> {
  using Scalar = T;
  struct Cache {
    TensorView<const T, 3> x;
    typename heed::Linear<T>::Cache down, up;
    heed::GELU::Cache<T> gelu;
    heed::Buffer<T> hidden, activated, gradient;
  };
  explicit Adapter(Index width, Index bottleneck) : down(width, bottleneck), up(bottleneck, width) {}

  heed::Linear<T> down, up;
  heed::GELU gelu;

  static void members(auto&& f) {
    f("down", &Adapter::down);
    f("up", &Adapter::up);
  }
  static constexpr std::string_view name() { return "Adapter"; }
  Index input_width(Index) const { return down.options().in_features; }

  void run(const TensorView<const T, 3>& x, const TensorView<T, 3>& y, Cache* cache, Context& context) const {
    Cache own;
    Cache& c = cache ? *cache : own;
    const Extents<3> extents{x.extent(0), x.extent(1), down.options().out_features};
    const auto hidden = c.hidden.template view<3>(extents), activated = c.activated.template view<3>(extents);
    c.x = x;
    down.forward(x, hidden, c.down, context);
    gelu.forward(hidden, activated, c.gelu, context);
    up.forward(activated, y, c.up, context);
    context.observe(y);
  }
  void run_backward(const TensorView<const T, 3>& dy, const TensorView<T, 3>& dx, Cache& cache, Context& context) {
    const auto d = cache.gradient.template view<3>({dy.extent(0), dy.extent(1), down.options().out_features});
    up.backward(dy, d, cache.up, context);
    gelu.backward(d, d, cache.gelu, context);
    down.backward(d, dx, cache.down, context);
  }
};

TEST(UserLayer, KeepsThePromisesOfALayer) {
  Adapter<double> layer(6, 3);
  initialize(layer, 1);
  expect_backward(layer, {2, 3, 6});
  expect_same_backward_for_any_strides<double>(layer, {2, 3, 6});
  expect_same_for_any_argument<double>(layer, 4, 6);
  EXPECT_EQ(message_of<heed::ShapeError>([&] { layer(Tensor<double, 3>(1, 2, 5)); }),
            "Adapter: x (1, 2, 5) has width 5 but the layer takes 6");
}

TEST(UserLayer, IsNamedInitializedAndPacked) {
  Adapter<float> layer(6, 3);
  std::string names;
  layer.visit("a", [&](std::string_view name, const auto&) { names += std::string(name) + " "; });
  EXPECT_EQ(names, "a.down.weight a.down.bias a.up.weight a.up.bias ");
  EXPECT_EQ(heed::parameter_count(layer), 2 * 6 * 3 + 3 + 6);
  initialize(layer, 1);
  const auto x = random_tensor<float, 3>({1, 2, 6});
  const Tensor<float, 3> raw = layer(x);
  layer.pack({.release = true});
  EXPECT_TRUE(layer.down.is_packed() && layer.up.is_packed());
  EXPECT_TRUE(bits_equal(raw.view(), layer(x)));
}

// ---- a model
// ---------------------------------------------------------------------------------------------------------

/// Token ids to classes of each token: everything a user writes for a model but its forward and backward.
struct Tagger : heed::Module<Tagger> {
  heed::Embedding<float> embedding{{.vocab_size = 12, .embed_dim = 8}};
  heed::Parameter<float> shift{8};
  std::vector<Adapter<float>> adapters{Adapter<float>(8, 4), Adapter<float>(8, 4)};
  std::optional<heed::Encoder<float>> encoder;
  heed::Linear<float> head{8, 3};

  static void members(auto&& f) {
    f("embedding", &Tagger::embedding);
    f("shift", &Tagger::shift);
    f("adapters", &Tagger::adapters);
    f("encoder", &Tagger::encoder);
    f("head", &Tagger::head);
  }

  struct Cache {
    heed::Embedding<float>::Cache embedding;
    Adapter<float>::Cache adapters[2];
    heed::Encoder<float>::Cache encoder;
    heed::Linear<float>::Cache head;
    heed::Buffer<float> memory[4];
  };
  void forward(TensorView<const int, 2> ids, TensorView<float, 3> logits, Cache& cache, Context& context) const {
    TensorView<float, 3> x[4];
    for (int i = 0; i < 4; ++i) x[i] = cache.memory[i].view<3>({ids.extent(0), ids.extent(1), 8});
    embedding.forward(ids, x[0], cache.embedding, context);
    for (int i = 0; i < 2; ++i) {
      const Context::Scope scope(context, "adapters", i);
      adapters[static_cast<std::size_t>(i)].forward(x[i], x[i + 1], cache.adapters[i], context);
    }
    encoder->forward(x[2], heed::Causal{}, x[3], cache.encoder, context);
    head.forward(x[3], logits, cache.head, context);
  }
  void backward(TensorView<const float, 3> dlogits, Cache& cache, Context& context) {
    Tensor<float, 3> d(dlogits.extent(0), dlogits.extent(1), 8), other(d.extents());
    head.backward(dlogits, d, cache.head, context);
    encoder->backward(d, other, cache.encoder, context);
    adapters[1].backward(other, d, cache.adapters[1], context);
    adapters[0].backward(d, other, cache.adapters[0], context);
    embedding.backward(other, cache.embedding, context);
  }
};

Tagger tagger(std::uint64_t seed) {
  Tagger model;
  model.encoder.emplace(heed::EncoderOptions{.num_layers = 1, .layer = {.embed_dim = 8, .num_heads = 2}});
  initialize(model, seed);
  return model;
}

std::string names_of(const Tagger& model) {
  std::string names;
  model.visit("", [&](std::string_view name, const auto&) { names += std::string(name) + " "; });
  return names;
}

TEST(UserModel, ListsOptionalsVectorsAndParameters) {
  EXPECT_EQ(
      names_of(Tagger()),
      "embedding.weight shift adapters.0.down.weight adapters.0.down.bias adapters.0.up.weight adapters.0.up.bias "
      "adapters.1.down.weight adapters.1.down.bias adapters.1.up.weight adapters.1.up.bias "
      "head.weight head.bias ");
  EXPECT_NE(names_of(tagger(1)).find("encoder.layers.0.linear1.weight"), std::string::npos);
  const Tagger model = tagger(1);
  EXPECT_FALSE(bits_equal(model.adapters[0].up.weight.value(), model.adapters[1].up.weight.value()));
}

TEST(UserModel, IsSavedLoadedTrainedAndObserved) {
  Tagger model = tagger(1), loaded = tagger(2);
  Tensor<int, 2> ids(2, 5), targets(2, 5);
  for (Index i = 0; i < ids.size(); ++i) {
    ids.data()[i] = static_cast<int>((i * 7) % 12);
    targets.data()[i] = ids.data()[i] % 3;
  }
  Context context;
  Tagger::Cache cache;
  Tensor<float, 3> logits(2, 5, 3), again(2, 5, 3);
  heed::AdamW<float> optimizer(model, {.learning_rate = 0.01});
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    model.forward(ids, logits, cache, context);
    last = heed::cross_entropy(logits, targets, logits, {}, context).value;
    if (step == 0) first = last;
    model.backward(logits, cache, context);
    optimizer.step(context);
  }
  EXPECT_LT(last, first / 2);

  const heed_test::TemporaryDirectory directory;
  heed::save_parameters(model, directory.path("tagger.safetensors"));
  heed::load_parameters(loaded, heed::SafeTensors::open(directory.path("tagger.safetensors")));
  model.forward(ids, logits, cache, context);
  loaded.pack();
  Recorder recorder;
  context.observer = &recorder;
  loaded.forward(ids, again, cache, context);
  EXPECT_TRUE(bits_equal(logits.view(), again.view()));
  EXPECT_NE(std::find(recorder.names.begin(), recorder.names.end(), "adapters.1"), recorder.names.end());
}

}  // namespace
