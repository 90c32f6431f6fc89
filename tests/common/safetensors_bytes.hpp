// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Safetensors files as strings, also broken ones.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace heed_test {

/// The length, a header of any text, and data.
inline std::string safetensors_bytes(std::string_view header, std::string_view data = {}) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(static_cast<unsigned char>(header.size() >> 8 * i & 0xFF));
  return bytes.append(header).append(data);
}

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

}  // namespace heed_test
