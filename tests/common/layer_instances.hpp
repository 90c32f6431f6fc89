// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Layers, compiled once for all tests (instances/layers.cpp).

#include <heed/nn/self_attention.hpp>
#include <heed/nn/transformer.hpp>

#include "common/gemm_instances.hpp"
#include "common/instances.hpp"

namespace heed {

#define HEED_TEST_LAYERS(declaration, T)   \
  declaration class Linear<T>;             \
  declaration class Norm<T>;               \
  declaration class FeedForward<T>;        \
  declaration class SelfAttention<T>;      \
  declaration class MultiHeadAttention<T>; \
  declaration class EncoderLayer<T>;       \
  declaration class DecoderLayer<T>;       \
  declaration class Encoder<T>;            \
  declaration class Decoder<T>

HEED_TEST_LAYERS(extern template, float);
HEED_TEST_LAYERS(extern template, double);

}  // namespace heed
