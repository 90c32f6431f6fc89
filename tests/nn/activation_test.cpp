// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include <heed/nn/activation.hpp>

#include "common/golden.hpp"
#include "nn/layer_checks.hpp"

namespace {

using heed::Index;
using heed::Tensor;
using namespace layer_checks;
using heed_test::Golden;

template <class T>
class ActivationOf : public testing::Test {};
using ActivationElements = testing::Types<float, double, heed::half, heed::bfloat16>;
TYPED_TEST_SUITE(ActivationOf, ActivationElements);

template <class T, class F>
void for_each_activation(F&& f) {
  f(heed::ReLU(), "relu");
  f(heed::GELU(), "gelu_erf");
  f(heed::GELUTanh(), "gelu_tanh");
  f(heed::SiLU(), "silu");
}

TYPED_TEST(ActivationOf, KeepsThePromisesOfALayer) {
  for_each_activation<TypeParam>([](const auto& layer, const char* name) {
    for (const Index width : {1, 13, 64}) {
      SCOPED_TRACE(testing::Message() << name << " " << width);
      expect_layer<TypeParam>(layer, width);
    }
    expect_same_for_any_threads<TypeParam>(layer, {3, 300, 75});
  });
}

TEST(Activation, TakesAnyArgument) {
  for (const Index width : {1, 13, 64}) {
    SCOPED_TRACE(width);
    expect_same_for_any_argument<float>(heed::ReLU(), 5, width);
    expect_same_for_any_argument<float>(heed::GELU(), 5, width);
    expect_same_for_any_argument<float>(heed::GELUTanh(), 5, width);
    expect_same_for_any_argument<float>(heed::SiLU(), 5, width);
    expect_same_for_any_argument<double>(heed::GELU(), 5, width);
    expect_same_for_any_argument<heed::half>(heed::GELUTanh(), 5, width);
    expect_same_for_any_argument<heed::bfloat16>(heed::SiLU(), 5, width);
  }
}

TYPED_TEST(ActivationOf, ValuesFromPyTorch) {
  for_each_activation<TypeParam>([](const auto& layer, const char* name) {
    const Golden golden(name);
    const auto given = golden.tensor<TypeParam, 2>("in.x");
    const Tensor<double, 2> expected = golden.tensor<double, 2>("out.y");
    const Tensor<TypeParam, 2> y = layer(given);
    for (Index i = 0; i < y.extent(0); ++i) {
      for (Index j = 0; j < y.extent(1); ++j) {
        // The stated absolute error of float GELU; 16-bit results are the rounded float ones.
        const double wide = std::is_same_v<TypeParam, double> ? 1e-15 : 3e-7;
        const double narrow = std::is_same_v<TypeParam, heed::bfloat16> ? 0x1p-8
                              : std::is_same_v<TypeParam, heed::half>   ? 0x1p-11
                              : std::is_same_v<TypeParam, float>        ? 0x1p-22
                                                                        : 0x1p-50;
        EXPECT_NEAR(static_cast<double>(y(i, j)), expected(i, j), wide + 1.1 * narrow * std::abs(expected(i, j)))
            << name << " of " << static_cast<double>(given(i, j));
      }
    }
  });
}

TYPED_TEST(ActivationOf, Limits) {
  const auto infinity = std::numeric_limits<TypeParam>::infinity();
  for_each_activation<TypeParam>([&](const auto& layer, const char* name) {
    Tensor<TypeParam, 1> x(3);
    x(0) = infinity;
    x(1) = -infinity;
    x(2) = std::numeric_limits<TypeParam>::quiet_NaN();
    const auto y = layer(x);
    EXPECT_EQ(y(0), infinity) << name;
    EXPECT_EQ(static_cast<double>(y(1)), 0) << name;
    EXPECT_TRUE(std::isnan(static_cast<double>(y(2)))) << name;
  });
}

TEST(Activation, FunctionsAreTheLayers) {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Random(4, 9) * 3;
  heed::Context context;
  const auto positive = heed::relu(x);
  for (Index i = 0; i < x.rows(); ++i) {
    for (Index j = 0; j < x.cols(); ++j) EXPECT_EQ(positive(i, j), std::max(x(i, j), 0.f));
  }
  EXPECT_TRUE(equal(heed::relu(x, context), heed::ReLU()(x)));
  EXPECT_TRUE(equal(heed::gelu(x), heed::GELU()(x)));
  EXPECT_TRUE(equal(heed::gelu(x, context), heed::GELU()(x)));
  EXPECT_TRUE(equal(heed::gelu_tanh(x), heed::GELUTanh()(x)));
  EXPECT_TRUE(equal(heed::gelu_tanh(x, context), heed::GELUTanh()(x)));
  EXPECT_TRUE(equal(heed::silu(x), heed::SiLU()(x)));
  EXPECT_TRUE(equal(heed::silu(x, context), heed::SiLU()(x)));
  // A number gives the bits of its place in a matrix.
  EXPECT_EQ(heed::gelu(x)(2, 3), heed::gelu(x(2, 3)));
}

TEST(Activation, TheTwoGELUsDiffer) {
  EXPECT_NEAR(heed::gelu(2.5), 2.5 * 0.5 * std::erfc(-2.5 / std::sqrt(2.0)), 1e-15);
  EXPECT_NEAR(heed::gelu(2.5) - heed::gelu_tanh(2.5), -4.4e-4, 1e-5);
}

TEST(Activation, HasNoParameters) {
  EXPECT_EQ(heed::parameter_count(heed::GELU()), 0);
  EXPECT_EQ(heed::GELU().output_width(5), 5);
}

TEST(Activation, MistakesAreNamed) {
  heed::Context context;
  const Tensor<float, 3> x(1, 2, 3);
  Tensor<float, 3> y(1, 2, 4);
  const std::string text = message_of<heed::ShapeError>([&] { heed::SiLU().forward(x, y.view(), context); });
  EXPECT_NE(text.find("heed::SiLU: y (1, 2, 4) does not fit x (1, 2, 3)"), std::string::npos) << text;
}

}  // namespace
