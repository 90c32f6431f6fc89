// SPDX-License-Identifier: MIT
// Case C43, what an audio thread does: memory is reserved once, then a block is processed and single tokens are
// decoded, while Eigen's own switch (EIGEN_RUNTIME_NO_MALLOC) ends the program at any allocation that Eigen makes.

#define EIGEN_RUNTIME_NO_MALLOC
#undef NDEBUG

#include <algorithm>
#include <cstddef>
#include <cstdio>

#include <heed/heed.hpp>

int main() {
  constexpr int H = 4, G = 2, L = 100, D = 32;
  const heed::Tensor<float, 4> q(1, H, 1, D), k(1, G, L, D), v(1, G, L, D), block(1, H, L, D);
  heed::Tensor<float, 4> out(1, H, 1, D), block_out(1, H, L, D);

  heed::Context context;
  context.workspace().reserve(std::max(heed::attention_workspace<float>({1, H, G, 1, L, D, D}),
                                       heed::attention_workspace<float>({1, H, G, L, L, D, D})));
  const std::size_t reserved = context.workspace().capacity();

  heed::EncoderLayer<float> layer({.embed_dim = 64, .num_heads = 4, .norm_placement = heed::NormPlacement::Pre});
  heed::Random random(1);
  layer.initialize(random);
  layer.pack();
  const heed::Tensor<float, 3> x(1, 16, 64);
  heed::Tensor<float, 3> y(1, 16, 64);
  heed::Context layer_context;
  layer.forward(x, heed::Causal{}, y, layer_context);  // the first call finds out what a layer needs

  Eigen::internal::set_is_malloc_allowed(false);
  for (int step = 0; step < 100; ++step) {
    heed::attention_into(out, q, k, v, context);
    heed::attention_into(block_out, block, k, v, heed::Causal{}, context);
    layer.forward(x, heed::Causal{}, y, layer_context);
  }
  Eigen::internal::set_is_malloc_allowed(true);

  if (context.workspace().capacity() == reserved) return 0;
  std::printf("the workspace grew from %zu to %zu bytes\n", reserved, context.workspace().capacity());
  return 1;
}
