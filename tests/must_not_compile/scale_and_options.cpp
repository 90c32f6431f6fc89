// SPDX-License-Identifier: MIT
// AttentionOptions has a scale: one of two would be lost.
// expect: the scale was given twice; give Scale or AttentionOptions once

#include <heed/heed.hpp>

heed::Tensor<float, 4> attend(const heed::Tensor<float, 4>& x) {
#ifdef MUST_NOT_COMPILE
  return heed::attention(x, x, x, heed::Scale{0.1}, heed::AttentionOptions{.dropout = 0.1});
#else
  return heed::attention(x, x, x, heed::AttentionOptions{.scale = 0.1, .dropout = 0.1});
#endif
}
