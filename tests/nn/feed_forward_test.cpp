// SPDX-License-Identifier: MIT
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/compiled/layers.hpp>
#include <heed/nn/feed_forward.hpp>

#include "common/allocation_counter.hpp"
#include "nn/layer_checks.hpp"

namespace {

using heed::Activation;
using heed::FeedForward;
using heed::Index;
using heed::Tensor;
using namespace layer_checks;

template <class T>
class FeedForwardOf : public testing::Test {};
using FeedForwardElements = testing::Types<float, double>;
TYPED_TEST_SUITE(FeedForwardOf, FeedForwardElements);

template <class T>
FeedForward<T> random_feed_forward(const heed::FeedForwardOptions& options) {
  FeedForward<T> layer(options);
  initialize(layer, 3);
  return layer;
}

TYPED_TEST(FeedForwardOf, Formula) {
  using T = TypeParam;
  const auto x = random_tensor<T, 3>({2, 5, 8});
  for (const Activation activation :
       {Activation::None, Activation::ReLU, Activation::GELU, Activation::GELUTanh, Activation::SiLU}) {
    for (const bool gated : {false, true}) {
      SCOPED_TRACE(testing::Message() << "activation " << static_cast<int>(activation) << ", gated " << gated);
      const auto layer =
          random_feed_forward<T>({.embed_dim = 8, .ffn_dim = 19, .activation = activation, .gated = gated});
      Tensor<T, 3> hidden = layer.linear1(x);
      Tensor<T, 3> activated = gated ? (*layer.gate)(x) : hidden;
      heed::detail::activate(activation, activated.data(), activated.size());
      for (Index i = 0; i < hidden.size(); ++i) {
        hidden.data()[i] = gated ? hidden.data()[i] * activated.data()[i] : activated.data()[i];
      }
      EXPECT_LE(max_error(layer.linear2(hidden), layer(x)), sizeof(T) == 8 ? 1e-15 : 1e-6);
    }
  }
}

TYPED_TEST(FeedForwardOf, KeepsThePromisesOfALayer) {
  using T = TypeParam;
  for (const bool gated : {false, true}) {
    auto layer =
        random_feed_forward<T>({.embed_dim = 6, .ffn_dim = 10, .activation = Activation::SiLU, .gated = gated});
    for (int packed = 0; packed < 2; ++packed) {
      expect_same_for_any_strides<T>(layer, {2, 3, 6});
      expect_same_for_any_argument<T>(layer, 5, 6);
      EXPECT_EQ((layer(Tensor<T, 3>(0, 3, 6)).size()), 0);
      EXPECT_EQ((layer(Tensor<T, 3>(2, 0, 6)).size()), 0);
      layer.pack();
    }
    expect_overlap_refused<T>(layer, {2, 3, 6});
  }
}

TYPED_TEST(FeedForwardOf, PackedGivesTheSameBits) {
  using T = TypeParam;
  auto layer = random_feed_forward<T>({.embed_dim = 6, .activation = Activation::GELU, .gated = true});
  const auto x = random_tensor<T, 3>({2, 5, 6});
  const Tensor<T, 3> raw = layer(x);
  layer.pack({.release = true});
  EXPECT_TRUE(bits_equal(raw.view(), layer(x)));
  for (const auto* linear : {&layer.linear1, &layer.linear2, &*layer.gate}) {
    EXPECT_TRUE(linear->is_packed() && linear->weight.released());
  }
}

TYPED_TEST(FeedForwardOf, ResidualIsAdded) {
  using T = TypeParam;
  const auto layer = random_feed_forward<T>({.embed_dim = 6});
  const auto x = random_tensor<T, 3>({2, 5, 6}), residual = random_tensor<T, 3>({2, 5, 6}, 2);
  const Tensor<T, 3> plain = layer(x);
  Tensor<T, 3> y(2, 5, 6);
  heed::Context context;
  layer.run(x, residual, y, nullptr, context);
  for (Index i = 0; i < y.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(y.data()[i]), static_cast<double>(plain.data()[i] + residual.data()[i]), 1e-6);
  }
}

TYPED_TEST(FeedForwardOf, ShowsItsPartsBeforeTheActivation) {
  using T = TypeParam;
  struct First : Recorder {
    void output(std::string_view name, const heed::ObservedTensor& value) override {
      Recorder::output(name, value);
      values.push_back(value(1, 2, 3));
    }
    std::vector<double> values;
  } recorder;
  const auto layer = random_feed_forward<T>({.embed_dim = 6, .activation = Activation::SiLU, .gated = true});
  const auto x = random_tensor<T, 3>({2, 5, 6});
  const Tensor<T, 3> expected = layer(x);
  heed::Context context;
  context.observer = &recorder;
  const heed::Context::Scope scope(context, "mlp");
  EXPECT_TRUE(bits_equal(expected.view(), layer(x, context)));
  EXPECT_EQ(recorder.names, (std::vector<std::string>{"mlp.linear1", "mlp.gate", "mlp.linear2", "mlp"}));
  EXPECT_EQ(recorder.values[0], static_cast<double>(layer.linear1(x)(1, 2, 3)));
  EXPECT_EQ(recorder.values[1], static_cast<double>((*layer.gate)(x)(1, 2, 3)));
  EXPECT_EQ(recorder.values[3], static_cast<double>(expected(1, 2, 3)));
}

TYPED_TEST(FeedForwardOf, AllocatesNothingOnceWarm) {
  using T = TypeParam;
  if (!heed_test::counts_allocations()) GTEST_SKIP() << "allocations are not counted on this platform";
  const auto layer = random_feed_forward<T>({.embed_dim = 24, .activation = Activation::SiLU, .gated = true});
  const auto x = random_tensor<T, 3>({2, 30, 24});
  Tensor<T, 3> y(2, 30, 24);
  heed::Context context;
  layer.forward(x, y, context);
  EXPECT_EQ(heed_test::allocations_of([&] { layer.forward(x, y, context); }), 0);
}

TEST(FeedForward, NamesWidthsAndCounts) {
  const auto describe = [](const heed::FeedForwardOptions& options) {
    std::string text;
    FeedForward<float>(options).visit("a", [&](std::string_view name, const auto& parameter) {
      text += std::string(name) + " " + std::to_string(parameter.extents()[0]) + "x" +
              std::to_string(parameter.extents()[1]) + " ";
    });
    return text;
  };
  EXPECT_EQ(describe({.embed_dim = 3}),
            "a.linear1.weight 12x3 a.linear1.bias 12x1 a.linear2.weight 3x12 a.linear2.bias 3x1 ");
  EXPECT_EQ(describe({.embed_dim = 3, .ffn_dim = 5, .gated = true, .bias = false}),
            "a.linear1.weight 5x3 a.linear2.weight 3x5 a.gate.weight 5x3 ");
  EXPECT_EQ(FeedForward<float>({.embed_dim = 3}).options().ffn_dim, 12);
  EXPECT_FALSE(FeedForward<float>({.embed_dim = 3}).gate);
}

TEST(FeedForward, StartsEachPartApart) {
  FeedForward<float> layer({.embed_dim = 8, .ffn_dim = 8, .gated = true});
  initialize(layer, 1, "a");
  EXPECT_FALSE(bits_equal(layer.linear1.weight.value(), layer.linear2.weight.value()));
  EXPECT_FALSE(bits_equal(layer.linear1.weight.value(), layer.gate->weight.value()));
}

TEST(FeedForward, ErrorsSayWhatIsWrong) {
  EXPECT_EQ(message_of<heed::ShapeError>([] { FeedForward<float>({.embed_dim = 4, .ffn_dim = -1}); }),
            "heed::FeedForward: embed_dim = 4 must be at least 1 and ffn_dim = -1 at least 0, which means 4·embed_dim");
  EXPECT_EQ(message_of<heed::ShapeError>([] { FeedForward<float>({.embed_dim = 4})(Tensor<float, 3>(1, 2, 3)); }),
            "heed::FeedForward: x (1, 2, 3) has width 3 but the layer takes 4");
}

}  // namespace
