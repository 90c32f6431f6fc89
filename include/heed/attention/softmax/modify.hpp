// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Modifiers on tiles of scores.

#include <algorithm>

#include <heed/attention/softmax/problem.hpp>
#include <heed/core/config.hpp>
#include <heed/core/simd.hpp>
#include <heed/mask/modifier.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// A tile with queries in the lanes: `count` rows of `vectors` registers, row r for key[r].
template <class A>
struct QueryLanes {
  A* scores;
  int vectors, b, h, q, queries;
  const int* key;
  int count;
};

/// Where register v of each row stands, but for the key.
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

/// A bias whose keys lie next to each other: squares of the matrix are transposed in registers, since gathering one
/// number for each lane costs more than the product does.
///
/// After: whether another modifier may have hidden pairs before.
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

/// The second of a chain, on scores that the first has hidden or not.
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

/// The functions of one modifier.
template <class A, class M>
struct Modify {
  static void query_lanes(const void* modifier, A scale, A* scores, int vectors, int b, int h, int q, int queries,
                          const int* key, int count) {
    modify_tile(for_head(*static_cast<const M*>(modifier), b, h), scale,
                QueryLanes<A>{scores, vectors, b, h, q, queries, key, count});
  }

  static void key_lanes(const void* modifier, A scale, A* scores, int b, int h, int q, const int* key, int count) {
    using V = Vec<A>;
    const auto modify = for_head(*static_cast<const M*>(modifier), b, h);
    ScoreIndex<V> at;
    at.b = b, at.h = h, at.q = q, at.k_step = 1;
    at.query = V(static_cast<A>(q));
    for (int r = 0; r < count;) {
      // As many keys as follow each other fill a register; a gap begins the next one.
      int n = 1;
      while (n < V::size && r + n < count && key[r + n] == key[r] + n) ++n;
      alignas(64) A lane[V::size], number[V::size];
      for (int i = 0; i < V::size; ++i) {
        lane[i] = scores[r + std::min(i, n - 1)];
        number[i] = static_cast<A>(key[r] + std::min(i, n - 1));
      }
      at.k = key[r], at.lanes = n, at.key = V::load(number);
      modify(V::load(lane) * V(scale), at).store(lane);
      for (int i = 0; i < n; ++i) scores[r + i] = lane[i];
      r += n;
    }
  }

  static constexpr ModifyScores<A> functions() { return {&query_lanes, &key_lanes}; }
};

/// How a backward applies a modifier; the scores are scaled.
template <class A>
struct ModifyBackwardScores {
  /// As ModifyScores::query_lanes.
  void (*forward)(const void* modifier, A scale, A* scores, int vectors, int b, int h, int q, int queries,
                  const int* key, int count) = nullptr;
  /// d, the gradients of modified scores, become those of the `scores` that went in.
  void (*backward)(const void* modifier, const A* scores, A* d, int vectors, int b, int h, int q, int queries,
                   const int* key, int count) = nullptr;
};

template <class A, class M>
struct ModifyBackward {
  static void backward(const void* modifier, const A* scores, A* d, int vectors, int b, int h, int q, int queries,
                       const int* key, int count) {
    using V = Vec<A>;
    const auto modify = for_head(*static_cast<const M*>(modifier), b, h);
    for (int v = 0; v < vectors && v * V::size < queries; ++v) {
      ScoreIndex<V> at = lanes_of<A>(QueryLanes<A>{d, vectors, b, h, q, queries, key, count}, v);
      for (int r = 0; r < count; ++r) {
        const int place = (r * vectors + v) * V::size;
        at.k = key[r];
        at.key = V(static_cast<A>(key[r]));
        modifier_backward(modify, V::load(scores + place), V::load(d + place), at).store(d + place);
      }
    }
  }
  static constexpr ModifyBackwardScores<A> functions() { return {Modify<A, M>::functions().query_lanes, &backward}; }
};

}  // namespace detail

HEED_NAMESPACE_END
