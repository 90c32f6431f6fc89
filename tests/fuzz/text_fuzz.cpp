// SPDX-License-Identifier: MIT
// Fuzzes functions for untrusted text: UTF-8 against its table of valid forms, texts for terminals and SVG, and name
// patterns against a table of all ways to match.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <heed/inspect/svg.hpp>
#include <heed/io/text.hpp>

#include "common/xml.hpp"
#include "fuzz/fuzz_input.hpp"

namespace {

using heed_test::require;

/// The length of the code point at the start, by table 3-7 of the Unicode standard; 0 if it is not valid.
std::size_t utf8_length(std::string_view text) {
  const auto in = [&](std::size_t i, int low, int high) {
    return i < text.size() && low <= static_cast<unsigned char>(text[i]) && static_cast<unsigned char>(text[i]) <= high;
  };
  const auto tail = [&](std::size_t i) { return in(i, 0x80, 0xBF); };
  if (in(0, 0x00, 0x7F)) return 1;
  if (in(0, 0xC2, 0xDF)) return tail(1) ? 2 : 0;
  const bool three = (in(0, 0xE0, 0xE0) && in(1, 0xA0, 0xBF)) || (in(0, 0xE1, 0xEC) && tail(1)) ||
                     (in(0, 0xED, 0xED) && in(1, 0x80, 0x9F)) || (in(0, 0xEE, 0xEF) && tail(1));
  if (three) return tail(2) ? 3 : 0;
  const bool four = (in(0, 0xF0, 0xF0) && in(1, 0x90, 0xBF)) || (in(0, 0xF1, 0xF3) && tail(1)) ||
                    (in(0, 0xF4, 0xF4) && in(1, 0x80, 0x8F));
  return four && tail(2) && tail(3) ? 4 : 0;
}

void check_text(std::string_view text, std::size_t longest) {
  bool valid = true;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t length = utf8_length(rest);
    const heed::detail::CodePoint c = heed::detail::decode_utf8(rest);
    require(c.length == length, "a code point is decoded if it is valid");
    valid = valid && length > 0;
    std::string again;
    if (length > 0) heed::detail::append_utf8(again, c.value);
    require(again == rest.substr(0, length), "a code point encodes as it was");
    rest.remove_prefix(std::max<std::size_t>(length, 1));
  }
  require(heed::detail::is_utf8(text) == valid, "a text is UTF-8 if all of it is");

  const std::string quoted = heed::detail::in_quotes(text, longest);
  require(heed::detail::is_utf8(quoted) && quoted.size() <= longest + 5, "a quoted name is UTF-8 and cut");
  for (std::string_view rest = quoted; !rest.empty();) {
    const heed::detail::CodePoint c = heed::detail::decode_utf8(rest);
    require(c.value >= 0x20 && (c.value < 0x7F || c.value > 0x9F), "a quoted name holds no control character");
    rest.remove_prefix(c.length);
  }
  const std::string svg = heed::detail::svg_text(text), cut = heed::detail::svg_text(text, longest);
  require(static_cast<bool>(heed_test::is_well_formed("<text>" + svg + "</text>")), "a label is XML");
  require(static_cast<bool>(heed_test::is_well_formed("<text>" + cut + "</text>")), "so is one that is cut");
}

/// True if the pattern matches, by trying everything.
bool matches_somehow(std::string_view pattern, std::string_view name) {
  std::vector<char> row(name.size() + 1, 0);
  row[0] = 1;
  for (const char c : pattern) {
    if (c == '*') {
      for (std::size_t i = 1; i < row.size(); ++i) row[i] = row[i] || row[i - 1];
    } else {
      for (std::size_t i = row.size(); i-- > 0;) row[i] = i > 0 && row[i - 1] && name[i - 1] == c;
    }
  }
  return row.back() != 0;
}

void check_pattern(std::string_view pattern, std::string_view name) {
  std::vector<std::string_view> parts;
  const bool matched = heed::detail::matches(pattern, name, &parts);
  require(matched == matches_somehow(pattern, name), "a pattern matches if there is a way");
  if (!matched) return;
  require(static_cast<std::size_t>(std::count(pattern.begin(), pattern.end(), '*')) == parts.size(),
          "a part for each star");
  require(heed::detail::substitute(pattern, parts) == name, "the parts in the places of the stars give the name");
}

}  // namespace

void heed_test::fuzz(FuzzInput& input) {
  if (input.chance(0.6)) {
    const auto longest = static_cast<std::size_t>(input.integer(0, 40));
    check_text(input.rest(), longest);
    return;
  }
  // Few letters, so that names match patterns.
  const auto letters = [&](int most, std::string_view alphabet) {
    std::string text;
    for (int i = input.integer(0, most); i-- > 0;) {
      text += alphabet[static_cast<std::size_t>(input.integer(0, static_cast<int>(alphabet.size()) - 1))];
    }
    return text;
  };
  const std::string pattern = letters(12, "ab.*"), name = letters(24, "ab.*");
  check_pattern(pattern, name);
}
