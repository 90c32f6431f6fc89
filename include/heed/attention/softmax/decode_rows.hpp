// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The decode kernel: a few query rows meet a tile of keys. What is plentiful stands in the lanes, the width of a head;
/// keys and values are read once for all rows, straight from their storage type.

#include <heed/attention/softmax/key_list.hpp>
#include <heed/attention/softmax/problem.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// The rows of keys or values of one (b, g), stored as S with elements next to each other.
template <class S>
struct StoredRows {
  const S* data;
  Index row_stride, width;
  int base;  // the key of row 0
  const S* row(int key) const { return data + (key - base) * row_stride; }
};

/// Rows query rows (query heads of one key head, and their queries) on a chunk of keys.
template <class A, class S, int Rows>
class DecodeRows {
 public:
  using V = Vec<A>;
  static constexpr int width = V::size;
  /// Keys whose dot products fill a register together with the rows.
  static constexpr int step = width >= Rows ? width / Rows : 1;
  using Keys = KeyList<A, Rows>;

  static Index memory(Index Dk, Index Dv) { return Rows * (whole_registers<A>(Dk) + whole_registers<A>(Dv)); }
  static constexpr Index score_memory = Index{kMaxTileKeys + 2 * V::size} * Rows + V::size;

  /// Rows first, ..., first + count - 1 of key head g: row r is query r % Lq of head g·(H/G) + r / Lq.
  void begin(const BlockedProblem<A>& p, int b, int g, int first, int count, A* memory) {
    const Index Dk = whole_registers<A>(p.q.width()), Dv = whole_registers<A>(p.v.width());
    queries_ = memory;
    values_ = queries_ + Rows * Dk;
    value_pitch_ = Dv;
    std::fill_n(memory, Rows * (Dk + Dv), A(0));
    const A factor = p.query_factor();
    seen_ = {p.shape.Lk, 0, 0, p.shape.Lk};
    for (int i = 0; i < Rows; ++i) {
      const int r = first + std::min(i, count - 1);
      head_[i] = g * (p.shape.H / p.shape.G) + r / p.shape.Lq;
      query_[i] = r % p.shape.Lq;
      p.q.copy(b, head_[i], query_[i], queries_ + i * Dk);
      for (Index d = 0; d < p.q.width(); ++d) queries_[i * Dk + d] *= factor;
      const RangeSummary one = p.mask.ranges(b, head_[i], query_[i], 1, p.shape.Lk, &range_[i]);
      seen_ = {std::min(seen_.low, one.low), std::max(seen_.high, one.high), std::max(seen_.full_low, one.full_low),
               std::min(seen_.full_high, one.full_high)};
      maximum_[i] = std::numeric_limits<A>::lowest();
      sum_[i] = A(0);
    }
  }

  void list_keys(const BlockedProblem<A>& p, int b, int k, int n, Keys& keys) const {
    keys.count = 0;
    if (k >= seen_.high || k + n <= seen_.low) return;
    const bool cut = k < seen_.full_low || k + n > seen_.full_high;
    if (p.mask.exact() && !cut) return keys.fill(k, n);
    std::uint64_t seen[Rows];
    for (int i = 0; i < Rows; ++i) {
      seen[i] = range_word(range_[i], k, n);
      if (p.mask.exact() || !seen[i]) continue;
      std::uint64_t word;
      p.mask.words(b, head_[i], query_[i], 1, k, n, &word);
      seen[i] &= word;
    }
    keys.select(k, n, seen);
  }

  /// Adds the listed keys of a tile. `scores` is scratch of score_memory.
  void add(const BlockedProblem<A>& p, int b, Keys& keys, const StoredRows<S>& k, const StoredRows<S>& v, A* scores) {
    score(keys, k, v, scores);
    bool hidden = keys.masked;
    if (p.modifier) hidden = modify(p, b, keys, scores);
    if (keys.masked) hide(keys, scores);
    exponentiate(keys.count, p.to_log2(), scores);
    if (p.dropout > 0) drop(p, b, keys, scores);
    if (hidden && has_non_finite(keys, v))
      add_poisoned_values(keys, v, scores);
    else
      add_values(keys, k, v, scores);
  }

  A row_maximum(int i) const { return maximum_[i]; }
  A row_sum(int i) const { return sum_[i]; }
  const A* values(int i) const { return values_ + i * value_pitch_; }

 private:
  /// One register of a stored row as A; `n` elements are left in the row.
  static HEED_ALWAYS_INLINE V load(const S* from) {
    if constexpr (std::is_same_v<S, A>)
      return V::load(from);
    else if constexpr (std::is_same_v<A, float>)
      return load_float(from);
    else
      return load_part(from, width);
  }
  static HEED_NOINLINE V load_part(const S* from, Index n) {
    alignas(64) A lanes[width] = {};
    for (Index i = 0; i < n; ++i) lanes[i] = static_cast<A>(from[i]);
    return V::load(lanes);
  }

  /// The lanes of <query 0, row> over its first `whole` elements. Unrolled, because the processor waits for memory the
  /// better the more rows its window holds.
  HEED_ALWAYS_INLINE V dot_product(const S* row, Index whole) const {
    constexpr int N = 4;
    V dot(A(0));
    Index d = 0;
    for (; d + N * width <= whole; d += N * width) {
      unroll<N>([&](auto j) HEED_ALWAYS_INLINE_LAMBDA {
        dot = fma(load(row + d + j * width), V::load(queries_ + d + j * width), dot);
      });
    }
    for (; d < whole; d += width) dot = fma(load(row + d), V::load(queries_ + d), dot);
    return dot;
  }

  /// scores[r·Rows + i] = <query i, listed key r>. With several rows, arithmetic fills the processor's window, so that
  /// values of the same keys are asked for meanwhile; with one row it reaches them by itself.
  HEED_NOINLINE void score(const Keys& keys, const StoredRows<S>& k, const StoredRows<S>& v, A* scores) const {
    const Index row_stride = whole_registers<A>(k.width), whole = k.width / width * width, rest = k.width - whole;
    constexpr int N = step * Rows;
    for (int r = 0; r < keys.count; r += step) {
      const S* row[step];
      for (int i = 0; i < step; ++i) {
        const int key = keys.key[std::min(r + i, keys.count - 1)];
        row[i] = k.row(key);
        if constexpr (Rows > 1) prefetch(v.row(key), v.width);
      }
      V dot[N];
      unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { dot[i] = V(A(0)); });
      if constexpr (Rows == 1) {  // row after row, as the memory streams
        for (int i = 0; i < step; ++i) dot[i] = dot_product(row[i], whole);
      } else {
        for (Index d = 0; d < whole; d += width) {
          V x[Rows];
          unroll<Rows>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { x[i] = V::load(queries_ + i * row_stride + d); });
          unroll<step>([&](auto j) HEED_ALWAYS_INLINE_LAMBDA {
            const V y = load(row[j] + d);
            unroll<Rows>([&](auto i)
                             HEED_ALWAYS_INLINE_LAMBDA { dot[j * Rows + i] = fma(y, x[i], dot[j * Rows + i]); });
          });
        }
      }
      if (rest) {
        unroll<step>([&](auto j) HEED_ALWAYS_INLINE_LAMBDA {
          const V y = load_part(row[j] + whole, rest);
          unroll<Rows>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
            dot[j * Rows + i] = fma(y, V::load(queries_ + i * row_stride + whole), dot[j * Rows + i]);
          });
        });
      }
      if constexpr (N == width) {
        V::transpose(dot);
        add_up<N / 2>(dot);
        dot[0].store(scores + r * Rows);
      } else {
        unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { scores[r * Rows + i] = sum(dot[i]); });
      }
    }
  }

  /// dot[0] becomes the sum of dot[0], ..., dot[2·Half - 1], added in pairs.
  template <int Half>
  static HEED_ALWAYS_INLINE void add_up(V* dot) {
    if constexpr (Half > 0) {
      unroll<Half>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { dot[i] = dot[i] + dot[i + Half]; });
      add_up<Half / 2>(dot);
    }
  }

  static void hide(const Keys& keys, A* scores) {
    for (int r = 0; r < keys.count; ++r) {
      for (int i = 0; i < Rows; ++i) {
        if (!(keys.visible[i] >> r & 1)) scores[r * Rows + i] = -infinity<A>();
      }
    }
  }

  /// Modifies the scores; a modifier may hide pairs by -inf: returns whether any pair of the tile is hidden.
  HEED_NOINLINE bool modify(const BlockedProblem<A>& p, int b, Keys& keys, A* scores) const {
    bool hidden = keys.masked;
    if (!keys.masked) std::fill_n(keys.visible, Rows, ~std::uint64_t{0});
    alignas(64) A row[kMaxTileKeys];
    for (int i = 0; i < Rows; ++i) {
      for (int r = 0; r < keys.count; ++r) row[r] = scores[r * Rows + i];
      p.modifier.apply(p.scale, KeyLanes<A>{row, b, head_[i], query_[i], keys.key, keys.count});
      for (int r = 0; r < keys.count; ++r) {
        scores[r * Rows + i] = row[r];
        if (row[r] == -infinity<A>()) {
          keys.visible[i] &= ~(std::uint64_t{1} << r);
          hidden = true;
        }
      }
    }
    return hidden;
  }

  /// scores = 2^(scores - maximum) with the new maximum of each row; older sums and values shrink with it.
  HEED_NOINLINE void exponentiate(int count, A to_log2, A* scores) {
    constexpr int lanes = width >= Rows ? width : Rows;  // scores repeat their rows in this rhythm
    constexpr int N = lanes / width;
    const int n = count * Rows, padded = (n + lanes - 1) / lanes * lanes;
    for (int x = n; x < padded; ++x) scores[x] = -infinity<A>();
    alignas(64) A top[lanes], total[lanes];
    V best[N], sums[N];
    unroll<N>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { best[v] = V(std::numeric_limits<A>::lowest()); });
    for (int x = 0; x < padded; x += lanes) {
      unroll<N>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { best[v] = max(best[v], V::load(scores + x + v * width)); });
    }
    unroll<N>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { best[v].store(top + v * width); });
    for (int i = 0; i < Rows; ++i) {
      A tile = top[i];
      for (int x = i + Rows; x < lanes; x += Rows) tile = std::max(tile, top[x]);
      if (tile > maximum_[i]) {
        const A shrink = std::exp2((maximum_[i] - tile) * to_log2);
        maximum_[i] = tile;
        sum_[i] *= shrink;
        for (Index d = 0; d < value_pitch_; ++d) values_[i * value_pitch_ + d] *= shrink;
      }
    }
    for (int x = 0; x < lanes; ++x) top[x] = maximum_[x % Rows];
    unroll<N>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA {
      best[v] = V::load(top + v * width);
      sums[v] = V(A(0));
    });
    const V unit = V::constant(to_log2);
    for (int x = 0; x < padded; x += lanes) {
      V e[N];
      unroll<N>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { e[v] = (V::load(scores + x + v * width) - best[v]) * unit; });
      exp2_in_place<A, N, true>(e);
      unroll<N>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA {
        e[v].store(scores + x + v * width);
        sums[v] = sums[v] + e[v];
      });
    }
    unroll<N>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { sums[v].store(total + v * width); });
    for (int x = 0; x < lanes; ++x) sum_[x % Rows] += total[x];
  }

  HEED_NOINLINE void drop(const BlockedProblem<A>& p, int b, const Keys& keys, A* scores) const {
    for (int i = 0; i < Rows; ++i) {
      const std::uint32_t query_word = p.dropped.query_word(b, head_[i], query_[i]);
      for (int r = 0; r < keys.count; ++r) {
        if (!p.dropped.keeps(query_word, DropoutPattern::key_word(keys.key[r]))) scores[r * Rows + i] = A(0);
      }
    }
  }

  /// values[i][d] += sum over listed keys of scores[r·Rows + i] · v[r][d], Columns registers from d on. With several
  /// rows there is arithmetic enough to hide reading: `next` (rows of that row_stride, from d on) are keys to prefetch
  /// meanwhile.
  template <int Columns, class Load>
  HEED_ALWAYS_INLINE void add_columns(const Keys& keys, const StoredRows<S>& v, const A* scores, Index d,
                                      const StoredRows<S>& next, Load&& load_column) {
    V acc[Rows][Columns];
    unroll<Rows>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
      unroll<Columns>(
          [&](auto c) HEED_ALWAYS_INLINE_LAMBDA { acc[i][c] = V::load(values_ + i * value_pitch_ + d + c * width); });
    });
    for (int r = 0; r < keys.count; ++r) {
      const S* row = v.row(keys.key[r]) + d;
      if constexpr (Rows > 1) prefetch<2>(next.data + r * next.row_stride + d, Columns * width);
      V y[Columns];
      unroll<Columns>([&](auto c) HEED_ALWAYS_INLINE_LAMBDA {
        y[c] = load_column(row + c * width);
        keep(y[c].p);
      });
      unroll<Rows>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
        const V x = V::broadcast(scores + r * Rows + i);
        unroll<Columns>([&](auto c) HEED_ALWAYS_INLINE_LAMBDA { acc[i][c] = fma(x, y[c], acc[i][c]); });
      });
    }
    unroll<Rows>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
      unroll<Columns>([&](auto c)
                          HEED_ALWAYS_INLINE_LAMBDA { acc[i][c].store(values_ + i * value_pitch_ + d + c * width); });
    });
  }
  HEED_NOINLINE void add_values(const Keys& keys, const StoredRows<S>& k, const StoredRows<S>& v, const A* scores) {
    constexpr int columns = Rows == 1 ? 4 : 2;
    const auto whole = [](const S* from) HEED_ALWAYS_INLINE_LAMBDA { return load(from); };
    const StoredRows<S> next{k.row(keys.key[keys.count - 1] + 1), k.row_stride, k.width, 0};
    Index d = 0;
    if constexpr (Rows == 1) {  // whole rows, as the memory streams
      for (; d + 2 * columns * width <= v.width; d += 2 * columns * width) {
        add_columns<2 * columns>(keys, v, scores, d, next, whole);
      }
    }
    for (; d + columns * width <= v.width; d += columns * width) {
      add_columns<columns>(keys, v, scores, d, next, whole);
    }
    for (; d + width <= v.width; d += width) add_columns<1>(keys, v, scores, d, next, whole);
    if (d < v.width) {
      const Index rest = v.width - d;
      add_columns<1>(keys, v, scores, d, next, [rest](const S* from) { return load_part(from, rest); });
    }
  }

  static bool has_non_finite(const Keys& keys, const StoredRows<S>& v) {
    for (int r = 0; r < keys.count; ++r) {
      if (detail::has_non_finite(v.row(keys.key[r]), 0, 1, v.width)) return true;
    }
    return false;
  }
  /// add_values for hidden rows that hold Inf or NaN: each query row takes what it sees, by the same arithmetic.
  HEED_NOINLINE void add_poisoned_values(const Keys& keys, const StoredRows<S>& v, const A* scores) {
    for (int i = 0; i < Rows; ++i) {
      for (int r = 0; r < keys.count; ++r) {
        if (!(keys.visible[i] >> r & 1)) continue;
        const V x = V::broadcast(scores + r * Rows + i);
        const S* row = v.row(keys.key[r]);
        for (Index d = 0; d < v.width; d += width) {
          A* at = values_ + i * value_pitch_ + d;
          const V y = d + width <= v.width ? load(row + d) : load_part(row + d, v.width - d);
          fma(x, y, V::load(at)).store(at);
        }
      }
    }
  }

  A* queries_ = nullptr;  // [Rows][Dk in whole registers], times query_factor()
  A* values_ = nullptr;   // [Rows][Dv in whole registers]
  Index value_pitch_ = 0;
  A maximum_[Rows], sum_[Rows];
  int head_[Rows], query_[Rows];
  KeyRange range_[Rows];
  RangeSummary seen_;
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
