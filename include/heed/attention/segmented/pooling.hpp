// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// What segmented attention is made of: who sees what, and one summary for each segment, forward and backward.

#include <heed/attention/linear/call.hpp>
#include <heed/core/activation.hpp>
#include <heed/core/gemm/driver.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// How the positions of a call are cut into segments; the padding is bound to its shape.
struct Segments {
  int length, positions;
  bool causal;
  std::optional<Padding> padding;

  int count() const { return (positions + length - 1) / length; }
  int of(int position) const { return position / length; }
  /// The real keys that query q may see at all; none for a padded query.
  KeyRange real(int b, int q) const { return padding ? padding->range(b, 0, q) : KeyRange{0, positions}; }
  /// The real keys of a segment.
  KeyRange keys(int b, int segment) const {
    const KeyRange all = real(b, 0);
    const Index begin = Index{segment} * length, first = std::max(all.begin, begin);
    return {first, std::max(first, std::min(all.end, std::min<Index>(begin + length, positions)))};
  }
};

/// A query sees the keys of its segment, causally those up to its own.
struct OwnSegment : MaskBase {
  Segments segments;
  explicit OwnSegment(const Segments& s) : segments(s) {}

  KeyRange range(int b, int, int q) const {
    const KeyRange real = segments.real(b, q);
    const Index begin = Index{segments.of(q)} * segments.length;
    return {std::max(real.begin, begin), std::min(real.end, segments.causal ? Index{q} + 1 : begin + segments.length)};
  }
};

/// A query sees the summaries of the other segments that have real keys, causally those before its own.
struct OtherSegments : MaskBase {
  Segments segments;
  explicit OtherSegments(const Segments& s) : segments(s) {}

  KeyRange range(int b, int, int q) const {
    const KeyRange real = segments.real(b, q);
    if (real.end <= real.begin) return {};
    const Index last = (real.end + segments.length - 1) / segments.length;
    return {real.begin / segments.length, segments.causal ? std::min<Index>(last, segments.of(q)) : last};
  }
  bool visible(int, int, int q, int k) const { return k != segments.of(q); }
  std::uint64_t word(int, int, int q, int k, int n) const {
    const int own = segments.of(q) - k;
    return low_bits(n) & ~(own >= 0 && own < 64 ? std::uint64_t{1} << own : 0);
  }
};

/// Both, over the keys and, after them, the summaries.
struct SegmentsAndSummaries : MaskBase {
  OwnSegment keys;
  OtherSegments summaries;
  explicit SegmentsAndSummaries(const Segments& s) : keys(s), summaries(s) {}

  KeyRange range(int, int, int) const { return kAllKeys; }
  bool visible(int b, int h, int q, int k) const {
    const int positions = keys.segments.positions;
    return k < positions ? is_visible(keys, b, h, q, k) : is_visible(summaries, b, h, q, k - positions);
  }
};

/// y += factor · x, for any scalar.
template <class A>
void add_scaled(A factor, const A* x, A* y, Index n) {
  if constexpr (has_blocked_v<A>) {
    add_scaled_row(factor, x, y, n);
  } else {
    for (Index i = 0; i < n; ++i) y[i] += factor * x[i];
  }
}
template <class A>
A inner_product(const A* x, const A* y, Index n) {
  if constexpr (has_blocked_v<A>) {
    return dot_row(x, y, n);
  } else {
    A sum(0);
    for (Index i = 0; i < n; ++i) sum += x[i] * y[i];
    return sum;
  }
}

/// The summaries of k (B, G, L, Dk) and v (B, G, L, Dv) in the compute type A: a mean of the segment's real keys and of
/// its values, with equal weights or, given pooling vectors w (G, Dk), with the softmax over the segment of k·w / √Dk.
template <class A, class S, class T>
class Pooling {
 public:
  Pooling(const Segments& segments, const TensorView<const S, 4>& k, const TensorView<const S, 4>& v,
          const TensorView<const T, 2>& vectors, Context& context)
      : segments_(segments), k_(k), v_(v), vectors_(vectors), context_(context) {
    worker_size_ = 4 * (Dk() + Dv()) + segments.length;
    memory_ = context.workspace().template take<A>(worker_size_ * context.executor().concurrency());
    if (learned()) weights_ = context.workspace().template tensor<A, 3>({k.extent(0), k.extent(1), k.extent(2)});
  }

  /// keys (B, G, segments, Dk) and values (B, G, segments, Dv), dense; 0 for a segment without real keys.
  void summarize(const TensorView<A, 4>& keys, const TensorView<A, 4>& values) {
    for_each_segment([&](int b, int g, int c, A* row) {
      const KeyRange range = segments_.keys(b, c);
      A *const key = keys.data() + row_of(b, g, c) * Dk(), *const value = values.data() + row_of(b, g, c) * Dv();
      std::fill_n(key, Dk(), A(0));
      std::fill_n(value, Dv(), A(0));
      if (learned()) weigh(b, g, range, row);
      for (Index j = range.begin; j < range.end; ++j) {
        const A weight = learned() ? weights_(b, g, j) : A(1) / static_cast<A>(range.end - range.begin);
        load(k_, b, g, j, row);
        add_scaled(weight, row, key, Dk());
        load(v_, b, g, j, row);
        add_scaled(weight, row, value, Dv());
      }
    });
  }

  /// Adds to dk (B, G, L, Dk) and dv (B, G, L, Dv) what flows back through the summaries, whose gradients are dense,
  /// and adds that of the pooling vectors. What has no data is not wanted. After summarize().
  void differentiate(const TensorView<const A, 4>& dkeys, const TensorView<const A, 4>& dvalues,
                     const TensorView<A, 4>& dk, const TensorView<A, 4>& dv, const TensorView<T, 2>& dvectors) {
    const Index rows = k_.extent(0) * G() * segments_.count();
    A* const parts = dvectors.data() ? context_.workspace().template take<A>(rows * Dk()) : nullptr;
    if (parts) std::fill_n(parts, rows * Dk(), A(0));
    for_each_segment([&](int b, int g, int c, A* memory) {
      const Index at = row_of(b, g, c);
      const A *const dkey = dkeys[b][g][c].data(), *const dvalue = dvalues[b][g][c].data();
      const auto is_zero = [](A x) { return x == A(0); };
      // A summary that no query sees takes no part, whatever its keys hold.
      if (std::all_of(dkey, dkey + Dk(), is_zero) && std::all_of(dvalue, dvalue + Dv(), is_zero)) return;
      differentiate_segment(b, g, segments_.keys(b, c), dkey, dvalue, dk, dv, parts ? parts + at * Dk() : nullptr,
                            memory);
    });
    for (Index g = 0; parts && g < G(); ++g) {
      for (Index i = 0; i < Dk(); ++i) {
        A sum(0);
        for (Index b = 0; b < k_.extent(0); ++b) {
          for (Index c = 0; c < segments_.count(); ++c) sum += parts[row_of(b, g, c) * Dk() + i];
        }
        dvectors(g, i) = stored_as<T>(static_cast<A>(dvectors(g, i)) + sum);
      }
    }
  }

 private:
  Index G() const { return k_.extent(1); }
  Index Dk() const { return k_.extent(3); }
  Index Dv() const { return v_.extent(3); }
  Index row_of(Index b, Index g, Index c) const { return (b * G() + g) * segments_.count() + c; }
  bool learned() const { return vectors_.data() != nullptr; }
  A scale() const { return scale_of<A>(std::nullopt, static_cast<int>(Dk())); }

  template <class F>
  void for_each_segment(F&& f) {
    const int n = segments_.count(), heads = static_cast<int>(G());
    parallel_for_each(&context_.executor(), k_.extent(0) * heads * n, [&](Index task, int worker) {
      const int head = static_cast<int>(task / n);
      f(head / heads, head % heads, static_cast<int>(task % n), memory_ + worker * worker_size_);
    });
  }
  static void load(const TensorView<const S, 4>& x, int b, int g, Index j, A* to) {
    convert_row(&x(b, g, j, 0), x.stride(3), x.extent(3), to);
  }

  /// The softmax of a segment's keys.
  void weigh(int b, int g, const KeyRange& range, A* memory) {
    using std::exp;
    A *const vector = memory, *const key = memory + Dk();
    convert_row(&vectors_(g, 0), vectors_.stride(1), Dk(), vector);
    A maximum = -std::numeric_limits<A>::infinity(), sum(0);
    for (Index j = range.begin; j < range.end; ++j) {
      load(k_, b, g, j, key);
      weights_(b, g, j) = inner_product(key, vector, Dk()) * scale();
      if (!(weights_(b, g, j) <= maximum)) maximum = weights_(b, g, j);
    }
    for (Index j = range.begin; j < range.end; ++j) sum += weights_(b, g, j) = exp(weights_(b, g, j) - maximum);
    for (Index j = range.begin; j < range.end; ++j) weights_(b, g, j) /= sum;
  }

  void differentiate_segment(int b, int g, const KeyRange& range, const A* dkey, const A* dvalue,
                             const TensorView<A, 4>& dk, const TensorView<A, 4>& dv, A* part, A* memory) {
    A *const key = memory, *const value = key + Dk(), *const vector = value + Dv(), *const row = vector + Dk();
    A* const dlogits = memory + 4 * (Dk() + Dv());
    if (learned()) {
      convert_row(&vectors_(g, 0), vectors_.stride(1), Dk(), vector);
      A mean(0);
      for (Index j = range.begin; j < range.end; ++j) {
        load(k_, b, g, j, key);
        load(v_, b, g, j, value);
        dlogits[j - range.begin] = inner_product(key, dkey, Dk()) + inner_product(value, dvalue, Dv());
        mean += weights_(b, g, j) * dlogits[j - range.begin];
      }
      for (Index j = range.begin; j < range.end; ++j) {
        A& dlogit = dlogits[j - range.begin];
        dlogit = weights_(b, g, j) * (dlogit - mean) * scale();
        if (!part) continue;
        load(k_, b, g, j, key);
        add_scaled(dlogit, key, part, Dk());
      }
    }
    for (Index j = range.begin; j < range.end; ++j) {
      const A weight = learned() ? weights_(b, g, j) : A(1) / static_cast<A>(range.end - range.begin);
      if (dk.data()) {
        std::fill_n(row, Dk(), A(0));
        add_scaled(weight, dkey, row, Dk());
        if (learned()) add_scaled(dlogits[j - range.begin], vector, row, Dk());
        for (Index i = 0; i < Dk(); ++i) dk(b, g, j, i) += row[i];
      }
      for (Index i = 0; dv.data() && i < Dv(); ++i) dv(b, g, j, i) += weight * dvalue[i];
    }
  }

  Segments segments_;
  TensorView<const S, 4> k_, v_;
  TensorView<const T, 2> vectors_;
  Context& context_;
  Index worker_size_;
  A* memory_;
  TensorView<A, 3> weights_;
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
