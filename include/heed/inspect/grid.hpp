// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The attention of a whole model as one picture, SVG: a row of small heat maps for each layer, one map for each head.
///
///     heed::save_attention_grid("heads.svg", recorder, {.title = "MiniLM"});

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <heed/core/config.hpp>
#include <heed/core/error.hpp>
#include <heed/inspect/color.hpp>
#include <heed/inspect/heatmap.hpp>
#include <heed/inspect/json.hpp>
#include <heed/inspect/recorder.hpp>
#include <heed/io/atomic_file.hpp>
#include <heed/io/text.hpp>

HEED_NAMESPACE_BEGIN

/// Which weight gets the max_weight color: the largest of each query, which shows where each of them looks, the largest
/// of the head, or 1, which makes heads comparable.
enum class ColorScale { EachQuery, EachHead, One };

struct AttentionGridOptions {
  /// Stands above the maps.
  std::string title = {};
  /// Which sample of the batch.
  Index sample = 0;
  ColorScale scale = ColorScale::EachQuery;
};

namespace detail {

/// A heat map as numbers to be coloured: 0 to 1, NaN, or kHiddenCell.
struct HeatCells {
  Index rows = 0, columns = 0;
  std::vector<double> values;
  double operator()(Index q, Index k) const { return values[static_cast<std::size_t>(q * columns + k)]; }
};
inline constexpr double kHiddenCell = -1;

/// The cells of one head, at most `most` in a row or column: of the keys or queries that share one, the strongest
/// shows.
inline HeatCells heat_cells(const RecordedAttention& attention, Index b, Index h, ColorScale scale, Index most) {
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
  HeatCells cells{std::min(Lq, most), std::min(Lk, most), {}};
  cells.values.assign(static_cast<std::size_t>(cells.rows * cells.columns), kHiddenCell);
  for (Index q = 0; q < Lq; ++q) {
    const double max_weight = scale == ColorScale::EachQuery ? largest_of(q) : largest;
    double* row = cells.values.data() + q * cells.rows / Lq * cells.columns;
    each_weight(q, [&](Index k, double w) {
      double& cell = row[k * cells.columns / Lk];
      const double t = max_weight > 0 ? std::min(w / max_weight, 1.0) : w;
      if (!(cell >= t) && !std::isnan(cell)) cell = t;
    });
  }
  return cells;
}

inline void check_grid(const Recorder& recorder, Index sample, const char* function) {
  HEED_CHECK(!recorder.attention().empty(), ValueError, function,
             ": the recorder has no weights; was it the context's observer, and do its patterns fit the layers?");
  for (const RecordedAttention& one : recorder.attention()) {
    HEED_CHECK(sample >= 0 && sample < one.weights.extent(0), ValueError, function, ": sample = ", sample,
               " but layer ", in_quotes(one.layer), " has B = ", one.weights.extent(0));
  }
}

class GridWriter {
 public:
  GridWriter(const Recorder& recorder, const AttentionGridOptions& options)
      : layers_(recorder.attention()), options_(options) {
    double label = 0;
    for (const RecordedAttention& one : layers_) {
      label = std::max(label, kFont * text_width(svg_text(one.layer, kLongestLabel)));
      heads_ = std::max(heads_, one.weights.extent(1));
      const Index size = one.weights.size() / one.weights.extent(0);
      const double* weights = one.weights.data() + options.sample * size;
      has_nan_ = has_nan_ || std::any_of(weights, weights + size, [](double w) { return std::isnan(w); });
    }
    left_ = static_cast<Index>(label) + 2 * kGap;
    top_ = (options_.title.empty() ? 0 : 2 * kFont) + kFont + 2 * kGap;
  }

  std::string write() {
    const auto layers = static_cast<Index>(layers_.size());
    const Index title = static_cast<Index>(text_width(options_.title) * (kFont + 2)) + 2 * kGap;
    const Index legend = 3 * kGap + kRamp + static_cast<Index>(kFont * text_width(legend_text()));
    const Index width = std::max({left_ + heads_ * kStep + kGap, title, legend}),
                height = top_ + layers * kStep + 3 * kFont;
    put("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", width, "\" height=\"", height, "\" viewBox=\"0 0 ", width,
        ' ', height, "\" font-family=\"sans-serif\" font-size=\"", kFont, "\" fill=\"#444\" role=\"img\">\n<title>",
        options_.title.empty() ? "Attention weights" : svg_text(options_.title, std::string::npos),
        "</title>\n<defs><pattern id=\"heed-hidden\" width=\"4\" height=\"4\" patternUnits=\"userSpaceOnUse\">"
        "<rect width=\"4\" height=\"4\" fill=\"#f0f0f0\"/><path d=\"M-1 1 1-1M0 4 4 0M3 5 5 3\" stroke=\"#c4c4c4\" "
        "stroke-width=\"0.8\"/></pattern></defs>\n<rect width=\"",
        width, "\" height=\"", height, "\" fill=\"#fff\"/>\n");
    if (!options_.title.empty()) {
      put("<text x=\"", kGap, "\" y=\"", kGap + kFont, "\" font-size=\"", kFont + 2, "\" font-weight=\"bold\">",
          svg_text(options_.title, std::string::npos), "</text>\n");
    }
    for (Index h = 0; h < heads_; ++h) text(left_ + h * kStep + kMap / 2, top_ - kGap / 2, "middle", std::to_string(h));
    for (Index l = 0; l < layers; ++l) write_layer(layers_[static_cast<std::size_t>(l)], top_ + l * kStep);
    write_legend(top_ + layers * kStep + kGap);
    put("</svg>\n");
    return std::move(svg_);
  }

 private:
  static constexpr Index kFont = 11, kGap = 8, kMap = 72, kStep = kMap + 6, kRamp = 120;
  static constexpr std::size_t kLongestLabel = 40;
  /// Steps of color: neighbors differ by less than can be told apart in cells of this size.
  static constexpr int kLevels = 24;

  template <class... Parts>
  void put(const Parts&... parts) {
    (append(svg_, parts), ...);
  }
  void text(Index x, Index y, const char* anchor, const std::string& what) {
    put("<text x=\"", x, "\" y=\"", y, "\" text-anchor=\"", anchor, "\">", what, "</text>\n");
  }

  void write_layer(const RecordedAttention& layer, Index y) {
    text(left_ - kGap, y + kMap / 2 + kFont / 3, "end", svg_text(layer.layer, kLongestLabel));
    for (Index h = 0; h < layer.weights.extent(1); ++h) {
      const Index x = left_ + h * kStep;
      put("<g><title>", svg_text(layer.layer, std::string::npos), ", head ", h, "</title>\n<rect x=\"", x, "\" y=\"", y,
          "\" width=\"", kMap, "\" height=\"", kMap, "\" fill=\"url(#heed-hidden)\"/>\n");
      write_cells(heat_cells(layer, options_.sample, h, options_.scale, kMap), x, y);
      put("</g>\n");
    }
  }
  /// A path for each color, in units of cells; neighbors of one color are one rectangle.
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
          level == kLevels ? kNaNColor : heat_colour(static_cast<double>(level) / static_cast<double>(kLevels - 1));
      put("<path fill=\"", colour_text(color), "\" d=\"", paths[level], "\"/>\n");
    }
    put("</g>\n");
  }
  /// -1 for hidden cells.
  static int level_of(double t) {
    if (t == kHiddenCell) return -1;
    return std::isnan(t) ? kLevels : static_cast<int>(std::lround(t * (kLevels - 1)));
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
          kFont, "\" fill=\"", colour_text(heat_colour(static_cast<double>(level) / static_cast<double>(kLevels - 1))),
          "\"/>\n");
    }
    put("</g>\n");
    text(2 * kGap + kRamp, y + kFont - 2, "start", legend_text());
  }

  const std::vector<RecordedAttention>& layers_;
  const AttentionGridOptions& options_;
  std::string svg_;
  Index heads_ = 0, left_ = 0, top_ = 0;
  bool has_nan_ = false;
};

}  // namespace detail

/// All heads of all layers that the recorder kept, as an SVG document: a row for each layer, hatched where the mask
/// hides. Where more than 72 keys or queries would share a map, the strongest of neighbors shows. Throws ValueError
/// without weights or for a sample that is not there.
inline std::string attention_grid_svg(const Recorder& recorder, const AttentionGridOptions& options = {}) {
  detail::check_grid(recorder, options.sample, "heed::attention_grid_svg");
  return detail::GridWriter(recorder, options).write();
}

/// Writes attention_grid_svg(...) to a file, which appears under its path only when it is complete. Throws FormatError
/// when it can't be written.
inline void save_attention_grid(const std::string& path, const Recorder& recorder,
                                const AttentionGridOptions& options = {}) {
  const std::string svg = attention_grid_svg(recorder, options);
  detail::AtomicFile file(path, "heed::save_attention_grid");
  file.write(svg.data(), svg.size());
  file.commit();
}

HEED_NAMESPACE_END
