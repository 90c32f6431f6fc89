// SPDX-License-Identifier: MIT
// The picture of every mask.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/mask/basic.hpp>
#include <heed/mask/bool_mask.hpp>
#include <heed/mask/concept.hpp>
#include <heed/mask/sparse.hpp>

namespace {

using heed::to_string;

TEST(MaskText, NoMask) {
  EXPECT_EQ(to_string(heed::NoMask{}, 2, 3),
            "###\n"
            "###\n");
}

TEST(MaskText, Causal) {
  EXPECT_EQ(to_string(heed::Causal{}, 3, 3),
            "#..\n"
            "##.\n"
            "###\n");
}

TEST(MaskText, CausalAlignments) {
  EXPECT_EQ(to_string(heed::Causal::top_left(), 2, 5),
            "#....\n"
            "##...\n");
  EXPECT_EQ(to_string(heed::Causal::bottom_right(), 2, 5),
            "####.\n"
            "#####\n");
  EXPECT_EQ(to_string(heed::Causal::top_left(), 5, 2),
            "#.\n"
            "##\n"
            "##\n"
            "##\n"
            "##\n");
  // More queries than keys: the first queries come before the first key.
  EXPECT_EQ(to_string(heed::Causal::bottom_right(), 5, 2),
            "..\n"
            "..\n"
            "..\n"
            "#.\n"
            "##\n");
  const int first[] = {1, 3};
  const heed::AttentionShape shape{.B = 2, .H = 1, .G = 1, .Lq = 2, .Lk = 5, .Dk = 1, .Dv = 1};
  EXPECT_EQ(to_string(heed::Causal::from(first), shape, 0),
            "##...\n"
            "###..\n");
  EXPECT_EQ(to_string(heed::Causal::from(first), shape, 1),
            "####.\n"
            "#####\n");
}

TEST(MaskText, Window) {
  EXPECT_EQ(to_string(heed::Window(1, 0), 4, 4),
            "#...\n"
            "##..\n"
            ".##.\n"
            "..##\n");
  EXPECT_EQ(to_string(heed::Window(1, 2), 5, 5),
            "###..\n"
            "####.\n"
            ".####\n"
            "..###\n"
            "...##\n");
  EXPECT_EQ(to_string(heed::Window(0, 0), 3, 3),
            "#..\n"
            ".#.\n"
            "..#\n");
  EXPECT_EQ(to_string(heed::Window::bottom_right(1, 0), 2, 5),
            "..##.\n"
            "...##\n");
  EXPECT_EQ(to_string(heed::Window::top_left(0, 1), 2, 5),
            "##...\n"
            ".##..\n");
  const int first[] = {2};
  EXPECT_EQ(to_string(heed::Window::from(first, 1, 1), 2, 5),
            ".###.\n"
            "..###\n");
}

TEST(MaskText, Padding) {
  const heed::AttentionShape shape{.B = 2, .H = 1, .G = 1, .Lq = 3, .Lk = 4, .Dk = 1, .Dv = 1};
  const int lengths[] = {4, 2};
  EXPECT_EQ(to_string(heed::Padding(lengths), shape, 0),
            "####\n"
            "####\n"
            "####\n");
  EXPECT_EQ(to_string(heed::Padding(lengths), shape, 1),
            "##..\n"
            "##..\n"
            "##..\n");
  const int begin[] = {1, 0}, end[] = {4, 0};
  EXPECT_EQ(to_string(heed::Padding(begin, end), shape, 0),
            ".###\n"
            ".###\n"
            ".###\n");
  EXPECT_EQ(to_string(heed::Padding(begin, end), shape, 1),
            "....\n"
            "....\n"
            "....\n");
  const int queries[] = {2, 3}, keys[] = {3, 1};
  EXPECT_EQ(to_string(heed::Padding::queries_and_keys(queries, keys), shape, 0),
            "###.\n"
            "###.\n"
            "....\n");
  EXPECT_EQ(to_string(heed::Padding::queries_and_keys(queries, keys), shape, 1),
            "#...\n"
            "#...\n"
            "#...\n");
}

TEST(MaskText, DocumentMask) {
  const int offsets[] = {0, 2, 2, 5};
  EXPECT_EQ(to_string(heed::DocumentMask(offsets), 5, 5),
            "##...\n"
            "##...\n"
            "..###\n"
            "..###\n"
            "..###\n");
  EXPECT_EQ(to_string(heed::DocumentMask(offsets) & heed::Causal{}, 5, 5),
            "#....\n"
            "##...\n"
            "..#..\n"
            "..##.\n"
            "..###\n");
  const int queries[] = {0, 1, 3}, keys[] = {0, 3, 4};
  EXPECT_EQ(to_string(heed::DocumentMask(queries, keys), 3, 4),
            "###.\n"
            "...#\n"
            "...#\n");
}

TEST(MaskText, Strided) {
  EXPECT_EQ(to_string(heed::Strided(3, 0), 5, 5),
            "#..#.\n"
            "##.#.\n"
            "#.##.\n"
            "#..#.\n"
            "#..##\n");
  EXPECT_EQ(to_string(heed::Strided(4, 1), 6, 6),
            "##..#.\n"
            "###.#.\n"
            "#####.\n"
            "#.###.\n"
            "#..###\n"
            "#...##\n");
  EXPECT_EQ(to_string(heed::Strided::bottom_right(3, 0), 2, 5),
            "#..#.\n"
            "#..##\n");
  EXPECT_EQ(to_string(heed::Strided::top_left(3, 0), 2, 5),
            "#..#.\n"
            "##.#.\n");
}

TEST(MaskText, GlobalTokens) {
  EXPECT_EQ(to_string(heed::GlobalTokens(1), 4, 4),
            "####\n"
            "#...\n"
            "#...\n"
            "#...\n");
  EXPECT_EQ(to_string(heed::GlobalTokens(0), 2, 2),
            "..\n"
            "..\n");
  const int positions[] = {1, 3};
  EXPECT_EQ(to_string(heed::GlobalTokens(positions), 4, 5),
            ".#.#.\n"
            "#####\n"
            ".#.#.\n"
            "#####\n");
  EXPECT_EQ(to_string(heed::Window(1, 1) | heed::GlobalTokens(1), 5, 5),
            "#####\n"
            "###..\n"
            "####.\n"
            "#.###\n"
            "#..##\n");
}

TEST(MaskText, BoolMask) {
  Eigen::Matrix<bool, 2, 3> m;
  m << true, false, true,  //
      false, false, true;
  EXPECT_EQ(to_string(heed::BoolMask::keep(m), 2, 3),
            "#.#\n"
            "..#\n");
  EXPECT_EQ(to_string(heed::BoolMask::ignore(m), 2, 3),
            ".#.\n"
            "##.\n");
}

TEST(MaskText, Combinations) {
  const auto even = heed::mask([](int q, int k) { return (q + k) % 2 == 0; });
  EXPECT_EQ(to_string(even & heed::Causal{}, 4, 4),
            "#...\n"
            ".#..\n"
            "#.#.\n"
            ".#.#\n");
  EXPECT_EQ(to_string(!even, 2, 3),
            ".#.\n"
            "#.#\n");
  EXPECT_EQ(to_string(!heed::Causal{}, 3, 3),
            ".##\n"
            "..#\n"
            "...\n");
  EXPECT_EQ(to_string(heed::Window(0, 0) | even, 3, 3),
            "#.#\n"
            ".#.\n"
            "#.#\n");
}

TEST(MaskText, OneHeadOfOneSample) {
  const auto mask = heed::mask([](int b, int h, int q, int k) { return k == q + b + 2 * h; });
  const heed::AttentionShape shape{.B = 2, .H = 2, .G = 1, .Lq = 1, .Lk = 4, .Dk = 1, .Dv = 1};
  EXPECT_EQ(to_string(mask, shape), "#...\n");
  EXPECT_EQ(to_string(mask, shape, 1), ".#..\n");
  EXPECT_EQ(to_string(mask, shape, 0, 1), "..#.\n");
  EXPECT_EQ(to_string(mask, shape, 1, 1), "...#\n");
}

TEST(MaskText, EmptyExtents) {
  EXPECT_EQ(to_string(heed::NoMask{}, 0, 3), "");
  EXPECT_EQ(to_string(heed::NoMask{}, 2, 0), "\n\n");
}

TEST(MaskText, ChecksTheMask) { EXPECT_THROW(to_string(heed::Causal{}, 2, 3), heed::ValueError); }

}  // namespace
