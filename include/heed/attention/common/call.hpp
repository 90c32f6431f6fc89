// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// One attention call as data: what the entry has checked and the paths compute from.

#include <cmath>
#include <optional>
#include <span>
#include <type_traits>

#include <heed/core/config.hpp>
#include <heed/core/error.hpp>
#include <heed/core/random.hpp>
#include <heed/core/scalar.hpp>
#include <heed/core/tensor.hpp>
#include <heed/mask/concept.hpp>

HEED_NAMESPACE_BEGIN

/// What changes the result of an attention call besides its arguments.
struct AttentionOptions {
  /// Factor of the scores; 1/√Dk where not given.
  std::optional<double> scale = std::nullopt;
  /// Probability that a weight is dropped; the keep_scale grow by 1/(1 - dropout). Only while context.training.
  double dropout = 0;
  /// One logit a head that takes part in the softmax denominator only (attention sinks; Xiao et al., 2023). Borrowed.
  std::span<const double> sinks = {};
};

/// Where a backward writes: dq (B, H, Lq, Dk), dk (B, G, Lk, Dk), dv (B, G, Lk, Dv). What has no data is not wanted.
template <class T>
struct AttentionGradients {
  TensorView<T, 4> dq, dk, dv;  ///< without data when not wanted
  /// (H), the gradients of the sinks.
  std::span<double> dsinks = {};
};

namespace detail {

/// Whether the fast paths compute in A.
template <class A>
inline constexpr bool has_blocked_v = std::is_same_v<A, float> || std::is_same_v<A, double>;

/// The factor of the scores.
template <class A>
A scale_of(const AttentionOptions& options, int Dk) {
  return static_cast<A>(options.scale.value_or(1 / std::sqrt(static_cast<double>(Dk))));
}

/// q (B, H, Lq, Dk), k (B, G, Lk, Dk), v (B, G, Lk, Dv), out (B, H, Lq, Dv); the mask is bound to the shape.
/// row_max and row_sum (B, H, Lq), both or neither: the maximum of the scores of a row, sinks included, and the sum of
/// exp(score - maximum); -inf and 0 for a row that sees nothing and has no sink.
template <class T, class S>
struct AttentionCall {
  using A = accumulate_t<T>;

  AttentionShape shape;
  TensorView<const T, 4> q;
  TensorView<const S, 4> k, v;
  TensorView<T, 4> out;
  TensorView<A, 3> row_max, row_sum;
  MaskRef mask;
  A scale;
  std::span<const double> sinks = {};
  double dropout;
  DropoutPattern dropped;

  /// Query head h reads key/value head h / (H/G).
  int key_head(int h) const { return h / (shape.H / shape.G); }
  bool wants_statistics() const { return row_max.data() != nullptr; }
};

/// What a backward computes from: the forward's call with its row statistics (its `out` is not used), its output and
/// the gradient of that, both (B, H, Lq, Dv).
template <class T>
struct AttentionBackwardCall {
  AttentionCall<T, T> forward;
  TensorView<const T, 4> out, dout;
  AttentionGradients<T> gradients;
};

}  // namespace detail

HEED_NAMESPACE_END
