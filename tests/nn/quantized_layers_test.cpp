// SPDX-License-Identifier: MIT
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <heed/compiled/layers.hpp>
#include <heed/core/quantized.hpp>
#include <heed/nn/embedding.hpp>
#include <heed/nn/feed_forward.hpp>
#include <heed/nn/kv_cache.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/positional.hpp>
#include <heed/nn/transformer.hpp>

#include "common/allocation_counter.hpp"
#include "common/message_of.hpp"
#include "nn/layer_checks.hpp"

namespace {

using heed::Causal;
using heed::Context;
using heed::Index;
using heed::Parameter;
using heed::Tensor;
using heed::WeightFormat;
using namespace layer_checks;
using heed_test::message_of;

constexpr WeightFormat kStored[] = {WeightFormat::Float16, WeightFormat::BFloat16, WeightFormat::Q8_0,
                                    WeightFormat::Q4_0, WeightFormat::Q4_1};

/// The same layer with its weights as numbers.
template <class Layer>
Layer dequantized(const Layer& layer) {
  Layer copy = layer;
  copy.visit("", [](std::string_view, Parameter<float>& parameter) { parameter.dequantize(); });
  return copy;
}

// A layer with weights in few bits has the bits of the layer with those weights as numbers.
template <class Layer, class Run>
void expect_same_bits(Layer layer, Run&& run) {
  fill_parameters<float>(layer, 5);
  for (const WeightFormat format : kStored) {
    layer.visit("", [](std::string_view, Parameter<float>& parameter) { parameter.dequantize(); });
    layer.quantize(format);
    Context context;
    heed::ThreadPool pool(2);
    Context threads(pool);
    const Tensor<float, 3> expected = run(dequantized(layer), context);
    EXPECT_TRUE(bits_equal(run(layer, context), expected)) << to_string(format);
    EXPECT_TRUE(bits_equal(run(layer, threads), expected)) << to_string(format);
    layer.pack();
    EXPECT_TRUE(bits_equal(run(layer, context), expected)) << to_string(format) << ", packed";
  }
}

TEST(QuantizedLayers, HaveTheBitsOfTheirNumbers) {
  const auto x = random_tensor<float, 3>({2, 5, 64}), memory = random_tensor<float, 3>({2, 7, 64}, 3);
  const auto alone = [&](const auto& layer, Context& context) { return layer(x, context); };
  expect_same_bits(heed::Linear<float>(64, 37), alone);
  expect_same_bits(heed::FeedForward<float>({.embed_dim = 64, .ffn_dim = 96, .gated = true}), alone);
  expect_same_bits(heed::MultiHeadAttention<float>({.embed_dim = 64, .num_heads = 4, .num_kv_heads = 2, .rotary = {}}),
                   [&](const auto& layer, Context& context) { return layer(x, Causal{}, context); });
  // Parts of the joint weight begin within a panel: heads of 3 rows.
  expect_same_bits(
      heed::MultiHeadAttention<float>({.embed_dim = 64, .num_heads = 3, .head_dim = 3, .value_head_dim = 32}),
      [&](const auto& layer, Context& context) { return layer(x, memory, memory, context); });
  expect_same_bits(heed::MultiHeadAttention<float>({.embed_dim = 64, .num_heads = 4, .key_dim = 32}),
                   [&](const auto& layer, Context& context) {
                     return layer(x, memory.view().slice(2, 0, 32), memory.view().slice(2, 32, 32), context);
                   });
  expect_same_bits(heed::Encoder<float>({.num_layers = 2, .layer = {.embed_dim = 64, .num_heads = 4, .ffn_dim = 64}}),
                   [&](const auto& layer, Context& context) {
                     Tensor<float, 3> y(2, 5, 64);
                     heed::KvCache<float> kv(layer, {.batch = 2, .capacity = 5});
                     layer.forward(x.view().slice(1, 0, 4), Causal{}, y.view().slice(1, 0, 4), kv, context);
                     layer.forward(x.view().slice(1, 4, 1), Causal{}, y.view().slice(1, 4, 1), kv, context);
                     return y;
                   });
}

TEST(QuantizedLayers, EmbeddingsAreLookedUpAndProjected) {
  Tensor<int, 2> ids(2, 3);
  for (Index i = 0; i < 6; ++i) ids.data()[i] = static_cast<int>(i * 17 % 50);
  const auto h = random_tensor<float, 3>({2, 3, 32});
  for (const double scale : {1.0, 3.0}) {
    heed::Embedding<float> embedding({.vocab_size = 50, .embed_dim = 32, .scale = scale});
    expect_same_bits(embedding, [&](const auto& layer, Context& context) { return layer(ids, context); });
    expect_same_bits(embedding, [&](const auto& layer, Context& context) { return layer.project(h, context); });
  }
}

// pack_head() changes no bit, and with `release` the rows come out of the panels.
TEST(QuantizedLayers, APackedHeadServesLookupsToo) {
  heed::Embedding<float> embedding({.vocab_size = 71, .embed_dim = 19});
  fill_parameters<float>(embedding, 1);
  Tensor<int, 2> ids(1, 71);
  for (Index i = 0; i < 71; ++i) ids(0, i) = static_cast<int>(70 - i);
  const auto h = random_tensor<float, 3>({1, 2, 19});
  const Tensor<float, 3> rows = embedding(ids), logits = embedding.project(h);
  embedding.pack_head();
  EXPECT_TRUE(bits_equal(embedding.project(h), logits));
  EXPECT_TRUE(bits_equal(embedding(ids), rows));
  embedding.pack_head({.release = true});
  EXPECT_TRUE(embedding.weight.released());
  EXPECT_TRUE(bits_equal(embedding.project(h), logits));
  EXPECT_TRUE(bits_equal(embedding(ids), rows));
  Tensor<float, 3> columns(1, 19, 71);
  Context context;
  embedding.forward(ids, columns.view().transpose(1, 2), context);
  EXPECT_TRUE(bits_equal(columns.view().transpose(1, 2), rows.view())) << "into strides";
  EXPECT_EQ(heed_test::allocations_of([&] { embedding.forward(ids, columns.view().transpose(1, 2), context); }), 0);
}

struct Model : heed::Module<Model> {
  heed::Embedding<float> tokens{{.vocab_size = 10, .embed_dim = 32}};
  heed::LearnedPositions<float> positions{{.length = 4, .embed_dim = 32}};
  heed::Encoder<float> layers{{.num_layers = 1, .layer = {.embed_dim = 32, .num_heads = 2}}};
  Parameter<float> own{4, 32};
  static void members(auto&& f) {
    f("tokens", &Model::tokens);
    f("positions", &Model::positions);
    f("layers", &Model::layers);
    f("own", &Model::own);
  }
};

TEST(QuantizedLayers, OnlyMatricesOfProductsAreQuantized) {
  Model model;
  fill_parameters<float>(model, 1);
  model.quantize(WeightFormat::Q8_0);
  int quantized = 0;
  model.visit("", [&](std::string_view name, const Parameter<float>& parameter) {
    const bool is_product = parameter.rank() == 2 && name != "positions.weight" && name != "own";
    EXPECT_EQ(parameter.quantized() != nullptr, is_product) << name;
    quantized += parameter.quantized() != nullptr;
  });
  EXPECT_EQ(quantized, 5);
  EXPECT_EQ(heed::parameter_count(model),
            10 * 32 + 4 * 32 + 4 * 32 + (4 * 32 * 32 + 4 * 32) + (2 * 128 * 32 + 160) + 4 * 32);
}

TEST(QuantizedLayers, WhatNeedsNumbersSaysSo) {
  heed::Linear<float> layer(32, 3);
  fill_parameters<float>(layer, 1);
  layer.quantize(WeightFormat::Q4_1);
  EXPECT_EQ(message_of<heed::ValueError>([&] { layer.weight.value(); }),
            "heed::Parameter: the value of shape (3, 32) is stored as Q4_1; read it with quantized(), or call "
            "dequantize() to train or save it");
  EXPECT_THROW(layer.weight.mutable_matrix(), heed::ValueError);
  Context context;
  const auto x = random_tensor<float, 3>({1, 2, 32});
  Tensor<float, 3> y(1, 2, 3), dx(1, 2, 32);
  heed::Linear<float>::Cache cache;
  layer.forward(x, y, cache, context);
  EXPECT_THROW(layer.backward(y, dx, cache, context), heed::ValueError);
  layer.weight.dequantize();
  layer.backward(y, dx, cache, context);
  layer.weight = Eigen::MatrixXf::Ones(3, 32);
  layer.quantize(WeightFormat::Q8_0);
  layer.weight = Eigen::MatrixXf::Zero(3, 32);
  EXPECT_EQ(layer.weight.quantized(), nullptr) << "an assignment replaces it";

  EXPECT_NE(message_of<heed::ShapeError>([&] {
              layer.weight.store(heed::QuantizedMatrix(WeightFormat::Q8_0, 4, 32));
            }).find("the weight is (3, 32) but the quantized matrix is (4, 32)"),
            std::string::npos);
  EXPECT_THROW(layer.bias.quantize(WeightFormat::Float16), heed::ShapeError);
  heed::Linear<float> narrow(33, 3);
  fill_parameters<float>(narrow, 1);
  EXPECT_THROW(narrow.quantize(WeightFormat::Q4_0), heed::ShapeError);
  heed::Linear<float> unset(32, 3);
  EXPECT_THROW(unset.quantize(WeightFormat::Q4_0), heed::ValueError);
}

}  // namespace
