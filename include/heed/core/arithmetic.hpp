// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// A check that arithmetic is what the kernels rely on. Compilers define nothing for many flags that change it, and
/// pragmas or attributes of the program can change it too, so it is tried once in each program, before the first call.

#include <heed/core/error.hpp>
#include <heed/core/float_state.hpp>
#include <heed/core/vec_math.hpp>

#if HEED_FINITE_ARGUMENTS
namespace heed {
inline namespace HEED_ABI {
namespace detail {

/// True if code may meet NaN and infinity. Outside of HEED_NAMESPACE_BEGIN: it has the flags of the program.
HEED_NOINLINE inline bool program_honors(const volatile float& nan, const volatile float& infinity) {
  const float x = nan, y = infinity;
  return x != x && __builtin_isinf(y) && y > 1;
}

}  // namespace detail
}  // namespace HEED_ABI
}  // namespace heed
#endif

HEED_NAMESPACE_BEGIN

namespace detail {

/// A register of which the compiler knows nothing: not the number, nor that the lanes are equal.
template <class T>
HEED_ALWAYS_INLINE Vec<T> unknown_register(T x) {
  Vec<T> v(x);
  keep(v.p);
  return v;
}
/// The first lane of a whole register: otherwise compilers may compute that lane alone, and on the x87 unit.
template <class T>
HEED_ALWAYS_INLINE T kept_lane(Vec<T> v) {
  keep(v.p);
  return first_lane(v);
}

/// Null if the arithmetic of T is right, else what is wrong.
template <class T>
HEED_NOINLINE const char* wrong_arithmetic() {
  using V = Vec<T>;
  // Compilers must not compute with these beforehand.
  const volatile T third = T(1) / T(3);
  const volatile T exponents[] = {T(0), T(-1), T(0.71875), T(-17.25)};
  constexpr T powers[] = {T(1), T(0.5), T(1.645755478153964844518756724725822446L),
                          T(6.415530511884418815850261506906241570e-6L)};
  [[maybe_unused]] const V big = unknown_register(T(1) / std::numeric_limits<T>::epsilon());
  [[maybe_unused]] const V step = unknown_register(T(0.75));

#if __FLT_EVAL_METHOD__ == 0  // on x87 the kernels round where they need it
  if (kept_lane((big + step) - big) != T(1)) return "(x + y) - x is not rounded after the sum";
#endif
  for (int i = 0; i < 4; ++i) {
    const T error = kept_lane(exp2(unknown_register<T>(exponents[i]))) / powers[i] - T(1);
    if (!(std::abs(error) <= 4 * std::numeric_limits<T>::epsilon())) return "powers of 2 are inexact";
  }
  if (kept_lane(unknown_register(T(1)) / unknown_register<T>(third)) != T(3)) return "quotients are inexact";
#if !defined(HEED_ALLOW_FAST_MATH)
  const volatile T infinities[] = {-infinity<T>(), std::numeric_limits<T>::quiet_NaN()};
  const T least = std::numeric_limits<T>::lowest();
  const V hidden = unknown_register<T>(infinities[0]), nan = unknown_register<T>(infinities[1]);
  const V lowest = unknown_register(least), zero = unknown_register(T(0));
  if (kept_lane(exp2(hidden)) != T(0)) return "2^-inf is not 0";
  if (!is_nan(kept_lane(exp2(nan)))) return "2^NaN is not NaN";
  if (!any(less(hidden, lowest)) || any(less(hidden, hidden)) || any(less(nan, nan)))
    return "-inf or NaN is compared wrongly";
  if (kept_lane(max(lowest, hidden)) != least) return "the maximum of -inf and another number is wrong";
  if (!is_nan(kept_lane(fma(nan, zero, zero))) || !is_nan(kept_lane(hidden - hidden)))
    return "0 · NaN or inf - inf is not NaN";
#endif
  return nullptr;
}

/// Throws EnvironmentError if arithmetic is not what it must be. Only the first call takes time, some microseconds; the
/// floating-point state of the caller does not matter.
inline void check_arithmetic() {
  static const bool is_right = [] {
    const FloatStateScope state{FloatState()};
#if HEED_FINITE_ARGUMENTS
    const volatile std::uint32_t patterns[] = {0x7fc00000u, 0x7f800000u};
    float numbers[2];
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t bits = patterns[i];
      std::memcpy(&numbers[i], &bits, sizeof bits);
    }
    HEED_CHECK(
        program_honors(numbers[0], numbers[1]), EnvironmentError,
        "heed: this program was compiled with -fno-honor-nans, -fno-honor-infinities or -ffinite-math-only, which "
        "change arithmetic; compile the code that includes heed without them");
#endif
    for (const char* wrong : {wrong_arithmetic<float>(), wrong_arithmetic<double>()}) {
      HEED_CHECK(!wrong, EnvironmentError, "heed: this program was compiled with flags that change arithmetic: ", wrong,
                 "; compile the code that includes heed without -ffast-math and its parts");
    }
    return true;
  }();
  static_cast<void>(is_right);
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
