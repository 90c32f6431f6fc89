// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The color scale of heat maps.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <heed/core/config.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// Red, green, blue.
using Color = std::array<std::uint8_t, 3>;

/// The color of NaN, far from every color of the scale.
inline constexpr Color kNaNColor{0xe6, 0x00, 0x7e};

/// The color of t in [0, 1], from pale yellow through teal to dark blue. Lightness falls linearly in Oklab (Björn
/// Ottosson, 2020), so that equal steps look equal, also in gray.
inline Color heat_color(double t) {
  t = std::clamp(t, 0.0, 1.0);
  const double lightness = 0.975 - 0.70 * t;
  const double chroma = 0.025 + 0.30 * t * (1 - t) + 0.06 * t;
  const double hue = (105 + 160 * std::sqrt(t)) * 3.14159265358979323846 / 180;
  const double a = chroma * std::cos(hue), b = chroma * std::sin(hue);
  const auto cube = [](double x) { return x * x * x; };
  const double l = cube(lightness + 0.3963377774 * a + 0.2158037573 * b);
  const double m = cube(lightness - 0.1055613458 * a - 0.0638541728 * b);
  const double s = cube(lightness - 0.0894841775 * a - 1.2914855480 * b);
  const auto channel = [](double linear) {
    const double x = std::clamp(linear, 0.0, 1.0);
    return static_cast<std::uint8_t>(
        std::lround(255 * (x <= 0.0031308 ? 12.92 * x : 1.055 * std::pow(x, 1 / 2.4) - 0.055)));
  };
  return {channel(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
          channel(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
          channel(-0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s)};
}

/// The color as "#rrggbb".
inline std::string color_text(const Color& color) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text = "#";
  for (const std::uint8_t channel : color) {
    text += digits[channel / 16U];
    text += digits[channel % 16U];
  }
  return text;
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
