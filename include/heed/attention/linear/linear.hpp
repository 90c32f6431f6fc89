// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Linear attention (Katharopoulos et al., "Transformers are RNNs: fast autoregressive transformers with linear
/// attention", 2020), in O(L) time and memory:
///
///   out[q] = phi(q)ᵀ (Σ phi(k) vᵀ) / (phi(q) · Σ phi(k))     sums over the keys that the query sees
///
/// A feature map phi stands in for the exponential of softmax attention, so that the sums over keys are the same for
/// all queries, or, causally, a state that grows from position to position:
///
///   auto out = heed::linear_attention(q, k, v, {.causal = true});
///   heed::LinearAttentionState<float> state(B, G, Dk, Dv);                 // or step by step
///   heed::linear_attention_into(out, q, k, v, {.causal = true}, state, context);
///
/// Shapes: q (B, H, Lq, Dk), k (B, G, Lk, Dk), v (B, G, Lk, Dv), out (B, H, Lq, Dv), with H a multiple of G; query head
/// h reads key/value head h / (H/G). Types and plain Eigen matrices as in attention.hpp.
///
/// A query whose denominator is 0 sees nothing, and its output is 0. What a query does not see (later keys of a causal
/// call, padding) has no effect whatever it holds.
///
/// All throw ShapeError for extents that don't fit, ValueError for an output that overlaps an input and for options
/// that contradict each other, and what Padding finds wrong with its lengths.

#include <algorithm>
#include <type_traits>

#include <heed/attention/common/checks.hpp>
#include <heed/attention/linear/blocked.hpp>
#include <heed/attention/linear/call.hpp>
#include <heed/attention/linear/reference.hpp>
#include <heed/core/arguments.hpp>
#include <heed/core/config.hpp>
#include <heed/core/context.hpp>

HEED_NAMESPACE_BEGIN

/// The running state of causal linear attention: all that later queries need of earlier keys, of a size that does not
/// depend on how many there were. T is the queries' type.
template <class T>
class LinearAttentionState {
 public:
  using A = accumulate_t<T>;

  /// Nothing seen. Throws ShapeError for negative extents.
  LinearAttentionState(int B, int G, int Dk, int Dv)
      : extents_{B, G, Dk, Dv}, sums_(Extents<3>{B, G, Index{Dk} * Dv + Dk}) {}

  /// (B, G, Dk, Dv): Σ phi(k) vᵀ
  TensorView<A, 4> values() { return {sums_.data(), extents_, {sums_.extent(1) * size(), size(), extents_[3], 1}}; }
  /// (B, G, Dk): Σ phi(k)
  TensorView<A, 3> keys() {
    return {sums_.data() + extents_[2] * extents_[3],
            {extents_[0], extents_[1], extents_[2]},
            {sums_.extent(1) * size(), size(), 1}};
  }
  /// Back to nothing seen.
  void reset() { std::fill_n(sums_.data(), sums_.size(), A(0)); }

 private:
  Index size() const { return sums_.extent(2); }
  Extents<4> extents_;
  // Of a head, values and keys lie one after the other.
  Tensor<A, 3> sums_;
};

/// What a backward needs of a forward beside its arguments and its output. Its memory is used again from step to step.
template <class T>
class LinearAttentionCache {
 public:
  using A = accumulate_t<T>;

  /// (B, H, Lq): phi(q) · Σ phi(k)
  TensorView<A, 3> denominators() const { return {memory_, extents_}; }
  /// Takes up a forward of these extents (B, H, Lq).
  void begin(const Extents<3>& extents) {
    extents_ = extents;
    const Index size = extents[0] * extents[1] * extents[2];
    if (storage_.size() < size) storage_ = Tensor<A, 1>(size);
    memory_ = storage_.data();
  }

 private:
  Tensor<A, 1> storage_;
  A* memory_ = nullptr;
  Extents<3> extents_{0, 0, 0};
};

namespace detail {

inline LinearAttentionOptions bind_options(const CallChecks& check, const LinearAttentionOptions& options,
                                           const AttentionShape& s) {
  HEED_CHECK(!options.causal || s.Lq == s.Lk, ShapeError, check.function,
             ": causal needs as many queries as keys, but Lq = ", s.Lq, " and Lk = ", s.Lk,
             "; to go on after earlier keys, keep a LinearAttentionState");
  LinearAttentionOptions bound = options;
  if (bound.padding) bound.padding = bind(*options.padding, s);
  return bound;
}

template <class T, class S>
void run_linear_attention(TensorView<T, 4> out, TensorView<const T, 4> q, TensorView<const S, 4> k,
                          TensorView<const S, 4> v, const LinearAttentionOptions& options,
                          LinearAttentionState<T>* state, TensorView<accumulate_t<T>, 3> denominators,
                          Context& context) {
  using A = accumulate_t<T>;
  constexpr CallChecks check{"heed::linear_attention"};
  const AttentionShape s = check.shape(q.extents(), k.extents(), v.extents());
  check.extents(out, {s.B, s.H, s.Lq, s.Dv}, "out");
  check.no_alias(out, q, "out", "q");
  check.no_alias(out, k, "out", "k");
  check.no_alias(out, v, "out", "v");
  LinearCall<T, S> call{s, q, k, v, out, bind_options(check, options, s), denominators, {}, {}};
  if (state) {
    HEED_CHECK(options.causal, ValueError,
               "heed::linear_attention: a running state goes from position to position; set causal");
    call.values = state->values();
    call.keys = state->keys();
    check.extents(call.values, {s.B, s.G, s.Dk, s.Dv}, "the state");
  }
  if constexpr (has_blocked_v<A>) {
    if (context.path != Path::Reference) return run_linear(linear_problem(call), context);
  } else {
    HEED_CHECK(context.path != Path::Blocked, ValueError,
               "heed::linear_attention: the blocked path computes in float and double only; use Path::Automatic for "
               "other scalars");
  }
  reference_linear_attention(call, context.workspace());
}

template <class T>
void run_linear_attention_backward(const AttentionGradients<T>& to, TensorView<const T, 4> dout,
                                   TensorView<const T, 4> out, TensorView<const T, 4> q, TensorView<const T, 4> k,
                                   TensorView<const T, 4> v, const LinearAttentionOptions& options,
                                   const LinearAttentionCache<T>& cache, Context& context) {
  using A = accumulate_t<T>;
  constexpr CallChecks check{"heed::linear_attention_backward"};
  const AttentionShape s = check.shape(q.extents(), k.extents(), v.extents());
  check.extents(dout, {s.B, s.H, s.Lq, s.Dv}, "dout");
  check.extents(out, {s.B, s.H, s.Lq, s.Dv}, "out");
  HEED_CHECK(cache.denominators().extents() == (Extents<3>{s.B, s.H, s.Lq}), ShapeError, check.function,
             ": the cache is of a forward with (B, H, Lq) = ", cache.denominators().extents(), " but the call has ",
             Extents<3>{s.B, s.H, s.Lq}, "; give the cache of the same forward");
  check.gradients(to, q, k, v, out, dout);
  const LinearBackwardCall<T> call{
      {s, q, k, v, {}, bind_options(check, options, s), cache.denominators(), {}, {}}, out, dout, to};
  if constexpr (std::is_same_v<A, T> && has_blocked_v<A>) {
    if (context.path != Path::Reference) {
      return run_linear_backward<A>(
          {linear_problem(call.forward), RowSource<A>(out), RowSource<A>(dout), RowSink<A>(to.dq), RowSink<A>(to.dk),
           RowSink<A>(to.dv), to.dq.data() != nullptr, to.dk.data() != nullptr, to.dv.data() != nullptr},
          context);
    }
  }
  HEED_CHECK(context.path != Path::Blocked, ValueError, check.function,
             ": the blocked path computes in float and double only; use Path::Automatic for other scalars");
  reference_linear_backward(call, context.workspace());
}

}  // namespace detail

/// Writes linear_attention(q, k, v) to `out`. Allocates nothing once the context is warm.
template <TensorLike Out, TensorLike Q, TensorLike K, TensorLike V>
void linear_attention_into(Out&& out, const Q& q, const K& k, const V& v, const LinearAttentionOptions& options,
                           Context& context) {
  using T = scalar_of_t<Q>;
  using S = scalar_of_t<K>;
  static_assert(std::is_same_v<S, scalar_of_t<V>>, "heed::linear_attention: k and v must have one scalar type");
  static_assert(StorageFor<S, T>, "heed::linear_attention: k and v must have q's scalar type, half or bfloat16");
  Workspace& workspace = context.workspace();
  Workspace::Frame frame(workspace);
  detail::run_linear_attention<T, S>(detail::write_as<4>(out), detail::read_as<4>(q, workspace),
                                     detail::read_as<4>(k, workspace), detail::read_as<4>(v, workspace), options,
                                     nullptr, {}, context);
}

/// The same for the next positions of causal attention: their queries see the keys that the state has seen, and theirs
/// up to their own position, and the state then has seen these too. One position a call, some, or all: the results are
/// equal up to rounding. Of a sample whose padding has no real query, the state stays as it is.
template <TensorLike Out, TensorLike Q, TensorLike K, TensorLike V>
void linear_attention_into(Out&& out, const Q& q, const K& k, const V& v, const LinearAttentionOptions& options,
                           LinearAttentionState<scalar_of_t<Q>>& state, Context& context) {
  using T = scalar_of_t<Q>;
  Workspace& workspace = context.workspace();
  Workspace::Frame frame(workspace);
  detail::run_linear_attention<T, scalar_of_t<K>>(detail::write_as<4>(out), detail::read_as<4>(q, workspace),
                                                  detail::read_as<4>(k, workspace), detail::read_as<4>(v, workspace),
                                                  options, &state, {}, context);
}

/// The same that keeps in the cache what the backward needs.
template <TensorLike Out, TensorLike Q, TensorLike K, TensorLike V>
void linear_attention_into(Out&& out, const Q& q, const K& k, const V& v, const LinearAttentionOptions& options,
                           LinearAttentionCache<scalar_of_t<Q>>& cache, Context& context) {
  using T = scalar_of_t<Q>;
  Workspace& workspace = context.workspace();
  Workspace::Frame frame(workspace);
  const auto query = detail::read_as<4>(q, workspace);
  cache.begin({query.extent(0), query.extent(1), query.extent(2)});
  detail::run_linear_attention<T, scalar_of_t<K>>(detail::write_as<4>(out), query, detail::read_as<4>(k, workspace),
                                                  detail::read_as<4>(v, workspace), options, nullptr,
                                                  cache.denominators(), context);
}

/// Returns linear_attention(q, k, v): a Tensor for tensors, an Eigen matrix for Eigen matrices.
template <TensorLike Q, TensorLike K, TensorLike V>
auto linear_attention(const Q& q, const K& k, const V& v, const LinearAttentionOptions& options, Context& context) {
  Workspace& workspace = context.workspace();
  Workspace::Frame frame(workspace);
  const auto query = detail::read_as<4>(q, workspace);
  const auto value = detail::read_as<4>(v, workspace);
  auto out =
      detail::make_result<Q, scalar_of_t<Q>, 4>({query.extent(0), query.extent(1), query.extent(2), value.extent(3)});
  linear_attention_into(out, query, k, value, options, context);
  return out;
}
template <TensorLike Q, TensorLike K, TensorLike V>
auto linear_attention(const Q& q, const K& k, const V& v, const LinearAttentionOptions& options = {}) {
  Context context;
  return linear_attention(q, k, v, options, context);
}

/// Writes the gradients of linear_attention(q, k, v) from `dout` (B, H, Lq, Dv), that of its output `out`; what has no
/// memory in `gradients` is not wanted. Options and cache are those of the forward. Gradients are written, not added.
/// What no query sees has the gradient 0; a query that sees nothing has dq = 0 and leaves dk and dv alone even if its
/// dout is NaN. O(L) time and memory. Allocates nothing once the context is warm.
template <class T, TensorLike DOut, TensorLike Out, TensorLike Q, TensorLike K, TensorLike V>
void linear_attention_backward_into(const AttentionGradients<T>& gradients, const DOut& dout, const Out& out,
                                    const Q& q, const K& k, const V& v, const LinearAttentionOptions& options,
                                    const LinearAttentionCache<T>& cache, Context& context) {
  Workspace& workspace = context.workspace();
  Workspace::Frame frame(workspace);
  detail::run_linear_attention_backward<T>(gradients, detail::read_as<4>(dout, workspace),
                                           detail::read_as<4>(out, workspace), detail::read_as<4>(q, workspace),
                                           detail::read_as<4>(k, workspace), detail::read_as<4>(v, workspace), options,
                                           cache, context);
}

HEED_NAMESPACE_END
