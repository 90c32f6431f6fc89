// SPDX-License-Identifier: MIT
// GroupNorm: against the formula and LayerNorm, in both layouts, in place, on several threads; gradients by
// differences.
#include <cmath>
#include <utility>

#include <gtest/gtest.h>

#include <heed/heed.hpp>

#include "nn/backward_checks.hpp"

namespace group_norm {

using namespace backward_checks;
using heed::GroupNorm;

constexpr Index kB = 2, kL = 5, kC = 6;

TEST(GroupNorm, IsTheFormula) {
  const auto x = random_tensor<double, 3>({kB, kL, kC}, 7);
  for (const Index groups : {1, 2, 3, 6}) {
    GroupNorm<double> norm({.num_groups = groups, .num_channels = kC, .eps = 1e-3});
    fill_parameters<double>(norm, 3);
    const auto y = norm(x);
    const Index width = kC / groups;
    for (Index b = 0; b < kB; ++b) {
      for (Index g = 0; g < groups; ++g) {
        const Eigen::ArrayXXd part = x.matrix(b).middleCols(g * width, width).array();
        const Eigen::ArrayXXd n = (part - part.mean()) / std::sqrt((part - part.mean()).square().mean() + 1e-3);
        for (Index l = 0; l < kL; ++l) {
          for (Index c = 0; c < width; ++c) {
            const Index channel = g * width + c;
            EXPECT_NEAR(y(b, l, channel), n(l, c) * norm.weight.value()(channel) + norm.bias.value()(channel), 1e-13);
          }
        }
      }
    }
  }
}

TEST(GroupNorm, ReadsChannelsFirstMemoryAndRunsInPlace) {
  const auto x = random_tensor<double, 3>({kB, kL, kC}, 7);
  GroupNorm<double> norm({.num_groups = 2, .num_channels = kC});
  fill_parameters<double>(norm, 3);
  const auto expected = norm(x);
  Tensor<double, 3> channels_first(kB, kC, kL);
  for (Index b = 0; b < kB; ++b) channels_first.matrix(b) = x.matrix(b).transpose();
  Context context;
  norm.forward(channels_first.view().transpose(1, 2), channels_first.view().transpose(1, 2), context);
  for (Index b = 0; b < kB; ++b) EXPECT_EQ(channels_first.matrix(b).transpose(), expected.matrix(b));
}

TEST(GroupNorm, HasGradients) {
  for (const bool affine : {false, true}) {
    for (const Index groups : {1, 3}) {
      GroupNorm<double> norm({.num_groups = groups, .num_channels = kC, .affine = affine});
      fill_parameters<double>(norm, 3);
      auto x = random_tensor<double, 3>({kB, kL, kC}, 7);
      const auto dy = random_tensor<double, 3>({kB, kL, kC}, 8);
      Tensor<double, 3> y(x.extents()), dx(x.extents()), same = dy;
      Context context;
      GroupNorm<double>::Cache cache;
      norm.forward(x, y, cache, context);
      norm.backward(dy, dx, cache, context);
      const auto loss = [&] {
        norm.forward(x, y, context);
        return dot(y, dy);
      };
      const auto report = heed::gradcheck(loss, ParameterList<double>(norm), {{"x", flat(x), flat(std::as_const(dx))}});
      EXPECT_TRUE(report.passed) << report.text();
      norm.backward(same, same, cache, context);
      EXPECT_TRUE(bits_equal(same, dx));
    }
  }
}

TEST(GroupNorm, KeepsDigitsFarFromZeroAndGivesZerosWithoutSpread) {
  GroupNorm<float> norm({.num_groups = 2, .num_channels = 4, .eps = 0});
  Eigen::MatrixXf x(4, 4);
  x << 4096, 4097, 7, 7, 4098, 4099, 7, 7, 4100, 4101, 7, 7, 4102, 4103, 7, 7;
  const Eigen::MatrixXf y = norm(x);
  for (Index l = 0; l < 4; ++l) {
    for (Index c = 0; c < 2; ++c) {
      EXPECT_NEAR(y(l, c), (static_cast<float>(2 * l + c) - 3.5F) / std::sqrt(5.25F), 1e-6F);
      EXPECT_EQ(y(l, 2 + c), 0);
    }
  }
}

TEST(GroupNorm, RefusesGroupsThatDoNotDivide) {
  EXPECT_THROW(GroupNorm<float>({.num_groups = 4, .num_channels = 6}), heed::ShapeError);
  EXPECT_THROW(GroupNorm<float>({.num_groups = 0, .num_channels = 6}), heed::ShapeError);
  EXPECT_THROW(GroupNorm<float>({.num_groups = 2, .num_channels = 0}), heed::ShapeError);
  EXPECT_THROW(GroupNorm<float>({.num_groups = 2, .num_channels = 6, .eps = -1}), heed::ValueError);
  const Tensor<float, 3> x(1, 2, 4);
  EXPECT_THROW(GroupNorm<float>({.num_groups = 2, .num_channels = 6})(x), heed::ShapeError);
}

}  // namespace group_norm
