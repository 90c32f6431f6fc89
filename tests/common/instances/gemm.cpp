// SPDX-License-Identifier: MIT
#include "common/gemm_instances.hpp"

namespace heed::detail {

template void multiply<float>(const Product<float>&, Context&);
template void multiply<double>(const Product<double>&, Context&);

}  // namespace heed::detail
