// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// ModifierRef: a score modifier behind one type, so that no kernel is compiled again for another modifier. It applies
/// the modifier to one score (the reference path) or to tiles of scores (the kernels).

#include <heed/core/core.hpp>
#include <heed/core/simd.hpp>
#include <heed/mask/modifier.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// A tile of scores with queries in the lanes: `count` rows of `vectors` registers, row r for key[r]; the lanes are
/// queries q, q + 1, ... of head h of sample b, of which `queries` exist.
template <class A>
struct QueryLanes {
  A* scores;
  int vectors, b, h, q, queries;
  const int* key;
  int count;
};

/// The scores of query q of head h of sample b with key[0], ..., key[count - 1]. Scores may be written up to the next
/// whole register.
template <class A>
struct KeyLanes {
  A* scores;
  int b, h, q;
  const int* key;
  int count;
};

/// The index of register v of each row, without the key.
template <class A>
ScoreIndex<Vec<A>> lanes_of(const QueryLanes<A>& t, int v) {
  using V = Vec<A>;
  ScoreIndex<V> at;
  at.b = t.b, at.h = t.h, at.q_step = 1;
  alignas(64) A number[V::size];
  for (int i = 0; i < V::size; ++i) number[i] = static_cast<A>(t.q + std::min(v * V::size + i, t.queries - 1));
  at.query = V::load(number);
  at.q = t.q + v * V::size;
  at.lanes = std::min(t.queries - v * V::size, V::size);
  return at;
}

/// Any modifier, register by register.
template <class A, class M>
void modify_registers(const M& modify, A scale, const QueryLanes<A>& t) {
  using V = Vec<A>;
  for (int v = 0; v < t.vectors && v * V::size < t.queries; ++v) {
    ScoreIndex<V> at = lanes_of(t, v);
    for (int r = 0; r < t.count; ++r) {
      A* row = t.scores + (r * t.vectors + v) * V::size;
      at.k = t.key[r];
      at.key = V(static_cast<A>(t.key[r]));
      modify(V::load(row) * V(scale), at).store(row);
    }
  }
}

template <class A, class M>
void modify_tile(const M& modify, A scale, const QueryLanes<A>& t) {
  modify_registers(modify, scale, t);
}

/// A bias with contiguous keys: squares of the matrix are transposed in registers, because gathering one number for
/// each lane costs more than the product does. After: another modifier may have hidden pairs before.
template <bool After = false, class A, class T>
void modify_tile(const Bias<T>& bias, A scale, const QueryLanes<A>& t) {
  using V = Vec<A>;
  constexpr int width = V::size;
  const auto& view = bias.view();
  if (view.stride(3) != 1 || !std::is_same_v<T, A>) return modify_registers(bias, scale, t);
  const T* base = &view(t.b, t.h, 0, 0);
  const auto add = [scale](A* at, V b) {
    const V s = V::load(at);
    V sum = hide_where(b, fma(s, V(scale), b));
    if constexpr (After) sum = hide_where(s, sum);
    sum.store(at);
  };
  for (int v = 0; v < t.vectors; ++v) {
    const T* from[width];
    for (int i = 0; i < width; ++i) from[i] = base + (t.q + std::min(v * width + i, t.queries - 1)) * view.stride(2);
    A* to = t.scores + v * width;
    const int row_stride = t.vectors * width;
    int r = 0;
    if constexpr (std::is_same_v<T, A>) {
      for (; r + width <= t.count; r += width) {
        if (t.key[r + width - 1] - t.key[r] != width - 1) break;
        V square[width];
        unroll<width>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { square[i] = V::load(from[i] + t.key[r]); });
        V::transpose(square);
        unroll<width>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { add(to + (r + i) * row_stride, square[i]); });
      }
    }
    for (; r < t.count; ++r) {
      alignas(64) A lane[width];
      for (int i = 0; i < width; ++i) lane[i] = static_cast<A>(from[i][t.key[r]]);
      add(to + r * row_stride, V::load(lane));
    }
  }
}

template <class M>
inline constexpr bool is_bias_v = false;
template <class T>
inline constexpr bool is_bias_v<Bias<T>> = true;

/// The second modifier of a chain, on scores that the first may have hidden.
template <class M>
struct AfterHiding : ModifierBase {
  const M& modify;
  explicit AfterHiding(const M& m) : modify(m) {}
  template <class V>
  V operator()(V score, const ScoreIndex<V>& at) const {
    return hide_where(score, modify(score, at));
  }
};

/// A chain with a bias takes two passes, so that the bias keeps its faster one.
template <class A, class First, class Second>
void modify_tile(const Then<First, Second>& chain, A scale, const QueryLanes<A>& t) {
  if constexpr (is_bias_v<Second>) {
    modify_tile(chain.a, scale, t);
    modify_tile<true>(chain.b, A(1), t);
  } else if constexpr (is_bias_v<First>) {
    modify_tile(chain.a, scale, t);
    modify_tile(AfterHiding<Second>(chain.b), A(1), t);
  } else {
    modify_registers(chain, scale, t);
  }
}

template <class A, class M>
void modify_keys(const M& modify, A scale, const KeyLanes<A>& t) {
  using V = Vec<A>;
  ScoreIndex<V> at;
  at.b = t.b, at.h = t.h, at.q = t.q, at.k_step = 1;
  at.query = V(static_cast<A>(t.q));
  for (int r = 0; r < t.count;) {
    // Consecutive keys share a register; a gap starts the next one.
    int n = 1;
    while (n < V::size && r + n < t.count && t.key[r + n] == t.key[r] + n) ++n;
    alignas(64) A lane[V::size], number[V::size];
    for (int i = 0; i < V::size; ++i) {
      lane[i] = t.scores[r + std::min(i, n - 1)];
      number[i] = static_cast<A>(t.key[r] + std::min(i, n - 1));
    }
    at.k = t.key[r], at.lanes = n, at.key = V::load(number);
    modify(V::load(lane) * V(scale), at).store(lane);
    for (int i = 0; i < n; ++i) t.scores[r + i] = lane[i];
    r += n;
  }
}

template <class A, class M>
void modify_tile_backward(const M& modify, const A* scores, const QueryLanes<A>& t) {
  using V = Vec<A>;
  for (int v = 0; v < t.vectors && v * V::size < t.queries; ++v) {
    ScoreIndex<V> at = lanes_of(t, v);
    for (int r = 0; r < t.count; ++r) {
      const int place = (r * t.vectors + v) * V::size;
      at.k = t.key[r];
      at.key = V(static_cast<A>(t.key[r]));
      modifier_backward(modify, V::load(scores + place), V::load(t.scores + place), at).store(t.scores + place);
    }
  }
}

/// A bound modifier, borrowed, or none. A is the type that scores are computed in.
template <class A>
class ModifierRef {
 public:
  /// No modifier.
  ModifierRef() = default;
  /// The modifier must outlive the reference.
  template <Modifier M>
  explicit ModifierRef(const M& m)
      : modifier_(std::is_same_v<M, NoModifier> ? nullptr : &m),
        functions_(std::is_same_v<M, NoModifier> ? nullptr : &kFunctions<M>),
        accumulates_(heed::detail::accumulates(m)) {}

  /// The same modifier for a forward call whose sample 0 is the modifier's `sample`, and whose query 0 is its `query`.
  ModifierRef shifted(int sample, int query) const {
    ModifierRef other = *this;
    other.sample_ += sample;
    other.query_ += query;
    return other;
  }

  explicit operator bool() const { return modifier_ != nullptr; }
  /// True when backward adds to gradients of the modifier's parameters.
  bool accumulates() const { return accumulates_; }
  /// True when the kernels can run backward: with no modifier, or with one that gives its derivative.
  bool has_derivative() const { return !modifier_ || functions_->backward_tile; }

  /// The modified score.
  A operator()(A score, const ScoreIndex<A>& at) const {
    return modifier_ ? functions_->score(modifier_, score, shifted(at)) : score;
  }
  /// The gradient of `score` from d, that of the modified score.
  A backward(A score, A d, const ScoreIndex<A>& at) const {
    return modifier_ ? functions_->backward(modifier_, score, d, at) : zero_where(d, d);
  }
  /// Dot products in the tile become scores: modifier(scale · dot).
  void apply(A scale, const QueryLanes<A>& tile) const { functions_->tile(modifier_, scale, shifted(tile)); }
  void apply(A scale, const KeyLanes<A>& keys) const { functions_->keys(modifier_, scale, shifted(keys)); }
  /// The gradients of modified scores in the tile become those of `scores`, which are scaled.
  void apply_backward(const A* scores, const QueryLanes<A>& tile) const {
    functions_->backward_tile(modifier_, scores, tile);
  }

 private:
  struct Functions {
    A (*score)(const void*, A, const ScoreIndex<A>&);
    A (*backward)(const void*, A, A, const ScoreIndex<A>&);
    void (*tile)(const void*, A, const QueryLanes<A>&) = nullptr;
    void (*keys)(const void*, A, const KeyLanes<A>&) = nullptr;
    void (*backward_tile)(const void*, const A*, const QueryLanes<A>&) = nullptr;
  };
  template <class M>
  static constexpr Functions functions_of() {
    Functions f{[](const void* m, A s, const ScoreIndex<A>& at) { return (*static_cast<const M*>(m))(s, at); },
                [](const void* m, A s, A d, const ScoreIndex<A>& at) {
                  return modifier_backward(*static_cast<const M*>(m), s, d, at);
                }};
    if constexpr (std::is_same_v<A, float> || std::is_same_v<A, double>) {
      f.tile = [](const void* m, A scale, const QueryLanes<A>& t) {
        modify_tile(for_head(*static_cast<const M*>(m), t.b, t.h), scale, t);
      };
      f.keys = [](const void* m, A scale, const KeyLanes<A>& t) {
        modify_keys(for_head(*static_cast<const M*>(m), t.b, t.h), scale, t);
      };
      if constexpr (has_derivative_v<M, Vec<A>>) {
        f.backward_tile = [](const void* m, const A* scores, const QueryLanes<A>& t) {
          modify_tile_backward(for_head(*static_cast<const M*>(m), t.b, t.h), scores, t);
        };
      }
    }
    return f;
  }
  template <class M>
  static constexpr Functions kFunctions = functions_of<M>();

  template <class At>
  At shifted(At at) const {
    at.b += sample_;
    at.q += query_;
    if constexpr (requires { at.query; }) at.query += static_cast<A>(query_);
    return at;
  }

  const void* modifier_ = nullptr;
  const Functions* functions_ = nullptr;
  bool accumulates_ = false;
  int sample_ = 0, query_ = 0;  // of the call's first
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
