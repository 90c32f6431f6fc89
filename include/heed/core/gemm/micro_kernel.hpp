// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The register tile: the one loop in which products are computed, with its epilogue: bias, activation, residual and
/// accumulation, applied to a product on its way to C.

#include <heed/core/activation.hpp>
#include <heed/core/gemm/packing.hpp>

HEED_NAMESPACE_BEGIN

/// C = activation(A·B + bias) + residual; with accumulate, C = activation(C + A·B + bias) + residual. C has rank 2 in
/// gemm and rank 3, (B, L, out), in Linear, which adds a bias of its own.
template <class T, int Rank = 2>
struct Epilogue {
  /// (n), added to every row; null for none.
  const T* bias = nullptr;
  Activation activation = Activation::None;  ///< applied to each element
  /// With the extents of C and any strides, added after the activation; data null for none.
  TensorView<const T, Rank> residual{};
  /// Adds to what C holds.
  bool accumulate = false;
};

namespace detail {

/// The destination of the sums of one depth block.
template <class T>
struct Output {
  TensorView<T, 2> c;
  Epilogue<T> epilogue;
  /// C holds the sums of earlier depth blocks, or what is to be accumulated on.
  bool add = false;
  /// The last depth block: bias, activation and residual follow.
  bool last = true;

  T* at(Index row, Index column) const { return &c(row, column); }
  /// True when full tiles can go from registers to C: rows are dense and the activation is a single instruction.
  bool from_registers() const {
    const Epilogue<T>& e = epilogue;
    return c.stride(1) == 1 && (!last || ((e.activation == Activation::None || e.activation == Activation::ReLU) &&
                                          (!e.residual.data() || e.residual.stride(1) == 1)));
  }
};

/// Takes sums, `rows` times kPanelWidth, to rows × columns elements of C, for narrow last panels, strided outputs and
/// long activations. Additions are those of the path from registers, in the same order.
template <class T>
HEED_NOINLINE void finish_tile(const Output<T>& to, T* sums, Index row, Index rows, Index column, Index columns) {
  constexpr Index width = kPanelWidth<T>;
  const Epilogue<T>& e = to.epilogue;
  for (Index i = 0; i < rows; ++i) {
    if (to.add) add_row(sums + i * width, to.at(row + i, column), to.c.stride(1), columns);
    if (to.last && e.bias) add_row(sums + i * width, e.bias + column, 1, columns);
  }
  if (to.last) activate(e.activation, sums, rows * width);
  for (Index i = 0; i < rows; ++i) {
    T* from = sums + i * width;
    if (to.last && e.residual.data()) add_row(from, &e.residual(row + i, column), e.residual.stride(1), columns);
    T* c = to.at(row + i, column);
    const Index stride = to.c.stride(1);
    if (stride == 1) {
      std::copy_n(from, columns, c);
    } else {
      for (Index j = 0; j < columns; ++j) c[j * stride] = from[j];
    }
  }
}

/// A product of depth 0: the epilogue of zeros.
template <class T>
void finish_zeros(const Output<T>& to) {
  constexpr Index width = kPanelWidth<T>;
  for (Index row = 0; row < to.c.extent(0); ++row) {
    for (Index column = 0; column < to.c.extent(1); column += width) {
      T sums[width] = {};
      finish_tile<T>(to, sums, row, 1, column, std::min(width, to.c.extent(1) - column));
    }
  }
}

/// What one call of a tile works on.
template <class T>
struct TileTask {
  const T* a;          // packed, depth × rows
  const T* b;          // packed, depth × kPanelWidth
  Index panel_stride;  // from one panel to the next
  Index depth;
  const T* ahead;  // what later tiles read of B: each step of the depth prefetches a little of it
  Index ahead_step;
  const Output<T>* to;
  bool from_registers;
  Index row, column;
};

/// Rows × (Panels·kPanelWidth) elements of C over one depth block. Each sum starts at zero and takes one step of the
/// depth after the other, whatever Rows and Panels are: a row's result does not depend on the rows beside it.
///
/// N counts the accumulators: vectors within rows within panels. Fold expressions keep them in registers at -O2, and
/// compile several times faster than nested lambdas.
template <class T, int Rows, int Panels, int... N>
HEED_ALWAYS_INLINE void multiply_tile(const TileTask<T>& task, std::integer_sequence<int, N...>) {
  using V = Vec<T>;
  constexpr int vectors = kIsa.product_vectors;
  constexpr Index width = kPanelWidth<T>;
  constexpr auto vector = [](int n) { return n % vectors; };
  constexpr auto row = [](int n) { return n / vectors % Rows; };
  constexpr auto panel = [](int n) { return n / vectors / Rows; };
  constexpr auto begins_line = [](int n) { return n % vectors * static_cast<int>(sizeof(V)) % 64 == 0; };
  V sum[] = {(static_cast<void>(N), V(T(0)))...};

  const Output<T>& to = *task.to;
  const bool from_registers = Panels == 1 && task.from_registers && task.column + width <= to.c.extent(1);
  T* const c = to.at(task.row, task.column);
  const Index c_stride = to.c.stride(0);
  if (from_registers) {
    ((begins_line(N) ? __builtin_prefetch(c + row(N) * c_stride + vector(N) * V::size, 1) : void()), ...);
  }

  const T* a = task.a;
  const T* b = task.b;
  const T* ahead = task.ahead;
  const Index panel_stride = task.panel_stride, ahead_step = task.ahead_step;
  for (Index k = task.depth; k > 0; --k) {
    if constexpr (Panels == 1) {
      constexpr int lines = std::max(1, static_cast<int>(width * static_cast<Index>(sizeof(T)) / 64));
      unroll<lines>([&](auto line) HEED_ALWAYS_INLINE_LAMBDA { __builtin_prefetch(ahead + line * 64 / sizeof(T)); });
      ahead += ahead_step;
      V bs[vectors];
      unroll<vectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { bs[v] = V::load_kept(b + v * V::size); });
      ((sum[N] = fma(V::broadcast(a + row(N)), bs[vector(N)], sum[N])), ...);
    } else {
      ((sum[N] = fma(V::broadcast(a + row(N)), V::load(b + panel(N) * panel_stride + vector(N) * V::size), sum[N])),
       ...);
    }
    a += Rows;
    b += width;
  }

  if (from_registers) {
    const Epilogue<T>& e = to.epilogue;
    if (to.add) ((sum[N] = sum[N] + V::load(c + row(N) * c_stride + vector(N) * V::size)), ...);
    if (to.last) {
      if (e.bias) ((sum[N] = sum[N] + V::load(e.bias + task.column + vector(N) * V::size)), ...);
      if (e.activation == Activation::ReLU) ((sum[N] = relu(sum[N])), ...);
      if (e.residual.data()) {
        const T* residual = &e.residual(task.row, task.column);
        const Index stride = e.residual.stride(0);
        ((sum[N] = sum[N] + V::load(residual + row(N) * stride + vector(N) * V::size)), ...);
      }
    }
    (sum[N].store(c + row(N) * c_stride + vector(N) * V::size), ...);
  } else {
    alignas(64) T sums[Panels][Rows * width];
    (sum[N].store(&sums[0][0] + N * V::size), ...);
    for (int p = 0; p < Panels; ++p) {
      const Index column = task.column + p * width;
      finish_tile<T>(to, sums[p], task.row, Rows, column, std::min(width, to.c.extent(1) - column));
    }
  }
}

template <class T, int Rows, int Panels>
HEED_NOINLINE void multiply_tile(const TileTask<T>& task) {
  multiply_tile<T, Rows, Panels>(task, std::make_integer_sequence<int, Panels * Rows * kIsa.product_vectors>{});
}

/// The compiled tiles, by rows and by whether one panel or panels_at_once(rows) are taken.
template <class T>
class Tiles {
  using Tile = void (*)(const TileTask<T>&);
  template <int... I>
  static constexpr std::array<Tile, kIsa.product_rows> of_heights(std::integer_sequence<int, I...>) {
    return {&multiply_tile<T, I + 1, 1>...};
  }
  static constexpr auto kOnePanel = of_heights(std::make_integer_sequence<int, kIsa.product_rows>{});
  static constexpr std::array<Tile, 2> kSeveralPanels = {&multiply_tile<T, 1, panels_at_once(1)>,
                                                         &multiply_tile<T, 2, panels_at_once(2)>};

 public:
  static Tile get(Index rows, bool several_panels) {
    const auto i = static_cast<std::size_t>(rows - 1);
    return several_panels ? kSeveralPanels[i] : kOnePanel[i];
  }
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
