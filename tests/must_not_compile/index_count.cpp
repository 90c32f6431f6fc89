// SPDX-License-Identifier: MIT
// A tensor takes as many indices as it has dimensions.
// expect: no match for call|no matching function for call

#include <heed/core/tensor.hpp>

float corner(const heed::Tensor<float, 3>& x) {
#ifdef MUST_NOT_COMPILE
  return x(0, 0);
#else
  return x(0, 0, 0);
#endif
}
