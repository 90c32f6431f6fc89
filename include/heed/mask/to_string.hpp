// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// to_string(mask): prints a mask as rows of characters, for documentation, logs and test failures.

#include <string>

#include <heed/core/config.hpp>
#include <heed/mask/concept.hpp>

HEED_NAMESPACE_BEGIN

/// One line per query, one character per key: '#' is visible, '.' hidden. Throws as the mask's bind() does.
///
///     to_string(Causal{}, {.Lq = 3, .Lk = 3}) is
///       #..
///       ##.
///       ###
template <Mask M>
std::string to_string(const M& mask, const AttentionShape& shape, int b = 0, int h = 0) {
  const auto bound = bind(mask, shape);
  std::string picture;
  for (int q = 0; q < shape.Lq; ++q) {
    for (int k = 0; k < shape.Lk; ++k) picture += is_visible(bound, b, h, q, k) ? '#' : '.';
    picture += '\n';
  }
  return picture;
}

/// For one sample and one head of Lq queries and Lk keys.
template <Mask M>
std::string to_string(const M& mask, int Lq, int Lk) {
  return to_string(mask, {.Lq = Lq, .Lk = Lk});
}

HEED_NAMESPACE_END
