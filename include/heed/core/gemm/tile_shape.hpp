// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The sizes of a product's building blocks, which fit the registers and the caches.

#include <algorithm>

#include <heed/core/config.hpp>
#include <heed/core/isa.hpp>
#include <heed/core/parallel.hpp>
#include <heed/core/simd.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// Columns of a panel of packed B.
template <class T>
inline constexpr Index kPanelWidth = kIsa.product_vectors * Vec<T>::size;

template <class T>
constexpr Index panel_count(Index columns) {
  return (columns + kPanelWidth<T> - 1) / kPanelWidth<T>;
}

/// A tile of one or two rows would wait for its few accumulators and for memory: it takes several panels at once, each
/// a stream of memory of its own, as far as the registers allow.
constexpr int panels_at_once(int rows) {
  if (rows > 2) return 1;
  const int fitting = (kIsa.registers - kIsa.product_vectors - rows) / (rows * kIsa.product_vectors);
  return std::clamp(std::min(fitting, kIsa.product_rows / rows), 1, 6);
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
