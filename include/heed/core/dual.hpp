// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Dual numbers: forward-mode derivatives for functions of one number that come without one.

#include <cmath>
#include <compare>
#include <type_traits>

#include <heed/core/config.hpp>

HEED_NAMESPACE_BEGIN

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
