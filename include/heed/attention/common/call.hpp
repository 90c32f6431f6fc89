// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// A checked call of softmax attention as data: the paths compute from it.

#include <span>

#include <heed/attention/common/continuation.hpp>
#include <heed/attention/common/modifier_ref.hpp>

HEED_NAMESPACE_BEGIN

template <class T>
class AttentionCache;
template <class T>
class LinearAttentionState;

namespace detail {

/// q (B, H, Lq, Dk), k (B, G, Lk, Dk), v (B, G, Lk, Dv), out (B, H, Lq, Dv). Outputs without data are not wanted.
template <class T, class S = T>
struct AttentionTensors {
  TensorView<const T, 4> q;
  TensorView<const S, 4> k, v;
  TensorView<T, 4> out;
  /// (B, H, Lq, Lk): the weights before dropout.
  TensorView<T, 4> weights = {};
  /// (B, H, Lq): the maximum and the sum of each row's softmax; of linear attention, the denominator as the sum.
  TensorView<accumulate_t<T>, 3> row_max = {}, row_sum = {};
  /// Filled for a backward pass; null for none. The statistics then point into it.
  AttentionCache<T>* cache = nullptr;
  /// The running state of linear attention; null for none.
  LinearAttentionState<T>* state = nullptr;
  /// Of a call on a cache of keys and values.
  std::optional<Continuation> continuation = std::nullopt;
};

}  // namespace detail

/// Options that affect the result of softmax attention.
struct AttentionOptions {
  /// The factor of the scores; 1/√Dk if not given.
  std::optional<double> scale = std::nullopt;
  /// The probability that a weight is dropped; kept weights are scaled by 1 / (1 − dropout). Only while
  /// context.training.
  double dropout = 0;
  /// One logit for each head, in the softmax denominator only (attention sinks; Xiao et al., 2023). Borrowed.
  BorrowedSpan<double> sinks = {};
};

namespace detail {

/// True when the fast paths compute in A.
template <class A>
inline constexpr bool has_blocked_v = std::is_same_v<A, float> || std::is_same_v<A, double>;

/// The factor of the scores.
template <class A>
A scale_of(const std::optional<double>& scale, int Dk) {
  return static_cast<A>(scale.value_or(1 / std::sqrt(static_cast<double>(Dk))));
}

/// The parts of a call that do not depend on how its tensors are stored. The mask and the modifier are bound to the
/// shape.
template <class A>
struct AttentionTerms {
  AttentionShape shape;
  MaskRef mask;
  ModifierRef<A> modifier = {};
  A scale;
  std::span<const double> sinks = {};
  double dropout = 0;
  DropoutPattern dropped = DropoutPattern(0, 0, 0);
  /// (B, H, Lq), both or neither: the maximum of the scores of a row, sinks included, and the sum of
  /// exp(score - maximum); -inf and 0 for a row that sees nothing and has no sink.
  TensorView<A, 3> row_max = {}, row_sum = {};

  /// The key/value head of a query head.
  int key_head(int h) const { return h / (shape.H / shape.G); }
  bool wants_statistics() const { return row_max.data() != nullptr; }
  /// The factor of a weight that dropout keeps.
  A keep_scale() const { return dropout < 1 ? A(1 / (1 - dropout)) : A(0); }
};

/// q (B, H, Lq, Dk), k (B, G, Lk, Dk), v (B, G, Lk, Dv), out (B, H, Lq, Dv).
template <class T, class S>
struct AttentionCall : AttentionTerms<accumulate_t<T>> {
  using A = accumulate_t<T>;
  TensorView<const T, 4> q;
  TensorView<const S, 4> k, v;
  TensorView<T, 4> out;
};

}  // namespace detail

/// The destinations of a backward pass. Give kNotWanted for a gradient that is not needed.
template <class T>
struct AttentionGradients {
  /// A tensor, a view or an Eigen matrix as a view of rank 4.
  class Destination : public TensorView<T, 4> {
   public:
    Destination() = default;
    Destination(NotWanted) {}  ///< not wanted
    /// A tensor, view or Eigen matrix of T.
    template <TensorLike Y>
    requires(std::is_same_v<scalar_of_t<Y>, T> && detail::outlives_v<Y>)
    Destination(Y&& y) : TensorView<T, 4>(detail::write_as<4>(y)) {}
  };

  Destination dq;                 ///< (B, H, Lq, Dk)
  Destination dk;                 ///< (B, G, Lk, Dk)
  Destination dv;                 ///< (B, G, Lk, Dv)
  std::span<double> dsinks = {};  ///< (H), the gradients of the sinks
};

namespace detail {

/// The inputs of a backward pass: the call with its row statistics (T = S), its output and the gradient of that, both
/// (B, H, Lq, Dv).
template <class T>
struct AttentionBackwardCall : AttentionTerms<accumulate_t<T>> {
  TensorView<const T, 4> q, k, v, out, dout;
  AttentionGradients<T> gradients;
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
