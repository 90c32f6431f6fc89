// SPDX-License-Identifier: MIT
// Targets are integers: a class of 1.5 means nothing.
// expect: heed::cross_entropy: the targets are integers

#include <cstdint>

#include <heed/train/loss.hpp>

double loss(const Eigen::MatrixXf& logits) {
#ifdef MUST_NOT_COMPILE
  const Eigen::VectorXf targets = Eigen::VectorXf::Zero(logits.rows());
#else
  const Eigen::Matrix<std::int64_t, Eigen::Dynamic, 1> targets = decltype(targets)::Zero(logits.rows());
#endif
  return heed::cross_entropy(logits, targets).value;
}
