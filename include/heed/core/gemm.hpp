// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Products of matrices with an epilogue: what Linear is made of.
///
/// Every element of C is summed over the depth in one order that depends on the depth alone: a row computed alone, in a
/// batch, with B packed or not, by any number of threads, has the same bits.

#include <heed/core/buffer.hpp>
#include <heed/core/gemm/driver.hpp>
#include <heed/core/gemm/quantized_panels.hpp>

HEED_NAMESPACE_BEGIN

/// Panels of a packed matrix: B (depth, columns). Borrowed.
template <class T>
struct PackedPanels {
  const T* panels;  ///< the first panel
  Index depth;      ///< k
  Index columns;    ///< n
};

/// A matrix B (k, n) laid out for gemm: weights that serve many products are packed once. The layout is that of the
/// instruction set this was compiled for; code for another one, which meets it through a type of the program that both
/// share, throws EnvironmentError unless its panels are as wide.
template <class T>
class PackedMatrix {
 public:
  /// Nothing packed; empty.
  PackedMatrix() = default;
  /// Packs b (k, n) of any strides: a Linear with weight (out, in) passes weight.transpose(0, 1).
  static PackedMatrix pack(std::type_identity_t<TensorView<const T, 2>> b) {
    PackedMatrix packed;
    packed.depth_ = b.extent(0);
    packed.columns_ = b.extent(1);
    packed.panel_width_ = detail::kPanelWidth<T>;
    const Index panels = detail::panel_count<T>(packed.columns_);
    packed.panels_.template view<3>({panels, packed.depth_, detail::kPanelWidth<T>});
    for (Index p = 0; p < panels; ++p) detail::pack_panel(b, p, packed.panels_.data());
    return packed;
  }

  /// k
  Index depth() const { return depth_; }
  /// n
  Index columns() const { return columns_; }
  bool empty() const { return panels_.size() == 0; }  ///< true before the first pack
  /// Memory held.
  std::size_t bytes() const { return panels_.bytes(); }
  /// The first panel.
  const T* panels() const {
    HEED_CHECK(panel_width_ == detail::kPanelWidth<T> || empty(), EnvironmentError,
               "heed::PackedMatrix: the weight was packed in panels of ", panel_width_, " columns, but code for ",
               isa(), " reads panels of ", detail::kPanelWidth<T>,
               "; call pack() and the layer in translation units with the same -m flags");
    return panels_.data();
  }
  /// All of it.
  operator PackedPanels<T>() const { return {panels(), depth_, columns_}; }
  /// Column n of B, depth() numbers; unchecked.
  void read_column(Index n, T* to) const {
    constexpr Index width = detail::kPanelWidth<T>;
    const T* from = panels() + n / width * width * depth_ + n % width;
    for (Index k = 0; k < depth_; ++k) to[k] = from[k * width];
  }
  /// True when slice() can start at this column: panels are read whole.
  static bool can_slice_at(Index column) { return column % detail::kPanelWidth<T> == 0; }
  /// `count` columns from `first` on, where can_slice_at(first); unchecked.
  PackedPanels<T> slice(Index first, Index count) const { return {panels() + first * depth_, depth_, count}; }

 private:
  Index depth_ = 0, columns_ = 0, panel_width_ = 0;
  detail::CopiedBuffer<T> panels_;
};

namespace detail {

/// Throws unless a (m, depth), c (m, columns) and the epilogue fit, and c neither repeats an element nor overlaps what
/// is read.
template <class T>
void check_product(const TensorView<const T, 2>& a, Index depth, Index columns, const TensorView<T, 2>& c,
                   const Epilogue<T>& epilogue) {
  HEED_CHECK(a.extent(1) == depth, ShapeError, "heed::gemm: a has extents ", a.extents(), " but b has k = ", depth,
             " rows; the columns of a and the rows of b must agree");
  HEED_CHECK(c.extent(0) == a.extent(0) && c.extent(1) == columns, ShapeError, "heed::gemm: c has extents ",
             c.extents(), " but a·b has ", Extents<2>{a.extent(0), columns});
  for (int d = 0; d < 2; ++d) {
    HEED_CHECK(c.stride(d) != 0 || c.extent(d) <= 1 || c.empty(), ShapeError, "heed::gemm: c has extents ", c.extents(),
               " and strides ", c.strides(), "; a stride of 0 would write elements over each other");
  }
  HEED_CHECK(!may_overlap(a, c), ValueError, "heed::gemm: c must not overlap a; write to other memory");
  const TensorView<const T, 2>& residual = epilogue.residual;
  if (residual.data()) {
    HEED_CHECK(residual.extents() == c.extents(), ShapeError, "heed::gemm: residual has extents ", residual.extents(),
               " but c has ", c.extents());
    HEED_CHECK(!may_overlap(residual, c), ValueError,
               "heed::gemm: c must not overlap residual; to add to what c holds, set accumulate");
  }
}

/// The product on panels, with checked arguments.
template <class T>
void multiply(const Product<T>& product, Context& context) {
  const Workspace::Frame frame(context.workspace());
  Multiplication<T>(product, context).run();
}

/// A product with panels that make(first, count, panels, executor) writes, a few at a time.
template <class T, class Make>
void multiply_panels(const TensorView<const T, 2>& a, Index columns, const TensorView<T, 2>& c,
                     const Epilogue<T>& epilogue, Context& context, Make&& make) {
  // Few rows use a panel once: it should still be in the first caches. Many rows also read a again for every group of
  // panels.
  const Index most_bytes = a.extent(0) <= kIsa.product_rows ? Index{1} << 18 : Index{1} << 22;
  const Index panel_size = a.extent(1) * kPanelWidth<T>, all = panel_count<T>(columns);
  const Index group = std::clamp<Index>(most_bytes / (panel_size * static_cast<Index>(sizeof(T))), 1, all);
  T* panels = context.workspace().template take<T>(group * panel_size);
  Executor* executor = group * panel_size >= 100'000 ? &context.executor() : nullptr;
  for (Index first = 0; first < all; first += group) {
    const Index column = first * kPanelWidth<T>, count = std::min(group * kPanelWidth<T>, columns - column);
    make(first, panel_count<T>(count), panels, executor);
    Epilogue<T> e = epilogue;
    if (e.bias) e.bias += column;
    if (e.residual.data()) e.residual = e.residual.slice(1, column, count);
    multiply(Product<T>{a, panels, c.slice(1, column, count), e}, context);
  }
}

}  // namespace detail

/// c (m, n) = activation(a (m, k) · b (k, n) + bias) + residual, see Epilogue; all of any strides, also negative ones,
/// and of any extents: with k = 0 the product is 0. T is float or double.
/// b is packed on the way, a few panels at a time. Throws ShapeError when the extents don't fit, ValueError when c
/// overlaps a, b or the residual.
template <class T>
void gemm(std::type_identity_t<TensorView<const T, 2>> a, std::type_identity_t<TensorView<const T, 2>> b,
          TensorView<T, 2> c, const std::type_identity_t<Epilogue<T>>& epilogue, Context& context) {
  using namespace detail;
  check_product(a, b.extent(0), b.extent(1), c, epilogue);
  HEED_CHECK(!may_overlap(b, c), ValueError, "heed::gemm: c must not overlap b; write to other memory");
  const Index n = c.extent(1);
  if (c.empty()) return;
  if (b.extent(0) == 0) return finish_zeros(Output<T>{c, epilogue, epilogue.accumulate});
  const Workspace::Frame frame(context.workspace());
  multiply_panels<T>(a, n, c, epilogue, context, [&](Index first, Index count, T* panels, Executor* executor) {
    const TensorView<const T, 2> part =
        b.slice(1, first * kPanelWidth<T>, std::min(count * kPanelWidth<T>, n - first * kPanelWidth<T>));
    parallel_for_each(executor, count, [&](Index p, int) { pack_panel(part, p, panels); });
  });
}

/// The same with b packed beforehand.
template <class T>
void gemm(std::type_identity_t<TensorView<const T, 2>> a, const std::type_identity_t<PackedPanels<T>>& b,
          TensorView<T, 2> c, const std::type_identity_t<Epilogue<T>>& epilogue, Context& context) {
  using namespace detail;
  check_product(a, b.depth, b.columns, c, epilogue);
  if (c.empty()) return;
  if (b.depth == 0) return finish_zeros(Output<T>{c, epilogue, epilogue.accumulate});
  multiply(Product<T>{a, b.panels, c, epilogue}, context);
}

/// The same with b quantized beforehand: the bits of a product with the weights in float.
inline void gemm(const TensorView<const float, 2>& a, const QuantizedPanels& b, const TensorView<float, 2>& c,
                 const Epilogue<float>& epilogue, Context& context) {
  using namespace detail;
  check_product(a, b.depth, b.columns, c, epilogue);
  if (c.empty()) return;
  if (b.depth == 0) return finish_zeros(Output<float>{c, epilogue, epilogue.accumulate});
  const Workspace::Frame frame(context.workspace());
  if (c.extent(0) <= kFewRows) return QuantizedProduct(a, b, c, epilogue, context).run(context);
  multiply_panels<float>(
      a, b.columns, c, epilogue, context, [&](Index first, Index count, float* panels, Executor* executor) {
        parallel_for_each(executor, count, [&](Index p, int) {
          QuantizedKernels::get(b.format).expand(b.panels + (first + p) * panel_bytes(b.format, b.depth), b.depth,
                                                 panels + p * b.depth * kPanelWidth<float>);
        });
      });
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
