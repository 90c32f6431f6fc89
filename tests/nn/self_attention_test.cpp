// SPDX-License-Identifier: MIT
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/compiled/layers.hpp>
#include <heed/mask/basic.hpp>
#include <heed/mask/bool_mask.hpp>
#include <heed/nn/self_attention.hpp>

#include "common/allocation_counter.hpp"
#include "nn/layer_checks.hpp"

namespace {

using Eigen::MatrixXd;
using Eigen::MatrixXf;
using heed::Causal;
using heed::Index;
using heed::NoMask;
using heed::Padding;
using heed::SelfAttention;
using heed::Tensor;
using heed::TensorView;
using namespace layer_checks;

template <class T>
SelfAttention<T> random_attention(const heed::SelfAttentionOptions& options) {
  SelfAttention<T> layer(options);
  fill_parameters<T>(layer, 3);
  return layer;
}

template <class T>
MatrixXd as_double(const heed::Linear<T>& layer) {
  return layer.weight.matrix().matrix().template cast<double>();
}

/// a·bᵀ. (Eigen's own product draws a mistaken warning from g++ 12 with AVX-512.)
MatrixXd times_transposed(const MatrixXd& a, const MatrixXd& b) {
  MatrixXd c(a.rows(), b.rows());
  for (Index i = 0; i < a.rows(); ++i) {
    for (Index j = 0; j < b.rows(); ++j) {
      c(i, j) = 0;
      for (Index k = 0; k < a.cols(); ++k) c(i, j) += a(i, k) * b(j, k);
    }
  }
  return c;
}

/// softmax(scale·q·kᵀ).
MatrixXd softmax_of_scores(const MatrixXd& q, const MatrixXd& k, double scale) {
  MatrixXd weights = times_transposed(q, k);
  for (Index i = 0; i < weights.rows(); ++i) {
    double sum = 0;
    for (Index j = 0; j < weights.cols(); ++j) sum += weights(i, j) = std::exp(scale * weights(i, j));
    for (Index j = 0; j < weights.cols(); ++j) weights(i, j) /= sum;
  }
  return weights;
}

/// weights·v.
MatrixXd average(const MatrixXd& weights, const MatrixXd& v) {
  MatrixXd v_transposed(v.cols(), v.rows());
  for (Index i = 0; i < v.rows(); ++i) {
    for (Index j = 0; j < v.cols(); ++j) v_transposed(j, i) = v(i, j);
  }
  return times_transposed(weights, v_transposed);
}

// The formula as the textbook writes it.
TEST(SelfAttention, Formula) {
  const auto layer = random_attention<double>({.embed_dim = 6, .head_dim = 4, .value_head_dim = 5});
  const auto numbers = random_tensor<double, 2>({7, 6});
  const MatrixXd x = numbers.matrix();
  const MatrixXd q = times_transposed(x, as_double(layer.q_proj)), k = times_transposed(x, as_double(layer.k_proj)),
                 v = times_transposed(x, as_double(layer.v_proj));
  const MatrixXd expected_weights = softmax_of_scores(q, k, 0.5), expected = average(expected_weights, v);

  const MatrixXd y = layer(x);
  EXPECT_EQ(y.cols(), 5);
  EXPECT_LE(largest(y - expected), 1e-13 * largest(expected));
  const auto [same, weights] = layer.with_weights(x);
  static_assert(heed::EigenDense<decltype(same)> && heed::EigenDense<decltype(weights)>);
  EXPECT_EQ(same, y);
  EXPECT_LE(largest(weights - expected_weights), 1e-14);
}

TEST(SelfAttention, OptionsOfTheFormula) {
  const auto layer = random_attention<double>(
      {.embed_dim = 6, .head_dim = 4, .value_head_dim = 5, .out_dim = 3, .bias = true, .scale = 0.3});
  const auto numbers = random_tensor<double, 2>({7, 6});
  const MatrixXd x = numbers.matrix();
  const auto project = [](const heed::Linear<double>& linear, const MatrixXd& in) {
    MatrixXd result = times_transposed(in, as_double(linear));
    for (Index i = 0; i < result.rows(); ++i) {
      for (Index j = 0; j < result.cols(); ++j) result(i, j) += linear.bias.value()(j);
    }
    return result;
  };
  const MatrixXd weights = softmax_of_scores(project(layer.q_proj, x), project(layer.k_proj, x), 0.3);
  const MatrixXd expected = project(*layer.out_proj, average(weights, project(layer.v_proj, x)));
  const MatrixXd y = layer(x);
  EXPECT_EQ(y.cols(), 3);
  EXPECT_LE(largest(y - expected), 1e-13 * largest(expected));
}

TEST(SelfAttention, WidthsNamesAndCounts) {
  const auto describe = [](const heed::SelfAttentionOptions& options) {
    std::string text;
    SelfAttention<float>(options).visit("a", [&](std::string_view name, const auto& parameter) {
      text += std::string(name) + " " + std::to_string(parameter.extents()[0]) + "x" +
              std::to_string(parameter.extents()[1]) + " ";
    });
    return text;
  };
  EXPECT_EQ(describe({.embed_dim = 6, .head_dim = 4, .value_head_dim = 5}),
            "a.q_proj.weight 4x6 a.k_proj.weight 4x6 a.v_proj.weight 5x6 ");
  EXPECT_EQ(describe({.embed_dim = 6}), "a.q_proj.weight 6x6 a.k_proj.weight 6x6 a.v_proj.weight 6x6 ");
  EXPECT_EQ(describe({.embed_dim = 6, .head_dim = 4, .out_dim = 6, .bias = true}),
            "a.q_proj.weight 4x6 a.q_proj.bias 4x1 a.k_proj.weight 4x6 a.k_proj.bias 4x1 a.v_proj.weight 4x6 "
            "a.v_proj.bias 4x1 a.out_proj.weight 6x4 a.out_proj.bias 6x1 ");
  EXPECT_EQ(heed::parameter_count(SelfAttention<float>({.embed_dim = 6, .head_dim = 4, .value_head_dim = 5})),
            6 * 4 + 6 * 4 + 6 * 5);
}

template <class T>
class SelfAttentionOf : public testing::Test {};
using SelfAttentionElements = testing::Types<float, double>;
TYPED_TEST_SUITE(SelfAttentionOf, SelfAttentionElements);

TYPED_TEST(SelfAttentionOf, SameForAnyArgument) {
  using T = TypeParam;
  auto layer = random_attention<T>({.embed_dim = 9, .head_dim = 5, .value_head_dim = 7});
  for (int packed = 0; packed < 2; ++packed) {
    expect_same_for_any_argument<T>(layer, 6, 9);
    EXPECT_EQ(layer(Tensor<T, 3>(0, 3, 9)).extents(), (heed::Extents<3>{0, 3, 7}));
    EXPECT_EQ(layer(Tensor<T, 3>(2, 0, 9)).extents(), (heed::Extents<3>{2, 0, 7}));
    layer.pack();
  }
}

TYPED_TEST(SelfAttentionOf, SameForAnyStrides) {
  using T = TypeParam;
  for (const Index out : {0, 4}) {
    const auto layer = random_attention<T>({.embed_dim = 5, .head_dim = 3, .value_head_dim = 6, .out_dim = out});
    const auto x = random_tensor<T, 3>({2, 4, 5});
    const Tensor<T, 3> expected = layer(x, Causal{});
    heed::Context context;
    for (const auto& order : {std::array<int, 3>{0, 1, 2}, {0, 2, 1}, {2, 1, 0}, {1, 0, 2}}) {
      Spaced<T, 3> from(x.extents(), order, 2, 1), to(expected.extents(), order, 3, 2);
      copy(x.view(), from.view());
      layer.forward(from.view(), Causal{}, to.view(), context);
      EXPECT_TRUE(bits_equal(expected.view(), to.view()));
      EXPECT_EQ(to.written(), static_cast<std::size_t>(expected.size()));
    }
  }
}

TYPED_TEST(SelfAttentionOf, MasksReachTheWeights) {
  using T = TypeParam;
  const auto layer = random_attention<T>({.embed_dim = 6, .head_dim = 4, .value_head_dim = 5});
  const auto x = random_tensor<T, 3>({2, 5, 6});
  const std::vector<int> lengths{5, 2};
  const auto [y, weights] = layer.with_weights(x, Causal{} & Padding(lengths));
  EXPECT_TRUE(bits_equal(y.view(), layer(x, Causal{} & Padding(lengths))));
  for (Index b = 0; b < 2; ++b) {
    for (Index q = 0; q < 5; ++q) {
      double sum = 0;
      for (Index k = 0; k < 5; ++k) {
        const bool visible = k <= q && k < lengths[static_cast<std::size_t>(b)];
        EXPECT_EQ(weights(b, q, k) != T(0), visible) << b << q << k;
        sum += static_cast<double>(weights(b, q, k));
      }
      EXPECT_NEAR(sum, 1, 1e-6);
    }
  }
  // What sees only itself is its own value.
  const MatrixXd value = times_transposed(x.matrix(1).template cast<double>(), as_double(layer.v_proj));
  for (Index e = 0; e < 5; ++e) EXPECT_NEAR(static_cast<double>(y(1, 0, e)), value(0, e), 1e-5);
}

TYPED_TEST(SelfAttentionOf, PackedGivesTheSameBits) {
  using T = TypeParam;
  auto layer = random_attention<T>({.embed_dim = 6, .head_dim = 4, .value_head_dim = 5, .out_dim = 6});
  const auto x = random_tensor<T, 3>({2, 5, 6});
  const Tensor<T, 3> raw = layer(x);
  layer.pack({.release = true});
  EXPECT_TRUE(bits_equal(raw.view(), layer(x)));
  EXPECT_TRUE(layer.q_proj.is_packed() && layer.k_proj.is_packed() && layer.v_proj.is_packed() &&
              layer.out_proj->is_packed());
  EXPECT_TRUE(layer.q_proj.weight.released() && layer.out_proj->weight.released());
}

TYPED_TEST(SelfAttentionOf, AllocatesNothingOnceWarm) {
  using T = TypeParam;
  if (!heed_test::counts_allocations()) GTEST_SKIP() << "allocations are not counted on this platform";
  const auto layer = random_attention<T>({.embed_dim = 16, .head_dim = 8, .value_head_dim = 12, .out_dim = 16});
  const auto x = random_tensor<T, 3>({2, 30, 16});
  Tensor<T, 3> y(2, 30, 16), weights(2, 30, 30);
  heed::Context context;
  layer.forward_with_weights(x, Causal{}, y, weights, context);
  EXPECT_EQ(heed_test::allocations_of([&] {
              layer.forward(x, Causal{}, y, context);
              layer.forward_with_weights(x, Causal{}, y, weights, context);
            }),
            0);
}

TYPED_TEST(SelfAttentionOf, ShowsOutputsAndWeights) {
  using T = TypeParam;
  const auto layer = random_attention<T>({.embed_dim = 6, .head_dim = 4, .value_head_dim = 5, .out_dim = 3});
  const auto x = random_tensor<T, 3>({2, 5, 6});
  const auto [y, weights] = layer.with_weights(x, Causal{});
  WeightRecorder recorder;
  heed::Context context;
  context.observer = &recorder;
  const heed::Context::Scope scope(context, "attention");
  EXPECT_TRUE(bits_equal(y.view(), layer(x, Causal{}, context)));
  EXPECT_EQ(recorder.names, (std::vector<std::string>{"attention.q_proj", "attention.k_proj", "attention.v_proj",
                                                      "attention.out_proj", "attention"}));
  EXPECT_TRUE(recorder.shown.empty());
  recorder.wanted = "attention";
  EXPECT_TRUE(bits_equal(y.view(), layer(x, Causal{}, context)));
  EXPECT_EQ(recorder.shown, std::vector<std::string>{"attention"});
  EXPECT_EQ(recorder.extents, (std::vector<Index>{2, 1, 5, 5}));
  EXPECT_EQ(recorder.last, static_cast<double>(weights(1, 2, 1)));
}

TEST(SelfAttention, DropoutOnlyWhileTraining) {
  const auto layer = random_attention<float>({.embed_dim = 6, .dropout = 0.5});
  const auto plain = random_attention<float>({.embed_dim = 6});
  const auto x = random_tensor<float, 3>({1, 20, 6});
  heed::Context context;
  EXPECT_TRUE(bits_equal(plain(x), layer(x, context)));
  context.training = true;
  const Tensor<float, 3> first = layer(x, context), second = layer(x, context);
  EXPECT_FALSE(bits_equal(plain(x), first.view()));
  EXPECT_FALSE(bits_equal(first.view(), second.view()));
  context.restart_streams();
  EXPECT_TRUE(bits_equal(first.view(), layer(x, context)));
}

TEST(SelfAttention, StartsWithinXaviersBounds) {
  SelfAttention<float> layer({.embed_dim = 30, .head_dim = 24, .bias = true});
  initialize(layer, 4, "a");
  const double bound = std::sqrt(6.0 / (30 + 24));
  for (const auto* linear : {&layer.q_proj, &layer.k_proj, &layer.v_proj}) {
    const double size = largest(as_double(*linear));
    EXPECT_LE(size, bound);
    EXPECT_GT(size, 0.95 * bound);
    for (Index i = 0; i < 24; ++i) EXPECT_EQ(linear->bias.value()(i), 0.f);
  }
  EXPECT_FALSE(bits_equal(layer.q_proj.weight.value(), layer.k_proj.weight.value()));
  SelfAttention<float> again({.embed_dim = 30, .head_dim = 24, .bias = true}), other = again;
  initialize(again, 4, "a");
  initialize(other, 4, "b");
  EXPECT_TRUE(bits_equal(layer.v_proj.weight.value(), again.v_proj.weight.value()));
  EXPECT_FALSE(bits_equal(layer.v_proj.weight.value(), other.v_proj.weight.value()));
}

TEST(SelfAttention, ErrorsSayWhatIsWrong) {
  SelfAttention<float> layer({.embed_dim = 3, .value_head_dim = 4});
  initialize(layer, 1);
  heed::Context context;
  EXPECT_EQ(message_of<heed::ShapeError>([&] { layer(Tensor<float, 3>(2, 5, 7)); }),
            "heed::SelfAttention: x (2, 5, 7) has width 7 but the layer takes 3");
  Tensor<float, 3> x(2, 5, 3), y(2, 5, 4), wrong(2, 5, 3);
  EXPECT_EQ(message_of<heed::ShapeError>([&] { layer.forward(x, NoMask{}, wrong, context); }),
            "heed::SelfAttention: y (2, 5, 3) does not fit x (2, 5, 3); make it (2, 5, 4)");
  EXPECT_EQ(message_of<heed::ShapeError>([&] { layer.forward_with_weights(x, NoMask{}, y, wrong, context); }),
            "heed::SelfAttention: weights (2, 5, 3) do not fit x (2, 5, 3); make them (2, 5, 5)");
  EXPECT_EQ(message_of<heed::ShapeError>([] { SelfAttention<float>({.embed_dim = 0}); }),
            "heed::SelfAttention: embed_dim = 0 must be at least 1, head_dim = 0, value_head_dim = 0 and out_dim = 0 "
            "at least 0");
  EXPECT_EQ(message_of<heed::ValueError>([] { SelfAttention<float>({.embed_dim = 4, .dropout = 1.5}); }),
            "heed::SelfAttention: dropout = 1.5 must be a probability between 0 and 1");
  EXPECT_EQ(message_of<heed::ValueError>([] { SelfAttention<float>({.embed_dim = 4, .scale = HUGE_VAL}); }),
            "heed::SelfAttention: scale = inf must be finite");
  const std::vector<int> lengths{1};
  EXPECT_THROW(layer(x, Padding(lengths)), heed::ShapeError);
}

}  // namespace
