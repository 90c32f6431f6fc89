// SPDX-License-Identifier: MIT
// A view borrows: one of a temporary tensor would be gone at the end of the statement.
// expect: deleted

#include <heed/core/tensor.hpp>

heed::Tensor<float, 2> make();

float first() {
#ifdef MUST_NOT_COMPILE
  const heed::TensorView<const float, 2> view = make();
#else
  const heed::Tensor<float, 2> tensor = make();
  const heed::TensorView<const float, 2> view = tensor;
#endif
  return view(0, 0);
}
