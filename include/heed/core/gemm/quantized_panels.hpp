// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Panels of weights in few bits: the layout, the register tile that multiplies them in place, and their
/// expansion to panels of float.
///
/// A panel holds kPanelWidth<float> columns of B, 32 steps of the depth after another: their factors d, one for each
/// column, in Q4_1 their smallest numbers m, then the codes. Codes of 8 and 4 bits are packed in words of 32 bits, one
/// for each column, that hold 4 or 8 steps: a word is expanded by shifts alone, on any machine.
///
/// d·q is exact in float, so an expanded weight is rounded at most once, and the sums are those of gemm, in the same
/// order: the product has the same bits as one with the weights in float.

#include <heed/core/gemm/driver.hpp>
#include <heed/core/weight_format.hpp>

HEED_NAMESPACE_BEGIN

/// Panels of a quantized matrix B (depth, columns). Borrowed.
struct QuantizedPanels {
  WeightFormat format;      ///< of all panels
  const std::byte* panels;  ///< the first panel
  Index depth;              ///< k
  Index columns;            ///< n
};

namespace detail {

/// Steps of the depth that a word holds; 0 in the 16-bit formats.
constexpr int steps_per_word(WeightFormat format) {
  return format == WeightFormat::Q8_0 ? 4 : format == WeightFormat::Q4_0 || format == WeightFormat::Q4_1 ? 8 : 0;
}
/// Halves before the codes of a column.
constexpr Index header_halves(WeightFormat format) {
  return format == WeightFormat::Q4_1 ? 2 : steps_per_word(format) > 0 ? 1 : 0;
}
/// Bytes of 32 steps of a panel.
constexpr Index group_bytes(WeightFormat format) {
  const Index codes = steps_per_word(format) > 0 ? 4 * kBlock / steps_per_word(format) : 2 * kBlock;
  return kPanelWidth<float> * (2 * header_halves(format) + codes);
}
constexpr Index panel_bytes(WeightFormat format, Index depth) {
  return (depth + kBlock - 1) / kBlock * group_bytes(format);
}

/// Puts a block into column `column` of a group.
inline void write_group(WeightFormat format, const WeightBlock& block, std::byte* group, Index column) {
  constexpr Index width = kPanelWidth<float>;
  const auto put = [&](Index offset, const auto& value) { std::memcpy(group + offset, &value, sizeof value); };
  const Index header = header_halves(format);
  if (header > 0) put(2 * column, block.d);
  if (header > 1) put(2 * (width + column), block.m);
  const Index first = 2 * header * width;
  const int steps = steps_per_word(format), bits = steps > 0 ? 32 / steps : 16;
  if (steps == 0) {
    for (Index i = 0; i < kBlock; ++i) put(first + 2 * (i * width + column), block.codes[static_cast<std::size_t>(i)]);
    return;
  }
  for (Index word = 0; word < kBlock / steps; ++word) {
    std::uint32_t packed = 0;
    for (int i = 0; i < steps; ++i) {
      const auto code = static_cast<std::uint32_t>(block.codes[static_cast<std::size_t>(word * steps + i)]);
      packed |= (code & ((1u << bits) - 1u)) << (bits * i);
    }
    put(first + 4 * (word * width + column), packed);
  }
}
/// The block in column `column` of a group.
inline WeightBlock read_group(WeightFormat format, const std::byte* group, Index column) {
  constexpr Index width = kPanelWidth<float>;
  WeightBlock block;
  const Index header = header_halves(format);
  if (header > 0) block.d = half_at(group + 2 * column);
  if (header > 1) block.m = half_at(group + 2 * (width + column));
  const std::byte* first = group + 2 * header * width;
  const int steps = steps_per_word(format);
  for (Index i = 0; i < kBlock; ++i) {
    std::int16_t& code = block.codes[static_cast<std::size_t>(i)];
    if (steps == 0) {
      std::memcpy(&code, first + 2 * (i * width + column), sizeof code);
      continue;
    }
    std::uint32_t word;
    std::memcpy(&word, first + 4 * (i / steps * width + column), sizeof word);
    const std::uint32_t shifted = word >> (32 / steps * (i % steps));
    code = steps == 4 ? signed_byte(shifted) : static_cast<std::int16_t>(shifted & 15u);
  }
  return block;
}

/// 32 steps of one or several panels, `panel_stride` bytes apart, expanded step by step.
template <WeightFormat Format, int Panels>
class PanelGroup {
  using V = Vec<float>;
  static constexpr int kOfPanel = kIsa.product_vectors, kVectors = Panels * kOfPanel, kSteps = steps_per_word(Format);
  const std::byte* codes_;
  Index panel_stride_;
  V d_[kVectors], m_[kVectors];

 public:
  HEED_ALWAYS_INLINE PanelGroup(const std::byte* group, Index panel_stride)
      : codes_(group + 2 * header_halves(Format) * kPanelWidth<float>), panel_stride_(panel_stride) {
    unroll<kVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA {
      const auto* halves = reinterpret_cast<const half*>(group + v / kOfPanel * panel_stride) + v % kOfPanel * V::size;
      if constexpr (kSteps > 0) d_[v] = load_float(halves);
      if constexpr (Format == WeightFormat::Q4_1) m_[v] = load_float(halves + kPanelWidth<float>);
      if constexpr (Format == WeightFormat::Q4_0) m_[v] = d_[v] * V(-8.f);
    });
  }

  /// f(weights) for steps first, ..., last - 1 in order, with the vectors of weights of all panels.
  template <class F>
  HEED_ALWAYS_INLINE void for_each_step(Index first, Index last, F&& f) const {
    V weights[kVectors];
    if constexpr (kSteps > 0) {
      for (Index i = first; i < last;) {
        // A cut of the depth may begin and end within a word.
        if (i % kSteps != 0 || i + kSteps > last) {
          unroll<kVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA {
            weights[v] = expand(words(i, v), static_cast<int>(i % kSteps), v);
          });
          f(weights);
          ++i;
          continue;
        }
        typename V::Words word[kVectors];
        unroll<kVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { word[v] = words(i, v); });
        unroll<kSteps>([&](auto step) HEED_ALWAYS_INLINE_LAMBDA {
          unroll<kVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { weights[v] = expand(word[v], step, v); });
          f(weights);
        });
        i += kSteps;
      }
    } else {
      using Narrow = std::conditional_t<Format == WeightFormat::Float16, half, bfloat16>;
      for (Index i = first; i < last; ++i) {
        unroll<kVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { weights[v] = load_float(codes<Narrow>(i, v)); });
        f(weights);
      }
    }
  }

 private:
  /// The codes of row i of a group, for the columns of vector v.
  template <class Code>
  HEED_ALWAYS_INLINE const Code* codes(Index i, int v) const {
    return reinterpret_cast<const Code*>(codes_ + v / kOfPanel * panel_stride_) + i * kPanelWidth<float> +
           v % kOfPanel * V::size;
  }
  HEED_ALWAYS_INLINE typename V::Words words(Index i, int v) const {
    return V::load_words(codes<std::uint32_t>(i / kSteps, v));
  }
  HEED_ALWAYS_INLINE V expand(const typename V::Words& word, int step, int v) const {
    if constexpr (Format == WeightFormat::Q8_0)
      return float_of_bytes(word, step) * d_[v];
    else
      return fma(float_of_nibbles(word, step), d_[v], m_[v]);
  }
};

/// Bytes of a panel that are fetched ahead.
inline constexpr Index kPrefetchDistance = 4096;

/// The arguments of a tile.
struct QuantizedTask {
  const float* a;          // packed, depth × rows
  const std::byte* panel;  // the first
  Index panel_stride;      // bytes from one panel to the next
  Index first, depth;      // steps first, ..., first + depth - 1 of the panels
  float* sums;             // panels × rows × kPanelWidth
};

/// The sums of Rows × (Panels·kPanelWidth) elements over one depth block. A sum takes one step after the other, as in
/// multiply_tile().
template <WeightFormat Format, int Rows, int Panels>
HEED_NOINLINE void multiply_quantized(const QuantizedTask& task) {
  using V = Vec<float>;
  constexpr int vectors = kIsa.product_vectors, count = Panels * Rows * vectors;
  // Vectors within rows within panels, as in multiply_tile().
  constexpr auto row = [](int n) { return n / vectors % Rows; };
  constexpr auto vector = [](int n) { return n / vectors / Rows * vectors + n % vectors; };
  V sum[count];
  unroll<count>([&](auto n) HEED_ALWAYS_INLINE_LAMBDA { sum[n] = V(0.f); });
  const float* a = task.a;
  const Index last = task.first + task.depth;
  for (Index k = task.first; k < last;) {
    const Index group = k / kBlock, begin = group * kBlock, end = std::min(begin + kBlock, last);
    const std::byte* const codes = task.panel + group * group_bytes(Format);
    // Panels follow each other, so this reaches into the next one.
    unroll<Panels>([&](auto p) HEED_ALWAYS_INLINE_LAMBDA {
      prefetch(codes + p * task.panel_stride + kPrefetchDistance, group_bytes(Format));
    });
    const PanelGroup<Format, Panels> steps(codes, task.panel_stride);
    steps.for_each_step(k - begin, end - begin, [&](const auto& weights) HEED_ALWAYS_INLINE_LAMBDA {
      unroll<count>([&](auto n) HEED_ALWAYS_INLINE_LAMBDA {
        sum[n] = fma(V::broadcast(a + row(n)), weights[vector(n)], sum[n]);
      });
      a += Rows;
    });
    k = end;
  }
  unroll<count>([&](auto n) HEED_ALWAYS_INLINE_LAMBDA { sum[n].store(task.sums + n * V::size); });
}

/// A panel as gemm reads it, depth × kPanelWidth.
template <WeightFormat Format>
HEED_NOINLINE void expand_panel(const std::byte* panel, Index depth, float* to) {
  using V = Vec<float>;
  for (Index k = 0; k < depth; k += kBlock) {
    const PanelGroup<Format, 1> steps(panel + k / kBlock * group_bytes(Format), 0);
    steps.for_each_step(0, std::min(kBlock, depth - k), [&](const auto& weights) HEED_ALWAYS_INLINE_LAMBDA {
      unroll<kIsa.product_vectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { weights[v].store(to + v * V::size); });
      to += kPanelWidth<float>;
    });
  }
}

/// Panels that a tile of one row takes at once: a row alone would wait for its few accumulators.
inline constexpr Index kPanelsOfOneRow = 2;

/// The compiled functions of a format.
struct QuantizedKernels {
  using Tile = void (*)(const QuantizedTask&);
  Tile one_row;   // of kPanelsOfOneRow panels
  Tile tiles[3];  // of 1, 2 and 4 rows
  void (*expand)(const std::byte* panel, Index depth, float* to);

  template <WeightFormat Format>
  static constexpr QuantizedKernels of() {
    return {&multiply_quantized<Format, 1, kPanelsOfOneRow>,
            {&multiply_quantized<Format, 1, 1>, &multiply_quantized<Format, 2, 1>, &multiply_quantized<Format, 4, 1>},
            &expand_panel<Format>};
  }
  static const QuantizedKernels& get(WeightFormat format) {
    static constexpr QuantizedKernels kernels[] = {of<WeightFormat::Float16>(), of<WeightFormat::BFloat16>(),
                                                   of<WeightFormat::Q8_0>(), of<WeightFormat::Q4_0>(),
                                                   of<WeightFormat::Q4_1>()};
    return kernels[static_cast<std::size_t>(format)];
  }
};

/// The most rows that a panel is multiplied with in place; for more, its expansion to float pays.
inline constexpr Index kFewRows = 16;

/// The product of few rows with panels in place: memory is read once, and threads share the panels.
class QuantizedProduct {
 public:
  /// Scratch memory is taken from the context's workspace and belongs to the caller's frame.
  QuantizedProduct(const TensorView<const float, 2>& a, const QuantizedPanels& b, const TensorView<float, 2>& c,
                   const Epilogue<float>& epilogue, Context& context)
      : b_(b),
        c_(c),
        epilogue_(epilogue),
        blocks_(DepthBlocks::of<float>(b.depth)),
        packed_(context.workspace().take<float>((c.extent(0) + 1) * b.depth)) {
    for (Index row = 0; row < c.extent(0); row += kTileRows) {
      for (Index d = 0; d < blocks_.count; ++d) {
        interleave(&a(row, blocks_.begin(d)), a.stride(0), a.stride(1), rows_at(row), blocks_.length(d), height_at(row),
                   packed(row, d));
      }
    }
  }

  void run(Context& context) const {
    const Index panels = panel_count<float>(b_.columns);
    // Below this many multiplications waking a thread costs more than it brings.
    constexpr Index worth_sharing = 100'000;
    Executor* const executor = c_.size() * b_.depth >= worth_sharing ? &context.executor() : nullptr;
    const Index ranges = executor ? std::clamp<Index>(8 * executor->concurrency(), 1, panels) : 1;
    parallel_for_each(executor, ranges, [&](Index range, int) {
      const Index end = part_begin(panels, ranges, range + 1);
      for (Index p = part_begin(panels, ranges, range), count; p < end; p += count) {
        count = c_.extent(0) == 1 && p + kPanelsOfOneRow <= end ? kPanelsOfOneRow : 1;
        multiply(p, count);
      }
    });
  }

 private:
  static constexpr Index kTileRows = 4;
  /// The rows of the tile that begins at `row`, and the rows that it computes: 1, 2 or 4.
  Index rows_at(Index row) const { return std::min(kTileRows, c_.extent(0) - row); }
  Index height_at(Index row) const { return rows_at(row) == 3 ? 4 : rows_at(row); }
  float* packed(Index row, Index d) const { return packed_ + row * b_.depth + height_at(row) * blocks_.begin(d); }

  void multiply(Index panel, Index count) const {
    constexpr Index width = kPanelWidth<float>;
    const QuantizedKernels& kernels = QuantizedKernels::get(b_.format);
    const Index stride = panel_bytes(b_.format, b_.depth);
    alignas(64) float sums[kTileRows * width];
    static_assert(kPanelsOfOneRow <= kTileRows);
    for (Index d = 0; d < blocks_.count; ++d) {
      const Output<float> to{c_, epilogue_, d > 0 || epilogue_.accumulate, d + 1 == blocks_.count};
      for (Index row = 0; row < c_.extent(0); row += kTileRows) {
        const QuantizedKernels::Tile tile = count > 1 ? kernels.one_row : kernels.tiles[height_at(row) / 2];
        tile({packed(row, d), b_.panels + panel * stride, stride, blocks_.begin(d), blocks_.length(d), sums});
        for (Index p = 0; p < count; ++p) {
          const Index column = (panel + p) * width;
          finish_tile<float>(to, sums + p * width, row, rows_at(row), column, std::min(width, b_.columns - column));
        }
      }
    }
  }

  QuantizedPanels b_;
  TensorView<float, 2> c_;
  Epilogue<float> epilogue_;
  DepthBlocks blocks_;
  float* packed_;
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
