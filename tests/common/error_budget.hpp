// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// How far a fast path may stray: as far as the naive path in the same precision, times a factor, plus a few roundings
/// of the result. There is no tolerance to choose.

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include <heed/core/scalar.hpp>
#include <heed/core/tensor.hpp>

#include "common/random_inputs.hpp"

namespace heed_test {

/// The distance from 1 to the next number of T. (Eigen's numeric_limits of 16-bit types differ between versions.)
template <class T>
constexpr double epsilon() {
  if constexpr (std::is_same_v<T, heed::half>)
    return 0x1p-10;
  else if constexpr (std::is_same_v<T, heed::bfloat16>)
    return 0x1p-7;
  else
    return static_cast<double>(std::numeric_limits<T>::epsilon());
}

template <class E>
struct Deviation {
  /// The largest |computed - exact|; infinite where one is NaN or infinite and the other is not the same.
  E error = 0;
  /// The largest finite |exact|.
  E magnitude = 0;
};

template <class T, class E, int Rank>
Deviation<E> deviation(const heed::TensorView<const T, Rank>& computed, const heed::TensorView<const E, Rank>& exact) {
  Deviation<E> d;
  for (Index i = 0; i < exact.extent(0); ++i) {
    if constexpr (Rank == 1) {
      const E x = static_cast<E>(computed(i)), y = exact(i);
      if (std::isfinite(y)) d.magnitude = std::max(d.magnitude, std::abs(y));
      if (x == y || (std::isnan(x) && std::isnan(y))) continue;
      d.error = std::max(d.error,
                         std::isfinite(x) && std::isfinite(y) ? std::abs(x - y) : std::numeric_limits<E>::infinity());
    } else {
      const Deviation<E> inner = deviation(computed[i], exact[i]);
      d.error = std::max(d.error, inner.error);
      d.magnitude = std::max(d.magnitude, inner.magnitude);
    }
  }
  return d;
}

/// |fast - exact| <= factor · |naive - exact| + 4·eps·max|exact|, each the largest of the tensor. `naive` is the naive
/// path in T, `exact` the naive path in a wider type on the same inputs.
template <class T, class E, int Rank>
::testing::AssertionResult within_budget(const heed::Tensor<T, Rank>& fast, const heed::Tensor<T, Rank>& naive,
                                         const heed::Tensor<E, Rank>& exact, double factor = 2) {
  if (fast.extents() != exact.extents()) return ::testing::AssertionFailure() << "the extents differ";
  const Deviation<E> of_fast = deviation<T, E, Rank>(fast.view(), exact.view());
  const Deviation<E> of_naive = deviation<T, E, Rank>(naive.view(), exact.view());
  const E budget = static_cast<E>(factor) * of_naive.error + static_cast<E>(4 * epsilon<T>()) * of_fast.magnitude;
  if (of_fast.error <= budget) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "error " << of_fast.error << " exceeds the budget " << budget
                                       << "; the naive path errs by " << of_naive.error << ", the largest entry is "
                                       << of_fast.magnitude;
}

}  // namespace heed_test
