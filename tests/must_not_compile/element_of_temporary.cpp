// SPDX-License-Identifier: MIT
// An element of a temporary tensor is a number: a reference to it would outlive the memory.
// expect: cannot bind|cannot be bound

#include <heed/core/tensor.hpp>

heed::Tensor<float, 2> make();

float first() {
#ifdef MUST_NOT_COMPILE
  float& element = make()(0, 0);
#else
  const float element = make()(0, 0);
#endif
  return element;
}
