// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Loops over the rows of (B, L, E) views on the executor: a function of each row, and sums over rows.
///
/// Sums over rows (the gradient of a bias or of a norm's weight) are cut by the extents alone, never by the number of
/// threads, so gradients have the same bits for any executor.

#include <heed/core/core.hpp>
#include <heed/core/simd.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// f(first, last, worker) over ranges of [0, rows), on the executor when there is enough work. Rows must be independent
/// of each other: where the ranges are cut then changes no result. `row_size` is the work of a row in elements.
template <class F>
void parallel_for_rows(Context& context, Index rows, Index row_size, F&& f) {
  constexpr Index piece_size = 16384;  // elements: some microseconds, well above the cost of handing out a piece
  const Index rows_per_piece = std::max<Index>(1, piece_size / std::max<Index>(1, row_size));
  if (context.executor().concurrency() == 1 || rows <= rows_per_piece) {
    if (rows > 0) f(Index{0}, rows, 0);
    return;
  }
  const Index pieces = (rows + rows_per_piece - 1) / rows_per_piece;
  parallel_for_each(&context.executor(), pieces, [&](Index piece, int worker) {
    const Index first = piece * rows_per_piece;
    f(first, std::min(rows, first + rows_per_piece), worker);
  });
}

/// f(begin, end) over ranges of [0, size): elements next to each other that don't depend on each other.
template <class F>
void parallel_for_elements(Context& context, Index size, F&& f) {
  constexpr Index length = 1024;
  parallel_for_rows(context, (size + length - 1) / length, length,
                    [&](Index first, Index last, int) { f(first * length, std::min(size, last * length)); });
}

/// Lanes 0, ..., n - 1 (all of them when n is larger) from elements next to each other; the other lanes hold `fill`.
/// With it and store_lanes(), the end of a row takes the same instructions as its middle.
template <class T>
HEED_ALWAYS_INLINE auto load_lanes(const T* from, Index n, accumulate_t<T> fill = 0) {
  using A = accumulate_t<T>;
  using V = Vec<A>;
  if (n >= V::size) {
    if constexpr (is_narrow_v<T>)
      return load_float(from);
    else
      return V::load(from);
  }
  A lanes[V::size];
  for (Index i = 0; i < V::size; ++i) lanes[i] = i < n ? static_cast<A>(from[i]) : fill;
  return V::load(lanes);
}

template <class T>
HEED_ALWAYS_INLINE void store_lanes(Vec<accumulate_t<T>> value, T* to, Index n) {
  using A = accumulate_t<T>;
  if constexpr (!is_narrow_v<T>) {
    if (n >= Vec<A>::size) return value.store(to);
  }
  A lanes[Vec<A>::size];
  value.store(lanes);
  for (Index i = 0; i < std::min<Index>(n, Vec<A>::size); ++i) to[i] = stored_as<T>(lanes[i]);
}

/// to = from, whatever the strides, walking along the smaller stride of the side that is not dense.
template <class T>
void copy_matrix(const TensorView<const T, 2>& from, const TensorView<T, 2>& to) {
  const auto& guide = from.has_dense_rows() ? to.strides() : from.strides();
  const bool down = std::abs(guide[0]) < std::abs(guide[1]);
  const auto read = down ? from.transpose(0, 1) : from;
  const auto write = down ? to.transpose(0, 1) : to;
  for (Index i = 0; i < read.extent(0); ++i) {
    for (Index j = 0; j < read.extent(1); ++j) write(i, j) = read(i, j);
  }
}

/// row(b, l, from, to) for every row of x (B, L, E) and y (B, L, E), with elements next to each other: rows of other
/// strides pass through a copy, several at a time, since column-major rows share cache lines. `to` may be `from`.
/// Rows are independent and split over the executor.
template <class T, class Row>
void transform_rows(const TensorView<const T, 3>& x, const TensorView<T, 3>& y, Context& context, Row&& row) {
  constexpr Index group = 16;
  const Index length = x.extent(1), width = x.extent(2);
  const bool read_copy = !x.has_dense_rows(), write_copy = !y.has_dense_rows();
  const Workspace::Frame frame(context.workspace());
  const Index workers = read_copy || write_copy ? context.executor().concurrency() : 0;
  const auto scratch = context.workspace().tensor<T, 3>({workers, group, width});
  parallel_for_rows(context, x.extent(0) * length, width, [&](Index first, Index last, int worker) {
    for (Index r = first, count; r < last; r += count) {
      const Index b = r / length, l = r % length;
      count = std::min({group, last - r, length - l});
      const TensorView<const T, 2> from(x[b][l].data(), {count, width}, {x.stride(1), x.stride(2)});
      const TensorView<T, 2> to(y[b][l].data(), {count, width}, {y.stride(1), y.stride(2)});
      const TensorView<T, 2> rows(scratch[worker].data(), {count, width});
      if (read_copy) copy_matrix(from, rows);
      for (Index i = 0; i < count; ++i) {
        row(b, l + i, read_copy ? rows[i].data() : from[i].data(), write_copy ? rows[i].data() : to[i].data());
      }
      if (write_copy) copy_matrix<T>(rows, to);
    }
  });
}

/// The cut of rows for sums over them: each block is summed by itself, then the blocks' sums in their order. The cut
/// depends on the extents alone.
struct RowBlocks {
  Index rows, length, count;

  static RowBlocks of(Index rows, Index width) {
    const Index length = std::clamp<Index>(16384 / std::max<Index>(1, width), 16, 1024);
    return {rows, length, (rows + length - 1) / length};
  }
  Index begin(Index block) const { return block * length; }
  Index end(Index block) const { return std::min(rows, (block + 1) * length); }

  /// f(block, worker) for every block, on the executor where there are several.
  template <class F>
  void for_each(Context& context, F&& f) const {
    parallel_for_each(context.executor().concurrency() == 1 ? nullptr : &context.executor(), count, f);
  }
};

/// Rows of a (B, L, E) view as elements next to each other. Where its rows are not dense, some rows at a time pass
/// through a copy, one for each worker; the memory is the caller's frame's.
template <class T>
class DenseRows {
 public:
  static constexpr Index kGroup = 16;

  /// A view without data gives null rows.
  DenseRows(const TensorView<T, 3>& view, Context& context) : view_(view), copies_(!view.has_dense_rows()) {
    if (!copies_ || !view.data()) return;
    scratch_ =
        context.workspace().template tensor<Element, 3>({context.executor().concurrency(), kGroup, view.extent(2)});
  }
  /// Takes up rows l, ..., l + count - 1 of sample b, to be read.
  void load(Index b, Index l, Index count, int worker) const {
    if (view_.data() && copies_) copy_matrix<Element>(view_[b].slice(0, l, count), scratch_[worker].slice(0, 0, count));
  }
  /// Row l + i of the rows that were taken up.
  auto row(Index b, Index l, Index i, int worker) const {
    using Pointer = std::conditional_t<std::is_const_v<T>, const Element*, Element*>;
    if (!view_.data()) return Pointer(nullptr);
    return copies_ ? Pointer(scratch_[worker][i].data()) : Pointer(view_[b][l + i].data());
  }
  /// Puts rows back that were written.
  void store(Index b, Index l, Index count, int worker) const {
    if (!view_.data() || !copies_) return;
    copy_matrix<Element>(scratch_[worker].slice(0, 0, count), view_[b].slice(0, l, count));
  }

 private:
  using Element = std::remove_const_t<T>;
  TensorView<T, 3> view_;
  bool copies_;
  TensorView<Element, 3> scratch_;
};

/// row(block, r, x, dy, dx) for every row r = b·L + l of x, dy and dx, (B, L, E) each, with elements next to each
/// other. Rows of one block come in their order, in one thread. dx may be dy; without data its rows are null.
template <class T, class Row>
void backward_rows(const RowBlocks& blocks, const TensorView<const T, 3>& x, const TensorView<const T, 3>& dy,
                   const TensorView<T, 3>& dx, Context& context, Row&& row) {
  const Workspace::Frame frame(context.workspace());
  const DenseRows<const T> xs(x, context), dys(dy, context);
  const DenseRows<T> dxs(dx, context);
  const Index length = x.extent(1);
  blocks.for_each(context, [&](Index block, int worker) {
    for (Index r = blocks.begin(block), count; r < blocks.end(block); r += count) {
      const Index b = r / length, l = r % length;
      count = std::min({DenseRows<T>::kGroup, blocks.end(block) - r, length - l});
      xs.load(b, l, count, worker);
      dys.load(b, l, count, worker);
      for (Index i = 0; i < count; ++i) {
        row(block, r + i, xs.row(b, l, i, worker), dys.row(b, l, i, worker), dxs.row(b, l, i, worker));
      }
      dxs.store(b, l, count, worker);
    }
  });
}

/// to[e] += sum over i of parts(i, e), in the order of i; every element by itself, so that threads change nothing.
template <class T, class A>
void add_row_sums(const TensorView<const A, 2>& parts, T* to, Context& context) {
  const Index n = parts.extent(0), width = parts.extent(1);
  constexpr Index strip = 4 * Vec<A>::size;
  parallel_for_rows(context, (width + strip - 1) / strip, n * strip, [&](Index first, Index last, int) {
    for (Index e = first * strip; e < std::min(width, last * strip); e += Vec<A>::size) {
      const Index lanes = width - e;
      Vec<A> total = A(0);
      for (Index i = 0; i < n; ++i) total = total + load_lanes(parts[i].data() + e, lanes);
      store_lanes<T>(load_lanes(to + e, lanes) + total, to + e, lanes);
    }
  });
}

/// to[e] += sum over the rows of x (rows, E) of any strides: the gradient of a bias.
template <class T>
void add_column_sums(const TensorView<const T, 3>& x, T* to, Context& context) {
  using A = accumulate_t<T>;
  const Index width = x.extent(2);
  const RowBlocks blocks = RowBlocks::of(x.extent(0) * x.extent(1), width);
  const Workspace::Frame frame(context.workspace());
  const auto sums = context.workspace().template tensor<A, 2>({blocks.count, width});
  std::fill_n(sums.data(), sums.size(), A(0));
  const DenseRows<const T> rows(x, context);
  const Index length = x.extent(1);
  blocks.for_each(context, [&](Index block, int worker) {
    A* sum = sums[block].data();
    for (Index r = blocks.begin(block), count; r < blocks.end(block); r += count) {
      const Index b = r / length, l = r % length;
      count = std::min({DenseRows<const T>::kGroup, blocks.end(block) - r, length - l});
      rows.load(b, l, count, worker);
      for (Index i = 0; i < count; ++i) {
        const T* from = rows.row(b, l, i, worker);
        for (Index e = 0; e < width; e += Vec<A>::size) {
          store_lanes<A>(load_lanes(sum + e, width - e) + load_lanes(from + e, width - e), sum + e, width - e);
        }
      }
    }
  });
  add_row_sums<T, A>(sums, to, context);
}

/// table(row(b, l), e) += factor · dy(b, l, e) for every token in turn; a negative row is left out. Threads share the
/// columns, so that tokens of one row are added in their order at any thread count.
template <class T, class Row>
void scatter_add(const TensorView<const T, 3>& dy, accumulate_t<T> factor, const TensorView<T, 2>& table,
                 Context& context, Row&& row) {
  using A = accumulate_t<T>;
  using V = Vec<A>;
  constexpr Index strip = 4 * V::size;
  const Index width = dy.extent(2), tokens = dy.extent(0) * dy.extent(1);
  parallel_for_rows(context, (width + strip - 1) / strip, tokens * strip, [&](Index first, Index last, int) {
    const Index begin = first * strip, end = std::min(width, last * strip);
    for (Index b = 0; b < dy.extent(0); ++b) {
      for (Index l = 0; l < dy.extent(1); ++l) {
        const Index at = row(b, l);
        if (at < 0) continue;
        const TensorView<const T, 1> from = dy[b][l];
        T* to = table[at].data();
        if (dy.has_dense_rows()) {
          for (Index e = begin; e < end; e += V::size) {
            const V sum = fma(V(factor), load_lanes(from.data() + e, end - e), load_lanes(to + e, end - e));
            store_lanes<T>(sum, to + e, end - e);
          }
        } else {
          for (Index e = begin; e < end; e += V::size) {
            T lanes[V::size];
            const Index count = std::min<Index>(V::size, end - e);
            for (Index i = 0; i < count; ++i) lanes[i] = from(e + i);
            const V sum = fma(V(factor), load_lanes(lanes, count), load_lanes(to + e, count));
            store_lanes<T>(sum, to + e, count);
          }
        }
      }
    }
  });
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
