// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The kernel of the blocked backward: some blocks of queries of one head meet the tiles of keys that they see. With P
/// the weights (dropped ones 0, keep_scale grown) and dS the gradients of the dot products, both [key][lane]:
///   P from the scores and the row statistics; dP = V·doᵀ; dS = P ∘ (dP - <do, o>) · scale, through the modifier
///   dqᵀ += dSᵀ·K, dk += dS·Q, dv += P·do
/// The first three products have the queries in the lanes, the last two the widths.

#include <heed/attention/common/call.hpp>
#include <heed/attention/softmax/lane_kernels.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// A backward call as the kernels take it; see attention/attention.hpp for the shapes.
template <class A>
struct BackwardProblem : AttentionTerms<A> {
  RowSource<A> q, k, v, out, dout;
  RowSink<A> dq, dk, dv;
  std::span<double> dsinks;

  template <class T>
  explicit BackwardProblem(const AttentionBackwardCall<T>& call)
      : AttentionTerms<A>(call),
        q(call.q),
        k(call.k),
        v(call.v),
        out(call.out),
        dout(call.dout),
        dq(call.gradients.dq),
        dk(call.gradients.dk),
        dv(call.gradients.dv),
        dsinks(call.gradients.dsinks) {}

  /// Rows of sums occupy whole registers.
  Index dk_row_stride() const { return whole_registers<A>(this->shape.Dk); }
  Index dv_row_stride() const { return whole_registers<A>(this->shape.Dv); }
};

template <class A>
class BackwardTile {
 public:
  using V = Vec<A>;
  using Kernels = LaneKernels<A, 2>;
  using Keys = typename Kernels::Keys;
  static constexpr int width = V::size;
  static constexpr int lanes = Kernels::lanes;
  /// Queries that share the reading and writing of dk and dv.
  static constexpr int blocks = std::max(1, 64 / lanes);
  static constexpr int queries = blocks * lanes;
  /// Keys of a tile at most.
  static constexpr int keys = 48;

  /// Elements of A that a tile needs.
  static Index memory(const BackwardProblem<A>& p) {
    const Index Dk = p.shape.Dk, Dv = p.shape.Dv;
    return queries * (2 * Dk + Dv + p.dk_row_stride() + p.dv_row_stride() + 3) + keys * (2 * (Dk + Dv)) +
           2 * kPairs * blocks + 2 * kPairs + (width * std::max(Dk, Dv)) + lanes * (Dv + 1);
  }
  void use(const BackwardProblem<A>& p, A* memory) {
    const Index Dk = p.shape.Dk, Dv = p.shape.Dv;
    const auto take = [&](Index n) {
      A* const at = memory;
      memory += n;
      return at;
    };
    packed_q_ = take(queries * Dk);
    packed_do_ = take(queries * Dv);
    packed_dq_ = take(queries * Dk);
    q_rows_ = take(queries * p.dk_row_stride());
    do_rows_ = take(queries * p.dv_row_stride());
    maximum_ = take(queries);
    inverse_sum_ = take(queries);
    mean_ = take(queries);
    k_copy_ = take(keys * Dk);
    v_copy_ = take(keys * Dv);
    clean_ = take(keys * (Dk + Dv));
    weights_ = take(kPairs * blocks);
    dscores_ = take(kPairs * blocks);
    raw_ = take(kPairs);
    keep_ = take(kPairs);
    row_ = take(width * std::max(Dk, Dv));
    packed_o_ = take(lanes * Dv);
    ones_ = take(lanes);
    std::fill_n(ones_, lanes, A(1));
  }

  /// Queries first, ..., first + count - 1 of head h: writes their dq, adds to dk and dv of key head g, returns the
  /// gradient of the sink.
  double run(const BackwardProblem<A>& p, int b, int h, int g, int first, int count, A* dk, A* dv) {
    const Index Dk = p.shape.Dk, Dv = p.shape.Dv;
    double dsink = 0;
    used_ = (count + lanes - 1) / lanes;
    has_non_finite_ = false;
    int low = p.shape.Lk, high = 0;
    for (int j = 0; j < used_; ++j) {
      count_[j] = std::min(lanes, count - j * lanes);
      dsink += begin_block(p, b, h, j, first + j * lanes);
      low = std::min(low, mask_[j].low());
      high = std::max(high, mask_[j].high());
    }
    const int tile = std::clamp(static_cast<int>(kBudget / (Dk + Dv)) / 8 * 8, 16, keys);
    const bool copy = !p.k.contiguous() || !p.v.contiguous();
    for (int k = low / tile * tile; k < high; k += tile) {
      const int n = std::min(tile, p.shape.Lk - k);
      const A* k_rows = k_copy_;
      const A* v_rows = v_copy_;
      if (copy) {
        for (int i = 0; i < n; ++i) {
          p.k.copy(b, g, k + i, k_copy_ + i * Dk);
          p.v.copy(b, g, k + i, v_copy_ + i * Dv);
        }
      } else {
        k_rows = p.k.in_place(b, g, k);
        v_rows = p.v.in_place(b, g, k);
      }
      add_keys(p, b, h, first, k, n, k_rows, v_rows, dk, dv);
    }
    if (p.dq.is_wanted()) {
      for (int j = 0; j < used_; ++j) {
        A* const packed = packed_dq_ + j * lanes * Dk;
        if (is_first_tile_[j]) std::fill_n(packed, lanes * Dk, A(0));
        Kernels::write(p.dq, b, h, first + j * lanes, count_[j], packed, ones_, inverse_sum_ + j * lanes, row_);
      }
    }
    return dsink;
  }

 private:
  static constexpr Index kPairs = Index{keys + kKeyPadding} * lanes;
  /// Elements of K and V rows of a tile.
  static constexpr Index kBudget = 24576 / static_cast<Index>(sizeof(A));

  /// Takes up one block; returns its part of the gradient of the sink.
  double begin_block(const BackwardProblem<A>& p, int b, int h, int j, int first) {
    const Index Dk = p.shape.Dk, Dv = p.shape.Dv;
    const int count = count_[j];
    is_first_tile_[j] = true;
    mask_[j].begin(p.mask, b, h, first, count, p.shape.Lk);
    Kernels::pack(p.q, b, h, first, count, A(1), packed_q_ + j * lanes * Dk, row_);
    Kernels::pack(p.dout, b, h, first, count, A(1), packed_do_ + j * lanes * Dv, row_);
    Kernels::pack(p.out, b, h, first, count, A(1), packed_o_, row_);
    // In the order in which dP is summed: a query that sees a single key then has dS = 0 exactly.
    unroll<2>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA {
      V mean(A(0));
      for (Index d = 0; d < Dv; ++d) {
        const Index at = d * lanes + v * width;
        mean = fma(V::load(packed_o_ + at), V::load(packed_do_ + j * lanes * Dv + at), mean);
      }
      mean.store(mean_ + j * lanes + v * width);
    });
    double dsink = 0;
    for (int i = 0; i < lanes; ++i) {
      const int q = first + std::min(i, count - 1), at = j * lanes + i;
      const A sum = p.row_sum(b, h, q);
      // What a query sees that sees nothing has the weight 0 · 2^-inf.
      maximum_[at] = sum == A(0) ? infinity<A>() : p.row_max(b, h, q);
      inverse_sum_[at] = sum == A(0) ? A(0) : A(1) / sum;
      if (p.dropout > 0) query_word_[at] = p.dropped.query_word(b, h, q);
      if (i >= count) continue;
      copy_padded(p.q, b, h, q, Dk, p.dk_row_stride(), q_rows_ + at * p.dk_row_stride());
      copy_padded(p.dout, b, h, q, Dv, p.dv_row_stride(), do_rows_ + at * p.dv_row_stride());
      if (!p.dsinks.empty() && sum != A(0) &&
          (!detail::has_non_finite(mean_ + at, 1, 1, 1) || sees_a_key(p, b, h, q, q_rows_ + at * p.dk_row_stride()))) {
        const A sink = static_cast<A>(p.sinks[static_cast<std::size_t>(h)]);
        dsink -= static_cast<double>(std::exp(sink - maximum_[at]) * inverse_sum_[at] * mean_[at]);
      }
    }
    has_non_finite_ = has_non_finite_ ||
                      has_non_finite(q_rows_ + j * lanes * p.dk_row_stride(), p.dk_row_stride(), count, Dk) ||
                      has_non_finite(do_rows_ + j * lanes * p.dv_row_stride(), p.dv_row_stride(), count, Dv);
    return dsink;
  }

  /// True if a query sees more than its sink, asked pair by pair: <do, o> of one that does not is 0 · NaN if its dout
  /// holds NaN, which nothing may get.
  HEED_NOINLINE bool sees_a_key(const BackwardProblem<A>& p, int b, int h, int q, const A* query) const {
    for (int k = 0; k < p.shape.Lk; ++k) {
      if (!p.mask.visible(b, h, q, k)) continue;
      if (!p.modifier) return true;
      p.k.copy(b, p.key_head(h), k, row_);
      A dot(0);
      for (int d = 0; d < p.shape.Dk; ++d) dot += query[d] * row_[d];
      ScoreIndex<A> at;
      at.b = b, at.h = h, at.q = q, at.k = k;
      at.query = static_cast<A>(q), at.key = static_cast<A>(k);
      if (!(p.modifier(dot * p.scale, at) == -infinity<A>())) return true;
    }
    return false;
  }

  static void copy_padded(const RowSource<A>& rows, int b, int h, int i, Index D, Index row_stride, A* to) {
    rows.copy(b, h, i, to);
    for (Index d = D; d < row_stride; ++d) to[d] = A(0);
  }

  /// n keys from k on.
  void add_keys(const BackwardProblem<A>& p, int b, int h, int first, int k, int n, const A* k_rows, const A* v_rows,
                A* dk, A* dv) {
    const Index Dk = p.shape.Dk, Dv = p.shape.Dv;
    // Blocks that see the whole tile go into dk and dv together.
    int together = 0;
    keys_.begin_tile(k, n);
    for (int j = 0; j < used_; ++j) {
      mask_[j].list_keys(p.mask, b, h, k, n, keys_);
      if (keys_.count == 0) {
        add_outer(p, together, j, k, n, dk, dv);
        together = j + 1;
        continue;
      }
      keys_.point(k_rows, Dk, v_rows, Dv, k);
      const bool hidden = form_weights(p, b, h, j, first + j * lanes);
      A* const dscores = dscores_ + j * kPairs;
      if (p.dq.is_wanted()) {
        A* const packed = packed_dq_ + j * lanes * Dk;
        if (hidden && has_non_finite(k_rows, Dk, n, Dk))
          Kernels::add_non_finite_rows(packed, is_first_tile_[j], dscores, keys_.k_row, keys_, Dk, clean_);
        else
          Kernels::add_rows(packed, is_first_tile_[j], dscores, keys_.k_row, keys_.count, Dk);
        is_first_tile_[j] = false;
      }
      if (keys_.count == n && !(hidden && has_non_finite_)) continue;
      add_outer(p, together, j, k, n, dk, dv);
      together = j + 1;
      if (hidden && has_non_finite_) {
        add_seen_pairs(p, j, dk, dv);
      } else {
        add_products(weights_ + j * kPairs, 1, count_[j], do_rows_ + j * lanes * p.dv_row_stride(), p.dv_row_stride(),
                     keys_.key, keys_.count, p.dv.is_wanted() ? dv : nullptr);
        add_products(dscores, 1, count_[j], q_rows_ + j * lanes * p.dk_row_stride(), p.dk_row_stride(), keys_.key,
                     keys_.count, p.dk.is_wanted() ? dk : nullptr);
      }
    }
    add_outer(p, together, used_, k, n, dk, dv);
  }

  /// Weights and gradients of the scores of block j with the listed keys. Returns whether some pair is hidden; visible
  /// tells which.
  HEED_NOINLINE bool form_weights(const BackwardProblem<A>& p, int b, int h, int j, int first) {
    const Index Dk = p.shape.Dk, Dv = p.shape.Dv;
    A* const weights = weights_ + j * kPairs;
    A* const dscores = dscores_ + j * kPairs;
    V unused[2] = {V(A(0)), V(A(0))};
    Kernels::template score<false>(packed_q_ + j * lanes * Dk, Dk, keys_.k_row, keys_, weights, unused);
    Kernels::template score<false>(packed_do_ + j * lanes * Dv, Dv, keys_.v_row, keys_, dscores, unused);
    bool hidden = keys_.masked;
    A scale = p.scale;
    if (p.modifier) {
      for (Index i = 0; i < Index{keys_.count} * lanes; i += width) {
        (V::load(weights + i) * V(scale)).store(raw_ + i);
        V::load(raw_ + i).store(weights + i);
      }
      scale = A(1);
      p.modifier.apply(A(1), QueryLanes<A>{weights, 2, b, h, first, count_[j], keys_.key, keys_.count});
      hidden = mark_hidden(weights) || hidden;
    }
    if (p.dropout > 0) draw_survival(p, j);
    if (hidden)
      exponentiate<true>(p, j, scale, weights, dscores);
    else
      exponentiate<false>(p, j, scale, weights, dscores);
    if (p.modifier) {
      p.modifier.apply_backward(raw_, QueryLanes<A>{dscores, 2, b, h, first, count_[j], keys_.key, keys_.count});
      for (int r = 0; r < keys_.count; ++r) {
        unroll<2>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA {
          A* const at = dscores + r * lanes + v * width;
          V ds = V::load(at) * V(p.scale);
          if (hidden) ds = select(Kernels::sees(keys_, r, v), ds, V(A(0)));
          ds.store(at);
        });
      }
    }
    return hidden;
  }

  /// What a modifier hid by -inf: completes the list's bits. Returns whether there was any.
  bool mark_hidden(const A* scores) {
    bool any_hidden = false;
    for (Index i = 0; i < Index{keys_.count} * lanes && !any_hidden; i += width) {
      any_hidden = any(equal(V::load(scores + i), V(-infinity<A>())));
    }
    if (!any_hidden) return false;
    keys_.hide_minus_infinity(scores);
    return true;
  }

  void draw_survival(const BackwardProblem<A>& p, int j) {
    const A grown = p.keep_scale();
    for (int r = 0; r < keys_.count; ++r) {
      const std::uint32_t key_word = DropoutPattern::key_word(keys_.key[r]);
      for (int i = 0; i < lanes; ++i) {
        keep_[r * lanes + i] = p.dropped.keeps(query_word_[j * lanes + i], key_word) ? grown : A(0);
      }
    }
  }

  /// weights from scores, dscores from dP, hidden pairs exactly 0. Without a modifier, dscores are times the scale.
  template <bool Hidden>
  void exponentiate(const BackwardProblem<A>& p, int j, A scale, A* weights, A* dscores) const {
    const V to_log2 = V::constant(kLog2E<A>), factor(scale), out_factor(p.modifier ? A(1) : p.scale);
    V top[2], inverse[2], mean[2];
    unroll<2>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA {
      const int at = j * lanes + v * width;
      top[v] = V::load(maximum_ + at);
      inverse[v] = V::load(inverse_sum_ + at);
      mean[v] = V::load(mean_ + at);
    });
    for (int r = 0; r < keys_.count; ++r) {
      A* const w = weights + r * lanes;
      A* const d = dscores + r * lanes;
      V e[2];
      unroll<2>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA { e[v] = (V::load(w + v * width) * factor - top[v]) * to_log2; });
      exp2_in_place<A, 2>(e);
      unroll<2>([&](auto v) HEED_ALWAYS_INLINE_LAMBDA {
        V weight = e[v] * inverse[v], kept = weight, dweight = V::load(d + v * width);
        if (p.dropout > 0) {
          const V keep = V::load(keep_ + r * lanes + v * width);
          kept = weight * keep;
          dweight = dweight * keep;
        }
        V ds = weight * (dweight - mean[v]) * out_factor;
        if constexpr (Hidden) {
          const V seen = Kernels::sees(keys_, r, v);
          kept = select(seen, kept, V(A(0)));
          ds = select(seen, ds, V(A(0)));
        }
        kept.store(w + v * width);
        ds.store(d + v * width);
      });
    }
  }

  /// dk and dv of the whole tile from blocks [from, to), which all see it.
  void add_outer(const BackwardProblem<A>& p, int from, int to, int k, int n, A* dk, A* dv) const {
    if (from >= to) return;
    int key[keys];
    for (int r = 0; r < n; ++r) key[r] = k + r;
    const int count = (to - from - 1) * lanes + count_[to - 1];
    add_products(weights_ + from * kPairs, to - from, count, do_rows_ + from * lanes * p.dv_row_stride(),
                 p.dv_row_stride(), key, n, p.dv.is_wanted() ? dv : nullptr);
    add_products(dscores_ + from * kPairs, to - from, count, q_rows_ + from * lanes * p.dk_row_stride(),
                 p.dk_row_stride(), key, n, p.dk.is_wanted() ? dk : nullptr);
  }

  /// sums[key[r]] += sum over queries i of factors[r][i] · rows[i]; factors stand in blocks of `lanes` queries.
  static HEED_NOINLINE void add_products(const A* factors, int block_count, int count, const A* rows, Index row_stride,
                                         const int* key, int n, A* sums) {
    if (!sums) return;
    Index d = 0;
    for (; d + kIsa.outer_columns * width <= row_stride; d += kIsa.outer_columns * width) {
      add_product_columns<kIsa.outer_columns>(factors, block_count, count, rows + d, row_stride, key, n, sums + d);
    }
    for (; d < row_stride; d += width)
      add_product_columns<1>(factors, block_count, count, rows + d, row_stride, key, n, sums + d);
  }
  template <int Columns>
  static HEED_ALWAYS_INLINE void add_product_columns(const A* factors, int block_count, int count, const A* rows,
                                                     Index row_stride, const int* key, int n, A* sums) {
    int r = 0;
    for (; r + kIsa.outer_rows <= n; r += kIsa.outer_rows) {
      add_product_rows<kIsa.outer_rows, Columns>(factors + r * lanes, block_count, count, rows, row_stride, key + r,
                                                 sums);
    }
    for (; r + 2 <= n; r += 2) {
      add_product_rows<2, Columns>(factors + r * lanes, block_count, count, rows, row_stride, key + r, sums);
    }
    if (r < n) add_product_rows<1, Columns>(factors + r * lanes, block_count, count, rows, row_stride, key + r, sums);
  }
  template <int Rows, int Columns>
  static HEED_ALWAYS_INLINE void add_product_rows(const A* factors, int block_count, int count, const A* rows,
                                                  Index row_stride, const int* key, A* sums) {
    A* to[Rows];
    V acc[Rows][Columns];
    unroll<Rows>([&](auto r) HEED_ALWAYS_INLINE_LAMBDA {
      to[r] = sums + key[r] * row_stride;
      unroll<Columns>([&](auto c) HEED_ALWAYS_INLINE_LAMBDA { acc[r][c] = V::load(to[r] + c * width); });
    });
    for (int j = 0; j < block_count; ++j, factors += kPairs) {
      const int some = std::min(lanes, count - j * lanes);
      const A* row = rows + j * lanes * row_stride;
      for (int i = 0; i < some; ++i, row += row_stride) {
        V x[Columns];
        unroll<Columns>([&](auto c) HEED_ALWAYS_INLINE_LAMBDA { x[c] = V::load_kept(row + c * width); });
        unroll<Rows>([&](auto r) HEED_ALWAYS_INLINE_LAMBDA {
          const V y = V::broadcast(factors + r * lanes + i);
          unroll<Columns>([&](auto c) HEED_ALWAYS_INLINE_LAMBDA { acc[r][c] = fma(y, x[c], acc[r][c]); });
        });
      }
    }
    unroll<Rows>([&](auto r) HEED_ALWAYS_INLINE_LAMBDA {
      unroll<Columns>([&](auto c) HEED_ALWAYS_INLINE_LAMBDA { acc[r][c].store(to[r] + c * width); });
    });
  }

  /// The same for block j pair by pair, with the same arithmetic: queries hold Inf or NaN, which the keys that they
  /// don't see must not get.
  HEED_NOINLINE void add_seen_pairs(const BackwardProblem<A>& p, int j, A* dk, A* dv) const {
    const auto add = [](A factor, const A* row, Index row_stride, A* to) {
      for (Index d = 0; d < row_stride; d += width) fma(V(factor), V::load(row + d), V::load(to + d)).store(to + d);
    };
    for (int r = 0; r < keys_.count; ++r) {
      const Index key = keys_.key[r];
      for (int i = 0; i < count_[j]; ++i) {
        if (!(keys_.visible[i] >> r & 1)) continue;
        const Index pair = j * kPairs + r * lanes + i, query = j * lanes + i;
        if (p.dk.is_wanted())
          add(dscores_[pair], q_rows_ + query * p.dk_row_stride(), p.dk_row_stride(), dk + key * p.dk_row_stride());
        if (p.dv.is_wanted())
          add(weights_[pair], do_rows_ + query * p.dv_row_stride(), p.dv_row_stride(), dv + key * p.dv_row_stride());
      }
    }
  }

  A* packed_q_ = nullptr;     // [block][Dk][lanes]
  A* packed_do_ = nullptr;    // [block][Dv][lanes]
  A* packed_dq_ = nullptr;    // [block][Dk][lanes]
  A* q_rows_ = nullptr;       // [query][Dk in whole registers]
  A* do_rows_ = nullptr;      // [query][Dv in whole registers]
  A* maximum_ = nullptr;      // [query]
  A* inverse_sum_ = nullptr;  // [query], 0 for a query that sees nothing
  A* mean_ = nullptr;         // [query], <do, o>
  A *k_copy_ = nullptr, *v_copy_ = nullptr, *clean_ = nullptr;
  A* weights_ = nullptr;   // [block][key][lanes]
  A* dscores_ = nullptr;   // [block][key][lanes]
  A* raw_ = nullptr;       // [key][lanes], scores before the modifier
  A* keep_ = nullptr;      // [key][lanes]
  A* packed_o_ = nullptr;  // [Dv][lanes], of one block
  A *row_ = nullptr, *ones_ = nullptr;
  int used_ = 0;
  bool has_non_finite_ = false;
  int count_[blocks];
  bool is_first_tile_[blocks];
  LaneMask<A, lanes> mask_[blocks];
  Keys keys_;
  std::uint32_t query_word_[queries];
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
