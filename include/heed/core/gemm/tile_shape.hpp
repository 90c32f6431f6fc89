// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The sizes of a product's building blocks: what fits the registers of each instruction set, and the caches.

#include <algorithm>

#include <heed/core/config.hpp>
#include <heed/core/parallel.hpp>
#include <heed/core/simd.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// A register tile of C: rows × vectors accumulators. Beside them stay the vectors of one row of B and one broadcast
/// element of A (and a temporary where multiply and add are two instructions), all without a spill. On AVX-512, 12 and
/// 14 rows were no faster than 8 and took longer to compile; on NEON, g++ keeps all of a step's elements of A at once.
struct TileShape {
  int registers, rows, vectors;
};
#if defined(EIGEN_VECTORIZE_AVX512)
inline constexpr TileShape kTile{32, 8, 2};
#elif defined(EIGEN_VECTORIZE_AVX)
inline constexpr TileShape kTile{16, 6, 2};
#elif defined(EIGEN_VECTORIZE_NEON) && defined(__aarch64__)
inline constexpr TileShape kTile{32, 5, 4};
#else
inline constexpr TileShape kTile{16, 2, 4};
#endif

/// Columns of a panel of packed B.
template <class T>
inline constexpr Index kPanelWidth = kTile.vectors * Vec<T>::size;

template <class T>
constexpr Index panel_count(Index columns) {
  return (columns + kPanelWidth<T> - 1) / kPanelWidth<T>;
}

/// A tile of one or two rows would wait for its few accumulators and for memory: it takes several panels at once, each
/// a stream of memory of its own, as far as the registers allow.
constexpr int panels_at_once(int rows) {
  if (rows > 2) return 1;
  const int fitting = (kTile.registers - kTile.vectors - rows) / (rows * kTile.vectors);
  return std::clamp(std::min(fitting, kTile.rows / rows), 1, 6);
}

/// The depth is cut into equal blocks, so that a panel's block stays in the second-level cache while all row tiles use
/// it. The cut depends on the depth alone: it decides in which order the sum of an element is rounded.
struct DepthBlocks {
  Index depth, count;

  template <class T>
  static constexpr DepthBlocks of(Index depth) {
    constexpr Index longest = 3072 / static_cast<Index>(sizeof(T));
    return {depth, std::max<Index>(1, (depth + longest - 1) / longest)};
  }
  constexpr Index begin(Index block) const { return part_begin(depth, count, block); }
  constexpr Index length(Index block) const { return begin(block + 1) - begin(block); }
  constexpr Index longest() const { return (depth + count - 1) / count; }
};

/// Rows of A that are packed at once: with a block of the depth they take 432 KiB of the second-level cache.
inline constexpr Index kMostRows = 144;

}  // namespace detail

HEED_NAMESPACE_END
