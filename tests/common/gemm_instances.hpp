// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Products, compiled once for all tests (instances/gemm.cpp).

#include <heed/core/gemm.hpp>

namespace heed::detail {

extern template void multiply<float>(const Product<float>&, Context&);
extern template void multiply<double>(const Product<double>&, Context&);

}  // namespace heed::detail
