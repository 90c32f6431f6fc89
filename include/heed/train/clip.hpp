// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Gradient clipping by the global norm.

#include <algorithm>
#include <cmath>

#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/core/simd.hpp>
#include <heed/core/tensor.hpp>
#include <heed/core/workspace.hpp>
#include <heed/nn/rows.hpp>
#include <heed/train/parameter_list.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// The sum of squares in double. Blocks depend only on the number of elements, so that threads do not change the bits.
template <class T>
double sum_of_squares(const TensorView<const T, 1>& x, Context& context) {
  const RowBlocks blocks{x.extent(0), 4096, (x.extent(0) + 4095) / 4096};
  const Workspace::Frame frame(context.workspace());
  double* sums = context.workspace().template take<double>(blocks.count);
  blocks.for_each(context, [&](Index block, int) {
    constexpr int chains = 8;
    double sum[chains] = {};
    const Index begin = blocks.begin(block), end = blocks.end(block);
    for (Index i = begin; i < end; i += chains) {
      for (int c = 0; c < std::min<Index>(chains, end - i); ++c) {
        const double value = static_cast<double>(x(i + c));
        sum[c] += value * value;
      }
    }
    sums[block] = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
  });
  double total = 0;
  for (Index block = 0; block < blocks.count; ++block) total += sums[block];
  return total;
}

}  // namespace detail

/// The Euclidean norm of all gradients, taken as one vector. Parameters without a gradient count as 0.
template <class T>
double global_grad_norm(const ParameterList<T>& parameters, Context& context = detail::own_context({})) {
  double total = 0;
  for (const auto& entry : parameters) {
    if (entry.parameter->has_grad()) total += detail::sum_of_squares<T>(entry.parameter->grad(), context);
  }
  return std::sqrt(total);
}

/// Limits the global norm of all gradients: if it exceeds max_norm, scales all gradients by max_norm / norm. Returns
/// the norm before scaling. Pascanu, Mikolov, Bengio: "On the difficulty of training recurrent neural networks", 2013.
///
/// Throws ValueError unless max_norm is positive, and if the norm is not finite, with the name of the first parameter
/// whose gradient is not finite; the gradients then remain unchanged.
template <class T>
double clip_grad_norm(const ParameterList<T>& parameters, double max_norm, Context& context = detail::own_context({})) {
  HEED_CHECK(max_norm > 0, ValueError, "heed::clip_grad_norm: max_norm = ", max_norm, " must be positive");
  const double norm = global_grad_norm(parameters, context);
  if (!std::isfinite(norm)) {
    for (const auto& [name, parameter] : parameters) {
      HEED_CHECK(!parameter->has_grad() || std::isfinite(detail::sum_of_squares<T>(parameter->grad(), context)),
                 ValueError, "heed::clip_grad_norm: the norm is ", norm, "; the gradient of ", name,
                 " contains a number that is not finite");
    }
    HEED_CHECK(false, ValueError, "heed::clip_grad_norm: the norm is ", norm);
  }
  if (norm <= max_norm) return norm;
  const T factor = static_cast<T>(max_norm / norm);
  for (const auto& entry : parameters) {
    if (!entry.parameter->has_grad()) continue;
    const TensorView<T, 1> grad = entry.parameter->grad();
    detail::parallel_for_elements(context, grad.extent(0), [&](Index begin, Index end) {
      for (Index i = begin; i < end; i += Vec<T>::size) {
        detail::store_lanes<T>(detail::load_lanes(grad.data() + i, end - i) * Vec<T>(factor), grad.data() + i, end - i);
      }
    });
  }
  return norm;
}

HEED_NAMESPACE_END
