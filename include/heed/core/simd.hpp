// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The sizes that the instruction set sets, and Vec<T>: one register of float or double. The only file that touches
/// Eigen's packet layer, so that SSE, AVX, AVX-512 and NEON come from one source. Integer steps use the compilers'
/// vector types.
///
/// g++ folds a vector load into every FMA that uses it, which loads it again each time; keep() pins the loaded value to
/// a register. Constants gain from the same pin with g++ and lose with clang. Both were measured.

#include <cstdint>
#include <cstring>
#include <utility>

#include <heed/core/scalar.hpp>

#if defined(__F16C__)
#include <immintrin.h>
#endif

// g++ 12 warns of the undefined pass-through operands in its own AVX-512 intrinsics, which are intended, and of packets
// that lose their attributes as template arguments, which is harmless.
#if !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wignored-attributes"
#endif

HEED_NAMESPACE_BEGIN

namespace detail {

/// The sizes that the kernels take from the instruction set. They are chosen by measurement: larger register tiles
/// spill, smaller ones wait for loads. docs/guide/instruction-sets.md explains how to add an instruction set. None of
/// these changes the order in which a sum is added up.
struct InstructionSet {
  /// Vector registers.
  int registers;
  /// The register tile of gemm: rows × vectors accumulators, next to the vectors of one row of B and one element of A.
  int product_rows, product_vectors;
  /// Keys, or columns of V, that attention computes at once for one register of queries, and for two.
  int lane_rows, lane_rows_of_two;
  /// Registers whose exponentials are computed at once.
  int exponentials;
  /// The register tile of the sums dk and dv: keys × registers.
  int outer_rows, outer_columns;
};

#if defined(EIGEN_VECTORIZE_AVX512)
// 12 and 14 rows of a product were no faster than 8, and took longer to compile.
inline constexpr InstructionSet kIsa{.registers = 32,
                                     .product_rows = 8,
                                     .product_vectors = 2,
                                     .lane_rows = 8,
                                     .lane_rows_of_two = 8,
                                     .exponentials = 8,
                                     .outer_rows = 6,
                                     .outer_columns = 4};
#elif defined(EIGEN_VECTORIZE_AVX)
inline constexpr InstructionSet kIsa{.registers = 16,
                                     .product_rows = 6,
                                     .product_vectors = 2,
                                     .lane_rows = 8,
                                     .lane_rows_of_two = 6,
                                     .exponentials = 4,
                                     .outer_rows = 6,
                                     .outer_columns = 2};
#elif defined(EIGEN_VECTORIZE_NEON) && defined(__aarch64__)
// g++ keeps all elements of A of a step in registers at once.
inline constexpr InstructionSet kIsa{.registers = 32,
                                     .product_rows = 5,
                                     .product_vectors = 4,
                                     .lane_rows = 8,
                                     .lane_rows_of_two = 8,
                                     .exponentials = 8,
                                     .outer_rows = 6,
                                     .outer_columns = 4};
#else
// SSE, 32-bit NEON, no vectors. Multiply and add are two instructions and need a temporary.
inline constexpr InstructionSet kIsa{.registers = 16,
                                     .product_rows = 2,
                                     .product_vectors = 4,
                                     .lane_rows = 8,
                                     .lane_rows_of_two = 6,
                                     .exponentials = 4,
                                     .outer_rows = 6,
                                     .outer_columns = 2};
#endif

template <class F, int... I>
HEED_ALWAYS_INLINE void unroll_over(F&& f, std::integer_sequence<int, I...>) {
  (f(std::integral_constant<int, I>{}), ...);
}
/// f(0), ..., f(N-1) with the index as a compile-time constant: arrays of Vec stay in registers at any -O level.
template <int N, class F>
HEED_ALWAYS_INLINE void unroll(F&& f) {
  unroll_over(static_cast<F&&>(f), std::make_integer_sequence<int, N>{});
}

/// Keeps a value in a vector register: the compiler can't fold its load into later instructions.
template <class P>
HEED_ALWAYS_INLINE void keep([[maybe_unused]] P& x) {
#if defined(__wasm__)  // Eigen's SSE is emulated there, and registers have no names
#elif defined(EIGEN_VECTORIZE_AVX512)
  asm("" : "+v"(x));
#elif defined(EIGEN_VECTORIZE_SSE)
  asm("" : "+x"(x));
#elif defined(__aarch64__) && defined(EIGEN_VECTORIZE_NEON)
  asm("" : "+w"(x));
#elif __FLT_EVAL_METHOD__ != 0
  asm("" : "+m"(x));  // in memory, it is rounded
#endif
}

/// Groups of W lanes of a and b in turn, out of the lower or the upper half of each part of Part lanes.
template <int W, int Part, bool Upper, class Lanes, int... L>
HEED_ALWAYS_INLINE Lanes zip(const Lanes& a, const Lanes& b, std::integer_sequence<int, L...>) {
  constexpr int size = sizeof...(L);
  return __builtin_shufflevector(
      a, b, (L / Part * Part + Upper * (Part / 2) + L % Part / (2 * W) * W + L % W + L / W % 2 * size)...);
}

/// Exchanges blocks of S × S lanes across the diagonal, then blocks twice as large, up to half the square.
template <int S, class Lanes, int... L>
HEED_ALWAYS_INLINE void exchange_blocks(Lanes (&r)[sizeof...(L)], std::integer_sequence<int, L...> lanes) {
  constexpr int size = sizeof...(L);
  if constexpr (S < size) {
    unroll<size / 2>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
      constexpr int first = i / S * 2 * S + i % S, second = first + S;
      const Lanes lower = zip<S, 2 * S, false>(r[first], r[second], lanes);
      r[second] = zip<S, 2 * S, true>(r[first], r[second], lanes);
      r[first] = lower;
    });
    exchange_blocks<2 * S>(r, lanes);
  }
}

/// Transposes a square of lanes in log2(size) rounds. Squares of four, inside the 128-bit parts of the registers, are
/// zipped: x86 has one instruction for it.
template <class Lanes, int... L>
HEED_ALWAYS_INLINE void transpose(Lanes (&r)[sizeof...(L)], std::integer_sequence<int, L...> lanes) {
  constexpr int size = sizeof...(L);
  if constexpr (sizeof(r[0][0]) == 4) {
    unroll<size / 4>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
      Lanes* q = r + 4 * i;
      const Lanes a = zip<1, 4, false>(q[0], q[1], lanes), b = zip<1, 4, true>(q[0], q[1], lanes);
      const Lanes c = zip<1, 4, false>(q[2], q[3], lanes), d = zip<1, 4, true>(q[2], q[3], lanes);
      q[0] = zip<2, 4, false>(a, c, lanes);
      q[1] = zip<2, 4, true>(a, c, lanes);
      q[2] = zip<2, 4, false>(b, d, lanes);
      q[3] = zip<2, 4, true>(b, d, lanes);
    });
    exchange_blocks<4>(r, lanes);
  } else {
    exchange_blocks<1>(r, lanes);
  }
}

/// Prefetches n elements at `from`; Locality 3 for the nearest cache, 2 for the next one. Nothing is read: `from` may
/// point anywhere.
template <int Locality = 3, class T>
HEED_ALWAYS_INLINE void prefetch(const T* from, Index n) {
  for (Index i = 0; i < n; i += 64 / static_cast<Index>(sizeof(T))) __builtin_prefetch(from + i, 0, Locality);
}

}  // namespace detail

/// One register of T (float or double). Arithmetic is lane by lane.
template <class T>
struct Vec {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "heed::Vec holds float or double");
  /// The type of a lane.
  using Scalar = T;
  /// Eigen's type of the register.
  using Packet = typename Eigen::internal::packet_traits<T>::type;
  /// The number of lanes.
  static constexpr int size = static_cast<int>(Eigen::internal::unpacket_traits<Packet>::size);
  /// An unsigned integer as wide as a lane.
  using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  /// The lanes' bits as unsigned integers.
  typedef Word Words __attribute__((vector_size(sizeof(Packet))));
  /// The lanes as the compilers' vector type, also where Packet is a single T.
  typedef T Lanes __attribute__((vector_size(sizeof(Packet))));

  /// The register.
  Packet p;

  Vec() = default;
  /// From the register.
  HEED_ALWAYS_INLINE Vec(const Packet& packet)
  requires(!std::is_same_v<Packet, T>)
      : p(packet) {}
  /// Every lane the same value.
  HEED_ALWAYS_INLINE Vec(T value) : p(Eigen::internal::pset1<Packet>(value)) {}

  /// `size` elements next to each other, of any alignment.
  static HEED_ALWAYS_INLINE Vec load(const T* from) { return Vec(Eigen::internal::ploadu<Packet>(from)); }
  /// load() whose value stays in a register.
  static HEED_ALWAYS_INLINE Vec load_kept(const T* from) {
    Vec v = load(from);
    detail::keep(v.p);
    return v;
  }
  /// One element in every lane.
  static HEED_ALWAYS_INLINE Vec broadcast(const T* from) { return Vec(Eigen::internal::pload1<Packet>(from)); }
  /// A constant for a hot loop.
  static HEED_ALWAYS_INLINE Vec constant(T value) {
    Vec v(value);
#if !defined(__clang__)
    detail::keep(v.p);
#endif
    return v;
  }
  /// To `size` elements next to each other, of any alignment.
  HEED_ALWAYS_INLINE void store(T* to) const { Eigen::internal::pstoreu<T>(to, p); }

  /// The bits of the lanes.
  HEED_ALWAYS_INLINE Words bits() const {
    Words w;
    std::memcpy(&w, &p, sizeof w);
    return w;
  }
  /// The lanes.
  HEED_ALWAYS_INLINE Lanes lanes() const {
    Lanes l;
    std::memcpy(&l, &p, sizeof l);
    return l;
  }
  /// The register with these bits.
  static HEED_ALWAYS_INLINE Vec from_bits(const Words& w) {
    Vec v;
    std::memcpy(&v.p, &w, sizeof w);
    return v;
  }
  /// `size` words next to each other, of any alignment.
  static HEED_ALWAYS_INLINE Words load_words(const Word* from) {
    Words w;
    std::memcpy(&w, from, sizeof w);
    return w;
  }

  /// @{
  /// Lane by lane. These and, with clang, fma() and the comparisons are written with the compilers' operators, so that
  /// HEED_PRECISE holds for them: Eigen's functions are compiled with whatever flags the program has.
  friend HEED_ALWAYS_INLINE Vec operator+(Vec a, Vec b) { return Vec(Packet(a.p + b.p)); }
  friend HEED_ALWAYS_INLINE Vec operator-(Vec a, Vec b) { return Vec(Packet(a.p - b.p)); }
  friend HEED_ALWAYS_INLINE Vec operator*(Vec a, Vec b) { return Vec(Packet(a.p * b.p)); }
  friend HEED_ALWAYS_INLINE Vec operator/(Vec a, Vec b) { return Vec(Packet(a.p / b.p)); }
  /// @}
  /// Changes the sign bit, also of 0 and NaN; not every pnegate does.
  friend HEED_ALWAYS_INLINE Vec operator-(Vec a) { return from_bits(a.bits() ^ (Word{1} << (8 * sizeof(T) - 1))); }
  /// a·b + c, fused where the machine fuses.
#if HEED_PRECISE
  friend HEED_ALWAYS_INLINE Vec fma(Vec a, Vec b, Vec c) { return Vec(Packet(a.p * b.p + c.p)); }
#else
  friend HEED_ALWAYS_INLINE Vec fma(Vec a, Vec b, Vec c) { return Vec(Eigen::internal::pmadd(a.p, b.p, c.p)); }
#endif
  /// @{
  /// Like std::max and std::min: where a is NaN, NaN; where only b is NaN, a. So do x86's instructions, but not NEON's.
#if defined(EIGEN_VECTORIZE_SSE)
  friend HEED_ALWAYS_INLINE Vec max(Vec a, Vec b) { return Vec(Eigen::internal::pmax(a.p, b.p)); }
  friend HEED_ALWAYS_INLINE Vec min(Vec a, Vec b) { return Vec(Eigen::internal::pmin(a.p, b.p)); }
#else
  friend HEED_ALWAYS_INLINE Vec max(Vec a, Vec b) { return select(less(a, b), b, a); }
  friend HEED_ALWAYS_INLINE Vec min(Vec a, Vec b) { return select(less(b, a), b, a); }
#endif
  /// @}
  friend HEED_ALWAYS_INLINE Vec abs(Vec a) { return Vec(Eigen::internal::pabs(a.p)); }  ///< lane by lane

  /// @{
  /// Lane masks: all bits of a lane set or clear.
#if HEED_PRECISE
  friend HEED_ALWAYS_INLINE Vec less(Vec a, Vec b) { return from_bits(Words(a.lanes() < b.lanes())); }
  friend HEED_ALWAYS_INLINE Vec equal(Vec a, Vec b) { return from_bits(Words(a.lanes() == b.lanes())); }
#else
  friend HEED_ALWAYS_INLINE Vec less(Vec a, Vec b) { return Vec(Eigen::internal::pcmp_lt(a.p, b.p)); }
  friend HEED_ALWAYS_INLINE Vec equal(Vec a, Vec b) { return Vec(Eigen::internal::pcmp_eq(a.p, b.p)); }
#endif
  /// @}
  /// mask ? a : b, lane by lane.
  friend HEED_ALWAYS_INLINE Vec select(Vec mask, Vec a, Vec b) {
#if HEED_PRECISE
    return from_bits(mask.bits() != 0 ? a.bits() : b.bits());
#else
    return Vec(Eigen::internal::pselect(mask.p, a.p, b.p));
#endif
  }
  /// The lanes of `words` that have `bit` set, as a mask.
  static HEED_ALWAYS_INLINE Vec lanes_with(const Words& words, Word bit) {
    return from_bits(reinterpret_cast<Words>((words & bit) != 0));
  }
  /// True if any lane of a mask is set. Eigen has an instruction for lanes of float; for those of double it adds up
  /// NaNs, which -ffinite-math-only breaks.
  friend HEED_ALWAYS_INLINE bool any(Vec mask) {
    if constexpr (size == 1) {
      return mask.bits()[0] != 0;
    } else {
      typename Vec<float>::Packet floats;
      static_assert(sizeof floats == sizeof mask);
      std::memcpy(&floats, &mask, sizeof floats);
      return Eigen::internal::predux_any(floats);
    }
  }

  /// The sum of the lanes.
  friend HEED_ALWAYS_INLINE T sum(Vec a) { return Eigen::internal::predux(a.p); }
  /// The largest lane.
  friend HEED_ALWAYS_INLINE T max_lane(Vec a) { return Eigen::internal::predux_max(a.p); }

  /// Transposes a square: exchanges lane j of r[i] with lane i of r[j].
  static HEED_ALWAYS_INLINE void transpose(Vec (&r)[size]) {
    if constexpr (size > 1) {
      Lanes lanes[size];
      detail::unroll<size>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { std::memcpy(&lanes[i], &r[i].p, sizeof(Packet)); });
      detail::transpose(lanes, std::make_integer_sequence<int, size>{});
      detail::unroll<size>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { std::memcpy(&r[i].p, &lanes[i], sizeof(Packet)); });
    }
  }
};

namespace detail {

/// Vec<float>::size values of a 16-bit type as float.
HEED_ALWAYS_INLINE Vec<float> load_float(const bfloat16* from) {
  using V = Vec<float>;
#if defined(EIGEN_VECTORIZE_AVX512)
  return V(_mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))), 16)));
#elif defined(EIGEN_VECTORIZE_AVX2)
  return V(_mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))), 16)));
#else
  typedef std::uint16_t Half __attribute__((vector_size(sizeof(V::Packet) / 2)));
  Half h;
  std::memcpy(&h, from, sizeof h);
  return V::from_bits(__builtin_convertvector(h, V::Words) << 16);
#endif
}
HEED_ALWAYS_INLINE Vec<float> load_float(const half* from) {
  using V = Vec<float>;
#if defined(EIGEN_VECTORIZE_AVX512)
  return V(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif defined(__F16C__) && defined(EIGEN_VECTORIZE_AVX)
  return V(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
  // Shift exponent and mantissa into place and correct the bias; give Inf and NaN their full exponent. A subnormal
  // takes the exponent of 2^-14, of which 2^-14 is then taken away: that is exact, and no operand is a subnormal float,
  // which a thread may treat as 0. The sign comes last, since some roundings make 0 negative.
  typedef std::uint16_t Half __attribute__((vector_size(sizeof(V::Packet) / 2)));
  Half h;
  std::memcpy(&h, from, sizeof h);
  const V::Words w = __builtin_convertvector(h, V::Words), magnitude = w & 0x7fffu;
  const V::Words subnormal = reinterpret_cast<V::Words>(magnitude < 0x0400u),
                 special = reinterpret_cast<V::Words>(magnitude >= 0x7c00u);
  const V::Words u = (magnitude << 13) + 0x38000000u + (special & 0x38000000u) + (subnormal & 0x00800000u);
  const V value = V::from_bits(u) - V::from_bits(subnormal & 0x38800000u);
  return V::from_bits((value.bits() & 0x7fffffffu) | ((w & 0x8000u) << 16));
#endif
}
HEED_ALWAYS_INLINE Vec<float> load_float(const float* from) { return Vec<float>::load(from); }

/// The lanes of `words`, which are signed integers, as float.
HEED_ALWAYS_INLINE Vec<float> float_of_integers(const Vec<float>::Words& words) {
  using V = Vec<float>;
  typedef std::int32_t Integers __attribute__((vector_size(sizeof(V::Packet))));
  const V::Lanes lanes = __builtin_convertvector(reinterpret_cast<Integers>(words), V::Lanes);
  V v;
  std::memcpy(&v.p, &lanes, sizeof lanes);
  return v;
}
/// Bits 4·i to 4·i + 3 of each lane as float, 0 to 15.
HEED_ALWAYS_INLINE Vec<float> float_of_nibbles(const Vec<float>::Words& words, int i) {
#if defined(EIGEN_VECTORIZE_AVX512)
  // The permutation looks at four bits of each lane alone: one instruction instead of two.
  const __m512 numbers = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const Vec<float>::Words shifted = words >> (4 * i);
  __m512i index;
  std::memcpy(&index, &shifted, sizeof index);
  return Vec<float>(_mm512_permutexvar_ps(index, numbers));
#else
  return float_of_integers((words >> (4 * i)) & 15u);
#endif
}
/// Byte i of each lane, which is signed, as float.
HEED_ALWAYS_INLINE Vec<float> float_of_bytes(const Vec<float>::Words& words, int i) {
  typedef std::int32_t Integers __attribute__((vector_size(sizeof(Vec<float>::Packet))));
  return float_of_integers(
      reinterpret_cast<Vec<float>::Words>(reinterpret_cast<Integers>(words << (24 - 8 * i)) >> 24));
}

/// n values of storage type S, `stride` apart, as T next to each other.
template <class S, class T>
HEED_ALWAYS_INLINE void convert_row(const S* from, Index stride, Index n, T* to) {
  Index i = 0;
  if (stride == 1) {
    if constexpr (std::is_same_v<S, T>) {
      if (n > 0) std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
      return;
    } else if constexpr (std::is_same_v<T, float> && is_narrow_v<S>) {
      for (; i + Vec<float>::size <= n; i += Vec<float>::size) load_float(from + i).store(to + i);
    }
  }
  for (; i < n; ++i) to[i] = static_cast<T>(from[i * stride]);
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
