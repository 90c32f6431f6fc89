// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The tensors of one attention call, before any check: what every kind of attention takes.

#include <heed/core/config.hpp>
#include <heed/core/scalar.hpp>
#include <heed/core/tensor.hpp>

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
};

}  // namespace detail

HEED_NAMESPACE_END
