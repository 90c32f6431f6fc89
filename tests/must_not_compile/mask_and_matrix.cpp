// SPDX-License-Identifier: MIT
// Only masks combine with masks.
// expect: no match for .operator&|invalid operands to binary expression

#include <heed/mask/basic.hpp>
#include <heed/mask/bool_mask.hpp>

bool first_key_visible(const heed::Tensor<bool, 2>& matrix) {
#ifdef MUST_NOT_COMPILE
  const auto mask = heed::Causal() & matrix;
#else
  const auto mask = heed::Causal() & heed::BoolMask::keep(matrix);
#endif
  return heed::is_visible(mask, 0, 0, 0, 0);
}
