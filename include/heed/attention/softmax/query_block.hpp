// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The softmax of a block of queries, in the vector lanes, over tiles of keys. A tile takes five steps, in add():
///
///   1. scores        Kernels::score: the dot products q·k; hidden pairs get -inf. A modifier's call, modify(), follows
///                    on the scores: scale, modifier, then the mask.
///   2. maximum       Kernels::score, or modify(), finds the running maximum in the same pass.
///   3. rescale       rescale(): where the maximum grew, the sum and the values so far shrink by 2^(old - new).
///   4. exponentials  exponentiate(): weights 2^(score - maximum), added to the row sums. drop() then sets the weights
///                    that dropout drops to 0; the sums keep them.
///   5. values        Kernels::add_rows: values += weights · V; add_non_finite_rows leaves hidden rows out.
///
/// begin() packs the queries, list_keys() asks the mask for a tile's keys, and finish() divides by the sums
/// (FlashAttention's online softmax; Dao et al., 2022; Milakov & Gimelshein, 2018).
/// Without a modifier, the scale is part of the exponent, so that scores are the plain dot products: a scaled copy of
/// the queries would round them once more, which large scores show.

#include <heed/attention/softmax/lane_kernels.hpp>
#include <heed/attention/softmax/problem.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

template <class A, int QueryVectors>
class QueryBlock {
 public:
  using Kernels = LaneKernels<A, QueryVectors>;
  using V = Vec<A>;
  static constexpr int width = V::size;
  static constexpr int lanes = Kernels::lanes;
  using Keys = typename Kernels::Keys;

  /// Elements of A that one block needs beside the scratch that blocks share.
  static Index memory(Index Dk, Index Dv) { return (Dk + Dv + 2) * lanes; }

  /// Takes queries first, ..., first + count - 1 of head h; spare lanes repeat the last one. `row` is scratch for
  /// `width` rows of queries.
  void begin(const BlockedProblem<A>& p, int b, int h, int first, int count, A* memory, A* row) {
    const Index Dk = p.q.width(), Dv = p.v.width();
    queries_ = memory;
    values_ = queries_ + Dk * lanes;
    maximum_ = values_ + Dv * lanes;
    sum_ = maximum_ + lanes;
    is_first_tile_ = true;
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
    Kernels::pack(p.q, b, h, first, count, p.query_factor(), queries_, row);
    mask_.begin(p.mask, b, h, first, count, p.shape.Lk);
    if (p.dropout > 0) {
      for (int i = 0; i < lanes; ++i) query_word_[i] = p.dropped.query_word(b, h, first + std::min(i, count - 1));
    }
  }

  /// The hull of the keys that the block sees: [low, high), empty when low >= high.
  int low() const { return mask_.low(); }
  int high() const { return mask_.high(); }

  /// Lists the keys that the block sees among n keys from k on; an empty list when there are none.
  void list_keys(const BlockedProblem<A>& p, int b, int h, int k, int n, Keys& keys) const {
    mask_.list_keys(p.mask, b, h, k, n, keys);
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
      Kernels::template score<false>(queries_, Dk, keys.k_row, keys, scores, after);
      hidden = modify(p, b, h, keys, scores, after, before);
    } else if (keys.masked) {
      Kernels::template score<true>(queries_, Dk, keys.k_row, keys, scores, after);
    } else {
      Kernels::template score<false>(queries_, Dk, keys.k_row, keys, scores, after);
    }
    rescale(before, after, p.to_log2(), Dv);
    exponentiate(scores, keys.count, after, p.to_log2());
    if (p.dropout > 0) drop(p, keys, scores);
    if (hidden && keys.has_non_finite(Dv))
      Kernels::add_non_finite_rows(values_, is_first_tile_, scores, keys.v_row, keys, Dv, clean);
    else
      Kernels::add_rows(values_, is_first_tile_, scores, keys.v_row, keys.count, Dv);
    is_first_tile_ = false;
  }

  /// Normalises and writes the rows, and the row statistics if they are wanted. `row` is scratch for `width` rows.
  void finish(const BlockedProblem<A>& p, int b, int h, A* row) {
    alignas(64) A factor[lanes] = {};
    if (p.plain_rows()) {
      for (int v = 0; v < QueryVectors; ++v) (V(A(1)) / V::load(sum_ + v * width)).store(factor + v * width);
    } else {
      for (int i = 0; i < count_; ++i) factor[i] = p.finish_row(b, h, first_ + i, maximum_[i], sum_[i]);
    }
    if (is_first_tile_) std::fill_n(values_, p.v.width() * lanes, A(0));
    Kernels::write(p.out, b, h, first_, count_, values_, factor, sum_, row);
  }

 private:
  /// Modifies the scores, hides what the mask hides, and finds the running maximum. A modifier may hide pairs too, by
  /// -inf: returns whether any pair of the tile is hidden.
  HEED_NOINLINE bool modify(const BlockedProblem<A>& p, int b, int h, Keys& keys, A* scores, V (&top)[QueryVectors],
                            const V (&before)[QueryVectors]) const {
    p.modifier.apply(p.scale, QueryLanes<A>{scores, QueryVectors, b, h, first_, count_, keys.key, keys.count});
    V low[QueryVectors];
    unroll<QueryVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA {
      top[v] = before[v];
      low[v] = V(infinity<A>());
    });
    for (int r = 0; r < keys.count; ++r) {
      unroll<QueryVectors>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA {
        A* at = scores + r * lanes + v * width;
        V s = V::load(at);
        if (keys.masked) {
          s = select(Kernels::sees(keys, r, v), s, V(-infinity<A>()));
          s.store(at);
        }
        top[v] = max(top[v], s);
        low[v] = min(low[v], s);
      });
    }
    bool hidden = keys.masked;
    for (int v = 0; v < QueryVectors; ++v) hidden = hidden || any(equal(low[v], V(-infinity<A>())));
    if (!hidden) return false;
    keys.hide_minus_infinity(scores);
    return true;
  }

  /// Where the maximum grew: sum and values shrink by 2^(old - new). Exact ones elsewhere.
  void rescale(const V (&before)[QueryVectors], const V (&after)[QueryVectors], A to_log2, Index Dv) {
    for (int v = 0; v < QueryVectors; ++v) {
      if (!any(less(before[v], after[v]))) continue;
      after[v].store(maximum_ + v * width);
      if (is_first_tile_) continue;
      const V shrink = exp2((before[v] - after[v]) * V(to_log2));
      (V::load(sum_ + v * width) * shrink).store(sum_ + v * width);
      A* at = values_ + v * width;
      for (Index d = 0; d < Dv; ++d, at += lanes) (V::load(at) * shrink).store(at);
    }
  }

  /// scores = 2^(scores - maximum), exactly 0 for -inf; their sum is added to the row sums in the order of the keys.
  HEED_NOINLINE void exponentiate(A* scores, int count, const V (&top)[QueryVectors], A to_log2) {
    constexpr int rows = std::max(1, Kernels::Tile::exponentials / QueryVectors);
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

  A* queries_ = nullptr;  // [Dk][lanes], times query_factor()
  A* values_ = nullptr;   // [Dv][lanes], not yet normalized; without meaning while is_first_tile
  A* maximum_ = nullptr;  // [lanes]
  A* sum_ = nullptr;      // [lanes]
  bool is_first_tile_ = true;
  int first_ = 0, count_ = 0;
  LaneMask<A, lanes> mask_;
  std::uint32_t query_word_[lanes];
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
