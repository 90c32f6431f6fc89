// SPDX-License-Identifier: MIT
// A matrix of double would lose digits in a parameter of float without a word.
// expect: convert them

#include <heed/nn/linear.hpp>

void assign(heed::Linear<float>& linear, const Eigen::MatrixXd& weight) {
#ifdef MUST_NOT_COMPILE
  linear.weight = weight;
#else
  linear.weight = weight.cast<float>();
#endif
}
