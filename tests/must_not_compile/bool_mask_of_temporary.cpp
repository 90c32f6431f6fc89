// SPDX-License-Identifier: MIT
// A dense mask borrows its matrix: a temporary would be gone before the mask is used.
// expect: heed::BoolMask borrows

#include <heed/mask/bool_mask.hpp>

bool first_key_visible(int length) {
#ifdef MUST_NOT_COMPILE
  const heed::BoolMask mask = heed::BoolMask::keep(heed::Tensor<bool, 2>(length, length));
#else
  const heed::Tensor<bool, 2> matrix(length, length);
  const heed::BoolMask mask = heed::BoolMask::keep(matrix);
#endif
  return heed::is_visible(mask, 0, 0, 0, 0);
}
