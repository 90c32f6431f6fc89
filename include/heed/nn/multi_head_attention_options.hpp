// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Options of MultiHeadAttention, and what their defaults mean.

#include <heed/nn/attention_layer.hpp>
#include <heed/nn/norm.hpp>
#include <heed/nn/rotary.hpp>

HEED_NAMESPACE_BEGIN

/// Options of MultiHeadAttention.
struct MultiHeadAttentionOptions {
  Index embed_dim = 0;                        ///< E, the width of the queries' input and of y
  Index num_heads = 0;                        ///< H
  Index num_kv_heads = 0;                     ///< G, a divisor of H; 0 means H, 1 is multi-query attention
  Index head_dim = 0;                         ///< Dk; 0 means E/H
  Index value_head_dim = 0;                   ///< Dv; 0 means Dk
  Index key_dim = 0;                          ///< the width of the keys' input (PyTorch: kdim); 0 means E
  Index value_dim = 0;                        ///< the width of the values' input (PyTorch: vdim); 0 means key_dim
  bool bias = true;                           ///< in every projection
  std::optional<double> scale{};              ///< of the scores; 1/√Dk by default
  double dropout = 0;                         ///< probability that a weight is dropped, while context.training
  RotaryEmbeddingOptions rotary = kNoRotary;  ///< turns queries and keys by their positions
  /// Normalizes each head's queries and keys, before they are turned: q_norm and k_norm. Its embed_dim 0 means Dk.
  std::optional<NormOptions> qk_norm{};
};

namespace detail {

/// With everything that 0 means filled in. Throws as the constructor of MultiHeadAttention does.
inline MultiHeadAttentionOptions resolved(MultiHeadAttentionOptions o, std::string_view name) {
  HEED_CHECK(o.embed_dim >= 1 && o.num_heads >= 1, ShapeError, name, ": embed_dim = ", o.embed_dim,
             " and num_heads = ", o.num_heads, " must be at least 1");
  HEED_CHECK(o.num_kv_heads >= 0 && o.head_dim >= 0 && o.value_head_dim >= 0 && o.key_dim >= 0 && o.value_dim >= 0,
             ShapeError, name, ": num_kv_heads = ", o.num_kv_heads, ", head_dim = ", o.head_dim,
             ", value_head_dim = ", o.value_head_dim, ", key_dim = ", o.key_dim, " and value_dim = ", o.value_dim,
             " can't be negative");
  if (o.num_kv_heads == 0) o.num_kv_heads = o.num_heads;
  HEED_CHECK(o.num_heads % o.num_kv_heads == 0, ShapeError, name, ": num_heads = ", o.num_heads,
             " but num_kv_heads = ", o.num_kv_heads,
             "; num_heads must be a multiple: query head h reads key head h / (num_heads/num_kv_heads)");
  if (o.head_dim == 0) {
    HEED_CHECK(o.embed_dim % o.num_heads == 0, ShapeError, name, ": embed_dim = ", o.embed_dim,
               " is not a multiple of num_heads = ", o.num_heads, "; give head_dim");
    o.head_dim = o.embed_dim / o.num_heads;
  }
  if (o.value_head_dim == 0) o.value_head_dim = o.head_dim;
  if (o.key_dim == 0) o.key_dim = o.embed_dim;
  if (o.value_dim == 0) o.value_dim = o.key_dim;
  if (o.rotary.enabled) {
    if (o.rotary.head_dim == 0) o.rotary.head_dim = o.head_dim;
    HEED_CHECK(o.rotary.head_dim == o.head_dim, ShapeError, name, ": rotary.head_dim = ", o.rotary.head_dim,
               " but head_dim = ", o.head_dim, "; leave it 0, or give rotary.rotary_dim to turn a part of each head");
  }
  if (o.qk_norm) {
    if (o.qk_norm->embed_dim == 0) o.qk_norm->embed_dim = o.head_dim;
    HEED_CHECK(o.qk_norm->embed_dim == o.head_dim, ShapeError, name, ": qk_norm->embed_dim = ", o.qk_norm->embed_dim,
               " but head_dim = ", o.head_dim, "; leave it 0: each head is normalized alone");
  }
  detail::check_attention_options(name, o.scale, o.dropout);
  return o;
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
