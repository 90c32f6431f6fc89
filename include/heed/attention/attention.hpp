// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Attention: softmax(modifier(scale · Q·Kᵀ) under a mask) · V (Vaswani et al., "Attention is all you need", 2017), its
/// weights, its row statistics and its gradients.
///
///   auto out = heed::attention(q, k, v, Causal{}, context);
///   auto [out, weights] = heed::attention_with_weights(q, k, v, Padding(lengths));
///   auto [dq, dk, dv] = heed::attention_backward(dout, q, k, v, Causal{}, SoftCap(50));
///
/// q (B, H, Lq, Dk), k (B, G, Lk, Dk), v (B, G, Lk, Dv), out (B, H, Lq, Dv), with H a multiple of G; query head h reads
/// key/value head h / (H/G). Each may be a Tensor, a TensorView with any strides, or a plain Eigen matrix (L, D) of any
/// storage order as one sample and head; tensors of rank 2 and 3 are (L, D) and (H, L, D). q and out have one scalar
/// type T; k and v have one type S, which is T or a 16-bit type.
///
/// The parts after v are recognized by type (attention/common/parts.hpp): a mask, a score modifier, Scale or
/// AttentionOptions; or one value of them all, Attention; or another kind of attention, LinearAttention or
/// SegmentedAttention; an AttentionCache for a backward pass; a Context. In any order, each at most once.
///
/// All functions throw ShapeError for extents that do not fit, ValueError for a bad option, an ambiguous mask alignment
/// or an output that overlaps an input, and any error of the mask or modifier.

#include <heed/attention/any_attention.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

template <class Q, class K, class V>
consteval void check_scalars() {
  static_assert(std::is_same_v<scalar_of_t<K>, scalar_of_t<V>>, "heed::attention: k and v must have one scalar type");
  static_assert(StorageFor<scalar_of_t<K>, scalar_of_t<Q>>,
                "heed::attention: k and v must have q's scalar type, half or bfloat16");
}

/// True for an argument that outlives the call: a named object or a view, with memory.
template <class X>
inline constexpr bool outlives_call_v =
    (std::is_lvalue_reference_v<X> && (AnyTensor<X> || EigenDirect<X>)) || is_view_v<std::remove_cvref_t<X>>;

/// Runs the kind of attention that `value` is.
template <class T, class S, class Value>
void run_attention(const AttentionTensors<T, S>& x, const Value& value, Context& context) {
  using A = accumulate_t<T>;
  if constexpr (requires { value.mask; }) {
    const AttentionShape shape = with_sequences(value.mask, shape_of(x));
    const auto mask = bind(value.mask, shape);
    const auto modifier = bind(value.modifier, shape);
    const DropoutPattern dropped = draw_dropout(value.options.dropout, context);
    run_softmax(x, shape, MaskRef(mask), ModifierRef<A>(modifier), value.options, dropped, context);
  } else if constexpr (requires { value.run(x, context); }) {
    value.run(x, context);
  } else {
    value.forward(x, context);
  }
}

/// The one body of all public forward functions. `outputs` adds what is wanted besides out.
template <class Out, class Q, class K, class V, class Outputs, class... Parts>
void attend(Out&& out, Q&& q, K&& k, V&& v, Outputs&& outputs, Parts&&... parts) {
  check_parts<Parts...>();
  static_assert(count_v<Part::KeyValues, Parts...> == 0,
                "heed::attention: a KvCache is for layers, which write their keys and values into it");
  check_scalars<Q, K, V>();
  static_assert(std::is_same_v<scalar_of_t<Out>, scalar_of_t<Q>>, "heed::attention: out must have q's scalar type");
  using T = scalar_of_t<Q>;
  OwnContext<Parts...> own;
  Context& context = pick<Part::Context>(own, parts...);
  Workspace& workspace = context.workspace();
  const Workspace::Frame frame(workspace);
  AttentionTensors<T, scalar_of_t<K>> x{read_as<4>(q, workspace), read_as<4>(k, workspace), read_as<4>(v, workspace),
                                        write_as<4>(out)};
  outputs(x);
  if constexpr (count_v<Part::State, Parts...> == 1) x.state = &pick<Part::State>(own, parts...);
  if constexpr (count_v<Part::Cache, Parts...> == 1) {
    static_assert(std::is_same_v<scalar_of_t<K>, T>, "heed::attention: with a cache, q, k and v have one scalar type");
    static_assert(outlives_call_v<Q> && outlives_call_v<K> && outlives_call_v<V> && outlives_call_v<Out>,
                  "heed::attention: the cache keeps q, k, v and out for the backward pass, but one of them is a "
                  "temporary or an expression; give it a name");
    AttentionCache<T>& cache = pick<Part::Cache>(own, parts...);
    cache.begin(AnyAttention<T>(attention_of(parts...)), x);
    cache.attention().run(x, context);
  } else {
    run_attention(x, attention_of(parts...), context);
  }
}

template <class Out, class Weights>
struct OutputAndWeights {
  Out out;          // (B, H, Lq, Dv)
  Weights weights;  // (B, H, Lq, Lk)
};
template <class Out, class A>
struct OutputAndStatistics {
  Out out;                    // (B, H, Lq, Dv)
  Tensor<A, 3> maximum, sum;  // (B, H, Lq)
};
template <class DQ, class DK, class DV>
struct InputGradients {
  DQ dq;
  DK dk;
  DV dv;
};

/// Extents of an argument as a view of rank 4.
template <class X>
Extents<4> extents_of(const X& x) {
  if constexpr (AnyTensor<X>)
    return with_rank<4>(TensorView<const scalar_of_t<X>, rank_of_v<X>>(view_of(x))).extents();
  else
    return {1, 1, x.rows(), x.cols()};
}
/// A result of the kind of X with these extents.
template <class X>
auto make_like(const Extents<4>& extents) {
  return make_result<std::remove_cvref_t<X>, scalar_of_t<X>, 4>(extents);
}

}  // namespace detail

/// Bytes of workspace that attention_into takes for tensors or views with a dense last dimension;
/// context.workspace().reserve() of that many, and the first call allocates nothing either. T is q's scalar type, S
/// that of k and v; `concurrency` is that of the context's executor.
template <class T, StorageFor<T> S = T>
std::size_t attention_workspace(const AttentionShape& shape, int concurrency = 1) {
  if (Index{shape.B} * shape.H * shape.Lq == 0) return 0;
  return detail::softmax_workspace<accumulate_t<T>, S>(shape, concurrency);
}

/// Writes attention(q, k, v, parts...) to `out`. Allocates nothing once the context is warm. With an AttentionCache
/// among the parts it keeps what attention_backward_into needs; q, k, v and out must then live, unchanged, until that.
template <TensorLike Out, TensorLike Q, TensorLike K, TensorLike V, class... Parts>
void attention_into(Out&& out, Q&& q, K&& k, V&& v, Parts&&... parts) {
  detail::attend(
      std::forward<Out>(out), std::forward<Q>(q), std::forward<K>(k), std::forward<V>(v), [](auto&) {},
      std::forward<Parts>(parts)...);
}

/// Returns attention(q, k, v): a Tensor of q's rank for tensors, an Eigen matrix for Eigen matrices.
template <TensorLike Q, TensorLike K, TensorLike V, class... Parts>
auto attention(const Q& q, const K& k, const V& v, Parts&&... parts) {
  static_assert(detail::count_v<detail::Part::Cache, Parts...> == 0,
                "heed::attention: a cache keeps a view of the output; call attention_into(out, q, k, v, …, cache)");
  auto out = detail::make_like<Q>(
      {detail::extents_of(q)[0], detail::extents_of(q)[1], detail::extents_of(q)[2], detail::extents_of(v)[3]});
  attention_into(out, q, k, v, std::forward<Parts>(parts)...);
  return out;
}

/// attention_into that also writes the weights (B, H, Lq, Lk): the softmax before dropout. The weight of a hidden pair
/// is exactly 0; a query that sees nothing has all 0. `out` has the same bits as without weights.
template <TensorLike Out, TensorLike Weights, TensorLike Q, TensorLike K, TensorLike V, class... Parts>
void attention_with_weights_into(Out&& out, Weights&& weights, Q&& q, K&& k, V&& v, Parts&&... parts) {
  const auto want_weights = [&](auto& x) {
    x.weights = detail::write_as<4>(weights);
    // Weights without elements have no data, which means that they are not wanted.
    detail::CallChecks{"heed::attention"}.extents(
        x.weights, {x.q.extent(0), x.q.extent(1), x.q.extent(2), x.k.extent(2)}, "weights");
  };
  detail::attend(std::forward<Out>(out), std::forward<Q>(q), std::forward<K>(k), std::forward<V>(v), want_weights,
                 std::forward<Parts>(parts)...);
}

/// auto [out, weights] = attention_with_weights(q, k, v, parts...): see attention_with_weights_into.
template <TensorLike Q, TensorLike K, TensorLike V, class... Parts>
auto attention_with_weights(const Q& q, const K& k, const V& v, Parts&&... parts) {
  const Extents<4> query = detail::extents_of(q), key = detail::extents_of(k), value = detail::extents_of(v);
  using Result = decltype(detail::make_like<Q>(query));
  detail::OutputAndWeights<Result, Result> result{detail::make_like<Q>({query[0], query[1], query[2], value[3]}),
                                                  detail::make_like<Q>({query[0], query[1], query[2], key[2]})};
  attention_with_weights_into(result.out, result.weights, q, k, v, std::forward<Parts>(parts)...);
  return result;
}

/// auto [out, maximum, sum] = attention_with_statistics(q, k, v, parts...): maximum (B, H, Lq) is the largest visible
/// score of each row, sinks included (-inf if there is none), sum (B, H, Lq) the sum of exp(score - maximum) (0 if
/// nothing is visible). The log-sum-exp of a row is maximum + log(sum). `out` has the same bits as without them.
template <TensorLike Q, TensorLike K, TensorLike V, class... Parts>
auto attention_with_statistics(const Q& q, const K& k, const V& v, Parts&&... parts) {
  using A = accumulate_t<scalar_of_t<Q>>;
  const Extents<4> query = detail::extents_of(q), value = detail::extents_of(v);
  using Result = decltype(detail::make_like<Q>(query));
  const Extents<3> rows{query[0], query[1], query[2]};
  detail::OutputAndStatistics<Result, A> result{detail::make_like<Q>({rows[0], rows[1], rows[2], value[3]}),
                                                Tensor<A, 3>(rows), Tensor<A, 3>(rows)};
  const auto want_statistics = [&](auto& x) {
    x.row_max = result.maximum.view();
    x.row_sum = result.sum.view();
  };
  detail::attend(result.out, q, k, v, want_statistics, std::forward<Parts>(parts)...);
  return result;
}

/// Writes the gradients of the forward call that filled the cache, from `dout` (B, H, Lq, Dv), that of its output.
/// Gradients are written, not added. A hidden pair takes no part, whatever it holds: a hidden key has the gradient 0, a
/// query that sees nothing has dq = 0 and leaves dk and dv alone even if its dout is NaN. Dropout is replayed.
/// Allocates nothing once the context is warm. Throws ValueError for a cache that no forward has filled.
template <class T, TensorLike DOut>
void attention_backward_into(const AttentionGradients<std::type_identity_t<T>>& gradients, const DOut& dout,
                             AttentionCache<T>& cache, Context& context) {
  const Workspace::Frame frame(context.workspace());
  detail::attend_backward(cache, detail::read_as<4>(dout, context.workspace()), gradients, context);
}
/// @overload
template <class T, TensorLike DOut>
void attention_backward_into(const AttentionGradients<std::type_identity_t<T>>& gradients, const DOut& dout,
                             AttentionCache<T>& cache) {
  Context context;
  attention_backward_into(gradients, dout, cache, context);
}

/// auto [dq, dk, dv] = attention_backward(dout, q, k, v, parts...): the gradients of attention(q, k, v, parts...), each
/// of the kind and rank of its argument. The forward is computed again. Throws ValueError for dropout in training: the
/// pattern of an earlier forward is in its cache only.
template <TensorLike DOut, TensorLike Q, TensorLike K, TensorLike V, class... Parts>
auto attention_backward(const DOut& dout, const Q& q, const K& k, const V& v, Parts&&... parts) {
  using T = scalar_of_t<Q>;
  detail::check_parts<Parts...>();
  static_assert(detail::count_v<detail::Part::KeyValues, Parts...> == 0,
                "heed::attention_backward: a KvCache has no gradients");
  detail::OwnContext<Parts...> own;
  Context& context = detail::pick<detail::Part::Context>(own, parts...);
  const AnyAttention<T> value(detail::attention_of(parts...));
  HEED_CHECK(!context.training || value.dropout() == 0, ValueError,
             "heed::attention_backward: dropout = ", value.dropout(),
             " can't be replayed without the cache of its forward; call attention_into with a cache, then "
             "attention_backward_into");
  const Workspace::Frame frame(context.workspace());
  const auto query = detail::read_as<4>(q, context.workspace());
  const auto key = detail::read_as<4>(k, context.workspace());
  const auto values = detail::read_as<4>(v, context.workspace());
  const auto out =
      context.workspace().template tensor<T, 4>({query.extent(0), query.extent(1), query.extent(2), values.extent(3)});
  AttentionCache<T> cache;
  attention_into(out, query, key, values, value, cache, context);
  using Result = detail::InputGradients<decltype(detail::make_like<Q>(query.extents())),
                                        decltype(detail::make_like<K>(key.extents())),
                                        decltype(detail::make_like<V>(values.extents()))>;
  Result result{detail::make_like<Q>(query.extents()), detail::make_like<K>(key.extents()),
                detail::make_like<V>(values.extents())};
  attention_backward_into({result.dq, result.dk, result.dv}, dout, cache, context);
  return result;
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
