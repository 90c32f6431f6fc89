// SPDX-License-Identifier: MIT
// matrix() of a temporary tensor would be gone at the end of the statement.
// expect: deleted

#include <heed/core/tensor.hpp>

heed::Tensor<float, 2> make();

float first() {
#ifdef MUST_NOT_COMPILE
  const auto map = make().matrix();
#else
  const heed::Tensor<float, 2> tensor = make();
  const auto map = tensor.matrix();
#endif
  return map(0, 0);
}
