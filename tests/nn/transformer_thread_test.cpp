// SPDX-License-Identifier: MIT
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <heed/compiled/layers.hpp>
#include <heed/core/parallel.hpp>
#include <heed/mask/basic.hpp>
#include <heed/nn/feed_forward.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/multi_head_attention.hpp>
#include <heed/nn/self_attention.hpp>
#include <heed/nn/transformer.hpp>

#include "nn/layer_checks.hpp"

namespace {

using heed::Activation;
using heed::Causal;
using heed::Index;
using heed::Padding;
using heed::Tensor;
using namespace layer_checks;

// Every layer, packed or not, gives the bits of the serial call at any number of threads.

template <class Layer>
void expect_same_raw_and_packed(Layer layer, const heed::Extents<3>& extents) {
  initialize(layer, 1);
  expect_same_for_any_threads<float>(layer, extents);
  layer.pack();
  expect_same_for_any_threads<float>(layer, extents);
}

TEST(LayersInThreads, Linear) {
  // Many rows are split by rows, few by columns.
  expect_same_raw_and_packed(heed::Linear<float>({.in_features = 48, .out_features = 70}), {2, 150, 48});
  expect_same_raw_and_packed(heed::Linear<float>({.in_features = 200, .out_features = 600}), {1, 3, 200});
}

TEST(LayersInThreads, FeedForward) {
  expect_same_raw_and_packed(heed::FeedForward<float>({.embed_dim = 32, .activation = Activation::GELU, .gated = true}),
                             {2, 100, 32});
}

TEST(LayersInThreads, SelfAttention) {
  expect_same_raw_and_packed(heed::SelfAttention<float>({.embed_dim = 24, .head_dim = 16, .value_head_dim = 20}),
                             {2, 120, 24});
}

TEST(LayersInThreads, MultiHeadAttention) {
  expect_same_raw_and_packed(
      heed::MultiHeadAttention<float>({.embed_dim = 32, .num_heads = 4, .num_kv_heads = 2, .rotary = {.head_dim = 8}}),
      {2, 120, 32});
}

TEST(LayersInThreads, Encoder) {
  for (const heed::NormPlacement norm : {heed::NormPlacement::Pre, heed::NormPlacement::Post}) {
    expect_same_raw_and_packed(
        heed::Encoder<float>(
            {.num_layers = 2, .layer = {.embed_dim = 32, .num_heads = 4, .norm_placement = norm}, .final_norm = true}),
        {2, 90, 32});
  }
}

TEST(LayersInThreads, Decoder) {
  heed::Decoder<float> decoder({.num_layers = 2, .layer = {.embed_dim = 32, .num_heads = 4}});
  initialize(decoder, 1);
  const auto x = random_tensor<float, 3>({2, 90, 32}), memory = random_tensor<float, 3>({2, 50, 32}, 2);
  const std::vector<int> lengths{50, 17};
  const Tensor<float, 3> expected = decoder(x, memory, {Causal{}, Padding(lengths)});
  for (const int threads : {1, 2, 3, 7}) {
    SCOPED_TRACE(threads);
    heed::ThreadPool pool(threads);
    heed::Context context(pool);
    EXPECT_TRUE(bits_equal(expected.view(), decoder(x, memory, {Causal{}, Padding(lengths)}, context)));
  }
}

// Const calls share a layer: each thread has its own context and sequence.
TEST(LayersInThreads, CallsShareALayer) {
  heed::Encoder<float> encoder({.num_layers = 2, .layer = {.embed_dim = 16, .num_heads = 2}});
  initialize(encoder, 1);
  encoder.pack();
  constexpr int kThreads = 4;
  std::vector<Tensor<float, 3>> inputs, expected, actual(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    inputs.push_back(random_tensor<float, 3>({1, 10 + i, 16}, static_cast<std::uint64_t>(i)));
    expected.push_back(encoder(inputs.back(), Causal{}));
  }
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      heed::Context context;
      for (int repeat = 0; repeat < 5; ++repeat) actual[i] = encoder(inputs[i], Causal{}, context);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < kThreads; ++i) EXPECT_TRUE(bits_equal(expected[i].view(), actual[i].view())) << i;
}

}  // namespace
