// SPDX-License-Identifier: MIT
#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include <heed/nn/norm.hpp>

#include "nn/backward_checks.hpp"

namespace {

using heed::LayerNorm;
using heed::RMSNorm;
using namespace backward_checks;

TEST(NormBackward, KeepsThePromisesOfABackward) {
  for (const Index width : {2, 7, 33}) {
    SCOPED_TRACE(width);
    LayerNorm<double> layer_norm({.embed_dim = width});
    RMSNorm<double> rms_norm({.embed_dim = width});
    fill_parameters<double>(layer_norm, 3);
    fill_parameters<double>(rms_norm, 3);
    expect_backward(layer_norm, {2, 3, width});
    expect_backward(rms_norm, {2, 3, width});
    expect_same_backward_for_any_strides<double>(layer_norm, {2, 3, width});
    expect_same_backward_for_any_strides<double>(rms_norm, {2, 3, width});
  }
}

TEST(NormBackward, WithoutWeightOrBias) {
  LayerNorm<double> plain({.embed_dim = 9, .affine = false}), no_bias({.embed_dim = 9, .bias = false});
  RMSNorm<double> rms({.embed_dim = 9, .affine = false});
  fill_parameters<double>(no_bias, 4);
  expect_exact_gradients(plain, {2, 3, 9});
  expect_exact_gradients(no_bias, {2, 3, 9});
  expect_exact_gradients(rms, {2, 3, 9});
}

TEST(NormBackward, GradientsFromPyTorch) {
  expect_golden_gradients<double>("layer_norm", LayerNorm<double>({.embed_dim = 24}));
  expect_golden_gradients<double>("layer_norm_eps", LayerNorm<double>({.embed_dim = 24, .eps = 1e-3}));
  expect_golden_gradients<double>("layer_norm_no_bias", LayerNorm<double>({.embed_dim = 24, .bias = false}));
  expect_golden_gradients<double>("rms_norm", RMSNorm<double>({.embed_dim = 24, .eps = 1e-5}));
  expect_golden_gradients<float>("layer_norm", LayerNorm<float>({.embed_dim = 24}));
  expect_golden_gradients<float>("rms_norm", RMSNorm<float>({.embed_dim = 24, .eps = 1e-5}));
  // Rows of mean 1000, where PyTorch's own double loses digits.
  expect_golden_gradients<double>("layer_norm_offset", LayerNorm<double>({.embed_dim = 24, .eps = 1e-12}), 1e-12);
}

TEST(NormBackward, AddsTheResidualAndMayRunInPlace) {
  LayerNorm<double> layer({.embed_dim = 19});
  fill_parameters<double>(layer, 6);
  const Extents<3> extents{2, 4, 19};
  const auto x = random_tensor<double, 3>(extents), dy = random_tensor<double, 3>(extents, 2);
  const auto residual = random_tensor<double, 3>(extents, 3);
  Context context;
  const Gradients<double> plain = gradients<double>(layer, x, dy, context);
  Tensor<double, 3> expected = plain.dx, y(extents);
  for (Index i = 0; i < expected.size(); ++i) expected.data()[i] += residual.data()[i];

  LayerNorm<double>::Cache cache;
  layer.forward(x.view(), y.view(), cache, context);
  Tensor<double, 3> in_place = dy;
  layer.backward(in_place.view(), in_place.view(), cache, context);
  EXPECT_TRUE(bits_equal(plain.dx.view(), in_place.view()));
  Tensor<double, 3> dx(extents);
  layer.run_backward(dy, residual, dx, cache, context);
  EXPECT_TRUE(bits_equal(expected.view(), dx.view()));
  Tensor<double, 3> onto = residual;
  layer.run_backward(dy, onto.view(), onto, cache, context);
  EXPECT_TRUE(bits_equal(expected.view(), onto.view()));
  Spaced<double, 3> spaced(extents, {0, 2, 1}, 1, 2);
  copy(residual.view(), spaced.view());
  layer.run_backward(dy, spaced.view(), dx, cache, context);
  EXPECT_TRUE(bits_equal(expected.view(), dx.view()));
}

// A row without spread is normalized to zeros and passes no gradient on, also without any epsilon.
TEST(NormBackward, ConstantRowsStayFinite) {
  LayerNorm<double> layer({.embed_dim = 8, .eps = 0});
  Tensor<double, 3> x(1, 2, 8);
  std::fill_n(x.data(), 16, 3.0);
  Context context;
  const Gradients<double> found = gradients<double>(layer, x, random_tensor<double, 3>({1, 2, 8}), context);
  for (Index i = 0; i < 16; ++i) EXPECT_EQ(found.dx.data()[i], 0);
}

TEST(NormBackward, MistakesAreNamed) {
  LayerNorm<double> layer({.embed_dim = 3});
  Tensor<double, 3> x(1, 2, 3), y(1, 2, 3), dy(1, 2, 3);
  Context context;
  LayerNorm<double>::Cache cache;
  EXPECT_THROW(layer.forward(x.view(), x.view(), cache, context), heed::ValueError) << "x must outlive the forward";
  layer.forward(x.view(), y.view(), cache, context);
  EXPECT_THROW(layer.backward(dy.view(), x.view(), cache, context), heed::ValueError) << "dx is x";
  const std::string text =
      message_of<heed::ShapeError>([&] { layer.backward(Tensor<double, 3>(1, 3, 3), y.view(), cache, context); });
  EXPECT_NE(text.find("heed::LayerNorm"), std::string::npos) << text;
  EXPECT_NE(text.find("dy (1, 3, 3)"), std::string::npos) << text;
}

}  // namespace
