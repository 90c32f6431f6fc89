// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// What is computed with what: storage types and the type that sums, maxima and exponentials use.

#include <cmath>
#include <limits>
#include <type_traits>

#include <heed/core/config.hpp>

HEED_NAMESPACE_BEGIN

using half = Eigen::half;          ///< 16 bits, 11 of them precision; for storage
using bfloat16 = Eigen::bfloat16;  ///< 16 bits, 8 of them precision, the range of float; for storage

/// half and bfloat16 are storage: what is computed from them is computed in float. Any other type computes in itself.
template <class T>
struct accumulate {
  using type = T;  ///< what sums are kept in
};
/// Sums of half are kept in float.
template <>
struct accumulate<half> {
  using type = float;  ///< what sums are kept in
};
/// Sums of bfloat16 are kept in float.
template <>
struct accumulate<bfloat16> {
  using type = float;  ///< what sums are kept in
};
/// The type that sums, maxima and exponentials of T are computed in.
template <class T>
using accumulate_t = typename accumulate<std::remove_cv_t<T>>::type;

/// True for the 16-bit storage types.
template <class T>
inline constexpr bool is_narrow_v =
    std::is_same_v<std::remove_cv_t<T>, half> || std::is_same_v<std::remove_cv_t<T>, bfloat16>;

/// A key and value type S that may stand beside queries of type T: T itself, or a 16-bit storage type.
template <class S, class T>
concept StorageFor = std::is_same_v<S, T> || is_narrow_v<S>;

namespace detail {

template <class T>
constexpr T infinity() {
  return std::numeric_limits<T>::infinity();
}

}  // namespace detail

HEED_NAMESPACE_END
