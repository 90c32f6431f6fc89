// SPDX-License-Identifier: MIT
// Blocks and stacks whose y is their x, and dx their dy, against separate memory.
#include <utility>

#include <gtest/gtest.h>

#include <heed/heed.hpp>

#include "nn/backward_checks.hpp"

namespace in_place {

using namespace backward_checks;
using heed::Causal;
using heed::NormPlacement;

constexpr Index kB = 2, kL = 5, kE = 8, kH = 2;

/// f(block) for each placement of the norms and each size of a stack.
template <class Options, template <class> class Block, template <class> class Stack, class StackOptions, class F>
void for_each_block(F&& f) {
  for (const NormPlacement placement : {NormPlacement::Pre, NormPlacement::Post}) {
    const Options options{.embed_dim = kE, .num_heads = kH, .ffn_dim = 6, .norm_placement = placement, .dropout = 0.3};
    const auto run = [&](auto block) {
      fill_parameters<double>(block, 3);
      f(block);
    };
    run(Block<double>(options));
    for (const Index layers : {0, 1, 2, 3}) {
      for (const bool norm : {false, true}) {
        run(Stack<double>(StackOptions{.num_layers = layers, .layer = options, .final_norm = norm}));
      }
    }
  }
}

TEST(InPlace, EncoderBlocksAndStacks) {
  const auto x = random_tensor<double, 3>({kB, kL, kE}, 7), dy = random_tensor<double, 3>({kB, kL, kE}, 8);
  for_each_block<heed::EncoderLayerOptions, heed::EncoderLayer, heed::Encoder, heed::EncoderOptions>([&](auto& block) {
    for (const bool training : {false, true}) {
      Context context, again;
      context.training = again.training = training;
      Tensor<double, 3> y(x.extents()), same = x;
      block.forward(x, Causal{}, y, context);
      block.forward(same, Causal{}, same, again);
      EXPECT_TRUE(bits_equal(same, y));
    }
    Context context;
    typename std::remove_reference_t<decltype(block)>::Cache cache;
    Tensor<double, 3> y(x.extents()), dx(x.extents()), same = x, dsame = dy;
    EXPECT_THROW(block.forward(same, Causal{}, same, cache, context), heed::ValueError);
    block.forward(x, Causal{}, y, cache, context);
    block.backward(dy, dx, cache, context);
    block.backward(dsame, dsame, cache, context);
    EXPECT_TRUE(bits_equal(dsame, dx));
    Tensor<double, 3> memory(1, 2 * kL, kE);
    EXPECT_THROW(block.forward(memory.view().slice(1, 0, kL), Causal{}, memory.view().slice(1, 1, kL), context),
                 heed::ValueError);
  });
}

TEST(InPlace, DecoderBlocksAndStacks) {
  const auto x = random_tensor<double, 3>({kB, kL, kE}, 7), memory = random_tensor<double, 3>({kB, 3, kE}, 8);
  for_each_block<heed::DecoderLayerOptions, heed::DecoderLayer, heed::Decoder, heed::DecoderOptions>([&](auto& block) {
    Context context;
    Tensor<double, 3> y(x.extents()), same = x;
    block.forward(x, memory, Causal{}, y, context);
    block.forward(same, memory, Causal{}, same, context);
    EXPECT_TRUE(bits_equal(same, y));
    typename std::remove_reference_t<decltype(block)>::Cache cache;
    EXPECT_THROW(block.forward(same, memory, Causal{}, same, cache, context), heed::ValueError);
  });
}

TEST(InPlace, AColumnMajorMatrixOfFeaturesByTime) {
  heed::EncoderLayer<double> block({.embed_dim = kE, .num_heads = kH, .ffn_dim = 6});
  fill_parameters<double>(block, 3);
  Eigen::MatrixXd x = Eigen::MatrixXd::Random(kE, kL);
  const Eigen::MatrixXd y = block(x.transpose());
  Context context;
  block.forward(x.transpose(), {}, x.transpose(), context);
  EXPECT_TRUE(x.isApprox(y.transpose(), 1e-13));
}

}  // namespace in_place
