// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The kernel: a block of queries in the vector lanes meets a tile of keys.
///
/// Queries stand in the lanes, keys and values are read where they lie and broadcast element by element, so nothing is
/// packed but the queries. Each tile takes two passes: all scores with the running maximum, then exponentials and
/// the product with the values (FlashAttention's online softmax; Dao et al., 2022; Milakov & Gimelshein, 2018).
/// Without a modifier, the scale is part of the exponent, so that scores are the plain dot products: a scaled copy of
/// the queries would round them once more, which large scores show.

#include <algorithm>
#include <cmath>
#include <limits>

#include <heed/attention/blocked/key_list.hpp>
#include <heed/attention/blocked/problem.hpp>
#include <heed/core/config.hpp>
#include <heed/core/random.hpp>
#include <heed/core/simd.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// How many keys and value columns a register tile has beside its vectors of queries, by the number of registers:
/// 16 (SSE, AVX) or 32 (AVX-512, NEON). Measured; larger tiles spill, smaller ones wait for loads.
template <int QueryVectors>
struct RegisterTile {
#if defined(EIGEN_VECTORIZE_AVX512) || defined(EIGEN_VECTORIZE_NEON)
  static constexpr int keys = 8;
  static constexpr int values = 8;
  static constexpr int exponentials = 8;
#else
  static constexpr int keys = QueryVectors == 1 ? 8 : 6;
  static constexpr int values = QueryVectors == 1 ? 8 : 6;
  static constexpr int exponentials = 4;
#endif
};

template <class A, int QueryVectors>
class QueryBlock {
 public:
  using V = Vec<A>;
  using Word = typename V::Word;
  static constexpr int width = V::size;
  static constexpr int lanes = QueryVectors * width;
  using Tile = RegisterTile<QueryVectors>;
  using Keys = KeyList<A, lanes>;
  /// Keys and value columns that don't fill a register tile go in groups of so many.
  static constexpr int tail = 4;
  static_assert(Tile::keys <= kKeyPadding && kMaxTileKeys % tail == 0);

  /// Elements of A that one block needs beside the scratch that blocks share.
  static Index memory(Index Dk, Index Dv) { return (Dk + Dv + 2) * lanes; }
  /// Elements of A for the scores of one tile.
  static constexpr Index score_memory = Index{kMaxTileKeys + kKeyPadding} * lanes;

  /// Takes queries first, ..., first + count - 1 of head h; spare lanes repeat the last one. `row` is scratch for
  /// `width` rows of queries.
  void begin(const BlockedProblem<A>& p, int b, int h, int first, int count, A* memory, A* row) {
    const Index Dk = p.q.width(), Dv = p.v.width();
    queries_ = memory;
    values_ = queries_ + Dk * lanes;
    maximum_ = values_ + Dv * lanes;
    sum_ = maximum_ + lanes;
    fresh_ = true;
    first_ = first;
    count_ = count;
    for (int i = 0; i < lanes; ++i) {
      maximum_[i] = std::numeric_limits<A>::lowest();
      sum_[i] = A(0);
    }
    // The next block's rows arrive while this one's are transposed.
    if (p.q.direct()) {
      for (int i = first + count; i < std::min(first + count + lanes, p.shape.Lq); ++i) {
        prefetch(p.q.in_place(b, h, i), Dk);
      }
    }
    pack_queries(p, b, h, row);
    seen_ = p.mask.ranges(b, h, first, count, p.shape.Lk, range_);
    for (int i = count; i < lanes; ++i) range_[i] = range_[count - 1];
    if (p.dropout > 0) {
      for (int i = 0; i < lanes; ++i) query_word_[i] = p.dropped.query_word(b, h, first + std::min(i, count - 1));
    }
  }

  /// The hull of the keys that the block sees: [low, high), empty when low >= high.
  int low() const { return seen_.low; }
  int high() const { return seen_.high; }

  /// Lists the keys that the block sees among n keys from k on; an empty list when there are none.
  void list_keys(const BlockedProblem<A>& p, int b, int h, int k, int n, Keys& keys) const {
    keys.count = 0;
    if (k >= seen_.high || k + n <= seen_.low) return;
    const bool cut = k < seen_.full_low || k + n > seen_.full_high;
    if (p.mask.exact() && !cut) return keys.fill(k, n);
    std::uint64_t seen[lanes];
    if (p.mask.exact()) {
      for (int i = 0; i < lanes; ++i) seen[i] = range_word(range_[i], k, n);
    } else {
      p.mask.words(b, h, first_, count_, k, n, seen);
      for (int i = count_; i < lanes; ++i) seen[i] = seen[count_ - 1];
      if (cut) {
        for (int i = 0; i < lanes; ++i) seen[i] &= range_word(range_[i], k, n);
      }
    }
    keys.select(k, n, seen);
  }

  /// Adds a tile: its listed keys, whose rows are pointed at. `scores` is scratch, `clean` scratch for kMaxTileKeys ·
  /// Dv.
  void add(const BlockedProblem<A>& p, int b, int h, Keys& keys, A* scores, A* clean) {
    const Index Dk = p.q.width(), Dv = p.v.width();
    V before[QueryVectors], after[QueryVectors];
    unroll<QueryVectors>([&](auto v)
                             HEED_ALWAYS_INLINE_LAMBDA { before[v] = after[v] = V::load(maximum_ + v * width); });
    bool hidden = keys.masked;
    if (p.modifier) {
      score<false>(queries_, Dk, keys, scores, after);
      hidden = modify(p, b, h, keys, scores, after, before);
    } else if (keys.masked) {
      score<true>(queries_, Dk, keys, scores, after);
    } else {
      score<false>(queries_, Dk, keys, scores, after);
    }
    rescale(before, after, p.to_log2(), Dv);
    exponentiate(scores, keys.count, after, p.to_log2());
    if (p.dropout > 0) drop(p, keys, scores);
    if (hidden && keys.has_poison(Dv))
      add_poisoned_values(keys, scores, Dv, clean);
    else
      add_values(scores, keys.v_row, keys.count, Dv);
    fresh_ = false;
  }

  /// Normalises and writes the rows, and the row statistics if they are wanted. `row` is scratch for `width` rows.
  void finish(const BlockedProblem<A>& p, int b, int h, A* row) {
    alignas(64) A factor[lanes] = {};
    if (p.plain_rows()) {
      for (int v = 0; v < QueryVectors; ++v) (V(A(1)) / V::load(sum_ + v * width)).store(factor + v * width);
    } else {
      for (int i = 0; i < count_; ++i) factor[i] = p.finish_row(b, h, first_ + i, maximum_[i], sum_[i]);
    }
    write_rows(p, b, h, factor, row);
  }

 private:
  void pack_queries(const BlockedProblem<A>& p, int b, int h, A* row) {
    const Index Dk = p.q.width();
    const A factor = p.query_factor();
    for (int v = 0; v < QueryVectors; ++v) {
      const A* from[width];
      for (int i = 0; i < width; ++i) {
        const int q = first_ + std::min(v * width + i, count_ - 1);
        if (p.q.direct()) {
          from[i] = p.q.in_place(b, h, q);
        } else {
          p.q.copy(b, h, q, row + i * Dk);
          from[i] = row + i * Dk;
        }
      }
      A* to = queries_ + v * width;
      Index d = 0;
      for (; d + width <= Dk; d += width) {
        V square[width];
        unroll<width>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { square[i] = V::load(from[i] + d) * V(factor); });
        V::transpose(square);
        unroll<width>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { square[i].store(to + (d + i) * lanes); });
      }
      for (; d < Dk; ++d) {
        for (int i = 0; i < width; ++i) to[d * lanes + i] = from[i][d] * factor;
      }
    }
  }

  /// Normalised values as rows of the output. The sign of a zero depends on the hidden keys that were listed, so + 0
  /// makes every zero positive.
  void write_rows(const BlockedProblem<A>& p, int b, int h, const A* factor, A* row) {
    const Index Dv = p.v.width();
    if (fresh_) std::fill_n(values_, Dv * lanes, A(0));
    for (int v = 0; v < QueryVectors && v * width < count_; ++v) {
      const int rows = std::min(width, count_ - v * width);
      const V f = V::load(factor + v * width), none = equal(V::load(sum_ + v * width), V(A(0)));
      A* to[width];
      for (int i = 0; i < rows; ++i) {
        to[i] = p.out.direct() ? p.out.in_place(b, h, first_ + v * width + i) : row + i * Dv;
      }
      const A* from = values_ + v * width;
      Index d = 0;
      for (; d + width <= Dv; d += width) {
        V square[width];
        unroll<width>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
          square[i] = select(none, V(A(0)), V::load(from + (d + i) * lanes) * f + V(A(0)));
        });
        V::transpose(square);
        for (int i = 0; i < rows; ++i) square[i].store(to[i] + d);
      }
      for (; d < Dv; ++d) {
        for (int i = 0; i < rows; ++i) {
          to[i][d] = sum_[v * width + i] == A(0) ? A(0) : from[d * lanes + i] * factor[v * width + i] + A(0);
        }
      }
      if (!p.out.direct()) {
        for (int i = 0; i < rows; ++i) p.out.write(b, h, first_ + v * width + i, row + i * Dv);
      }
    }
  }

  /// scores[r][lane] = <query, key r>, -inf where the lane does not see the key; `top` becomes the running maximum.
  /// The last group repeats the last key into rows that nobody reads.
  template <bool Masked>
  static HEED_NOINLINE void score(const A* queries, Index Dk, const Keys& keys, A* scores, V (&top)[QueryVectors]) {
    V best[QueryVectors];
    unroll<QueryVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { best[v] = top[v]; });
    int r = 0;
    for (; r + Tile::keys <= keys.count; r += Tile::keys) {
      score_keys<Masked, Tile::keys>(queries, Dk, keys, r, scores, best);
    }
    for (; r < keys.count; r += tail) score_keys<Masked, tail>(queries, Dk, keys, r, scores, best);
    unroll<QueryVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { top[v] = best[v]; });
  }

  /// The same for listed keys r, ..., r + N - 1.
  template <bool Masked, int N>
  static HEED_ALWAYS_INLINE void score_keys(const A* queries, Index Dk, const Keys& keys, int r, A* scores,
                                            V (&best)[QueryVectors]) {
    const A* k[N];
    unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { k[i] = keys.k_row[r + i]; });
    V dot[N][QueryVectors];
    unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
      unroll<QueryVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { dot[i][v] = V(A(0)); });
    });
    for (Index d = 0; d < Dk; ++d, queries += lanes) {
      V x[QueryVectors];
      unroll<QueryVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { x[v] = V::load_kept(queries + v * width); });
      unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
        const V y = V::broadcast(k[i] + d);
        unroll<QueryVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { dot[i][v] = fma(y, x[v], dot[i][v]); });
      });
    }
    unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
      unroll<QueryVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA {
        if constexpr (Masked) dot[i][v] = select(sees(keys, r + i, v), dot[i][v], V(-infinity<A>()));
        best[v] = max(best[v], dot[i][v]);
        dot[i][v].store(scores + (r + i) * lanes + v * width);
      });
    });
  }

  /// The lanes of vector v that see listed key r. Beyond the list, nobody does.
  static HEED_ALWAYS_INLINE V sees(const Keys& keys, int r, int v) {
    const Word bit = Word{1} << (r % Keys::word_bits);
    return V::lanes_with(V::load_words(keys.lane_words[r / Keys::word_bits] + v * width), bit);
  }

  /// Modifies the scores, hides what the mask hides, and finds the running maximum. A modifier may hide pairs too, by
  /// -inf: returns whether any pair of the tile is hidden.
  HEED_NOINLINE bool modify(const BlockedProblem<A>& p, int b, int h, Keys& keys, A* scores, V (&top)[QueryVectors],
                            const V (&before)[QueryVectors]) const {
    p.modify.query_lanes(p.modifier, p.scale, scores, QueryVectors, b, h, first_, count_, keys.key, keys.count);
    bool hidden = keys.masked;
    if (!keys.masked) std::fill_n(keys.visible, lanes, ~std::uint64_t{0});
    for (int v = 0; v < QueryVectors; ++v) top[v] = before[v];
    for (int r = 0; r < keys.count; ++r) {
      for (int v = 0; v < QueryVectors; ++v) {
        A* at = scores + r * lanes + v * width;
        V s = V::load(at);
        if (keys.masked) s = select(sees(keys, r, v), s, V(-infinity<A>()));
        s.store(at);
        top[v] = max(top[v], s);
        if (any(equal(s, V(-infinity<A>())))) {
          hidden = true;
          for (int i = 0; i < width; ++i) {
            if (at[i] == -infinity<A>()) keys.visible[v * width + i] &= ~(std::uint64_t{1} << r);
          }
        }
      }
    }
    return hidden;
  }

  /// Where the maximum grew: sum and values shrink by 2^(old - new). Exact ones elsewhere.
  void rescale(const V (&before)[QueryVectors], const V (&after)[QueryVectors], A to_log2, Index Dv) {
    for (int v = 0; v < QueryVectors; ++v) {
      if (!any(less(before[v], after[v]))) continue;
      after[v].store(maximum_ + v * width);
      if (fresh_) continue;
      const V shrink = exp2((before[v] - after[v]) * V(to_log2));
      (V::load(sum_ + v * width) * shrink).store(sum_ + v * width);
      A* at = values_ + v * width;
      for (Index d = 0; d < Dv; ++d, at += lanes) (V::load(at) * shrink).store(at);
    }
  }

  /// scores = 2^(scores - maximum), exactly 0 for -inf; their sum is added to the row sums in the order of the keys.
  HEED_NOINLINE void exponentiate(A* scores, int count, const V (&top)[QueryVectors], A to_log2) {
    constexpr int rows = Tile::exponentials / QueryVectors > 0 ? Tile::exponentials / QueryVectors : 1;
    V sum[QueryVectors];
    unroll<QueryVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { sum[v] = V::load(sum_ + v * width); });
    const V unit = V::constant(to_log2);
    const auto some_rows = [&](A* at, auto n) HEED_ALWAYS_INLINE_LAMBDA {
      constexpr int N = decltype(n)::value * QueryVectors;
      V x[static_cast<std::size_t>(N)];
      unroll<N>([&](auto i)
                    HEED_ALWAYS_INLINE_LAMBDA { x[i] = (V::load(at + i * width) - top[i % QueryVectors]) * unit; });
      exp2_in_place<A, N, true>(x);
      unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
        x[i].store(at + i * width);
        sum[i % QueryVectors] = sum[i % QueryVectors] + x[i];
      });
    };
    int r = 0;
    for (; r + rows <= count; r += rows) some_rows(scores + r * lanes, std::integral_constant<int, rows>{});
    for (; r < count; ++r) some_rows(scores + r * lanes, std::integral_constant<int, 1>{});
    unroll<QueryVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { sum[v].store(sum_ + v * width); });
  }

  /// Sets the dropped weights to 0; the sums keep them.
  HEED_NOINLINE void drop(const BlockedProblem<A>& p, const Keys& keys, A* scores) const {
    for (int r = 0; r < keys.count; ++r) {
      const std::uint32_t key_word = DropoutPattern::key_word(keys.key[r]);
      A* at = scores + r * lanes;
      for (int i = 0; i < lanes; ++i) at[i] = p.dropped.keeps(query_word_[i], key_word) ? at[i] : A(0);
    }
  }

  /// values[d][lane] += sum over keys of scores[r][lane] · v[r][d], Columns columns from d on.
  template <int Columns>
  HEED_ALWAYS_INLINE void add_columns(const A* scores, const A* const* rows, int count, Index d) {
    A* at = values_ + d * lanes;
    V acc[Columns][QueryVectors];
    unroll<Columns>([&](auto c) HEED_ALWAYS_INLINE_LAMBDA {
      unroll<QueryVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA {
        acc[c][v] = fresh_ ? V(A(0)) : V::load(at + c * lanes + v * width);
      });
    });
    for (int r = 0; r < count; ++r, scores += lanes) {
      V x[QueryVectors];
      unroll<QueryVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { x[v] = V::load_kept(scores + v * width); });
      const A* row = rows[r] + d;
      unroll<Columns>([&](auto c) HEED_ALWAYS_INLINE_LAMBDA {
        const V y = V::broadcast(row + c);
        unroll<QueryVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { acc[c][v] = fma(y, x[v], acc[c][v]); });
      });
    }
    unroll<Columns>([&](auto c) HEED_ALWAYS_INLINE_LAMBDA {
      unroll<QueryVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { acc[c][v].store(at + c * lanes + v * width); });
    });
  }
  HEED_NOINLINE void add_values(const A* scores, const A* const* rows, int count, Index Dv) {
    Index d = 0;
    for (; d + Tile::values <= Dv; d += Tile::values) {
      // Two groups of 4 take less time than one of 6 and the rest one by one.
      if (Tile::values == 6 && (Dv - d == 8 || Dv - d == 9)) break;
      add_columns<Tile::values>(scores, rows, count, d);
    }
    for (; d + tail <= Dv; d += tail) add_columns<tail>(scores, rows, count, d);
    for (; d < Dv; ++d) add_columns<1>(scores, rows, count, d);
  }

  /// add_values for a tile whose hidden rows hold Inf or NaN: clean copies serve all lanes, and each entry that is not
  /// finite is added to the lanes that see it.
  HEED_NOINLINE void add_poisoned_values(const Keys& keys, const A* scores, Index Dv, A* clean) {
    const A* rows[kMaxTileKeys];
    for (int r = 0; r < keys.count; ++r) {
      A* to = clean + r * Dv;
      for (Index d = 0; d < Dv; ++d) to[d] = std::isfinite(keys.v_row[r][d]) ? keys.v_row[r][d] : A(0);
      rows[r] = to;
    }
    add_values(scores, rows, keys.count, Dv);
    for (int r = 0; r < keys.count; ++r) {
      for (Index d = 0; d < Dv; ++d) {
        const A x = keys.v_row[r][d];
        if (std::isfinite(x)) continue;
        for (int i = 0; i < lanes; ++i) {
          if (keys.visible[i] >> r & 1) values_[d * lanes + i] += scores[r * lanes + i] * x;
        }
      }
    }
  }

  A* queries_ = nullptr;  // [Dk][lanes], times query_factor()
  A* values_ = nullptr;   // [Dv][lanes], not yet normalised; without meaning while fresh
  A* maximum_ = nullptr;  // [lanes]
  A* sum_ = nullptr;      // [lanes]
  bool fresh_ = true;
  int first_ = 0, count_ = 0;
  RangeSummary seen_;
  KeyRange range_[lanes];
  std::uint32_t query_word_[lanes];
};

}  // namespace detail

HEED_NAMESPACE_END
