// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Views of every kind for tests: any order of dimensions, gaps, negative strides, and a check that gaps are not
/// touched.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/tensor.hpp>

#include "common/random_inputs.hpp"

namespace heed_test {

/// Whether two numbers have the same bits: 0 and -0 don't, NaN and the same NaN do.
template <class T>
bool equal_bits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

/// Whether two views hold the same bits; says where they differ first.
template <class T, class U, int Rank>
::testing::AssertionResult same_bits(const heed::TensorView<T, Rank>& a, const heed::TensorView<U, Rank>& b) {
  if (a.extents() != b.extents()) return ::testing::AssertionFailure() << "the extents differ";
  for (Index i = 0; i < a.extent(0); ++i) {
    if constexpr (Rank == 1) {
      if (!equal_bits<std::remove_const_t<T>>(a(i), b(i))) {
        return ::testing::AssertionFailure()
               << static_cast<double>(a(i)) << " differs from " << static_cast<double>(b(i)) << " at (" << i;
      }
    } else {
      if (auto inner = same_bits(a[i], b[i]); !inner) return inner << " < " << i;
    }
  }
  return ::testing::AssertionSuccess();
}
template <heed::TensorLike A, heed::TensorLike B>
::testing::AssertionResult same_bits(const A& a, const B& b) {
  return same_bits(heed::view_of(a), heed::view_of(b));
}

/// A tensor whose elements lie in a larger buffer in any order, with gaps, forwards or backwards. What lies in the gaps
/// is NaN: a kernel that reads it shows, and one that writes it is caught by gaps_are_untouched().
template <class T, int Rank>
class Spaced {
 public:
  /// Strides at random.
  Spaced(const heed::Extents<Rank>& extents, Random& random) {
    std::array<std::size_t, Rank> order;
    for (std::size_t d = 0; d < Rank; ++d) order[d] = d;
    for (std::size_t d = Rank; d-- > 1;) {
      std::swap(order[d], order[static_cast<std::size_t>(random.integer(0, static_cast<int>(d)))]);
    }
    // Often the last dimension stays dense: other code serves it.
    if (random.chance(0.4)) std::swap(*std::find(order.begin(), order.end(), std::size_t{Rank - 1}), order[Rank - 1]);
    heed::Extents<Rank> strides{};
    Index size = random.chance(0.5) ? 1 : random.integer(2, 3), first = 0;
    for (std::size_t i = Rank; i-- > 0;) {
      const std::size_t d = order[i];
      strides[d] = size;
      size = size * std::max<Index>(extents[d], 1) + random.integer(0, 3);
      if (random.chance(0.2)) {
        first += strides[d] * std::max<Index>(extents[d] - 1, 0);
        strides[d] = -strides[d];
      }
    }
    first += kMargin;
    memory_.assign(static_cast<std::size_t>(size + 2 * kMargin), guard());
    view_ = {memory_.data() + first, extents, strides};
    inside_.assign(memory_.size(), false);
    for_each_element(view_, [&](T& x) { inside_[static_cast<std::size_t>(&x - memory_.data())] = true; });
  }
  /// A copy of a tensor.
  Spaced(const heed::TensorView<const T, Rank>& values, Random& random) : Spaced(values.extents(), random) {
    copy(values, view_);
  }
  Spaced(const Spaced&) = delete;
  Spaced& operator=(const Spaced&) = delete;

  heed::TensorView<T, Rank> view() const { return view_; }

  bool gaps_are_untouched() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if (!inside_[i] && !equal_bits<T>(memory_[i], guard())) return false;
    }
    return true;
  }

 private:
  static constexpr Index kMargin = 70;  // more than any vector or tile reaches
  static T guard() { return std::numeric_limits<T>::quiet_NaN(); }

  template <int R>
  static void copy(const heed::TensorView<const T, R>& from, const heed::TensorView<T, R>& to) {
    for (Index i = 0; i < from.extent(0); ++i) {
      if constexpr (R == 1)
        to(i) = from(i);
      else
        copy(from[i], to[i]);
    }
  }

  std::vector<T> memory_;
  std::vector<bool> inside_;
  heed::TensorView<T, Rank> view_;
};

}  // namespace heed_test
