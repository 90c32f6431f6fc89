// SPDX-License-Identifier: MIT
// A bias borrows its matrix: a temporary would be gone before the scores are computed.
// expect: heed::Bias borrows

#include <heed/mask/modifier.hpp>

heed::Index columns(int length) {
#ifdef MUST_NOT_COMPILE
  const heed::Bias<float> bias{heed::Tensor<float, 2>(length, length)};
#else
  const heed::Tensor<float, 2> matrix(length, length);
  const heed::Bias<float> bias{matrix};
#endif
  return bias.view().extent(3);
}
