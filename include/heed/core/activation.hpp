// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Activation functions on registers, on numbers (with the bits of a lane) and on arrays.
/// NaN stays NaN; f(+inf) = +inf and f(-inf) = 0, the limits of all four functions.

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include <heed/core/simd.hpp>
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

HEED_NAMESPACE_END
