// SPDX-License-Identifier: MIT
// A matrix of numbers is something to add to scores, not a mask.
// expect: heed::BoolMask takes bool

#include <heed/mask/bool_mask.hpp>

#ifdef MUST_NOT_COMPILE
using Element = float;
#else
using Element = bool;
#endif

bool first_key_visible(const heed::Tensor<Element, 2>& matrix) {
  return heed::is_visible(heed::BoolMask::keep(matrix), 0, 0, 0, 0);
}
