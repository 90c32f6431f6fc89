// SPDX-License-Identifier: MIT
#include <string>

#include <gtest/gtest.h>

#include <heed/compiled/layers.hpp>
#include <heed/nn/feed_forward.hpp>
#include <heed/nn/linear.hpp>

#include "nn/backward_checks.hpp"

namespace {

using heed::Activation;
using heed::FeedForward;
using heed::Linear;
using namespace backward_checks;

TEST(LinearBackward, KeepsThePromisesOfABackward) {
  for (const Index out : {1, 9, 40}) {
    for (const bool bias : {true, false}) {
      SCOPED_TRACE(testing::Message() << out << " bias " << bias);
      Linear<double> layer({.in_features = 7, .out_features = out, .bias = bias});
      fill_parameters<double>(layer, 3);
      expect_backward(layer, {2, 3, 7});
      expect_same_backward_for_any_strides<double>(layer, {3, 5, 7});
    }
  }
}

TEST(LinearBackward, GradientsFromPyTorch) {
  expect_golden_gradients<double>("linear", Linear<double>({.in_features = 24, .out_features = 13}));
  expect_golden_gradients<double>("linear_no_bias",
                                  Linear<double>({.in_features = 24, .out_features = 17, .bias = false}));
  expect_golden_gradients<float>("linear", Linear<float>({.in_features = 24, .out_features = 13}));
}

TEST(LinearBackward, AddsTheResidual) {
  Linear<double> layer({.in_features = 19, .out_features = 6});
  fill_parameters<double>(layer, 6);
  const Extents<3> extents{2, 4, 19};
  const auto x = random_tensor<double, 3>(extents), dy = random_tensor<double, 3>({2, 4, 6}, 2);
  const auto residual = random_tensor<double, 3>(extents, 3);
  Context context;
  const Gradients<double> plain = gradients<double>(layer, x, dy, context);
  Tensor<double, 3> expected = plain.dx, dx(extents), onto = residual;
  for (Index i = 0; i < expected.size(); ++i) expected.data()[i] += residual.data()[i];
  layer.run_backward(dy, x, residual, dx, context);
  EXPECT_TRUE(bits_equal(expected.view(), dx.view()));
  layer.run_backward(dy, x, onto.view(), onto, context);
  EXPECT_TRUE(bits_equal(expected.view(), onto.view()));
}

TEST(LinearBackward, KeepsThePackedCopyUntilTheWeightChanges) {
  Linear<double> layer({.in_features = 5, .out_features = 4});
  fill_parameters<double>(layer, 6);
  layer.pack();
  const auto x = random_tensor<double, 3>({1, 3, 5}), dy = random_tensor<double, 3>({1, 3, 4}, 2);
  Context context;
  const Gradients<double> packed = gradients<double>(layer, x, dy, context);
  EXPECT_TRUE(layer.is_packed());
  layer.weight.mutable_value();
  const Gradients<double> raw = gradients<double>(layer, x, dy, context);
  EXPECT_TRUE(bits_equal(packed.dx.view(), raw.dx.view()));
  expect_same_parameter_gradients(packed.parameters, raw.parameters);

  layer.pack({.release = true});
  EXPECT_THROW(gradients<double>(layer, x, dy, context), heed::ValueError);
}

TEST(LinearBackward, MistakesAreNamed) {
  Linear<double> layer(3, 3);
  fill_parameters<double>(layer, 1);
  Tensor<double, 3> x(1, 2, 3), y(1, 2, 3);
  Context context;
  Linear<double>::Cache cache;
  layer.forward(x.view(), y.view(), cache, context);
  EXPECT_THROW(layer.backward(y.view(), y.view(), cache, context), heed::ValueError) << "dx is dy";
  EXPECT_THROW(layer.backward(y.view(), x.view(), cache, context), heed::ValueError) << "dx is x";
  const std::string text =
      message_of<heed::ShapeError>([&] { layer.backward(y.view(), Tensor<double, 3>(1, 2, 4), cache, context); });
  EXPECT_NE(text.find("heed::Linear"), std::string::npos) << text;
  EXPECT_NE(text.find("dx (1, 2, 4)"), std::string::npos) << text;
}

TEST(FeedForwardBackward, KeepsThePromisesOfABackward) {
  for (const Activation activation :
       {Activation::None, Activation::ReLU, Activation::GELU, Activation::GELUTanh, Activation::SiLU}) {
    for (const bool gated : {false, true}) {
      SCOPED_TRACE(testing::Message() << "activation " << static_cast<int>(activation) << " gated " << gated);
      FeedForward<double> layer({.embed_dim = 5, .ffn_dim = 11, .activation = activation, .gated = gated});
      fill_parameters<double>(layer, 3);
      expect_backward(layer, {2, 3, 5}, 2);
    }
  }
  FeedForward<double> layer({.embed_dim = 7, .ffn_dim = 9, .gated = true, .bias = false});
  fill_parameters<double>(layer, 3);
  expect_exact_gradients(layer, {2, 3, 7});
  expect_same_backward_for_any_strides<double>(layer, {2, 3, 7});
}

TEST(FeedForwardBackward, AddsTheResidual) {
  for (const bool gated : {false, true}) {
    FeedForward<double> layer({.embed_dim = 6, .ffn_dim = 10, .activation = Activation::SiLU, .gated = gated});
    fill_parameters<double>(layer, 6);
    const Extents<3> extents{2, 4, 6};
    const auto x = random_tensor<double, 3>(extents), dy = random_tensor<double, 3>(extents, 2);
    const auto residual = random_tensor<double, 3>(extents, 3);
    Context context;
    const Gradients<double> plain = gradients<double>(layer, x, dy, context);
    FeedForward<double>::Cache cache;
    Tensor<double, 3> y(extents), dx(extents), onto = residual;
    layer.run(x, residual, y, &cache, context);
    Tensor<double, 3> with_residual(extents);
    layer.run(x, residual, with_residual, nullptr, context);
    EXPECT_TRUE(bits_equal(with_residual.view(), y.view()));
    layer.run_backward(dy, residual, dx, cache, context);
    for (Index i = 0; i < dx.size(); ++i) EXPECT_NEAR(dx.data()[i], plain.dx.data()[i] + residual.data()[i], 1e-13);
    layer.run_backward(dy, onto.view(), onto, cache, context);
    EXPECT_TRUE(bits_equal(dx.view(), onto.view()));
  }
}

}  // namespace
