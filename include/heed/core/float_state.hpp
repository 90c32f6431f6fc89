// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// FloatState: the settings of a thread's floating-point unit, and how a worker takes on those of its caller.

#include <cstdint>

#include <heed/core/config.hpp>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif
// On 32-bit x86 the x87 unit computes too, and its rounding is set with that of SSE.
/// @cond
#if defined(__aarch64__) || (defined(__SSE__) && defined(__x86_64__))
#define HEED_HAS_FENV_ROUNDING 0
#else
#define HEED_HAS_FENV_ROUNDING 1
#include <cfenv>
#endif
/// @endcond

HEED_NAMESPACE_BEGIN

namespace detail {

/// Rounding, the flushing of subnormals (FTZ, DAZ) and traps: MXCSR on x86, FPCR on 64-bit Arm, the rounding alone
/// elsewhere.
class FloatState {
 public:
  /// To nearest, without flushing and traps: what a program begins with.
  FloatState() = default;
  /// The calling thread's.
  static FloatState current() {
    FloatState state;
#if defined(__aarch64__)
    asm volatile("mrs %0, fpcr" : "=r"(state.control_));
#elif defined(__SSE__)
    state.control_ = _mm_getcsr() & kControl;
#endif
#if HEED_HAS_FENV_ROUNDING
    state.rounding_ = std::fegetround();
#endif
    return state;
  }
  /// Gives it to the calling thread.
  void set() const {
#if HEED_HAS_FENV_ROUNDING
    std::fesetround(rounding_);
#endif
#if defined(__aarch64__)
    asm volatile("msr fpcr, %0" : : "r"(control_));
#elif defined(__SSE__)
    _mm_setcsr((_mm_getcsr() & ~kControl) | control_);
#endif
  }
  bool operator==(const FloatState&) const = default;

 private:
#if defined(__aarch64__)
  std::uint64_t control_ = 0;
#elif defined(__SSE__)
  static constexpr unsigned kControl = 0xffc0;  // the other bits say which exceptions have occurred
  unsigned control_ = 0x1f80;
#endif
#if HEED_HAS_FENV_ROUNDING
  int rounding_ = FE_TONEAREST;
#endif
};

/// Gives this thread a state for as long as it lives. Costs some nanoseconds where the thread has it already.
class FloatStateScope {
 public:
  explicit FloatStateScope(const FloatState& wanted) : before_(FloatState::current()), differs_(before_ != wanted) {
    if (differs_) wanted.set();
  }
  ~FloatStateScope() {
    if (differs_) before_.set();
  }
  FloatStateScope(const FloatStateScope&) = delete;
  FloatStateScope& operator=(const FloatStateScope&) = delete;

 private:
  FloatState before_;
  bool differs_;
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
