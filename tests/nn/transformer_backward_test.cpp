// SPDX-License-Identifier: MIT
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <heed/compiled/layers.hpp>
#include <heed/nn/dropout.hpp>
#include <heed/nn/transformer.hpp>

#include "nn/backward_checks.hpp"

namespace {

using heed::Activation;
using heed::Decoder;
using heed::DecoderLayer;
using heed::Encoder;
using heed::EncoderLayer;
using heed::NormPlacement;
using namespace backward_checks;
using heed_test::Golden;

constexpr double kTolerance = 1e-12;

template <class Layer>
void expect_golden_parameters(const Golden& golden, Layer& layer) {
  layer.visit("", [&](std::string_view name, heed::Parameter<double>& parameter) {
    const std::string stored = "grad.param." + std::string(name);
    EXPECT_TRUE(parameter.rank() == 1 ? golden.agrees(stored, parameter.grad(), kTolerance)
                                      : golden.agrees(stored, parameter.grad_matrix(), kTolerance));
  });
}

template <class Layer, class Mask>
void expect_golden_encoder(const std::string& name, Layer layer, const Mask& mask) {
  SCOPED_TRACE(name);
  const Golden golden(name);
  golden.load_into(layer);
  const auto x = golden.tensor<double, 3>("in.x"), dy = golden.tensor<double, 3>("dout.y");
  Tensor<double, 3> y(x.extents()), dx(x.extents());
  Context context;
  typename Layer::Cache cache;
  layer.forward(x, mask, y, cache, context);
  layer.backward(dy, dx, cache, context);
  EXPECT_TRUE(golden.agrees("out.y", y.view(), kTolerance));
  EXPECT_TRUE(golden.agrees("grad.in.x", dx.view(), kTolerance));
  expect_golden_parameters(golden, layer);
}

TEST(EncoderBackward, GradientsFromPyTorch) {
  using Layer = EncoderLayer<double>;
  const std::vector<int> post{4, 6, 2}, pre{6, 1, 5}, stack{7, 3}, post_stack{3, 5};
  expect_golden_encoder("encoder_layer_post_norm_relu", Layer({.embed_dim = 16, .num_heads = 4, .ffn_dim = 24}),
                        heed::NoMask{});
  expect_golden_encoder(
      "encoder_layer_post_norm_gelu_padding",
      Layer({.embed_dim = 16, .num_heads = 2, .ffn_dim = 20, .activation = Activation::GELU, .eps = 1e-3}),
      heed::Padding(post));
  expect_golden_encoder("encoder_layer_pre_norm_relu_padding",
                        Layer({.embed_dim = 16, .num_heads = 4, .ffn_dim = 20, .norm_placement = NormPlacement::Pre}),
                        heed::Padding(pre));
  expect_golden_encoder("encoder_layer_pre_norm_gelu",
                        Layer({.embed_dim = 16,
                               .num_heads = 2,
                               .ffn_dim = 24,
                               .norm_placement = NormPlacement::Pre,
                               .activation = Activation::GELU,
                               .eps = 1e-3}),
                        heed::NoMask{});
  expect_golden_encoder("encoder_pre_norm",
                        Encoder<double>({.num_layers = 2,
                                         .layer = {.embed_dim = 16,
                                                   .num_heads = 2,
                                                   .ffn_dim = 20,
                                                   .norm_placement = NormPlacement::Pre,
                                                   .activation = Activation::GELU,
                                                   .eps = 1e-4},
                                         .final_norm = true,
                                         .norm_eps = 1e-3}),
                        heed::Padding(stack));
  expect_golden_encoder(
      "encoder_post_norm_no_final_norm",
      Encoder<double>({.num_layers = 2, .layer = {.embed_dim = 16, .num_heads = 4, .ffn_dim = 20, .eps = 1e-4}}),
      heed::Padding(post_stack));
}

template <class Layer>
void expect_golden_decoder(const std::string& name, Layer layer) {
  SCOPED_TRACE(name);
  const Golden golden(name);
  golden.load_into(layer);
  const auto x = golden.tensor<double, 3>("in.tgt"), memory = golden.tensor<double, 3>("in.memory");
  const auto dy = golden.tensor<double, 3>("dout.y");
  const std::vector<int> lengths = golden.integers("in.memory_lengths");
  Tensor<double, 3> y(x.extents()), dx(x.extents()), dmemory(memory.extents());
  Context context;
  typename Layer::Cache cache;
  layer.forward(x, memory, {heed::Causal{}, heed::Padding(lengths)}, y, cache, context);
  layer.backward(dy, dx, dmemory, cache, context);
  EXPECT_TRUE(golden.agrees("out.y", y.view(), kTolerance));
  EXPECT_TRUE(golden.agrees("grad.in.tgt", dx.view(), kTolerance));
  EXPECT_TRUE(golden.agrees("grad.in.memory", dmemory.view(), kTolerance));
  expect_golden_parameters(golden, layer);
}

TEST(DecoderBackward, GradientsFromPyTorch) {
  expect_golden_decoder("decoder_layer_post_norm_relu",
                        DecoderLayer<double>({.embed_dim = 16, .num_heads = 4, .ffn_dim = 24}));
  expect_golden_decoder("decoder_layer_pre_norm_gelu", DecoderLayer<double>({.embed_dim = 16,
                                                                             .num_heads = 2,
                                                                             .ffn_dim = 20,
                                                                             .norm_placement = NormPlacement::Pre,
                                                                             .activation = Activation::GELU,
                                                                             .eps = 1e-3}));
  expect_golden_decoder("decoder_pre_norm", Decoder<double>({.num_layers = 2,
                                                             .layer = {.embed_dim = 16,
                                                                       .num_heads = 2,
                                                                       .ffn_dim = 20,
                                                                       .norm_placement = NormPlacement::Pre,
                                                                       .activation = Activation::GELU,
                                                                       .eps = 1e-4},
                                                             .final_norm = true,
                                                             .norm_eps = 1e-3}));
}

// A memory of another width has keys and values of two products, both of whose gradients reach it.
TEST(DecoderBackward, ExactGradientsForAMemoryOfAnotherWidth) {
  for (const NormPlacement norm : {NormPlacement::Pre, NormPlacement::Post}) {
    Decoder<double> decoder({.num_layers = 2,
                             .layer = {.embed_dim = 4,
                                       .num_heads = 2,
                                       .ffn_dim = 5,
                                       .norm_placement = norm,
                                       .activation = Activation::SiLU,
                                       .gated = true,
                                       .memory_dim = 3}});
    fill_parameters<double>(decoder, 2);
    auto x = random_tensor<double, 3>({2, 3, 4}), memory = random_tensor<double, 3>({2, 4, 3}, 2);
    const auto dy = random_tensor<double, 3>({2, 3, 4}, 3);
    Tensor<double, 3> y(x.extents()), dx(x.extents()), dmemory(memory.extents());
    Context context;
    Decoder<double>::Cache cache;
    decoder.forward(x, memory, heed::Causal{}, y, cache, context);
    const Tensor<double, 3> expected = decoder(x, memory, heed::Causal{}, context);
    EXPECT_TRUE(bits_equal(expected.view(), y.view()));
    decoder.backward(dy, dx, dmemory, cache, context);
    const auto loss = [&] {
      decoder.forward(x, memory, heed::Causal{}, y, context);
      return dot(y, dy);
    };
    const auto report = heed::gradcheck(loss, ParameterList<double>(decoder),
                                        {{"x", flat(x), flat(dx)}, {"memory", flat(memory), flat(dmemory)}});
    EXPECT_TRUE(report.passed) << report.text();

    // Without the gradient of the memory, the rest is the same.
    const auto with = parameter_gradients<double>(decoder);
    ParameterList<double>(decoder).zero_grad();
    decoder.backward(dy, heed::kNotWanted, heed::kNotWanted, cache, context);
    expect_same_parameter_gradients(with, parameter_gradients<double>(decoder));
  }
}

// Dropout by hand, with a stream for each of its places: weights, what attention adds, hidden units, what they add.
TEST(EncoderDropout, ActsWherePyTorchHasIt) {
  constexpr double p = 0.4;
  for (const NormPlacement norm : {NormPlacement::Pre, NormPlacement::Post}) {
    EncoderLayer<double> layer({.embed_dim = 6, .num_heads = 2, .ffn_dim = 9, .norm_placement = norm, .dropout = p});
    fill_parameters<double>(layer, 2);
    const auto x = random_tensor<double, 3>({2, 5, 6});
    Context context;
    context.training = true;
    context.seed = 3;
    const Tensor<double, 3> y = layer(x, heed::Causal{}, context);

    context.restart_streams();
    const heed::Dropout<double> dropout({.probability = p});
    const auto add = [](const Tensor<double, 3>& a, const Tensor<double, 3>& b) {
      Tensor<double, 3> sum(a.extents());
      for (Index i = 0; i < sum.size(); ++i) sum.data()[i] = a.data()[i] + b.data()[i];
      return sum;
    };
    const auto attend = [&](const Tensor<double, 3>& in) {
      return dropout(layer.self_attn(in, heed::Causal{}, context), context);
    };
    const auto feed = [&](const Tensor<double, 3>& in) {
      Tensor<double, 3> hidden = layer.feed_forward.linear1(in);
      for (Index i = 0; i < hidden.size(); ++i) hidden.data()[i] = std::max(hidden.data()[i], 0.0);
      return dropout(layer.feed_forward.linear2(dropout(hidden, context)), context);
    };
    Tensor<double, 3> expected;
    if (norm == NormPlacement::Pre) {
      const auto sum = add(x, attend(layer.norm1(x)));
      expected = add(sum, feed(layer.norm2(sum)));
    } else {
      const auto sum = layer.norm1(add(x, attend(x)));
      expected = layer.norm2(add(sum, feed(sum)));
    }
    for (Index i = 0; i < y.size(); ++i) EXPECT_NEAR(y.data()[i], expected.data()[i], 1e-12) << i;
  }
}

TEST(EncoderDropout, IsOffOutsideTrainingAndRefusesWhatIsNoProbability) {
  EncoderLayer<double> with({.embed_dim = 6, .num_heads = 2, .dropout = 0.4}),
      without({.embed_dim = 6, .num_heads = 2});
  fill_parameters<double>(with, 2);
  fill_parameters<double>(without, 2);
  const auto x = random_tensor<double, 3>({2, 5, 6});
  EXPECT_TRUE(bits_equal(without(x), with(x)));
  EXPECT_THROW(EncoderLayer<float>({.embed_dim = 6, .num_heads = 2, .dropout = 1.5}), heed::ValueError);
  EXPECT_THROW(DecoderLayer<float>({.embed_dim = 6, .num_heads = 2, .dropout = -0.5}), heed::ValueError);
  EXPECT_THROW(heed::FeedForward<float>({.embed_dim = 6, .dropout = 2}), heed::ValueError);
}

// What a forward dropped is dropped again in its backward, in every place.
TEST(EncoderDropout, ExactGradients) {
  for (const NormPlacement norm : {NormPlacement::Pre, NormPlacement::Post}) {
    Encoder<double> encoder({.num_layers = 2,
                             .layer = {.embed_dim = 4,
                                       .num_heads = 2,
                                       .ffn_dim = 5,
                                       .norm_placement = norm,
                                       .activation = Activation::SiLU,
                                       .gated = true,
                                       .dropout = 0.3}});
    fill_parameters<double>(encoder, 2);
    auto x = random_tensor<double, 3>({2, 3, 4});
    const auto dy = random_tensor<double, 3>({2, 3, 4}, 3);
    Tensor<double, 3> y(x.extents()), dx(x.extents());
    Context context;
    context.training = true;
    Encoder<double>::Cache cache;
    encoder.forward(x, heed::Causal{}, y, cache, context);
    encoder.backward(dy, dx, cache, context);
    const auto loss = [&] {
      context.restart_streams();
      encoder.forward(x, heed::Causal{}, y, context);
      return dot(y, dy);
    };
    const auto report = heed::gradcheck(loss, ParameterList<double>(encoder), {{"x", flat(x), flat(dx)}});
    EXPECT_TRUE(report.passed) << report.text();
  }
}

TEST(DecoderDropout, ExactGradients) {
  for (const NormPlacement norm : {NormPlacement::Pre, NormPlacement::Post}) {
    DecoderLayer<double> layer({.embed_dim = 4,
                                .num_heads = 2,
                                .ffn_dim = 5,
                                .norm_placement = norm,
                                .activation = Activation::GELU,
                                .dropout = 0.3});
    fill_parameters<double>(layer, 2);
    auto x = random_tensor<double, 3>({2, 3, 4}), memory = random_tensor<double, 3>({2, 4, 4}, 2);
    const auto dy = random_tensor<double, 3>({2, 3, 4}, 3);
    Tensor<double, 3> y(x.extents()), dx(x.extents()), dmemory(memory.extents());
    Context context;
    context.training = true;
    DecoderLayer<double>::Cache cache;
    layer.forward(x, memory, heed::Causal{}, y, cache, context);
    layer.backward(dy, dx, dmemory, cache, context);
    const auto loss = [&] {
      context.restart_streams();
      layer.forward(x, memory, heed::Causal{}, y, context);
      return dot(y, dy);
    };
    const auto report = heed::gradcheck(loss, ParameterList<double>(layer),
                                        {{"x", flat(x), flat(dx)}, {"memory", flat(memory), flat(dmemory)}});
    EXPECT_TRUE(report.passed) << report.text();
  }
}

TEST(EncoderBackward, AWarmStepAllocatesNothing) {
  for (const bool checkpointing : {false, true}) {
    Encoder<float> encoder({.num_layers = 2, .layer = {.embed_dim = 16, .num_heads = 2, .dropout = 0.1}});
    fill_parameters<float>(encoder, 2);
    const auto x = random_tensor<float, 3>({2, 9, 16}), dy = random_tensor<float, 3>({2, 9, 16}, 2);
    Tensor<float, 3> y(x.extents()), dx(x.extents());
    Context context;
    context.training = true;
    Encoder<float>::Cache cache;
    cache.checkpointing = checkpointing;
    const auto step = [&] {
      encoder.forward(x, heed::Causal{}, y, cache, context);
      encoder.backward(dy, dx, cache, context);
    };
    step();
    step();
    EXPECT_EQ(heed_test::allocations_of(step), 0);
  }
}

TEST(EncoderBackward, EmptyStacks) {
  const auto x = random_tensor<double, 3>({2, 3, 4}), dy = random_tensor<double, 3>({2, 3, 4}, 2);
  Tensor<double, 3> y(x.extents()), dx(x.extents()), dmemory(2, 5, 4);
  Context context;
  Encoder<double> encoder({.num_layers = 0, .layer = {.embed_dim = 4, .num_heads = 1}});
  Encoder<double>::Cache cache;
  encoder.forward(x, heed::NoMask{}, y, cache, context);
  encoder.backward(dy, dx, cache, context);
  EXPECT_TRUE(bits_equal(dy.view(), dx.view()));
  Decoder<double> decoder({.num_layers = 0, .layer = {.embed_dim = 4, .num_heads = 1}, .final_norm = true});
  Decoder<double>::Cache decoder_cache;
  const auto memory = random_tensor<double, 3>({2, 5, 4});
  copy(memory.view(), dmemory.view());
  decoder.forward(x, memory, heed::NoMask{}, y, decoder_cache, context);
  decoder.backward(dy, dx, dmemory, decoder_cache, context);
  EXPECT_EQ(dmemory(1, 4, 3), 0);
}

}  // namespace
