// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Softmax attention from tensors and options to a checked call and its path.

#include <cstdint>

#include <heed/attention/common/call.hpp>
#include <heed/attention/common/checks.hpp>
#include <heed/attention/common/tensors.hpp>
#include <heed/attention/softmax/select.hpp>
#include <heed/core/config.hpp>
#include <heed/core/context.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

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
