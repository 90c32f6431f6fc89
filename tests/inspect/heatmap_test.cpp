// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <Eigen/Core>
#include <gtest/gtest.h>

#include <heed/core/scalar.hpp>
#include <heed/inspect/heatmap.hpp>

#include "common/count.hpp"
#include "common/temporary_directory.hpp"
#include "common/xml.hpp"

namespace {

using heed::heatmap_svg;
using heed::Tensor;
using heed_test::count;
using heed_test::is_well_formed;

bool contains(std::string_view text, std::string_view part) { return count(text, part) > 0; }

Eigen::MatrixXf causal_weights(int n) {
  Eigen::MatrixXf w = Eigen::MatrixXf::Zero(n, n);
  for (int i = 0; i < n; ++i) w.row(i).head(i + 1).setConstant(1.0f / static_cast<float>(i + 1));
  return w;
}

TEST(Heatmap, HasACellWithItsNumberForEachPair) {
  const std::string svg = heatmap_svg(causal_weights(3), {"the", "cat", "sat"}, {"the", "cat", "sat"});
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_EQ(count(svg, "\u2192"), 9);
  EXPECT_TRUE(contains(svg, "<title>sat \u2192 the: 0.3333</title>"));
  EXPECT_TRUE(contains(svg, "<title>the \u2192 the: 1</title>"));
  EXPECT_TRUE(contains(svg, "<title>cat \u2192 sat: 0 (hidden)</title>"));
  EXPECT_EQ(count(svg, ">sat</text>"), 2) << "each label is at its row and its column";
}

TEST(Heatmap, HiddenCellsAreHatchedAndExplained) {
  const std::string svg = heatmap_svg(causal_weights(4));
  EXPECT_EQ(count(svg, "url(#heed-hidden)"), 6 + 1) << "the cells above the diagonal and the legend";
  EXPECT_TRUE(contains(svg, "exactly 0 (hidden)"));

  Eigen::MatrixXf tiny = Eigen::MatrixXf::Constant(2, 2, 1e-30f);
  tiny(0, 0) = 1;
  const std::string visible = heatmap_svg(tiny);
  EXPECT_FALSE(contains(visible, "url(#heed-hidden)")) << "a small weight is not hidden";
  EXPECT_FALSE(contains(visible, "(hidden)"));
}

TEST(Heatmap, NaNIsSeen) {
  Eigen::MatrixXf w = causal_weights(3);
  EXPECT_FALSE(contains(heatmap_svg(w), "NaN"));
  w(1, 0) = std::numeric_limits<float>::quiet_NaN();
  const std::string svg = heatmap_svg(w);
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_EQ(count(svg, "#e6007e"), 2) << "the cell and the legend";
  EXPECT_TRUE(contains(svg, ">NaN</text>"));
}

TEST(Heatmap, RowsAreQueriesAndColumnsAreKeys) {
  Eigen::MatrixXd w = Eigen::MatrixXd::Constant(2, 3, 0.25);
  w(1, 2) = 0.5;
  const std::string svg = heatmap_svg(w, {"q0", "q1"}, {"k0", "k1", "k2"});
  EXPECT_TRUE(contains(svg, "q1 \u2192 k2: 0.5"));
  EXPECT_TRUE(contains(svg, "q0 \u2192 k2: 0.25"));
  EXPECT_THROW(heatmap_svg(w, {"k0", "k1", "k2"}, {"q0", "q1"}), heed::ShapeError);
}

TEST(Heatmap, TakesEveryKindOfMatrix) {
  Tensor<double, 4> all(1, 2, 2, 2);
  all(0, 1, 0, 1) = 0.75;
  const auto shows = [](const std::string& svg) { return contains(svg, "<title>0 \u2192 1: 0.75</title>"); };
  EXPECT_TRUE(shows(heatmap_svg(all.view()[0][1])));
  EXPECT_TRUE(shows(heatmap_svg(all.matrix(0, 1))));
  EXPECT_TRUE(shows(heatmap_svg(all.matrix(0, 1) * 1.0)));
  EXPECT_TRUE(shows(heatmap_svg(all.view()[0][1].transpose(0, 1).transpose(0, 1))));
  Tensor<heed::half, 2> halves(2, 2);
  halves(0, 1) = heed::half(0.75f);
  EXPECT_TRUE(shows(heatmap_svg(halves)));
}

TEST(Heatmap, LabelsMayBeAnyText) {
  const std::vector<std::string> labels{
      "<b> & \"c\"", "\n\t", "\xFF bad \xC3", "", " the", "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E", "]]>", "\x7F"};
  const std::string svg =
      heatmap_svg(Eigen::MatrixXf::Constant(8, 8, 0.125f), labels, labels, {.title = "a < b & \"c\"\n"});
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_TRUE(heed::detail::is_utf8(svg));
  EXPECT_TRUE(contains(svg, ">&lt;b&gt; &amp; \"c\"</text>"));
  EXPECT_TRUE(contains(svg, ">\u240A\u2409</text>")) << "control characters have pictures";
  EXPECT_TRUE(contains(svg, ">\uFFFD bad \uFFFD</text>"));
  EXPECT_TRUE(contains(svg, "xml:space=\"preserve\"> the</text>")) << "a leading space belongs to the token";
  EXPECT_TRUE(contains(svg, "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E</text>"));
  EXPECT_TRUE(contains(svg, ">a &lt; b &amp; \"c\"\u240A</text>"));
}

TEST(Heatmap, LongLabelsAreShortenedAndWholeInTheirTitle) {
  const std::string longest(24, 'x'), longer(25, 'y');
  const std::string svg = heatmap_svg(Eigen::MatrixXf::Ones(1, 2), {longest}, {longer, "k"});
  EXPECT_TRUE(contains(svg, '>' + longest + "</text>"));
  EXPECT_TRUE(contains(svg, '>' + std::string(23, 'y') + "\u2026<title>" + longer + "</title></text>"));
}

TEST(Heatmap, EmptyAndLargeMatricesWork) {
  EXPECT_TRUE(is_well_formed(heatmap_svg(Eigen::MatrixXf(0, 0))));
  EXPECT_TRUE(is_well_formed(heatmap_svg(Eigen::MatrixXf(0, 3), {}, {"a", "b", "c"})));
  EXPECT_TRUE(is_well_formed(heatmap_svg(Eigen::MatrixXf::Zero(2, 2))));
  const std::string svg = heatmap_svg(Eigen::MatrixXf::Constant(300, 200, 0.5f));
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_LT(svg.size(), 300u * 200 * 130);
  EXPECT_LT(count(svg, "</text>"), 200) << "labels must not be closer than they are high";
}

TEST(Heatmap, RefusesNegativeNumbers) {
  Eigen::MatrixXf scores = Eigen::MatrixXf::Ones(2, 2);
  scores(1, 0) = -0.5f;
  try {
    heatmap_svg(scores);
    FAIL() << "nothing was thrown";
  } catch (const heed::ValueError& e) {
    EXPECT_TRUE(contains(e.what(), "weight (1, 0) is -0.5")) << e.what();
  }
}

std::string hex(double t) { return heed::detail::color_text(heed::detail::heat_color(t)); }

/// The perceived lightness of #rrggbb: CIE L* of the relative luminance.
double lightness(const std::string& color) {
  double luminance = 0;
  const double factors[] = {0.2126, 0.7152, 0.0722};
  for (std::size_t i = 0; i < 3; ++i) {
    const double c = std::stoi(color.substr(1 + 2 * i, 2), nullptr, 16) / 255.0;
    luminance += factors[i] * (c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4));
  }
  return 116 * std::cbrt(luminance) - 16;
}

TEST(HeatmapColours, DarkenEvenlyFromLightToDark) {
  constexpr int steps = 64;
  std::vector<double> l;
  for (int i = 0; i <= steps; ++i) l.push_back(lightness(hex(static_cast<double>(i) / steps)));
  EXPECT_GT(l.front(), 95);
  EXPECT_LT(l.back(), 20);
  const double even = (l.front() - l.back()) / steps;
  for (std::size_t i = 0; i < steps; ++i) {
    EXPECT_GT(l[i] - l[i + 1], 0.3 * even) << "step " << i;
    EXPECT_LT(l[i] - l[i + 1], 2.0 * even) << "step " << i;
  }
  EXPECT_EQ(hex(-1), hex(0));
  EXPECT_EQ(hex(2), hex(1));
}

TEST(HeatmapColours, TheDarkestIsTheLargestWeightOrTheOneGiven) {
  const std::string max_weight = "fill=\"" + hex(1) + "\"><title>";
  const Eigen::MatrixXf w = (Eigen::MatrixXf(1, 2) << 0.25f, 0.5f).finished();
  EXPECT_TRUE(contains(heatmap_svg(w), max_weight + "0 \u2192 1: 0.5<"));
  const std::string shared = heatmap_svg(w, {}, {}, {.max_weight = 1});
  EXPECT_FALSE(contains(shared, max_weight));
  EXPECT_TRUE(contains(shared, "fill=\"" + hex(0.5) + "\"><title>0 \u2192 1"));
  EXPECT_TRUE(contains(shared, ">1</text>")) << "the legend ends at the max_weight weight";
  EXPECT_TRUE(contains(heatmap_svg(w), ">0.25</text>")) << "the middle of the legend";
}

TEST(Heatmap, SavesToAFile) {
  const heed_test::TemporaryDirectory directory;
  const std::string path = directory.path("map.svg");
  heed::save_heatmap(path, causal_weights(2), {"a", "b"}, {"a", "b"}, {.title = "head 0"});
  EXPECT_EQ(heed_test::read_text(path), heatmap_svg(causal_weights(2), {"a", "b"}, {"a", "b"}, {.title = "head 0"}));
  try {
    heed::save_heatmap(directory.path("no/such/map.svg"), causal_weights(2));
    FAIL() << "nothing was thrown";
  } catch (const heed::FormatError& e) {
    EXPECT_TRUE(std::string_view(e.what()).starts_with("heed::save_heatmap: file ")) << e.what();
  }
}

}  // namespace
