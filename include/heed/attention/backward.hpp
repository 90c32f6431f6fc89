// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The gradients of attention.
///
///   heed::AttentionCache<float> cache;
///   heed::attention_into(out, q, k, v, mask, modifier, options, cache, context);       // the forward, remembered
///   heed::attention_backward_into({dq, dk, dv}, dout, out, q, k, v, mask, modifier, options, cache, context);
/// or, where the forward may be computed again, auto [dq, dk, dv] = heed::attention_backward(dout, q, k, v, mask).
///
/// Shapes as in attention.hpp; dout is (B, H, Lq, Dv) like out. All have one scalar type. Gradients are written, not
/// added. What a mask hides takes no part, whatever it holds: a hidden key has the gradient 0, a query that sees
/// nothing has dq = 0 and leaves dk and dv alone even if its dout is NaN. Dropout is replayed.
///
/// All throw ShapeError for extents that don't fit and ValueError for outputs that overlap inputs, like the forward.

#include <cstdint>
#include <type_traits>

#include <heed/attention/attention.hpp>
#include <heed/attention/common/call.hpp>
#include <heed/attention/common/checks.hpp>
#include <heed/attention/softmax/backward.hpp>
#include <heed/attention/softmax/reference.hpp>
#include <heed/core/arguments.hpp>
#include <heed/core/config.hpp>
#include <heed/core/context.hpp>

HEED_NAMESPACE_BEGIN

/// What a backward needs of a forward beside its arguments and its output. Its memory is used again from step to step.
template <class T>
class AttentionCache {
 public:
  /// The type of the statistics.
  using A = accumulate_t<T>;

  /// (B, H, Lq): the maximum of each row's scores, sinks included, and the sum of exp(score - maximum); kept apart,
  /// since one log-sum-exp loses the weights of large scores.
  TensorView<A, 3> maximum() const { return {memory_, extents_}; }
  /// (B, H, Lq): see maximum().
  TensorView<A, 3> sum() const { return {memory_ + extents_[0] * extents_[1] * extents_[2], extents_}; }
  /// The pattern that dropout drew.
  DropoutPattern dropped() const { return DropoutPattern(seed_, stream_, dropout_); }
  /// The probability with which weights were dropped; 0 outside training.
  double dropout() const { return dropout_; }

  /// Takes up a forward of these extents (B, H, Lq).
  void begin(const Extents<3>& extents, const Context& context, double dropout) {
    extents_ = extents;
    const Index size = 2 * extents[0] * extents[1] * extents[2];
    if (storage_.size() < size) storage_ = Tensor<A, 1>(size);
    memory_ = storage_.data();
    seed_ = context.seed;
    dropout_ = context.training ? dropout : 0.0;
  }
  /// Where the forward writes the number of its dropout stream.
  std::uint64_t* stream() { return &stream_; }

 private:
  Tensor<A, 1> storage_;
  A* memory_ = nullptr;
  Extents<3> extents_{0, 0, 0};
  std::uint64_t seed_ = 0, stream_ = 0;
  double dropout_ = 0;
};

namespace detail {

/// q, k and v of a call.
template <class T>
struct AttentionInputs {
  TensorView<const T, 4> q, k, v;
};

/// What the kernels take, for a mask that is bound to the shape.
template <class T>
AttentionBackwardCall<T> backward_call(const AttentionShape& shape, const AttentionInputs<T>& in,
                                       TensorView<const T, 4> out, TensorView<const T, 4> dout,
                                       const AttentionGradients<T>& to, const MaskRef& mask,
                                       const AttentionOptions& options, const AttentionCache<T>& cache) {
  return {{shape,
           in.q,
           in.k,
           in.v,
           {},
           cache.maximum(),
           cache.sum(),
           mask,
           scale_of<accumulate_t<T>>(options, shape.Dk),
           options.sinks,
           cache.dropout(),
           cache.dropped()},
          out,
          dout,
          to};
}

template <class T, Mask MaskType, Modifier ModifierType>
void run_attention_backward(const AttentionGradients<T>& to, TensorView<const T, 4> dout, TensorView<const T, 4> out,
                            TensorView<const T, 4> q, TensorView<const T, 4> k, TensorView<const T, 4> v,
                            const MaskType& mask, const ModifierType& modifier, const AttentionOptions& options,
                            const AttentionCache<T>& cache, Context& context) {
  using A = accumulate_t<T>;
  constexpr CallChecks check{"heed::attention_backward"};
  const AttentionShape s = check.shape(q.extents(), k.extents(), v.extents());
  check.options<A>(options, s);
  check.extents(dout, {s.B, s.H, s.Lq, s.Dv}, "dout");
  check.extents(out, {s.B, s.H, s.Lq, s.Dv}, "out");
  HEED_CHECK(cache.maximum().extents() == (Extents<3>{s.B, s.H, s.Lq}), ShapeError,
             "heed::attention_backward: the cache is of a forward with (B, H, Lq) = ", cache.maximum().extents(),
             " but the call has ", Extents<3>{s.B, s.H, s.Lq}, "; give the cache of the same forward");
  HEED_CHECK(to.dsinks.empty() || to.dsinks.size() == options.sinks.size(), ShapeError,
             "heed::attention_backward: ", to.dsinks.size(), " dsinks but ", options.sinks.size(),
             " sinks; give one for each sink or none");
  check.gradients(to, q, k, v, out, dout);

  const auto bound_mask = bind(mask, s);
  const auto bound_modifier = bind(modifier, s);
  const AttentionBackwardCall<T> call =
      backward_call<T>(s, {q, k, v}, out, dout, to, MaskRef(bound_mask), options, cache);

  if constexpr (std::is_same_v<A, T> && has_blocked_v<A>) {
    if constexpr (GivesDerivative<std::remove_cvref_t<decltype(bound_modifier)>, Vec<A>>::value) {
      if (context.path != Path::Reference) return blocked_backward(call, bound_modifier, context);
    }
  }
  HEED_CHECK(
      context.path != Path::Blocked, ValueError,
      "heed::attention_backward: the blocked path needs float or double and, of a modifier, its derivative; give "
      "the modifier a function derivative(score, place), or use Path::Automatic");
  reference_backward(call, bound_modifier, context.workspace());
}

}  // namespace detail

/// attention_into that keeps in the cache what the backward needs.
template <TensorLike Out, TensorLike Q, TensorLike K, TensorLike V, Mask MaskType, Modifier ModifierType>
void attention_into(Out&& out, const Q& q, const K& k, const V& v, const MaskType& mask, const ModifierType& modifier,
                    const AttentionOptions& options, AttentionCache<scalar_of_t<Q>>& cache, Context& context) {
  using T = scalar_of_t<Q>;
  Workspace::Frame frame(context.workspace());
  const auto query = detail::read_as<4>(q, context.workspace());
  cache.begin({query.extent(0), query.extent(1), query.extent(2)}, context, options.dropout);
  detail::AttentionExtras<T> extras;
  extras.row_max = cache.maximum();
  extras.row_sum = cache.sum();
  extras.stream = cache.stream();
  detail::run_attention<T, scalar_of_t<K>>(detail::write_as<4>(out), query, detail::read_as<4>(k, context.workspace()),
                                           detail::read_as<4>(v, context.workspace()), mask, modifier, options, context,
                                           extras);
}

/// Writes the gradients of attention(q, k, v) from `dout`, that of its output `out`. Mask, modifier, options and cache
/// are those of the forward. Allocates nothing once the context is warm.
template <class T, TensorLike DOut, TensorLike Out, TensorLike Q, TensorLike K, TensorLike V, Mask MaskType,
          Modifier ModifierType>
void attention_backward_into(const AttentionGradients<T>& gradients, const DOut& dout, const Out& out, const Q& q,
                             const K& k, const V& v, const MaskType& mask, const ModifierType& modifier,
                             const AttentionOptions& options, const AttentionCache<T>& cache, Context& context) {
  Workspace& workspace = context.workspace();
  Workspace::Frame frame(workspace);
  detail::run_attention_backward<T>(gradients, detail::read_as<4>(dout, workspace), detail::read_as<4>(out, workspace),
                                    detail::read_as<4>(q, workspace), detail::read_as<4>(k, workspace),
                                    detail::read_as<4>(v, workspace), mask, modifier, options, cache, context);
}

/// What attention_backward returns: auto [dq, dk, dv] = ...
template <class T>
struct AttentionBackwardResult {
  Tensor<T, 4> dq, dk, dv;  ///< shaped as its argument
};

/// The gradients of attention(q, k, v), whose forward is computed again. Tensors of rank 4; dropout can't be replayed
/// this way and must be 0.
template <TensorLike DOut, TensorLike Q, TensorLike K, TensorLike V, Mask MaskType = NoMask,
          Modifier ModifierType = NoModifier>
auto attention_backward(const DOut& dout, const Q& q, const K& k, const V& v, const MaskType& mask,
                        const ModifierType& modifier, const AttentionOptions& options, Context& context) {
  using T = scalar_of_t<Q>;
  HEED_CHECK(!context.training || options.dropout == 0, ValueError,
             "heed::attention_backward: dropout = ", options.dropout,
             " can't be replayed without the cache of its forward; call attention_into with a cache, then "
             "attention_backward_into");
  Workspace& workspace = context.workspace();
  Workspace::Frame frame(workspace);
  const auto query = detail::read_as<4>(q, workspace);
  const auto key = detail::read_as<4>(k, workspace);
  const auto value = detail::read_as<4>(v, workspace);
  AttentionCache<T> cache;
  Tensor<T, 4> out(query.extent(0), query.extent(1), query.extent(2), value.extent(3));
  attention_into(out, query, key, value, mask, modifier, options, cache, context);
  AttentionBackwardResult<T> result{Tensor<T, 4>(query.extents()), Tensor<T, 4>(key.extents()),
                                    Tensor<T, 4>(value.extents())};
  attention_backward_into(AttentionGradients<T>{result.dq.view(), result.dk.view(), result.dv.view()}, dout, out, query,
                          key, value, mask, modifier, options, cache, context);
  return result;
}
template <TensorLike DOut, TensorLike Q, TensorLike K, TensorLike V, Mask MaskType = NoMask,
          Modifier ModifierType = NoModifier>
auto attention_backward(const DOut& dout, const Q& q, const K& k, const V& v, const MaskType& mask = {},
                        const ModifierType& modifier = {}, const AttentionOptions& options = {}) {
  Context context;
  return attention_backward(dout, q, k, v, mask, modifier, options, context);
}

HEED_NAMESPACE_END
