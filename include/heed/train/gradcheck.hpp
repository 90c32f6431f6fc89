// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Gradients against central differences.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <heed/core/config.hpp>
#include <heed/core/error.hpp>
#include <heed/core/tensor.hpp>
#include <heed/train/parameter_list.hpp>

HEED_NAMESPACE_BEGIN

/// A tensor that a loss depends on, and the gradient that is claimed for it. Of any number of elements, in any memory
/// whose elements lie next to each other; borrowed.
struct GradcheckTensor {
  std::string name;                      ///< for messages
  TensorView<double, 1> values;          ///< what the loss is computed from
  TensorView<const double, 1> gradient;  ///< what is claimed
};

struct GradcheckOptions {
  double step = 1e-5;       ///< h, relative to an element's size where that is above 1
  double tolerance = 1e-6;  ///< |analytic - numeric| may be this much of the tensor's largest |gradient|
};

/// What a gradient check found.
struct GradcheckReport {
  bool passed = true;  ///< whether every compared element was within what is allowed
  Index checked = 0;   ///< elements that were compared
  Index kinks = 0;     ///< elements left out of it, because the loss has a kink within h of them

  /// Of all tensors, the element with the largest error in units of what was allowed.
  std::string worst_tensor;
  Index worst_element = 0;           ///< its number in the tensor
  double analytic = 0, numeric = 0;  ///< of that element
  double error = 0;                  ///< |analytic - numeric| there
  double allowed = 0;                ///< what it may be

  /// One line for people.
  std::string text() const {
    return detail::concat("heed::gradcheck: ", passed ? "passed" : "failed", ", ", checked, " elements compared, ",
                          kinks, " at a kink; worst: ", worst_tensor, "[", worst_element, "], analytic ", analytic,
                          ", numeric ", numeric, ", error ", error, " of ", allowed, " allowed");
  }
};

namespace detail {

/// d loss / d x from points h to both sides; `here` is the loss at x.
struct Difference {
  double central, left, right;
  double gap() const { return std::abs(right - left); }
};
template <class Loss>
Difference difference(Loss& loss, double& x, double here, double step) {
  const double kept = x;
  const double h = step * std::max(1.0, std::abs(kept));
  x = kept + h;
  const double up = x - kept, above = loss();
  x = kept - h;
  const double down = kept - x, below = loss();
  x = kept;
  return {(above - below) / (up + down), (here - below) / down, (above - here) / up};
}

/// Whether a difference that missed the gradient did so for a kink within h: from much nearer, either the kink is out
/// of reach and the gradient is met, or it is still there, with slopes as far apart and the gradient between them. On a
/// smooth curve the slopes would have come together.
template <class Loss>
bool is_kink(Loss& loss, double& x, double here, double step, double analytic, double allowed, const Difference& far) {
  constexpr double nearer = 16;
  const Difference near = difference(loss, x, here, step / nearer);
  if (std::abs(analytic - near.central) <= allowed) return true;
  return near.gap() > far.gap() / 2 && analytic >= std::min(near.left, near.right) - allowed &&
         analytic <= std::max(near.left, near.right) + allowed;
}

}  // namespace detail

/// Compares claimed gradients with (loss(x + h) - loss(x - h)) / 2h, element by element. `loss` computes a double from
/// the tensors' present values; they are changed on the way and put back.
///
/// An element passes when |analytic - numeric| <= tolerance · max|gradient of its tensor| + the rounding of the
/// difference. Where a kink (of ReLU, of a maximum) lies within h, an element that does not is counted, not compared. A
/// NaN never passes.
///
/// Throws ShapeError when a gradient has not as many elements as its tensor.
///
///   auto loss = [&] { ...; return heed::mse(y, target, context); };
///   const heed::GradcheckReport report = heed::gradcheck(loss, {{"x", x, dx}});
///   if (!report.passed) std::puts(report.text().c_str());
template <class Loss>
GradcheckReport gradcheck(Loss&& loss, const std::vector<GradcheckTensor>& tensors,
                          const GradcheckOptions& options = {}) {
  GradcheckReport report;
  double worst = -1;
  const double here = loss();
  for (const GradcheckTensor& tensor : tensors) {
    const Index size = tensor.values.extent(0);
    HEED_CHECK(tensor.gradient.extent(0) == size, ShapeError, "heed::gradcheck: the gradient of ", tensor.name, " has ",
               tensor.gradient.extent(0), " elements but the tensor has ", size);
    double largest = 0;
    for (Index i = 0; i < size; ++i) largest = std::max(largest, std::abs(tensor.gradient(i)));
    // What a loss of this size, a sum of many terms, loses by rounding.
    const double rounding = 64 * std::numeric_limits<double>::epsilon() * std::max(1.0, std::abs(here)) / options.step;
    const double allowed = options.tolerance * largest + rounding;
    for (Index i = 0; i < size; ++i) {
      const double analytic = tensor.gradient(i);
      const detail::Difference numeric = detail::difference(loss, tensor.values(i), here, options.step);
      const double error = std::abs(analytic - numeric.central);
      if (!(error <= allowed) &&
          detail::is_kink(loss, tensor.values(i), here, options.step, analytic, allowed, numeric)) {
        ++report.kinks;
        continue;
      }
      ++report.checked;
      report.passed = report.passed && error <= allowed;
      const double size_of_error = std::isnan(error) ? std::numeric_limits<double>::infinity() : error / allowed;
      if (size_of_error <= worst) continue;
      worst = size_of_error;
      report.worst_tensor = tensor.name;
      report.worst_element = i;
      report.analytic = analytic;
      report.numeric = numeric.central;
      report.error = error;
      report.allowed = allowed;
    }
  }
  return report;
}

/// The same for all parameters of a model and their gradients, and for more tensors, inputs for instance. Parameters
/// whose gradient no backward has allocated count as having the gradient 0.
template <class Loss>
GradcheckReport gradcheck(Loss&& loss, const ParameterList<double>& parameters, std::vector<GradcheckTensor> more = {},
                          const GradcheckOptions& options = {}) {
  for (const auto& [name, parameter] : parameters) {
    more.push_back({name, parameter->mutable_value(), parameter->grad()});
  }
  return gradcheck(std::forward<Loss>(loss), more, options);
}

HEED_NAMESPACE_END
