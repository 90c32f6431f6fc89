// SPDX-License-Identifier: MIT
#include <array>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/random.hpp>

namespace {

using Words = std::array<std::uint32_t, 4>;

/// The generator takes its four counter words as (counter low, counter high, stream low, stream high) and its two key
/// words as (seed low, seed high).
Words philox(const Words& counter, const std::array<std::uint32_t, 2>& key) {
  const auto join = [](std::uint32_t low, std::uint32_t high) { return std::uint64_t{high} << 32 | low; };
  return heed::Philox(join(key[0], key[1]), join(counter[2], counter[3]))(join(counter[0], counter[1]));
}

// The known answers of philox4x32 with 10 rounds that the authors publish with Random123 (kat_vectors).
TEST(Philox, GivesTheKnownAnswersOfItsAuthors) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, IsAConstantExpression) {
  static_assert(heed::Philox(0)(0)[0] == 0x6627e8d5);
  static_assert(heed::Philox(1, 2).uniform(3) < 1);
}

TEST(Philox, SeedStreamAndCounterAllCount) {
  std::set<Words> seen;
  for (const std::uint64_t seed : {0ull, 1ull, 1ull << 32, 1ull << 63}) {
    for (const std::uint64_t stream : {0ull, 1ull, 1ull << 32, 1ull << 63}) {
      for (const std::uint64_t counter : {0ull, 1ull, 1ull << 32, 1ull << 63}) {
        EXPECT_TRUE(seen.insert(heed::Philox(seed, stream)(counter)).second) << seed << ' ' << stream << ' ' << counter;
      }
    }
  }
}

struct Moments {
  double mean, variance, skewness, kurtosis;
};
Moments moments_of(const std::vector<double>& x) {
  const double n = static_cast<double>(x.size());
  double mean = 0, m2 = 0, m3 = 0, m4 = 0;
  for (const double v : x) mean += v / n;
  for (const double v : x) {
    const double d = v - mean;
    m2 += d * d / n, m3 += d * d * d / n, m4 += d * d * d * d / n;
  }
  return {mean, m2, m3 / std::pow(m2, 1.5), m4 / (m2 * m2)};
}

// Bounds are 5 standard errors of each moment; with fixed seeds, the outcome is fixed too.
constexpr int kDraws = 200000;

TEST(Philox, UniformHasTheMomentsOfAUniformOnZeroToOne) {
  std::vector<double> x;
  const heed::Philox random(20240607, 3);
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    x.push_back(random.uniform(i));
    ASSERT_GE(x.back(), 0);
    ASSERT_LT(x.back(), 1);
  }
  const Moments m = moments_of(x);
  EXPECT_NEAR(m.mean, 1.0 / 2, 5 * std::sqrt(1 / 12.0 / kDraws));
  EXPECT_NEAR(m.variance, 1.0 / 12, 5 * std::sqrt(1 / 180.0 / kDraws));
  EXPECT_NEAR(m.skewness, 0, 0.02);
  EXPECT_NEAR(m.kurtosis, 1.8, 0.02);

  std::array<int, 64> bins{};
  for (const double v : x) ++bins[static_cast<std::size_t>(v * 64)];
  double chi2 = 0;
  for (const int b : bins) chi2 += std::pow(b - kDraws / 64.0, 2) / (kDraws / 64.0);
  EXPECT_LT(chi2, 63 + 5 * std::sqrt(2 * 63.0));
}

TEST(Philox, NormalHasTheMomentsOfAStandardNormal) {
  std::vector<double> x;
  const heed::Philox random(42);
  int within_one = 0;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    x.push_back(random.normal(i));
    ASSERT_TRUE(std::isfinite(x.back()));
    within_one += std::abs(x.back()) < 1;
  }
  const Moments m = moments_of(x);
  EXPECT_NEAR(m.mean, 0, 5 / std::sqrt(kDraws));
  EXPECT_NEAR(m.variance, 1, 5 * std::sqrt(2.0 / kDraws));
  EXPECT_NEAR(m.skewness, 0, 5 * std::sqrt(6.0 / kDraws));
  EXPECT_NEAR(m.kurtosis, 3, 5 * std::sqrt(24.0 / kDraws));
  EXPECT_NEAR(within_one, 0.6826894921 * kDraws, 5 * std::sqrt(kDraws * 0.68 * 0.32));
}

TEST(Philox, NeighbouringCountersAndStreamsAreUncorrelated) {
  double by_counter = 0, by_stream = 0, by_seed = 0;
  const auto centered = [](std::uint64_t seed, std::uint64_t stream, std::uint64_t i) {
    return heed::Philox(seed, stream).uniform(i) - 0.5;
  };
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    by_counter += centered(1, 2, i) * centered(1, 2, i + 1);
    by_stream += centered(1, 2, i) * centered(1, 3, i);
    by_seed += centered(1, 2, i) * centered(2, 2, i);
  }
  const double bound = 5 * std::sqrt(kDraws) / 12;
  EXPECT_NEAR(by_counter, 0, bound);
  EXPECT_NEAR(by_stream, 0, bound);
  EXPECT_NEAR(by_seed, 0, bound);
}

// Dropout

int dropped(const heed::DropoutPattern& pattern, int queries, int keys) {
  int count = 0;
  for (int q = 0; q < queries; ++q) {
    for (int k = 0; k < keys; ++k) {
      count += !pattern.keeps(pattern.query_word(0, 0, q), heed::DropoutPattern::key_word(k));
    }
  }
  return count;
}

TEST(DropoutPattern, DropsTheShareAskedFor) {
  for (const double p : {0.1, 0.25, 0.5, 0.9}) {
    const int n = 300 * 300;
    EXPECT_NEAR(dropped({7, 1, p}, 300, 300), p * n, 5 * std::sqrt(p * (1 - p) * n)) << p;
  }
}

TEST(DropoutPattern, ZeroDropsNothingAndOneEverything) {
  EXPECT_EQ(dropped({7, 1, 0.0}, 100, 100), 0);
  EXPECT_EQ(dropped({7, 1, 1.0}, 100, 100), 100 * 100);
}

TEST(DropoutPattern, EveryCoordinateCounts) {
  const auto pattern_of = [](std::uint64_t seed, std::uint64_t stream, int b, int h, int q, int first_key) {
    const heed::DropoutPattern pattern(seed, stream, 0.5);
    std::uint64_t bits = 0;
    for (int k = 0; k < 64; ++k) {
      const bool keeps = pattern.keeps(pattern.query_word(b, h, q), heed::DropoutPattern::key_word(first_key + k));
      bits = bits << 1 | static_cast<std::uint64_t>(keeps);
    }
    return bits;
  };
  const std::uint64_t base = pattern_of(1, 1, 0, 0, 0, 0);
  EXPECT_EQ(base, pattern_of(1, 1, 0, 0, 0, 0));
  std::set<std::uint64_t> all{base,
                              pattern_of(2, 1, 0, 0, 0, 0),
                              pattern_of(1 | 1ull << 40, 1, 0, 0, 0, 0),
                              pattern_of(1, 2, 0, 0, 0, 0),
                              pattern_of(1, 1 | 1ull << 40, 0, 0, 0, 0),
                              pattern_of(1, 1, 1, 0, 0, 0),
                              pattern_of(1, 1, 0, 1, 0, 0),
                              pattern_of(1, 1, 0, 0, 1, 0),
                              pattern_of(1, 1, 0, 0, 0, 1)};
  EXPECT_EQ(all.size(), 9u);
}

}  // namespace
