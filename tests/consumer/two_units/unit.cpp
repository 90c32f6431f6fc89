// SPDX-License-Identifier: MIT
// Compiled twice, as UNIT = first and second, with different instruction sets. Both call the same functions.

#include <heed/heed.hpp>

float UNIT(int keys) {
  heed::Tensor<float, 4> q(1, 2, 5, 24), k(1, 2, keys, 24), v(1, 2, keys, 8);
  for (int h = 0; h < 2; ++h) {
    for (int i = 0; i < keys; ++i) {
      for (int d = 0; d < 24; ++d) k(0, h, i, d) = static_cast<float>((i * 7 + d * 3 + h) % 11) * 0.1f;
      for (int d = 0; d < 8; ++d) v(0, h, i, d) = static_cast<float>((i + d) % 5);
    }
    for (int i = 0; i < 5; ++i) {
      for (int d = 0; d < 24; ++d) q(0, h, i, d) = static_cast<float>((i + d * 5) % 7) * 0.2f;
    }
  }
  const heed::Tensor<float, 4> out = heed::attention(q, k, v, heed::Causal::bottom_right() & heed::Window::bottom_right(4, 0));
  float sum = 0;
  for (int h = 0; h < 2; ++h) {
    for (int i = 0; i < 5; ++i) {
      for (int d = 0; d < 8; ++d) sum += out(0, h, i, d);
    }
  }
  return sum;
}
