// SPDX-License-Identifier: MIT
// A view into a file that is closed at the end of the statement.
// expect: deleted

#include <heed/io/safetensors.hpp>

float first() {
#ifdef MUST_NOT_COMPILE
  const auto view = heed::SafeTensors::open("model.safetensors").view<float, 1>("bias");
#else
  const heed::SafeTensors file = heed::SafeTensors::open("model.safetensors");
  const auto view = file.view<float, 1>("bias");
#endif
  return (*view)(0);
}
