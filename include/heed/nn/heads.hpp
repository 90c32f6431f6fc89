// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Heads as views: the columns of a projection (B, L, columns) read as (B, heads, L, width).

#include <type_traits>

#include <heed/core/arguments.hpp>
#include <heed/core/config.hpp>
#include <heed/core/error.hpp>
#include <heed/core/scalar.hpp>
#include <heed/core/tensor.hpp>

HEED_NAMESPACE_BEGIN

/// Queries, keys and values as heads.
template <class T>
struct Heads {
  TensorView<T, 4> q;  ///< (B, H, L, D)
  TensorView<T, 4> k;  ///< (B, G, L, D)
  TensorView<T, 4> v;  ///< (B, G, L, D)
};

namespace detail {

/// Columns [column, column + heads·width) of x (B, L, columns) as (B, heads, L, width), without a copy.
template <class T>
TensorView<T, 4> split_heads(const TensorView<T, 3>& x, Index column, Index heads, Index width) {
  return {x.data() + column * x.stride(2),
          {x.extent(0), heads, x.extent(1), width},
          {x.stride(0), width * x.stride(2), x.stride(1), x.stride(2)}};
}

}  // namespace detail

/// The queries, keys and values of a fused projection qkv (B, L, 3·H·D) or (L, 3·H·D), views (B, H, L, D) of its
/// memory:
///
///   auto [q, k, v] = heed::split_qkv(qkv, num_heads);
///   auto out = heed::attention(q, k, v, heed::Causal{});
///
/// Throws ShapeError unless the width is a multiple of 3·H.
template <TensorLike X>
auto split_qkv(X&& qkv, Index num_heads) {
  static_assert(std::is_lvalue_reference_v<X> || detail::is_view_v<std::remove_cvref_t<X>>,
                "heed::split_qkv: the argument is a temporary, whose memory would end before the views; name it first");
  const auto x = detail::write_as<3>(qkv);
  HEED_CHECK(num_heads >= 1 && x.extent(2) % (3 * num_heads) == 0, ShapeError, "heed::split_qkv: qkv ", x.extents(),
             " has width ", x.extent(2), ", not a multiple of 3·num_heads with num_heads = ", num_heads);
  const Index width = x.extent(2) / 3, head_dim = width / num_heads;
  using T = std::remove_pointer_t<decltype(x.data())>;
  return Heads<T>{detail::split_heads(x, 0, num_heads, head_dim), detail::split_heads(x, width, num_heads, head_dim),
                  detail::split_heads(x, 2 * width, num_heads, head_dim)};
}

/// The mean of attention weights (B, H, Lq, Lk) over the heads, (B, Lq, Lk): PyTorch's average_attn_weights.
template <AnyTensor Weights>
auto mean_over_heads(const Weights& weights) {
  static_assert(rank_of_v<Weights> == 4, "heed::mean_over_heads: the weights must be (B, H, Lq, Lk)");
  using T = scalar_of_t<Weights>;
  using A = accumulate_t<T>;
  const TensorView<const T, 4> w = view_of(weights);
  Tensor<T, 3> mean(w.extent(0), w.extent(2), w.extent(3));
  for (Index b = 0; b < w.extent(0); ++b) {
    for (Index q = 0; q < w.extent(2); ++q) {
      for (Index k = 0; k < w.extent(3); ++k) {
        A sum(0);
        for (Index h = 0; h < w.extent(1); ++h) sum += static_cast<A>(w(b, h, q, k));
        mean(b, q, k) = static_cast<T>(sum / static_cast<A>(w.extent(1)));
      }
    }
  }
  return mean;
}

HEED_NAMESPACE_END
