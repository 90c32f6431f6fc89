// SPDX-License-Identifier: MIT
// Truth values are no ids.
// expect: no match

#include <array>

#include <heed/nn/embedding.hpp>

Eigen::MatrixXf rows(const heed::Embedding<float>& embedding) {
#ifdef MUST_NOT_COMPILE
  const std::array<bool, 2> ids{true, false};
#else
  const std::array<unsigned char, 2> ids{1, 0};
#endif
  return embedding(ids);
}
