// SPDX-License-Identifier: MIT
// A dense mask borrows its matrix: a temporary would be gone before the mask is used.
// expect: heed::Dense borrows

#include <heed/mask/dense.hpp>

bool first_key_visible(int length) {
#ifdef MUST_NOT_COMPILE
  const heed::Dense mask = heed::Dense::keep(heed::Tensor<bool, 2>(length, length));
#else
  const heed::Tensor<bool, 2> matrix(length, length);
  const heed::Dense mask = heed::Dense::keep(matrix);
#endif
  return heed::is_visible(mask, 0, 0, 0, 0);
}
