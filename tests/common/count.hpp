// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// How often a text holds a part.

#include <cstddef>
#include <string_view>

namespace heed_test {

inline int count(std::string_view text, std::string_view part) {
  int n = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

}  // namespace heed_test
