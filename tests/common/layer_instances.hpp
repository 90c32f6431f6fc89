// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Layers and the products they are made of, compiled once for all tests (instances/layers.cpp).

#include <heed/nn/transformer.hpp>

#include "common/instances.hpp"

namespace heed {

#define HEED_TEST_LAYERS(declaration, T)                                     \
  declaration void detail::multiply<T>(const detail::Product<T>&, Context&); \
  declaration class Linear<T>;                                               \
  declaration class LayerNorm<T>;                                            \
  declaration class FeedForward<T>;                                          \
  declaration class SelfAttention<T>;                                        \
  declaration class MultiHeadAttention<T>;                                   \
  declaration class EncoderLayer<T>;                                         \
  declaration class DecoderLayer<T>;                                         \
  declaration class Encoder<T>;                                              \
  declaration class Decoder<T>

HEED_TEST_LAYERS(extern template, float);
HEED_TEST_LAYERS(extern template, double);

}  // namespace heed
