// SPDX-License-Identifier: MIT
#include "common/instances.hpp"

namespace heed::detail {

template void run_blocked<float, 1>(const BlockedProblem<float>&, Context&);
template void run_blocked<float, 2>(const BlockedProblem<float>&, Context&);
template void run_blocked<double, 1>(const BlockedProblem<double>&, Context&);
template void run_blocked<double, 2>(const BlockedProblem<double>&, Context&);

}  // namespace heed::detail
