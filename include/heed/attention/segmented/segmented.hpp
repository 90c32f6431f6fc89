// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Segmented attention: full attention inside segments of S positions, compressed between them, in O(L·(S + L/S)) time
/// and O(L) memory. Each segment has a summary, one key and one value that stand for its own; a query's softmax runs
/// over the keys of its segment and the summaries of the others together. Causally it sees its segment up to its own
/// position and the summaries of earlier segments.
///
///   auto out = heed::segmented_attention(q, k, v, {.segment = 128, .causal = true});
///
/// A summary is the mean of the segment's keys and of its values; or, learned (attention pooling; Yang et al.,
/// "Hierarchical attention networks", 2016), their mean with the weights softmax(k·w / √Dk) over the segment, w a
/// vector for each key head. Padding takes no part in it, and a segment of padding alone has none.
///
/// Shapes: q (B, H, L, Dk), k (B, G, L, Dk), v (B, G, L, Dv), out (B, H, L, Dv), with H a multiple of G; query head h
/// reads key/value head h / (H/G). L need not be a multiple of S. Types and plain Eigen matrices as in attention.hpp.
///
/// All throw ShapeError for extents that don't fit, ValueError for an output that overlaps an input and a bad option,
/// and what Padding finds wrong with its lengths.

#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>

#include <heed/attention/attention.hpp>
#include <heed/attention/backward.hpp>
#include <heed/attention/common/checks.hpp>
#include <heed/attention/segmented/pooling.hpp>
#include <heed/core/arguments.hpp>
#include <heed/core/config.hpp>
#include <heed/core/context.hpp>

HEED_NAMESPACE_BEGIN

/// What changes the result of segmented attention besides its arguments. T is the queries' type.
template <class T>
struct SegmentedAttentionOptions {
  /// Positions of a segment; 0 for default_segment(L).
  int segment = 0;
  /// Each query sees nothing after its own position.
  bool causal = false;
  /// The real keys of each sample; its lists are borrowed.
  std::optional<Padding> padding = std::nullopt;
  /// Factor of the scores; 1/√Dk where not given.
  std::optional<double> scale = std::nullopt;
  /// (G, Dk), the learned pooling vectors; without data, summaries are plain means.
  TensorView<const T, 2> pooling = {};
};

/// Where a backward writes: dq (B, H, L, Dk), dk (B, G, L, Dk), dv (B, G, L, Dv), and dpooling (G, Dk) of learned
/// pooling. What has no data is not wanted.
template <class T>
struct SegmentedAttentionGradients {
  TensorView<T, 4> dq, dk, dv;     ///< without data when not wanted
  TensorView<T, 2> dpooling = {};  ///< without data when not wanted
};

/// √L, where S keys and L/S summaries are fewest together, up to the next multiple of 16.
inline int default_segment(int L) {
  return (static_cast<int>(std::ceil(std::sqrt(static_cast<double>(L)))) + 15) / 16 * 16;
}

namespace detail {

/// The checked options of a call on shape s.
template <class T>
Segments bind_segments(const CallChecks& check, const SegmentedAttentionOptions<T>& options, const AttentionShape& s) {
  HEED_CHECK(s.Lq == s.Lk, ShapeError, check.function, ": q has L = ", s.Lq, " positions but k has L = ", s.Lk,
             "; queries and keys are of one sequence");
  HEED_CHECK(options.segment >= 0, ValueError, check.function, ": segment = ", options.segment,
             " counts positions and can't be negative; 0 stands for the default");
  HEED_CHECK(!options.scale || std::isfinite(static_cast<float>(*options.scale)), ValueError, check.function,
             ": scale = ", *options.scale, " must be finite in the type that scores are computed in");
  if (options.pooling.data()) check.extents(options.pooling, Extents<2>{s.G, s.Dk}, "pooling");
  const int length = options.segment > 0 ? options.segment : std::max(1, default_segment(s.Lq));
  Segments segments{length, s.Lq, options.causal, options.padding};
  if (options.padding) segments.padding = bind(*options.padding, s);
  return segments;
}

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
template <class A>
void merge_softmax(const TensorView<A, 4>& near, const TensorView<A, 4>& far, const AttentionExtras<A>& near_rows,
                   const AttentionExtras<A>& far_rows, Executor& executor) {
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

/// Whether a call runs as two passes of the fast paths, merged, or as the specification: one softmax over keys and
/// summaries side by side, in O(L²) time.
template <class A>
bool runs_in_two_passes(const Context& context) {
  return has_blocked_v<A> && context.path != Path::Reference;
}

/// row_max and row_sum (B, H, L) receive the statistics of the softmax.
template <class T, class S>
void run_segmented_attention(TensorView<T, 4> out, TensorView<const T, 4> q, TensorView<const S, 4> k,
                             TensorView<const S, 4> v, const SegmentedAttentionOptions<T>& options,
                             AttentionCache<T>* cache, Context& context) {
  using A = accumulate_t<T>;
  constexpr CallChecks check{"heed::segmented_attention"};
  const AttentionShape s = check.shape(q.extents(), k.extents(), v.extents());
  check.extents(out, {s.B, s.H, s.Lq, s.Dv}, "out");
  check.no_alias(out, q, "out", "q");
  check.no_alias(out, k, "out", "k");
  check.no_alias(out, v, "out", "v");
  const Segments segments = bind_segments(check, options, s);

  Workspace& workspace = context.workspace();
  const Extents<3> rows{s.B, s.H, s.Lq};
  AttentionExtras<A> near_rows, far_rows;
  if (cache) {
    cache->begin(rows, context, 0);
    near_rows.row_max = cache->maximum();
    near_rows.row_sum = cache->sum();
  } else {
    near_rows.row_max = workspace.tensor<A, 3>(rows);
    near_rows.row_sum = workspace.tensor<A, 3>(rows);
  }
  const auto summary_keys = workspace.tensor<A, 4>({s.B, s.G, segments.count(), s.Dk});
  const auto summary_values = workspace.tensor<A, 4>({s.B, s.G, segments.count(), s.Dv});
  Pooling<A, S, T>(segments, k, v, options.pooling, context).summarize(summary_keys, summary_values);
  const TensorView<const A, 4> wide_q = widened<A>(q, workspace);
  const TensorView<A, 4> wide_out = wide_memory<A>(out, workspace);
  const AttentionOptions softmax{.scale = options.scale};

  if (runs_in_two_passes<A>(context)) {
    const auto far = workspace.tensor<A, 4>(out.extents());
    far_rows.row_max = workspace.tensor<A, 3>(rows);
    far_rows.row_sum = workspace.tensor<A, 3>(rows);
    run_attention<A, S>(wide_out, wide_q, k, v, OwnSegment(segments), NoModifier{}, softmax, context, near_rows);
    run_attention<A, A>(far, wide_q, summary_keys, summary_values, OtherSegments(segments), NoModifier{}, softmax,
                        context, far_rows);
    merge_softmax(wide_out, far, near_rows, far_rows, context.executor());
  } else {
    run_attention<A, A>(wide_out, wide_q, with_summaries(k, summary_keys, workspace),
                        with_summaries(v, summary_values, workspace), SegmentsAndSummaries(segments), NoModifier{},
                        softmax, context, near_rows);
  }
  narrow(wide_out, out);
}

/// The two passes need nothing but the statistics and the output of the whole softmax: each pair's weight and gradient
/// follow from them, whichever keys a pass runs over.
template <class T>
void run_segmented_attention_backward(const SegmentedAttentionGradients<T>& to, TensorView<const T, 4> dout,
                                      TensorView<const T, 4> out, TensorView<const T, 4> q, TensorView<const T, 4> k,
                                      TensorView<const T, 4> v, const SegmentedAttentionOptions<T>& options,
                                      const AttentionCache<T>& cache, Context& context) {
  using A = accumulate_t<T>;
  constexpr CallChecks check{"heed::segmented_attention_backward"};
  const AttentionShape s = check.shape(q.extents(), k.extents(), v.extents());
  check.extents(dout, {s.B, s.H, s.Lq, s.Dv}, "dout");
  check.extents(out, {s.B, s.H, s.Lq, s.Dv}, "out");
  HEED_CHECK(cache.maximum().extents() == (Extents<3>{s.B, s.H, s.Lq}), ShapeError, check.function,
             ": the cache is of a forward with (B, H, L) = ", cache.maximum().extents(), " but the call has ",
             Extents<3>{s.B, s.H, s.Lq}, "; give the cache of the same forward");
  check.gradients(AttentionGradients<T>{to.dq, to.dk, to.dv}, q, k, v, out, dout);
  const Segments segments = bind_segments(check, options, s);
  if (to.dpooling.data()) {
    HEED_CHECK(options.pooling.data(), ValueError, check.function,
               ": dpooling is wanted but pooling is not learned; give options.pooling, or leave dpooling empty");
    check.extents(to.dpooling, Extents<2>{s.G, s.Dk}, "dpooling");
  }

  Workspace& workspace = context.workspace();
  const Index n = segments.count();
  const Extents<4> summary_k{s.B, s.G, n, s.Dk}, summary_v{s.B, s.G, n, s.Dv};
  const auto summary_keys = workspace.tensor<A, 4>(summary_k), summary_values = workspace.tensor<A, 4>(summary_v);
  const auto wide_k = widened<A>(k, workspace), wide_v = widened<A>(v, workspace);
  Pooling<A, A, T> pooling(segments, wide_k, wide_v, options.pooling, context);
  pooling.summarize(summary_keys, summary_values);

  const auto wide_q = widened<A>(q, workspace), wide_out = widened<A>(out, workspace);
  const auto wide_dout = widened<A>(dout, workspace);
  const auto dq = wide_memory<A>(to.dq, workspace);
  const auto dk = wide_memory<A>(to.dk, workspace), dv = wide_memory<A>(to.dv, workspace);
  const bool wants_keys = dk.data() || dv.data() || to.dpooling.data();
  const auto pass = [&](const auto& mask, const TensorView<const A, 4>& keys, const TensorView<const A, 4>& values,
                        const AttentionGradients<A>& gradients) {
    const A scale = scale_of<A>({.scale = options.scale}, s.Dk);
    AttentionShape shape = s;
    shape.Lk = static_cast<int>(keys.extent(2));
    const AttentionBackwardCall<A> call{{shape,
                                         wide_q,
                                         keys,
                                         values,
                                         {},
                                         cache.maximum(),
                                         cache.sum(),
                                         MaskRef(mask),
                                         scale,
                                         {},
                                         0,
                                         DropoutPattern(0, 0, 0)},
                                        wide_out,
                                        wide_dout,
                                        gradients};
    if constexpr (has_blocked_v<A>) {
      if (runs_in_two_passes<A>(context)) return blocked_backward(call, NoModifier{}, context);
    }
    reference_backward(call, NoModifier{}, workspace);
  };

  TensorView<const A, 4> summary_dk, summary_dv;
  if (runs_in_two_passes<A>(context)) {
    TensorView<A, 4> far_dq, far_dk, far_dv;
    if (dq.data()) far_dq = workspace.tensor<A, 4>(dq.extents());
    if (wants_keys) far_dk = workspace.tensor<A, 4>(summary_k), far_dv = workspace.tensor<A, 4>(summary_v);
    pass(OwnSegment(segments), wide_k, wide_v, {dq, dk, dv});
    pass(OtherSegments(segments), summary_keys, summary_values, {far_dq, far_dk, far_dv});
    for_each_pair(far_dq, dq, [](const A& x, A& y) { y += x; });
    summary_dk = far_dk, summary_dv = far_dv;
  } else {
    const auto keys = with_summaries(wide_k, summary_keys, workspace);
    const auto values = with_summaries(wide_v, summary_values, workspace);
    const auto both_dk = workspace.tensor<A, 4>(keys.extents()), both_dv = workspace.tensor<A, 4>(values.extents());
    pass(SegmentsAndSummaries(segments), keys, values, {dq, both_dk, both_dv});
    convert(both_dk.slice(2, 0, s.Lk), dk);
    convert(both_dv.slice(2, 0, s.Lk), dv);
    summary_dk = both_dk.slice(2, s.Lk, n), summary_dv = both_dv.slice(2, s.Lk, n);
  }
  if (wants_keys) pooling.differentiate(summary_dk, summary_dv, dk, dv, to.dpooling);
  narrow(dq, to.dq);
  narrow(dk, to.dk);
  narrow(dv, to.dv);
}

}  // namespace detail

/// Writes segmented_attention(q, k, v) to `out`. Allocates nothing once the context is warm.
template <TensorLike Out, TensorLike Q, TensorLike K, TensorLike V>
void segmented_attention_into(Out&& out, const Q& q, const K& k, const V& v,
                              const SegmentedAttentionOptions<scalar_of_t<Q>>& options, Context& context) {
  using T = scalar_of_t<Q>;
  using S = scalar_of_t<K>;
  static_assert(std::is_same_v<S, scalar_of_t<V>>, "heed::segmented_attention: k and v must have one scalar type");
  static_assert(StorageFor<S, T>, "heed::segmented_attention: k and v must have q's scalar type, half or bfloat16");
  Workspace& workspace = context.workspace();
  Workspace::Frame frame(workspace);
  detail::run_segmented_attention<T, S>(detail::write_as<4>(out), detail::read_as<4>(q, workspace),
                                        detail::read_as<4>(k, workspace), detail::read_as<4>(v, workspace), options,
                                        nullptr, context);
}

/// The same that keeps in the cache what the backward needs: the statistics of the softmax over keys and summaries.
template <TensorLike Out, TensorLike Q, TensorLike K, TensorLike V>
void segmented_attention_into(Out&& out, const Q& q, const K& k, const V& v,
                              const SegmentedAttentionOptions<scalar_of_t<Q>>& options,
                              AttentionCache<scalar_of_t<Q>>& cache, Context& context) {
  using T = scalar_of_t<Q>;
  Workspace& workspace = context.workspace();
  Workspace::Frame frame(workspace);
  detail::run_segmented_attention<T, scalar_of_t<K>>(detail::write_as<4>(out), detail::read_as<4>(q, workspace),
                                                     detail::read_as<4>(k, workspace), detail::read_as<4>(v, workspace),
                                                     options, &cache, context);
}

/// Returns segmented_attention(q, k, v): a Tensor for tensors, an Eigen matrix for Eigen matrices.
template <TensorLike Q, TensorLike K, TensorLike V>
auto segmented_attention(const Q& q, const K& k, const V& v, const SegmentedAttentionOptions<scalar_of_t<Q>>& options,
                         Context& context) {
  Workspace& workspace = context.workspace();
  Workspace::Frame frame(workspace);
  const auto query = detail::read_as<4>(q, workspace);
  const auto value = detail::read_as<4>(v, workspace);
  auto out =
      detail::make_result<Q, scalar_of_t<Q>, 4>({query.extent(0), query.extent(1), query.extent(2), value.extent(3)});
  segmented_attention_into(out, query, k, value, options, context);
  return out;
}
template <TensorLike Q, TensorLike K, TensorLike V>
auto segmented_attention(const Q& q, const K& k, const V& v,
                         const SegmentedAttentionOptions<scalar_of_t<Q>>& options = {}) {
  Context context;
  return segmented_attention(q, k, v, options, context);
}

/// Writes the gradients of segmented_attention(q, k, v) from `dout` (B, H, L, Dv), that of its output `out`. Options
/// and cache are those of the forward. Gradients are written, not added. What no query sees has the gradient 0. O(L·(S
/// + L/S)) time, O(L) memory. Allocates nothing once the context is warm.
template <class T, TensorLike DOut, TensorLike Out, TensorLike Q, TensorLike K, TensorLike V>
void segmented_attention_backward_into(const SegmentedAttentionGradients<T>& gradients, const DOut& dout,
                                       const Out& out, const Q& q, const K& k, const V& v,
                                       const SegmentedAttentionOptions<std::type_identity_t<T>>& options,
                                       const AttentionCache<T>& cache, Context& context) {
  Workspace& workspace = context.workspace();
  Workspace::Frame frame(workspace);
  detail::run_segmented_attention_backward<T>(gradients, detail::read_as<4>(dout, workspace),
                                              detail::read_as<4>(out, workspace), detail::read_as<4>(q, workspace),
                                              detail::read_as<4>(k, workspace), detail::read_as<4>(v, workspace),
                                              options, cache, context);
}

HEED_NAMESPACE_END
