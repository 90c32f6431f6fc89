// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// exp2, exp, tanh and sigmoid on registers, with their errors; sums, products and checks of rows of numbers.

#include <algorithm>

#include <heed/core/simd.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// Minimax polynomials on [-1/2, 1/2] (relative error, fitted by iterated weighted least squares): `term` for 2^f with
/// constant term 1, `less_one` for (2^f - 1) / f.
template <class T>
struct Exp2Terms;
template <>
struct Exp2Terms<float> {
  static constexpr int degree = 5, mantissa_bits = 23;
  static constexpr float lowest = -127, highest = 128;
  static constexpr float rounding = 12582912.f + 127.f;  // 1.5·2^23 + exponent bias
  static constexpr float term[] = {1, 0x1.62e42ap-1f, 0x1.ebf9bcp-3f, 0x1.c6b754p-5f, 0x1.3cea8ap-7f, 0x1.5bb9fep-10f};
  static constexpr int less_one_terms = 6;
  static constexpr float less_one[] = {0x1.62e43p-1f, 0x1.ebfbdep-3f,  0x1.c6af6ep-5f,
                                       0x1.3b2bap-7f, 0x1.5f07bep-10f, 0x1.430906p-13f};
};
template <>
struct Exp2Terms<double> {
  static constexpr int degree = 11, mantissa_bits = 52;
  static constexpr double lowest = -1023, highest = 1024;
  static constexpr double rounding = 6755399441055744.0 + 1023.0;  // 1.5·2^52 + exponent bias
  static constexpr double term[] = {1,
                                    0x1.62e42fefa39efp-1,
                                    0x1.ebfbdff82c5a4p-3,
                                    0x1.c6b08d7049fe8p-5,
                                    0x1.3b2ab6fba0119p-7,
                                    0x1.5d87fe78cd6d4p-10,
                                    0x1.4309130ed8c47p-13,
                                    0x1.ffcbfba982f9cp-17,
                                    0x1.62bfc79d7fafep-20,
                                    0x1.b5267cd5707e3p-24,
                                    0x1.e61b4f1d38641p-28,
                                    0x1.e79bce9296ddfp-32};
  static constexpr int less_one_terms = degree;
  static constexpr const double* less_one = term + 1;
};

/// x[i] = 2^x[i] for N registers, stage by stage so that their latencies overlap.
///
/// float: at most 2.5 ULP on [-126, 127.5]; double: at most 1.5 ULP on [-1022, 1023.5].
/// Results below the normal range are exactly 0 (so 2^-inf is exactly 0), above it inf; NaN stays NaN.
/// Method: n = round(x) by adding a large constant, 2^(x-n) by polynomial, times 2^n built from the bits of the sum.
/// NoPositive promises that no x is positive, which saves an operation.
template <class T, int N, bool NoPositive = false>
HEED_ALWAYS_INLINE void exp2_in_place(Vec<T> (&x)[N]) {
  using V = Vec<T>;
  using C = Exp2Terms<T>;
  V r[N], f[N];
  {
    const V low = V::constant(C::lowest);
    [[maybe_unused]] const V high(C::highest);
    unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
      x[i] = max(x[i], low);
      if constexpr (!NoPositive) x[i] = min(x[i], high);
    });
  }
  {
    const V rounding = V::constant(C::rounding);
    unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
      r[i] = x[i] + rounding;
#if HEED_INEXACT_SUMS
      keep(r[i].p);
#endif
    });
    unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
      V n = r[i] - rounding;
#if HEED_INEXACT_SUMS
      keep(n.p);
#endif
      x[i] = x[i] - n;
    });
  }
  {
    const V a = V::constant(C::term[C::degree]), b = V::constant(C::term[C::degree - 1]);
    unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { f[i] = fma(a, x[i], b); });
  }
  unroll<C::degree - 1>([&](auto k) HEED_ALWAYS_INLINE_LAMBDA {
    const V c = V::constant(C::term[C::degree - 2 - k]);
    unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { f[i] = fma(f[i], x[i], c); });
  });
  unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { x[i] = f[i] * V::from_bits(r[i].bits() << C::mantissa_bits); });
}

template <class T>
inline constexpr T kLog2E = T(1.44269504088896340735992468100189214L);
template <class T>
inline constexpr T kLn2 = T(0.693147180559945309417232121458176568L);

}  // namespace detail

/// 2^x; accuracy and special values as detail::exp2_in_place.
template <class T>
HEED_ALWAYS_INLINE Vec<T> exp2(Vec<T> x) {
  Vec<T> one[1] = {x};
  detail::exp2_in_place<T, 1>(one);
  return one[0];
}

/// e^x. At most (3 + 1.3·|x|) ULP: log2 e and its product with x are rounded. exp(-inf) is exactly 0, NaN stays NaN.
template <class T>
HEED_ALWAYS_INLINE Vec<T> exp(Vec<T> x) {
  return exp2(x * Vec<T>::constant(detail::kLog2E<T>));
}

/// tanh(x), at most 4 ULP; NaN stays NaN.
/// From (2^u - 1) / (2^u + 1) with u = 2x·log2 e, where 2^u - 1 is formed without cancellation.
template <class T>
HEED_ALWAYS_INLINE Vec<T> tanh(Vec<T> x) {
  using V = Vec<T>;
  using C = detail::Exp2Terms<T>;
  const V limit = sizeof(T) == 4 ? T(30) : T(60);
  const V u = max(min(x * V(T(2) * detail::kLog2E<T>), limit), -limit);
  V r = u + V(C::rounding);
  detail::keep(r.p);
  V n = r - V(C::rounding);
  detail::keep(n.p);
  const V f = u - n;
  V g = V(C::less_one[C::less_one_terms - 1]);
  detail::unroll<C::less_one_terms - 1>(
      [&](auto k) HEED_ALWAYS_INLINE_LAMBDA { g = fma(g, f, V(C::less_one[C::less_one_terms - 2 - k])); });
  g = g * f;
  const V scale = V::from_bits(r.bits() << C::mantissa_bits);
  const V e = fma(scale, g, scale - V(T(1)));
  return e / (e + V(T(2)));
}
/// 1 / (1 + e^-x); 0 at -inf, 1 at inf, NaN stays NaN.
template <class T>
HEED_ALWAYS_INLINE Vec<T> sigmoid(Vec<T> x) {
  return Vec<T>(T(1)) / (exp2(x * Vec<T>(-detail::kLog2E<T>)) + Vec<T>(T(1)));
}

namespace detail {

template <class T>
T first_lane(Vec<T> v) {
  T lanes[Vec<T>::size];
  v.store(lanes);
  return lanes[0];
}

/// Applies in_place(Vec<T> (&)[N]) to n values next to each other, the rest through a padded register.
template <class T, class F>
HEED_ALWAYS_INLINE void for_each_register(T* values, Index n, F&& in_place) {
  constexpr int W = Vec<T>::size, N = 4;
  Index i = 0;
  for (; i + N * W <= n; i += N * W) {
    Vec<T> x[N];
    unroll<N>([&](auto j) HEED_ALWAYS_INLINE_LAMBDA { x[j] = Vec<T>::load(values + i + j * W); });
    in_place(x);
    unroll<N>([&](auto j) HEED_ALWAYS_INLINE_LAMBDA { x[j].store(values + i + j * W); });
  }
  while (i < n) {
    const Index count = std::min<Index>(W, n - i);
    T lanes[W] = {};
    std::copy_n(values + i, count, lanes);
    Vec<T> x[1] = {Vec<T>::load(lanes)};
    in_place(x);
    x[0].store(lanes);
    std::copy_n(lanes, count, values + i);
    i += count;
  }
}

// Functions of rows: n elements next to each other, by registers, then the rest one by one.

/// The dot product <x, y>.
template <class A>
A dot_row(const A* x, const A* y, Index n) {
  constexpr Index W = Vec<A>::size;
  Vec<A> lanes(A(0));
  Index i = 0;
  for (; i + W <= n; i += W) lanes = fma(Vec<A>::load(x + i), Vec<A>::load(y + i), lanes);
  A total = sum(lanes);
  for (; i < n; ++i) total += x[i] * y[i];
  return total;
}
/// The sum of x.
template <class A>
A sum_row(const A* x, Index n) {
  constexpr Index W = Vec<A>::size;
  Vec<A> lanes(A(0));
  Index i = 0;
  for (; i + W <= n; i += W) lanes = lanes + Vec<A>::load(x + i);
  A total = sum(lanes);
  for (; i < n; ++i) total += x[i];
  return total;
}
/// y += factor · x
template <class A>
void add_scaled_row(A factor, const A* x, A* y, Index n) {
  constexpr Index W = Vec<A>::size;
  Index i = 0;
  for (; i + W <= n; i += W) fma(Vec<A>(factor), Vec<A>::load(x + i), Vec<A>::load(y + i)).store(y + i);
  for (; i < n; ++i) y[i] += factor * x[i];
}
/// x /= divisor
template <class A>
void divide_row(A* x, A divisor, Index n) {
  constexpr Index W = Vec<A>::size;
  Index i = 0;
  for (; i + W <= n; i += W) (Vec<A>::load(x + i) / Vec<A>(divisor)).store(x + i);
  for (; i < n; ++i) x[i] /= divisor;
}
/// sums[j] += from[j·stride]
template <class T>
void add_row(T* sums, const T* from, Index stride, Index n) {
  constexpr Index W = Vec<T>::size;
  Index j = 0;
  if (stride == 1) {
    for (; j + W <= n; j += W) (Vec<T>::load(sums + j) + Vec<T>::load(from + j)).store(sums + j);
  }
  for (; j < n; ++j) sums[j] += from[j * stride];
}

/// True when n rows of `width` elements, `row_stride` apart, hold a NaN or an infinity: times 0 it is not 0. Elements
/// of a 16-bit type are read as float.
template <class S>
HEED_NOINLINE bool has_non_finite(const S* rows, Index row_stride, Index n, Index width) {
  using A = accumulate_t<S>;
  using V = Vec<A>;
  constexpr int N = 4;
  const auto load = [](const S* from) HEED_ALWAYS_INLINE_LAMBDA {
    if constexpr (is_narrow_v<S>)
      return load_float(from);
    else
      return V::load(from);
  };
  // Compilers that take numbers for finite would drop a product with 0, so they don't see that it is 0.
  V zero(A(0)), zeros[N];
  keep(zero.p);
  unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { zeros[i] = V(A(0)); });
  A rest(0);
  for (Index r = 0; r < n; ++r) {
    const S* row = rows + r * row_stride;
    Index d = 0;
    for (; d + N * V::size <= width; d += N * V::size) {
      unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { zeros[i] = fma(load(row + d + i * V::size), zero, zeros[i]); });
    }
    for (; d + V::size <= width; d += V::size) zeros[0] = fma(load(row + d), zero, zeros[0]);
    for (; d < width; ++d) rest += static_cast<A>(row[d]) * first_lane(zero);
  }
  return !is_finite(sum((zeros[0] + zeros[1]) + (zeros[2] + zeros[3])) + rest);
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
