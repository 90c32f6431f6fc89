// SPDX-License-Identifier: MIT
// Ten training steps of a small causal transformer against PyTorch's.
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <heed/compiled/layers.hpp>
#include <heed/nn/embedding.hpp>
#include <heed/nn/positional.hpp>
#include <heed/nn/transformer.hpp>
#include <heed/train/loss.hpp>
#include <heed/train/optimizer.hpp>

#include "common/golden.hpp"

namespace {

using heed::Context;
using heed::Index;
using heed::Tensor;
using heed::TensorView;
using heed_test::Golden;

constexpr Index kWidth = 16, kContext = 10;

/// logits = head(encoder(embedding[tokens] + position)), as CharacterModel in tests/golden/generate.py.
template <class T>
struct CharacterModel {
  explicit CharacterModel(Index vocabulary)
      : embedding({.vocab_size = vocabulary, .embed_dim = kWidth}),
        position({.length = kContext, .embed_dim = kWidth}),
        encoder({.num_layers = 2,
                 .layer = {.embed_dim = kWidth,
                           .num_heads = 2,
                           .ffn_dim = 20,
                           .norm_placement = heed::NormPlacement::Pre,
                           .activation = heed::Activation::GELU},
                 .final_norm = true}),
        head({.in_features = kWidth, .out_features = vocabulary}) {}

  template <class F>
  void visit(std::string_view, F&& f) {
    embedding.visit("embedding", f);
    position.visit("position", f);
    encoder.visit("encoder", f);
    head.visit("head", f);
  }

  struct Cache {
    typename heed::Embedding<T>::Cache embedding;
    typename heed::LearnedPositions<T>::Cache position;
    typename heed::Encoder<T>::Cache encoder;
    typename heed::Linear<T>::Cache head;
    Tensor<T, 3> x, encoded, gradient;
  };

  void forward(const TensorView<const int, 2>& tokens, const TensorView<T, 3>& logits, Cache& cache,
               Context& context) const {
    cache.x = cache.encoded = cache.gradient = Tensor<T, 3>(tokens.extent(0), tokens.extent(1), kWidth);
    embedding.forward(tokens, cache.x, cache.embedding, context);
    position.forward(cache.x, cache.x, cache.position, context);
    encoder.forward(cache.x, heed::Causal{}, cache.encoded, cache.encoder, context);
    head.forward(cache.encoded, logits, cache.head, context);
  }
  void backward(const TensorView<const T, 3>& dlogits, Cache& cache, Context& context) {
    Tensor<T, 3> dx(cache.x.extents());
    head.backward(dlogits, cache.gradient, cache.head, context);
    encoder.backward(cache.gradient, dx, cache.encoder, context);
    position.backward(dx, dx, cache.position, context);
    embedding.backward(dx, cache.embedding, context);
  }

  heed::Embedding<T> embedding;
  heed::LearnedPositions<T> position;
  heed::Encoder<T> encoder;
  heed::Linear<T> head;
};

template <class T, template <class> class Optimizer, class Options>
void expect_golden_training(const std::string& name, const Options& options) {
  SCOPED_TRACE(name);
  const Golden start("training_start"), golden("training_" + name);
  const auto tokens = start.file().read_integers<int, 3>("in.tokens");
  const Index steps = tokens.extent(0), batch = tokens.extent(1);
  CharacterModel<T> model(start.tensor<T, 2>("param.embedding.weight").extent(0));
  start.load_into(model);
  Optimizer<T> optimizer(model, options);
  const auto losses = golden.tensor<double, 1>(sizeof(T) == 8 ? "out.loss" : "out.loss_float32");
  Context context;
  typename CharacterModel<T>::Cache cache;
  Tensor<T, 3> logits(batch, kContext, model.head.options().out_features);
  for (Index step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    model.forward(tokens.view()[step].slice(1, 0, kContext), logits, cache, context);
    const heed::Loss loss = heed::cross_entropy(logits, tokens.view()[step].slice(1, 1, kContext), logits, context);
    EXPECT_NEAR(loss.value, losses(step), sizeof(T) == 8 ? 1e-9 : 1e-5) << "step " << step;
    model.backward(logits, cache, context);
    if (sizeof(T) == 8 && step == 0) {
      for (const auto& [parameter_name, p] : optimizer.parameters()) {
        const std::string stored = "grad.param." + parameter_name;
        EXPECT_TRUE(p->rank() == 1 ? start.agrees(stored, p->grad(), 1e-12)
                                   : start.agrees(stored, p->grad_matrix(), 1e-12));
      }
    }
    optimizer.step(context);
  }
  if (sizeof(T) == 4) return;
  for (const auto& [parameter_name, p] : optimizer.parameters()) {
    const std::string stored = "final." + parameter_name;
    EXPECT_TRUE(p->rank() == 1 ? golden.agrees(stored, p->value(), 1e-9) : golden.agrees(stored, p->matrix(), 1e-9));
  }
}

template <class T>
void expect_golden_trainings() {
  expect_golden_training<T, heed::SGD>("sgd",
                                       heed::SGDOptions{.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.01});
  expect_golden_training<T, heed::Adam>("adam",
                                        heed::AdamOptions{.learning_rate = 0.01, .beta2 = 0.98, .weight_decay = 0.01});
  expect_golden_training<T, heed::AdamW>(
      "adamw", heed::AdamWOptions{.learning_rate = 0.01, .beta2 = 0.95, .eps = 1e-5, .weight_decay = 0.1});
}

TEST(TransformerTraining, TenStepsFromPyTorchInDouble) { expect_golden_trainings<double>(); }
TEST(TransformerTraining, TenStepsFromPyTorchInFloat) { expect_golden_trainings<float>(); }

// F25
TEST(ParameterGroups, BiasesAndNormsOfATransformerDoNotDecay) {
  heed::EncoderLayer<double> layer({.embed_dim = 8, .num_heads = 2, .ffn_dim = 12});
  heed::Random random(1);
  layer.initialize(random);
  heed::EncoderLayer<double> before = layer;
  heed::AdamW<double> optimizer(
      layer,
      {.learning_rate = 0.1, .weight_decay = 0.5, .groups = {{.holds = heed::biases_and_norms, .weight_decay = 0}}});
  for (const auto& entry : optimizer.parameters()) EXPECT_EQ(entry.parameter->grad()(0), 0);
  optimizer.step();
  int matrices = 0;
  const heed::ParameterList<double> start(before);
  for (Index i = 0; i < start.size(); ++i) {
    const auto &was = *start[i].parameter, &is = *optimizer.parameters()[i].parameter;
    matrices += was.rank() == 2;
    for (Index j = 0; j < was.size(); ++j) {
      EXPECT_DOUBLE_EQ(is.value()(j), was.rank() == 2 ? 0.95 * was.value()(j) : was.value()(j)) << start[i].name;
    }
  }
  EXPECT_EQ(matrices, 4);
  EXPECT_EQ(layer.norm1.weight.value()(0), 1);
}

}  // namespace
