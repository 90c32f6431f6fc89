// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Linear attention in chunks of positions, so that all its arithmetic is matrix products: what a chunk's queries see
/// of earlier chunks comes from the sums over those, what they see of their own chunk from its pairs (as Hua et al.,
/// "Transformer quality in linear time", 2022, section 3.2). O(L·D²) time, O(L·D) memory.
///
/// The borders of chunks depend on the shape alone, and sums over chunks are added in order.

#include <heed/attention/common/rows.hpp>
#include <heed/attention/linear/call.hpp>
#include <heed/core/activation.hpp>
#include <heed/core/gemm/driver.hpp>
#include <heed/core/gemm/micro_kernel.hpp>

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

/// One call without its types, as BlockedProblem.
template <class A>
struct LinearProblem {
  AttentionShape shape;
  LinearTerms options;
  RowSource<A> q, k, v;
  RowSink<A> out;
  TensorView<A, 3> denominators;
  /// Of a running state, the sums of each (sample, key head) as in LinearPlan; null for none.
  A* state;
};
template <class A>
struct LinearBackwardProblem {
  LinearProblem<A> forward;
  RowSource<A> out, dout;
  RowSink<A> dq, dk, dv;
};

/// How a call is cut. Positions form chunks, chunks form units: a unit has one set of sums, (Dk, Dv) and after it (Dk).
struct LinearPlan {
  int chunk;        // positions
  int unit_chunks;  // causal: 1, since every chunk sees other sums
  Index sums_size;
  int head_keys, head_queries;  // units a head

  LinearPlan(const AttentionShape& s, bool causal)
      // As long as the sums are wide: a longer chunk costs more in its own pairs, a shorter one more memory for sums.
      : chunk(s.Dk <= 64 ? 64 : 128),
        unit_chunks(causal ? 1 : 16),
        sums_size(Index{s.Dk} * s.Dv + s.Dk),
        head_keys(units(s.Lk)),
        head_queries(units(s.Lq)) {}
  int chunks(int length) const { return static_cast<int>((Index{length} + chunk - 1) / chunk); }
  /// At least one, whose sums are then zeros.
  int units(int length) const { return std::max(1, (chunks(length) + unit_chunks - 1) / unit_chunks); }
};

template <class A>
struct ChunkSums {
  A* values;  // (Dk, Dv)
  A* keys;    // (Dk)
};

/// Turns the sums of a head's units into what each unit sees: causally the total of the units before it (with
/// `backwards`, after it), begun with the state, which receives the total of all; otherwise the first unit becomes the
/// total.
template <class A>
void scan_units(A* sums, int heads, int units, Index size, bool causal, bool backwards, A* state, Executor* executor) {
  constexpr Index range = 512;
  const Index ranges = (size + range - 1) / range;
  parallel_for_each(executor, heads * ranges, [&](Index task, int) {
    const Index head = task / ranges, first = task % ranges * range, n = std::min(range, size - first);
    A* const from = sums + head * units * size + first;
    if (!causal) {
      for (int unit = 1; unit < units; ++unit) add_row(from, from + unit * size, 1, n);
      return;
    }
    A total[range] = {}, next[range];
    if (state) std::copy_n(state + head * size + first, n, total);
    for (int i = 0; i < units; ++i) {
      A* const unit = from + (backwards ? units - 1 - i : i) * size;
      std::copy_n(unit, n, next);
      std::copy_n(total, n, unit);
      add_row(total, next, 1, n);
    }
    if (state) std::copy_n(total, n, state + head * size + first);
  });
}

/// The keys of a chunk that are real: `first` is the position of the first, and stands `shift` after the chunk's begin.
struct ChunkKeys {
  int first = 0, count = 0, shift = 0;
};

/// One worker's memory and the steps of both directions on one chunk.
template <class A>
class LinearChunk {
 public:
  using View = TensorView<A, 2>;
  using ConstView = TensorView<const A, 2>;

  static Index memory(const AttentionShape& s, int chunk) {
    const Index widest = std::max<Index>({s.Dk, s.Dv, chunk});
    return chunk * (4 * Index{s.Dk} + 4 * Index{s.Dv} + 2 * Index{chunk} + 2 + widest) +
           SmallProduct<A>::memory(widest);
  }

  LinearChunk(const LinearProblem<A>& p, const LinearPlan& plan, A* memory)
      : p_(p), Dk_(p.shape.Dk), Dv_(p.shape.Dv), chunk_(plan.chunk) {
    const Index n = chunk_;
    const auto take = [&](Index size) {
      A* const taken = memory;
      memory += size;
      return taken;
    };
    k_ = take(n * Dk_), q_ = take(n * Dk_), dq_ = take(n * Dk_), dk_ = take(n * Dk_);
    v_ = take(n * Dv_), out_ = take(n * Dv_), dout_ = take(n * Dv_), dv_ = take(n * Dv_);
    pairs_ = take(n * n), weights_ = take(n * n);
    denominators_ = take(n), deltas_ = take(n);
    clean_ = take(n * std::max<Index>({Dk_, Dv_, n}));
    product_ = SmallProduct<A>(memory);
  }

  ChunkKeys keys_of(int b, int c) const {
    const KeyRange real = real_keys(p_.options.padding, b, p_.shape.Lk);
    const Index begin = Index{c} * chunk_, end = std::min<Index>(begin + chunk_, p_.shape.Lk);
    const Index first = std::clamp(real.begin, begin, std::max(begin, end)), last = std::min(real.end, end);
    return {static_cast<int>(first), static_cast<int>(std::max<Index>(0, last - first)),
            static_cast<int>(first - begin)};
  }
  int query_count(int c) const { return std::clamp(p_.shape.Lq - c * chunk_, 0, chunk_); }

  /// sums += phi(k)ᵀ·v and phi(k) over the keys of chunk c.
  void add_keys(int b, int g, int c, const ChunkSums<A>& sums) {
    const ChunkKeys keys = keys_of(b, c);
    const View k = features(p_.k, b, g, keys.first, keys.count, k_);
    const ConstView v = rows(p_.v, b, g, keys.first, keys.count, v_);
    if (keys.count > 0) product_.run(k.transpose(0, 1), v, {sums.values, {Dk_, Dv_}}, true);
    for (int j = 0; j < keys.count; ++j) add_row(sums.keys, k_ + j * Dk_, 1, Dk_);
  }

  /// The output of the queries of chunk c, which see `sums` and, causally, their own chunk.
  void attend(int b, int g, int c, const ChunkSums<A>& sums) {
    const bool causal = p_.options.causal;
    const int group = p_.shape.H / p_.shape.G, first = c * chunk_, n = query_count(c);
    const ChunkKeys keys = causal ? keys_of(b, c) : ChunkKeys{};
    const View k = features(p_.k, b, g, keys.first, keys.count, k_);
    const ConstView v = rows(p_.v, b, g, keys.first, keys.count, v_);
    const View out{out_, {n, Dv_}}, pairs{pairs_, {n, keys.count}};
    for (int h = g * group; h < (g + 1) * group; ++h) {
      const View q = features(p_.q, b, h, first, n, q_);
      product_.run(q, ConstView{sums.values, {Dk_, Dv_}}, out, false);
      for (int i = 0; i < n; ++i) denominators_[i] = dot_row(q_ + i * Dk_, sums.keys, Dk_);
      if (keys.count > 0) {
        product_.run(q, k.transpose(0, 1), pairs, false);
        for (int i = 0; i < n; ++i) {
          A* const row = pairs_ + i * keys.count;
          std::fill_n(row + visible(i, keys), keys.count - visible(i, keys), A(0));
          denominators_[i] += sum_row(row, keys.count);
        }
        add_visible(pairs, v, out, keys.shift);
      }
      for (int i = 0; i < n; ++i) {
        A* const row = out_ + i * Dv_;
        if (!is_real_query(p_.options.padding, b, first + i)) denominators_[i] = A(0);
        if (denominators_[i] == A(0))
          std::fill_n(row, Dv_, A(0));
        else
          divide_row(row, denominators_[i], Dv_);
        p_.out.write(b, h, first + i, row);
        if (p_.denominators.data()) p_.denominators(b, h, first + i) = denominators_[i];
      }
    }
  }

  /// sums += wᵀ·dout and w·delta over the queries of chunk c, w = phi(q) / denominator and delta = <dout, out>.
  void add_queries(const LinearBackwardProblem<A>& p, int b, int g, int c, const ChunkSums<A>& sums) {
    const int group = p_.shape.H / p_.shape.G, n = query_count(c);
    for (int h = g * group; h < (g + 1) * group; ++h) {
      load_queries(p, b, h, c);
      if (n > 0)
        product_.run(ConstView{q_, {n, Dk_}}.transpose(0, 1), View{dout_, {n, Dv_}}, {sums.values, {Dk_, Dv_}}, true);
      for (int i = 0; i < n; ++i) add_scaled_row(deltas_[i], q_ + i * Dk_, sums.keys, Dk_);
    }
  }

  /// The gradients of the queries and keys of chunk c. Keys from `seen` on are seen by no query.
  void differentiate(const LinearBackwardProblem<A>& p, int b, int g, int c, const ChunkSums<A>& key_sums,
                     const ChunkSums<A>& query_sums, int seen) {
    const bool causal = p_.options.causal;
    const int group = p_.shape.H / p_.shape.G, n = query_count(c);
    const ChunkKeys keys = keys_of(b, c);
    const int m = keys.count;
    const View k = features(p_.k, b, g, keys.first, m, k_), dk{dk_, {m, Dk_}}, dv{dv_, {m, Dv_}};
    const ConstView v = rows(p_.v, b, g, keys.first, m, v_), sums{query_sums.values, {Dk_, Dv_}};
    if (p.dk.is_wanted()) {
      product_.run(v, sums.transpose(0, 1), dk, false);
      for (int j = 0; j < m; ++j) add_scaled_row(A(-1), query_sums.keys, dk_ + j * Dk_, Dk_);
    }
    if (p.dv.is_wanted()) product_.run(k, sums, dv, false);

    const View w{q_, {n, Dk_}}, dout{dout_, {n, Dv_}}, dq{dq_, {n, Dk_}};
    const View pairs{pairs_, {n, m}}, weights{weights_, {n, m}};
    for (int h = g * group; n > 0 && (causal || p.dq.is_wanted()) && h < (g + 1) * group; ++h) {
      load_queries(p, b, h, c);
      if (p.dq.is_wanted()) {
        product_.run(dout, ConstView{key_sums.values, {Dk_, Dv_}}.transpose(0, 1), dq, false);
        for (int i = 0; i < n; ++i) add_scaled_row(-deltas_[i], key_sums.keys, dq_ + i * Dk_, Dk_);
      }
      if (causal && m > 0) {
        product_.run(dout, v.transpose(0, 1), pairs, false);
        for (int i = 0; i < n; ++i) {
          for (int j = 0; j < m; ++j) pairs(i, j) -= deltas_[i];
          keep_visible(i, keys, pairs);
        }
        if (p.dq.is_wanted()) add_visible(pairs, k, dq, keys.shift);
        if (p.dk.is_wanted()) add_seen(pairs, w, dk, keys.shift);
        if (p.dv.is_wanted()) {
          product_.run(w, k.transpose(0, 1), weights, false);
          for (int i = 0; i < n; ++i) keep_visible(i, keys, weights);
          add_seen(weights, dout, dv, keys.shift);
        }
      }
      if (p.dq.is_wanted()) write_queries(p, b, h, c);
    }
    write_keys(p, b, g, c, keys, seen);
  }

 private:
  /// Rows where they lie, or else converted to `to`.
  static ConstView rows(const RowSource<A>& source, int b, int head, int first, int n, A* to) {
    const Index width = source.width();
    if (source.direct()) {
      if (n == 0) return ConstView(to, {0, width});
      return ConstView(source.in_place(b, head, first), {n, width}, {source.row_stride(), 1});
    }
    for (int i = 0; i < n; ++i) source.copy(b, head, first + i, to + i * width);
    return ConstView(to, {n, width});
  }
  View features(const RowSource<A>& source, int b, int head, int first, int n, A* to) const {
    for (int i = 0; i < n; ++i) source.copy(b, head, first + i, to + i * source.width());
    apply_features(p_.options.feature_map, to, n * source.width());
    return View(to, {n, source.width()});
  }

  /// The number of the chunk's keys that its query i sees.
  static int visible(int i, const ChunkKeys& keys) { return std::clamp(i + 1 - keys.shift, 0, keys.count); }
  void keep_visible(int i, const ChunkKeys& keys, const View& pairs) const {
    const int from = denominators_[i] == A(0) ? 0 : visible(i, keys);
    std::fill_n(&pairs(i, 0) + from, keys.count - from, A(0));
  }

  /// c (queries) += pairs · x (keys), and c (keys) += pairsᵀ · x (queries), where pairs that don't see each other are
  /// 0.
  void add_visible(const View& pairs, const ConstView& x, const View& c, int shift) const {
    add_pairs(pairs, x, c, [&](Index j) { return KeyRange{j + shift, pairs.extent(0)}; });
  }
  void add_seen(const View& pairs, const ConstView& x, const View& c, int shift) const {
    add_pairs(pairs.transpose(0, 1), x, c, [&](Index i) { return KeyRange{0, i + 1 - shift}; });
  }
  /// What a row of x holds must not show in rows of c that don't see it, but 0 · NaN is NaN: such numbers are left out
  /// of the product and added by themselves.
  template <class RowsThatSee>
  void add_pairs(const ConstView& pairs, const ConstView& x, const View& c, RowsThatSee&& rows_that_see) const {
    if (!has_non_finite(x.data(), x.stride(0), x.extent(0), x.extent(1))) return product_.run(pairs, x, c, true);
    const View clean{clean_, x.extents()};
    for (Index i = 0; i < x.extent(0); ++i) {
      for (Index d = 0; d < x.extent(1); ++d) clean(i, d) = detail::is_finite(x(i, d)) ? x(i, d) : A(0);
    }
    product_.run(pairs, clean, c, true);
    for (Index i = 0; i < x.extent(0); ++i) {
      const KeyRange see = rows_that_see(i);
      for (Index d = 0; d < x.extent(1); ++d) {
        if (detail::is_finite(x(i, d))) continue;
        for (Index r = std::max<Index>(0, see.begin); r < std::min(see.end, c.extent(0)); ++r)
          c(r, d) += pairs(r, i) * x(i, d);
      }
    }
  }

  /// w, dout and delta of chunk c; all 0 for a query that saw nothing.
  void load_queries(const LinearBackwardProblem<A>& p, int b, int h, int c) {
    const int first = c * chunk_, n = query_count(c);
    features(p_.q, b, h, first, n, q_);
    for (int i = 0; i < n; ++i) {
      A *const q = q_ + i * Dk_, *const dout = dout_ + i * Dv_;
      denominators_[i] = p_.denominators(b, h, first + i);
      if (denominators_[i] == A(0)) {
        std::fill_n(q, Dk_, A(0));
        std::fill_n(dout, Dv_, A(0));
        deltas_[i] = A(0);
      } else {
        divide_row(q, denominators_[i], Dk_);
        p.dout.copy(b, h, first + i, dout);
        p.out.copy(b, h, first + i, out_);
        deltas_[i] = dot_row(dout, out_, Dv_);
      }
    }
  }

  void write_queries(const LinearBackwardProblem<A>& p, int b, int h, int c) {
    const int first = c * chunk_, n = query_count(c);
    // phi(q) again: w is the quotient, and the slope wants phi(q) to the bit.
    const View q = features(p_.q, b, h, first, n, q_);
    for (int i = 0; i < n; ++i) {
      A* const row = dq_ + i * Dk_;
      if (denominators_[i] == A(0)) {
        std::fill_n(row, Dk_, A(0));
      } else {
        for (int d = 0; d < Dk_; ++d) row[d] *= feature_slope(p_.options.feature_map, q(i, d)) / denominators_[i];
      }
      p.dq.write(b, h, first + i, row);
    }
  }

  void write_keys(const LinearBackwardProblem<A>& p, int b, int g, int c, const ChunkKeys& keys, int seen) {
    const int begin = c * chunk_, end = begin + std::min(chunk_, p_.shape.Lk - begin);
    for (int key = begin; key < end; ++key) {
      const int j = key - keys.first;
      const bool is_seen = j >= 0 && j < keys.count && key < seen;
      if (!is_seen) {
        std::fill_n(clean_, std::max(Dk_, Dv_), A(0));
      } else if (p.dk.is_wanted()) {
        for (int d = 0; d < Dk_; ++d) dk_[j * Dk_ + d] *= feature_slope(p_.options.feature_map, k_[j * Dk_ + d]);
      }
      if (p.dk.is_wanted()) p.dk.write(b, g, key, is_seen ? dk_ + j * Dk_ : clean_);
      if (p.dv.is_wanted()) p.dv.write(b, g, key, is_seen ? dv_ + j * Dv_ : clean_);
    }
  }

  const LinearProblem<A>& p_;
  Index Dk_, Dv_;
  int chunk_;
  A *k_, *q_, *dq_, *dk_, *v_, *out_, *dout_, *dv_, *pairs_, *weights_, *denominators_, *deltas_, *clean_;
  SmallProduct<A> product_;
};

/// Both directions of one call: the sums of all units, what each unit sees of them, then the chunks.
template <class A>
class LinearRunner {
 public:
  LinearRunner(const LinearProblem<A>& problem, Context& context)
      : p_(problem), plan_(p_.shape, p_.options.causal), heads_(p_.shape.B * p_.shape.G), context_(context) {
    const AttentionShape& s = p_.shape;
    // Below this many multiplications waking a thread costs more than it brings.
    constexpr Index worth_sharing = 100'000;
    const Index work = Index{s.B} * s.H * (Index{s.Lq} + s.Lk) * s.Dk * std::max(s.Dv, 1);
    executor_ = work >= worth_sharing ? &context.executor() : nullptr;
    worker_size_ = LinearChunk<A>::memory(s, plan_.chunk);
    memory_ = context.workspace().template take<A>(worker_size_ * (executor_ ? executor_->concurrency() : 1));
  }

  void forward() {
    A* const sums = sum_keys();
    const int chunks = plan_.chunks(p_.shape.Lq);
    for_each_chunk(chunks, [&](LinearChunk<A>& chunk, int b, int g, int c) {
      chunk.attend(b, g, c, sums_at(sums, plan_.head_keys, b, g, p_.options.causal ? c : 0));
    });
  }

  void backward(const LinearBackwardProblem<A>& p) {
    const AttentionShape& s = p_.shape;
    A* const key_sums = p.dq.is_wanted() ? sum_keys() : nullptr;
    A* const query_sums = p.dk.is_wanted() || p.dv.is_wanted() ? sum_queries(p) : nullptr;
    int* const seen = context_.workspace().template take<int>(heads_);
    for (int head = 0; head < heads_; ++head) seen[head] = seen_keys(head / s.G, head % s.G);
    const int chunks = std::max(plan_.chunks(s.Lq), query_sums ? plan_.chunks(s.Lk) : 0);
    for_each_chunk(chunks, [&](LinearChunk<A>& chunk, int b, int g, int c) {
      const int unit = p_.options.causal ? c : 0;
      chunk.differentiate(p, b, g, c, sums_at(key_sums, plan_.head_keys, b, g, unit),
                          sums_at(query_sums, plan_.head_queries, b, g, unit), seen[b * s.G + g]);
    });
  }

 private:
  ChunkSums<A> sums_at(A* sums, int units, int b, int g, int unit) const {
    if (!sums) return {};
    A* const at = sums + ((Index{b} * p_.shape.G + g) * units + unit) * plan_.sums_size;
    return {at, at + Index{p_.shape.Dk} * p_.shape.Dv};
  }
  template <class F>
  void for_each_chunk(int chunks, F&& f) {
    parallel_for_each(executor_, Index{heads_} * chunks, [&](Index task, int worker) {
      LinearChunk<A> chunk(p_, plan_, memory_ + worker * worker_size_);
      const int head = static_cast<int>(task / chunks);
      f(chunk, head / p_.shape.G, head % p_.shape.G, static_cast<int>(task % chunks));
    });
  }
  /// Of `units` units a head, with add(chunk, b, g, c, sums) adding chunk c.
  template <class Add>
  A* sum_units(int units, int chunks, bool backwards, A* state, Add&& add) {
    A* const sums = context_.workspace().template take<A>(Index{heads_} * units * plan_.sums_size);
    for_each_chunk(units, [&](LinearChunk<A>& chunk, int b, int g, int unit) {
      const ChunkSums<A> to = sums_at(sums, units, b, g, unit);
      std::fill_n(to.values, plan_.sums_size, A(0));
      const int first = unit * plan_.unit_chunks, last = std::min(chunks, first + plan_.unit_chunks);
      for (int c = first; c < last; ++c) add(chunk, b, g, c, to);
    });
    scan_units(sums, heads_, units, plan_.sums_size, p_.options.causal, backwards, state, executor_);
    return sums;
  }
  A* sum_keys() {
    return sum_units(
        plan_.head_keys, plan_.chunks(p_.shape.Lk), false, p_.state,
        [](LinearChunk<A>& chunk, int b, int g, int c, const ChunkSums<A>& to) { chunk.add_keys(b, g, c, to); });
  }
  A* sum_queries(const LinearBackwardProblem<A>& p) {
    return sum_units(
        plan_.head_queries, plan_.chunks(p_.shape.Lq), true, nullptr,
        [&](LinearChunk<A>& chunk, int b, int g, int c, const ChunkSums<A>& to) { chunk.add_queries(p, b, g, c, to); });
  }

  /// Keys from here on are seen by no query that sees anything.
  int seen_keys(int b, int g) const {
    const int group = p_.shape.H / p_.shape.G;
    int seen = 0;
    for (int h = g * group; h < (g + 1) * group; ++h) {
      for (int q = p_.shape.Lq; q > seen; --q) {
        if (p_.denominators(b, h, q - 1) != A(0)) seen = q;
      }
    }
    return p_.options.causal || seen == 0 ? seen : p_.shape.Lk;
  }

  const LinearProblem<A>& p_;
  LinearPlan plan_;
  int heads_;
  Context& context_;
  Executor* executor_;
  Index worker_size_;
  A* memory_;
};

template <class A>
void run_linear(const LinearProblem<A>& p, Context& context) {
  const Workspace::Frame frame(context.workspace());
  LinearRunner<A>(p, context).forward();
}
template <class A>
void run_linear_backward(const LinearBackwardProblem<A>& p, Context& context) {
  const Workspace::Frame frame(context.workspace());
  LinearRunner<A>(p.forward, context).backward(p);
}

template <class T, class S>
LinearProblem<accumulate_t<T>> linear_problem(const LinearCall<T, S>& call) {
  using A = accumulate_t<T>;
  return {call.shape,           call.options,         RowSource<A>(call.q), RowSource<A>(call.k),
          RowSource<A>(call.v), RowSink<A>(call.out), call.denominators,    call.values.data()};
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
