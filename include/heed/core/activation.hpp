// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Activation functions on registers, on numbers (with the bits of a lane) and on arrays; their derivatives on
/// registers. NaN stays NaN; f(+inf) = +inf and f(-inf) = 0, the limits of all four functions.

#include <heed/core/vec_math.hpp>

HEED_NAMESPACE_BEGIN

/// A function applied to each element after a projection; see ReLU, GELU, GELUTanh, SiLU.
enum class Activation { None, ReLU, GELU, GELUTanh, SiLU };

namespace detail {

/// x·Phi(x) by erfc, which keeps its relative accuracy in the negative tail; 0 where erfc underflows (also at -inf).
inline double gelu_by_erfc(double x) {
  const double tail = std::erfc(x * -0.70710678118654752440);
  return tail == 0 ? 0 : 0.5 * x * tail;
}

// The functions below work on N registers at once, stage by stage, so that latencies overlap. Where a product meets a
// sum they say fma(): otherwise a compiler may fuse in one place and not in another, and tails would differ by a bit.

template <class T, int N>
HEED_ALWAYS_INLINE void relu_in_place(Vec<T> (&x)[N]) {
  unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { x[i] = max(x[i], Vec<T>(T(0))); });
}

/// gelu(x) = relu(x) - a·Phi(-a) with a = |x| and Phi(-a) = 2^(r(a) - a²·log2(e)/2), where r is smooth and slow.
/// r is a polynomial of degree 8 with r(0) = -1, fitted on [0, 6] by iteratively reweighted least squares (Lawson) to
/// the smallest maximum of |error of r|·a·E/(E + 0.01), E = a·Phi(-a): the absolute error of the result for small E,
/// the relative one for large E. Beyond 6, r stays at r(6) while a² goes on, so that the tail still falls to exactly 0.
template <int N>
HEED_ALWAYS_INLINE void gelu_in_place(Vec<float> (&x)[N]) {
  using V = Vec<float>;
  constexpr float term[] = {-1.f,
                            -0x1.26af7ep+0f,
                            0x1.0c84fcp-2f,
                            -0x1.b01d2ep-5f,
                            0x1.e57f26p-8f,
                            -0x1.94aaaap-12f,
                            -0x1.742cacp-14f,
                            0x1.4e29a2p-16f,
                            -0x1.59612ap-20f};
  constexpr int degree = 8;
  V a[N], clamped[N], p[N];
  {
    const V end = V::constant(6.f);
    unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
      a[i] = abs(x[i]);
      clamped[i] = min(a[i], end);
    });
  }
  {
    const V first = V::constant(term[degree]), second = V::constant(term[degree - 1]);
    unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { p[i] = fma(first, clamped[i], second); });
  }
  unroll<degree - 1>([&](auto k) HEED_ALWAYS_INLINE_LAMBDA {
    const V c = V::constant(term[degree - 2 - k]);
    unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { p[i] = fma(p[i], clamped[i], c); });
  });
  {
    const V c = V::constant(-0.5f * kLog2E<float>);
    unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { p[i] = fma(a[i] * c, a[i], p[i]); });
  }
  exp2_in_place<float, N>(p);
  relu_in_place<float, N>(x);
  unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { x[i] = fma(-clamped[i], p[i], x[i]); });
}
template <int N>
HEED_ALWAYS_INLINE void gelu_in_place(Vec<double> (&x)[N]) {
  constexpr int W = Vec<double>::size;
  double lanes[N * W];
  for (int i = 0; i < N; ++i) x[i].store(lanes + i * W);
  for (double& lane : lanes) lane = gelu_by_erfc(lane);
  for (int i = 0; i < N; ++i) x[i] = Vec<double>::load(lanes + i * W);
}

/// x / (1 + 2^u): x times the logistic function of -u·ln 2. A finite numerator keeps -inf / inf from being NaN; keep()
/// keeps the product that 2^u ends with from being fused with the sum.
template <class T, int N>
HEED_ALWAYS_INLINE void gate_in_place(Vec<T> (&x)[N], Vec<T> (&u)[N]) {
  exp2_in_place<T, N>(u);
  const Vec<T> lowest = std::numeric_limits<T>::lowest(), one = T(1);
  unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
    keep(u[i].p);
    x[i] = max(x[i], lowest) / (u[i] + one);
  });
}

/// 0.5·x·(1 + tanh(v)) = x / (1 + e^(-2v)), v = sqrt(2/pi)·(x + 0.044715·x³) (Hendrycks and Gimpel, 2016).
template <class T, int N>
HEED_ALWAYS_INLINE void gelu_tanh_in_place(Vec<T> (&x)[N]) {
  constexpr long double factor = -2 * 0.797884560802865355879892119868763737L * 1.44269504088896340735992468100189214L;
  const Vec<T> linear = T(factor), cubic = T(factor * 0.044715L);
  Vec<T> u[N];
  unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { u[i] = x[i] * fma(cubic * x[i], x[i], linear); });
  gate_in_place<T, N>(x, u);
}

template <class T, int N>
HEED_ALWAYS_INLINE void silu_in_place(Vec<T> (&x)[N]) {
  const Vec<T> factor = -kLog2E<T>;
  Vec<T> u[N];
  unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { u[i] = x[i] * factor; });
  gate_in_place<T, N>(x, u);
}

/// Applies an activation to n values next to each other, in place. A value's result depends on nothing but the value.
template <class T>
HEED_NOINLINE void activate(Activation activation, T* values, Index n) {
  switch (activation) {
    case Activation::None:
      return;
    case Activation::ReLU:
      return for_each_register(values, n, [](auto& x) HEED_ALWAYS_INLINE_LAMBDA { relu_in_place(x); });
    case Activation::GELU:
      return for_each_register(values, n, [](auto& x) HEED_ALWAYS_INLINE_LAMBDA { gelu_in_place(x); });
    case Activation::GELUTanh:
      return for_each_register(values, n, [](auto& x) HEED_ALWAYS_INLINE_LAMBDA { gelu_tanh_in_place(x); });
    case Activation::SiLU:
      return for_each_register(values, n, [](auto& x) HEED_ALWAYS_INLINE_LAMBDA { silu_in_place(x); });
  }
}

}  // namespace detail

/// max(x, 0).
template <class T>
HEED_ALWAYS_INLINE Vec<T> relu(Vec<T> x) {
  Vec<T> one[1] = {x};
  detail::relu_in_place(one);
  return one[0];
}
/// x·Phi(x), Phi the normal distribution function (Hendrycks and Gimpel, 2016). float: absolute error at most 3e-7 for
/// |x| < 8 and one rounding of x beyond; relative error at most 1e-6 for x > -2. double: by std::erfc, lane by lane;
/// relative error at most 1.5·(1 + x²) eps.
template <class T>
HEED_ALWAYS_INLINE Vec<T> gelu(Vec<T> x) {
  Vec<T> one[1] = {x};
  detail::gelu_in_place(one);
  return one[0];
}
/// 0.5·x·(1 + tanh(v)) with v = sqrt(2/pi)·(x + 0.044715·x³), formed without the cancellation of 1 + tanh. Relative
/// error at most 1.5·(1 + 2·|v|) eps, down to where e^-2v overflows and the result is 0.
template <class T>
HEED_ALWAYS_INLINE Vec<T> gelu_tanh(Vec<T> x) {
  Vec<T> one[1] = {x};
  detail::gelu_tanh_in_place(one);
  return one[0];
}
/// x / (1 + e^-x), also called swish. Relative error at most 1.5·(1 + |x|) eps, down to where e^-x overflows and the
/// result is 0.
template <class T>
HEED_ALWAYS_INLINE Vec<T> silu(Vec<T> x) {
  Vec<T> one[1] = {x};
  detail::silu_in_place(one);
  return one[0];
}

/// max(x, 0) of one number.
template <class T>
requires std::is_floating_point_v<T>
T relu(T x) {
  return detail::first_lane(relu(Vec<T>(x)));
}
/// x·Φ(x) of one number.
template <class T>
requires std::is_floating_point_v<T>
T gelu(T x) {
  return detail::first_lane(gelu(Vec<T>(x)));
}
/// The approximation of gelu() by tanh, of one number.
template <class T>
requires std::is_floating_point_v<T>
T gelu_tanh(T x) {
  return detail::first_lane(gelu_tanh(Vec<T>(x)));
}
/// x / (1 + e^-x) of one number.
template <class T>
requires std::is_floating_point_v<T>
T silu(T x) {
  return detail::first_lane(silu(Vec<T>(x)));
}

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

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
