// SPDX-License-Identifier: MIT
// Compiled twice, as UNIT = first and second, with different instruction sets. Both call the same functions.

#include <heed/heed.hpp>

namespace {

void fill(float* begin, heed::Index count, int factor) {
  for (heed::Index i = 0; i < count; ++i) begin[i] = static_cast<float>((i * factor) % 11) * 0.1f - 0.3f;
}

float sum(const float* begin, heed::Index count) {
  float total = 0;
  for (heed::Index i = 0; i < count; ++i) total += begin[i];
  return total;
}

}  // namespace

float UNIT() {
  heed::Tensor<float, 4> q(1, 2, 5, 24), k(1, 2, 37, 24), v(1, 2, 37, 8);
  fill(q.data(), q.size(), 5);
  fill(k.data(), k.size(), 7);
  fill(v.data(), v.size(), 3);
  const auto mask = heed::Causal::bottom_right() & heed::Window::bottom_right(4, 0);
  const heed::Tensor<float, 4> out = heed::attention(q, k, v, mask);

  heed::Tensor<float, 3> x(2, 9, 24);
  fill(x.data(), x.size(), 7);
  heed::MultiHeadAttention<float> layer({.embed_dim = 24, .num_heads = 2});
  heed::Random random(1);
  layer.initialize(random);
  layer.pack();
  const heed::Tensor<float, 3> y = layer(x);

  return sum(out.data(), out.size()) + sum(y.data(), y.size());
}
