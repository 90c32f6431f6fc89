// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Kernels that many tests need, compiled once (instances/blocked_kernels.cpp).

#include <heed/attention/blocked.hpp>

namespace heed::detail {

extern template void run_blocked<float, 1>(const BlockedProblem<float>&, Context&);
extern template void run_blocked<float, 2>(const BlockedProblem<float>&, Context&);
extern template void run_blocked<double, 1>(const BlockedProblem<double>&, Context&);
extern template void run_blocked<double, 2>(const BlockedProblem<double>&, Context&);

}  // namespace heed::detail
