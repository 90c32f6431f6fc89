// SPDX-License-Identifier: MIT
// The Mask concept: operators, words of keys, functions, and masks that users write.
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <heed/mask/basic.hpp>
#include <heed/mask/bool_mask.hpp>
#include <heed/mask/concept.hpp>
#include <heed/mask/sparse.hpp>

#include "common/any_mask.hpp"

// User-defined masks in another namespace.
namespace robots {

/// Shows the keys of the query's team.
struct SameTeam : heed::MaskBase {
  int teams;
  explicit SameTeam(int n) : teams(n) {}
  heed::KeyRange range(int, int, int) const { return heed::kAllKeys; }
  bool visible(int, int, int q, int k) const { return q % teams == k % teams; }
};

/// Shows the keys before the last reset, whose position depends on the number of keys.
struct BeforeReset : heed::MaskBase {
  int distance, end = 0;
  explicit BeforeReset(int d) : distance(d) {}
  heed::KeyRange range(int, int, int) const { return {0, end}; }
  BeforeReset bind(const heed::AttentionShape& shape) const {
    BeforeReset bound = *this;
    bound.end = shape.Lk - distance;
    return bound;
  }
};

struct NotAMask {
  heed::KeyRange range(int, int, int) const { return {}; }
};

}  // namespace robots

namespace heed_test {
namespace {

TEST(MaskConcept, DistinguishesExactMasks) {
  static_assert(heed::RangeMask<heed::NoMask>);
  static_assert(heed::RangeMask<heed::Causal>);
  static_assert(heed::RangeMask<heed::Window>);
  static_assert(heed::RangeMask<heed::Padding>);
  static_assert(heed::RangeMask<heed::DocumentMask>);
  static_assert(!heed::RangeMask<heed::Strided>);
  static_assert(!heed::RangeMask<heed::GlobalTokens>);
  static_assert(!heed::RangeMask<heed::BoolMask>);
  // An intersection of ranges is a range; a union or a complement is not.
  static_assert(heed::RangeMask<heed::And<heed::Causal, heed::Padding>>);
  static_assert(!heed::RangeMask<heed::And<heed::Causal, heed::BoolMask>>);
  static_assert(!heed::RangeMask<heed::Or<heed::Causal, heed::Padding>>);
  static_assert(!heed::RangeMask<heed::Not<heed::Causal>>);
}

template <class A, class B>
concept Intersectable = requires(const A& a, const B& b) { a & b; };

TEST(MaskConcept, OnlyMasksCombine) {
  static_assert(Intersectable<heed::Causal, heed::Padding>);
  static_assert(Intersectable<robots::SameTeam, heed::Padding>);
  static_assert(!heed::Mask<robots::NotAMask>);
  static_assert(!Intersectable<heed::Causal, robots::NotAMask>);
  static_assert(!Intersectable<heed::Causal, bool>);
  static_assert(!Intersectable<heed::Causal, heed::Tensor<bool, 2>>);
  static_assert(!Intersectable<heed::Causal, Eigen::Matrix<bool, 2, 2>>);
}

TEST(UserMask, CombinesWithEveryOther) {
  const robots::SameTeam team(2);
  EXPECT_EQ(heed::to_string(team, 2, 4), "#.#.\n.#.#\n");
  EXPECT_EQ(heed::to_string(team & heed::Causal{}, 3, 3), "#..\n.#.\n#.#\n");
  EXPECT_EQ(heed::to_string(heed::Causal{} & team, 3, 3), "#..\n.#.\n#.#\n");
  EXPECT_EQ(heed::to_string(team | heed::Window(1, 0), 3, 3), "#.#\n##.\n###\n");
  EXPECT_EQ(heed::to_string(!team, 2, 4), ".#.#\n#.#.\n");
  EXPECT_EQ(heed::to_string(team & robots::SameTeam(3), 2, 7), "#.....#\n.#.....\n");
  EXPECT_EQ(heed::to_string(!(team | robots::BeforeReset(2)), 1, 5), "...#.\n");
}

TEST(UserMask, IsBoundBeforeUse) {
  EXPECT_EQ(heed::to_string(robots::BeforeReset(2), 1, 5), "###..\n");
  EXPECT_EQ(heed::to_string(robots::BeforeReset(2) & heed::Window::top_left(0, 9), 1, 5), "###..\n");
  EXPECT_EQ(heed::to_string(robots::BeforeReset(9), 1, 5), ".....\n");
}

TEST(FunctionMask, TakesTwoOrFourIndices) {
  int calls = 0;
  const auto two = heed::mask([&calls](int q, int k) {
    ++calls;
    return q > k;
  });
  EXPECT_EQ(heed::to_string(two, 3, 2), "..\n#.\n##\n");
  EXPECT_EQ(calls, 6);
  const auto four = heed::mask([](int b, int h, int, int k) { return k == b + h; });
  EXPECT_TRUE(heed::is_visible(four, 1, 1, 0, 2));
  EXPECT_FALSE(heed::is_visible(four, 1, 1, 0, 1));
  // The function is not called outside the ranges.
  calls = 0;
  EXPECT_EQ(heed::to_string(two & heed::Window(0, 0), 3, 3), "...\n...\n...\n");
  EXPECT_EQ(calls, 3);
}

TEST(Words, CutAtTheRange) {
  using heed::detail::range_word;
  constexpr std::uint64_t all = ~std::uint64_t{0};
  EXPECT_EQ(range_word({0, 64}, 0, 64), all);
  EXPECT_EQ(range_word({0, 63}, 0, 64), all >> 1);
  EXPECT_EQ(range_word({1, 64}, 0, 64), all - 1);
  EXPECT_EQ(range_word({10, 12}, 8, 64), 0b1100u);
  EXPECT_EQ(range_word({10, 12}, 8, 3), 0b100u);
  EXPECT_EQ(range_word({0, 8}, 8, 64), 0u);
  EXPECT_EQ(range_word({72, 100}, 8, 64), 0u);
  EXPECT_EQ(range_word({5, 5}, 0, 64), 0u);
  EXPECT_EQ(range_word({7, 3}, 0, 64), 0u);
  EXPECT_EQ(range_word({-10, -1}, 0, 64), 0u);
  EXPECT_EQ(range_word({-10, 2}, 0, 64), 0b11u);
  EXPECT_EQ(range_word(heed::kAllKeys, 1 << 29, 64), all);
}

TEST(Words, PackBytes) {
  Random random(61);
  for (int i = 0; i < 100; ++i) {
    unsigned char bytes[64];
    for (auto& byte : bytes) byte = random.chance(0.5);
    const std::uint64_t word = heed::detail::pack_bits(bytes);
    for (int bit = 0; bit < 64; ++bit) ASSERT_EQ(word >> bit & 1, bytes[bit]);
  }
}

/// Compares pairs, ranges, words and MaskRef with the definition.
template <class M>
void check_against_truth(const M& mask, const heed::AttentionShape& s, const MaskCase& c, Random& random) {
  const auto bound = heed::bind(mask, s);
  const heed::MaskRef ref(bound);
  EXPECT_EQ(ref.exact(), c.is_exact());
  for (int b = 0; b < s.B; ++b) {
    for (int h = 0; h < s.H; ++h) {
      std::vector<heed::KeyRange> ranges(static_cast<std::size_t>(s.Lq));
      ref.ranges(b, h, 0, s.Lq, s.Lk, ranges.data());
      for (int q = 0; q < s.Lq; ++q) {
        const heed::KeyRange range = ranges[static_cast<std::size_t>(q)];
        ASSERT_TRUE(0 <= range.begin && range.begin <= range.end && range.end <= s.Lk);
        for (int k = 0; k < s.Lk; ++k) {
          ASSERT_EQ(heed::is_visible(bound, b, h, q, k), c.visible(b, h, q, k)) << b << h << ' ' << q << ' ' << k;
          ASSERT_EQ(ref.visible(b, h, q, k), c.visible(b, h, q, k));
          if (c.is_exact()) {
            ASSERT_EQ(range.contains(k), c.visible(b, h, q, k));
          } else if (!range.contains(k)) {
            ASSERT_FALSE(c.visible(b, h, q, k));
          }
        }
      }
      for (int i = 0; i < 4 && s.Lq > 0 && s.Lk > 0; ++i) {
        const int q = random.integer(0, s.Lq - 1), k = random.integer(0, s.Lk - 1);
        const int rows = random.integer(1, s.Lq - q), n = std::min(random.integer(1, 64), s.Lk - k);
        std::vector<std::uint64_t> words(static_cast<std::size_t>(rows));
        ref.words(b, h, q, rows, k, n, words.data());
        for (int r = 0; r < rows; ++r) {
          const std::uint64_t in_range = heed::detail::range_word(ranges[static_cast<std::size_t>(q + r)], k, n);
          const std::uint64_t word = words[static_cast<std::size_t>(r)] & in_range;
          for (int j = 0; j < 64; ++j) {
            const bool expected = j < n && c.visible(b, h, q + r, k + j);
            ASSERT_EQ((word >> j & 1) != 0, expected) << "word of query " << q + r << ", key " << k + j;
          }
        }
      }
    }
  }
}

TEST(RandomMasks, MeanWhatTheySay) {
  const int count = effort(4000);
  for (int i = 0; i < count && !HasFailure(); ++i) {
    Random random(62, i);
    const heed::AttentionShape s{.B = random.integer(0, 2),
                                 .H = random.integer(1, 2),
                                 .G = 1,
                                 .Lq = random.integer(0, 20),
                                 .Lk = random.chance(0.3) ? random.integer(60, 140) : random.integer(0, 20),
                                 .Dk = 1,
                                 .Dv = 1};
    const MaskCase c = random.chance(0.7) ? random_mask(s, random) : random_sequences(s, random);
    SCOPED_TRACE("seed 62, case " + std::to_string(i) + ": " + c.text());
    c.with_mask([&](const auto& mask) { check_against_truth(mask, s, c, random); });
  }
}

}  // namespace
}  // namespace heed_test
