// SPDX-License-Identifier: MIT
// A call runs in one context.
// expect: two contexts were given; give one

#include <heed/heed.hpp>

heed::Tensor<float, 4> attend(const heed::Tensor<float, 4>& x, heed::Context& context,
                              [[maybe_unused]] heed::Context& other) {
#ifdef MUST_NOT_COMPILE
  return heed::attention(x, x, x, context, other);
#else
  return heed::attention(x, x, x, context);
#endif
}
