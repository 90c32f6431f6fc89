// SPDX-License-Identifier: MIT
// The common masks: borrowed lists, refused arguments and error messages.
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <climits>
#include <gtest/gtest.h>

#include <heed/mask/basic.hpp>
#include <heed/mask/concept.hpp>
#include <heed/mask/sparse.hpp>

#include "common/message_of.hpp"

namespace heed_test {
namespace {

heed::AttentionShape shape(int B, int Lq, int Lk) {
  return {.B = B, .H = 1, .G = 1, .Lq = Lq, .Lk = Lk, .Dk = 1, .Dv = 1};
}
template <class Exception, class M>
std::string refusal(const M& mask, const heed::AttentionShape& s) {
  return message_of<Exception>([&] { heed::bind(mask, s); });
}

TEST(Alignment, MustBeNamedWhereTheReadingsDiffer) {
  const heed::AttentionShape s = shape(1, 2, 5);
  EXPECT_TRUE(has_all(refusal<heed::ValueError>(heed::Causal{}, s),
                      {"heed::Causal: Lq = 2 but Lk = 5", "Causal::top_left", "Causal::bottom_right", "Causal::from"}));
  EXPECT_TRUE(has_all(refusal<heed::ValueError>(heed::Window(1, 1), s),
                      {"heed::Window: Lq = 2 but Lk = 5", "Window::top_left", "Window::bottom_right", "Window::from"}));
  EXPECT_NO_THROW(heed::bind(heed::Causal{}, shape(1, 5, 5)));
  EXPECT_NO_THROW(heed::bind(heed::Causal{}, shape(1, 0, 0)));
  EXPECT_THROW(heed::bind(heed::Causal{}, shape(1, 1, 0)), heed::ValueError);
  // In an expression too.
  EXPECT_THROW(heed::bind(heed::NoMask{} & heed::Causal{}, s), heed::ValueError);
  EXPECT_THROW(heed::bind(heed::NoMask{} | heed::Causal{}, s), heed::ValueError);
  EXPECT_THROW(heed::bind(!heed::Causal{}, s), heed::ValueError);
}

TEST(Alignment, FromNeedsOnePositionASample) {
  const std::vector<int> first{1, 2};
  EXPECT_TRUE(has_all(refusal<heed::ShapeError>(heed::Causal::from(first), shape(3, 2, 5)),
                      {"heed::Causal::from: 2 positions but B = 3", "one for each sample"}));
  const std::vector<int> negative{1, -2};
  EXPECT_TRUE(has_all(refusal<heed::ValueError>(heed::Window::from(negative, 1, 1), shape(2, 2, 5)),
                      {"heed::Window::from: position -2 of sample 1 is negative"}));
}

#if PTRDIFF_MAX > INT32_MAX  // else memory ends before
TEST(Alignment, HasNoOverflow) {
  const int first[] = {INT_MAX};
  const auto causal = heed::bind(heed::Causal::from(first), shape(1, 4, 4));
  EXPECT_TRUE(heed::is_visible(causal, 0, 0, 3, INT_MAX));
  const auto window = heed::bind(heed::Window::from(first, INT_MAX, INT_MAX), shape(1, 4, 4));
  EXPECT_FALSE(heed::is_visible(window, 0, 0, 3, 2));
  EXPECT_TRUE(heed::is_visible(window, 0, 0, 3, 3));
}
#endif

TEST(Window, RefusesNegativeWidths) {
  EXPECT_TRUE(has_all(message_of<heed::ValueError>([] { heed::Window(-1, 2); }),
                      {"heed::Window: left = -1 and right = 2", "must be non-negative"}));
  EXPECT_THROW(heed::Window(1, -1), heed::ValueError);
  EXPECT_THROW(heed::Window::top_left(-1, 0), heed::ValueError);
}

TEST(Counts, MayBeAsLargeAsAnIndex) {
  constexpr heed::Index most = std::numeric_limits<heed::Index>::max();
  EXPECT_EQ(heed::to_string(heed::Window(most, 0), 2, 2), "#.\n##\n");
  EXPECT_EQ(heed::to_string(heed::Window(0, most), 2, 2), "##\n.#\n");
  EXPECT_EQ(heed::to_string(heed::Strided(most, 0), 3, 3), "#..\n##.\n#.#\n");
  EXPECT_EQ(heed::to_string(heed::Strided(most / 2 + 1, most), 1, 1), "#\n");
  EXPECT_EQ(heed::to_string(heed::GlobalTokens(most), 1, 2), "##\n");
}

TEST(Padding, NeedsOneEntryASample) {
  const std::vector<int> two{1, 2}, three{1, 2, 3};
  EXPECT_TRUE(has_all(refusal<heed::ShapeError>(heed::Padding(two), shape(3, 4, 4)),
                      {"heed::Padding: 2 entries for keys but B = 3", "one for each sample"}));
  EXPECT_TRUE(has_all(refusal<heed::ShapeError>(heed::Padding(two, three), shape(3, 4, 4)),
                      {"heed::Padding: 2 entries for begin but B = 3"}));
  EXPECT_TRUE(has_all(refusal<heed::ShapeError>(heed::Padding::queries_and_keys(two, three), shape(3, 4, 4)),
                      {"heed::Padding: 2 entries for queries but B = 3"}));
}

TEST(Padding, RefusesLengthsThatAreNone) {
  const std::vector<int> fine{4, 0}, long_one{4, 5}, negative{-1, 2}, falling{3, 3};
  EXPECT_TRUE(has_all(refusal<heed::ValueError>(heed::Padding(long_one), shape(2, 9, 4)),
                      {"heed::Padding: entry 5 for keys of sample 1 must be between 0 and Lk = 4"}));
  EXPECT_TRUE(has_all(refusal<heed::ValueError>(heed::Padding(negative), shape(2, 9, 4)),
                      {"heed::Padding: entry -1 for keys of sample 0"}));
  EXPECT_TRUE(has_all(refusal<heed::ValueError>(heed::Padding(negative, fine), shape(2, 9, 4)),
                      {"heed::Padding: entry -1 for begin of sample 0"}));
  EXPECT_TRUE(has_all(refusal<heed::ValueError>(heed::Padding::queries_and_keys(long_one, fine), shape(2, 4, 9)),
                      {"heed::Padding: entry 5 for queries of sample 1 must be between 0 and Lq = 4"}));
  EXPECT_TRUE(has_all(refusal<heed::ValueError>(heed::Padding(falling, fine), shape(2, 9, 4)),
                      {"heed::Padding: sample 1 begins at 3 but ends at 0"}));
}

TEST(DocumentMask, RefusesOffsetsThatDontCoverTheLength) {
  const std::vector<int> fine{0, 2, 5}, shorter{0, 2, 4}, late{1, 2, 5}, falling{0, 4, 2, 5}, none{}, other{0, 5};
  EXPECT_NO_THROW(heed::bind(heed::DocumentMask(fine), shape(1, 5, 5)));
  EXPECT_TRUE(has_all(refusal<heed::ValueError>(heed::DocumentMask(shorter), shape(1, 5, 5)),
                      {"heed::DocumentMask: query offsets must start at 0 and end at Lq = 5", "the last is 4"}));
  EXPECT_TRUE(has_all(refusal<heed::ValueError>(heed::DocumentMask(late), shape(1, 5, 5)), {"must start at 0"}));
  EXPECT_TRUE(has_all(refusal<heed::ValueError>(heed::DocumentMask(none), shape(1, 5, 5)), {"there are 0"}));
  EXPECT_TRUE(has_all(refusal<heed::ValueError>(heed::DocumentMask(falling), shape(1, 5, 5)),
                      {"heed::DocumentMask: query offsets must not decrease"}));
  EXPECT_TRUE(has_all(refusal<heed::ValueError>(heed::DocumentMask(fine, shorter), shape(1, 5, 5)),
                      {"heed::DocumentMask: key offsets must start at 0 and end at Lk = 5"}));
  EXPECT_TRUE(has_all(refusal<heed::ShapeError>(heed::DocumentMask(fine, other), shape(1, 5, 5)),
                      {"heed::DocumentMask: 3 query offsets but 2 key offsets"}));
  // Attention with Lq != Lk needs separate key offsets.
  EXPECT_THROW(heed::bind(heed::DocumentMask(fine), shape(1, 5, 6)), heed::ValueError);
}

TEST(DocumentMask, EmptySequencesHaveNoKeys) {
  const std::vector<int> queries{0, 0, 2, 2, 3}, keys{0, 4, 4, 6, 7};
  const auto mask = heed::bind(heed::DocumentMask(queries, keys), shape(1, 3, 7));
  EXPECT_EQ(mask.range(0, 0, 0).begin, 4);
  EXPECT_EQ(mask.range(0, 0, 1).end, 4);
  EXPECT_EQ(mask.range(0, 0, 2).begin, 6);
  EXPECT_EQ(mask.range(0, 0, 2).end, 7);
}

TEST(Lists, OfTemporariesDoNotCompile) {
  static_assert(!std::is_constructible_v<heed::Padding, std::vector<int>>);
  static_assert(!std::is_constructible_v<heed::Padding, std::vector<std::int64_t>>);
  static_assert(!std::is_constructible_v<heed::Padding, std::vector<int>&, std::vector<int>>);
  static_assert(!std::is_constructible_v<heed::DocumentMask, std::vector<int>>);
  static_assert(!std::is_constructible_v<heed::GlobalTokens, std::vector<short>>);
}

template <class T>
class ListsOf : public testing::Test {};
using IntegerTypes = testing::Types<signed char, unsigned char, short, unsigned short, int, unsigned, long,
                                    unsigned long, long long, unsigned long long>;
TYPED_TEST_SUITE(ListsOf, IntegerTypes);

// F47: lengths, offsets and positions of any integer type mean what ints mean.
TYPED_TEST(ListsOf, AnyIntegerTypeMeanTheSame) {
  using T = TypeParam;
  const auto same = [](const auto& of_ints, const auto& of_others, const heed::AttentionShape& s) {
    for (int b = 0; b < s.B; ++b) EXPECT_EQ(heed::to_string(of_others, s, b), heed::to_string(of_ints, s, b));
  };
  const int lengths[] = {3, 0}, begins[] = {1, 0}, offsets[] = {0, 2, 2, 5}, positions[] = {0, 3};
  const std::vector<T> t_lengths{3, 0}, t_begins{1, 0}, t_offsets{0, 2, 2, 5}, t_positions{0, 3};
  same(heed::Padding(lengths), heed::Padding(t_lengths), shape(2, 5, 5));
  same(heed::Padding(begins, lengths), heed::Padding(t_begins, t_lengths), shape(2, 5, 5));
  same(heed::Padding::queries_and_keys(lengths, begins), heed::Padding::queries_and_keys(t_lengths, t_begins),
       shape(2, 5, 5));
  same(heed::DocumentMask(offsets), heed::DocumentMask(t_offsets), shape(1, 5, 5));
  same(heed::Causal::from(begins), heed::Causal::from(t_begins), shape(2, 2, 5));
  same(heed::Window::from(begins, 1, 1), heed::Window::from(t_begins, 1, 1), shape(2, 2, 5));
  same(heed::GlobalTokens(positions), heed::GlobalTokens(t_positions), shape(1, 5, 5));
}

// F47: numbers that ints do not hold are refused and not cut.
TEST(Lists, RefuseNumbersBeyondInt) {
  const std::vector<std::uint64_t> wrapped{static_cast<std::uint64_t>(-1), 2}, far{std::uint64_t{1} << 32, 2};
  const std::vector<std::int64_t> large{9'000'000'000'000'000'000, 2}, negative{2, -9'000'000'000'000'000'000};
  const std::vector<std::int64_t> offsets{0, (std::int64_t{1} << 32) + 2, 5};
  EXPECT_TRUE(has_all(refusal<heed::ValueError>(heed::Padding(wrapped), shape(2, 4, 4)),
                      {"entry 18446744073709551615 for keys of sample 0 must be between 0 and Lk = 4"}));
  EXPECT_TRUE(has_all(refusal<heed::ValueError>(heed::Padding(far), shape(2, 4, 4)), {"entry 4294967296"}));
  EXPECT_TRUE(
      has_all(refusal<heed::ValueError>(heed::Padding(large), shape(2, 4, 4)), {"entry 9000000000000000000 for keys"}));
  EXPECT_TRUE(has_all(refusal<heed::ValueError>(heed::Padding(negative), shape(2, 4, 4)),
                      {"entry -9000000000000000000 for keys of sample 1"}));
  EXPECT_TRUE(has_all(refusal<heed::ValueError>(heed::DocumentMask(offsets), shape(1, 5, 5)),
                      {"must not decrease, but offset 2 is 5 after 4294967298"}));
  EXPECT_TRUE(has_all(refusal<heed::ValueError>(heed::Causal::from(large), shape(2, 1, 4)),
                      {"position 9000000000000000000 of sample 0 is more than 2147483647"}));
  EXPECT_TRUE(has_all(refusal<heed::ValueError>(heed::GlobalTokens(negative), shape(1, 4, 4)),
                      {"entry 1 is -9000000000000000000"}));
}

}  // namespace
}  // namespace heed_test
