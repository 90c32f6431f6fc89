// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Functions for untrusted text: UTF-8, names in messages, and name patterns with '*'.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <heed/core/config.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// A decoded UTF-8 code point.
struct CodePoint {
  std::uint32_t value = 0;
  std::size_t length = 0;  ///< in bytes; 0 if the text is not valid UTF-8
};

/// Decodes the code point at the start of a non-empty text. Overlong forms, surrogates and values above U+10FFFF are
/// invalid.
inline CodePoint decode_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) -> std::uint32_t { return static_cast<unsigned char>(text[i]); };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return {};
  std::uint32_t value = first & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    value = value << 6 | (byte(i) & 0x3F);
  }
  const bool overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (overlong || surrogate || value > 0x10FFFF) return {};
  return {value, length};
}

inline void append_utf8(std::string& text, std::uint32_t code_point) {
  const auto put = [&](std::uint32_t byte) { text += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

inline bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = decode_utf8(text).length;
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

/// A text from a file for a message or a terminal: control characters, which could move the cursor or hide a line, and
/// invalid UTF-8 become '?'; a text of more than `longest` bytes is cut.
inline std::string printable(std::string_view text, std::size_t longest = std::string::npos) {
  std::string shown;
  while (!text.empty()) {
    const CodePoint c = decode_utf8(text);
    const std::size_t length = std::max<std::size_t>(c.length, 1);
    if (length > longest - std::min(shown.size(), longest)) return shown += "...";
    if (c.length == 0 || c.value < 0x20 || (c.value >= 0x7F && c.value < 0xA0))
      shown += '?';
    else
      shown += text.substr(0, length);
    text.remove_prefix(length);
  }
  return shown;
}

/// Quotes a name from a file for a message, printable and cut.
inline std::string in_quotes(std::string_view name, std::size_t longest = 100) {
  return '"' + printable(name, longest) + '"';
}

/// True if `name` matches `pattern`, in which each '*' matches any text, from left to right as little as possible. If
/// `parts` is given, it receives the texts that the stars match.
inline bool matches(std::string_view pattern, std::string_view name, std::vector<std::string_view>* parts = nullptr) {
  if (parts) parts->clear();
  std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (name.substr(0, star) != pattern.substr(0, star)) return false;
  name.remove_prefix(star);
  for (;;) {
    pattern.remove_prefix(star + 1);
    star = pattern.find('*');
    const bool last = star == std::string_view::npos;
    const std::string_view literal = pattern.substr(0, star);
    if (last && name.size() < literal.size()) return false;
    const std::size_t at = last ? name.size() - literal.size() : name.find(literal);
    if (at == std::string_view::npos || name.substr(at, literal.size()) != literal) return false;
    if (parts) parts->push_back(name.substr(0, at));
    if (last) return true;
    name.remove_prefix(at + literal.size());
    star = literal.size();
  }
}

/// Replaces the stars of a pattern by `parts`, in order. Requires at least as many parts as stars.
inline std::string substitute(std::string_view pattern, const std::vector<std::string_view>& parts) {
  std::string text;
  std::size_t next = 0;
  for (const char c : pattern) {
    if (c == '*')
      text += parts[next++];
    else
      text += c;
  }
  return text;
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
