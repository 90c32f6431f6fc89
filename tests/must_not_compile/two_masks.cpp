// SPDX-License-Identifier: MIT
// A call takes one mask, which may combine many.
// expect: two masks were given; combine them with & or \|

#include <vector>

#include <heed/heed.hpp>

heed::Tensor<float, 4> attend(const heed::Tensor<float, 4>& x, const std::vector<int>& lengths) {
#ifdef MUST_NOT_COMPILE
  return heed::attention(x, x, x, heed::Causal(), heed::Padding(lengths));
#else
  return heed::attention(x, x, x, heed::Causal() & heed::Padding(lengths));
#endif
}
