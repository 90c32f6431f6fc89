// SPDX-License-Identifier: MIT
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include <heed/compiled/layers.hpp>
#include <heed/compiled/recurrent.hpp>
#include <heed/nn/feed_forward.hpp>
#include <heed/nn/norm.hpp>
#include <heed/nn/recurrent.hpp>
#include <heed/nn/self_attention.hpp>
#include <heed/nn/transformer.hpp>

#include "nn/backward_checks.hpp"

namespace {

using heed::Causal;
using namespace backward_checks;

// Caches hold memory that views point into: a copy would share it.
template <class Cache>
constexpr bool is_move_only = std::is_move_constructible_v<Cache> && !std::is_copy_constructible_v<Cache>;
static_assert(is_move_only<heed::FeedForward<float>::Cache>);
static_assert(is_move_only<heed::LayerNorm<float>::Cache>);
static_assert(is_move_only<heed::SelfAttention<float>::Cache>);
static_assert(is_move_only<heed::MultiHeadAttention<float>::Cache>);
static_assert(is_move_only<heed::EncoderLayer<float>::Cache>);
static_assert(is_move_only<heed::Decoder<float>::Cache>);
static_assert(is_move_only<heed::Recurrent<float>::Cache>);

/// The error of a backward of `second` with the cache that `first` filled.
template <class First, class Second>
std::string error_of(First first, Second second) {
  fill_parameters<double>(first, 1);
  fill_parameters<double>(second, 1);
  const auto x = random_tensor<double, 3>({2, 3, 4});
  Tensor<double, 3> y(2, 3, first.output_width(4)), dx(2, 3, 4);
  Context context;
  typename First::Cache cache;
  first.forward(x, y, cache, context);
  first.backward(y, dx, cache, context);
  return message_of<heed::ShapeError>([&] { second.backward(y, dx, cache, context); });
}

TEST(Caches, OfAnotherLayerAreRefused) {
  using heed::FeedForward;
  EXPECT_EQ(
      error_of(FeedForward<double>({.embed_dim = 4, .ffn_dim = 8}),
               FeedForward<double>({.embed_dim = 4, .ffn_dim = 64})),
      "heed::FeedForward: the cache holds a forward of another heed::FeedForward with ffn_dim = 8 but this one has "
      "ffn_dim = 64; give the cache to a forward of this layer first");
  EXPECT_NE(error_of(FeedForward<double>({.embed_dim = 4}), FeedForward<double>({.embed_dim = 4, .gated = true}))
                .find("gated"),
            std::string::npos);
  EXPECT_NE(error_of(heed::RMSNorm<double>({.embed_dim = 4}), heed::LayerNorm<double>({.embed_dim = 4}))
                .find("heed::LayerNorm: the cache holds"),
            std::string::npos);
  EXPECT_NE(error_of(heed::MultiHeadAttention<double>({.embed_dim = 4, .num_heads = 2}),
                     heed::MultiHeadAttention<double>({.embed_dim = 4, .num_heads = 1}))
                .find("num_heads = 2 but this one has num_heads = 1"),
            std::string::npos);
  EXPECT_NE(error_of(heed::SelfAttention<double>({.embed_dim = 4, .head_dim = 3, .value_head_dim = 4}),
                     heed::SelfAttention<double>({.embed_dim = 4, .head_dim = 5, .value_head_dim = 4}))
                .find("head_dim = 3"),
            std::string::npos);
  const heed::EncoderLayerOptions layer{.embed_dim = 4, .num_heads = 2};
  EXPECT_EQ(error_of(heed::Encoder<double>({.num_layers = 1, .layer = layer}),
                     heed::Encoder<double>({.num_layers = 3, .layer = layer})),
            "heed::Encoder: the cache holds a forward of another heed::Encoder with num_layers = 1 but this one has "
            "num_layers = 3; give the cache to a forward of this layer first");
  EXPECT_NE(error_of(heed::Encoder<double>({.num_layers = 1, .layer = layer}),
                     heed::Encoder<double>({.num_layers = 1, .layer = layer, .final_norm = true}))
                .find("final_norm"),
            std::string::npos);
  heed::EncoderLayerOptions wide = layer;
  wide.ffn_dim = 5;
  EXPECT_NE(error_of(heed::Encoder<double>({.num_layers = 2, .layer = layer}),
                     heed::Encoder<double>({.num_layers = 2, .layer = wide}))
                .find("ffn_dim = 16 but this one has ffn_dim = 5"),
            std::string::npos);
  EXPECT_NE(error_of(heed::GRU<double>({.input_size = 4, .hidden_size = 3}),
                     heed::LSTM<double>({.input_size = 4, .hidden_size = 3}))
                .find("heed::LSTM: the cache holds a forward of heed::GRU"),
            std::string::npos);
}

TEST(Caches, ADecodersOfAnotherIsRefused) {
  heed::Decoder<double> one({.num_layers = 1, .layer = {.embed_dim = 4, .num_heads = 2}});
  heed::Decoder<double> two({.num_layers = 2, .layer = {.embed_dim = 4, .num_heads = 2}});
  fill_parameters<double>(one, 1);
  fill_parameters<double>(two, 1);
  const auto x = random_tensor<double, 3>({2, 3, 4}), memory = random_tensor<double, 3>({2, 5, 4});
  Tensor<double, 3> y(x.extents()), dx(x.extents());
  Context context;
  heed::Decoder<double>::Cache cache;
  EXPECT_THROW(one.backward(y, dx, heed::kNotWanted, cache, context), heed::ShapeError) << "no forward";
  one.forward(x, memory, Causal{}, y, cache, context);
  EXPECT_THROW(two.backward(y, dx, heed::kNotWanted, cache, context), heed::ShapeError);
}

// The forward decides whether a cache is checkpointed; what the flag says later changes nothing.
TEST(Caches, CheckpointingMayBeToggledBetweenForwardAndBackward) {
  heed::Encoder<double> encoder({.num_layers = 3, .layer = {.embed_dim = 4, .num_heads = 2}});
  fill_parameters<double>(encoder, 1);
  const auto x = random_tensor<double, 3>({2, 3, 4}), dy = random_tensor<double, 3>({2, 3, 4}, 2);
  Context context;
  const Gradients<double> expected = gradients<double>(encoder, x, dy, context);
  heed::Encoder<double>::Cache cache;
  Tensor<double, 3> y(x.extents()), dx(x.extents());
  for (const bool first : {true, false, true}) {
    ParameterList<double>(encoder).zero_grad();
    cache.checkpointing = first;
    encoder.forward(x, y, cache, context);
    cache.checkpointing = !first;
    encoder.backward(dy, dx, cache, context);
    EXPECT_TRUE(bits_equal(expected.dx.view(), dx.view()));
    expect_same_parameter_gradients(expected.parameters, parameter_gradients<double>(encoder));
  }
}

}  // namespace
