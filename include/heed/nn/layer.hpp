// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// What all layers share: the convenience call y = layer(x), the checks at a layer's boundary, and the walk over
/// independent rows, split over the executor.
///
/// The protocol. A layer has
///   y = layer(x), layer(x, context)     x any TensorLike; (L, E) plain Eigen gives an Eigen matrix, (B, L, E) a Tensor
///   forward(x, y, context) const        on views (B, L, E); allocates nothing once the context is warm
///   output_width(E)                     the width of y for an x of width E
///   visit(prefix, f)                    f(name, parameter), names as in PyTorch, in a stable order
/// and shows y to the context's observer when it is done. Const calls may run from many threads, each with a Context.

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <type_traits>
#include <utility>

#include <heed/core/arguments.hpp>
#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/core/parallel.hpp>
#include <heed/core/scalar.hpp>
#include <heed/core/simd.hpp>
#include <heed/core/tensor.hpp>
#include <heed/core/workspace.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// The convenience call of any layer, T the element type of the result: inputs become views (B, L, width), expressions
/// are evaluated once into the workspace, and forward(x, more..., y) fills a new result (B, L, width) that has the
/// batch and length of x. The result has the rank of x; for plain Eigen it is a matrix.
template <class T, class Forward, TensorLike X, TensorLike... More>
result_t<X, T> apply(Index width, Context& context, Forward&& forward, const X& x, const More&... more) {
  const Workspace::Frame frame(context.workspace());
  const auto x_view = read_as<3>(x, context.workspace());
  auto y = make_result<X, T, 3>(Extents<3>{x_view.extent(0), x_view.extent(1), width});
  forward(x_view, read_as<3>(more, context.workspace())..., write_as<3>(y));
  return y;
}

template <TensorLike X>
Index width_of(const X& x) {
  if constexpr (AnyTensor<X>)
    return x.extent(rank_of_v<X> - 1);
  else
    return x.cols();
}

/// The convenience call of a layer with one input.
template <class Layer, TensorLike X>
auto apply(const Layer& layer, const X& x, Context& context) {
  using T = scalar_of_t<X>;
  static_assert(
      requires(TensorView<const T, 3> in, TensorView<T, 3> out) { layer.forward(in, out, context); },
      "heed: the elements of x are not of the layer's type; cast x, x.cast<float>() for plain Eigen");
  return apply<T>(
      layer.output_width(width_of(x)), context,
      [&](TensorView<const T, 3> in, TensorView<T, 3> out) { layer.forward(in, out, context); }, x);
}

/// Gives a layer with one input its convenience call: y = layer(x) and layer(x, context) for any TensorLike x.
template <class Layer>
class UnaryLayer {
 public:
  template <TensorLike X>
  auto operator()(const X& x, Context& context) const {
    return apply(static_cast<const Layer&>(*this), x, context);
  }
  template <TensorLike X>
  auto operator()(const X& x) const {
    Context context;
    return (*this)(x, context);
  }
};

enum class InPlace { Forbidden, Allowed };

/// The boundary check of a layer with one input: x (B, L, in), y (B, L, out). Throws ShapeError when an extent differs,
/// ValueError when y shares memory with x; InPlace::Allowed accepts y == x, element by element.
template <class T, class U>
void check_layer_shapes(std::string_view name, const TensorView<const T, 3>& x, const TensorView<U, 3>& y, Index in,
                        Index out, InPlace in_place = InPlace::Forbidden) {
  HEED_CHECK(x.extent(2) == in, ShapeError, name, ": x ", x.extents(), " has width ", x.extent(2),
             " but the layer takes ", in);
  HEED_CHECK((y.extents() == Extents<3>{x.extent(0), x.extent(1), out}), ShapeError, name, ": y ", y.extents(),
             " does not fit x ", x.extents(), "; make it ", Extents<3>{x.extent(0), x.extent(1), out});
  const bool same = static_cast<const void*>(x.data()) == y.data() && x.strides() == y.strides();
  HEED_CHECK((in_place == InPlace::Allowed && same) || !may_overlap(x, y), ValueError, name,
             ": y shares memory with x; give it memory of its own");
}

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
  context.executor().parallel_for(static_cast<int>(pieces), [&](int piece, int worker) {
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
  for (Index i = 0; i < std::min<Index>(n, Vec<A>::size); ++i) to[i] = static_cast<T>(lanes[i]);
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

}  // namespace detail

HEED_NAMESPACE_END
