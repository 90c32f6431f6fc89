// SPDX-License-Identifier: MIT
#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include <heed/nn/activation.hpp>
#include <heed/nn/dropout.hpp>

#include "nn/backward_checks.hpp"

namespace {

using heed::Activation;
using heed::Dropout;
using namespace backward_checks;

/// An activation as the checks want a layer: with one type of cache.
template <Activation Function, class T>
struct Of : heed::ActivationLayer<Function> {
  using Cache = typename heed::ActivationLayer<Function>::template Cache<T>;
};

template <Activation Function>
void expect_activation(const std::string& golden) {
  SCOPED_TRACE(golden);
  Of<Function, double> layer;
  expect_backward(layer, {2, 3, 13});
  expect_same_backward_for_any_strides<double>(layer, {2, 3, 13});

  // The file holds a grid (8, 16) over [-7, 7], small values and far tails.
  const heed_test::Golden file(golden);
  const auto check = [&]<class T>(T, double tolerance) {
    const auto x = file.tensor<T, 2>("in.x"), dy = file.tensor<T, 2>("dout.y");
    Tensor<T, 2> y(8, 16), dx(8, 16);
    Context context;
    typename Of<Function, T>::Cache cache;
    Of<Function, T>().forward(x.view().unsqueeze(), y.view().unsqueeze(), cache, context);
    Of<Function, T>().backward(dy.view().unsqueeze(), dx.view().unsqueeze(), cache, context);
    EXPECT_TRUE(file.agrees("grad.in.x", dx.view(), tolerance));
  };
  check(double{}, 1e-15);
  check(float{}, 4e-7);
}

TEST(ActivationBackward, KeepsThePromisesOfABackward) {
  expect_activation<Activation::ReLU>("relu");
  expect_activation<Activation::GELU>("gelu_erf");
  expect_activation<Activation::GELUTanh>("gelu_tanh");
  expect_activation<Activation::SiLU>("silu");
}

template <class T>
T slope_at(Activation activation, T x) {
  const T one = 1;
  T slope = 0;
  heed::detail::activate_backward(activation, &x, &one, &slope, 1);
  return slope;
}

// Far from zero the derivatives are 1 and 0; what is not a number stays so.
TEST(ActivationBackward, Tails) {
  const auto check = [](auto zero) {
    using T = decltype(zero);
    const T infinity = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
    for (const Activation activation : {Activation::ReLU, Activation::GELU, Activation::GELUTanh, Activation::SiLU}) {
      SCOPED_TRACE(static_cast<int>(activation));
      for (const T large : {T(50), T(1e30), infinity}) {
        EXPECT_EQ(slope_at(activation, large), 1);
        EXPECT_NEAR(static_cast<double>(slope_at(activation, -large)), 0, 1e-19);
      }
      if (activation != Activation::ReLU) {
        EXPECT_TRUE(std::isnan(slope_at(activation, nan)));
      }
    }
    EXPECT_EQ(slope_at(Activation::ReLU, T(0)), 0);
    EXPECT_EQ(slope_at(Activation::ReLU, -T(0)), 0);
    EXPECT_EQ(slope_at(Activation::ReLU, nan), 1) << "as in PyTorch";
    EXPECT_EQ(slope_at(Activation::None, nan), 1);
  };
  check(0.f);
  check(0.);
}

// The float derivatives by the formulas in long double, around every branch of them.
TEST(ActivationBackward, FloatErrors) {
  const auto logistic = [](long double x) { return 1 / (1 + std::exp(-x)); };
  double gelu = 0, gelu_tanh = 0, silu = 0;
  for (float x = -16; x < 16; x += 0.0011f) {
    const long double r = x;
    const auto error = [&](Activation activation, long double expected) {
      return std::abs(static_cast<double>(slope_at(activation, x) - expected));
    };
    const long double density = std::exp(-r * r / 2) * 0.398942280401432677939946059934L;
    gelu = std::max(gelu, error(Activation::GELU, std::erfc(-r * 0.707106781186547524400844362105L) / 2 + r * density));
    const long double c = 0.797884560802865355879892119869L, v = c * (r + 0.044715L * r * r * r);
    const long double s = logistic(2 * v), t = logistic(-2 * v), p = logistic(r);
    gelu_tanh = std::max(gelu_tanh, error(Activation::GELUTanh, s + r * s * t * 2 * c * (1 + 3 * 0.044715L * r * r)));
    silu = std::max(silu, error(Activation::SiLU, p + r * p * logistic(-r)));
  }
  EXPECT_LE(gelu, 3e-7);
  EXPECT_LE(gelu_tanh, 3e-7);
  EXPECT_LE(silu, 3e-7);
}

TEST(ActivationBackward, RunsInPlaceAndRefusesX) {
  heed::GELU layer;
  const auto x = random_tensor<double, 3>({2, 3, 40});
  auto dy = random_tensor<double, 3>({2, 3, 40}, 2);
  Tensor<double, 3> y(x.extents()), dx(x.extents());
  Context context;
  heed::GELU::Cache<double> cache;
  layer.forward(x.view(), y.view(), cache, context);
  layer.backward(dy.view(), dx.view(), cache, context);
  layer.backward(dy.view(), dy.view(), cache, context);
  EXPECT_TRUE(bits_equal(dx.view(), dy.view()));
  auto z = x;
  EXPECT_THROW(layer.forward(z.view(), z.view(), cache, context), heed::ValueError);
  layer.forward(z.view(), y.view(), cache, context);
  EXPECT_THROW(layer.backward(dy.view(), z.view(), cache, context), heed::ValueError);
}

TEST(DropoutLayer, DropsTheShareAskedForAndScalesTheRest) {
  const Dropout<float> layer({.probability = 0.3});
  Tensor<float, 3> x(4, 50, 75);
  std::fill_n(x.data(), x.size(), 7.f);
  Context context;
  EXPECT_TRUE(bits_equal(x.view(), layer(x, context))) << "off outside training";
  context.training = true;
  const Tensor<float, 3> y = layer(x, context), z = layer(x, context);
  Index dropped = 0, both = 0;
  for (Index i = 0; i < y.size(); ++i) {
    ASSERT_TRUE(y.data()[i] == 0 || std::abs(y.data()[i] - 10) < 1e-5f) << y.data()[i];
    dropped += y.data()[i] == 0;
    both += y.data()[i] == 0 && z.data()[i] == 0;
  }
  EXPECT_NEAR(static_cast<double>(dropped) / 15000, 0.3, 0.015);
  EXPECT_NEAR(static_cast<double>(both) / 15000, 0.09, 0.01) << "each call drops other places";

  context.restart_streams();
  EXPECT_TRUE(bits_equal(y.view(), layer(x, context))) << "the same seed and stream, the same places";
  context.restart_streams();
  context.seed = 1;
  EXPECT_FALSE(bits_equal(y.view(), layer(x, context)));
}

TEST(DropoutLayer, DropsWhatIsNotFinite) {
  const Dropout<float> layer({.probability = 1});
  Tensor<float, 3> x(1, 1, 9);
  std::fill_n(x.data(), x.size(), std::numeric_limits<float>::quiet_NaN());
  Context context;
  context.training = true;
  const Tensor<float, 3> y = layer(x, context);
  for (Index i = 0; i < y.size(); ++i) EXPECT_EQ(y.data()[i], 0);
}

TEST(DropoutLayer, MistakesAreNamed) {
  EXPECT_THROW(Dropout<float>({.probability = 1.1}), heed::ValueError);
  EXPECT_THROW(Dropout<float>({.probability = std::nan("")}), heed::ValueError);
}

TEST(DropoutLayer, KeepsThePromisesOfALayer) {
  expect_layer<float>(Dropout<float>({.probability = 0.5}), 20);
  expect_same_for_any_threads<heed::half>(Dropout<heed::half>({.probability = 0.5}), {3, 300, 75});
  Dropout<double> layer({.probability = 0.5});
  expect_backward(layer, {2, 3, 7});
}

}  // namespace
