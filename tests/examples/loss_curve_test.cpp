// SPDX-License-Identifier: MIT
// Curves as text and as SVG.
#include "common/loss_curve.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/temporary_directory.hpp"

namespace {

using examples::Curve;

TEST(LossCurve, GroupMeans) {
  const std::vector<Curve::Point> points = examples::group_means({1, 3, 5, 7, 9}, 2);
  ASSERT_EQ(points.size(), 3u);
  EXPECT_EQ(points[0].x, 2);
  EXPECT_EQ(points[0].y, 2);
  EXPECT_EQ(points[1].y, 6);
  EXPECT_EQ(points[2].x, 5);
  EXPECT_EQ(points[2].y, 9);
}

TEST(LossCurve, DrawsAsText) {
  EXPECT_EQ(examples::draw_curves({{"falls", {{0, 2}, {4, 0}}}}, 5, 5),
            "   2.000 |.\n"
            "         | .\n"
            "         |  .\n"
            "   0.500 |   .\n"
            "   0.000 |    .\n"
            "         +-----\n"
            "          0   4\n"
            "          . falls\n");
  EXPECT_EQ(examples::draw_curves({{"nothing", {}}, {"no number", {{0, std::nan("")}}}}), "");
  const std::string one = examples::draw_curves({{"a", {}}, {"b", {{7, 3}}}}, 5, 3);
  EXPECT_NE(one.find("|\n"), std::string::npos);
  EXPECT_NE(one.find("o b"), std::string::npos);
  EXPECT_EQ(std::count(one.begin(), one.end(), 'o'), 2) << one;
}

TEST(LossCurve, DrawsAsSvg) {
  const std::string svg =
      examples::curves_svg({{"a < b & c", {{0, 2}, {1, std::nan("")}, {10, 1}}}}, "T", "step", "nats");
  EXPECT_NE(svg.find("points=\"60.0,60.0 620.0,360.0 \""), std::string::npos) << svg;
  EXPECT_NE(svg.find(">a &lt; b &amp; c</text>"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");

  EXPECT_NE(svg.find("prefers-color-scheme:dark"), std::string::npos);

  const heed_test::TemporaryDirectory directory;
  const std::vector<Curve> curves{{"a", {{0, 1}, {1, 0}}}};
  examples::save_curves(directory.path("curve.svg"), curves, "T", "x", "y");
  EXPECT_EQ(heed_test::read_text(directory.path("curve.svg")), examples::curves_svg(curves, "T", "x", "y"));
  EXPECT_THROW(examples::save_curves(directory.path("no/curve.svg"), curves, "T", "x", "y"), std::runtime_error);
}

TEST(LossCurve, DrawsLogarithmicAxes) {
  // Equal ratios are equal distances, and what has no logarithm is left out.
  const std::vector<Curve> curves{{"time", {{0, 1}, {256, 0.001}, {1024, 0.1}, {4096, 10}}}};
  const examples::Axes axes{examples::Scale::Log2, examples::Scale::Log10};
  const std::string svg = examples::curves_svg(curves, "T", "L", "s", axes);
  EXPECT_NE(svg.find("points=\"60.0,360.0 340.0,210.0 620.0,60.0 \""), std::string::npos) << svg;
  EXPECT_NE(svg.find(">512</text>"), std::string::npos);
  EXPECT_NE(svg.find(">0.01</text>"), std::string::npos);
  EXPECT_EQ(svg.find(">0</text>"), std::string::npos);

  EXPECT_EQ(examples::draw_curves(curves, 9, 3, axes),
            "      10 |       ..\n"
            "         |   ....\n"
            "   0.001 |...\n"
            "         +---------\n"
            "          256  4096\n"
            "          . time\n");
  EXPECT_EQ(examples::draw_curves({{"none", {{-1, 1}}}}, 5, 3, axes), "");

  // Within one power, the lines are at round values.
  const std::string narrow = examples::curves_svg({{"a", {{1, 2}, {2, 8}}}}, "T", "x", "y", axes);
  EXPECT_NE(narrow.find(">4</text>"), std::string::npos) << narrow;
}

TEST(LossCurve, LegendWrapsAboveThePicture) {
  const std::string name(60, 'n');
  const std::vector<Curve> curves{{name, {{0, 0}, {1, 1}}}, {name, {{0, 1}, {1, 0}}}};
  const std::string svg = examples::curves_svg(curves, "T", "x", "y");
  EXPECT_NE(svg.find("height=\"438\""), std::string::npos) << svg;
  EXPECT_NE(svg.find(">0</text>"), std::string::npos) << svg;
  EXPECT_EQ(svg.find(">-0</text>"), std::string::npos) << svg;
  EXPECT_NE(svg.find("points=\"60.0,378.0 620.0,78.0 \""), std::string::npos) << svg;
}

}  // namespace
