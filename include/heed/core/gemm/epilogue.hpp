// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Epilogue: bias, activation, residual and accumulation, applied to a product on its way to C.

#include <algorithm>

#include <heed/core/activation.hpp>
#include <heed/core/config.hpp>
#include <heed/core/gemm/tile_shape.hpp>
#include <heed/core/simd.hpp>
#include <heed/core/tensor.hpp>
#include <heed/core/vec_math.hpp>

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

}  // namespace detail

HEED_NAMESPACE_END
