// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Linear attention (Katharopoulos et al., "Transformers are RNNs: fast autoregressive transformers with linear
/// attention", 2020), in O(L) time and memory:
///
///   out[q] = phi(q)ᵀ (Σ phi(k) vᵀ) / (phi(q) · Σ phi(k))     sums over the keys that the query sees
///
/// A feature map phi replaces the exponential of softmax attention, so that the sums over keys are the same for all
/// queries, or, causally, a state that grows from position to position:
///
///   auto out = heed::attention(q, k, v, LinearAttention(Causal{}));
///   y = layer(x, LinearAttention(Causal{}), context);                      // in a layer
///   heed::LinearAttentionState<float> state(B, G, Dk, Dv);                 // or step by step
///   heed::attention_into(out, q, k, v, LinearAttention(Causal{}), state, context);
///
/// Shapes and types are those of attention/attention.hpp. A query with the denominator 0 sees nothing, and its output
/// is 0. A hidden pair (later keys of a causal call, padding) has no effect, whatever it holds.

#include <heed/attention/attention.hpp>
#include <heed/attention/linear/blocked.hpp>
#include <heed/attention/linear/reference.hpp>

HEED_NAMESPACE_BEGIN

/// The running state of causal linear attention: all that later queries need of earlier keys, of a size that does not
/// depend on their number. T is the queries' type.
///
/// attention_into(out, q, k, v, LinearAttention(Causal{}), state, context) computes the next positions: their queries
/// see the keys that the state has seen and the new keys up to their own position, and the state then includes the new
/// keys. One position a call, some, or all: the results are equal up to rounding. For a sample whose padding has no
/// real query, the state does not change.
template <class T>
class LinearAttentionState {
 public:
  using A = accumulate_t<T>;  ///< type of accumulation

  /// Has seen no keys. Throws ShapeError for negative extents.
  LinearAttentionState(Index B, Index G, Index Dk, Index Dv)
      : extents_{B, G, Dk, Dv}, sums_(Extents<3>{B, G, Dk * Dv + Dk}) {}

  /// (B, G, Dk, Dv): Σ phi(k) vᵀ
  TensorView<A, 4> values() { return {sums_.data(), extents_, {sums_.extent(1) * size(), size(), extents_[3], 1}}; }
  /// (B, G, Dk): Σ phi(k)
  TensorView<A, 3> keys() {
    return {sums_.data() + extents_[2] * extents_[3],
            {extents_[0], extents_[1], extents_[2]},
            {sums_.extent(1) * size(), size(), 1}};
  }
  /// Forgets all keys.
  void reset() { std::fill_n(sums_.data(), sums_.size(), A(0)); }

 private:
  Index size() const { return sums_.extent(2); }
  Extents<4> extents_;
  // The values of a head, followed by its keys.
  Tensor<A, 3> sums_;
};

namespace detail {

template <>
inline constexpr Part kind_v<FeatureMap> = Part::FeatureMap;

}  // namespace detail

/// Linear attention as a value, for attention() and for layers. Made of a mask (Causal, Padding, or both joined with &;
/// causal needs Lq = Lk) and a FeatureMap, in any order.
class LinearAttention {
 public:
  /// Of parts in any order, each at most once.
  template <class... P>
  requires((Mask<P> || std::is_same_v<P, FeatureMap>) && ...)
  explicit LinearAttention(const P&... parts)
      : mask_(detail::pick<detail::Part::Mask>(detail::kNoMask, parts...)),
        feature_map_(detail::pick<detail::Part::FeatureMap>(kDefaultMap, parts...)) {
    detail::check_terms<std::conditional_t<Mask<P>, P, NoModifier>...>();
  }

  /// Runs a call. attention() and layers call this.
  template <class T, class S>
  void forward(const detail::AttentionTensors<T, S>& x, Context& context) const;
  /// The gradients of forward() with this cache, in O(L) time and memory.
  template <class T>
  void backward(const AttentionCache<T>& cache, TensorView<const T, 4> dout, const AttentionGradients<T>& to,
                Context& context) const;

 private:
  static constexpr FeatureMap kDefaultMap = FeatureMap::EluPlusOne;
  static constexpr detail::CallChecks kCheck{"heed::LinearAttention"};

  detail::LinearTerms bind(const AttentionShape& shape) const {
    const detail::SequenceMask mask = mask_.bind(kCheck.function, shape);
    return {feature_map_, mask.causal.has_value(), mask.padding};
  }

  detail::SequenceMask mask_;
  FeatureMap feature_map_;
};

namespace detail {

template <>
inline constexpr Part kind_v<LinearAttention> = Part::Value;
template <class T>
inline constexpr Part kind_v<LinearAttentionState<T>> = Part::State;

}  // namespace detail

template <class T, class S>
void LinearAttention::forward(const detail::AttentionTensors<T, S>& x, Context& context) const {
  using A = accumulate_t<T>;
  const AttentionShape s = kCheck.shape(x.q.extents(), x.k.extents(), x.v.extents());
  kCheck.output(x.out, {s.B, s.H, s.Lq, s.Dv}, "out", x.q, x.k, x.v);
  HEED_CHECK(!x.weights.data() && (!x.row_max.data() || x.cache), ValueError, kCheck.function,
             ": there are no weights and no row statistics; ask for them with an Attention value");
  detail::LinearCall<T, S> call{s, x.q, x.k, x.v, x.out, bind(s), x.row_sum, {}, {}};
  if (x.state) {
    HEED_CHECK(call.options.causal, ValueError, kCheck.function,
               ": a running state continues from position to position; give the mask Causal{}");
    call.values = x.state->values();
    call.keys = x.state->keys();
    kCheck.extents(call.values, {s.B, s.G, s.Dk, s.Dv}, "the state");
  }
  if constexpr (detail::has_blocked_v<A>) {
    if (context.path != Path::Reference) return detail::run_linear(detail::linear_problem(call), context);
  }
  HEED_CHECK(context.path != Path::Blocked, ValueError, kCheck.function,
             ": the blocked path computes in float and double only; use Path::Automatic for other scalars");
  detail::reference_linear_attention(call, context.workspace());
}

template <class T>
void LinearAttention::backward(const AttentionCache<T>& cache, TensorView<const T, 4> dout,
                               const AttentionGradients<T>& to, Context& context) const {
  using A = accumulate_t<T>;
  const AttentionShape s = cache.shape();
  const detail::LinearBackwardCall<T> call{
      {s, cache.q(), cache.k(), cache.v(), {}, bind(s), cache.sum(), {}, {}}, cache.out(), dout, to};
  if constexpr (std::is_same_v<A, T> && detail::has_blocked_v<A>) {
    if (context.path != Path::Reference) {
      return detail::run_linear_backward<A>(
          {detail::linear_problem(call.forward), detail::RowSource<A>(call.out), detail::RowSource<A>(dout),
           detail::RowSink<A>(to.dq), detail::RowSink<A>(to.dk), detail::RowSink<A>(to.dv)},
          context);
    }
  }
  HEED_CHECK(context.path != Path::Blocked, ValueError, kCheck.function,
             ": the blocked path computes in float and double only; use Path::Automatic for other scalars");
  detail::reference_linear_backward(call, context.workspace());
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
