// SPDX-License-Identifier: MIT
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <heed/attention/attention.hpp>
#include <heed/compiled/layers.hpp>
#include <heed/compiled/recurrent.hpp>
#include <heed/mask/basic.hpp>
#include <heed/mask/modifier.hpp>
#include <heed/nn/attention_layer.hpp>
#include <heed/nn/dropout.hpp>
#include <heed/nn/embedding.hpp>
#include <heed/nn/feed_forward.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/norm.hpp>
#include <heed/nn/positional.hpp>
#include <heed/nn/recurrent.hpp>
#include <heed/nn/self_attention.hpp>
#include <heed/nn/transformer.hpp>

#include "nn/masked.hpp"

namespace {

using heed::Causal;
using heed::Linear;
using heed::Random;
using namespace backward_checks;

using Matrix = Eigen::MatrixXd;

// ---- arguments
// -------------------------------------------------------------------------------------------------------

/// forward and backward on Eigen matrices and on tensors of rank 2 give the bits of rank 3.
template <class Layer>
void expect_any_argument(Layer layer, Index width) {
  initialize(layer, 1);
  const auto x = random_tensor<double, 3>({1, 5, width});
  const Index out = layer.output_width(width);
  const auto dy = random_tensor<double, 3>({1, 5, out}, 2);
  Context context;
  const Gradients<double> expected = gradients<double>(layer, x, dy, context);

  const Matrix x_matrix = x.matrix(0), dy_matrix = dy.matrix(0);
  Matrix y_matrix(5, out), dx_matrix(5, width);
  typename Layer::Cache cache;
  layer.forward(x_matrix, y_matrix, context);
  EXPECT_TRUE(bits_equal(expected.y.view()[0], heed::view_of(y_matrix)));
  layer.forward(x_matrix, y_matrix, cache, context);
  EXPECT_TRUE(bits_equal(expected.y.view()[0], heed::view_of(y_matrix)));
  layer.backward(dy_matrix, dx_matrix, cache, context);
  EXPECT_TRUE(bits_equal(expected.dx.view()[0], heed::view_of(dx_matrix)));

  Tensor<double, 2> x_rows(5, width), y_rows(5, out), dx_rows(5, width);
  copy(x.view()[0], x_rows.view());
  layer.forward(x_rows, y_rows, cache, context);
  EXPECT_TRUE(bits_equal(expected.y.view()[0], y_rows.view()));
  layer.backward(dy.view()[0], dx_rows, cache, context);
  EXPECT_TRUE(bits_equal(expected.dx.view()[0], dx_rows.view()));
  layer.backward(dy_matrix, heed::kNotWanted, cache, context);
}

TEST(Layers, TakeEigenAndRankTwoWhereverTheyTakeRankThree) {
  expect_any_argument(Linear<double>(6, 3), 6);
  expect_any_argument(heed::LayerNorm<double>({.embed_dim = 6}), 6);
  expect_any_argument(heed::RMSNorm<double>({.embed_dim = 6}), 6);
  expect_any_argument(heed::FeedForward<double>({.embed_dim = 6, .gated = true}), 6);
  expect_any_argument(heed::Dropout<double>({}), 6);
  expect_any_argument(heed::LearnedPositions<double>({.length = 7, .embed_dim = 6}), 6);
  expect_any_argument(heed::LSTM<double>({.input_size = 6, .hidden_size = 4}), 6);
  expect_any_argument(heed::SelfAttention<double>({.embed_dim = 6}), 6);
  expect_any_argument(heed::MultiHeadAttention<double>({.embed_dim = 6, .num_heads = 2}), 6);
  expect_any_argument(heed::EncoderLayer<double>({.embed_dim = 6, .num_heads = 2}), 6);
  expect_any_argument(heed::Encoder<double>({.num_layers = 2, .layer = {.embed_dim = 6, .num_heads = 2}}), 6);
}

TEST(Layers, SayThatAColumnVectorIsToBeTransposed) {
  Linear<double> layer(8, 3);
  initialize(layer, 1);
  const Eigen::VectorXd x = Eigen::VectorXd::Ones(8);
  EXPECT_EQ(message_of<heed::ShapeError>([&] { layer(x); }),
            "heed::Linear: x (1, 8, 1) has width 1 but the layer takes 8; it is a column vector: transpose it");
  EXPECT_EQ(layer(x.transpose()).cols(), 3);
}

// ---- options
// ---------------------------------------------------------------------------------------------------------

TEST(Options, NameTheWidthThatWasForgotten) {
  const auto text = [](auto make) { return message_of<heed::ShapeError>(make); };
  heed::LinearOptions linear;
  linear.in_features = 4;
  EXPECT_EQ(text([&] { Linear<float> layer(linear); }),
            "heed::Linear: in_features = 4 and out_features = 0 must be at least 1");
  heed::EncoderLayerOptions block;
  block.num_heads = 4;
  EXPECT_NE(text([&] { heed::EncoderLayer<float> layer(block); }).find("embed_dim = 0"), std::string::npos);
  EXPECT_NE(text([] { heed::FeedForward<float> layer({}); }).find("embed_dim = 0"), std::string::npos);
  EXPECT_NE(text([] { heed::LayerNorm<float> layer({}); }).find("embed_dim = 0"), std::string::npos);
  EXPECT_NE(text([] { heed::RMSNorm<float> layer({}); }).find("embed_dim = 0"), std::string::npos);
  EXPECT_NE(text([] { heed::Embedding<float> layer({}); }).find("vocab_size = 0"), std::string::npos);
  EXPECT_NE(text([] { heed::LearnedPositions<float> layer({}); }).find("length = 0"), std::string::npos);
  EXPECT_NE(text([] { heed::SinusoidalPositions<float> layer({}); }).find("embed_dim = 0"), std::string::npos);
  EXPECT_NE(text([] { heed::RotaryEmbedding<float> layer({}); }).find("head_dim = 0"), std::string::npos);
  EXPECT_NE(text([] { heed::SelfAttention<float> layer({}); }).find("embed_dim = 0"), std::string::npos);
  EXPECT_NE(text([] { heed::GRU<float> layer({}); }).find("input_size = 0"), std::string::npos);
}

TEST(Options, EmptyRotaryOptionsTurnRotaryOn) {
  heed::MultiHeadAttention<double> with({.embed_dim = 8, .num_heads = 2, .rotary = {}});
  heed::MultiHeadAttention<double> named({.embed_dim = 8, .num_heads = 2, .rotary = heed::RotaryEmbeddingOptions{}});
  heed::MultiHeadAttention<double> without({.embed_dim = 8, .num_heads = 2});
  heed::MultiHeadAttention<double> off({.embed_dim = 8, .num_heads = 2, .rotary = heed::kNoRotary});
  for (auto* layer : {&with, &named, &without, &off}) initialize(*layer, 1);
  const auto x = random_tensor<double, 3>({1, 5, 8});
  EXPECT_FALSE(bits_equal(without(x), with(x)));
  EXPECT_TRUE(bits_equal(named(x), with(x)));
  EXPECT_TRUE(bits_equal(off(x), without(x)));
}

// ---- starting values
// -------------------------------------------------------------------------------------------------

TEST(StartingValues, TwoLayersOfOneRandomDiffer) {
  Random random(1), same(1);
  Linear<float> first(4, 5), second(4, 5), again(4, 5);
  first.initialize(random);
  second.initialize(random);
  again.initialize(same);
  EXPECT_FALSE(bits_equal(first.weight.value(), second.weight.value()));
  EXPECT_FALSE(bits_equal(first.bias.value(), second.bias.value()));
  EXPECT_TRUE(bits_equal(first.weight.value(), again.weight.value()));

  heed::Embedding<float> embedding({.vocab_size = 4, .embed_dim = 5});
  heed::LearnedPositions<float> positions({.length = 4, .embed_dim = 5});
  embedding.initialize(random);
  positions.initialize(random);
  const float ratio = embedding.weight.value()(0) / positions.weight.value()(0);
  EXPECT_GT(std::abs(embedding.weight.value()(1) / positions.weight.value()(1) - ratio), 1e-3f * std::abs(ratio));
}

// The first draw of a name is a function of the seed and the name alone.
TEST(StartingValues, AreThoseOfTheName) {
  Linear<float> layer(4, 5), expected(4, 5);
  Random random(7);
  random("other.weight");
  layer.initialize(random, "head");
  heed::init::kaiming_uniform(expected.weight, heed::Philox(7, heed::init::stream("head.weight")),
                              {.gain = 1 / std::sqrt(3.0)});
  EXPECT_LE(max_error(expected.weight.value(), layer.weight.value()), 1e-7);
}

TEST(StartingValues, AWeightThatWasNeverSetIsNotRead) {
  const auto text = [](const auto& call) { return message_of<heed::ValueError>(call); };
  const Tensor<float, 3> x(1, 2, 8);
  EXPECT_EQ(text([&] { Linear<float>(8, 4)(x); }),
            "heed::Parameter: a weight of shape (4, 8) is read before it was set; call initialize(random), "
            "load_parameters(), or write mutable_value()");
  EXPECT_NE(text([&] { heed::EncoderLayer<float>({.embed_dim = 8, .num_heads = 2})(x); }).find("before it was set"),
            std::string::npos);
  EXPECT_NE(text([&] { heed::GRU<float>({.input_size = 8, .hidden_size = 2})(x); }).find("before it was set"),
            std::string::npos);
  EXPECT_NE(text([&] {
              heed::Embedding<float>({.vocab_size = 3, .embed_dim = 2})(std::vector{1});
            }).find("before it was set"),
            std::string::npos);
  EXPECT_NE(text([&] { Linear<float>(8, 4).pack(); }).find("before it was set"), std::string::npos);
  EXPECT_EQ((heed::LayerNorm<float>({.embed_dim = 8})(x).size()), 16);
  heed::Parameter<float> vector(3);
  EXPECT_EQ(vector.value()(2), 0);
}

// ---- norms of blocks
// -------------------------------------------------------------------------------------------------

TEST(Blocks, TakeEitherNorm) {
  for (const heed::NormPlacement placement : {heed::NormPlacement::Pre, heed::NormPlacement::Post}) {
    auto block = masked<double>(heed::EncoderLayer<double>({.embed_dim = 6,
                                                            .num_heads = 2,
                                                            .ffn_dim = 5,
                                                            .norm_placement = placement,
                                                            .activation = heed::Activation::SiLU,
                                                            .norm = heed::NormKind::RMS}),
                                Causal{});
    expect_backward(block, {2, 4, 6});
    EXPECT_FALSE(block.layer.norm1.bias.exists());

    const heed::EncoderLayer<double>& layer = block.layer;
    heed::RMSNorm<double> norm1({.embed_dim = 6, .eps = 1e-5}), norm2 = norm1;
    norm1.weight = layer.norm1.weight;
    norm2.weight = layer.norm2.weight;
    const auto x = random_tensor<double, 3>({1, 4, 6});
    const Matrix in = x.matrix(0);
    Matrix expected;
    if (placement == heed::NormPlacement::Pre) {
      const Matrix sum = in + layer.self_attn(norm1(in), Causal{});
      expected = sum + layer.feed_forward(norm2(sum));
    } else {
      const Matrix sum = norm1(in + layer.self_attn(in, Causal{}));
      expected = norm2(sum + layer.feed_forward(sum));
    }
    EXPECT_LE(largest(expected - layer(in, Causal{})), 1e-13);
  }
}

// ---- attention values
// ------------------------------------------------------------------------------------------------

TEST(AttentionLayers, TakeModifiersInAnyOrder) {
  heed::MultiHeadAttention<double> mha({.embed_dim = 8, .num_heads = 2});
  initialize(mha, 1);
  const auto x = random_tensor<double, 3>({2, 5, 8});
  Context context;
  const auto y = mha(x, Causal{}, heed::Alibi(2), context);
  EXPECT_TRUE(bits_equal(y.view(), mha(x, context, heed::Alibi(2), Causal{})));
  EXPECT_TRUE(bits_equal(y.view(), mha(x, heed::Attention(Causal{}, heed::Alibi(2)))));
  EXPECT_TRUE(bits_equal(y.view(), mha(x, x, x, Causal{}, heed::Alibi(2))));
  EXPECT_FALSE(bits_equal(y.view(), mha(x, Causal{})));
  const auto [out, weights] = mha.with_weights(x, heed::Alibi(2), Causal{});
  EXPECT_TRUE(bits_equal(y.view(), out.view()));

  // The same by hand, from the projection.
  Linear<double> in_proj(8, 24);
  in_proj.weight = mha.in_proj_weight;
  in_proj.bias = mha.in_proj_bias;
  const Tensor<double, 3> qkv = in_proj(x);
  const auto [q, k, v] = heed::split_qkv(qkv, 2);
  const auto attended = heed::attention(q, k, v, Causal{}, heed::Alibi(2));
  Tensor<double, 3> joined(2, 5, 8);
  for (Index b = 0; b < 2; ++b) {
    for (Index h = 0; h < 2; ++h) copy(attended.view()[b][h], joined.view()[b].slice(1, 4 * h, 4));
  }
  EXPECT_TRUE(bits_equal(mha.out_proj(joined), y.view()));
}

TEST(AttentionLayers, HaveTheGradientsOfAModifier) {
  auto mha = masked<double>(heed::MultiHeadAttention<double>({.embed_dim = 6, .num_heads = 2}),
                            heed::Attention(Causal{}, heed::Alibi(2)));
  expect_backward(mha, {2, 4, 6});
  auto single = masked<double>(heed::SelfAttention<double>({.embed_dim = 5}), heed::SoftCap(2));
  expect_backward(single, {2, 4, 5});
  auto stack = masked<double>(
      heed::Encoder<double>(
          {.num_layers = 2, .layer = {.embed_dim = 6, .num_heads = 2, .activation = heed::Activation::SiLU}}),
      heed::Attention(Causal{}, heed::then(heed::SoftCap(2), heed::Alibi(2))));
  expect_backward(stack, {2, 4, 6});
}

TEST(SplitQkv, RefusesAWidthThatIsNoMultiple) {
  Tensor<float, 3> qkv(1, 2, 10);
  EXPECT_THROW(heed::split_qkv(qkv, 2), heed::ShapeError);
  Matrix fused = Matrix::Random(4, 12);
  const auto [q, k, v] = heed::split_qkv(fused, 2);
  EXPECT_EQ(v(0, 1, 3, 1), fused(3, 11));
  EXPECT_EQ(k(0, 0, 2, 1), fused(2, 5));
  EXPECT_EQ(q.extents(), (Extents<4>{1, 2, 4, 2}));
}

}  // namespace
