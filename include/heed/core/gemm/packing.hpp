// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The sizes of a product's building blocks, which fit the registers and the caches, and packing: rows of A or columns
/// of B that one register tile reads together are copied next to each other.

#include <heed/core/parallel.hpp>
#include <heed/core/simd.hpp>
#include <heed/core/tensor.hpp>

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

/// to[k·width + i] = from[i·lane_stride + k·depth_stride] for k < depth and i < lanes, 0 for lanes <= i < width.
/// Writes exactly depth·width elements.
template <class T>
HEED_NOINLINE void interleave(const T* from, Index lane_stride, Index depth_stride, Index lanes, Index depth,
                              Index width, T* to) {
  using V = Vec<T>;
  constexpr Index W = V::size;
  Index k = 0;
  if (depth_stride == 1 && width == 1) {
    std::copy_n(from, depth, to);
    return;
  }
  if (depth_stride == 1) {
    // Squares of W lanes × W steps. Where width is no multiple of W, the last group of lanes spills over into the next
    // step, whose own lanes are written after it: by the groups before the last, by the next square, or one by one.
    const Index last_group = (width - 1) / W * W;
    for (; (k + W - 1) * width + last_group + W <= depth * width; k += W) {
      for (Index group = last_group; group >= 0; group -= W) {
        const T* square_begin = from + group * lane_stride + k;
        V square[W];
        unroll<V::size>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
          square[i] = group + i < lanes ? V::load(square_begin + i * lane_stride) : V(T(0));
        });
        V::transpose(square);
        unroll<V::size>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { square[i].store(to + (k + i) * width + group); });
      }
    }
  }
  for (; k < depth; ++k) {
    const T* step = from + k * depth_stride;
    T* row = to + k * width;
    Index i = 0;
    if (lane_stride == 1) {
      for (; i + W <= lanes; i += W) V::load(step + i).store(row + i);
    }
    for (; i < lanes; ++i) row[i] = step[i * lane_stride];
    for (; i < width; ++i) row[i] = T(0);
  }
}

/// Panel p of b (k, n) goes to its place among `panels`, k × kPanelWidth elements each.
template <class T>
void pack_panel(const TensorView<const T, 2>& b, Index p, T* panels) {
  constexpr Index width = kPanelWidth<T>;
  const Index depth = b.extent(0), first = p * width, count = std::min(width, b.extent(1) - first);
  if (depth == 0) return;  // an empty matrix may have no memory to point into
  interleave(b.data() + first * b.stride(1), b.stride(1), b.stride(0), count, depth, width, panels + first * depth);
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
