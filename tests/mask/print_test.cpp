// SPDX-License-Identifier: MIT
// Every mask as a picture: what it means, for people.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/mask/basic.hpp>
#include <heed/mask/dense.hpp>
#include <heed/mask/print.hpp>
#include <heed/mask/sparse.hpp>

namespace {

using heed::draw;

TEST(MaskPicture, NoMask) {
  EXPECT_EQ(draw(heed::NoMask{}, 2, 3),
            "###\n"
            "###\n");
}

TEST(MaskPicture, Causal) {
  EXPECT_EQ(draw(heed::Causal{}, 3, 3),
            "#..\n"
            "##.\n"
            "###\n");
}

TEST(MaskPicture, CausalAlignments) {
  EXPECT_EQ(draw(heed::Causal::top_left(), 2, 5),
            "#....\n"
            "##...\n");
  EXPECT_EQ(draw(heed::Causal::bottom_right(), 2, 5),
            "####.\n"
            "#####\n");
  EXPECT_EQ(draw(heed::Causal::top_left(), 5, 2),
            "#.\n"
            "##\n"
            "##\n"
            "##\n"
            "##\n");
  // More queries than keys: the first ones stand before the first key.
  EXPECT_EQ(draw(heed::Causal::bottom_right(), 5, 2),
            "..\n"
            "..\n"
            "..\n"
            "#.\n"
            "##\n");
  const int first[] = {1, 3};
  const heed::AttentionShape shape{.B = 2, .H = 1, .G = 1, .Lq = 2, .Lk = 5, .Dk = 1, .Dv = 1};
  EXPECT_EQ(draw(heed::Causal::from(first), shape, 0),
            "##...\n"
            "###..\n");
  EXPECT_EQ(draw(heed::Causal::from(first), shape, 1),
            "####.\n"
            "#####\n");
}

TEST(MaskPicture, Window) {
  EXPECT_EQ(draw(heed::Window(1, 0), 4, 4),
            "#...\n"
            "##..\n"
            ".##.\n"
            "..##\n");
  EXPECT_EQ(draw(heed::Window(1, 2), 5, 5),
            "###..\n"
            "####.\n"
            ".####\n"
            "..###\n"
            "...##\n");
  EXPECT_EQ(draw(heed::Window(0, 0), 3, 3),
            "#..\n"
            ".#.\n"
            "..#\n");
  EXPECT_EQ(draw(heed::Window::bottom_right(1, 0), 2, 5),
            "..##.\n"
            "...##\n");
  EXPECT_EQ(draw(heed::Window::top_left(0, 1), 2, 5),
            "##...\n"
            ".##..\n");
  const int first[] = {2};
  EXPECT_EQ(draw(heed::Window::from(first, 1, 1), 2, 5),
            ".###.\n"
            "..###\n");
}

TEST(MaskPicture, Padding) {
  const heed::AttentionShape shape{.B = 2, .H = 1, .G = 1, .Lq = 3, .Lk = 4, .Dk = 1, .Dv = 1};
  const int lengths[] = {4, 2};
  EXPECT_EQ(draw(heed::Padding(lengths), shape, 0),
            "####\n"
            "####\n"
            "####\n");
  EXPECT_EQ(draw(heed::Padding(lengths), shape, 1),
            "##..\n"
            "##..\n"
            "##..\n");
  const int begin[] = {1, 0}, end[] = {4, 0};
  EXPECT_EQ(draw(heed::Padding(begin, end), shape, 0),
            ".###\n"
            ".###\n"
            ".###\n");
  EXPECT_EQ(draw(heed::Padding(begin, end), shape, 1),
            "....\n"
            "....\n"
            "....\n");
  const int queries[] = {2, 3}, keys[] = {3, 1};
  EXPECT_EQ(draw(heed::Padding::queries_and_keys(queries, keys), shape, 0),
            "###.\n"
            "###.\n"
            "....\n");
  EXPECT_EQ(draw(heed::Padding::queries_and_keys(queries, keys), shape, 1),
            "#...\n"
            "#...\n"
            "#...\n");
}

TEST(MaskPicture, Packed) {
  const int offsets[] = {0, 2, 2, 5};
  EXPECT_EQ(draw(heed::Packed(offsets), 5, 5),
            "##...\n"
            "##...\n"
            "..###\n"
            "..###\n"
            "..###\n");
  EXPECT_EQ(draw(heed::Packed(offsets) & heed::Causal{}, 5, 5),
            "#....\n"
            "##...\n"
            "..#..\n"
            "..##.\n"
            "..###\n");
  const int queries[] = {0, 1, 3}, keys[] = {0, 3, 4};
  EXPECT_EQ(draw(heed::Packed(queries, keys), 3, 4),
            "###.\n"
            "...#\n"
            "...#\n");
}

TEST(MaskPicture, Strided) {
  EXPECT_EQ(draw(heed::Strided(3, 0), 5, 5),
            "#..#.\n"
            "##.#.\n"
            "#.##.\n"
            "#..#.\n"
            "#..##\n");
  EXPECT_EQ(draw(heed::Strided(4, 1), 6, 6),
            "##..#.\n"
            "###.#.\n"
            "#####.\n"
            "#.###.\n"
            "#..###\n"
            "#...##\n");
  EXPECT_EQ(draw(heed::Strided::bottom_right(3, 0), 2, 5),
            "#..#.\n"
            "#..##\n");
  EXPECT_EQ(draw(heed::Strided::top_left(3, 0), 2, 5),
            "#..#.\n"
            "##.#.\n");
}

TEST(MaskPicture, GlobalTokens) {
  EXPECT_EQ(draw(heed::GlobalTokens(1), 4, 4),
            "####\n"
            "#...\n"
            "#...\n"
            "#...\n");
  EXPECT_EQ(draw(heed::GlobalTokens(0), 2, 2),
            "..\n"
            "..\n");
  const int positions[] = {1, 3};
  EXPECT_EQ(draw(heed::GlobalTokens(positions), 4, 5),
            ".#.#.\n"
            "#####\n"
            ".#.#.\n"
            "#####\n");
  EXPECT_EQ(draw(heed::Window(1, 1) | heed::GlobalTokens(1), 5, 5),
            "#####\n"
            "###..\n"
            "####.\n"
            "#.###\n"
            "#..##\n");
}

TEST(MaskPicture, Dense) {
  Eigen::Matrix<bool, 2, 3> m;
  m << true, false, true,  //
      false, false, true;
  EXPECT_EQ(draw(heed::Dense::keep(m), 2, 3),
            "#.#\n"
            "..#\n");
  EXPECT_EQ(draw(heed::Dense::ignore(m), 2, 3),
            ".#.\n"
            "##.\n");
}

TEST(MaskPicture, Combinations) {
  const auto even = heed::mask([](int q, int k) { return (q + k) % 2 == 0; });
  EXPECT_EQ(draw(even & heed::Causal{}, 4, 4),
            "#...\n"
            ".#..\n"
            "#.#.\n"
            ".#.#\n");
  EXPECT_EQ(draw(!even, 2, 3),
            ".#.\n"
            "#.#\n");
  EXPECT_EQ(draw(!heed::Causal{}, 3, 3),
            ".##\n"
            "..#\n"
            "...\n");
  EXPECT_EQ(draw(heed::Window(0, 0) | even, 3, 3),
            "#.#\n"
            ".#.\n"
            "#.#\n");
}

TEST(MaskPicture, OneHeadOfOneSample) {
  const auto mask = heed::mask([](int b, int h, int q, int k) { return k == q + b + 2 * h; });
  const heed::AttentionShape shape{.B = 2, .H = 2, .G = 1, .Lq = 1, .Lk = 4, .Dk = 1, .Dv = 1};
  EXPECT_EQ(draw(mask, shape), "#...\n");
  EXPECT_EQ(draw(mask, shape, 1), ".#..\n");
  EXPECT_EQ(draw(mask, shape, 0, 1), "..#.\n");
  EXPECT_EQ(draw(mask, shape, 1, 1), "...#\n");
}

TEST(MaskPicture, EmptyExtents) {
  EXPECT_EQ(draw(heed::NoMask{}, 0, 3), "");
  EXPECT_EQ(draw(heed::NoMask{}, 2, 0), "\n\n");
}

TEST(MaskPicture, ChecksTheMask) { EXPECT_THROW(draw(heed::Causal{}, 2, 3), heed::ValueError); }

}  // namespace
