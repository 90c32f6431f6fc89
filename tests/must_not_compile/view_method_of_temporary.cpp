// SPDX-License-Identifier: MIT
// view() of a temporary tensor would be gone at the end of the statement.
// expect: deleted

#include <heed/core/tensor.hpp>

heed::Tensor<float, 2> make();

float first() {
#ifdef MUST_NOT_COMPILE
  const auto view = make().view();
#else
  const heed::Tensor<float, 2> tensor = make();
  const auto view = tensor.view();
#endif
  return view(0, 0);
}
