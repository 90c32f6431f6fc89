// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// What the backwards of all layers share: memory that a Cache keeps between steps, the checks at a backward's
/// boundary, and sums over rows.
///
/// The protocol of training. Beside forward(x, y, context) a layer has
///   struct Cache                                  what the backward needs of a forward; one for each place of use
///   forward(x, y, cache, context) const           the bits of forward() without a cache
///   backward(dy, dx, cache, context)              adds to the gradients of the parameters and writes dx
/// A cache borrows the inputs of its forward: they must live, unchanged, until the backward, so y can't take their
/// memory. dy, dx have the extents of y, x, and any strides. A dx without data is not computed: the input needs no
/// gradient. A cache keeps its memory, and a backward called again with the same cache gives the same gradients again.
///
/// Sums over rows (the gradient of a bias, of a norm's weight) are cut by the extents alone, never by the number of
/// threads: gradients have the same bits for any executor.

#include <algorithm>
#include <string_view>
#include <type_traits>

#include <heed/core/buffer.hpp>
#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/core/scalar.hpp>
#include <heed/core/simd.hpp>
#include <heed/core/tensor.hpp>
#include <heed/core/workspace.hpp>
#include <heed/nn/layer.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

using heed::Buffer;

/// The boundary check of a backward: x as the cache holds it, y's extents, dy and dx. Throws ShapeError when dy or dx
/// don't fit the forward, ValueError when dx shares memory with dy (unless in_place allows it to be dy) or with x.
template <class T>
void check_backward(std::string_view name, const TensorView<const T, 3>& x, const Extents<3>& y,
                    const TensorView<const T, 3>& dy, const TensorView<T, 3>& dx,
                    InPlace in_place = InPlace::Forbidden) {
  HEED_CHECK(dy.extents() == y, ShapeError, name, ": dy ", dy.extents(), " does not fit the y ", y,
             " of the forward with this cache");
  if (!dx.data()) return;
  HEED_CHECK(dx.extents() == x.extents(), ShapeError, name, ": dx ", dx.extents(), " does not fit the x ", x.extents(),
             " of the forward with this cache; give a view without data where no dx is needed");
  const bool same = dy.data() == dx.data() && dy.strides() == dx.strides();
  HEED_CHECK((in_place == InPlace::Allowed && same) || !may_overlap(dy, dx), ValueError, name,
             ": dx shares memory with dy; give it memory of its own");
  HEED_CHECK(!may_overlap(x, dx), ValueError, name, ": dx shares memory with x; give it memory of its own");
}

/// A residual that is added to dx must fit it. Without data, and where no dx is wanted, there is nothing to add.
template <class T>
void check_backward_residual(std::string_view name, const TensorView<const T, 3>& residual,
                             const TensorView<T, 3>& dx) {
  if (!residual.data() || !dx.data()) return;
  HEED_CHECK(residual.extents() == dx.extents(), ShapeError, name, ": residual ", residual.extents(),
             " does not fit dx ", dx.extents(), "; they are added element by element");
}

/// How rows are cut for sums over them: each block is summed by itself, then the blocks' sums in their order. The cut
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
    if (context.executor().concurrency() == 1 || count <= 1) {
      for (Index block = 0; block < count; ++block) f(block, 0);
    } else {
      context.executor().parallel_for(static_cast<int>(count), [&](int block, int worker) { f(Index{block}, worker); });
    }
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
