// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The layers that heed::compiled holds, for float and double.

#include <heed/compiled/attention.hpp>
#include <heed/nn/self_attention.hpp>
#include <heed/nn/transformer.hpp>

/// The instances in src/layers.cpp for each T, with `declaration` = template or extern template.
#define HEED_COMPILED_LAYERS(declaration, T) \
  declaration class Linear<T>;               \
  declaration class Norm<T>;                 \
  declaration class FeedForward<T>;          \
  declaration class SelfAttention<T>;        \
  declaration class MultiHeadAttention<T>;   \
  declaration class EncoderLayer<T>;         \
  declaration class DecoderLayer<T>;         \
  declaration class Encoder<T>;              \
  declaration class Decoder<T>

#if HEED_USES_COMPILED
namespace heed {
HEED_COMPILED_LAYERS(extern template, float);
HEED_COMPILED_LAYERS(extern template, double);
}  // namespace heed
#endif

#include <heed/core/restore_macros.hpp>
