// SPDX-License-Identifier: MIT
// A matrix of numbers may be a mask or a bias: the call must say which.
// expect: BoolMask::keep\(m\), a matrix of numbers a modifier by Bias\(m\)

#include <heed/heed.hpp>

heed::Tensor<float, 4> attend(const heed::Tensor<float, 4>& x, const Eigen::MatrixXf& matrix) {
#ifdef MUST_NOT_COMPILE
  return heed::attention(x, x, x, matrix);
#else
  return heed::attention(x, x, x, heed::Bias(matrix));
#endif
}
