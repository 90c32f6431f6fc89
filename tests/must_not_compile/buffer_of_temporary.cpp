// SPDX-License-Identifier: MIT
// A view of a temporary buffer would be gone at the end of the statement.
// expect: deleted

#include <heed/core/buffer.hpp>

float first() {
#ifdef MUST_NOT_COMPILE
  const auto view = heed::Buffer<float>().view<1>({3});
#else
  heed::Buffer<float> buffer;
  const auto view = buffer.view<1>({3});
#endif
  return view(0);
}
