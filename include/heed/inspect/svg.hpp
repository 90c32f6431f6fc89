// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Writes SVG documents: escaped text, estimated text widths, and the frame that heat maps and grids share.

#include <heed/core/core.hpp>
#include <heed/io/text.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// Escapes text for SVG: markup becomes entities, control characters (which XML forbids, but which tokens contain)
/// become their pictures, and invalid UTF-8 becomes U+FFFD. Text beyond `longest` code points is cut and ends with an
/// ellipsis.
inline std::string svg_text(std::string_view text, std::size_t longest = std::string::npos) {
  std::string svg;
  for (std::size_t count = 0; !text.empty(); ++count) {
    const CodePoint c = decode_utf8(text);
    const std::size_t length = std::max<std::size_t>(c.length, 1);
    if (count + 1 >= longest && text.size() > length) return svg += "\u2026";
    if (c.length == 0 || c.value == 0xFFFE || c.value == 0xFFFF)
      svg += "\uFFFD";
    else if (c.value < 0x20)
      append_utf8(svg, 0x2400 + c.value);
    else if (c.value == '<')
      svg += "&lt;";
    else if (c.value == '>')
      svg += "&gt;";
    else if (c.value == '&')
      svg += "&amp;";
    else
      svg += text.substr(0, length);
    text.remove_prefix(length);
  }
  return svg;
}

/// Estimates the width of a text in units of its font size, since no font is available for measuring.
inline double text_width(std::string_view text) {
  double width = 0;
  while (!text.empty()) {
    const CodePoint c = decode_utf8(text);
    width += c.value >= 0x1100 ? 1.0 : 0.62;
    text.remove_prefix(std::max<std::size_t>(c.length, 1));
  }
  return width;
}

/// A document with a title and the pattern "url(#heed-hidden)" for masked cells.
class SvgWriter {
 public:
  static constexpr int kFont = 11;  ///< font size, in pixels
  static constexpr int kGap = 8;    ///< distance between parts, in pixels

  /// The position of a text, its anchor (start, middle or end) and its rotation in degrees.
  struct Placement {
    Index x, y;
    std::string_view anchor = "start";
    int rotation = 0;
  };

  /// The pixels that a title takes: (width, height); without a title, no height.
  static Index title_width(const std::string& title) {
    return static_cast<Index>(text_width(title) * (kFont + 2)) + 2 * kGap + 1;
  }
  static Index title_height(const std::string& title) { return title.empty() ? 0 : 2 * kFont; }

  /// Begins a document of a size in pixels. `definitions` go next to the pattern.
  void begin(Index width, Index height, const std::string& title, std::string_view definitions = {}) {
    put("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", width, "\" height=\"", height, "\" viewBox=\"0 0 ", width,
        ' ', height, "\" font-family=\"sans-serif\" font-size=\"", kFont, "\" fill=\"#222\" role=\"img\">\n<title>",
        title.empty() ? "Attention weights" : svg_text(title),
        "</title>\n<defs>\n<pattern id=\"heed-hidden\" width=\"4\" height=\"4\" patternUnits=\"userSpaceOnUse\">"
        "<rect width=\"4\" height=\"4\" fill=\"#f6f6f6\"/><path d=\"M-1 1 1-1M0 4 4 0M3 5 5 3\" stroke=\"#c4c4c4\" "
        "stroke-width=\"0.8\"/></pattern>\n",
        definitions, "</defs>\n<rect width=\"", width, "\" height=\"", height, "\" fill=\"#fff\"/>\n");
    if (title.empty()) return;
    put("<text x=\"", kGap, "\" y=\"", kGap + kFont, "\" font-size=\"", kFont + 2, "\" font-weight=\"bold\">",
        svg_text(title), "</text>\n");
  }
  /// Ends the document and returns it.
  std::string end() {
    put("</svg>\n");
    return std::move(svg_);
  }

  /// Appends text and numbers as they are.
  template <class... Parts>
  void put(const Parts&... parts) {
    (append(svg_, parts), ...);
  }
  /// Appends a text. If it is cut at `longest` code points, a tooltip shows all of it.
  void label(const Placement& at, std::string_view text, std::size_t longest = std::string::npos) {
    const std::string shown = svg_text(text, longest), whole = svg_text(text);
    put("<text transform=\"translate(", at.x, " ", at.y, ")");
    if (at.rotation != 0) put(" rotate(", at.rotation, ")");
    put("\" text-anchor=\"", at.anchor, "\" xml:space=\"preserve\">", shown);
    if (shown != whole) put("<title>", whole, "</title>");
    put("</text>\n");
  }

 private:
  std::string svg_;
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
