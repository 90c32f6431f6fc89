// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// gradcheck(): compares gradients with central differences.

#include <heed/train/parameter_list.hpp>

HEED_NAMESPACE_BEGIN

/// A tensor that the loss depends on, and its analytic gradient. Both are borrowed and contiguous.
struct GradcheckTensor {
  std::string name;                      ///< for messages
  TensorView<double, 1> values;          ///< the elements that are varied
  TensorView<const double, 1> gradient;  ///< the gradient to check
};

/// Options of gradcheck().
struct GradcheckOptions {
  double step = 1e-5;       ///< h, times the magnitude of the element if that exceeds 1
  double tolerance = 1e-6;  ///< limit of |analytic - numeric|, relative to the tensor's largest |gradient|
};

/// The result of gradcheck().
struct GradcheckReport {
  bool passed = true;  ///< true if the error of every compared element is allowed
  Index checked = 0;   ///< number of compared elements
  Index kinks = 0;     ///< number of elements skipped because the loss has a kink within h of them

  std::string worst_tensor;  ///< name of the tensor with the largest error / allowed
  Index worst_element = 0;   ///< index of that element in the tensor
  double analytic = 0;       ///< its gradient
  double numeric = 0;        ///< its difference quotient
  double error = 0;          ///< |analytic - numeric|
  double allowed = 0;        ///< the limit of the error

  /// The report in one line.
  std::string text() const {
    return detail::concat("heed::gradcheck: ", passed ? "passed" : "failed", ", ", checked, " elements compared, ",
                          kinks, " at a kink; worst: ", worst_tensor, "[", worst_element, "], analytic ", analytic,
                          ", numeric ", numeric, ", error ", error, " of ", allowed, " allowed");
  }
};

namespace detail {

/// d loss / d x from points at distance h on both sides; `here` is the loss at x.
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

/// True if a kink within h explains why the difference missed the gradient. With a much smaller step, either the kink
/// is out of reach and the difference equals the gradient, or both one-sided slopes still differ as much, with the
/// gradient between them. On a smooth curve the slopes would have converged.
template <class Loss>
bool is_kink(Loss& loss, double& x, double here, double step, double analytic, double allowed, const Difference& far) {
  constexpr double nearer = 16;
  const Difference near = difference(loss, x, here, step / nearer);
  if (std::abs(analytic - near.central) <= allowed) return true;
  return near.gap() > far.gap() / 2 && analytic >= std::min(near.left, near.right) - allowed &&
         analytic <= std::max(near.left, near.right) + allowed;
}

}  // namespace detail

/// Compares gradients with (loss(x + h) - loss(x - h)) / 2h, element by element. `loss` computes a double from the
/// current values of the tensors, which are varied and restored.
///
/// An element passes if |analytic - numeric| <= tolerance · max|gradient of its tensor| + the rounding error of the
/// difference. Elements within h of a kink (ReLU, max) are skipped and counted in `kinks`. A NaN never passes.
///
/// Throws ShapeError if a gradient has another number of elements than its tensor.
///
///     auto loss = [&] { ...; return heed::mse(y, target, context); };
///     const heed::GradcheckReport report = heed::gradcheck(loss, {{"x", x, dx}});
///     if (!report.passed) std::puts(report.text().c_str());
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
    // The rounding error of a loss of this size, which is a sum of many terms.
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
      const double size_of_error = detail::is_nan(error) ? std::numeric_limits<double>::infinity() : error / allowed;
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

/// Checks all parameters of a model and further tensors such as inputs. Parameters without an allocated gradient have
/// the gradient 0.
template <class Loss>
GradcheckReport gradcheck(Loss&& loss, const ParameterList<double>& parameters, std::vector<GradcheckTensor> more = {},
                          const GradcheckOptions& options = {}) {
  for (const auto& [name, parameter] : parameters) {
    more.push_back({name, parameter->mutable_value(), parameter->grad()});
  }
  return gradcheck(std::forward<Loss>(loss), more, options);
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
