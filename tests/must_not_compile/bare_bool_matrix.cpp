// SPDX-License-Identifier: MIT
// A matrix of bool says nothing about what true means: attend or ignore.
// expect: A matrix of bool becomes a mask by BoolMask::keep\(m\)

#include <heed/heed.hpp>

heed::Tensor<float, 4> attend(const heed::Tensor<float, 4>& x, const Eigen::Matrix<bool, -1, -1>& matrix) {
#ifdef MUST_NOT_COMPILE
  return heed::attention(x, x, x, matrix);
#else
  return heed::attention(x, x, x, heed::BoolMask::keep(matrix));
#endif
}
