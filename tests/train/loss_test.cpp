// SPDX-License-Identifier: MIT
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/parallel.hpp>
#include <heed/train/gradcheck.hpp>
#include <heed/train/loss.hpp>

#include "common/golden.hpp"
#include "nn/layer_checks.hpp"

namespace {

using heed::Context;
using heed::Index;
using heed::Tensor;
using heed::TensorView;
using namespace layer_checks;

/// Various classes, with some positions skipped.
Tensor<int, 2> some_targets(Index batch, Index length, int classes) {
  Tensor<int, 2> targets(batch, length);
  for (Index i = 0; i < targets.size(); ++i) {
    targets.data()[i] = i % 5 == 3 ? -100 : static_cast<int>((i * 7 + 2) % classes);
  }
  return targets;
}

TEST(CrossEntropy, ValuesFromPyTorch) {
  for (const double smoothing : {0.0, 0.2}) {
    const heed_test::Golden golden(smoothing == 0 ? "mlp_training_sgd" : "mlp_training_adam");
    const auto targets = golden.file().read_integers<int, 2>("in.targets");
    const double expected = golden.tensor<double, 1>("out.loss")(0);
    const auto check = [&]<class T>(T, double tolerance) {
      const auto logits = golden.tensor<T, 2>("out.logits");
      Tensor<T, 2> dlogits(6, 5);
      const heed::Loss loss = heed::cross_entropy(logits, targets.view()[0], dlogits, {.label_smoothing = smoothing});
      EXPECT_NEAR(loss.value, expected, tolerance * expected);
      EXPECT_EQ(loss.counted, 5);
      EXPECT_TRUE(golden.agrees("grad.out.logits", dlogits.view(), tolerance));
    };
    check(double{}, 1e-14);
    check(float{}, 1e-6);
  }
}

TEST(CrossEntropy, ExactGradients) {
  for (const Index classes : {1, 2, 7, 65}) {
    for (const double smoothing : {0.0, 0.1, 1.0}) {
      SCOPED_TRACE(testing::Message() << classes << " classes, smoothing " << smoothing);
      auto logits = random_tensor<double, 3>({2, 6, classes});
      const Tensor<int, 2> targets = some_targets(2, 6, static_cast<int>(classes));
      Tensor<double, 3> dlogits(logits.extents());
      const heed::CrossEntropyOptions options{.label_smoothing = smoothing};
      heed::cross_entropy(logits, targets, dlogits, options);
      const auto loss = [&] { return heed::cross_entropy(logits, targets, options).value; };
      const auto report =
          heed::gradcheck(loss, {{"logits", {logits.data(), {logits.size()}}, {dlogits.data(), {dlogits.size()}}}});
      EXPECT_TRUE(report.passed) << report.text();
      EXPECT_EQ(report.checked, logits.size());
    }
  }
}

// log Σ exp of large numbers; the gradient is 0 at skipped positions.
TEST(CrossEntropy, LargeLogitsAndIgnoredPositions) {
  Tensor<float, 3> logits(1, 3, 4), dlogits(1, 3, 4);
  const float rows[3][4] = {{1000, 998, -1000, 0}, {-3e38f, 3e38f, 0, 1}, {-1e4f, -1e4f, -1e4f, -1e4f}};
  std::copy_n(&rows[0][0], 12, logits.data());
  heed::Loss loss = heed::cross_entropy(logits, std::vector{1, 1, -100}, dlogits);
  EXPECT_NEAR(loss.value, (2 + std::log1p(std::exp(-2.0))) / 2, 1e-6);
  EXPECT_EQ(loss.counted, 2);
  for (Index v = 0; v < 4; ++v) EXPECT_EQ(dlogits(0, 2, v), 0);
  EXPECT_NEAR(dlogits(0, 0, 1), -0.5 / (1 + std::exp(-2.0)), 1e-6);
  loss = heed::cross_entropy(logits, std::vector{-1, -1, 2}, dlogits, {.ignore_index = -1});
  EXPECT_NEAR(loss.value, std::log(4.0), 1e-6);

  // A class with the logit -inf has probability and gradient 0.
  logits(0, 0, 3) = -std::numeric_limits<float>::infinity();
  loss = heed::cross_entropy(logits, std::vector{0, 1, 1}, dlogits);
  EXPECT_TRUE(std::isfinite(loss.value));
  EXPECT_EQ(dlogits(0, 0, 3), 0);

  loss = heed::cross_entropy(logits, std::vector{-100, -100, -100}, dlogits);
  EXPECT_EQ(loss.value, 0);
  EXPECT_EQ(loss.counted, 0);
  for (Index i = 0; i < 12; ++i) EXPECT_EQ(dlogits.data()[i], 0);
}

TEST(CrossEntropy, NotANumberShows) {
  Tensor<double, 3> logits = random_tensor<double, 3>({1, 2, 40}), dlogits(1, 2, 40);
  for (const Index at : {0, 17, 39}) {
    Tensor<double, 3> bad = logits;
    bad(0, 1, at) = std::nan("");
    EXPECT_TRUE(std::isnan(heed::cross_entropy(bad, std::vector{3, 4}, dlogits).value));
    EXPECT_TRUE(std::isnan(dlogits(0, 1, 20)));
    EXPECT_FALSE(std::isnan(dlogits(0, 0, 20)));
  }
}

TEST(CrossEntropy, PlainEigen) {
  const Eigen::MatrixXd logits = Eigen::MatrixXd::Random(4, 6);
  const std::vector<int> targets{0, 5, 2, 2};
  Eigen::MatrixXd dlogits(4, 6);
  const double loss = heed::cross_entropy(logits, targets, dlogits).value;
  double expected = 0;
  for (int l = 0; l < 4; ++l) {
    const auto at = static_cast<std::size_t>(l);
    expected += (std::log(logits.row(l).array().exp().sum()) - logits(l, targets[at])) / 4;
  }
  EXPECT_NEAR(loss, expected, 1e-14);
  EXPECT_LE(largest(dlogits.rowwise().sum()), 1e-15) << "a constant on all logits changes nothing";
}

// F47, F23: targets of any integer type; those to skip are the same number in each.
TEST(CrossEntropy, TakesTargetsOfAnyIntegerType) {
  const auto logits = random_tensor<double, 3>({2, 4, 5}, 7);
  Tensor<double, 3> expected(2, 4, 5), dlogits(2, 4, 5);
  const auto check = [&]<class I>(I ignored) {
    SCOPED_TRACE(sizeof(I));
    Tensor<int, 2> ints(2, 4);
    Tensor<I, 2> targets(2, 4);
    for (Index i = 0; i < 8; ++i) {
      ints.data()[i] = static_cast<int>(i * 3 % 5);
      targets.data()[i] = static_cast<I>(ints.data()[i]);
    }
    for (const Index i : {1, 4, 7}) {
      ints.data()[i] = -100;
      targets.data()[i] = ignored;
    }
    const heed::CrossEntropyOptions options{.label_smoothing = 0.1},
        of_type{.ignore_index = static_cast<Index>(ignored), .label_smoothing = 0.1};
    const heed::Loss loss = heed::cross_entropy(logits, ints, expected, options);
    EXPECT_EQ(heed::cross_entropy(logits, targets, dlogits, of_type).value, loss.value);
    EXPECT_TRUE(bits_equal(dlogits.view(), expected.view()));
    EXPECT_EQ(heed::count_targets(targets, of_type.ignore_index), 5);
    const std::vector<I> list(targets.data() + 4, targets.data() + 8);
    EXPECT_EQ(heed::cross_entropy(logits.view()[1], list, of_type).value,
              heed::cross_entropy(logits.view()[1], ints.view()[1], options).value);
  };
  check(std::int64_t{-100});
  check(std::int8_t{-100});
  check(std::uint16_t{65535});
  check(std::uint32_t{255});

  const std::vector<std::uint64_t> wrapped{static_cast<std::uint64_t>(-100), 0, 0, 0};
  const std::string text = message_of<heed::ValueError>([&] { heed::cross_entropy(logits.view()[0], wrapped); });
  EXPECT_NE(text.find("target 18446744073709551516 at position 0 of sample 0"), std::string::npos) << text;
}

TEST(CrossEntropy, MistakesAreNamed) {
  const Tensor<float, 3> logits(2, 3, 4);
  Tensor<float, 3> dlogits(2, 3, 4);
  Tensor<int, 2> targets(2, 3);
  targets(1, 2) = 4;
  const std::string text = message_of<heed::ValueError>([&] { heed::cross_entropy(logits, targets, dlogits); });
  EXPECT_NE(text.find("target 4 at position 2 of sample 1"), std::string::npos) << text;
  EXPECT_NE(text.find("V = 4"), std::string::npos) << text;
  targets(1, 2) = -1;
  EXPECT_THROW(heed::cross_entropy(logits, targets), heed::ValueError);
  targets(1, 2) = 0;
  EXPECT_THROW(heed::cross_entropy(logits, Tensor<int, 2>(2, 4)), heed::ShapeError);
  Tensor<float, 3> other(2, 3, 5);
  EXPECT_THROW(heed::cross_entropy(logits, targets, other), heed::ShapeError);
  EXPECT_THROW(heed::cross_entropy(logits, targets, {.label_smoothing = -0.1}), heed::ValueError);
  EXPECT_THROW(heed::cross_entropy(logits, targets, {.label_smoothing = std::nan("")}), heed::ValueError);
  EXPECT_THROW(heed::cross_entropy(logits, targets, {.normalizer = 0}), heed::ValueError);
  EXPECT_THROW(heed::cross_entropy(dlogits.view().slice(0, 0, 1), targets.view().slice(0, 0, 1),
                                   TensorView<float, 3>(dlogits.data() + 1, {1, 3, 4})),
               heed::ValueError);
  EXPECT_EQ(heed::cross_entropy(Tensor<float, 3>(0, 3, 4), Tensor<int, 2>(0, 3)).value, 0);
}

TEST(MeanSquaredError, ValueAndExactGradients) {
  auto y = random_tensor<double, 3>({2, 3, 13});
  const auto target = random_tensor<double, 3>({2, 3, 13}, 2);
  Tensor<double, 3> dy(y.extents());
  double expected = 0;
  for (Index i = 0; i < y.size(); ++i) expected += std::pow(y.data()[i] - target.data()[i], 2) / 78;
  EXPECT_NEAR(heed::mse(y, target, dy), expected, 1e-14);
  const auto report =
      heed::gradcheck([&] { return heed::mse(y, target); }, {{"y", {y.data(), {y.size()}}, {dy.data(), {dy.size()}}}});
  EXPECT_TRUE(report.passed) << report.text();
  heed::ThreadPool pool(3);
  Context context(pool);
  EXPECT_EQ(heed::mse(y, target, context), heed::mse(y, target));
  Tensor<double, 3> in_place = y;
  heed::mse(in_place, target, in_place);
  EXPECT_TRUE(bits_equal(dy.view(), in_place.view()));
  EXPECT_EQ(heed::mse(Tensor<double, 3>(0, 3, 4), Tensor<double, 3>(0, 3, 4)), 0);
  EXPECT_THROW(heed::mse(y, Tensor<double, 3>(2, 3, 4)), heed::ShapeError);
  Tensor<double, 3> shared = target;
  EXPECT_THROW(heed::mse(y, shared, shared), heed::ValueError);
  EXPECT_NEAR(heed::mse(Eigen::Vector3d(1, 2, 3), Eigen::Vector3d(1, 2, 6)), 3, 1e-15);
}

}  // namespace
