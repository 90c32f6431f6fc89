// SPDX-License-Identifier: MIT
// AnyMask: the same answers as the mask it holds, no allocation, independent copies.
#include "common/any_mask.hpp"

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <heed/mask/any_mask.hpp>
#include <heed/mask/basic.hpp>
#include <heed/mask/bool_mask.hpp>
#include <heed/mask/concept.hpp>
#include <heed/mask/sparse.hpp>

#include "common/allocation_counter.hpp"

namespace heed_test {
namespace {

using heed::AnyMask;

const heed::AttentionShape kBatch{.B = 2, .H = 2, .G = 1, .Lq = 9, .Lk = 9, .Dk = 1, .Dv = 1};

/// The mask and the AnyMask of it: the same ranges, words, next keys and pairs, directly and through MaskRef.
template <class M>
void expect_same(const M& mask, const heed::AttentionShape& s = kBatch) {
  const auto plain = heed::bind(mask, s);
  const AnyMask any = heed::bind(AnyMask(mask), s);
  const heed::MaskRef expected(plain), got(any);
  EXPECT_EQ(expected.exact(), got.exact());
  EXPECT_EQ(heed::RangeMask<M>, got.exact());
  for (int b = 0; b < s.B; ++b) {
    for (int h = 0; h < s.H; ++h) {
      for (int q = 0; q < s.Lq; ++q) {
        const heed::KeyRange x = plain.range(b, h, q), y = any.range(b, h, q);
        EXPECT_TRUE(x.begin == y.begin && x.end == y.end);
        heed::KeyRange cut_x[2], cut_y[2];
        const int n = q + 1 < s.Lq ? 2 : 1;
        const auto all_x = expected.ranges(b, h, q, n, s.Lk, cut_x), all_y = got.ranges(b, h, q, n, s.Lk, cut_y);
        EXPECT_TRUE(all_x.low == all_y.low && all_x.high == all_y.high);
        EXPECT_TRUE(all_x.full_low == all_y.full_low && all_x.full_high == all_y.full_high);
        for (int k = 0; k < s.Lk; ++k) {
          EXPECT_EQ(heed::is_visible(plain, b, h, q, k), heed::is_visible(any, b, h, q, k));
          EXPECT_EQ(expected.visible(b, h, q, k), got.visible(b, h, q, k));
          EXPECT_EQ(heed::detail::next_candidate(plain, b, h, q, k), heed::detail::next_candidate(any, b, h, q, k));
          EXPECT_EQ(expected.next(b, h, q, n, k), got.next(b, h, q, n, k));
          EXPECT_EQ(heed::detail::truth_word(plain, b, h, q, k, s.Lk - k),
                    heed::detail::truth_word(any, b, h, q, k, s.Lk - k));
          std::uint64_t words_x[2], words_y[2];
          expected.words(b, h, q, n, k, s.Lk - k, words_x);
          got.words(b, h, q, n, k, s.Lk - k, words_y);
          for (int i = 0; i < n; ++i) EXPECT_EQ(words_x[i], words_y[i]);
        }
      }
    }
  }
}

/// f(mask) for one mask of each kind and some expressions.
template <class F>
void for_each_mask(F&& f) {
  static const std::vector<int> lengths{5, 9}, begin{1, 0}, offsets{0, 4, 9}, positions{0, 6};
  static const heed::Tensor<bool, 2> keep = [] {
    heed::Tensor<bool, 2> matrix(9, 9);
    for (Index i = 0; i < matrix.size(); ++i) matrix.data()[i] = i % 3 != 1;
    return matrix;
  }();
  f(heed::NoMask{});
  f(heed::Causal{});
  f(heed::Causal::bottom_right());
  f(heed::Window(2, 1));
  f(heed::Padding(lengths));
  f(heed::Padding(begin, lengths));
  f(heed::DocumentMask(offsets));
  f(heed::Strided(3, 1));
  f(heed::GlobalTokens(positions));
  f(heed::BoolMask::ignore(keep));
  f(heed::mask([](int q, int k) { return (q + k) % 3 != 0; }));
  f(!heed::Causal{});
  f(heed::Causal{} & heed::Padding(lengths));
  f((heed::Window(1, 0) | heed::GlobalTokens(1)) & heed::Padding(lengths));
  f(heed::Causal{} & heed::Padding(lengths) & heed::BoolMask::keep(keep));
}

TEST(AnyMask, EqualsTheMaskItHolds) {
  for_each_mask([](const auto& mask) { expect_same(mask); });
}

TEST(AnyMask, KeepsRangesExactInIntersections) {
  const std::vector<int> lengths{5, 9};
  const AnyMask causal = heed::Causal{}, padding = heed::Padding(lengths), pairs = heed::Strided(3, 1);
  EXPECT_TRUE(heed::MaskRef(causal & padding).exact());
  EXPECT_TRUE(heed::MaskRef(causal & heed::Padding(lengths)).exact());
  EXPECT_TRUE(AnyMask(causal & padding).exact());
  EXPECT_FALSE(heed::MaskRef(causal & pairs).exact());
  EXPECT_FALSE(heed::MaskRef(causal | padding).exact());
  EXPECT_FALSE(heed::MaskRef(!causal).exact());
}

TEST(AnyMask, IsChosenAtRunTime) {
  for (const bool causal : {false, true}) {
    AnyMask mask = causal ? AnyMask(heed::Causal{}) : heed::NoMask{};
    mask = mask & heed::Window(1, 1);
    EXPECT_EQ(heed::to_string(mask, 3, 3), causal ? "#..\n##.\n.##\n" : "##.\n###\n.##\n");
  }
  EXPECT_EQ(heed::to_string(AnyMask(), 1, 3), "###\n");
}

TEST(AnyMask, BindsTheMaskItHolds) {
  const AnyMask mask = heed::Causal{};
  EXPECT_THROW(heed::bind(mask, {.B = 1, .H = 1, .G = 1, .Lq = 2, .Lk = 3, .Dk = 1, .Dv = 1}), heed::ValueError);
  EXPECT_THROW(heed::to_string(mask & heed::NoMask{}, 2, 3), heed::ValueError);
  EXPECT_EQ(heed::to_string(AnyMask(heed::Causal::bottom_right()), 1, 3), "###\n");
}

TEST(AnyMask, DoesNotAllocate) {
  for_each_mask([](const auto& mask) {
    bool seen = false;
    EXPECT_EQ(allocations_of([&] {
                AnyMask any = mask;
                AnyMask copy = any;
                any = copy;
                const AnyMask bound = heed::bind(std::as_const(copy), kBatch);
                seen = heed::MaskRef(bound).visible(0, 0, 0, 0) ==
                       heed::MaskRef(heed::bind(any, kBatch)).visible(0, 0, 0, 0);
              }),
              0);
    EXPECT_TRUE(seen);
  });
}

/// A lambda that owns its data, made in a scope that ends.
AnyMask owning() {
  auto visible = std::make_shared<std::vector<int>>(std::vector<int>{0, 2});
  return heed::mask([visible](int, int k) { return k == (*visible)[0] || k == (*visible)[1]; });
}

TEST(AnyMask, OwnsTemporaries) {
  AnyMask mask = owning();
  EXPECT_EQ(heed::to_string(mask, 1, 4), "#.#.\n");
  const AnyMask copy = mask;
  EXPECT_EQ(allocations_of([&] { heed::MaskRef(heed::bind(copy, kBatch)).visible(0, 0, 0, 0); }), 0);
  mask = copy & heed::Causal::bottom_right();
  const AnyMask both = mask;
  mask = heed::NoMask{};
  EXPECT_EQ(heed::to_string(mask, 1, 4), "####\n");
  EXPECT_EQ(heed::to_string(copy, 1, 4), "#.#.\n");
  EXPECT_EQ(heed::to_string(both, 2, 4), "#.#.\n#.#.\n");
}

TEST(AnyMask, CopiesAreIndependent) {
  AnyMask a = heed::Window(0, 0);
  const AnyMask b = a, c = std::move(a);
  a = heed::Causal{};
  EXPECT_EQ(heed::to_string(a, 2, 2), "#.\n##\n");
  EXPECT_EQ(heed::to_string(b, 2, 2), "#.\n.#\n");
  EXPECT_EQ(heed::to_string(c, 2, 2), "#.\n.#\n");
}

}  // namespace
}  // namespace heed_test
