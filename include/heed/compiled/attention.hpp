// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The kernels that heed::compiled holds: matrix products, and softmax attention, forward, backward and decode.

#include <heed/attention/softmax/select.hpp>
#include <heed/compiled/uses_compiled.hpp>
#include <heed/core/gemm.hpp>

/// What src/attention.cpp defines, with `declaration` = template or extern template.
#define HEED_COMPILED_ATTENTION(declaration)                                                         \
  declaration void multiply<float>(const Product<float>&, Context&);                                 \
  declaration void multiply<double>(const Product<double>&, Context&);                               \
  HEED_COMPILED_FORWARD(declaration, float, float);                                                  \
  HEED_COMPILED_FORWARD(declaration, float, half);                                                   \
  HEED_COMPILED_FORWARD(declaration, float, bfloat16);                                               \
  HEED_COMPILED_FORWARD(declaration, double, double);                                                \
  declaration void softmax_attention_backward<float>(const AttentionBackwardCall<float>&, Context&); \
  declaration void softmax_attention_backward<double>(const AttentionBackwardCall<double>&, Context&)
/// The part of it for queries in T, keys and values in S.
#define HEED_COMPILED_FORWARD(declaration, T, S)                                                           \
  declaration void run_softmax<T, S>(const AttentionTensors<T, S>&, const AttentionShape&, const MaskRef&, \
                                     const ModifierRef<T>&, const AttentionOptions&, const DropoutPattern&, Context&)

#if HEED_USES_COMPILED
namespace heed::detail {
HEED_COMPILED_ATTENTION(extern template);
}  // namespace heed::detail
#endif
