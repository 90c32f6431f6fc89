// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The one entry to attention: softmax(modifier(scale · Q·Kᵀ) under a mask) · V (Vaswani et al., "Attention is all you
/// need", 2017). It checks shapes and options, chooses the path, and returns weights or row statistics on demand.
///
/// Shapes: q (B, H, Lq, Dk), k (B, G, Lk, Dk), v (B, G, Lk, Dv), out (B, H, Lq, Dv), with H a multiple of G; query head
/// h reads key/value head h / (H/G). Each may be a Tensor, a TensorView with any strides, or a plain Eigen matrix (L,
/// D) of any storage order as one sample and head; tensors of rank 2 and 3 stand for (L, D) and (H, L, D). q and out
/// have one scalar type T; k and v have one type S, which is T or a 16-bit type.
///
/// All throw ShapeError for extents that don't fit, ValueError for a bad option, an ambiguous mask alignment, or an
/// output that overlaps an input, and whatever the mask finds wrong with the shape.

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <heed/attention/common/call.hpp>
#include <heed/attention/common/checks.hpp>
#include <heed/attention/softmax/forward.hpp>
#include <heed/attention/softmax/reference.hpp>
#include <heed/core/arguments.hpp>
#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/mask/basic.hpp>
#include <heed/mask/modifier.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// What a call may return besides its output; empty views are not computed.
template <class T>
struct AttentionExtras {
  TensorView<T, 4> weights;
  TensorView<accumulate_t<T>, 3> row_max, row_sum;
  /// Receives the number of the dropout stream.
  std::uint64_t* stream = nullptr;
};

/// Everything that the public functions share: one core on views.
template <class T, StorageFor<T> S, Mask MaskType = NoMask, Modifier ModifierType = NoModifier>
void run_attention(TensorView<T, 4> out, TensorView<const T, 4> q, TensorView<const S, 4> k, TensorView<const S, 4> v,
                   const MaskType& mask, const ModifierType& modifier, const AttentionOptions& options,
                   Context& context, const AttentionExtras<T>& extras = {}) {
  using A = accumulate_t<T>;
  constexpr CallChecks check{"heed::attention"};
  const AttentionShape shape = check.shape(q.extents(), k.extents(), v.extents());
  check.options<A>(options, shape);
  check.extents(out, {q.extent(0), q.extent(1), q.extent(2), v.extent(3)}, "out");
  check.no_alias(out, q, "out", "q");
  check.no_alias(out, k, "out", "k");
  check.no_alias(out, v, "out", "v");
  const bool wants_weights = extras.weights.data() != nullptr;
  if (wants_weights) {
    check.extents(extras.weights, {shape.B, shape.H, shape.Lq, shape.Lk}, "weights");
    check.no_alias(extras.weights, q, "weights", "q");
    check.no_alias(extras.weights, k, "weights", "k");
    check.no_alias(extras.weights, v, "weights", "v");
    check.no_alias(extras.weights, out, "weights", "out");
  }

  const auto bound = bind(mask, shape);
  const auto bound_modifier = bind(modifier, shape);
  const double dropout = context.training ? options.dropout : 0.0;
  const std::uint64_t stream = dropout > 0 ? context.next_stream() : 0;
  if (extras.stream) *extras.stream = stream;
  const AttentionCall<T, S> call{shape,
                                 q,
                                 k,
                                 v,
                                 out,
                                 extras.row_max,
                                 extras.row_sum,
                                 MaskRef(bound),
                                 scale_of<A>(options, shape.Dk),
                                 options.sinks,
                                 dropout,
                                 DropoutPattern(context.seed, stream, dropout)};

  if constexpr (has_blocked_v<A>) {
    if (context.path == Path::Reference)
      reference_attention(call, bound_modifier, context.workspace());
    else
      blocked_attention(call, bound_modifier, context);
  } else {
    HEED_CHECK(
        context.path != Path::Blocked, ValueError,
        "heed::attention: the blocked path computes in float and double only; use Path::Automatic for other scalars");
    reference_attention(call, bound_modifier, context.workspace());
  }
  if (wants_weights) reference_weights(call, bound_modifier, extras.weights, context.workspace());
}

}  // namespace detail

/// Bytes of workspace that attention_into takes for tensors or views whose last dimension is dense; context.workspace()
/// .reserve() of so many and the first call allocates nothing either. T is q's scalar type, S that of k and v;
/// `concurrency` is that of the context's executor.
template <class T, StorageFor<T> S = T>
std::size_t attention_workspace(const AttentionShape& shape, int concurrency = 1) {
  using A = accumulate_t<T>;
  if (Index{shape.B} * shape.H * shape.Lq == 0) return 0;
  if constexpr (detail::has_blocked_v<A>)
    return detail::blocked_attention_workspace<A, S>(shape, concurrency);
  else
    return detail::reference_workspace<A>(shape);
}

/// Writes attention(q, k, v) to `out`. Allocates nothing once the context is warm.
template <TensorLike Out, TensorLike Q, TensorLike K, TensorLike V, Mask MaskType = NoMask,
          Modifier ModifierType = NoModifier>
void attention_into(Out&& out, const Q& q, const K& k, const V& v, const MaskType& mask, const ModifierType& modifier,
                    const AttentionOptions& options, Context& context) {
  static_assert(std::is_same_v<scalar_of_t<K>, scalar_of_t<V>>, "heed::attention: k and v must have one scalar type");
  static_assert(StorageFor<scalar_of_t<K>, scalar_of_t<Q>>,
                "heed::attention: k and v must have q's scalar type, half or bfloat16");
  static_assert(std::is_same_v<scalar_of_t<Out>, scalar_of_t<Q>>, "heed::attention: out must have q's scalar type");
  Workspace::Frame frame(context.workspace());
  detail::run_attention<scalar_of_t<Q>, scalar_of_t<K>>(
      detail::write_as<4>(out), detail::read_as<4>(q, context.workspace()), detail::read_as<4>(k, context.workspace()),
      detail::read_as<4>(v, context.workspace()), mask, modifier, options, context);
}

/// Returns attention(q, k, v): a Tensor for tensors, an Eigen matrix for Eigen matrices.
template <TensorLike Q, TensorLike K, TensorLike V, Mask MaskType = NoMask, Modifier ModifierType = NoModifier>
auto attention(const Q& q, const K& k, const V& v, const MaskType& mask, const ModifierType& modifier,
               const AttentionOptions& options, Context& context) {
  using T = scalar_of_t<Q>;
  Workspace::Frame frame(context.workspace());
  const auto query = detail::read_as<4>(q, context.workspace());
  const auto value = detail::read_as<4>(v, context.workspace());
  auto out = detail::make_result<Q, T, 4>({query.extent(0), query.extent(1), query.extent(2), value.extent(3)});
  attention_into(out, query, k, value, mask, modifier, options, context);
  return out;
}
template <TensorLike Q, TensorLike K, TensorLike V, Mask MaskType = NoMask, Modifier ModifierType = NoModifier>
auto attention(const Q& q, const K& k, const V& v, const MaskType& mask = {}, const ModifierType& modifier = {},
               const AttentionOptions& options = {}) {
  Context context;
  return attention(q, k, v, mask, modifier, options, context);
}

/// What attention_with_weights returns: auto [out, weights] = ...
template <class Out, class Weights>
struct AttentionWithWeights {
  /// (B, H, Lq, Dv): the same bits as without asking for weights.
  Out out;
  /// (B, H, Lq, Lk): the softmax, before dropout; a hidden weight is exactly 0, a query that sees nothing has all 0.
  Weights weights;
};

/// attention_into that also writes the weights (B, H, Lq, Lk).
template <TensorLike Out, TensorLike Weights, TensorLike Q, TensorLike K, TensorLike V, Mask MaskType,
          Modifier ModifierType>
void attention_with_weights_into(Out&& out, Weights&& weights, const Q& q, const K& k, const V& v, const MaskType& mask,
                                 const ModifierType& modifier, const AttentionOptions& options, Context& context) {
  using T = scalar_of_t<Q>;
  Workspace::Frame frame(context.workspace());
  const auto query = detail::read_as<4>(q, context.workspace());
  const auto key = detail::read_as<4>(k, context.workspace());
  detail::AttentionExtras<T> extras;
  extras.weights = detail::write_as<4>(weights);
  detail::CallChecks{"heed::attention"}.extents(
      extras.weights, {query.extent(0), query.extent(1), query.extent(2), key.extent(2)}, "weights");
  detail::run_attention<T, scalar_of_t<K>>(detail::write_as<4>(out), query, key,
                                           detail::read_as<4>(v, context.workspace()), mask, modifier, options, context,
                                           extras);
}

/// attention() together with its weights.
template <TensorLike Q, TensorLike K, TensorLike V, Mask MaskType = NoMask, Modifier ModifierType = NoModifier>
auto attention_with_weights(const Q& q, const K& k, const V& v, const MaskType& mask, const ModifierType& modifier,
                            const AttentionOptions& options, Context& context) {
  using T = scalar_of_t<Q>;
  Workspace::Frame frame(context.workspace());
  const auto query = detail::read_as<4>(q, context.workspace());
  const auto key = detail::read_as<4>(k, context.workspace());
  const auto value = detail::read_as<4>(v, context.workspace());
  using Result = detail::result_t<Q, T>;
  AttentionWithWeights<Result, Result> result{
      detail::make_result<Q, T, 4>({query.extent(0), query.extent(1), query.extent(2), value.extent(3)}),
      detail::make_result<Q, T, 4>({query.extent(0), query.extent(1), query.extent(2), key.extent(2)})};
  attention_with_weights_into(result.out, result.weights, query, key, value, mask, modifier, options, context);
  return result;
}
template <TensorLike Q, TensorLike K, TensorLike V, Mask MaskType = NoMask, Modifier ModifierType = NoModifier>
auto attention_with_weights(const Q& q, const K& k, const V& v, const MaskType& mask = {},
                            const ModifierType& modifier = {}, const AttentionOptions& options = {}) {
  Context context;
  return attention_with_weights(q, k, v, mask, modifier, options, context);
}

/// What attention_with_statistics returns; log-sum-exp of a row is maximum + log(sum).
template <class Out, class A>
struct AttentionWithStatistics {
  Out out;  ///< (B, H, Lq, Dv): the same bits as without asking for statistics
  /// (B, H, Lq): the largest visible score of each row, sinks included; -inf where there is none.
  Tensor<A, 3> maximum;
  /// (B, H, Lq): the sum of exp(score - maximum); 0 where nothing is visible.
  Tensor<A, 3> sum;
};

/// attention() together with the maximum and the sum of each row's softmax, kept apart so that no precision is lost.
template <TensorLike Q, TensorLike K, TensorLike V, Mask MaskType = NoMask, Modifier ModifierType = NoModifier>
auto attention_with_statistics(const Q& q, const K& k, const V& v, const MaskType& mask, const ModifierType& modifier,
                               const AttentionOptions& options, Context& context) {
  using T = scalar_of_t<Q>;
  using A = accumulate_t<T>;
  Workspace::Frame frame(context.workspace());
  const auto query = detail::read_as<4>(q, context.workspace());
  const auto key = detail::read_as<4>(k, context.workspace());
  const auto value = detail::read_as<4>(v, context.workspace());
  const Extents<3> rows{query.extent(0), query.extent(1), query.extent(2)};
  AttentionWithStatistics<detail::result_t<Q, T>, A> result{
      detail::make_result<Q, T, 4>({rows[0], rows[1], rows[2], value.extent(3)}), Tensor<A, 3>(rows),
      Tensor<A, 3>(rows)};
  detail::AttentionExtras<T> extras;
  extras.row_max = result.maximum.view();
  extras.row_sum = result.sum.view();
  detail::run_attention<T, scalar_of_t<K>>(detail::write_as<4>(result.out), query, key, value, mask, modifier, options,
                                           context, extras);
  return result;
}
template <TensorLike Q, TensorLike K, TensorLike V, Mask MaskType = NoMask, Modifier ModifierType = NoModifier>
auto attention_with_statistics(const Q& q, const K& k, const V& v, const MaskType& mask = {},
                               const ModifierType& modifier = {}, const AttentionOptions& options = {}) {
  Context context;
  return attention_with_statistics(q, k, v, mask, modifier, options, context);
}

HEED_NAMESPACE_END
