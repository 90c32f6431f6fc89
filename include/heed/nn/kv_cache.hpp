// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// KvCache: the keys and values of earlier tokens, so that a decoder computes only what is new.
///
///   heed::KvCache<float> kv(encoder, {.batch = 3, .capacity = 512});
///   encoder.forward(prompts, heed::Causal{}, y, kv.step(lengths), context);   // (3, L, E), padded on the right
///   encoder.forward(tokens, heed::Causal{}, y, kv, context);                  // (3, 1, E), one more token for each
///
/// A prompt in one call, in pieces or token by token gives the same numbers up to rounding, and a sample in a batch the
/// same bits as alone.

#include <cstring>

#include <heed/nn/any_kv_cache.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// f(b, g, l) for each row of x (B, G, L, D).
template <class X, class F>
void for_each_row(const TensorView<X, 4>& x, F&& f) {
  for (Index b = 0; b < x.extent(0); ++b) {
    for (Index g = 0; g < x.extent(1); ++g) {
      for (Index l = 0; l < x.extent(2); ++l) f(b, g, l);
    }
  }
}
/// Copies `count` rows of head g of x (samples, G, rows, D), which may overlap.
template <class S>
void move_rows(const TensorView<S, 4>& x, Index g, Index from, Index from_row, Index to, Index to_row, Index count) {
  if (count == 0) return;
  std::memmove(&x(to, g, to_row, 0), &x(from, g, from_row, 0),
               static_cast<std::size_t>(count * x.extent(3)) * sizeof(S));
}

/// Rows of keys or values (samples, G, rows, D), stored as S.
template <class S>
class KvRows {
 public:
  explicit KvRows(const Extents<4>& extents) : rows_(memory_.template view<4>(extents)) {}

  std::size_t bytes() const { return memory_.bytes(); }
  template <class T>
  void store(const TensorView<const T, 4>& from, Index sample, Index row) {
    const TensorView<S, 4> to = part(sample, from.extent(0), row, from.extent(2));
    for_each_row(to, [&](Index b, Index g, Index l) {
      for (Index d = 0; d < to.extent(3); ++d) to(b, g, l, d) = stored_as<S>(from(b, g, l, d));
    });
  }
  void copy(Index from, Index from_row, Index to, Index to_row, Index count) {
    for (Index g = 0; g < rows_.extent(1); ++g) move_rows(rows_, g, from, from_row, to, to_row, count);
  }
  /// As attention reads them.
  template <class T>
  TensorView<const S, 4> read(Index sample, Index samples, Index row, Index count, Context&) const {
    return part(sample, samples, row, count);
  }

 private:
  TensorView<S, 4> part(Index sample, Index samples, Index row, Index count) const {
    return rows_.slice(0, sample, samples).slice(2, row, count);
  }

  Buffer<S> memory_;
  TensorView<S, 4> rows_;
};

/// The same in 8 bits: blocks of 32 numbers of a row, each a float factor times integers from -127 to 127.
template <>
class KvRows<std::int8_t> {
 public:
  static constexpr Index kBlock = 32;

  explicit KvRows(const Extents<4>& extents)
      : rows_(memory_.view<4>(extents)),
        factors_(factor_memory_.view<4>({extents[0], extents[1], extents[2], (extents[3] + kBlock - 1) / kBlock})) {}

  std::size_t bytes() const { return memory_.bytes() + factor_memory_.bytes(); }
  template <class T>
  void store(const TensorView<const T, 4>& from, Index sample, Index row) {
    for_each_row(from, [&](Index b, Index g, Index l) {
      for (Index first = 0; first < from.extent(3); first += kBlock) {
        const Index last = std::min(first + kBlock, from.extent(3));
        float most = 0;
        bool finite = true;
        for (Index d = first; d < last; ++d) {
          const float x = static_cast<float>(from(b, g, l, d));
          finite = finite && is_finite(x);
          most = std::max(most, std::abs(x));
        }
        // A number that is not finite must show in every product; the block can't record which one it was.
        const float factor = finite ? most / 127 : std::numeric_limits<float>::quiet_NaN();
        factors_(sample + b, g, row + l, first / kBlock) = factor;
        const float inverse = finite && factor > 0 ? 1 / factor : 0;
        for (Index d = first; d < last; ++d) {
          const float x = finite ? static_cast<float>(from(b, g, l, d)) * inverse : 1;
          rows_(sample + b, g, row + l, d) = static_cast<std::int8_t>(std::lrint(std::clamp(x, -127.f, 127.f)));
        }
      }
    });
  }
  void copy(Index from, Index from_row, Index to, Index to_row, Index count) {
    for (Index g = 0; g < rows_.extent(1); ++g) {
      move_rows(rows_, g, from, from_row, to, to_row, count);
      move_rows(factors_, g, from, from_row, to, to_row, count);
    }
  }
  /// As numbers of T, in the workspace.
  template <class T>
  TensorView<const T, 4> read(Index sample, Index samples, Index row, Index count, Context& context) const {
    const Index width = rows_.extent(3);
    const TensorView<T, 4> to = context.workspace().template tensor<T, 4>({samples, rows_.extent(1), count, width});
    for_each_row(to, [&](Index b, Index g, Index l) {
      const std::int8_t* from = &rows_(sample + b, g, row + l, 0);
      const float* factors = &factors_(sample + b, g, row + l, 0);
      T* out = &to(b, g, l, 0);
      for (Index first = 0; first < width; first += kBlock) {
        const T factor = static_cast<T>(factors[first / kBlock]);
        for (Index d = first; d < std::min(first + kBlock, width); ++d) out[d] = factor * static_cast<T>(from[d]);
      }
    });
    return to;
  }

 private:
  Buffer<std::int8_t> memory_;
  Buffer<float> factor_memory_;
  TensorView<std::int8_t, 4> rows_;
  TensorView<float, 4> factors_;
};

}  // namespace detail

/// AnyKvCache that stores keys and values as S: T itself, half or bfloat16; or std::int8_t, 8 bits with a factor for 32
/// numbers of a row each.
template <class T, class S = T>
class KvCache final : public AnyKvCache<T> {
  static_assert(StorageFor<S, T> || std::is_same_v<S, std::int8_t>,
                "heed::KvCache: keys and values are stored as T, half, bfloat16 or std::int8_t");
  using typename AnyKvCache<T>::Row;

 public:
  /// For a layer, a stack or a model with kv_shape(). Throws ShapeError unless the options give a capacity or a window.
  template <class Model>
  requires(requires(const Model& model) {
    { model.kv_shape() } -> std::convertible_to<KvShape>;
  })
  KvCache(const Model& model, const KvCacheOptions& options) : KvCache(model.kv_shape(), options) {}
  /// For layers of this shape.
  KvCache(const KvShape& shape, const KvCacheOptions& options)
      : AnyKvCache<T>(shape, options),
        keys_({shape.num_layers * options.batch, shape.num_kv_heads, this->rows(), shape.head_dim}),
        values_({shape.num_layers * options.batch, shape.num_kv_heads, this->rows(), shape.value_head_dim}) {}

  std::size_t bytes() const override { return keys_.bytes() + values_.bytes(); }

 private:
  Index at(Index layer, Index sample) const { return layer * this->batch() + sample; }

  void write_rows(Index layer, Index b, Index row, const TensorView<const T, 4>& k,
                  const TensorView<const T, 4>& v) override {
    keys_.template store<T>(k, at(layer, b), row);
    values_.template store<T>(v, at(layer, b), row);
  }
  void copy_rows(Index layer, Row from, Row to, Index count) override {
    keys_.copy(at(layer, from.sample), from.row, at(layer, to.sample), to.row, count);
    values_.copy(at(layer, from.sample), from.row, at(layer, to.sample), to.row, count);
  }
  void attend_rows(Index layer, Row first, Index count, const detail::LayerAttention<T>& call,
                   const AnyAttention<T>& attention, Context& context) const override {
    const Workspace::Frame frame(context.workspace());
    const Index samples = call.q.extent(0);
    const auto keys = keys_.template read<T>(at(layer, first.sample), samples, first.row, count, context);
    const auto values = values_.template read<T>(at(layer, first.sample), samples, first.row, count, context);
    attention.attend(detail::LayerAttention<T, scalar_of_t<decltype(keys)>>{.q = call.q,
                                                                            .k = keys,
                                                                            .v = values,
                                                                            .out = call.out,
                                                                            .weights = call.weights,
                                                                            .options = call.options,
                                                                            .continuation = call.continuation},
                     context);
  }

  detail::KvRows<S> keys_, values_;
};

namespace detail {

template <class T, class S>
inline constexpr Part kind_v<KvCache<T, S>> = Part::KeyValues;

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
