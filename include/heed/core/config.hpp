// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Every macro of the library, and the inline namespace that separates differently compiled copies of it.
///
/// A user may define, before any heed header and alike in all translation units:
///   HEED_ALLOW_FAST_MATH   accept -ffast-math and its parts; the promises about NaN, Inf, masked values and equal bits
///                          are then void
///   HEED_THROW(exception)  replaces `throw exception` (default without exceptions: print and abort); must not return
///
/// Translation units compiled with different flags link into one program when
///   - they differ in instruction sets (-m..., -march=...), the version of Eigen, its alignment, exceptions,
///     -ffast-math or HEED_THROW: heed's functions are then different symbols, since the namespace has another name;
///   - every unit is compiled with at least -O1 and without -fno-inline. Eigen's packet functions and parts of the
///     standard library are inline functions without such a name: where they are not inlined, the linker keeps one
///     copy for all units. At -O0 a unit can then run code of another instruction set, with other roundings.
/// Units that differ only in -O levels, -ffp-contract or -mtune share one copy of each function, whichever the linker
/// finds first. All copies are valid, but the last bits of results may depend on the order of linking. NDEBUG changes
/// nothing in heed; it changes Eigen's assertions.

#if !defined(__GNUC__)
#error "heed needs g++ 12, clang 14 or later: its kernels use their vector extensions"
#endif

#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include <Eigen/Core>

#include <heed/version.hpp>

#if __cplusplus < 202002L
#error "heed needs C++20: compile with -std=c++20 or later"
#endif

// From 17 on, clang may take for granted that arguments and results of functions are neither NaN nor infinity, and no
// pragma takes that back. Other compilers with clang's front end have other version numbers.
/// @cond
#if defined(__clang__) && (__clang_major__ >= 17 || defined(__apple_build_version__))
#define HEED_FINITE_ARGUMENTS 1
#else
#define HEED_FINITE_ARGUMENTS 0
#endif
/// @endcond

// The flags that change arithmetic, as far as compilers define a macro for them; docs/guide/compiler-flags.md has all.
#if __FINITE_MATH_ONLY__ && HEED_FINITE_ARGUMENTS
#error \
    "heed relies on infinity, which -ffast-math removes (so does -ffinite-math-only). With this compiler HEED_ALLOW_FAST_MATH does not help: add -fno-finite-math-only"
#endif
#if !defined(HEED_ALLOW_FAST_MATH)
#if defined(__FAST_MATH__) || __FINITE_MATH_ONLY__
#error \
    "heed relies on NaN and infinity, which -ffast-math removes (so does -ffinite-math-only): masks could leak. Compile without it, or define HEED_ALLOW_FAST_MATH and give up the promises about NaN, Inf and masked values"
#elif defined(__ASSOCIATIVE_MATH__)
#error \
    "heed relies on the order of sums, which -fassociative-math and -funsafe-math-optimizations change. Compile with -fno-associative-math, or define HEED_ALLOW_FAST_MATH and give up the promises about NaN, Inf, masked values and equal bits"
#elif defined(__RECIPROCAL_MATH__)
#error \
    "heed relies on exact quotients, which -freciprocal-math rounds twice. Compile with -fno-reciprocal-math, or define HEED_ALLOW_FAST_MATH and give up the promises about NaN, Inf, masked values and equal bits"
#endif
#endif

#if !EIGEN_VERSION_AT_LEAST(3, 4, 0)
#error "heed needs Eigen 3.4 or later"
#endif

/// @cond
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

#define HEED_PASTE_(a, b, c, d, e, f, g, h, i, ...) a##b##c##d##e##f##g##h##i
#define HEED_PASTE(...) HEED_PASTE_(__VA_ARGS__, , , , , , , , )

// HEED_TAG(macro, name) is `name` where `macro` is defined as 1, else nothing. HEED_COMMA_1 moves `name` to the second
// place; of any other `macro` it makes an unknown word in the first.
#define HEED_COMMA_1 ,
#define HEED_SECOND(a, b, ...) b
#define HEED_TAG__(...) HEED_SECOND(__VA_ARGS__)
#define HEED_TAG_(value, name) HEED_TAG__(HEED_COMMA_##value name, , )
#define HEED_TAG(macro, name) HEED_TAG_(macro, name)

// The machine: the highest x86-64 level of which all extensions are enabled, then the extensions beyond it.
#if defined(__SSE3__) && defined(__SSSE3__) && defined(__SSE4_1__) && defined(__SSE4_2__) && defined(__POPCNT__)
#if defined(__AVX2__) && defined(__F16C__) && defined(__FMA__) && defined(__LZCNT__) && defined(__BMI__) && \
    defined(__BMI2__) && defined(__MOVBE__)
#if defined(__AVX512F__) && defined(__AVX512CD__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && \
    defined(__AVX512VL__)
#define HEED_MACHINE x86v4
#else
#define HEED_MACHINE                                                                                         \
  HEED_PASTE(x86v3, HEED_TAG(__AVX512F__, _avx512f), HEED_TAG(__AVX512CD__, cd), HEED_TAG(__AVX512BW__, bw), \
             HEED_TAG(__AVX512DQ__, dq), HEED_TAG(__AVX512VL__, vl))
#endif
#else
#define HEED_MACHINE                                                                                      \
  HEED_PASTE(HEED_PASTE(x86v2, HEED_TAG(__AVX__, _avx), HEED_TAG(__AVX2__, 2), HEED_TAG(__F16C__, _f16c), \
                        HEED_TAG(__FMA__, _fma), HEED_TAG(__LZCNT__, _lzcnt), HEED_TAG(__BMI__, _bmi),    \
                        HEED_TAG(__BMI2__, _bmi2), HEED_TAG(__MOVBE__, _movbe)),                          \
             HEED_TAG(__AVX512F__, _avx512f), HEED_TAG(__AVX512CD__, cd), HEED_TAG(__AVX512BW__, bw),     \
             HEED_TAG(__AVX512DQ__, dq), HEED_TAG(__AVX512VL__, vl))
#endif
#elif defined(__x86_64__) || defined(__i386__)
#define HEED_MACHINE                                                                                    \
  HEED_PASTE(x86, HEED_TAG(__SSE2__, v1), HEED_TAG(__SSE3__, _sse3), HEED_TAG(__SSSE3__, _ssse3),       \
             HEED_TAG(__SSE4_1__, _sse41), HEED_TAG(__SSE4_2__, _sse42), HEED_TAG(__POPCNT__, _popcnt), \
             HEED_TAG(__LZCNT__, _lzcnt), HEED_TAG(__BMI__, _bmi))
#else
#define HEED_MACHINE                                                                                     \
  HEED_PASTE(HEED_ISA, HEED_TAG(__ARM_FEATURE_FMA, _fma), HEED_TAG(__ARM_FEATURE_ATOMICS, _lse),         \
             HEED_TAG(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC, _fp16), HEED_TAG(__ARM_FEATURE_BF16, _bf16), \
             HEED_TAG(__ARM_FEATURE_SVE, _sve), HEED_TAG(__ARM_FEATURE_SVE2, _sve2))
#endif
#define HEED_EXTENSIONS                                                                           \
  HEED_PASTE(HEED_TAG(__FMA4__, _fma4), HEED_TAG(__XOP__, _xop), HEED_TAG(__AVX512VBMI__, _vbmi), \
             HEED_TAG(__AVX512VBMI2__, _vbmi2), HEED_TAG(__AVX512BITALG__, _bitalg),              \
             HEED_TAG(__AVX512VPOPCNTDQ__, _vpopcntdq), HEED_TAG(__AVX512BF16__, _bf16),          \
             HEED_TAG(__AVX512FP16__, _fp16), HEED_TAG(__AVX512ER__, _er))

#if defined(EIGEN_VECTORIZE)
#define HEED_VECTORIZE_TAG
#else
#define HEED_VECTORIZE_TAG _scalar
#endif

#if EIGEN_VERSION_AT_LEAST(5, 0, 0)
#define HEED_EIGEN _e5
#else
#define HEED_EIGEN _e3
#endif

#if defined(__cpp_exceptions)
#define HEED_EXCEPTIONS 1
#define HEED_EXCEPTIONS_TAG
#else
#define HEED_EXCEPTIONS 0
#define HEED_EXCEPTIONS_TAG _noexceptions
#endif

#if defined(__FAST_MATH__) || __FINITE_MATH_ONLY__ || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__)
#define HEED_MATH_TAG _fast
#else
#define HEED_MATH_TAG
#endif

// clang defines nothing for -fassociative-math, -freciprocal-math, -fno-honor-nans and others. The pragma takes them
// back for the code between HEED_NAMESPACE_BEGIN and HEED_NAMESPACE_END, where products and sums in one expression are
// fused as by default; clang accepts it for these targets.
#if defined(__clang__) && (defined(__x86_64__) || defined(__i386__) || defined(__powerpc__) || \
                           (defined(__aarch64__) && __clang_major__ >= 15))
#define HEED_PRECISE 1
#define HEED_PRECISE_BEGIN _Pragma("float_control(precise, on, push)")
#define HEED_PRECISE_END _Pragma("float_control(pop)")
#else
#define HEED_PRECISE 0
#define HEED_PRECISE_BEGIN
#define HEED_PRECISE_END
#endif

// 1 where a sum may be added up in another order than written, or keep more digits than its type has, as on x87.
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || (defined(__clang__) && !HEED_PRECISE) || \
    __FLT_EVAL_METHOD__ != 0
#define HEED_INEXACT_SUMS 1
#else
#define HEED_INEXACT_SUMS 0
#endif

#if defined(HEED_THROW)
#define HEED_THROW_TAG _throw
#elif HEED_EXCEPTIONS
#define HEED_THROW_TAG
#define HEED_THROW(...) throw __VA_ARGS__
#else
#define HEED_THROW_TAG
#define HEED_THROW(...) (std::fprintf(stderr, "%s\n", (__VA_ARGS__).what()), std::abort())
#endif

#define HEED_VERSION_TAG_(a, b, c) v##a##_##b##_##c##_
#define HEED_VERSION_TAG(a, b, c) HEED_VERSION_TAG_(a, b, c)
#define HEED_ALIGN_TAG_(a) _align##a
#define HEED_ALIGN_TAG(a) HEED_ALIGN_TAG_(a)
#define HEED_ABI                                                                                         \
  HEED_PASTE(HEED_VERSION_TAG(HEED_VERSION_MAJOR, HEED_VERSION_MINOR, HEED_VERSION_PATCH), HEED_MACHINE, \
             HEED_EXTENSIONS, HEED_VECTORIZE_TAG, HEED_EIGEN, HEED_ALIGN_TAG(EIGEN_MAX_ALIGN_BYTES),     \
             HEED_EXCEPTIONS_TAG, HEED_THROW_TAG, HEED_MATH_TAG)

// Warnings of g++ that a user's flags may ask for and that find no mistakes here: -Wsign-conversion, of each array
// whose bound is a template argument of type int (clang's is not silenced, and sees the other conversions),
// -Wuseless-cast, of casts that a 32-bit target needs, -Wnull-dereference, of pointers that were tested in another
// function, and -Wcast-align, on 32-bit Arm, of rows whose elements are aligned.
#if defined(__clang__)
#define HEED_QUIET_BEGIN
#define HEED_QUIET_END
#else
#define HEED_QUIET_BEGIN                                                                                            \
  _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wsign-conversion\"")                            \
      _Pragma("GCC diagnostic ignored \"-Wuseless-cast\"") _Pragma("GCC diagnostic ignored \"-Wnull-dereference\"") \
          _Pragma("GCC diagnostic ignored \"-Wcast-align\"")
#define HEED_QUIET_END _Pragma("GCC diagnostic pop")
#endif

#define HEED_NAMESPACE_BEGIN \
  HEED_QUIET_BEGIN           \
  HEED_PRECISE_BEGIN         \
  namespace heed {           \
  inline namespace HEED_ABI {
#define HEED_NAMESPACE_END \
  }                        \
  }                        \
  HEED_PRECISE_END         \
  HEED_QUIET_END

#define HEED_ALWAYS_INLINE inline __attribute__((always_inline))
#define HEED_ALWAYS_INLINE_LAMBDA __attribute__((always_inline))
#define HEED_NOINLINE __attribute__((noinline))

#define HEED_STRING_(x) #x
#define HEED_STRING(x) HEED_STRING_(x)
/// @endcond

HEED_NAMESPACE_BEGIN

static_assert(0.1 != static_cast<double>(0.1f),
              "heed needs constants in double: compile without -fsingle-precision-constant");

/// Extents fit `int`; offsets and products of extents are 64-bit.
using Index = std::ptrdiff_t;

/// The instruction set this translation unit was compiled for: "avx512", "avx2", "avx", "sse4", "sse2", "neon",
/// "scalar".
constexpr const char* isa() { return HEED_STRING(HEED_ISA); }

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
