// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Products between a block of queries that stand in the vector lanes and rows that are read where they lie, broadcast
/// element by element: nothing is packed but the queries. Forward and backward are made of them.

#include <heed/attention/common/rows.hpp>
#include <heed/attention/softmax/key_list.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// The keys or value columns of a register tile, next to its vectors of queries.
template <int QueryVectors>
struct RegisterTile {
  static constexpr int keys = QueryVectors == 1 ? kIsa.lane_rows : kIsa.lane_rows_of_two;
  static constexpr int values = keys;
  static constexpr int exponentials = kIsa.exponentials;
};

/// QueryVectors registers of queries.
template <class A, int QueryVectors>
struct LaneKernels {
  using V = Vec<A>;
  using Word = typename V::Word;
  static constexpr int width = V::size;
  static constexpr int lanes = QueryVectors * width;
  using Tile = RegisterTile<QueryVectors>;
  using Keys = KeyList<A, lanes>;
  /// Keys and value columns that don't fill a register tile go in groups of so many.
  static constexpr int tail = 4;
  static_assert(tail <= kKeyPadding + 1 && kMaxTileKeys % tail == 0);
  /// Elements of A for the scores of one tile.
  static constexpr Index score_memory = Index{kMaxTileKeys + kKeyPadding} * lanes;

  /// packed[d][lane] = factor · rows first, ..., first + count - 1 of one head; spare lanes repeat the last one. `row`
  /// is scratch for `width` rows.
  static void pack(const RowSource<A>& rows, int b, int head, int first, int count, A factor, A* packed, A* row) {
    const Index D = rows.width();
    for (int v = 0; v < QueryVectors; ++v) {
      const A* from[width];
      for (int i = 0; i < width; ++i) {
        const int q = first + std::min(v * width + i, count - 1);
        if (rows.direct()) {
          from[i] = rows.in_place(b, head, q);
        } else {
          rows.copy(b, head, q, row + i * D);
          from[i] = row + i * D;
        }
      }
      A* to = packed + v * width;
      Index d = 0;
      for (; d + width <= D; d += width) {
        V square[width];
        unroll<width>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { square[i] = V::load(from[i] + d) * V(factor); });
        V::transpose(square);
        unroll<width>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { square[i].store(to + (d + i) * lanes); });
      }
      for (; d < D; ++d) {
        for (int i = 0; i < width; ++i) to[d * lanes + i] = from[i][d] * factor;
      }
    }
  }

  /// Rows first, ..., first + count - 1 of one head = factor[lane] · values[d][lane], and 0 where `sum` is 0. The sign
  /// of a zero depends on the hidden keys that were listed, so + 0 makes every zero positive. `row` is scratch for
  /// `width` rows.
  static void write(const RowSink<A>& out, int b, int head, int first, int count, const A* values, const A* factor,
                    const A* sum, A* row) {
    const Index D = out.width();
    for (int v = 0; v < QueryVectors && v * width < count; ++v) {
      const int rows = std::min(width, count - v * width);
      const V f = V::load(factor + v * width), none = equal(V::load(sum + v * width), V(A(0)));
      A* to[width];
      for (int i = 0; i < rows; ++i) {
        to[i] = out.direct() ? out.in_place(b, head, first + v * width + i) : row + i * D;
      }
      const A* from = values + v * width;
      Index d = 0;
      for (; d + width <= D; d += width) {
        V square[width];
        unroll<width>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
          square[i] = select(none, V(A(0)), V::load(from + (d + i) * lanes) * f + V(A(0)));
        });
        V::transpose(square);
        for (int i = 0; i < rows; ++i) square[i].store(to[i] + d);
      }
      for (; d < D; ++d) {
        for (int i = 0; i < rows; ++i) {
          to[i][d] = sum[v * width + i] == A(0) ? A(0) : from[d * lanes + i] * factor[v * width + i] + A(0);
        }
      }
      if (!out.direct()) {
        for (int i = 0; i < rows; ++i) out.write(b, head, first + v * width + i, row + i * D);
      }
    }
  }

  /// scores[r][lane] = <query, row of key r>, -inf where the lane does not see the key; `top` becomes the running
  /// maximum. The last group repeats the last key into rows that nobody reads.
  template <bool Masked>
  static HEED_NOINLINE void score(const A* queries, Index D, const A* const* rows, const Keys& keys, A* scores,
                                  V (&top)[QueryVectors]) {
    V best[QueryVectors];
    unroll<QueryVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { best[v] = top[v]; });
    int r = 0;
    for (; r + Tile::keys <= keys.count; r += Tile::keys) {
      score_keys<Masked, Tile::keys>(queries, D, rows, keys, r, scores, best);
    }
    for (; r < keys.count; r += tail) score_keys<Masked, tail>(queries, D, rows, keys, r, scores, best);
    unroll<QueryVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { top[v] = best[v]; });
  }

  /// The same for listed keys r, ..., r + N - 1.
  template <bool Masked, int N>
  static HEED_ALWAYS_INLINE void score_keys(const A* queries, Index D, const A* const* rows, const Keys& keys, int r,
                                            A* scores, V (&best)[QueryVectors]) {
    const A* k[N];
    unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { k[i] = rows[r + i]; });
    V dot[N][QueryVectors];
    unroll<N>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
      unroll<QueryVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { dot[i][v] = V(A(0)); });
    });
    for (Index d = 0; d < D; ++d, queries += lanes) {
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

  /// values[d][lane] += sum over r of scores[r][lane] · rows[r][d], Columns columns from d on; the sum alone when
  /// is_first_tile.
  template <int Columns>
  static HEED_ALWAYS_INLINE void add_columns(A* values, bool is_first_tile, const A* scores, const A* const* rows,
                                             int count, Index d) {
    A* at = values + d * lanes;
    V acc[Columns][QueryVectors];
    unroll<Columns>([&](auto c) HEED_ALWAYS_INLINE_LAMBDA {
      unroll<QueryVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA {
        acc[c][v] = is_first_tile ? V(A(0)) : V::load(at + c * lanes + v * width);
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
  /// The same for all D columns.
  static HEED_NOINLINE void add_rows(A* values, bool is_first_tile, const A* scores, const A* const* rows, int count,
                                     Index D) {
    Index d = 0;
    for (; d + Tile::values <= D; d += Tile::values) {
      // Two groups of 4 take less time than one of 6 and the rest one by one.
      if (Tile::values == 6 && (D - d == 8 || D - d == 9)) break;
      add_columns<Tile::values>(values, is_first_tile, scores, rows, count, d);
    }
    for (; d + tail <= D; d += tail) add_columns<tail>(values, is_first_tile, scores, rows, count, d);
    for (; d < D; ++d) add_columns<1>(values, is_first_tile, scores, rows, count, d);
  }

  /// add_rows for a tile whose hidden rows hold Inf or NaN: clean copies serve all lanes, and each entry that is not
  /// finite is added to the lanes that see it. `clean` is scratch for kMaxTileKeys rows.
  static HEED_NOINLINE void add_non_finite_rows(A* values, bool is_first_tile, const A* scores, const A* const* rows,
                                                const Keys& keys, Index D, A* clean) {
    const A* finite[kMaxTileKeys];
    for (int r = 0; r < keys.count; ++r) {
      A* to = clean + r * D;
      for (Index d = 0; d < D; ++d) to[d] = detail::is_finite(rows[r][d]) ? rows[r][d] : A(0);
      finite[r] = to;
    }
    add_rows(values, is_first_tile, scores, finite, keys.count, D);
    for (int r = 0; r < keys.count; ++r) {
      for (Index d = 0; d < D; ++d) {
        const A x = rows[r][d];
        if (detail::is_finite(x)) continue;
        for (int i = 0; i < lanes; ++i) {
          if (keys.visible[i] >> r & 1) values[d * lanes + i] += scores[r * lanes + i] * x;
        }
      }
    }
  }
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
