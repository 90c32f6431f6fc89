// SPDX-License-Identifier: MIT
// Where a mask is wanted, a modifier is none.
// expect: no matching function for call to .attention

#include <heed/heed.hpp>

heed::Tensor<float, 4> attend(const heed::Tensor<float, 4>& x) {
#ifdef MUST_NOT_COMPILE
  return heed::attention(x, x, x, heed::NoModifier());
#else
  return heed::attention(x, x, x, heed::NoMask(), heed::NoModifier());
#endif
}
