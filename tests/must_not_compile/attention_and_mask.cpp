// SPDX-License-Identifier: MIT
// An Attention value has its mask inside.
// expect: an Attention value was given and, next to it, a part that belongs into it

#include <heed/heed.hpp>

heed::Tensor<float, 4> attend(const heed::Tensor<float, 4>& x) {
#ifdef MUST_NOT_COMPILE
  return heed::attention(x, x, x, heed::Attention(heed::Alibi(8)), heed::Causal());
#else
  return heed::attention(x, x, x, heed::Attention(heed::Alibi(8), heed::Causal()));
#endif
}
