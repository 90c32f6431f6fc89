// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Numbers that kernels must not trip over.

#include <limits>

namespace heed_test {

template <class T>
inline constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();
template <class T>
inline constexpr T kInf = std::numeric_limits<T>::infinity();

}  // namespace heed_test
