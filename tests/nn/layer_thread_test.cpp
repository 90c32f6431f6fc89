// SPDX-License-Identifier: MIT
// Small layers among threads: rows split over a pool, and one layer used by several threads at once.
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <heed/nn/activation.hpp>
#include <heed/nn/embedding.hpp>
#include <heed/nn/norm.hpp>
#include <heed/nn/positional.hpp>
#include <heed/nn/rotary.hpp>

#include "nn/layer_checks.hpp"

namespace {

using namespace layer_checks;

TEST(SmallLayers, SplitTheirRowsOverAPool) {
  heed::LayerNorm<float> layer_norm({.embed_dim = 96});
  fill_parameters<float>(layer_norm, 1);
  heed::LearnedPositions<float> learned({.length = 300, .embed_dim = 96});
  fill_parameters<float>(learned, 1);
  expect_same_for_any_threads<float>(layer_norm, {2, 300, 96});
  expect_same_for_any_threads<float>(heed::RMSNorm<float>({.embed_dim = 96}), {2, 300, 96});
  expect_same_for_any_threads<float>(heed::GELU(), {2, 300, 96});
  expect_same_for_any_threads<float>(heed::SinusoidalPositions<float>({.embed_dim = 96, .length = 200}), {2, 300, 96});
  expect_same_for_any_threads<float>(learned, {2, 300, 96});
}

TEST(SmallLayers, OneLayerServesManyThreads) {
  heed::Embedding<float> embedding({.vocab_size = 20, .embed_dim = 32});
  fill_parameters<float>(embedding, 1);
  const heed::SinusoidalPositions<float> sinusoidal({.embed_dim = 32, .length = 4});
  const heed::LayerNorm<float> norm({.embed_dim = 32});
  const heed::RotaryEmbedding<float> rotary({.head_dim = 32, .length = 4});
  const std::vector<int> ids{3, 1, 4, 1, 5, 9, 2, 6};
  const auto run = [&](heed::Context& context) {
    const auto x = norm(sinusoidal(embedding(ids, context), context), context);
    return rotary(heed::gelu(x, context), heed::Positions(2), context);
  };
  heed::Context serial;
  const Eigen::MatrixXf expected = run(serial);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 1);
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    threads.emplace_back([&, i] {
      heed::Context context;
      wrong[i] = 0;
      for (int repeat = 0; repeat < 20; ++repeat) wrong[i] += run(context) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
