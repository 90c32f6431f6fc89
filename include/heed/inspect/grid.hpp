// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Draws the attention of a whole model as one SVG: a row of small heat maps per layer, one map per head.
///
///     heed::save_attention_grid("heads.svg", recorder, {.title = "MiniLM"});

#include <vector>

#include <heed/inspect/color.hpp>
#include <heed/inspect/recorder.hpp>
#include <heed/inspect/svg.hpp>
#include <heed/io/atomic_file.hpp>
#include <heed/io/json.hpp>

HEED_NAMESPACE_BEGIN

/// The weight that has the darkest color.
enum class ColorScale {
  EachQuery,  ///< the largest weight of each query: shows the strongest keys of every query
  EachHead,   ///< the largest weight of the head
  One         ///< 1: makes heads comparable
};

/// Options of attention_grid_svg() and save_attention_grid_png().
struct AttentionGridOptions {
  std::string title = {};                    ///< shown above the maps (SVG only)
  Index sample = 0;                          ///< index in the batch
  ColorScale scale = ColorScale::EachQuery;  ///< the weight with the darkest color
};

namespace detail {

/// The numbers behind the colors of a heat map: 0 to 1, NaN, or kHiddenCell.
struct HeatCells {
  Index rows = 0, columns = 0;
  std::vector<double> values;
  double operator()(Index q, Index k) const { return values[static_cast<std::size_t>(q * columns + k)]; }
};
inline constexpr double kHiddenCell = -1;

/// The cells of one head, at most `limit` per row and column. If several pairs share a cell, it has their largest
/// weight.
inline HeatCells heat_cells(const RecordedAttention& attention, Index b, Index h, ColorScale scale, Index limit) {
  const Index Lq = attention.weights.extent(2), Lk = attention.weights.extent(3);
  const auto each_weight = [&](Index q, auto&& f) {
    for (Index k = 0; k < Lk; ++k) {
      if (attention.mask(b, h, q, k)) f(k, attention.weights(b, h, q, k));
    }
  };
  const auto largest_of = [&](Index q) {
    double largest = 0;
    each_weight(q, [&](Index, double w) { largest = w > largest ? w : largest; });
    return largest;
  };
  double largest = 1;
  if (scale == ColorScale::EachHead) {
    largest = 0;
    for (Index q = 0; q < Lq; ++q) largest = std::max(largest, largest_of(q));
  }
  HeatCells cells{std::min(Lq, limit), std::min(Lk, limit), {}};
  cells.values.assign(static_cast<std::size_t>(cells.rows * cells.columns), kHiddenCell);
  for (Index q = 0; q < Lq; ++q) {
    const double max_weight = scale == ColorScale::EachQuery ? largest_of(q) : largest;
    double* row = cells.values.data() + q * cells.rows / Lq * cells.columns;
    each_weight(q, [&](Index k, double w) {
      double& cell = row[k * cells.columns / Lk];
      const double t = max_weight > 0 ? std::min(w / max_weight, 1.0) : w;
      if (!(cell >= t) && !detail::is_nan(cell)) cell = t;
    });
  }
  return cells;
}

inline void check_grid(const Recorder& recorder, Index sample, const char* function) {
  HEED_CHECK(
      !recorder.attention().empty(), ValueError, function,
      ": the recorder has no weights; check that it was the context's observer and that its patterns match layers");
  for (const RecordedAttention& one : recorder.attention()) {
    HEED_CHECK(sample >= 0 && sample < one.weights.extent(0), ValueError, function, ": sample = ", sample,
               " but layer ", in_quotes(one.layer), " has B = ", one.weights.extent(0));
  }
}

/// Writes the grid of all heads and layers.
class GridWriter : SvgWriter {
 public:
  GridWriter(const Recorder& recorder, const AttentionGridOptions& options)
      : layers_(recorder.attention()), options_(options) {
    double label = 0;
    for (const RecordedAttention& one : layers_) {
      label = std::max(label, kFont * text_width(svg_text(one.layer, kLongestLabel)));
      heads_ = std::max(heads_, one.weights.extent(1));
      const Index size = one.weights.size() / one.weights.extent(0);
      const double* weights = one.weights.data() + options.sample * size;
      has_nan_ = has_nan_ || std::any_of(weights, weights + size, [](double w) { return detail::is_nan(w); });
    }
    left_ = static_cast<Index>(label) + 2 * kGap;
    top_ = title_height(options_.title) + kFont + 2 * kGap;
  }

  std::string write() {
    const auto layers = static_cast<Index>(layers_.size());
    const Index legend = 3 * kGap + kRamp + static_cast<Index>(kFont * text_width(legend_text()));
    const Index width = std::max({left_ + heads_ * kStep + kGap, title_width(options_.title), legend});
    begin(width, top_ + layers * kStep + 3 * kFont, options_.title);
    for (Index h = 0; h < heads_; ++h) {
      label({left_ + h * kStep + kMap / 2, top_ - kGap / 2, "middle"}, std::to_string(h));
    }
    for (Index l = 0; l < layers; ++l) write_layer(layers_[static_cast<std::size_t>(l)], top_ + l * kStep);
    write_legend(top_ + layers * kStep + kGap);
    return end();
  }

 private:
  static constexpr Index kMap = 72, kStep = kMap + 6, kRamp = 120;
  static constexpr std::size_t kLongestLabel = 40;
  /// Steps of color; neighboring steps look the same in cells of this size.
  static constexpr int kLevels = 24;

  void write_layer(const RecordedAttention& layer, Index y) {
    label({left_ - kGap, y + kMap / 2 + kFont / 3, "end"}, layer.layer, kLongestLabel);
    for (Index h = 0; h < layer.weights.extent(1); ++h) {
      const Index x = left_ + h * kStep;
      put("<g><title>", svg_text(layer.layer), ", head ", h, "</title>\n<rect x=\"", x, "\" y=\"", y, "\" width=\"",
          kMap, "\" height=\"", kMap, "\" fill=\"url(#heed-hidden)\"/>\n");
      write_cells(heat_cells(layer, options_.sample, h, options_.scale, kMap), x, y);
      put("</g>\n");
    }
  }
  /// Writes one path per color, in units of cells; neighbors of one color become one rectangle.
  void write_cells(const HeatCells& cells, Index x, Index y) {
    std::array<std::string, kLevels + 1> paths;  // the last is NaN
    for (Index q = 0; q < cells.rows; ++q) {
      for (Index k = 0, end = 0; k < cells.columns; k = end) {
        const int level = level_of(cells(q, k));
        for (end = k + 1; end < cells.columns && level_of(cells(q, end)) == level;) ++end;
        if (level < 0) continue;
        std::string& path = paths[static_cast<std::size_t>(level)];
        path += concat('M', k, ' ', q, 'h', end - k, "v1h-", end - k, 'z');
      }
    }
    if (cells.values.empty()) return;
    const auto scale = [](Index count) {
      return number_text(static_cast<double>(kMap) / static_cast<double>(count), 6);
    };
    put("<g transform=\"translate(", x, ' ', y, ") scale(", scale(cells.columns), ' ', scale(cells.rows),
        ")\" shape-rendering=\"crispEdges\">\n");
    for (std::size_t level = 0; level < paths.size(); ++level) {
      if (paths[level].empty()) continue;
      const Color color =
          level == kLevels ? kNaNColor : heat_color(static_cast<double>(level) / static_cast<double>(kLevels - 1));
      put("<path fill=\"", color_text(color), "\" d=\"", paths[level], "\"/>\n");
    }
    put("</g>\n");
  }
  /// The step of color; -1 for hidden cells.
  static int level_of(double t) {
    if (t == kHiddenCell) return -1;
    return detail::is_nan(t) ? kLevels : static_cast<int>(std::lround(t * (kLevels - 1)));
  }

  std::string legend_text() const {
    constexpr const char* ends[] = {"0 to the query\u2019s largest weight", "0 to the head\u2019s largest weight",
                                    "0 to 1"};
    return concat(ends[static_cast<std::size_t>(options_.scale)], "; hatched: hidden",
                  has_nan_ ? "; magenta: not a number" : "");
  }
  void write_legend(Index y) {
    put("<g shape-rendering=\"crispEdges\">\n");
    for (Index level = 0; level < kLevels; ++level) {
      put("<rect x=\"", kGap + level * kRamp / kLevels, "\" y=\"", y, "\" width=\"", kRamp / kLevels, "\" height=\"",
          kFont, "\" fill=\"", color_text(heat_color(static_cast<double>(level) / static_cast<double>(kLevels - 1))),
          "\"/>\n");
    }
    put("</g>\n");
    label({2 * kGap + kRamp, y + kFont - 2}, legend_text());
  }

  const std::vector<RecordedAttention>& layers_;
  const AttentionGridOptions& options_;
  Index heads_ = 0, left_ = 0, top_ = 0;
  bool has_nan_ = false;
};

}  // namespace detail

/// Draws all recorded heads as an SVG document: one row per layer, masked cells hatched. Maps have at most 72 cells per
/// direction; with more keys or queries, a cell shows the largest weight of its pairs. Throws ValueError if no weights
/// were recorded or the sample does not exist.
inline std::string attention_grid_svg(const Recorder& recorder, const AttentionGridOptions& options = {}) {
  detail::check_grid(recorder, options.sample, "heed::attention_grid_svg");
  return detail::GridWriter(recorder, options).write();
}

/// Writes attention_grid_svg(...) to a file atomically. Throws FormatError if it cannot be written.
inline void save_attention_grid(const std::string& path, const Recorder& recorder,
                                const AttentionGridOptions& options = {}) {
  detail::write_file(path, attention_grid_svg(recorder, options), "heed::save_attention_grid");
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
