// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The loops around the register tile, and how threads share them.

#include <heed/core/context.hpp>
#include <heed/core/gemm/micro_kernel.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// C (m, n) = A (m, k) · B (k, n). B lies in panels of kPanelWidth columns, one after the other, each k × kPanelWidth;
/// the columns that the last panel has too many hold zeros.
template <class T>
struct Product {
  TensorView<const T, 2> a;
  const T* panels;
  TensorView<T, 2> c;
  Epilogue<T> epilogue;

  Index rows() const { return c.extent(0); }
  Index depth() const { return a.extent(1); }
  Index panel_count() const { return detail::panel_count<T>(c.extent(1)); }
};

/// Computes one product. Its tasks are (block of rows) × (range of panels); every task goes through the whole depth, so
/// that neither the cut nor the number of threads changes a result.
///
/// Many rows: blocks of rows only. A task packs its rows, depth block by depth block, into its worker's scratch.
/// Few rows among many threads: ranges of panels too. All rows are packed beforehand and shared.
template <class T>
class Multiplication {
 public:
  /// Scratch memory is taken from the context's workspace and belongs to the caller's frame.
  Multiplication(const Product<T>& product, Context& context)
      : product_(product), blocks_(DepthBlocks::of<T>(product.depth())) {
    const Index rows = product.rows(), panels = product.panel_count();
    row_blocks_ = (rows + kMostRows - 1) / kMostRows;
    const Index threads = context.executor().concurrency();
    // Below this many multiplications waking a thread costs more than it brings.
    constexpr Index worth_sharing = 100'000;
    if (threads > 1 && rows * product.depth() * panels * kPanelWidth<T> >= worth_sharing) {
      executor_ = &context.executor();
      if (rows >= 48 * threads) {
        row_blocks_ = std::max(row_blocks_, 4 * threads);
      } else {
        const Index groups = std::max<Index>(1, panels / panels_at_once(static_cast<int>(rows)));
        panel_ranges_ = std::clamp<Index>(8 * threads / row_blocks_, 1, groups);
      }
    }
    worker_size_ = (rows + row_blocks_ - 1) / row_blocks_ * blocks_.longest();
    packed_ = context.workspace().template take<T>(shared() ? rows * product.depth()
                                                            : (executor_ ? threads : 1) * worker_size_);
  }

  void run() const {
    if (shared()) {
      parallel_for_each(executor_, row_blocks_ * blocks_.count, [&](Index task, int) {
        const Index block = task / blocks_.count, d = task % blocks_.count;
        pack(rows_of(block), d, shared_rows(rows_of(block), d));
      });
    }
    parallel_for_each(executor_, row_blocks_ * panel_ranges_, [&](Index task, int worker) {
      const Rows rows = rows_of(task / panel_ranges_);
      const Index range = task % panel_ranges_, panels = product_.panel_count();
      for (Index d = 0; d < blocks_.count; ++d) {
        T* packed = shared() ? shared_rows(rows, d) : packed_ + worker * worker_size_;
        if (!shared()) pack(rows, d, packed);
        multiply(rows, d, packed, part_begin(panels, panel_ranges_, range),
                 part_begin(panels, panel_ranges_, range + 1));
      }
    });
  }

 private:
  /// A block of rows, in tiles of nearly equal height.
  struct Rows {
    Index first, count, tiles;
    Index begin(Index tile) const { return part_begin(count, tiles, tile); }
    Index height(Index tile) const { return begin(tile + 1) - begin(tile); }
  };
  Rows rows_of(Index block) const {
    const Index first = part_begin(product_.rows(), row_blocks_, block);
    const Index count = part_begin(product_.rows(), row_blocks_, block + 1) - first;
    return {first, count, (count + kIsa.product_rows - 1) / kIsa.product_rows};
  }
  bool shared() const { return panel_ranges_ > 1; }
  T* shared_rows(const Rows& rows, Index d) const {
    return packed_ + rows.first * product_.depth() + rows.count * blocks_.begin(d);
  }

  /// Tile after tile, each depth × height.
  void pack(const Rows& rows, Index d, T* to) const {
    const TensorView<const T, 2>& a = product_.a;
    for (Index tile = 0; tile < rows.tiles; ++tile) {
      interleave(&a(rows.first + rows.begin(tile), blocks_.begin(d)), a.stride(0), a.stride(1), rows.height(tile),
                 blocks_.length(d), rows.height(tile), to + rows.begin(tile) * blocks_.length(d));
    }
  }

  void multiply(const Rows& rows, Index d, const T* packed, Index first_panel, Index end_panel) const {
    constexpr Index width = kPanelWidth<T>;
    // A single tile reads B as one stream and fetches a page ahead in it. Several tiles use a panel longer, and each
    // fetches its share of the next one.
    constexpr Index distance = 4096 / static_cast<Index>(sizeof(T));
    const bool single = rows.tiles == 1;
    const int several = single ? panels_at_once(static_cast<int>(rows.count)) : 1;

    const Output<T> to{product_.c, product_.epilogue, d > 0 || product_.epilogue.accumulate, d + 1 == blocks_.count};
    TileTask<T> task{};
    task.panel_stride = product_.depth() * width;
    task.depth = blocks_.length(d);
    task.ahead_step = (width + rows.tiles - 1) / rows.tiles;
    task.to = &to;
    task.from_registers = to.from_registers();
    const T* block = product_.panels + blocks_.begin(d) * width;
    for (Index panel = first_panel; panel < end_panel;) {
      const bool group = several > 1 && panel + several <= end_panel;
      task.b = block + panel * task.panel_stride;
      task.column = panel * width;
      task.ahead = single ? task.b + distance : task.b + (panel + 1 < end_panel ? task.panel_stride : 0);
      for (Index tile = 0; tile < rows.tiles; ++tile) {
        task.a = packed + rows.begin(tile) * task.depth;
        task.row = rows.first + rows.begin(tile);
        Tiles<T>::get(rows.height(tile), group)(task);
        task.ahead += task.ahead_step * task.depth;
      }
      panel += group ? several : 1;
    }
  }

  Product<T> product_;
  DepthBlocks blocks_;
  Executor* executor_ = nullptr;
  Index row_blocks_ = 1, panel_ranges_ = 1, worker_size_ = 0;
  T* packed_ = nullptr;
};

/// Products of small matrices in the calling thread, on the register tile of gemm.
template <class A>
class SmallProduct {
 public:
  /// Elements of scratch for products of at most `largest` rows, columns and depth.
  static Index memory(Index largest) { return (panel_count<A>(largest) * kPanelWidth<A> + largest) * largest; }
  explicit SmallProduct(A* scratch = nullptr) : scratch_(scratch) {}

  /// c (m, n) = a (m, k) · b (k, n), or c += a · b. A row of c has the same bits whatever rows stand beside it.
  HEED_NOINLINE void run(const TensorView<const A, 2>& a, const TensorView<const A, 2>& b, const TensorView<A, 2>& c,
                         bool accumulate) const {
    const Index rows = c.extent(0), columns = c.extent(1), depth = a.extent(1);
    if (rows == 0 || columns == 0) return;
    const Index panels = panel_count<A>(columns), tiles = (rows + kIsa.product_rows - 1) / kIsa.product_rows;
    for (Index p = 0; p < panels; ++p) pack_panel(b, p, scratch_);
    A* const packed = scratch_ + panels * kPanelWidth<A> * depth;
    for (Index tile = 0; tile < tiles; ++tile) {
      const Index row = part_begin(rows, tiles, tile), height = part_begin(rows, tiles, tile + 1) - row;
      interleave(a.data() + row * a.stride(0), a.stride(0), a.stride(1), height, depth, height, packed + row * depth);
    }
    const Output<A> to{c, {}, accumulate, true};
    TileTask<A> task{};
    task.panel_stride = depth * kPanelWidth<A>;
    task.depth = depth;
    task.to = &to;
    task.from_registers = to.from_registers();
    for (Index p = 0; p < panels; ++p) {
      task.b = scratch_ + p * task.panel_stride;
      task.ahead = task.b;
      task.column = p * kPanelWidth<A>;
      for (Index tile = 0; tile < tiles; ++tile) {
        task.row = part_begin(rows, tiles, tile);
        task.a = packed + task.row * depth;
        Tiles<A>::get(part_begin(rows, tiles, tile + 1) - task.row, false)(task);
      }
    }
  }

 private:
  A* scratch_;
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
