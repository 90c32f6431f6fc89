// SPDX-License-Identifier: MIT
// Modifiers do not commute: their order must be written.
// expect: two score modifiers were given; chain them with then\(a, b\)

#include <heed/heed.hpp>

heed::Tensor<float, 4> attend(const heed::Tensor<float, 4>& x) {
#ifdef MUST_NOT_COMPILE
  return heed::attention(x, x, x, heed::SoftCap(30), heed::Alibi(8));
#else
  return heed::attention(x, x, x, heed::then(heed::SoftCap(30), heed::Alibi(8)));
#endif
}
