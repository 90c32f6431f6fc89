// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Writes heat maps as PNG where SVG is not accepted: one head, or a grid of all heads and layers. The pictures have no
/// labels, since those need fonts. The encoder is self-contained and compresses runs and repeated lines of indexed
/// colors, which is all that heat maps consist of.
///
///     heed::save_heatmap_png("head3.png", recorder.of("layers.0.self_attn"), 3);
///     heed::save_attention_grid_png("heads.png", recorder);

#include <vector>

#include <heed/inspect/color.hpp>
#include <heed/inspect/grid.hpp>
#include <heed/inspect/recorder.hpp>
#include <heed/io/atomic_file.hpp>

HEED_NAMESPACE_BEGIN

/// Options of save_heatmap_png().
struct HeatmapPngOptions {
  Index sample = 0;                          ///< index in the batch
  ColorScale scale = ColorScale::EachQuery;  ///< the weight with the darkest color
  Index cell = 0;                            ///< width and height of a cell in pixels; 0: about 512 for the picture
};

namespace detail {

/// Compresses bytes in zlib format (RFC 1950, 1951) with the fixed Huffman codes. Looks for repetitions at two
/// distances only, 1 and `stride`, which suffices for pictures of large cells.
class Deflater {
 public:
  explicit Deflater(std::size_t stride) : stride_(stride) {}

  std::string pack(std::string_view bytes) {
    out_ = "\x78\x01";
    put_bits(3, 3);  // the last block, fixed codes
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t run = match(bytes, at, 1), line = stride_ <= 32768 ? match(bytes, at, stride_) : 0;
      const std::size_t length = std::max(run, line);
      if (length >= 3) {
        put_length(static_cast<unsigned>(length));
        put_distance(static_cast<unsigned>(run >= line ? 1 : stride_));
        at += length;
      } else {
        put_literal(static_cast<unsigned char>(bytes[at++]));
      }
    }
    put_code(0, 7);  // the end of the block
    if (held_ > 0) put_bits(0, 8 - held_);
    std::uint32_t a = 1, b = 0;
    for (const char c : bytes) {
      a = (a + static_cast<unsigned char>(c)) % 65521;
      b = (b + a) % 65521;
    }
    for (const std::uint32_t byte : {b >> 8, b, a >> 8, a}) out_ += static_cast<char>(byte & 255U);
    return std::move(out_);
  }

 private:
  static std::size_t match(std::string_view bytes, std::size_t at, std::size_t distance) {
    if (at < distance) return 0;
    const std::size_t most = std::min<std::size_t>(258, bytes.size() - at);
    std::size_t length = 0;
    while (length < most && bytes[at + length] == bytes[at + length - distance]) ++length;
    return length;
  }
  /// Appends bits, the lowest first.
  void put_bits(unsigned bits, unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      byte_ |= (bits >> i & 1U) << held_;
      if (++held_ < 8) continue;
      out_ += static_cast<char>(byte_);
      byte_ = held_ = 0;
    }
  }
  /// Appends a Huffman code, its highest bit first.
  void put_code(unsigned code, unsigned count) {
    while (count > 0) put_bits(code >> --count & 1U, 1);
  }
  void put_literal(unsigned byte) {
    if (byte < 144)
      put_code(48 + byte, 8);
    else
      put_code(400 + byte - 144, 9);
  }
  /// Lengths 3 to 258 are the symbols 257 to 285, in groups of four that share a number of extra bits.
  void put_length(unsigned length) {
    unsigned symbol = 285, extra = 0, rest = 0;
    if (length < 11) {
      symbol = 254 + length;
    } else if (length < 258) {
      while ((length - 3) >> (extra + 3) > 0) ++extra;
      symbol = 257 + 4 * extra + ((length - 3) >> extra);
      rest = (length - 3) & ((1U << extra) - 1);
    }
    if (symbol < 280)
      put_code(symbol - 256, 7);
    else
      put_code(192 + symbol - 280, 8);
    put_bits(rest, extra);
  }
  /// Distances are in groups of two.
  void put_distance(unsigned distance) {
    unsigned extra = 0;
    while ((distance - 1) >> (extra + 2) > 0) ++extra;
    const unsigned symbol = 2 * extra + ((distance - 1) >> extra);
    put_code(symbol, 5);
    put_bits((distance - 1) & ((1U << extra) - 1), extra);
  }

  std::size_t stride_;
  std::string out_;
  unsigned byte_ = 0, held_ = 0;
};

/// A picture of indexed colors: 0 to 250 are the scale, then come NaN, hidden cells, their hatching, and the
/// background.
class IndexedPicture {
 public:
  static constexpr int kScale = 250;
  static constexpr std::uint8_t kNaN = 251, kHidden = 252, kHatch = 253, kBackground = 254;

  IndexedPicture(Index width, Index height)
      : width_(width), height_(height), pixels_(static_cast<std::size_t>((width + 1) * height), char(kBackground)) {
    // Each line begins with the number of its filter: none.
    for (Index y = 0; y < height; ++y) pixels_[static_cast<std::size_t>(y * (width + 1))] = 0;
  }

  /// Draws cells of cell_width × cell_height pixels with the upper left corner at (x, y).
  void draw(const HeatCells& cells, Index x, Index y, Index cell_width, Index cell_height) {
    for (Index i = 0; i < cells.rows * cell_height; ++i) {
      for (Index j = 0; j < cells.columns * cell_width; ++j) {
        set(x + j, y + i, color_of(cells(i / cell_height, j / cell_width), x + j, y + i));
      }
    }
  }

  std::string png() const {
    std::string palette;
    const auto add = [&](const Color& color) {
      for (const std::uint8_t channel : color) palette += static_cast<char>(channel);
    };
    for (int i = 0; i <= kScale; ++i) add(heat_color(static_cast<double>(i) / kScale));
    for (const Color& color : {kNaNColor, Color{236, 236, 236}, Color{190, 190, 190}, Color{255, 255, 255}}) add(color);
    std::string file = "\x89PNG\r\n\x1a\n";
    append_chunk(file, "IHDR", number(width_) + number(height_) + std::string("\x08\x03\0\0\0", 5));
    append_chunk(file, "PLTE", palette);
    append_chunk(file, "IDAT", Deflater(static_cast<std::size_t>(width_ + 1)).pack(pixels_));
    append_chunk(file, "IEND", "");
    return file;
  }

 private:
  void set(Index x, Index y, std::uint8_t color) {
    pixels_[static_cast<std::size_t>(y * (width_ + 1) + 1 + x)] = static_cast<char>(color);
  }
  static std::uint8_t color_of(double t, Index x, Index y) {
    if (t == kHiddenCell) return (x + y) % 5 == 0 ? kHatch : kHidden;
    return detail::is_nan(t) ? kNaN : static_cast<std::uint8_t>(std::lround(t * kScale));
  }
  static std::string number(Index value) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 255);
    return bytes;
  }
  static void append_chunk(std::string& file, std::string_view kind, const std::string& data) {
    file += number(static_cast<Index>(data.size()));
    const std::size_t begin = file.size();
    file += kind;
    file += data;
    std::uint32_t crc = ~std::uint32_t{0};
    for (const char c : std::string_view(file).substr(begin)) {
      crc ^= static_cast<unsigned char>(c);
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1U ? 0xEDB88320U : 0U);
    }
    file += number(static_cast<Index>(~crc));
  }

  Index width_, height_;
  std::string pixels_;
};

}  // namespace detail

/// Writes the weights of one head as PNG, atomically: one row per query, one column per key, masked cells hatched.
/// Throws ValueError if the head or sample does not exist, if cell is negative, or if the picture would exceed 30,000
/// pixels; FormatError if the file cannot be written.
inline void save_heatmap_png(const std::string& path, const RecordedAttention& attention, Index head,
                             const HeatmapPngOptions& options = {}) {
  constexpr const char* name = "heed::save_heatmap_png";
  const auto& e = attention.weights.extents();
  HEED_CHECK(options.sample >= 0 && options.sample < e[0] && head >= 0 && head < e[1], ValueError, name,
             ": sample = ", options.sample, ", head = ", head, " but layer ", detail::in_quotes(attention.layer),
             " has B = ", e[0], ", H = ", e[1]);
  const Index longest = std::max<Index>({e[2], e[3], 1});
  const Index cell = options.cell != 0 ? options.cell : std::max<Index>(1, 512 / longest);
  HEED_CHECK(cell > 0 && cell <= 30'000 / longest, ValueError, name, ": cell = ", options.cell, " for ", longest,
             " tokens; the picture must have 1 to 30000 pixels in each direction");
  detail::IndexedPicture picture(std::max<Index>(1, e[3] * cell), std::max<Index>(1, e[2] * cell));
  picture.draw(detail::heat_cells(attention, options.sample, head, options.scale, longest), 0, 0, cell, cell);
  detail::write_file(path, picture.png(), name);
}

/// Writes all recorded heads as PNG, atomically: one row of maps per layer, in the recorder's order. Throws as
/// attention_grid_svg() does, and FormatError if the file cannot be written.
inline void save_attention_grid_png(const std::string& path, const Recorder& recorder,
                                    const AttentionGridOptions& options = {}) {
  constexpr const char* name = "heed::save_attention_grid_png";
  constexpr Index map = 96, step = map + 8;
  detail::check_grid(recorder, options.sample, name);
  Index heads = 0;
  for (const RecordedAttention& one : recorder.attention()) heads = std::max(heads, one.weights.extent(1));
  detail::IndexedPicture picture(heads * step + 8, static_cast<Index>(recorder.attention().size()) * step + 8);
  Index y = 8;
  for (const RecordedAttention& one : recorder.attention()) {
    for (Index h = 0; h < one.weights.extent(1); ++h) {
      const detail::HeatCells cells = detail::heat_cells(one, options.sample, h, options.scale, map);
      if (cells.values.empty()) continue;
      picture.draw(cells, 8 + h * step, y, map / cells.columns, map / cells.rows);
    }
    y += step;
  }
  detail::write_file(path, picture.png(), name);
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
