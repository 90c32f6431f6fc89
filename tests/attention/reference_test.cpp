// SPDX-License-Identifier: MIT
// The naive path against numbers worked out by hand: everything else is judged by it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

#include <heed/attention/attention.hpp>
#include <heed/compiled/attention.hpp>

#include "common/random_inputs.hpp"
#include "common/special_values.hpp"

namespace heed_test {
namespace {

template <class T>
struct Tiny {
  // One head, two queries, three keys. Scores are q·k = log of (1, 2, 5) and of (3, 3, 2): their exponentials add up
  // to 8.
  Tiny() : q(1, 1, 2, 2), k(1, 1, 3, 2), v(1, 1, 3, 1) {
    const double first[] = {0, std::log(2.0), std::log(5.0)}, second[] = {std::log(3.0), std::log(3.0), std::log(2.0)};
    q(0, 0, 0, 0) = T(1), q(0, 0, 1, 1) = T(1);
    for (int j = 0; j < 3; ++j) {
      k(0, 0, j, 0) = static_cast<T>(first[j]);
      k(0, 0, j, 1) = static_cast<T>(second[j]);
    }
    v(0, 0, 0, 0) = T(8), v(0, 0, 1, 0) = T(16), v(0, 0, 2, 0) = T(32);
    options.scale = 1;
    context.path = heed::Path::Reference;
  }
  heed::Tensor<T, 4> q, k, v;
  heed::AttentionOptions options;
  heed::Context context;
};

template <class T>
class Reference : public ::testing::Test {
 protected:
  static constexpr double tolerance() {
    if constexpr (std::is_same_v<T, heed::half>) return 0.02;
    if constexpr (std::is_same_v<T, heed::bfloat16>) return 0.15;
    // The expected numbers are double.
    return 40 * std::max(static_cast<double>(std::numeric_limits<T>::epsilon()), 0x1p-52);
  }
};
using ReferenceScalars = ::testing::Types<float, double, long double, heed::half, heed::bfloat16>;
TYPED_TEST_SUITE(Reference, ReferenceScalars);

TYPED_TEST(Reference, GivesTheWeightedMean) {
  Tiny<TypeParam> t;
  const auto [out, weights] = heed::attention_with_weights(t.q, t.k, t.v, t.options, t.context);
  const double expected[2][3] = {{1 / 8.0, 2 / 8.0, 5 / 8.0}, {3 / 8.0, 3 / 8.0, 2 / 8.0}};
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j)
      EXPECT_NEAR(static_cast<double>(weights(0, 0, i, j)), expected[i][j], this->tolerance());
  }
  EXPECT_NEAR(static_cast<double>(out(0, 0, 0, 0)), 1 + 4 + 20, 32 * this->tolerance());
  EXPECT_NEAR(static_cast<double>(out(0, 0, 1, 0)), 3 + 6 + 8, 32 * this->tolerance());
}

TYPED_TEST(Reference, KeepsMaximumAndSumApart) {
  Tiny<TypeParam> t;
  const auto s = heed::attention_with_statistics(t.q, t.k, t.v, t.options, t.context);
  EXPECT_NEAR(static_cast<double>(s.maximum(0, 0, 0)), std::log(5.0), this->tolerance());
  EXPECT_NEAR(static_cast<double>(s.sum(0, 0, 0)), 8 / 5.0, 2 * this->tolerance());
  EXPECT_NEAR(static_cast<double>(s.maximum(0, 0, 1)), std::log(3.0), this->tolerance());
  EXPECT_NEAR(static_cast<double>(s.sum(0, 0, 1)), 8 / 3.0, 3 * this->tolerance());
}

TYPED_TEST(Reference, LeavesHiddenKeysOut) {
  Tiny<TypeParam> t;
  const auto mask = heed::mask([](int q, int k) { return q == 0 ? k != 1 : false; });
  const auto [out, weights] = heed::attention_with_weights(t.q, t.k, t.v, mask, t.options, t.context);
  EXPECT_NEAR(static_cast<double>(weights(0, 0, 0, 0)), 1 / 6.0, this->tolerance());
  EXPECT_EQ(static_cast<double>(weights(0, 0, 0, 1)), 0);
  EXPECT_NEAR(static_cast<double>(weights(0, 0, 0, 2)), 5 / 6.0, this->tolerance());
  EXPECT_NEAR(static_cast<double>(out(0, 0, 0, 0)), (8 + 5 * 32) / 6.0, 32 * this->tolerance());
  EXPECT_EQ(static_cast<double>(out(0, 0, 1, 0)), 0);

  const auto s = heed::attention_with_statistics(t.q, t.k, t.v, mask, t.options, t.context);
  EXPECT_EQ(static_cast<double>(s.maximum(0, 0, 1)), -kInf<double>);
  EXPECT_EQ(static_cast<double>(s.sum(0, 0, 1)), 0);
}

TYPED_TEST(Reference, PutsASinkInTheDenominatorOnly) {
  Tiny<TypeParam> t;
  const double sinks[] = {std::log(24.0)};
  t.options.sinks = sinks;
  const auto mask = heed::mask([](int q, int) { return q == 0; });
  const auto [out, weights] = heed::attention_with_weights(t.q, t.k, t.v, mask, t.options, t.context);
  EXPECT_NEAR(static_cast<double>(weights(0, 0, 0, 2)), 5 / 32.0, this->tolerance());
  EXPECT_NEAR(static_cast<double>(out(0, 0, 0, 0)), (8 + 32 + 160) / 32.0, 32 * this->tolerance());
  EXPECT_EQ(static_cast<double>(out(0, 0, 1, 0)), 0);

  // A query that sees nothing still has the sink's log-sum-exp.
  const auto s = heed::attention_with_statistics(t.q, t.k, t.v, mask, t.options, t.context);
  EXPECT_NEAR(static_cast<double>(s.maximum(0, 0, 1)), std::log(24.0), 4 * this->tolerance());
  EXPECT_EQ(static_cast<double>(s.sum(0, 0, 1)), 1);
}

TYPED_TEST(Reference, DropsWeightsAndEnlargesTheRest) {
  Tiny<TypeParam> t;
  t.options.dropout = 0.5;
  t.context.training = true;
  bool seen[8] = {};
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    t.context.seed = seed;
    t.context.restart_streams();
    const auto out = heed::attention(t.q, t.k, t.v, t.options, t.context);
    const double y = static_cast<double>(out(0, 0, 0, 0));
    bool is_a_sum = false;
    for (int kept = 0; kept < 8; ++kept) {
      const double sum = 2 * ((kept & 1) * 1 + (kept >> 1 & 1) * 4 + (kept >> 2 & 1) * 20);
      if (std::abs(y - sum) > 64 * this->tolerance()) continue;
      is_a_sum = seen[kept] = true;
    }
    EXPECT_TRUE(is_a_sum) << y;
  }
  // 64 draws of 8 outcomes: that one stays out has a chance below 2e-3, and with fixed seeds it does not happen.
  for (const bool s : seen) EXPECT_TRUE(s);
}

TEST(ReferenceHeads, QueryHeadReadsItsGroup) {
  heed::Tensor<double, 4> q(1, 6, 1, 1), k(1, 3, 1, 1), v(1, 3, 1, 1);
  for (int g = 0; g < 3; ++g) v(0, g, 0, 0) = g + 1;
  heed::Context context;
  context.path = heed::Path::Reference;
  const auto out = heed::attention(q, k, v, context);
  for (int h = 0; h < 6; ++h) EXPECT_EQ(out(0, h, 0, 0), h / 2 + 1);
}

TEST(ReferenceScale, DefaultsToOneOverTheRootOfTheWidth) {
  heed::Tensor<double, 4> q(1, 1, 1, 9), k(1, 1, 2, 9), v(1, 1, 2, 1);
  for (int d = 0; d < 9; ++d) q(0, 0, 0, d) = 1, k(0, 0, 1, d) = 1;
  v(0, 0, 1, 0) = 1;
  heed::Context context;
  context.path = heed::Path::Reference;
  // Scores 0 and 9/√9 = 3.
  const auto out = heed::attention(q, k, v, context);
  EXPECT_NEAR(out(0, 0, 0, 0), 1 / (1 + std::exp(-3.0)), 1e-15);
}

}  // namespace
}  // namespace heed_test
