// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// WeightFormat: how weights are stored in fewer bits than a float, in GGUF files and in memory.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>

#include <heed/core/scalar.hpp>
#include <heed/core/tensor.hpp>

HEED_NAMESPACE_BEGIN

/// Formats of weights, with the names of ggml. In the block formats 32 numbers of a row share a factor d and, in Q4_1,
/// a smallest number m, both of half.
enum class WeightFormat {
  Float16,   ///< half
  BFloat16,  ///< bfloat16
  Q8_0,      ///< d·q, q from -128 to 127: 8.5 bits a weight
  Q4_0,      ///< d·(q - 8), q from 0 to 15: 4.5 bits
  Q4_1       ///< d·q + m, q from 0 to 15: 5 bits
};

namespace detail {

struct WeightFormatFacts {
  std::string_view name;
  Index block, block_bytes;  // numbers and bytes of a block
};
/// In the order of WeightFormat.
inline constexpr std::array<WeightFormatFacts, 5> kWeightFormats{
    {{"F16", 1, 2}, {"BF16", 1, 2}, {"Q8_0", 32, 34}, {"Q4_0", 32, 18}, {"Q4_1", 32, 20}}};
constexpr const WeightFormatFacts& facts_of(WeightFormat format) {
  return kWeightFormats[static_cast<std::size_t>(format)];
}

/// Numbers that share a factor.
inline constexpr Index kBlock = 32;

/// 32 numbers of a row: d·code + m, or the codes themselves as 16-bit numbers.
struct WeightBlock {
  half d{}, m{};
  std::array<std::int16_t, kBlock> codes{};  // of a byte, of four bits, or the bits of a 16-bit number
};

/// The lowest eight bits as a signed number.
constexpr std::int16_t signed_byte(std::uint32_t bits) {
  return static_cast<std::int16_t>(static_cast<int>((bits & 0xffu) ^ 0x80u) - 0x80);
}
inline half half_at(const std::byte* from) {
  half h;
  std::memcpy(static_cast<void*>(&h), from, sizeof h);
  return h;
}

/// Block `from` as files hold it: d, m, then 32 bytes, or 16 bytes whose lower halves are numbers 0 to 15 and whose
/// upper halves are numbers 16 to 31. Of a 16-bit format, `count` numbers.
inline WeightBlock read_block(WeightFormat format, const std::byte* from, Index count) {
  WeightBlock block;
  switch (format) {
    case WeightFormat::Float16:
    case WeightFormat::BFloat16:
      std::memcpy(block.codes.data(), from, static_cast<std::size_t>(count) * 2);
      return block;
    case WeightFormat::Q8_0:
      block.d = half_at(from);
      for (std::size_t i = 0; i < kBlock; ++i)
        block.codes[i] = signed_byte(std::to_integer<std::uint32_t>(from[2 + i]));
      return block;
    case WeightFormat::Q4_0:
    case WeightFormat::Q4_1:
      break;
  }
  const bool has_minimum = format == WeightFormat::Q4_1;
  block.d = half_at(from);
  if (has_minimum) block.m = half_at(from + 2);
  for (std::size_t i = 0; i < kBlock / 2; ++i) {
    const auto pair = static_cast<std::uint8_t>(from[(has_minimum ? 4u : 2u) + i]);
    block.codes[i] = pair & 15;
    block.codes[i + kBlock / 2] = pair >> 4;
  }
  return block;
}

/// The number of code i of a block.
inline float value_of(WeightFormat format, const WeightBlock& block, std::size_t i) {
  const auto code = block.codes[i];
  switch (format) {
    case WeightFormat::Float16:
      return static_cast<float>(std::bit_cast<half>(code));
    case WeightFormat::BFloat16:
      return static_cast<float>(std::bit_cast<bfloat16>(code));
    case WeightFormat::Q8_0:
      return static_cast<float>(block.d) * static_cast<float>(code);
    case WeightFormat::Q4_0:
      return static_cast<float>(block.d) * static_cast<float>(code - 8);
    case WeightFormat::Q4_1:
      break;
  }
  return static_cast<float>(block.d) * static_cast<float>(code) + static_cast<float>(block.m);
}

/// The nearest block to `count` finite numbers, at most 32.
inline WeightBlock quantize_block(WeightFormat format, const float* x, Index count) {
  WeightBlock block;
  const auto n = static_cast<std::size_t>(count);
  if (format == WeightFormat::Float16) {
    for (std::size_t i = 0; i < n; ++i) block.codes[i] = std::bit_cast<std::int16_t>(to_half(x[i]));
    return block;
  }
  if (format == WeightFormat::BFloat16) {
    for (std::size_t i = 0; i < n; ++i) block.codes[i] = std::bit_cast<std::int16_t>(static_cast<bfloat16>(x[i]));
    return block;
  }
  const auto [low, high] = std::minmax_element(x, x + n);
  float lowest = 0, code_low = 0, code_high = 15, step = 0;
  if (format == WeightFormat::Q8_0) {
    step = std::max(-*low, *high) / 127;
    code_low = -127, code_high = 127;
  } else if (format == WeightFormat::Q4_0) {
    // The code of the number furthest from 0 is 0, and its value -8.
    const float furthest = -*low > *high ? *low : *high;
    step = furthest / -8;
  } else {
    block.m = to_half(*low);
    lowest = static_cast<float>(block.m);
    step = (*high - lowest) / 15;
  }
  block.d = to_half(step);
  const float d = static_cast<float>(block.d), inverse = d == 0 ? 0 : 1 / d;
  const float zero = format == WeightFormat::Q4_0 ? 8.f : 0.f;
  for (std::size_t i = 0; i < n; ++i) {
    const float code = std::nearbyint((x[i] - lowest) * inverse) + zero;
    block.codes[i] = static_cast<std::int16_t>(std::clamp(code, code_low, code_high));
  }
  return block;
}

}  // namespace detail

/// The name of a format in files, such as "Q4_1".
constexpr std::string_view to_string(WeightFormat format) { return detail::facts_of(format).name; }
/// Bytes of `columns` weights, which must be a multiple of 32 in the block formats.
constexpr Index bytes_of_row(WeightFormat format, Index columns) {
  return columns / detail::facts_of(format).block * detail::facts_of(format).block_bytes;
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
