// SPDX-License-Identifier: MIT
// view_of() a temporary Eigen matrix would be gone at the end of the statement.
// expect: deleted

#include <heed/core/tensor.hpp>

float first() {
#ifdef MUST_NOT_COMPILE
  const auto view = heed::view_of(Eigen::MatrixXf(2, 2));
#else
  const Eigen::MatrixXf matrix = Eigen::MatrixXf::Zero(2, 2);
  const auto view = heed::view_of(matrix);
#endif
  return view(0, 0);
}
