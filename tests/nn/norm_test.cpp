// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <heed/nn/norm.hpp>

#include "common/golden.hpp"
#include "nn/layer_checks.hpp"

namespace {

using heed::half;
using heed::Index;
using heed::LayerNorm;
using heed::RMSNorm;
using heed::Tensor;
using namespace layer_checks;
using heed_test::Golden;

template <class T>
class NormOf : public testing::Test {};
using NormElements = testing::Types<float, double, half, heed::bfloat16>;
TYPED_TEST_SUITE(NormOf, NormElements);

template <class T>
constexpr double kEpsilon = std::is_same_v<T, double>           ? 0x1p-52
                            : std::is_same_v<T, float>          ? 0x1p-23
                            : std::is_same_v<T, heed::bfloat16> ? 0x1p-7
                                                                : 0x1p-10;

TYPED_TEST(NormOf, LayerNormKeepsThePromisesOfALayer) {
  for (const Index width : {1, 7, 64, 75}) {
    SCOPED_TRACE(width);
    LayerNorm<TypeParam> layer({.embed_dim = width});
    fill_parameters<TypeParam>(layer, 3);
    expect_layer<TypeParam>(layer, width);
  }
  expect_same_for_any_threads<TypeParam>(LayerNorm<TypeParam>({.embed_dim = 75}), {3, 300, 75});
}

TYPED_TEST(NormOf, RMSNormKeepsThePromisesOfALayer) {
  for (const Index width : {1, 7, 64, 75}) {
    SCOPED_TRACE(width);
    RMSNorm<TypeParam> layer({.embed_dim = width});
    fill_parameters<TypeParam>(layer, 3);
    expect_layer<TypeParam>(layer, width);
  }
  expect_same_for_any_threads<TypeParam>(RMSNorm<TypeParam>({.embed_dim = 75}), {3, 300, 75});
}

template <class T, class Layer>
void expect_any_argument() {
  for (const Index width : {1, 7, 64, 75}) {
    SCOPED_TRACE(width);
    Layer layer({.embed_dim = width});
    fill_parameters<T>(layer, 3);
    expect_same_for_any_argument<T>(layer, 5, width);
  }
}

TEST(LayerNorm, TakesAnyArgument) {
  expect_any_argument<float, LayerNorm<float>>();
  expect_any_argument<half, LayerNorm<half>>();
}

TEST(RMSNorm, TakesAnyArgument) {
  expect_any_argument<float, RMSNorm<float>>();
  expect_any_argument<double, RMSNorm<double>>();
}

// The formula in long double, for widths around every multiple of a register.
template <class T>
void expect_formula(Index width, bool centered, double eps) {
  const auto x = random_tensor<T, 3>({2, 3, width}, 5);
  Tensor<T, 3> y;
  Tensor<T, 1> weight, bias(width);
  const auto take = [&](auto& layer) {
    fill_parameters<T>(layer, 9);
    weight = Tensor<T, 1>(width);
    copy(layer.weight.value(), weight.view());
    y = layer(x);
  };
  if (centered) {
    LayerNorm<T> layer({.embed_dim = width, .eps = eps});
    take(layer);
    copy(layer.bias.value(), bias.view());
  } else {
    RMSNorm<T> layer({.embed_dim = width, .eps = eps});
    take(layer);
  }
  const auto real = [](const T& number) { return static_cast<long double>(static_cast<double>(number)); };
  const auto count = static_cast<long double>(width);
  for (Index b = 0; b < 2; ++b) {
    for (Index l = 0; l < 3; ++l) {
      long double mean = 0, square = 0;
      for (Index e = 0; e < width && centered; ++e) mean += real(x(b, l, e)) / count;
      for (Index e = 0; e < width; ++e) square += (real(x(b, l, e)) - mean) * (real(x(b, l, e)) - mean) / count;
      for (Index e = 0; e < width; ++e) {
        const long double z = (real(x(b, l, e)) - mean) / std::sqrt(square + static_cast<long double>(eps));
        const long double expected = z * real(weight(e)) + real(bias(e));
        const long double size = std::abs(real(weight(e))) * (std::abs(z) + 1) + std::abs(real(bias(e)));
        ASSERT_LE(static_cast<double>(std::abs(real(y(b, l, e)) - expected)),
                  4 * kEpsilon<T> * static_cast<double>(size))
            << "width " << width;
      }
    }
  }
}

TYPED_TEST(NormOf, FormulaForAllWidths) {
  for (Index width = 2; width <= 140; ++width) {
    expect_formula<TypeParam>(width, true, 1e-5);
    expect_formula<TypeParam>(width, false, 1e-5);
  }
}

template <class T>
class NormGolden : public testing::Test {};
using GoldenElements = testing::Types<float, double>;
TYPED_TEST_SUITE(NormGolden, GoldenElements);

template <class T, class Layer>
void expect_golden_norm(const std::string& name, Layer layer, double tolerance = 6 * kEpsilon<T>) {
  const Golden golden(name);
  golden.load_into(layer);
  const Tensor<T, 3> y = layer(golden.tensor<T, 3>("in.x"));
  const Tensor<double, 3> expected = golden.tensor<double, 3>("out.y");
  EXPECT_LE(max_error(y.view(), expected.view()), tolerance) << name;
}

TYPED_TEST(NormGolden, ValuesFromPyTorch) {
  expect_golden_norm<TypeParam>("layer_norm", LayerNorm<TypeParam>({.embed_dim = 24}));
  expect_golden_norm<TypeParam>("layer_norm_eps", LayerNorm<TypeParam>({.embed_dim = 24, .eps = 1e-3}));
  expect_golden_norm<TypeParam>("layer_norm_no_bias", LayerNorm<TypeParam>({.embed_dim = 24, .bias = false}));
  // Rows of mean 1000 and rows of spread 1/128: what E[x²] - E[x]² and a wrong epsilon get wrong.
  // In double it is PyTorch that loses digits, 1e-13 by a calculation in 50 digits.
  expect_golden_norm<TypeParam>("layer_norm_offset", LayerNorm<TypeParam>({.embed_dim = 24, .eps = 1e-12}),
                                std::max(6 * kEpsilon<TypeParam>, 1e-13));
  expect_golden_norm<TypeParam>("rms_norm", RMSNorm<TypeParam>({.embed_dim = 24, .eps = 1e-5}));
}

// Case C35: the epsilon of a checkpoint changes the result.
TEST(LayerNorm, EpsilonIsAParameter) {
  Eigen::RowVector4d x(1, 1.001, 0.999, 1.002);
  const auto with = [&](double eps) { return LayerNorm<double>({.embed_dim = 4, .eps = eps, .affine = false})(x); };
  const Eigen::RowVector4d tiny(-0.4472134166, 0.4472134166, -1.3416402498, 1.3416402498);
  const Eigen::RowVector4d usual(-0.1490711985, 0.1490711985, -0.4472135955, 0.4472135955);
  EXPECT_LE(largest((with(1e-12) - tiny)), 1e-9);
  EXPECT_LE(largest((with(1e-5) - usual)), 1e-9);

  // In float the rounding of x itself is seen by the first.
  const LayerNorm<float> single({.embed_dim = 4, .eps = 1e-12});
  EXPECT_LE(largest((single(x.cast<float>()).cast<double>() - tiny)), 2e-3);
}

// 0.1 is not a float: the sum of seven of them is rounded, and so is the mean. With an epsilon of 1e-12 a variance that
// takes this rounding for spread would give numbers near 0.01.
TEST(LayerNorm, ConstantRowsGiveZeros) {
  for (const Index width : {4, 7, 33, 384, 1000}) {
    for (const float value : {3.f, 0.1f, -1234.567f, 1e-20f}) {
      const LayerNorm<float> layer({.embed_dim = width, .eps = 1e-12});
      const auto y = layer(Eigen::MatrixXf::Constant(2, width, value));
      EXPECT_LE(largest(y), 1e-6) << width << " of " << value;
    }
  }
  // Without any epsilon there is nothing to divide by.
  const auto y = LayerNorm<float>({.embed_dim = 8, .eps = 0})(Eigen::MatrixXf::Constant(1, 8, 2));
  EXPECT_EQ(largest(y), 0);
  EXPECT_EQ(largest(RMSNorm<float>({.embed_dim = 8, .eps = 0})(Eigen::MatrixXf::Zero(1, 8))), 0);
}

TEST(LayerNorm, RowsFarFromZeroKeepTheirDigits) {
  // Spread 2 around 2^20: a float there has a spacing of 1/8, which these numbers are multiples of.
  Eigen::RowVectorXf x(6);
  x << -2.5f, -1, 0.25f, 0.5f, 1.125f, 1.625f;
  const LayerNorm<float> layer({.embed_dim = 6, .eps = 1e-5});
  const auto near = layer(x);
  const auto far = layer((x.array() + 1048576.f).matrix());
  EXPECT_LE(largest((near - far)), 1e-6);
}

TEST(LayerNorm, MeanIsZeroAndVarianceOne) {
  const auto x = random_tensor<double, 3>({1, 20, 123});
  const auto y = LayerNorm<double>({.embed_dim = 123, .eps = 0})(x);
  const auto m = y.matrix(0);
  EXPECT_LE(largest(m.rowwise().mean()), 1e-15);
  EXPECT_LE(largest(m.array().square().rowwise().mean() - 1), 1e-14);
}

// What is not finite shows, and only in its own row.
TEST(LayerNorm, NotANumberStaysInItsRow) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Eigen::MatrixXf x = Eigen::MatrixXf::Random(3, 20);
    const auto clean = LayerNorm<float>({.embed_dim = 20})(x);
    x(1, 17) = bad;
    const auto y = LayerNorm<float>({.embed_dim = 20})(x);
    EXPECT_TRUE(y.row(1).array().isNaN().all());
    EXPECT_TRUE(equal(y.row(0), clean.row(0)));
    EXPECT_TRUE(equal(y.row(2), clean.row(2)));
    EXPECT_TRUE(std::isnan(RMSNorm<float>({.embed_dim = 20})(x)(1, 17)));
  }
}

TEST(LayerNorm, ParametersAreVisitedUnderPyTorchsNames) {
  const auto names = [](const auto& layer, std::string_view prefix) {
    std::vector<std::string> list;
    layer.visit(prefix, [&](std::string_view name, const auto&) { list.emplace_back(name); });
    return list;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(LayerNorm<float>({.embed_dim = 3}), "norm1"), (Names{"norm1.weight", "norm1.bias"}));
  EXPECT_EQ(names(LayerNorm<float>({.embed_dim = 3, .bias = false}), ""), Names{"weight"});
  EXPECT_EQ(names(LayerNorm<float>({.embed_dim = 3, .affine = false}), ""), Names{});
  EXPECT_EQ(names(RMSNorm<float>({.embed_dim = 3}), "norm"), Names{"norm.weight"});
  EXPECT_EQ(names(RMSNorm<float>({.embed_dim = 3, .affine = false}), "norm"), Names{});
  EXPECT_EQ(heed::parameter_count(LayerNorm<float>({.embed_dim = 3})), 6);
}

TEST(LayerNorm, MistakesAreNamed) {
  EXPECT_THROW(LayerNorm<float>({.embed_dim = 0}), heed::ShapeError);
  EXPECT_THROW(RMSNorm<float>({.embed_dim = -1}), heed::ShapeError);
  EXPECT_THROW(LayerNorm<float>({.embed_dim = 3, .eps = -1e-5}), heed::ValueError);
  EXPECT_THROW(RMSNorm<float>({.embed_dim = 3, .eps = std::nan("")}), heed::ValueError);
  const std::string text =
      message_of<heed::ShapeError>([] { LayerNorm<float>({.embed_dim = 3})(Eigen::MatrixXf::Zero(2, 4)); });
  EXPECT_NE(text.find("heed::LayerNorm"), std::string::npos) << text;
  EXPECT_NE(text.find("(1, 2, 4)"), std::string::npos) << text;
  EXPECT_NE(text.find("takes 3"), std::string::npos) << text;

  heed::Context context;
  const Tensor<float, 3> x(1, 2, 3);
  Tensor<float, 3> y(1, 3, 3);
  EXPECT_THROW(RMSNorm<float>({.embed_dim = 3}).forward(x, y, context), heed::ShapeError);
}

// Once warm, the scratch memory for strided rows is there.
TEST(LayerNorm, WorkspaceDoesNotGrowOnceWarm) {
  const LayerNorm<float> layer({.embed_dim = 300});
  Eigen::MatrixXf x = Eigen::MatrixXf::Random(10, 300), y(10, 300);
  heed::Context context;
  const auto run = [&] { layer.forward(heed::view_of(x).unsqueeze(), heed::view_of(y).unsqueeze(), context); };
  run();
  const std::size_t warm = context.workspace().capacity();
  EXPECT_GE(warm, 300 * sizeof(float));
  run();
  EXPECT_EQ(context.workspace().capacity(), warm);
}

}  // namespace
