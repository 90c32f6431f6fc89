// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The arithmetic of linear attention's chunks: feature maps, sums over rows, and products of small matrices.

#include <heed/attention/linear/call.hpp>
#include <heed/core/activation.hpp>
#include <heed/core/gemm/micro_kernel.hpp>
#include <heed/core/gemm/packing.hpp>
#include <heed/core/simd.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// phi of n numbers next to each other, in place.
template <class A>
HEED_NOINLINE void apply_features(FeatureMap map, A* values, Index n) {
  if (map == FeatureMap::Relu) return activate(Activation::ReLU, values, n);
  for_each_register(values, n, []<int N>(Vec<A>(&x)[N]) {
    const Vec<A> zero = A(0), one = A(1), high = kLog2E<A>;
    // log2(e) in two parts: e^x is summed up over many keys, and the product's rounding would show.
    const Vec<A> low = A(1.44269504088896340735992468100189214L - static_cast<long double>(kLog2E<A>));
    const Vec<A> lowest = A(sizeof(A) == 4 ? -200 : -2000);  // e^lowest is 0, and unlike -inf it has a product
    Vec<A> e[N], below[N], rest[N];
    unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
      below[i] = max(min(x[i], zero), lowest);
      e[i] = below[i] * high;
      rest[i] = fma(below[i], low, fma(below[i], high, -e[i]));
    });
    exp2_in_place<A, N, true>(e);
    unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
      e[i] = fma(e[i] * rest[i], Vec<A>(kLn2<A>), e[i]);
      x[i] = select(less(zero, x[i]), x[i] + one, e[i]);
    });
  });
}

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
