// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Kernels that many tests need, compiled once (instances/blocked_kernels.cpp).

#include <heed/attention/softmax/backward.hpp>
#include <heed/attention/softmax/decode.hpp>
#include <heed/attention/softmax/forward.hpp>

namespace heed::detail {

#define HEED_TEST_KERNELS(declaration)                                                     \
  declaration void run_blocked<float, 1>(const BlockedProblem<float>&, Context&);          \
  declaration void run_blocked<float, 2>(const BlockedProblem<float>&, Context&);          \
  declaration void run_blocked<double, 1>(const BlockedProblem<double>&, Context&);        \
  declaration void run_blocked<double, 2>(const BlockedProblem<double>&, Context&);        \
  declaration void run_blocked_backward<float>(const BackwardProblem<float>&, Context&);   \
  declaration void run_blocked_backward<double>(const BackwardProblem<double>&, Context&); \
  HEED_TEST_DECODER(declaration, float, float);                                            \
  HEED_TEST_DECODER(declaration, float, half);                                             \
  HEED_TEST_DECODER(declaration, float, bfloat16);                                         \
  HEED_TEST_DECODER(declaration, double, double)
#define HEED_TEST_DECODER(declaration, A, S)                                                 \
  declaration void run_decode<A, S>(const BlockedProblem<A>&, const TensorView<const S, 4>&, \
                                    const TensorView<const S, 4>&, Context&)

HEED_TEST_KERNELS(extern template);

}  // namespace heed::detail
