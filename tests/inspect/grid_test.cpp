// SPDX-License-Identifier: MIT
// The grid of all heads, and PNG. browser/png_test.py checks that the PNG files can be decoded.
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include <heed/inspect/grid.hpp>
#include <heed/inspect/png.hpp>

#include "common/count.hpp"
#include "common/message_of.hpp"
#include "common/temporary_directory.hpp"

namespace {

using heed::ColorScale;
using heed::Index;
using heed::Recorder;
using heed::Tensor;
using heed_test::count;
using heed_test::has_all;
using heed_test::message_of;

void show(Recorder& recorder, std::string_view name, Tensor<double, 4> weights, bool causal = false) {
  recorder.mask(name, weights.extents(), [&](int, int, int q, int k) { return !causal || k <= q; });
  recorder.weights(name, heed::TensorView<const double, 4>(weights.view()));
}

/// Two queries with the weights 0.25, 0.75 and 0.5, 0.5.
Tensor<double, 4> two_by_two() {
  Tensor<double, 4> weights(1, 1, 2, 2);
  weights(0, 0, 0, 0) = 0.25;
  weights(0, 0, 0, 1) = 0.75;
  weights(0, 0, 1, 0) = weights(0, 0, 1, 1) = 0.5;
  return weights;
}

TEST(HeatCells, AreScaledAsIsAskedFor) {
  Recorder recorder;
  show(recorder, "a", two_by_two());
  const auto cells = [&](ColorScale scale) {
    return heed::detail::heat_cells(recorder.of("a"), 0, 0, scale, 100).values;
  };
  EXPECT_EQ(cells(ColorScale::One), (std::vector<double>{0.25, 0.75, 0.5, 0.5}));
  EXPECT_EQ(cells(ColorScale::EachHead), (std::vector<double>{0.25 / 0.75, 1, 0.5 / 0.75, 0.5 / 0.75}));
  EXPECT_EQ(cells(ColorScale::EachQuery), (std::vector<double>{0.25 / 0.75, 1, 1, 1}));
}

TEST(HeatCells, ShowTheStrongestOfNeighboursAndHideOnlyWhatIsHiddenWhole) {
  Recorder recorder;
  Tensor<double, 4> weights(1, 1, 4, 4);
  weights(0, 0, 1, 0) = 0.5;
  weights(0, 0, 3, 3) = 1;
  weights(0, 0, 2, 0) = std::numeric_limits<double>::quiet_NaN();
  show(recorder, "a", std::move(weights), true);
  const auto cells = heed::detail::heat_cells(recorder.of("a"), 0, 0, ColorScale::One, 2);
  EXPECT_EQ(cells.rows, 2);
  EXPECT_EQ(cells(0, 0), 0.5);
  EXPECT_EQ(cells(0, 1), heed::detail::kHiddenCell);
  EXPECT_TRUE(std::isnan(cells(1, 0)));
  EXPECT_EQ(cells(1, 1), 1);
}

TEST(Grid, HasAMapForEachHeadOfEachLayer) {
  Recorder recorder;
  show(recorder, "layers.0 <&>", Tensor<double, 4>(1, 3, 5, 5), true);
  show(recorder, "layers.1", Tensor<double, 4>(1, 2, 5, 9));
  const std::string svg = heed::attention_grid_svg(recorder, {.title = "a < b"});
  EXPECT_EQ(count(svg, "fill=\"url(#heed-hidden)\""), 5);
  EXPECT_EQ(count(svg, "<title>layers.1, head "), 2);
  EXPECT_EQ(count(svg, "<title>layers.0 &lt;&amp;&gt;, head "), 3);
  EXPECT_EQ(count(svg, ">a &lt; b</"), 2);
  EXPECT_EQ(count(svg, "<g"), count(svg, "</g>"));
  EXPECT_EQ(count(svg, "not a number"), 0);
}

TEST(Grid, PutsCellsOfOneColourTogether) {
  Recorder recorder;
  show(recorder, "a", two_by_two());
  const std::string svg = heed::attention_grid_svg(recorder);
  const std::string max_weight = heed::detail::color_text(heed::detail::heat_color(1));
  EXPECT_EQ(count(svg, "<path fill=\"" + max_weight + "\" d=\"M1 0h1v1h-1zM0 1h2v1h-2z\"/>"), 1) << svg;
}

TEST(Grid, MarksNaN) {
  Recorder recorder;
  Tensor<double, 4> weights = two_by_two();
  weights(0, 0, 0, 0) = std::numeric_limits<double>::quiet_NaN();
  show(recorder, "a", std::move(weights));
  const std::string svg = heed::attention_grid_svg(recorder);
  EXPECT_EQ(count(svg, "<path fill=\"#e6007e\" d=\"M0 0h1v1h-1z\"/>"), 1);
  EXPECT_EQ(count(svg, "not a number"), 1);
}

TEST(Grid, StaysSmallForLongTexts) {
  Recorder recorder;
  Tensor<double, 4> weights(1, 1, 600, 600);
  for (Index i = 0; i < weights.size(); ++i) weights.data()[i] = static_cast<double>(i * 7919 % 1000) / 1000;
  show(recorder, "a", std::move(weights));
  EXPECT_LT(heed::attention_grid_svg(recorder).size(), 90'000u);
}

TEST(Grid, RefusesWhatItCannotShow) {
  Recorder recorder;
  EXPECT_TRUE(has_all(message_of<heed::ValueError>([&] { heed::attention_grid_svg(recorder); }),
                      {"heed::attention_grid_svg", "has no weights"}));
  show(recorder, "a", two_by_two());
  EXPECT_TRUE(has_all(message_of<heed::ValueError>([&] { heed::attention_grid_svg(recorder, {.sample = 3}); }),
                      {"sample = 3", "B = 1"}));
}

TEST(Grid, SavesToAFile) {
  const heed_test::TemporaryDirectory directory;
  Recorder recorder;
  show(recorder, "a", two_by_two());
  heed::save_attention_grid(directory.path("grid.svg"), recorder);
  EXPECT_EQ(heed_test::read_text(directory.path("grid.svg")), heed::attention_grid_svg(recorder));
}

TEST(Png, HasTheSizeThatIsAskedFor) {
  const heed_test::TemporaryDirectory directory;
  Recorder recorder;
  show(recorder, "a", Tensor<double, 4>(1, 2, 3, 5));
  const auto size_of = [&](const std::string& file) {
    const std::string bytes = heed_test::read_text(directory.path(file));
    EXPECT_TRUE(bytes.starts_with("\x89PNG\r\n\x1a\n"));
    const auto byte = [&](std::size_t at) { return static_cast<int>(static_cast<unsigned char>(bytes[at])); };
    return std::pair(byte(18) * 256 + byte(19), byte(22) * 256 + byte(23));
  };
  heed::save_heatmap_png(directory.path("head.png"), recorder.of("a"), 1, {.cell = 70});
  EXPECT_EQ(size_of("head.png"), std::pair(350, 210));
  heed::save_heatmap_png(directory.path("default.png"), recorder.of("a"), 0);
  EXPECT_EQ(size_of("default.png"), std::pair(510, 306));
  heed::save_attention_grid_png(directory.path("grid.png"), recorder);
  EXPECT_EQ(size_of("grid.png"), std::pair(216, 112));
  EXPECT_EQ(directory.count(), 3);
}

TEST(Png, RefusesWhatItCannotShow) {
  Recorder recorder;
  show(recorder, "a", two_by_two());
  const auto message = [&](Index head, const heed::HeatmapPngOptions& options) {
    return message_of<heed::ValueError>([&] { heed::save_heatmap_png("never.png", recorder.of("a"), head, options); });
  };
  EXPECT_TRUE(has_all(message(1, {}), {"heed::save_heatmap_png", "head = 1", "H = 1"}));
  EXPECT_TRUE(has_all(message(0, {.cell = -1}), {"cell = -1"}));
  EXPECT_TRUE(has_all(message(0, {.cell = 20'000}), {"30000 pixels"}));
}

}  // namespace
