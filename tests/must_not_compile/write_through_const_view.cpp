// SPDX-License-Identifier: MIT
// A view of const elements cannot be written.
// expect: read-only|returns a const value

#include <heed/core/tensor.hpp>

void clear_first(heed::Tensor<float, 2>& x) {
#ifdef MUST_NOT_COMPILE
  const heed::TensorView<const float, 2> view = x.view();
#else
  const heed::TensorView<float, 2> view = x.view();
#endif
  view(0, 0) = 0.0f;
}
