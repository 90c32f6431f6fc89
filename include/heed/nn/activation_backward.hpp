// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The derivatives of the activation functions, on lanes and on arrays.

#include <algorithm>
#include <cmath>
#include <type_traits>

#include <heed/core/activation.hpp>
#include <heed/core/simd.hpp>
#include <heed/core/vec_math.hpp>
#include <heed/nn/rows.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// The largest |x| of an activation's derivative: beyond it the result has reached its limit (1 above, 0 below, to the
/// last bit or to less than 1e-30), and the exponentials of the formula are still finite.
template <class T>
struct SlopeLimits {
  static constexpr bool is_single = sizeof(T) == 4;
  static constexpr T gelu = is_single ? T(13) : T(37);
  static constexpr T gelu_tanh = is_single ? T(9.5) : T(19);
  static constexpr T silu = is_single ? T(86) : T(700);
};

/// x clamped to [-limit, limit]; NaN stays NaN.
template <class T>
HEED_ALWAYS_INLINE Vec<T> clamp_to(Vec<T> x, T limit) {
  return max(min(x, Vec<T>(limit)), Vec<T>(-limit));
}

/// d gelu(x)/dx = Phi(x) + x·phi(x).
HEED_ALWAYS_INLINE Vec<double> gelu_slope(Vec<double> x) {
  constexpr int W = Vec<double>::size;
  constexpr double root_half = 0.70710678118654752440, density = 0.39894228040143267794;
  double lanes[W];
  clamp_to(x, SlopeLimits<double>::gelu).store(lanes);
  for (double& lane : lanes) {
    lane = 0.5 * std::erfc(-lane * root_half) + lane * density * std::exp(-0.5 * lane * lane);
  }
  return Vec<double>::load(lanes);
}
/// The same with Phi from gelu() itself, whose error is absolute: gelu(x)/x, and near 0 the first terms of Phi's
/// series.
HEED_ALWAYS_INLINE Vec<float> gelu_slope(Vec<float> x) {
  using V = Vec<float>;
  const V c = clamp_to(x, SlopeLimits<float>::gelu), square = c * c;
  const V e = exp2(square * V(-0.5f * kLog2E<float>)) * V(0.39894228040143267794f);
  // Phi(x) = 1/2 + x·(1 - x²/6 + x⁴/40 - x⁶/336)/√(2π) up to 1e-8 for |x| < 0.3.
  V series = fma(square, V(-0.39894228f / 336), V(0.39894228f / 40));
  series = fma(series, square, V(-0.39894228f / 6));
  series = fma(series, square, V(0.39894228f));
  series = fma(series, c, V(0.5f));
  const V is_near = less(square, V(0.09f));
  const V normal = select(is_near, series, gelu(c) / select(is_near, V(1.f), c));
  return fma(c, e, normal);
}

/// With s = 1/(1 + 2^u), u = -2v·log2(e), the logistic function of 2v:
/// d gelu_tanh(x)/dx = s + x·s·(1 - s)·2·dv/dx.  1 - s is 2^u·s, without cancellation.
template <class T>
HEED_ALWAYS_INLINE Vec<T> gelu_tanh_slope(Vec<T> x) {
  using V = Vec<T>;
  constexpr long double two_v = 2 * 0.797884560802865355879892119868763737L, cubic = two_v * 0.044715L;
  constexpr long double log2e = 1.44269504088896340735992468100189214L;
  const V c = clamp_to(x, SlopeLimits<T>::gelu_tanh), square = c * c;
  const V e = exp2(c * fma(V(T(-cubic * log2e)), square, V(T(-two_v * log2e))));
  const V s = V(T(1)) / (e + V(T(1)));
  return fma(c * s * (e * s), fma(V(T(3 * cubic)), square, V(T(two_v))), s);
}

/// With s = 1/(1 + e^-x): d silu(x)/dx = s + x·s·(1 - s).
template <class T>
HEED_ALWAYS_INLINE Vec<T> silu_slope(Vec<T> x) {
  using V = Vec<T>;
  const V c = clamp_to(x, SlopeLimits<T>::silu);
  const V e = exp2(c * V(-kLog2E<T>));
  const V s = V(T(1)) / (e + V(T(1)));
  return fma(c * s, e * s, s);
}

/// dx = dy·f'(x) on lanes. ReLU's derivative at 0 is 0, as in PyTorch; where x is NaN it lets dy through.
template <Activation Function, class T>
HEED_ALWAYS_INLINE Vec<T> times_slope(Vec<T> x, Vec<T> dy) {
  if constexpr (Function == Activation::ReLU) {
    return select(equal(min(x, Vec<T>(T(0))), x), Vec<T>(T(0)), dy);
  } else if constexpr (Function == Activation::GELU) {
    return dy * gelu_slope(x);
  } else if constexpr (Function == Activation::GELUTanh) {
    return dy * gelu_tanh_slope(x);
  } else if constexpr (Function == Activation::SiLU) {
    return dy * silu_slope(x);
  } else {
    return dy;
  }
}

template <Activation Function, class T>
void activate_backward(const T* x, const T* dy, T* dx, Index n) {
  using A = accumulate_t<T>;
  for (Index i = 0; i < n; i += Vec<A>::size) {
    const Index lanes = n - i;
    store_lanes<T>(times_slope<Function, A>(load_lanes(x + i, lanes), load_lanes(dy + i, lanes)), dx + i, lanes);
  }
}

/// dx[i] = dy[i]·f'(x[i]) for n elements next to each other; dx may be dy.
template <class T>
HEED_NOINLINE void activate_backward(Activation activation, const T* x, const T* dy, T* dx, Index n) {
  switch (activation) {
    case Activation::None:
      return activate_backward<Activation::None>(x, dy, dx, n);
    case Activation::ReLU:
      return activate_backward<Activation::ReLU>(x, dy, dx, n);
    case Activation::GELU:
      return activate_backward<Activation::GELU>(x, dy, dx, n);
    case Activation::GELUTanh:
      return activate_backward<Activation::GELUTanh>(x, dy, dx, n);
    case Activation::SiLU:
      return activate_backward<Activation::SiLU>(x, dy, dx, n);
  }
}

}  // namespace detail

HEED_NAMESPACE_END
