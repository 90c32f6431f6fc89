// SPDX-License-Identifier: MIT
// The program of every consumer project: a few numbers through attention. It prints what it was built with.

#include <cmath>
#include <cstdio>
#include <limits>

#include <heed/heed.hpp>

#if defined(EXPECT_COMPILED)
static_assert(HEED_USES_COMPILED == EXPECT_COMPILED);
#endif

namespace {

bool expect_near(const char* what, float value, float expected) {
  if (std::abs(value - expected) <= 1e-6f) return true;
  std::printf("%s: got %.9g, expected %.9g\n", what, static_cast<double>(value), static_cast<double>(expected));
  return false;
}

/// Equal scores, so that each query averages the values it sees.
bool causal_averages() {
  const heed::Tensor<float, 4> q(1, 1, 3, 2), k(1, 1, 3, 2);
  heed::Tensor<float, 4> v(1, 1, 3, 1);
  for (int j = 0; j < 3; ++j) v(0, 0, j, 0) = static_cast<float>(1 << j);

  const heed::Tensor<float, 4> out = heed::attention(q, k, v, heed::Causal{});
  return expect_near("first", out(0, 0, 0, 0), 1.0f) && expect_near("second", out(0, 0, 1, 0), 1.5f) &&
         expect_near("third", out(0, 0, 2, 0), 7.0f / 3.0f);
}

/// One visible key beside seven hidden ones of a huge value: a weight that is not exactly 0 would show.
bool hidden_keys_have_no_weight() {
  const heed::Tensor<float, 4> q(1, 1, 1, 2), k(1, 1, 8, 2);
  heed::Tensor<float, 4> v(1, 1, 8, 1);
  for (int j = 1; j < 8; ++j) v(0, 0, j, 0) = 3e38f;
  v(0, 0, 0, 0) = 1.0f;

  const int visible_keys[] = {1};
  const heed::Tensor<float, 4> out = heed::attention(q, k, v, heed::Padding(visible_keys));
  if (out(0, 0, 0, 0) == 1.0f) return true;
  std::printf("hidden keys: got %.9g, expected exactly 1\n", static_cast<double>(out(0, 0, 0, 0)));
  return false;
}

/// A whole block: heed::compiled holds its code, if the project takes it.
bool block_is_finite() {
  heed::EncoderLayer<float> block({.embed_dim = 8, .num_heads = 2});
  heed::Random random(1);
  block.initialize(random);
  const Eigen::MatrixXf y = block(Eigen::MatrixXf::Ones(3, 8));
  bool finite = true;
  for (Eigen::Index i = 0; i < y.size(); ++i) finite = finite && std::isfinite(y.data()[i]);
  if (finite) return true;
  std::printf("a block gives numbers that are not finite\n");
  return false;
}

}  // namespace

int main() {
  std::printf("heed %d.%d.%d for %s\n", HEED_VERSION_MAJOR, HEED_VERSION_MINOR, HEED_VERSION_PATCH, heed::isa());
  return causal_averages() && hidden_keys_have_no_weight() && block_is_finite() ? 0 : 1;
}
