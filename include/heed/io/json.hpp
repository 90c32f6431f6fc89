// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// JsonWriter: writes JSON for reports, pages and file headers. Numbers do not depend on the locale.

#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <utility>

#include <heed/core/error.hpp>
#include <heed/core/scalar.hpp>
#include <heed/io/text.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// The number with `digits` significant digits.
inline std::string number_text(double x, int digits) {
  std::array<char, 32> text;
  return {text.data(), write_number(text.data(), text.data() + text.size(), x, std::chars_format::general, digits)};
}

/// The number with `digits` digits after the decimal point.
inline std::string fixed_text(double x, int digits) {
  std::array<char, 400> text;
  return {text.data(), write_number(text.data(), text.data() + text.size(), x, std::chars_format::fixed, digits)};
}

/// Appends values and puts commas between them. The caller closes each bracket and gives a key before each value of an
/// object.
class JsonWriter {
 public:
  JsonWriter() = default;
  /// Escapes `<`, `>`, `&` and line separators too, so that the JSON can be part of a script in an HTML page.
  static JsonWriter for_html() {
    JsonWriter json;
    json.for_html_ = true;
    return json;
  }

  /// Moves out the JSON written so far.
  std::string take() { return std::move(json_); }

  JsonWriter& open(char bracket) {
    begin();
    json_ += bracket;
    first_ = true;
    return *this;
  }
  JsonWriter& close(char bracket) {
    json_ += bracket;
    first_ = false;
    return *this;
  }
  JsonWriter& key(std::string_view name) {
    value(name);
    json_ += ':';
    first_ = true;
    return *this;
  }
  /// Writes a string; bytes that are not UTF-8 become U+FFFD.
  JsonWriter& value(std::string_view text) {
    begin();
    json_ += '"';
    while (!text.empty()) {
      const CodePoint c = decode_utf8(text);
      const std::size_t length = c.length == 0 ? 1 : c.length;
      const bool markup = c.value == '<' || c.value == '>' || c.value == '&' || c.value == 0x2028 || c.value == 0x2029;
      if (c.length == 0)
        json_ += "\uFFFD";
      else if (c.value < 0x20 || (for_html_ && markup))
        escape(c.value);
      else
        json_.append(c.value == '"' || c.value == '\\' ? "\\" : "").append(text.substr(0, length));
      text.remove_prefix(length);
    }
    json_ += '"';
    return *this;
  }
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
  /// Appends a value that another writer wrote.
  JsonWriter& raw(std::string_view json) {
    begin();
    json_ += json;
    return *this;
  }
  /// NaN and infinities, which JSON lacks, become null.
  JsonWriter& value(double x, int digits = 6) {
    begin();
    json_ += detail::is_finite(x) ? number_text(x, digits) : "null";
    return *this;
  }
  template <std::integral T>
  JsonWriter& value(T x) {
    begin();
    if constexpr (std::same_as<T, bool>)
      json_ += x ? "true" : "false";
    else
      json_ += std::to_string(x);
    return *this;
  }

 private:
  void begin() {
    if (!first_) json_ += ',';
    first_ = false;
  }
  void escape(std::uint32_t code_point) {
    constexpr std::string_view digits = "0123456789abcdef";
    json_ += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) json_ += digits[code_point >> shift & 15U];
  }

  std::string json_;
  bool first_ = true, for_html_ = false;
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
