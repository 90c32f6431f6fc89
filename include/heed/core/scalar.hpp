// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Scalars: storage types, the type that their sums and exponentials are computed in, and dual numbers, which carry a
/// derivative.

#include <bit>
#include <cmath>
#include <compare>
#include <cstdint>
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

/// The bits of |x|; those of NaN and infinity are the largest. x comes by reference, since compilers may take for
/// granted that a number passed by value is no NaN.
inline std::uint32_t magnitude_bits(const float& x) { return std::bit_cast<std::uint32_t>(x) & 0x7fffffffu; }
inline std::uint64_t magnitude_bits(const double& x) {
  return std::bit_cast<std::uint64_t>(x) & ~(std::uint64_t{1} << 63);
}

/// x in half, to nearest, ties to even. Without floating-point operations, whose result depends on the thread's
/// rounding; Eigen's conversion is the same where that is to nearest.
inline half to_half(const float& x) {
  const std::uint32_t magnitude = magnitude_bits(x), sign = std::bit_cast<std::uint32_t>(x) >> 16 & 0x8000u;
  std::uint32_t bits;
  if (magnitude >= 0x47800000u) {  // 2^16 and more, NaN
    bits = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // 2^-14 and more
    bits = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  } else if (magnitude >= 0x33000000u) {  // 2^-25 and more: subnormal, or rounded up to 2^-14
    const std::uint32_t digits = (magnitude & 0x7fffffu) | 0x800000u, shift = 126u - (magnitude >> 23);
    bits = (digits + (1u << (shift - 1u)) - 1u + (digits >> shift & 1u)) >> shift;
  } else {
    bits = 0;
  }
  return std::bit_cast<half>(static_cast<std::uint16_t>(bits | sign));
}
/// x as T is stored.
template <class T, class A>
T stored_as(const A& x) {
  if constexpr (std::is_same_v<T, half>)
    return to_half(static_cast<float>(x));
  else
    return static_cast<T>(x);
}

/// False for NaN and the infinities. std::isfinite, an inline function outside heed, is always true under flags like
/// clang's -fno-honor-nans.
template <class T>
bool is_finite(const T& x) {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    return magnitude_bits(x) < magnitude_bits(infinity<T>());
  } else {
    using std::isfinite;
    return isfinite(x);
  }
}
/// True for NaN.
template <class T>
bool is_nan(const T& x) {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    return magnitude_bits(x) > magnitude_bits(infinity<T>());
  } else {
    using std::isnan;
    return isnan(x);
  }
}

}  // namespace detail

/// value + derivative·ε with ε² = 0: a function of Dual(x, 1) returns its value and its derivative at x.
template <class T>
struct Dual {
  T value{};       ///< of the function
  T derivative{};  ///< of its derivative

  Dual() = default;
  /// A constant.
  template <class X>
  requires std::is_convertible_v<X, T> || std::is_constructible_v<T, X>
  Dual(const X& constant) : value(static_cast<T>(constant)) {}
  /// A value with its derivative; Dual(x, 1) is the variable.
  Dual(T v, T d) : value(v), derivative(d) {}

  /// @{
  /// The rules of differentiation. Comparisons, and with them max and min, see the values alone.
  friend Dual operator+(Dual a, Dual b) { return {a.value + b.value, a.derivative + b.derivative}; }
  friend Dual operator-(Dual a, Dual b) { return {a.value - b.value, a.derivative - b.derivative}; }
  friend Dual operator-(Dual a) { return {-a.value, -a.derivative}; }
  friend Dual operator*(Dual a, Dual b) { return {a.value * b.value, a.derivative * b.value + a.value * b.derivative}; }
  friend Dual operator/(Dual a, Dual b) {
    const T q = a.value / b.value;
    return {q, (a.derivative - q * b.derivative) / b.value};
  }
  friend bool operator==(Dual a, Dual b) { return a.value == b.value; }
  friend auto operator<=>(Dual a, Dual b) { return a.value <=> b.value; }

  friend Dual exp(Dual a) {
    using std::exp;
    const T e = exp(a.value);
    return {e, e * a.derivative};
  }
  friend Dual tanh(Dual a) {
    using std::tanh;
    const T t = tanh(a.value);
    return {t, (T(1) - t * t) * a.derivative};
  }
  friend Dual abs(Dual a) { return a.value < T(0) ? -a : a; }
  friend Dual max(Dual a, Dual b) { return a.value < b.value ? b : a; }
  friend Dual min(Dual a, Dual b) { return b.value < a.value ? b : a; }
  /// @}
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
