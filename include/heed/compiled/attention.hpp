// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The kernels that heed::compiled holds: matrix products, and softmax attention, forward, backward and decode.

#include <heed/attention/softmax/backward.hpp>
#include <heed/attention/softmax/decode.hpp>
#include <heed/attention/softmax/forward.hpp>
#include <heed/compiled/uses_compiled.hpp>
#include <heed/core/gemm.hpp>

/// What src/attention.cpp defines, with `declaration` = template or extern template.
#define HEED_COMPILED_ATTENTION(declaration)                                                     \
  declaration void multiply<float>(const Product<float>&, Context&);                             \
  declaration void multiply<double>(const Product<double>&, Context&);                           \
  declaration void run_blocked<float, 1>(const BlockedProblem<float>&, Context&);                \
  declaration void run_blocked<float, 2>(const BlockedProblem<float>&, Context&);                \
  declaration void run_blocked<double, 1>(const BlockedProblem<double>&, Context&);              \
  declaration void run_blocked<double, 2>(const BlockedProblem<double>&, Context&);              \
  declaration void run_blocked_backward<float>(const BackwardProblem<float>&, Context&, bool);   \
  declaration void run_blocked_backward<double>(const BackwardProblem<double>&, Context&, bool); \
  HEED_COMPILED_DECODE(declaration, float, float);                                               \
  HEED_COMPILED_DECODE(declaration, float, half);                                                \
  HEED_COMPILED_DECODE(declaration, float, bfloat16);                                            \
  HEED_COMPILED_DECODE(declaration, double, double)
/// The part of it for queries and sums in A, keys and values in S.
#define HEED_COMPILED_DECODE(declaration, A, S)                                              \
  declaration void run_decode<A, S>(const BlockedProblem<A>&, const TensorView<const S, 4>&, \
                                    const TensorView<const S, 4>&, Context&)

#if HEED_USES_COMPILED
namespace heed::detail {
HEED_COMPILED_ATTENTION(extern template);
}  // namespace heed::detail
#endif
