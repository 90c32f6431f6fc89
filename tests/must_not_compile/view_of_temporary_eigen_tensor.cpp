// SPDX-License-Identifier: MIT
// view_of() a temporary Eigen::Tensor would be gone at the end of the statement.
// expect: deleted

#include <heed/eigen_tensor.hpp>

Eigen::Tensor<float, 2> make();

float first() {
#ifdef MUST_NOT_COMPILE
  const auto view = heed::view_of(make());
#else
  const Eigen::Tensor<float, 2> tensor = make();
  const auto view = heed::view_of(tensor);
#endif
  return view(0, 0);
}
