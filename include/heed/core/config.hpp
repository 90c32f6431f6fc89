// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Every macro of the library, and the inline namespace that keeps differently compiled copies apart.
///
/// A user may define, before any heed header:
///   HEED_ALLOW_FAST_MATH   accept -ffast-math; the promises about NaN, Inf and masked values are then void
///   HEED_THROW(exception)  what happens instead of `throw exception` (default without exceptions: print and abort)

#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include <Eigen/Core>

#include <heed/version.hpp>

#if __cplusplus < 202002L && !(defined(_MSVC_LANG) && _MSVC_LANG >= 202002L)
#error "heed needs C++20: compile with -std=c++20 or later"
#endif

#if defined(__FAST_MATH__) && !defined(HEED_ALLOW_FAST_MATH)
#error \
    "heed relies on NaN and infinity, which -ffast-math removes: masks could leak. Compile without it, or define HEED_ALLOW_FAST_MATH and give up the promises about NaN, Inf and masked values"
#endif

#if !EIGEN_VERSION_AT_LEAST(3, 4, 0)
#error "heed needs Eigen 3.4 or later"
#endif

// The namespace is tagged with everything that changes generated code or layout, so that translation units
// compiled with different flags can be linked into one program: version, instruction set, Eigen, alignment,
// exceptions, fast math.
#if defined(EIGEN_VECTORIZE_AVX512)
#define HEED_ISA avx512
#elif defined(EIGEN_VECTORIZE_AVX2) && defined(EIGEN_VECTORIZE_FMA)
#define HEED_ISA avx2
#elif defined(EIGEN_VECTORIZE_AVX)
#define HEED_ISA avx
#elif defined(EIGEN_VECTORIZE_SSE4_1)
#define HEED_ISA sse4
#elif defined(EIGEN_VECTORIZE_SSE)
#define HEED_ISA sse2
#elif defined(EIGEN_VECTORIZE_NEON)
#define HEED_ISA neon
#else
#define HEED_ISA scalar
#endif

#if EIGEN_VERSION_AT_LEAST(5, 0, 0)
#define HEED_EIGEN e5
#else
#define HEED_EIGEN e3
#endif

#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
#define HEED_EXCEPTIONS 1
#define HEED_EXCEPTIONS_TAG x
#else
#define HEED_EXCEPTIONS 0
#define HEED_EXCEPTIONS_TAG nx
#endif

#if defined(__FAST_MATH__)
#define HEED_MATH_TAG fast
#else
#define HEED_MATH_TAG exact
#endif

#define HEED_JOIN_(a, b, c, d, e, f, g, h) v##a##_##b##_##c##_##d##_##e##_align##f##_##g##_##h
#define HEED_JOIN(a, b, c, d, e, f, g, h) HEED_JOIN_(a, b, c, d, e, f, g, h)
#define HEED_ABI                                                                                                     \
  HEED_JOIN(HEED_VERSION_MAJOR, HEED_VERSION_MINOR, HEED_VERSION_PATCH, HEED_ISA, HEED_EIGEN, EIGEN_MAX_ALIGN_BYTES, \
            HEED_EXCEPTIONS_TAG, HEED_MATH_TAG)

#define HEED_NAMESPACE_BEGIN \
  namespace heed {           \
  inline namespace HEED_ABI {
#define HEED_NAMESPACE_END \
  }                        \
  }

#if !defined(HEED_THROW)
#if HEED_EXCEPTIONS
#define HEED_THROW(...) throw __VA_ARGS__
#else
#define HEED_THROW(...) (std::fprintf(stderr, "%s\n", (__VA_ARGS__).what()), std::abort())
#endif
#endif

#if defined(__GNUC__)
#define HEED_ALWAYS_INLINE inline __attribute__((always_inline))
#define HEED_ALWAYS_INLINE_LAMBDA __attribute__((always_inline))
#define HEED_NOINLINE __attribute__((noinline))
#else
#define HEED_ALWAYS_INLINE inline
#define HEED_ALWAYS_INLINE_LAMBDA
#define HEED_NOINLINE
#endif

#define HEED_STRING_(x) #x
#define HEED_STRING(x) HEED_STRING_(x)

HEED_NAMESPACE_BEGIN

/// Extents fit `int`; offsets and products of extents are 64-bit.
using Index = std::ptrdiff_t;

/// The instruction set this translation unit was compiled for: "avx512", "avx2", "avx", "sse4", "sse2", "neon",
/// "scalar".
constexpr const char* isa() { return HEED_STRING(HEED_ISA); }

HEED_NAMESPACE_END
