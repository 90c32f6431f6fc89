// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Clipping gradients by their global norm.

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

/// The sum of squares in double. Cut by the number of elements alone, so that threads change no bit.
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

/// The Euclidean norm of all gradients together; parameters without a gradient count as 0.
template <class T>
double global_grad_norm(const ParameterList<T>& parameters, Context& context) {
  double total = 0;
  for (const auto& entry : parameters) {
    if (entry.parameter->has_grad()) total += detail::sum_of_squares<T>(entry.parameter->grad(), context);
  }
  return std::sqrt(total);
}

/// Scales all gradients by most/norm where their global norm is above `most`, and returns the norm they had. Pascanu,
/// Mikolov, Bengio: "On the difficulty of training recurrent neural networks", 2013.
///
/// Throws ValueError unless `most` is above 0, and for a norm that is not finite, naming the first parameter whose
/// gradient isn't; the gradients then stay as they are.
template <class T>
double clip_grad_norm(const ParameterList<T>& parameters, double most, Context& context) {
  HEED_CHECK(most > 0, ValueError, "heed::clip_grad_norm: most = ", most, " must be above 0");
  const double norm = global_grad_norm(parameters, context);
  if (!std::isfinite(norm)) {
    for (const auto& [name, parameter] : parameters) {
      HEED_CHECK(!parameter->has_grad() || std::isfinite(detail::sum_of_squares<T>(parameter->grad(), context)),
                 ValueError, "heed::clip_grad_norm: the norm is ", norm, "; the gradient of ", name,
                 " holds a number that is not finite");
    }
    HEED_CHECK(false, ValueError, "heed::clip_grad_norm: the norm is ", norm);
  }
  if (norm <= most) return norm;
  const T factor = static_cast<T>(most / norm);
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
template <class T>
double clip_grad_norm(const ParameterList<T>& parameters, double most) {
  Context context;
  return clip_grad_norm(parameters, most, context);
}

HEED_NAMESPACE_END
