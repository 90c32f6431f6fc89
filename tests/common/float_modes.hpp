// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Settings of the floating-point unit as programs make them: flushing of subnormals, rounding.

#include <cfenv>
#include <cstdint>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace heed_test {

/// As long as it lives, this thread treats subnormals as 0 and rounds in a given way.
class FloatMode {
 public:
  FloatMode(bool flush, int rounding) : rounding_(std::fegetround()) {
    std::fesetround(rounding);
#if defined(__SSE__)
    control_ = _mm_getcsr();
    if (flush) _mm_setcsr(control_ | 0x8040u);  // FTZ and DAZ
#elif defined(__aarch64__)
    asm volatile("mrs %0, fpcr" : "=r"(control_));
    if (flush) asm volatile("msr fpcr, %0" : : "r"(control_ | (std::uint64_t{1} << 24)));  // FZ
#else
    static_cast<void>(flush);
#endif
  }
  ~FloatMode() {
#if defined(__SSE__)
    _mm_setcsr(control_);
#elif defined(__aarch64__)
    asm volatile("msr fpcr, %0" : : "r"(control_));
#endif
    std::fesetround(rounding_);
  }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  int rounding_;
#if defined(__SSE__)
  unsigned control_;
#elif defined(__aarch64__)
  std::uint64_t control_;
#endif
};

}  // namespace heed_test
