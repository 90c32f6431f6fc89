// SPDX-License-Identifier: MIT
// The training of attention among threads: the same bits for any number of them, with checkpointing and without.
#include <cstddef>

#include <gtest/gtest.h>

#include <heed/compiled/layers.hpp>
#include <heed/nn/multi_head_attention.hpp>
#include <heed/nn/self_attention.hpp>
#include <heed/nn/transformer.hpp>

#include "nn/backward_checks.hpp"
#include "nn/masked.hpp"

namespace {

using heed::Activation;
using heed::Encoder;
using heed::NormPlacement;
using namespace backward_checks;

TEST(AttentionBackward, ThreadsChangeNothing) {
  auto self = masked<float>(heed::SelfAttention<float>({.embed_dim = 40}), heed::Causal{});
  expect_same_backward_for_any_threads<float>(self, {2, 150, 40});
  auto heads = masked<float>(heed::MultiHeadAttention<float>({.embed_dim = 32, .num_heads = 4}), heed::Causal{});
  expect_same_backward_for_any_threads<float>(heads, {2, 150, 32});
}

/// The gradients of an encoder under a causal mask, and what its cache holds.
template <class T>
struct Checkpointed {
  Gradients<T> gradients;
  std::size_t bytes;
};
template <class T>
Checkpointed<T> run(Encoder<T>& encoder, const Extents<3>& extents, bool checkpointing, int threads) {
  heed::ThreadPool pool(threads);
  Context context(pool);
  context.training = true;
  const auto x = random_tensor<T, 3>(extents), dy = random_tensor<T, 3>(extents, 2);
  Checkpointed<T> result{{Tensor<T, 3>(extents), Tensor<T, 3>(extents), {}}, 0};
  typename Encoder<T>::Cache cache;
  cache.checkpointing = checkpointing;
  const auto step = [&] {
    context.restart_streams();
    ParameterList<T>(encoder).zero_grad();
    encoder.forward(x, heed::Causal{}, result.gradients.y, cache, context);
    encoder.backward(dy, result.gradients.dx, cache, context);
  };
  step();
  result.gradients.parameters = parameter_gradients<T>(encoder);
  result.bytes = cache.bytes();
  return result;
}

TEST(EncoderBackward, CheckpointingAndThreadsChangeNoBit) {
  for (const bool final_norm : {false, true}) {
    const double dropout = final_norm ? 0.2 : 0;
    Encoder<float> encoder({.num_layers = 3,
                            .layer = {.embed_dim = 32,
                                      .num_heads = 4,
                                      .norm_placement = NormPlacement::Pre,
                                      .activation = Activation::GELU,
                                      .dropout = dropout},
                            .final_norm = final_norm});
    fill_parameters<float>(encoder, 2);
    const Extents<3> extents{2, 70, 32};
    const auto plain = run(encoder, extents, false, 1);
    const Tensor<float, 3> inference = encoder(random_tensor<float, 3>(extents), heed::Causal{});
    EXPECT_EQ(static_cast<bool>(bits_equal(inference.view(), plain.gradients.y.view())), dropout == 0);
    for (const int threads : {1, 2, 3, 7}) {
      for (const bool checkpointing : {false, true}) {
        const auto other = run(encoder, extents, checkpointing, threads);
        EXPECT_TRUE(bits_equal(plain.gradients.y.view(), other.gradients.y.view()));
        EXPECT_TRUE(bits_equal(plain.gradients.dx.view(), other.gradients.dx.view()));
        expect_same_parameter_gradients(plain.gradients.parameters, other.gradients.parameters);
        if (checkpointing) {
          EXPECT_LT(other.bytes, plain.bytes / 2);
        }
      }
    }
  }
}

}  // namespace
