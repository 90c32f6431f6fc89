// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <heed/io/name_map.hpp>
#include <heed/train/optimizer.hpp>
#include <heed/train/parameter_list.hpp>

#include "common/golden.hpp"
#include "common/message_of.hpp"
#include "nn/layer_checks.hpp"
#include "train/mlp.hpp"
#include "train/pair.hpp"

namespace {

using heed::Context;
using heed::Index;
using heed::Parameter;
using heed::ParameterList;
using heed::Tensor;
using namespace layer_checks;
using heed_test::Golden;
using heed_test::Mlp;
using heed_test::Pair;

/// The initial parameters of an mlp_training golden.
Mlp<double> starting_model(const Golden& golden) {
  Mlp<double> model;
  heed::load_parameters(model, golden.file(),
                        {.rules = {{"*", {"param.*"}}}, .ignored = {"in.*", "out.*", "grad.*", "final.*"}});
  return model;
}

// Ten steps: losses and parameters within 1e-9 of PyTorch's.
template <class Optimizer, class Options>
void expect_golden_training(const std::string& name, const Options& options, double smoothing = 0) {
  SCOPED_TRACE(name);
  const Golden golden("mlp_training_" + name);
  const heed_test::MlpBatches batches(golden);
  const auto losses = golden.tensor<double, 1>("out.loss");
  Mlp<double> model = starting_model(golden);
  Optimizer optimizer(model, options);
  Context context;
  Mlp<double>::Cache cache;
  for (Index step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    const heed::Loss loss = heed_test::learn<double>(model, batches.input(step), batches.target(step), cache,
                                                     {.label_smoothing = smoothing}, context);
    EXPECT_NEAR(loss.value, losses(step), 1e-12) << "step " << step;
    if (step == 0) {
      for (const auto& [parameter_name, parameter] : optimizer.parameters()) {
        EXPECT_TRUE(parameter->rank() == 1
                        ? golden.agrees("grad.param." + parameter_name, parameter->grad(), 1e-13)
                        : golden.agrees("grad.param." + parameter_name, parameter->grad_matrix(), 1e-13));
      }
    }
    optimizer.step(context);
  }
  for (const auto& [parameter_name, parameter] : optimizer.parameters()) {
    EXPECT_TRUE(parameter->rank() == 1 ? golden.agrees("final." + parameter_name, parameter->value(), 1e-9)
                                       : golden.agrees("final." + parameter_name, parameter->matrix(), 1e-9));
  }
  EXPECT_EQ(optimizer.steps(), 10);
}

TEST(Optimizer, TenStepsFromPyTorch) {
  expect_golden_training<heed::SGD<double>>("sgd", heed::SGDOptions{.learning_rate = 0.2});
  expect_golden_training<heed::SGD<double>>(
      "sgd_momentum", heed::SGDOptions{.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.02});
  expect_golden_training<heed::SGD<double>>(
      "sgd_nesterov", heed::SGDOptions{.learning_rate = 0.1, .momentum = 0.8, .nesterov = true}, 0.1);
  expect_golden_training<heed::Adam<double>>(
      "adam", heed::AdamOptions{.learning_rate = 0.02, .beta2 = 0.98, .weight_decay = 0.03}, 0.2);
  expect_golden_training<heed::AdamW<double>>(
      "adamw", heed::AdamWOptions{.learning_rate = 0.02, .beta2 = 0.98, .weight_decay = 0.03});
}

TEST(Optimizer, LeavesParametersWithoutAGradientAndDropsPacks) {
  heed::Linear<float> layer({.in_features = 3, .out_features = 4});
  heed::Random random(1);
  layer.initialize(random);
  layer.pack();
  const Tensor<float, 1> bias = [&] {
    Tensor<float, 1> copied(4);
    copy(layer.bias.value(), copied.view());
    return copied;
  }();
  heed::SGD<float> optimizer(layer, {.learning_rate = 0.5, .weight_decay = 0.1});
  const float before = layer.weight.value()(0);
  layer.weight.grad()(0) = 2;
  optimizer.step();
  EXPECT_FLOAT_EQ(layer.weight.value()(0), before - 0.5f * (2 + 0.1f * before));
  EXPECT_TRUE(bits_equal(bias.view(), layer.bias.value()));
  EXPECT_FALSE(layer.is_packed());
  optimizer.zero_grad();
  EXPECT_EQ(layer.weight.grad()(0), 0);
}

// A parameter that no backward has reached since zero_grad() moves neither by decay nor by momentum, and its steps do
// not count: it then moves as one that has been trained from the beginning.
template <class Optimizer, class Options>
void expect_unused_rests(const Options& options) {
  Pair<double> model, always;
  Optimizer optimizer(model, options), other(always, options);
  std::vector<double> before;
  for (int step = 0; step < 6; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const bool used = step == 1 || step == 4;
    optimizer.zero_grad();
    EXPECT_FALSE(model.second.has_grad());
    model.first.grad()(2) = 0.5 * step;
    const double value = model.second.value()(3);
    if (used) {
      model.second.grad()(3) = 1 + step;
      other.zero_grad();
      always.second.grad()(3) = 1 + step;
      other.step();
    }
    optimizer.step();
    EXPECT_EQ(model.second.value()(3) != value, used);
  }
  EXPECT_EQ(optimizer.steps(), 6);
  for (Index i = 0; i < model.second.size(); ++i) EXPECT_EQ(model.second.value()(i), always.second.value()(i));
}

TEST(Optimizer, LeavesParametersThatAStepDoesNotUse) {
  expect_unused_rests<heed::SGD<double>>(heed::SGDOptions{.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.5});
  expect_unused_rests<heed::Adam<double>>(heed::AdamOptions{.learning_rate = 0.1, .weight_decay = 0.5});
  expect_unused_rests<heed::AdamW<double>>(heed::AdamWOptions{.learning_rate = 0.1, .weight_decay = 0.5});
}

TEST(ParameterGroups, AddUp) {
  const std::vector<heed::ParameterGroup> groups{
      {.holds = [](std::string_view, int) { return true; }, .rate = 0.5, .weight_decay = 0.25},
      {.holds = heed::biases_and_norms, .weight_decay = 0},
      {.holds = heed::within("first"), .rate = 4}};
  Pair<double> model;
  heed::SGD<double> optimizer(model, {.learning_rate = 0.1, .weight_decay = 7, .groups = groups});
  const double first = model.first.value()(0), second = model.second.value()(0);
  model.first.grad()(0) = 1;
  model.second.grad()(0) = 1;
  optimizer.step();
  EXPECT_DOUBLE_EQ(model.first.value()(0), first - 0.1 * 0.5 * 4);
  EXPECT_DOUBLE_EQ(model.second.value()(0), second - 0.1 * 0.5 * (1 + 0.25 * second));
  // A schedule sets the rate that the factors multiply.
  optimizer.set_learning_rate(0);
  optimizer.step();
  EXPECT_DOUBLE_EQ(model.first.value()(0), first - 0.1 * 0.5 * 4);
}

TEST(ParameterGroups, ARateOfZeroFreezes) {
  Pair<double> model;
  heed::AdamW<double> optimizer(model, {.weight_decay = 0.5, .groups = {{.holds = heed::within("second"), .rate = 0}}});
  model.set_gradients(3);
  model.second.grad()(1) = std::numeric_limits<double>::infinity();
  const double first = model.first.value()(0), second = model.second.value()(1);
  optimizer.step();
  EXPECT_NE(model.first.value()(0), first);
  EXPECT_EQ(model.second.value()(1), second);
}

TEST(ParameterGroups, AreParts) {
  EXPECT_TRUE(heed::within("head")("head.weight", 2));
  EXPECT_TRUE(heed::within("head")("head", 1));
  EXPECT_TRUE(heed::within("")("head", 1));
  EXPECT_FALSE(heed::within("head")("headers.weight", 2));
  EXPECT_FALSE(heed::within("head")("layers.head.weight", 2));
}

TEST(ParameterGroups, MistakesAreNamed) {
  Pair<float> model;
  const auto refused = [&](const heed::ParameterGroup& group) {
    return message_of<heed::ValueError>([&] { heed::AdamW<float>(model, {.groups = {group}}); });
  };
  EXPECT_NE(refused({}).find("heed::AdamW: group 0 has no function `holds`"), std::string::npos);
  EXPECT_NE(refused({.holds = heed::within("frist")}).find("group 0 holds none of the 2 parameters"),
            std::string::npos);
  EXPECT_NE(refused({.holds = heed::biases_and_norms, .rate = -1}).find("the rate of a group = -1"), std::string::npos);
  EXPECT_NE(refused({.holds = heed::biases_and_norms, .weight_decay = std::nan("")}).find("weight_decay of a group"),
            std::string::npos);
}

TEST(Optimizer, MistakesAreNamed) {
  Pair<float> model;
  const double nan = std::nan("");
  using SGD = heed::SGD<float>;
  EXPECT_THROW(SGD(model, {.learning_rate = nan}), heed::ValueError);
  EXPECT_THROW(SGD(model, {.learning_rate = -1}), heed::ValueError);
  EXPECT_THROW(SGD(model, {.learning_rate = 1, .momentum = -1}), heed::ValueError);
  EXPECT_THROW(SGD(model, {.learning_rate = 1, .nesterov = true}), heed::ValueError);
  EXPECT_THROW(SGD(model, {.learning_rate = 1, .weight_decay = nan}), heed::ValueError);
  EXPECT_THROW(heed::Adam<float>(model, {.beta1 = 1}), heed::ValueError);
  EXPECT_THROW(heed::AdamW<float>(model, {.beta2 = nan}), heed::ValueError);
  EXPECT_THROW(heed::AdamW<float>(model, {.eps = -1e-8}), heed::ValueError);
  heed::AdamW<float> optimizer(model, {});
  const std::string text = message_of<heed::ValueError>([&] { optimizer.set_learning_rate(nan); });
  EXPECT_NE(text.find("heed::AdamW: learning_rate = nan"), std::string::npos) << text;
  EXPECT_EQ(optimizer.learning_rate(), 1e-3);
  EXPECT_THROW(optimizer.set_steps(-1), heed::ValueError);
  EXPECT_THROW(optimizer.set_skipped_steps(0, 1), heed::ValueError);
}

TEST(Clip, ScalesToTheGlobalNorm) {
  Pair<double> model;
  model.set_gradients(3);
  const ParameterList<double> parameters(model);
  Context context;
  double squares = 0;
  for (const auto& entry : parameters) {
    for (Index i = 0; i < entry.parameter->size(); ++i) squares += std::pow(entry.parameter->grad()(i), 2);
  }
  const double norm = std::sqrt(squares), first = model.first.grad()(7);
  EXPECT_NEAR(heed::clip_grad_norm(parameters, 2 * norm, context), norm, 1e-11);
  EXPECT_EQ(model.first.grad()(7), first) << "a small norm changes nothing";
  EXPECT_NEAR(heed::clip_grad_norm(parameters, 0.5, context), norm, 1e-11);
  EXPECT_NEAR(model.first.grad()(7), first * 0.5 / norm, 1e-15);
  EXPECT_NEAR(heed::global_grad_norm(parameters, context), 0.5, 1e-14);
}

TEST(Clip, WhatIsNotFiniteIsNamed) {
  Pair<float> model;
  model.set_gradients(3);
  model.second.grad()(5) = std::nanf("");
  const float before = model.first.grad()(0);
  const std::string text =
      message_of<heed::ValueError>([&] { heed::clip_grad_norm(ParameterList<float>(model), 1e-3); });
  EXPECT_NE(text.find("the gradient of second"), std::string::npos) << text;
  EXPECT_EQ(model.first.grad()(0), before);
  EXPECT_THROW(heed::clip_grad_norm(ParameterList<float>(model), 0), heed::ValueError);
  // Squares beyond the range of float.
  model.second.grad()(5) = 1e30f;
  EXPECT_NEAR(heed::clip_grad_norm(ParameterList<float>(model), 1), 1e30, 1e24);
}

// Squares, and even the norm, may be beyond double: the gradients are clipped as others.
TEST(Clip, ReachesAsFarAsDouble) {
  for (const double size : {1e200, -1e200, 1e-200, 1e154, 1e-162, 5e-324, 1e-310, 1.7e308}) {
    SCOPED_TRACE(size);
    Pair<double> model(2);
    model.first.grad()(0) = 3 * (size / 4);
    model.first.grad()(1) = size;
    model.second.grad()(5) = 0;
    const ParameterList<double> parameters(model);
    const double a = model.first.grad()(0), b = model.first.grad()(1), norm = std::hypot(a, b);
    const double max_norm = std::min(1.0, norm / 8);
    if (std::isfinite(norm)) {
      EXPECT_NEAR(heed::global_grad_norm(parameters) / norm, 1, 1e-14);
    }
    if (max_norm == 0) continue;
    heed::clip_grad_norm(parameters, max_norm);
    // Results below the smallest normal number have fewer digits.
    const double unit = std::max(max_norm * 1e-14, 1e-323);
    EXPECT_NEAR(model.first.grad()(0), a / b * (b < 0 ? -0.8 : 0.8) * max_norm, unit);
    EXPECT_NEAR(model.first.grad()(1), b < 0 ? -0.8 * max_norm : 0.8 * max_norm, unit);
  }
}

// F51
TEST(Clip, OneInfinityIsNamed) {
  Pair<float> model;
  model.set_gradients(3);
  model.second.grad()(5) = std::numeric_limits<float>::infinity();
  const float before = model.first.grad()(0);
  EXPECT_TRUE(
      heed_test::has_all(message_of<heed::ValueError>([&] { heed::clip_grad_norm(ParameterList<float>(model), 1); }),
                         {"the gradient of second", "element 5 is inf"}));
  EXPECT_EQ(model.first.grad()(0), before);

  model.second.zero_grad();
  std::fill_n(model.first.grad().data(), model.first.size(), 0.0f);
  model.first.grad()(0) = 3e38f;
  model.second.grad()(1) = -3e38f;
  EXPECT_NEAR(heed::clip_grad_norm(ParameterList<float>(model), 1), 4.2426e38, 1e34);
  EXPECT_NEAR(model.first.grad()(0), std::sqrt(0.5), 1e-7);
  EXPECT_NEAR(model.second.grad()(1), -std::sqrt(0.5), 1e-7);
}

TEST(Clip, IsAnOptionOfTheStep) {
  Pair<float> a, b;
  heed::SGD<float> clipped(a, {.learning_rate = 0.1}), plain(b, {.learning_rate = 0.1});
  a.set_gradients(3);
  b.set_gradients(3);
  Context context;
  clipped.step(context, {.clip = 0.5});
  heed::clip_grad_norm(plain.parameters(), 0.5);
  plain.step();
  for (Index i = 0; i < a.first.size(); ++i) EXPECT_EQ(a.first.value()(i), b.first.value()(i));
  EXPECT_EQ(a.second.value()(1), b.second.value()(1));

  a.second.grad()(5) = std::nanf("");
  const float before = a.first.value()(0);
  EXPECT_THROW(clipped.step(context, {.clip = 0.5}), heed::ValueError);
  EXPECT_THROW(clipped.step(context, {.clip = -1}), heed::ValueError);
  EXPECT_EQ(clipped.steps(), 1);
  EXPECT_EQ(a.first.value()(0), before);
}

TEST(Schedule, WarmsUpAndDecays) {
  using heed::Decay;
  using heed::Schedule;
  const Schedule constant({.max_lr = 2, .warmup_steps = 4});
  EXPECT_DOUBLE_EQ(constant(0), 0.5);
  EXPECT_DOUBLE_EQ(constant(3), 2);
  EXPECT_DOUBLE_EQ(constant(1000000), 2);
  EXPECT_DOUBLE_EQ(Schedule({.max_lr = 2})(0), 2);

  const Schedule cosine({.max_lr = 1, .warmup_steps = 10, .decay = Decay::Cosine, .steps = 110, .min_lr = 0.2});
  EXPECT_DOUBLE_EQ(cosine(9), 1);
  EXPECT_DOUBLE_EQ(cosine(10), 1);
  EXPECT_NEAR(cosine(60), 0.6, 1e-15);
  EXPECT_NEAR(cosine(35), 0.2 + 0.4 * (1 + std::sqrt(0.5)), 1e-15);
  EXPECT_DOUBLE_EQ(cosine(110), 0.2);
  EXPECT_DOUBLE_EQ(cosine(500), 0.2);

  // d^-0.5 · min(t^-0.5, t · warmup^-1.5) of "Attention is all you need", t from 1 on.
  const double width = 512, warmup = 4000;
  const Schedule paper(
      {.max_lr = 1 / std::sqrt(width * warmup), .warmup_steps = 4000, .decay = Decay::InverseSquareRoot});
  for (const int t : {1, 100, 4000, 4001, 50000}) {
    EXPECT_NEAR(paper(t - 1), std::min(std::pow(t, -0.5), t * std::pow(warmup, -1.5)) / std::sqrt(width), 1e-18);
  }

  EXPECT_THROW(Schedule({.max_lr = std::nan("")}), heed::ValueError);
  EXPECT_THROW(Schedule({.max_lr = -1}), heed::ValueError);
  EXPECT_THROW(Schedule({.max_lr = 1, .min_lr = 2}), heed::ValueError);
  EXPECT_THROW(Schedule({.max_lr = 1, .warmup_steps = -1}), heed::ValueError);
  EXPECT_THROW(Schedule({.max_lr = 1, .warmup_steps = 5, .decay = Decay::Cosine, .steps = 5}), heed::ValueError);
  EXPECT_THROW(constant(-1), heed::ValueError);
}

}  // namespace
