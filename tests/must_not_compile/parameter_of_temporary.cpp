// SPDX-License-Identifier: MIT
// The numbers of a temporary layer end with it.
// expect: deleted

#include <heed/nn/linear.hpp>

heed::Linear<float> make();

float first() {
#ifdef MUST_NOT_COMPILE
  const auto weight = make().weight.value();
#else
  const heed::Linear<float> layer = make();
  const auto weight = layer.weight.value();
#endif
  return weight(0);
}
