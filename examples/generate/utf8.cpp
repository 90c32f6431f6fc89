// SPDX-License-Identifier: MIT
#include "utf8.hpp"

namespace generate {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The bytes of a character by its first one; 0 for a byte that begins none.
std::size_t length_by(unsigned char first) {
  return first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
}

// Bytes at the start of the text that may be a character or the beginning of one.
std::size_t well_formed(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = length_by(byte(0));
  std::size_t n = length > 0 ? 1 : 0;
  while (n > 0 && n < length && n < text.size()) {
    // The second byte also says whether the character is too short a number for its length, a surrogate, or too large.
    const unsigned low = n > 1 ? 0x80u : byte(0) == 0xE0 ? 0xA0u : byte(0) == 0xF0 ? 0x90u : 0x80u;
    const unsigned high = n > 1 ? 0xBFu : byte(0) == 0xED ? 0x9Fu : byte(0) == 0xF4 ? 0x8Fu : 0xBFu;
    if (byte(n) < low || byte(n) > high) break;
    ++n;
  }
  return n;
}

}  // namespace

CodePoint next_code_point(std::string_view text) {
  const auto byte = [&](std::size_t i) { return std::uint32_t{static_cast<unsigned char>(text[i])}; };
  const std::size_t length = length_by(static_cast<unsigned char>(text[0])), n = well_formed(text);
  if (length == 0 || n < length) return {0xFFFD, n > 0 ? n : 1, false};
  std::uint32_t value = length == 1 ? byte(0) : byte(0) & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) value = value << 6 | (byte(i) & 0x3Fu);
  return {value, length, true};
}

std::string Utf8Stream::add(std::string_view bytes) {
  rest_ += bytes;
  std::string text;
  std::size_t i = 0;
  while (i < rest_.size()) {
    const std::string_view from = std::string_view(rest_).substr(i);
    const std::size_t n = well_formed(from), length = length_by(static_cast<unsigned char>(from[0]));
    if (n == from.size() && n < length) break;  // the rest may still come
    const CodePoint c = next_code_point(from);
    text += c.valid ? from.substr(0, c.length) : kReplacement;
    i += c.length;
  }
  rest_.erase(0, i);
  return text;
}

std::string Utf8Stream::finish() {
  std::string text(rest_.empty() ? std::string_view() : kReplacement);
  rest_.clear();
  return text;
}

}  // namespace generate
