// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Writing JSON: what reports and pages need of it.

#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <heed/core/config.hpp>
#include <heed/io/text.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// Independent of the locale, unlike printf.
inline std::string number_text(double x, int digits) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), x, std::chars_format::general, digits);
  return {text.data(), end.ptr};
}

/// With `digits` digits after the point.
inline std::string fixed_text(double x, int digits) {
  std::array<char, 400> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), x, std::chars_format::fixed, digits);
  return {text.data(), end.ptr};
}

/// Appends values one after the other and puts the commas between them. The caller closes what it opens, and gives a
/// key before each value of an object.
class JsonWriter {
 public:
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
  /// Text of any bytes: what is not UTF-8 becomes U+FFFD. Markup is escaped, so that the JSON may stand in a script of
  /// an HTML page, whatever the text says.
  JsonWriter& value(std::string_view text) {
    begin();
    json_ += '"';
    while (!text.empty()) {
      const CodePoint c = decode_utf8(text);
      const std::size_t length = c.length == 0 ? 1 : c.length;
      const bool special = c.value < 0x20 || c.value == 0x7F || c.value == '"' || c.value == '\\' || c.value == '<' ||
                           c.value == '>' || c.value == '&' || c.value == 0x2028 || c.value == 0x2029;
      if (c.length == 0)
        json_ += "\uFFFD";
      else if (special)
        escape(c.value);
      else
        json_ += text.substr(0, length);
      text.remove_prefix(length);
    }
    json_ += '"';
    return *this;
  }
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
  /// What another writer wrote.
  JsonWriter& raw(std::string_view json) {
    begin();
    json_ += json;
    return *this;
  }
  /// JSON has no NaN and no infinity: they become null.
  JsonWriter& value(double x, int digits = 6) {
    begin();
    json_ += std::isfinite(x) ? number_text(x, digits) : "null";
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
  bool first_ = true;
};

}  // namespace detail

HEED_NAMESPACE_END
