// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Segmented attention: full attention inside segments of S positions, compressed between them, in O(L·(S + L/S)) time
/// and O(L) memory. Each segment has a summary of one key and one value; a query's softmax runs over the keys of its
/// segment and the summaries of the others together. Causally it sees its segment up to its own position and the
/// summaries of earlier segments.
///
///   auto out = heed::attention(q, k, v, SegmentedAttention(Causal{}, Segment{128}));
///   y = layer(x, SegmentedAttention(Causal{}), context);
///
/// A summary is the mean of the segment's keys and of its values; or, with LearnedPooling (attention pooling; Yang et
/// al., "Hierarchical attention networks", 2016), their mean with the weights softmax(k·w / √Dk) over the segment, w a
/// vector for each key head. Padding takes no part in it, and a segment of padding alone has no summary.
///
/// Shapes and types are those of attention/attention.hpp with Lq = Lk = L. L need not be a multiple of S.

#include <heed/attention/attention.hpp>
#include <heed/attention/segmented/pooling.hpp>

HEED_NAMESPACE_BEGIN

/// The number of positions of a segment, as a part of SegmentedAttention; 0 is default_segment(L).
struct Segment {
  Index length = 0;  ///< in positions
};

/// √L, which minimizes S keys + L/S summaries, rounded up to a multiple of 16.
inline int default_segment(int L) {
  return (static_cast<int>(std::ceil(std::sqrt(static_cast<double>(L)))) + 15) / 16 * 16;
}

/// Summaries are plain means.
struct MeanPooling {};

/// Summaries are means weighted by the softmax of k·w / √Dk, with the vectors w (G, Dk), borrowed; T is the queries'
/// type.
template <class T>
class LearnedPooling {
 public:
  /// Borrows the vectors (G, Dk); a temporary does not compile.
  template <class X>
  requires(TensorLike<std::remove_reference_t<X>> && rank_of_v<X> == 2)
  explicit LearnedPooling(X&& vectors) : vectors_(view_of(vectors)) {
    static_assert(std::is_lvalue_reference_v<X> || detail::is_view_v<std::remove_cvref_t<X>>,
                  "heed::LearnedPooling borrows memory: this temporary would be gone; give it a name");
  }
  /// The same vectors; backward adds their gradient to `gradient` (G, Dk).
  LearnedPooling with_gradient(TensorView<T, 2> gradient) const {
    HEED_CHECK(gradient.extents() == vectors_.extents(), ShapeError, "heed::LearnedPooling: the gradient is ",
               gradient.extents(), " but the vectors are ", vectors_.extents());
    LearnedPooling result = *this;
    result.gradient_ = gradient;
    return result;
  }
  const TensorView<const T, 2>& vectors() const { return vectors_; }  ///< (G, Dk)
  /// Without data if it is not wanted.
  const TensorView<T, 2>& gradient() const { return gradient_; }

 private:
  TensorView<const T, 2> vectors_;
  TensorView<T, 2> gradient_;
};
/// T is the element type of the vectors.
template <class X>
LearnedPooling(X&&) -> LearnedPooling<scalar_of_t<std::remove_reference_t<X>>>;

namespace detail {

template <>
inline constexpr Part kind_v<Segment> = Part::Segment;
template <class T>
inline constexpr Part kind_v<LearnedPooling<T>> = Part::Pooling;
inline constexpr MeanPooling kMeanPooling{};

template <class P>
inline constexpr bool is_segmented_part_v =
    Mask<P> || kind_v<P> == Part::Scale || kind_v<P> == Part::Segment || kind_v<P> == Part::Pooling;

/// f(from, to) for the elements of two tensors of one shape; where `to` has no memory, for none.
template <class X, class Y, class F>
void for_each_pair(const TensorView<X, 4>& from, const TensorView<Y, 4>& to, F&& f) {
  if (!to.data()) return;
  for (Index b = 0; b < to.extent(0); ++b) {
    for (Index h = 0; h < to.extent(1); ++h) {
      for (Index i = 0; i < to.extent(2); ++i) {
        for (Index d = 0; d < to.extent(3); ++d) f(from(b, h, i, d), to(b, h, i, d));
      }
    }
  }
}
template <class X, class Y>
void convert(const TensorView<X, 4>& from, const TensorView<Y, 4>& to) {
  for_each_pair(from, to, [](const X& x, Y& y) { y = static_cast<Y>(x); });
}

/// Values in the compute type: where they lie, or converted into the workspace.
template <class A, class T>
TensorView<const A, 4> widened(const TensorView<const T, 4>& x, Workspace& workspace) {
  if constexpr (std::is_same_v<A, T>) {
    return x;
  } else {
    const auto to = workspace.tensor<A, 4>(x.extents());
    convert(x, to);
    return to;
  }
}
/// Memory in the compute type for what will be written to x: x itself, or memory that narrow() writes to x.
template <class A, class T>
TensorView<A, 4> wide_memory(const TensorView<T, 4>& x, Workspace& workspace) {
  if constexpr (std::is_same_v<A, T>)
    return x;
  else
    return x.data() ? workspace.tensor<A, 4>(x.extents()) : TensorView<A, 4>();
}
template <class A, class T>
void narrow(const TensorView<A, 4>& from, const TensorView<T, 4>& to) {
  if constexpr (!std::is_same_v<A, T>) convert(from, to);
}

/// Keys or values (B, G, L, D) and after them summaries (B, G, segments, D): what the specification attends to.
template <class A, class S>
TensorView<A, 4> with_summaries(const TensorView<const S, 4>& x, const TensorView<A, 4>& summaries,
                                Workspace& workspace) {
  const Index L = x.extent(2), n = summaries.extent(2);
  const auto both = workspace.tensor<A, 4>({x.extent(0), x.extent(1), L + n, x.extent(3)});
  convert(x, both.slice(2, 0, L));
  convert(summaries, both.slice(2, L, n));
  return both;
}

/// One softmax out of two that ran over parts of a row's keys: `near` becomes the output over all, near_max and
/// near_sum its statistics.
template <class A, class S>
void merge_softmax(const TensorView<A, 4>& near, const TensorView<A, 4>& far, const AttentionTensors<A, S>& near_rows,
                   const AttentionTensors<A>& far_rows, Executor& executor) {
  const Index heads = near.extent(1);
  parallel_for_each(&executor, near.extent(0) * heads, [&](Index head, int) {
    const Index b = head / heads, h = head % heads;
    for (Index q = 0; q < near.extent(2); ++q) {
      A &maximum = near_rows.row_max(b, h, q), &sum = near_rows.row_sum(b, h, q);
      const A far_maximum = far_rows.row_max(b, h, q), far_sum = far_rows.row_sum(b, h, q);
      if (far_sum == A(0)) continue;
      // So that a NaN becomes the maximum.
      const A top = maximum <= far_maximum ? far_maximum : maximum;
      const A near_part = sum == A(0) ? A(0) : sum * std::exp(maximum - top);
      const A far_part = far_sum * std::exp(far_maximum - top);
      maximum = top;
      sum = near_part + far_part;
      const A near_weight = near_part / sum, far_weight = far_part / sum;
      for (Index d = 0; d < near.extent(3); ++d)
        near(b, h, q, d) = near_weight * near(b, h, q, d) + far_weight * far(b, h, q, d);
    }
  });
}

/// True if a call runs as two passes of the fast paths, merged, or as the specification: one softmax over keys and
/// summaries side by side, in O(L²) time.
template <class A>
bool runs_in_two_passes(const Context& context) {
  return has_blocked_v<A> && context.path != Path::Reference;
}

}  // namespace detail

/// Segmented attention as a value, for attention() and for layers. Made of a mask (Causal, Padding, or both joined with
/// &), Segment, Scale and LearnedPooling, in any order. P is MeanPooling or LearnedPooling<T>.
template <class P>
class SegmentedAttention {
 public:
  /// Throws ValueError for a negative segment length.
  template <class... Parts>
  requires(detail::is_segmented_part_v<Parts> && ...)
  explicit SegmentedAttention(const Parts&... parts)
      : mask_(detail::pick<detail::Part::Mask>(detail::kNoMask, parts...)),
        segment_(detail::pick<detail::Part::Segment>(kDefaultSegment, parts...).length),
        scale_(detail::options_of(parts...).scale),
        pooling_(detail::pick<detail::Part::Pooling>(detail::kMeanPooling, parts...)) {
    HEED_CHECK(segment_ >= 0, ValueError, kCheck.function, ": segment = ", segment_,
               " counts positions and can't be negative; 0 is the default");
  }

  /// Runs a call. attention() and layers call this.
  template <class T, class S>
  void forward(const detail::AttentionTensors<T, S>& x, Context& context) const;
  /// The gradients of forward() with this cache, in O(L·(S + L/S)) time and O(L) memory.
  template <class T>
  void backward(const AttentionCache<T>& cache, TensorView<const T, 4> dout, const AttentionGradients<T>& to,
                Context& context) const;

 private:
  static constexpr Segment kDefaultSegment{};
  static constexpr detail::CallChecks kCheck{"heed::SegmentedAttention"};

  /// The pooling vectors; without data for plain means.
  template <class T>
  TensorView<const T, 2> vectors() const {
    if constexpr (std::is_same_v<P, MeanPooling>) {
      return {};
    } else {
      static_assert(std::is_same_v<P, LearnedPooling<T>>,
                    "heed::SegmentedAttention: the pooling vectors must have the queries' scalar type");
      return pooling_.vectors();
    }
  }
  template <class T>
  TensorView<T, 2> gradient_of_vectors() const {
    if constexpr (std::is_same_v<P, MeanPooling>)
      return {};
    else
      return pooling_.gradient();
  }

  template <class T>
  detail::Segments bind(const AttentionShape& s) const {
    HEED_CHECK(s.Lq == s.Lk, ShapeError, kCheck.function, ": q has L = ", s.Lq, " positions but k has L = ", s.Lk,
               "; queries and keys are of one sequence");
    HEED_CHECK(!scale_ || detail::is_finite(static_cast<accumulate_t<T>>(*scale_)), ValueError, kCheck.function,
               ": scale = ", scale_.value_or(0), " must be finite in the type that scores are computed in");
    if (vectors<T>().data()) kCheck.extents(vectors<T>(), Extents<2>{s.G, s.Dk}, "pooling");
    const int length = segment_ > 0 ? static_cast<int>(std::min<Index>(segment_, std::max(1, s.Lq)))
                                    : std::max(1, default_segment(s.Lq));
    const detail::SequenceMask mask = mask_.bind(kCheck.function, s);
    return {length, s.Lq, mask.causal.has_value(), mask.padding};
  }

  detail::SequenceMask mask_;
  Index segment_;
  std::optional<double> scale_;
  P pooling_;
};
/// The pooling is that among the parts, else MeanPooling.
template <class... Parts>
SegmentedAttention(const Parts&...) -> SegmentedAttention<detail::pick_t<detail::Part::Pooling, MeanPooling, Parts...>>;

namespace detail {

template <class P>
inline constexpr Part kind_v<SegmentedAttention<P>> = Part::Value;

}  // namespace detail

template <class P>
template <class T, class S>
void SegmentedAttention<P>::forward(const detail::AttentionTensors<T, S>& x, Context& context) const {
  using A = accumulate_t<T>;
  using detail::AttentionTensors;
  const AttentionShape s = kCheck.shape(x.q.extents(), x.k.extents(), x.v.extents());
  kCheck.output(x.out, {s.B, s.H, s.Lq, s.Dv}, "out", x.q, x.k, x.v);
  HEED_CHECK(!x.weights.data(), ValueError, kCheck.function,
             ": there are no weights; ask for them with an Attention value");
  const detail::Segments segments = bind<T>(s);

  Workspace& workspace = context.workspace();
  const Workspace::Frame frame(workspace);
  const Extents<3> rows{s.B, s.H, s.Lq};
  const auto summary_keys = workspace.tensor<A, 4>({s.B, s.G, segments.count(), s.Dk});
  const auto summary_values = workspace.tensor<A, 4>({s.B, s.G, segments.count(), s.Dv});
  detail::Pooling<A, S, T>(segments, x.k, x.v, vectors<T>(), context).summarize(summary_keys, summary_values);
  const TensorView<const A, 4> wide_q = detail::widened<A>(x.q, workspace);
  const TensorView<A, 4> wide_out = detail::wide_memory<A>(x.out, workspace);
  const auto pass = [&](const auto& tensors, const auto& mask) {
    detail::run_attention(tensors, Attention(mask, AttentionOptions{.scale = scale_}), context);
  };

  AttentionTensors<A, S> near{wide_q, x.k, x.v, wide_out};
  near.row_max = x.row_max.data() ? x.row_max : workspace.tensor<A, 3>(rows);
  near.row_sum = x.row_sum.data() ? x.row_sum : workspace.tensor<A, 3>(rows);
  if (detail::runs_in_two_passes<A>(context)) {
    AttentionTensors<A> far{wide_q, summary_keys, summary_values, workspace.tensor<A, 4>(x.out.extents())};
    far.row_max = workspace.tensor<A, 3>(rows);
    far.row_sum = workspace.tensor<A, 3>(rows);
    pass(near, detail::OwnSegment(segments));
    pass(far, detail::OtherSegments(segments));
    detail::merge_softmax(wide_out, far.out, near, far, context.executor());
  } else {
    AttentionTensors<A> all{wide_q, detail::with_summaries(x.k, summary_keys, workspace),
                            detail::with_summaries(x.v, summary_values, workspace), wide_out};
    all.row_max = near.row_max, all.row_sum = near.row_sum;
    pass(all, detail::SegmentsAndSummaries(segments));
  }
  detail::narrow(wide_out, x.out);
}

// The two passes need only the statistics and the output of the whole softmax: the weight and the gradient of each pair
// follow from them, for any set of keys.
template <class P>
template <class T>
void SegmentedAttention<P>::backward(const AttentionCache<T>& cache, TensorView<const T, 4> dout,
                                     const AttentionGradients<T>& to, Context& context) const {
  using A = accumulate_t<T>;
  const AttentionShape s = cache.shape();
  const detail::Segments segments = bind<T>(s);
  const TensorView<T, 2> dpooling = gradient_of_vectors<T>();

  Workspace& workspace = context.workspace();
  const Workspace::Frame frame(workspace);
  const Index n = segments.count();
  const Extents<4> summary_k{s.B, s.G, n, s.Dk}, summary_v{s.B, s.G, n, s.Dv};
  const auto summary_keys = workspace.tensor<A, 4>(summary_k), summary_values = workspace.tensor<A, 4>(summary_v);
  const auto wide_k = detail::widened<A>(cache.k(), workspace), wide_v = detail::widened<A>(cache.v(), workspace);
  detail::Pooling<A, A, T> pooling(segments, wide_k, wide_v, vectors<T>(), context);
  pooling.summarize(summary_keys, summary_values);

  const auto wide_q = detail::widened<A>(cache.q(), workspace), wide_out = detail::widened<A>(cache.out(), workspace);
  const auto wide_dout = detail::widened<A>(dout, workspace);
  const auto dq = detail::wide_memory<A>(TensorView<T, 4>(to.dq), workspace);
  const auto dk = detail::wide_memory<A>(TensorView<T, 4>(to.dk), workspace);
  const auto dv = detail::wide_memory<A>(TensorView<T, 4>(to.dv), workspace);
  const bool wants_keys = dk.data() || dv.data() || dpooling.data();
  const auto pass = [&](const auto& mask, const TensorView<const A, 4>& keys, const TensorView<const A, 4>& values,
                        const AttentionGradients<A>& gradients) {
    AttentionShape shape = s;
    shape.Lk = static_cast<int>(keys.extent(2));
    detail::softmax_attention_backward(detail::AttentionBackwardCall<A>{{.shape = shape,
                                                                         .mask = MaskRef(mask),
                                                                         .scale = detail::scale_of<A>(scale_, s.Dk),
                                                                         .row_max = cache.maximum(),
                                                                         .row_sum = cache.sum()},
                                                                        wide_q,
                                                                        keys,
                                                                        values,
                                                                        wide_out,
                                                                        wide_dout,
                                                                        gradients},
                                       context);
  };

  TensorView<const A, 4> summary_dk, summary_dv;
  if (detail::runs_in_two_passes<A>(context)) {
    TensorView<A, 4> far_dq, far_dk, far_dv;
    if (dq.data()) far_dq = workspace.tensor<A, 4>(dq.extents());
    if (wants_keys) far_dk = workspace.tensor<A, 4>(summary_k), far_dv = workspace.tensor<A, 4>(summary_v);
    pass(detail::OwnSegment(segments), wide_k, wide_v, {dq, dk, dv});
    pass(detail::OtherSegments(segments), summary_keys, summary_values, {far_dq, far_dk, far_dv});
    detail::for_each_pair(far_dq, dq, [](const A& x, A& y) { y += x; });
    summary_dk = far_dk, summary_dv = far_dv;
  } else {
    const auto keys = detail::with_summaries(wide_k, summary_keys, workspace);
    const auto values = detail::with_summaries(wide_v, summary_values, workspace);
    const auto both_dk = workspace.tensor<A, 4>(keys.extents()), both_dv = workspace.tensor<A, 4>(values.extents());
    pass(detail::SegmentsAndSummaries(segments), keys, values, {dq, both_dk, both_dv});
    detail::convert(both_dk.slice(2, 0, s.Lk), dk);
    detail::convert(both_dv.slice(2, 0, s.Lk), dv);
    summary_dk = both_dk.slice(2, s.Lk, n), summary_dv = both_dv.slice(2, s.Lk, n);
  }
  if (wants_keys) pooling.differentiate(summary_dk, summary_dv, dk, dv, dpooling);
  detail::narrow(dq, TensorView<T, 4>(to.dq));
  detail::narrow(dk, TensorView<T, 4>(to.dk));
  detail::narrow(dv, TensorView<T, 4>(to.dv));
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
