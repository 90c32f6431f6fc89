// SPDX-License-Identifier: MIT
#include <vector>

#include <gtest/gtest.h>

#include <heed/compiled/layers.hpp>
#include <heed/nn/kv_cache.hpp>
#include <heed/nn/transformer.hpp>

#include "nn/layer_checks.hpp"

namespace {

using heed::Index;
using heed::Tensor;
using namespace layer_checks;

/// The output of two blocks for a prompt and single steps, with samples of different lengths.
template <class S>
Tensor<float, 3> generate(const heed::Encoder<float>& encoder, heed::Context& context) {
  const auto x = random_tensor<float, 3>({2, 700, 64});
  Tensor<float, 3> y(x.extents());
  heed::KvCache<float, S> kv(encoder, {.batch = 2, .capacity = 700});
  const std::vector<int> prompts{690, 601};
  encoder.forward(x.view().slice(1, 0, 690), heed::Causal{}, y.view().slice(1, 0, 690), kv.step(prompts), context);
  for (Index l = 690; l < 700; ++l) {
    encoder.forward(x.view().slice(1, l, 1), heed::Causal{}, y.view().slice(1, l, 1), kv, context);
  }
  return y;
}

TEST(KvCaches, ThreadsGiveTheSameBits) {
  heed::Encoder<float> encoder({.num_layers = 2,
                                .layer = {.embed_dim = 64,
                                          .num_heads = 4,
                                          .norm_placement = heed::NormPlacement::Pre,
                                          .num_kv_heads = 2,
                                          .rotary = {}}});
  fill_parameters<float>(encoder, 1);
  heed::Context serial;
  const Tensor<float, 3> expected = generate<float>(encoder, serial), narrow = generate<heed::half>(encoder, serial);
  for (const int threads : {2, 3, 7}) {
    heed::ThreadPool pool(threads);
    heed::Context context(pool);
    EXPECT_TRUE(bits_equal(generate<float>(encoder, context), expected)) << threads;
    EXPECT_TRUE(bits_equal(generate<heed::half>(encoder, context), narrow)) << threads;
  }
}

}  // namespace
