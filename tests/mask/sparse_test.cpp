// SPDX-License-Identifier: MIT
// Sparse patterns: refused arguments, words of keys, next keys.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <climits>
#include <gtest/gtest.h>

#include <heed/mask/basic.hpp>
#include <heed/mask/concept.hpp>
#include <heed/mask/sparse.hpp>

#include "common/message_of.hpp"

namespace heed_test {
namespace {

constexpr heed::AttentionShape kSparseShape{.B = 1, .H = 1, .G = 1, .Lq = 2, .Lk = 5, .Dk = 1, .Dv = 1};

TEST(Strided, RefusesNonsense) {
  EXPECT_TRUE(has_all(message_of<heed::ValueError>([] { heed::Strided(0, 1); }),
                      {"heed::Strided: stride = 0 must be at least 1"}));
  EXPECT_TRUE(has_all(message_of<heed::ValueError>([] { heed::Strided(2, -1); }),
                      {"heed::Strided: local = -1", "must be non-negative"}));
  EXPECT_TRUE(
      has_all(message_of<heed::ValueError>([] { heed::bind(heed::Strided(2, 1), kSparseShape); }),
              {"heed::Strided: Lq = 2 but Lk = 5", "Strided::top_left", "Strided::bottom_right", "Strided::from"}));
}

TEST(Strided, WordsAgreeWithPairs) {
  for (const int stride : {1, 2, 3, 63, 64, 65, 1000, INT_MAX}) {
    for (const int local : {0, 2, 70, INT_MAX}) {
      const auto mask = heed::bind(heed::Strided::top_left(stride, local), kSparseShape);
      for (const int k : {0, 1, 64, 100, 2000}) {
        for (const int n : {1, 5, 64}) {
          const std::uint64_t word = mask.word(0, 0, 70, k, n);
          for (int i = 0; i < n; ++i) {
            ASSERT_EQ((word >> i & 1) != 0, mask.visible(0, 0, 70, k + i)) << stride << ' ' << local << ' ' << k + i;
          }
          EXPECT_EQ(n < 64 ? word >> n : 0, 0u);
        }
      }
    }
  }
}

TEST(GlobalTokens, RefusesNonsense) {
  EXPECT_TRUE(has_all(message_of<heed::ValueError>([] { heed::GlobalTokens(-1); }),
                      {"heed::GlobalTokens: count = -1", "must be non-negative"}));
  for (const auto& list : {std::vector<int>{3, 2}, std::vector<int>{2, 2}, std::vector<int>{-1, 2}}) {
    EXPECT_TRUE(has_all(message_of<heed::ValueError>([&] { heed::bind(heed::GlobalTokens(list), kSparseShape); }),
                        {"heed::GlobalTokens: positions must be non-negative and increase, but entry "}));
  }
  const std::vector<int> none;
  const auto mask = heed::bind(heed::GlobalTokens(none), kSparseShape);
  EXPECT_FALSE(heed::is_visible(mask, 0, 0, 0, 0));
}

// Kernels skip the keys that next() skips. It must skip only keys that no query sees, and should skip most of them.
template <heed::Mask M>
heed::Index expect_next_skips_hidden_keys_only(const M& mask) {
  constexpr int L = 300, queries = 3;
  const auto bound = heed::bind(mask, {.B = 1, .H = 1, .G = 1, .Lq = L, .Lk = L, .Dk = 1, .Dv = 1});
  const heed::MaskRef ref(bound);
  heed::Index skipped = 0;
  for (int q = 0; q + queries <= L; ++q) {
    for (int k = 0; k < L; ++k) {
      const heed::Index next = ref.next(0, 0, q, queries, k);
      EXPECT_GE(next, k);
      for (int j = k; j < std::min<heed::Index>(next, L); ++j) {
        for (int i = 0; i < queries; ++i) {
          if (ref.visible(0, 0, q + i, j)) {
            ADD_FAILURE() << "query " << q + i << " sees key " << j << " before " << next;
            return 0;
          }
        }
      }
      skipped += next > k;
    }
  }
  return skipped;
}

TEST(SparseMasks, NextSkipsHiddenKeysOnly) {
  const std::vector<int> positions{0, 100, 101, 250}, lengths{280};
  EXPECT_GT(expect_next_skips_hidden_keys_only(heed::Window(4, 4) | heed::GlobalTokens(2)), 80'000);
  EXPECT_GT(expect_next_skips_hidden_keys_only(heed::Window(4, 0) | heed::GlobalTokens(positions)), 80'000);
  EXPECT_GT(expect_next_skips_hidden_keys_only(heed::Strided(50, 3)), 60'000);
  EXPECT_GT(expect_next_skips_hidden_keys_only(heed::Strided(70, 3) & heed::Causal{}), 70'000);
  EXPECT_GT(
      expect_next_skips_hidden_keys_only((heed::Window(4, 4) | heed::GlobalTokens(positions)) & heed::Padding(lengths)),
      80'000);
  EXPECT_GT(
      expect_next_skips_hidden_keys_only(heed::Causal{} & heed::mask([](int q, int k) { return q % 3 != k % 3; })),
      40'000);
  EXPECT_EQ(expect_next_skips_hidden_keys_only(heed::mask([](int q, int k) { return q % 3 != k % 3; })), 0);
}

TEST(GlobalTokens, MayLieBeyondTheSequence) {
  const std::vector<int> far{1, 1000};
  const auto mask = heed::bind(heed::GlobalTokens(far), kSparseShape);
  EXPECT_TRUE(heed::is_visible(mask, 0, 0, 0, 1));
  EXPECT_FALSE(heed::is_visible(mask, 0, 0, 0, 2));
}

}  // namespace
}  // namespace heed_test
