// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Draws the attention weights of one head as an SVG heat map with the tokens as labels.
///
///     const heed::Recorder recorder = heed::record(context, [&] { encoder(x, context); });
///     heed::save_heatmap("head3.svg", recorder.of("layers.0.self_attn").weights.view()[0][3], tokens, tokens);

#include <vector>

#include <heed/inspect/color.hpp>
#include <heed/inspect/svg.hpp>
#include <heed/io/atomic_file.hpp>
#include <heed/io/json.hpp>

HEED_NAMESPACE_BEGIN

/// Options of heatmap_svg().
struct HeatmapOptions {
  std::string title = {};  ///< shown above the map
  /// The weight with the darkest color; 0 means the largest weight of the matrix. Set it to compare maps.
  double max_weight = 0;
};

namespace detail {

/// Writes the heat map of one head.
class HeatmapWriter : SvgWriter {
 public:
  HeatmapWriter(TensorView<const double, 2> weights, const std::vector<std::string>& queries,
                const std::vector<std::string>& keys, const HeatmapOptions& options)
      : weights_(weights), queries_(queries), keys_(keys), options_(options) {
    measure();
  }

  std::string write() {
    header();
    labels();
    cells();
    legend();
    return end();
  }

 private:
  static constexpr int kBar = 160;
  static constexpr std::size_t kLongestLabel = 24;

  Index rows() const { return weights_.extent(0); }
  Index columns() const { return weights_.extent(1); }
  std::string query(Index i) const {
    return queries_.empty() ? std::to_string(i) : queries_[static_cast<std::size_t>(i)];
  }
  std::string key(Index j) const { return keys_.empty() ? std::to_string(j) : keys_[static_cast<std::size_t>(j)]; }

  void measure() {
    const Index longest = std::max<Index>({rows(), columns(), 1});
    cell_ = std::clamp<Index>(900 / longest, 3, 28);
    label_every_ = (kFont + 2 + cell_ - 1) / cell_;
    for (Index i = 0; i < rows(); ++i) {
      for (Index j = 0; j < columns(); ++j) {
        const double w = weights_(i, j);
        has_hidden_ = has_hidden_ || w == 0;
        has_nan_ = has_nan_ || detail::is_nan(w);
        if (detail::is_finite(w)) largest_ = std::max(largest_, w);
      }
    }
    max_weight_ = options_.max_weight > 0 ? options_.max_weight : largest_ > 0 ? largest_ : 1;

    double left = 0, top = 0, overhang = 0;
    for (Index i = 0; i < rows(); i += label_every_) left = std::max(left, label_width(query(i)));
    for (Index j = 0; j < columns(); j += label_every_) {
      // Column labels rise to the right at 60 degrees.
      const double width = label_width(key(j));
      top = std::max(top, width * 0.866);
      overhang = std::max(overhang, width * 0.5 - static_cast<double>((columns() - 1 - j) * cell_));
    }
    title_height_ = title_height(options_.title);
    left_ = pixels(left) + 2 * kFont + 2 * kGap;
    top_ = pixels(top) + 2 * kFont + 2 * kGap + title_height_;
    const Index legend_width = kBar + (has_hidden_ ? 150 : 0) + (has_nan_ ? 60 : 0) + 3 * kGap;
    width_ = std::max(
        {left_ + columns() * cell_ + pixels(overhang) + kGap, left_ + legend_width, title_width(options_.title)});
    height_ = top_ + rows() * cell_ + 5 * kFont;
  }
  static Index pixels(double length) { return static_cast<Index>(std::ceil(length)); }
  static double label_width(const std::string& label) { return kFont * text_width(svg_text(label, kLongestLabel)); }

  void header() {
    std::string gradient = "<linearGradient id=\"heed-heat\">";
    for (int i = 0; i <= 16; ++i) {
      gradient += concat("<stop offset=\"", number_text(i / 16.0, 4), "\" stop-color=\"",
                         color_text(heat_color(i / 16.0)), "\"/>");
    }
    begin(width_, height_, options_.title, gradient + "</linearGradient>\n");
  }
  void label(const Placement& at, std::string_view text) { SvgWriter::label(at, text, kLongestLabel); }

  void labels() {
    const Index middle = cell_ / 2, baseline = kFont * 2 / 5;
    put("<g fill=\"#666\">\n");
    label({kGap + kFont, top_ + rows() * cell_ / 2, "middle", -90}, "queries");
    label({left_ + columns() * cell_ / 2, title_height_ + kGap + kFont, "middle"}, "keys");
    put("</g>\n");
    for (Index i = 0; i < rows(); i += label_every_) {
      label({left_ - kGap / 2, top_ + i * cell_ + middle + baseline, "end"}, query(i));
    }
    for (Index j = 0; j < columns(); j += label_every_) {
      label({left_ + j * cell_ + middle + baseline, top_ - kGap / 2, "start", -60}, key(j));
    }
  }

  void cells() {
    // A gap separates large cells of the same color.
    const Index size = cell_ >= 8 ? cell_ - 1 : cell_;
    for (Index i = 0; i < rows(); ++i) {
      put("<g transform=\"translate(", left_, " ", top_ + i * cell_, ")\">\n");
      for (Index j = 0; j < columns(); ++j) {
        const double w = weights_(i, j);
        put("<rect x=\"", j * cell_, "\" width=\"", size, "\" height=\"", size, "\" fill=\"", color(w), "\"><title>",
            svg_text(query(i)), " \u2192 ", svg_text(key(j)), ": ", number_text(w, 4), w == 0 ? " (hidden)" : "",
            "</title></rect>\n");
      }
      put("</g>\n");
    }
  }

  std::string color(double w) const {
    if (detail::is_nan(w)) return color_text(kNaNColor);
    return w == 0 ? "url(#heed-hidden)" : color_text(heat_color(w / max_weight_));
  }

  void legend() {
    const Index y = top_ + rows() * cell_ + 2 * kGap;
    put("<rect x=\"", left_, "\" y=\"", y, "\" width=\"", kBar, "\" height=\"", kFont,
        "\" fill=\"url(#heed-heat)\"/>\n");
    constexpr std::array<std::string_view, 3> anchors{"start", "middle", "end"};
    for (int i = 0; i <= 2; ++i) {
      label({left_ + i * kBar / 2, y + 2 * kFont + 2, anchors[static_cast<std::size_t>(i)]},
            number_text(max_weight_ * i / 2, 3));
    }
    Index x = left_ + kBar + 2 * kGap;
    const auto swatch = [&](std::string_view fill, std::string_view text, Index step) {
      put("<rect x=\"", x, "\" y=\"", y, "\" width=\"", kFont, "\" height=\"", kFont, "\" fill=\"", fill, "\"/>\n");
      label({x + kFont + kGap / 2, y + kFont - 1}, text);
      x += step;
    };
    if (has_hidden_) swatch("url(#heed-hidden)", "exactly 0 (hidden)", 142);
    if (has_nan_) swatch(color_text(kNaNColor), "NaN", 0);
  }

  TensorView<const double, 2> weights_;
  const std::vector<std::string>& queries_;
  const std::vector<std::string>& keys_;
  const HeatmapOptions& options_;
  Index cell_ = 0, label_every_ = 1, left_ = 0, top_ = 0, title_height_ = 0, width_ = 0, height_ = 0;
  double largest_ = 0, max_weight_ = 1;
  bool has_hidden_ = false, has_nan_ = false;
};

}  // namespace detail

/// Draws weights (Lq, Lk) as an SVG document: one row per query, one column per key. Larger weights are darker, weights
/// of exactly 0 (masked) are hatched, and a tooltip shows the number. Labels can be any text; without labels, positions
/// are shown. Takes about 100 bytes per cell. Throws ShapeError if there are labels but not one for each row and
/// column, ValueError for a negative weight.
template <TensorLike W>
std::string heatmap_svg(const W& weights, const std::vector<std::string>& queries = {},
                        const std::vector<std::string>& keys = {}, const HeatmapOptions& options = {}) {
  static_assert(rank_of_v<W> == 2, "heed::heatmap_svg: give the matrix of one head, e.g. weights.view()[b][h]");
  Workspace workspace;
  const Workspace::Frame frame(workspace);
  const auto view = detail::read_as<2>(weights, workspace);
  Tensor<double, 2> matrix(view.extents());
  for (Index i = 0; i < view.extent(0); ++i) {
    for (Index j = 0; j < view.extent(1); ++j) {
      matrix(i, j) = static_cast<double>(view(i, j));
      HEED_CHECK(!(matrix(i, j) < 0), ValueError, "heed::heatmap_svg: weight (", i, ", ", j, ") is ", matrix(i, j),
                 "; give attention weights, which are non-negative, not scores");
    }
  }
  const auto require_labels = [](const std::vector<std::string>& labels, Index count, const char* what) {
    HEED_CHECK(labels.empty() || static_cast<Index>(labels.size()) == count, ShapeError,
               "heed::heatmap_svg: ", labels.size(), " labels for ", count, " ", what, "; give one for each, or none");
  };
  require_labels(queries, view.extent(0), "queries (rows)");
  require_labels(keys, view.extent(1), "keys (columns)");
  return detail::HeatmapWriter(matrix.view(), queries, keys, options).write();
}

/// Writes heatmap_svg(...) to a file atomically. Throws FormatError if it cannot be written.
template <TensorLike W>
void save_heatmap(const std::string& path, const W& weights, const std::vector<std::string>& queries = {},
                  const std::vector<std::string>& keys = {}, const HeatmapOptions& options = {}) {
  detail::write_file(path, heatmap_svg(weights, queries, keys, options), "heed::save_heatmap");
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
