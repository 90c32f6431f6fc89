// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The register tile: the one loop in which products are computed.

#include <algorithm>
#include <array>
#include <utility>

#include <heed/core/activation.hpp>
#include <heed/core/config.hpp>
#include <heed/core/gemm/epilogue.hpp>
#include <heed/core/gemm/tile_shape.hpp>
#include <heed/core/isa.hpp>
#include <heed/core/simd.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

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
