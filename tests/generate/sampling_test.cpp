// SPDX-License-Identifier: MIT
#include "generate/sampling.hpp"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

namespace generate {
namespace {

// Probabilities 0.4, 0.3, 0.2, 0.1 of tokens 2, 0, 3, 1.
const std::vector<float> kLogits{std::log(0.3f), std::log(0.1f), std::log(0.4f), std::log(0.2f)};

std::vector<int> ids(const std::vector<Candidate>& candidates) {
  std::vector<int> all;
  double sum = 0;
  for (const Candidate& c : candidates) {
    all.push_back(c.id);
    sum += c.probability;
  }
  EXPECT_NEAR(sum, 1, 1e-12);
  return all;
}
std::vector<int> kept(const SamplingOptions& options) { return ids(Sampler(options).candidates(kLogits, {})); }
using Ids = std::vector<int>;

TEST(Sampling, KeepsWhatEachOptionSays) {
  EXPECT_EQ(kept({}), Ids{2}) << "greedy";
  EXPECT_EQ(kept({.temperature = 1}), (Ids{2, 0, 3, 1}));
  EXPECT_EQ(kept({.temperature = 1, .top_k = 2}), (Ids{2, 0}));
  EXPECT_EQ(kept({.temperature = 1, .top_k = 9}), (Ids{2, 0, 3, 1}));
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.39}), Ids{2}) << "the likeliest always stays";
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.41}), (Ids{2, 0})) << "up to and including the one that passes the sum";
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.71}), (Ids{2, 0, 3}));
  EXPECT_EQ(kept({.temperature = 1, .min_p = 0.49}), (Ids{2, 0, 3}));
  EXPECT_EQ(kept({.temperature = 1, .min_p = 0.51}), (Ids{2, 0}));
  EXPECT_EQ(kept({.temperature = 1, .top_k = 3, .top_p = 0.75}), (Ids{2, 0}))
      << "top-p counts what top-k left: 0.4/0.9, 0.7/0.9";
  const auto half = Sampler({.temperature = 0.5}).candidates(kLogits, {});
  EXPECT_NEAR(half[0].probability, 0.16 / 0.30, 1e-6) << "squares of the probabilities";
  const std::vector<float> equal{1, 1, 1};
  EXPECT_EQ(ids(Sampler({}).candidates(equal, {})), Ids{0}) << "of equals the first";
}

TEST(Sampling, TheRepetitionPenaltyLowersLogitsOfEitherSign) {
  const std::vector<float> logits{2, 1.5f, -1, -1.5f};
  const auto candidates =
      Sampler({.temperature = 1, .repetition_penalty = 2}).candidates(logits, std::vector<int>{0, 0, 2});
  EXPECT_EQ(ids(candidates), (Ids{1, 0, 3, 2})) << "2 becomes 1 (once), -1 becomes -2";
  EXPECT_NEAR(candidates[1].probability / candidates[0].probability, std::exp(1 - 1.5), 1e-12);
}

TEST(Sampling, DrawsInProportion) {
  Sampler sampler({.temperature = 1, .seed = 5});
  std::vector<int> count(4, 0);
  for (int i = 0; i < 10000; ++i) ++count[static_cast<std::size_t>(sampler.next(kLogits, {}))];
  const double expected[] = {3000, 1000, 4000, 2000};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(count[i], expected[i], 200);
  const auto texts = [](std::uint64_t seed, std::uint64_t text) {
    Sampler s({.temperature = 1, .seed = seed}, text);
    std::vector<int> all;
    for (int i = 0; i < 50; ++i) all.push_back(s.next(kLogits, {}));
    return all;
  };
  EXPECT_EQ(texts(1, 0), texts(1, 0));
  EXPECT_NE(texts(1, 0), texts(2, 0));
  EXPECT_NE(texts(1, 0), texts(1, 1));
}

TEST(Sampling, RefusesWhatMakesNoSense) {
  EXPECT_THROW(Sampler({.temperature = -1}), std::invalid_argument);
  EXPECT_THROW(Sampler({.top_k = -1}), std::invalid_argument);
  EXPECT_THROW(Sampler({.top_p = 0}), std::invalid_argument);
  EXPECT_THROW(Sampler({.min_p = 1.5}), std::invalid_argument);
  EXPECT_THROW(Sampler({.repetition_penalty = 0}), std::invalid_argument);
  EXPECT_THROW(Sampler({.temperature = std::numeric_limits<double>::quiet_NaN()}), std::invalid_argument);
  const std::vector<float> broken{1, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_THROW(Sampler({}).next(broken, {}), std::runtime_error);
}

}  // namespace
}  // namespace generate
