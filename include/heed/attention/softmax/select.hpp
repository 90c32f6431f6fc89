// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Selects the path of a softmax attention call: the reference path or one of the kernels. The shape alone selects the
/// kernel, so a call has the same bits on any machine load and any number of threads.

#include <heed/attention/common/checks.hpp>
#include <heed/attention/softmax/backward.hpp>
#include <heed/attention/softmax/decode.hpp>
#include <heed/attention/softmax/forward.hpp>
#include <heed/attention/softmax/reference.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

enum class SoftmaxKernel {
  Decode,      ///< few queries: vectors run over the width of a head
  OneVector,   ///< blocks of one register of queries
  TwoVectors,  ///< blocks of two registers of queries
};

/// The kernel for a call.
template <class A>
SoftmaxKernel softmax_kernel(const AttentionShape& shape) {
  if (shape.Lq <= kDecodeQueries) return SoftmaxKernel::Decode;
  return shape.Lq <= Vec<A>::size ? SoftmaxKernel::OneVector : SoftmaxKernel::TwoVectors;
}

/// Bytes of workspace that softmax_attention takes for keys and values with dense rows.
template <class A, class S>
std::size_t softmax_workspace(const AttentionShape& shape, int workers) {
  if constexpr (!has_blocked_v<A>) {
    return reference_workspace<A>(shape);
  } else {
    switch (softmax_kernel<A>(shape)) {
      case SoftmaxKernel::Decode:
        return decode_workspace<A, S>(shape, workers);
      case SoftmaxKernel::OneVector:
        return blocked_workspace<A, 1>(shape, workers);
      default:
        return blocked_workspace<A, 2>(shape, workers);
    }
  }
}

template <class T, class S>
void fast_attention(const AttentionCall<T, S>& call, Context& context) {
  using A = accumulate_t<T>;
  if (call.out.empty() && call.row_max.empty()) return;
  const BlockedProblem<A> problem(call);
  switch (softmax_kernel<A>(call.shape)) {
    case SoftmaxKernel::Decode:
      return run_decode<A>(problem, call.k, call.v, context);
    case SoftmaxKernel::OneVector:
      return run_blocked<A, 1>(problem, context);
    case SoftmaxKernel::TwoVectors:
      return run_blocked<A, 2>(problem, context);
  }
}

/// Softmax attention on checked arguments.
template <class T, class S>
void softmax_attention(const AttentionCall<T, S>& call, Context& context) {
  if constexpr (has_blocked_v<accumulate_t<T>>) {
    if (context.path != Path::Reference) return fast_attention(call, context);
  }
  HEED_CHECK(context.path != Path::Blocked, ValueError,
             "heed::attention: the blocked path computes in float and double only; use Path::Automatic for other "
             "scalars");
  reference_attention(call, context.workspace());
}

/// The gradients of softmax attention on checked arguments.
template <class T>
void softmax_attention_backward(const AttentionBackwardCall<T>& call, Context& context) {
  if constexpr (std::is_same_v<accumulate_t<T>, T> && has_blocked_v<T>) {
    if (context.path != Path::Reference && call.modifier.has_derivative()) {
      return run_blocked_backward<T>(BackwardProblem<T>(call), context);
    }
  }
  HEED_CHECK(context.path != Path::Blocked, ValueError,
             "heed::attention_backward: the blocked path needs float or double and, of a modifier, its derivative; "
             "give the modifier a function derivative(score, index), or use Path::Automatic");
  reference_backward(call, context.workspace());
}

/// The shape of a forward call; throws if the extents do not fit each other.
template <class T, class S>
AttentionShape shape_of(const AttentionTensors<T, S>& x) {
  return CallChecks{"heed::attention"}.shape(x.q.extents(), x.k.extents(), x.v.extents());
}

/// Runs a forward call. The mask and the modifier are bound to the shape; `dropped` is the pattern of dropout.
template <class T, class S>
void run_softmax(const AttentionTensors<T, S>& x, const AttentionShape& shape, const MaskRef& mask,
                 const ModifierRef<accumulate_t<T>>& modifier, const AttentionOptions& options,
                 const DropoutPattern& dropped, Context& context) {
  using A = accumulate_t<T>;
  constexpr CallChecks check{"heed::attention"};
  check.options<A>(options, shape);
  check.output(x.out, {shape.B, shape.H, shape.Lq, shape.Dv}, "out", x.q, x.k, x.v);
  if (x.weights.data()) {
    check.output(x.weights, {shape.B, shape.H, shape.Lq, shape.Lk}, "weights", x.q, x.k, x.v);
    check.no_alias(x.weights, x.out, "weights", "out");
  }
  const AttentionCall<T, S> call{{shape, mask, modifier, scale_of<A>(options.scale, shape.Dk), options.sinks,
                                  dropped.probability(), dropped, x.row_max, x.row_sum},
                                 x.q,
                                 x.k,
                                 x.v,
                                 x.out};
  softmax_attention(call, context);
  if (x.weights.data()) reference_weights(call, x.weights, context.workspace());
}

/// The dropout pattern of a forward call: takes a stream from the context when there is dropout in training.
inline DropoutPattern draw_dropout(double dropout, Context& context) {
  if (!context.training || !(dropout > 0)) return DropoutPattern(0, 0, 0);
  return DropoutPattern(context.seed, context.next_stream(), dropout);
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
