// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// One call of linear attention as data: what the entry has checked and the paths compute from.

#include <heed/attention/common/call.hpp>

HEED_NAMESPACE_BEGIN

/// What makes queries and keys positive, number by number.
enum class FeatureMap {
  EluPlusOne,  ///< x + 1 above 0, e^x below (Katharopoulos et al., 2020)
  Relu         ///< max(x, 0); a query whose numbers are all negative sees nothing
};

namespace detail {

/// The options of a call; the padding is bound to the shape.
struct LinearTerms {
  FeatureMap feature_map;
  /// Each query sees the keys up to its position.
  bool causal;
  std::optional<Padding> padding;
};

/// The real keys of sample b; a sample without real queries has none.
inline KeyRange real_keys(const std::optional<Padding>& padding, int b, int Lk) {
  return padding ? padding->range(b, 0, 0) : KeyRange{0, Lk};
}
/// Whether query q of sample b is a real one, and there is a key.
inline bool is_real_query(const std::optional<Padding>& padding, int b, int q) {
  if (!padding) return true;
  const KeyRange keys = padding->range(b, 0, q);
  return keys.begin < keys.end;
}

/// phi(x)
template <class A>
A feature(FeatureMap map, A x) {
  using std::exp;
  if (map == FeatureMap::Relu) return x <= A(0) ? A(0) : x;
  return x > A(0) ? x + A(1) : exp(x);
}
/// phi'(x), from phi(x).
template <class A>
A feature_slope(FeatureMap map, A phi) {
  if (map == FeatureMap::Relu) return phi == A(0) ? A(0) : A(1);
  return phi > A(1) ? A(1) : phi;
}

/// q (B, H, Lq, Dk), k (B, G, Lk, Dk), v (B, G, Lk, Dv), out (B, H, Lq, Dv); the padding is bound to the shape.
template <class T, class S>
struct LinearCall {
  using A = accumulate_t<T>;

  AttentionShape shape;
  TensorView<const T, 4> q;
  TensorView<const S, 4> k, v;
  TensorView<T, 4> out;
  LinearTerms options;
  /// (B, H, Lq): phi(q) · the sum of phi(k); 0 for a query that sees nothing. Not wanted where it has no data.
  TensorView<A, 3> denominators;
  /// The running state, (B, G, Dk, Dv) and (B, G, Dk); without data for none.
  TensorView<A, 4> values;
  TensorView<A, 3> keys;
};

/// The inputs of a backward: the forward's call with its denominators (its `out` is not used), its output and the
/// gradient of that, both (B, H, Lq, Dv).
template <class T>
struct LinearBackwardCall {
  LinearCall<T, T> forward;
  TensorView<const T, 4> out, dout;
  AttentionGradients<T> gradients;
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
