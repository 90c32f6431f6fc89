// SPDX-License-Identifier: MIT
#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include <heed/compiled/layers.hpp>
#include <heed/nn/linear.hpp>

#include "common/allocation_counter.hpp"
#include "common/golden.hpp"
#include "nn/layer_checks.hpp"

namespace {

using heed::Activation;
using heed::Index;
using heed::Linear;
using heed::Tensor;
using heed::TensorView;
using heed_test::Golden;
using heed_test::kGoldenTolerance;
using namespace layer_checks;

template <class T>
class LinearOf : public testing::Test {};
using LinearElements = testing::Types<float, double>;
TYPED_TEST_SUITE(LinearOf, LinearElements);

template <class T>
Linear<T> random_linear(const heed::LinearOptions& options, std::uint64_t seed = 3) {
  Linear<T> layer(options);
  fill_parameters<T>(layer, seed);
  return layer;
}

TYPED_TEST(LinearOf, ValuesFromPyTorch) {
  using T = TypeParam;
  for (const bool bias : {true, false}) {
    const Golden golden(bias ? "linear" : "linear_no_bias");
    Linear<T> layer({.in_features = 24, .out_features = bias ? 13 : 17, .bias = bias});
    golden.load_into(layer);
    const Tensor<T, 3> x = golden.tensor<T, 3>("in.x");
    EXPECT_TRUE(golden.agrees("out.y", layer(x), kGoldenTolerance<T>));
    layer.pack();
    EXPECT_TRUE(golden.agrees("out.y", layer(x), kGoldenTolerance<T>));
  }
}

TYPED_TEST(LinearOf, KeepsThePromisesOfALayer) {
  using T = TypeParam;
  for (const Index out : {1, 9, 40}) {
    SCOPED_TRACE(out);
    Linear<T> layer = random_linear<T>({.in_features = 17, .out_features = out});
    for (int packed = 0; packed < 2; ++packed) {
      expect_same_for_any_strides<T>(layer, {2, 3, 17});
      expect_same_for_any_argument<T>(layer, 5, 17);
      expect_observed<T>(layer, {2, 3, 17});
      EXPECT_EQ(layer(Tensor<T, 3>(0, 3, 17)).extents(), (heed::Extents<3>{0, 3, out}));
      EXPECT_EQ(layer(Tensor<T, 3>(2, 0, 17)).extents(), (heed::Extents<3>{2, 0, out}));
      layer.pack();
    }
  }
  expect_overlap_refused<T>(random_linear<T>({.in_features = 8, .out_features = 8}), {2, 3, 8});
}

TYPED_TEST(LinearOf, PackedGivesTheSameBits) {
  using T = TypeParam;
  for (const Index out : {1, 7, 16, 33, 100}) {
    for (const Index in : {1, 5, 64, 130}) {
      SCOPED_TRACE(testing::Message() << in << " -> " << out);
      Linear<T> layer = random_linear<T>({.in_features = in, .out_features = out});
      const auto x = random_tensor<T, 3>({2, 9, in});
      const Tensor<T, 3> raw = layer(x);
      EXPECT_FALSE(layer.is_packed());
      layer.pack();
      EXPECT_TRUE(layer.is_packed());
      EXPECT_TRUE(bits_equal(raw.view(), layer(x)));
      const Linear<T> copy = layer;
      EXPECT_TRUE(copy.is_packed());
      EXPECT_TRUE(bits_equal(raw.view(), copy(x)));
    }
  }
}

TYPED_TEST(LinearOf, MutableAccessDropsThePack) {
  using T = TypeParam;
  Linear<T> layer = random_linear<T>({.in_features = 6, .out_features = 5});
  const auto x = random_tensor<T, 3>({1, 2, 6});
  layer.pack();
  const Tensor<T, 3> before = layer(x);

  layer.weight.mutable_matrix()(3, 2) += T(1);
  EXPECT_FALSE(layer.is_packed());
  const Tensor<T, 3> after = layer(x);
  EXPECT_NEAR(static_cast<double>(after(0, 1, 3) - before(0, 1, 3)), static_cast<double>(x(0, 1, 2)), 1e-5);
  layer.pack();
  EXPECT_TRUE(layer.is_packed());
  EXPECT_TRUE(bits_equal(after.view(), layer(x)));

  // The bias is not packed: changing it shows at once and leaves the pack.
  layer.bias.mutable_value()(0) += T(2);
  EXPECT_TRUE(layer.is_packed());
  EXPECT_NEAR(static_cast<double>(layer(x)(0, 0, 0) - after(0, 0, 0)), 2, 1e-5);
}

TYPED_TEST(LinearOf, AssigningAWeightDropsThePack) {
  using T = TypeParam;
  // Both layers have lived through the same calls, so that counting their accesses could not tell them apart.
  Linear<T> layer = random_linear<T>({.in_features = 6, .out_features = 5});
  Linear<T> other = random_linear<T>({.in_features = 6, .out_features = 5});
  other.weight.mutable_matrix()(3, 2) += T(1);
  layer.weight.mutable_matrix()(0, 0) += T(1);
  other.bias = layer.bias;
  const auto x = random_tensor<T, 3>({1, 2, 6});
  const Tensor<T, 3> expected = other(x);
  layer.pack();

  layer.weight = other.weight;
  EXPECT_FALSE(layer.is_packed());
  EXPECT_TRUE(bits_equal(expected.view(), layer(x)));
  layer.pack();
  EXPECT_TRUE(bits_equal(expected.view(), layer(x)));

  // A copy of the very values that were packed leaves the pack as good as it was.
  layer.weight = heed::Parameter<T>(other.weight);
  EXPECT_TRUE(layer.is_packed());
  layer.weight = heed::Parameter<T>(5, 6);
  EXPECT_FALSE(layer.is_packed());
}

TYPED_TEST(LinearOf, RawWeightMayGoAfterPacking) {
  using T = TypeParam;
  Linear<T> layer = random_linear<T>({.in_features = 6, .out_features = 5});
  const auto x = random_tensor<T, 3>({1, 2, 6});
  const Tensor<T, 3> expected = layer(x);
  layer.pack({.release = true});
  EXPECT_TRUE(layer.weight.released());
  EXPECT_TRUE(bits_equal(expected.view(), layer(x)));
  layer.pack();  // still packed: nothing to do
  EXPECT_TRUE(bits_equal(expected.view(), layer(x)));
  EXPECT_THROW(layer.weight.value(), heed::ValueError);
  EXPECT_THROW(layer.weight.mutable_value(), heed::ValueError);
  EXPECT_TRUE(bits_equal(expected.view(), layer(x)));
  EXPECT_EQ(heed::parameter_count(layer), 5 * 6 + 5);
}

TYPED_TEST(LinearOf, ReleasedWithoutAPackIsAnError) {
  Linear<TypeParam> layer = random_linear<TypeParam>({.in_features = 6, .out_features = 5});
  layer.weight.release();
  EXPECT_THROW(layer(Tensor<TypeParam, 3>(1, 2, 6)), heed::ValueError);
  EXPECT_THROW(layer.pack(), heed::ValueError);
}

TYPED_TEST(LinearOf, EpilogueAddsActivationThenResidual) {
  using T = TypeParam;
  const Linear<T> layer = random_linear<T>({.in_features = 12, .out_features = 19});
  const auto x = random_tensor<T, 3>({2, 5, 12});
  const auto residual = random_tensor<T, 3>({2, 5, 19}, 8);
  const Tensor<T, 3> plain = layer(x);
  for (const Activation activation :
       {Activation::None, Activation::ReLU, Activation::GELU, Activation::GELUTanh, Activation::SiLU}) {
    for (const bool adds : {false, true}) {
      SCOPED_TRACE(testing::Message() << "activation " << static_cast<int>(activation) << ", residual " << adds);
      Tensor<T, 3> expected = plain, y(2, 5, 19);
      heed::detail::activate(activation, expected.data(), expected.size());
      for (Index i = 0; adds && i < y.size(); ++i) expected.data()[i] += residual.data()[i];
      const heed::Epilogue<T, 3> epilogue{.activation = activation,
                                          .residual = adds ? residual.view() : TensorView<const T, 3>{}};
      heed::Context context;
      layer.forward(x, epilogue, y, context);
      EXPECT_LE(max_error(expected.view(), y.view()), sizeof(T) == 8 ? 1e-14 : 2e-6);

      // An observer sees what the layer itself gives, and changes nothing.
      struct Copy : heed::Observer {
        void output(std::string_view, const heed::ObservedTensor& value) override { seen = value(1, 4, 18); }
        double seen = 0;
      } observer;
      context.observer = &observer;
      Tensor<T, 3> observed(2, 5, 19);
      layer.forward(x, epilogue, observed, context);
      EXPECT_EQ(observer.seen, static_cast<double>(plain(1, 4, 18)));
      EXPECT_TRUE(bits_equal(y.view(), observed.view()));
    }
  }
}

TYPED_TEST(LinearOf, ResidualOfAnyStrides) {
  using T = TypeParam;
  const Linear<T> layer = random_linear<T>({.in_features = 4, .out_features = 6});
  const auto x = random_tensor<T, 3>({3, 5, 4});
  const auto residual = random_tensor<T, 3>({3, 5, 6}, 8);
  Tensor<T, 3> expected(3, 5, 6);
  heed::Context context;
  layer.forward(x, {.residual = residual}, expected, context);
  for (const auto& order : {std::array<int, 3>{0, 2, 1}, {2, 1, 0}, {1, 0, 2}}) {
    Spaced<T, 3> spaced(residual.extents(), order, 2, 3), y(expected.extents(), order, 1, 0);
    copy(residual.view(), spaced.view());
    layer.forward(x, {.residual = spaced.view()}, y.view(), context);
    EXPECT_TRUE(bits_equal(expected.view(), y.view()));
  }
}

// A NaN or Inf in a row, or in memory that belongs to no element, shows in that row alone.
TYPED_TEST(LinearOf, ARowStaysInItself) {
  using T = TypeParam;
  Linear<T> layer = random_linear<T>({.in_features = 20, .out_features = 24});
  for (int packed = 0; packed < 2; ++packed) {
    auto x = random_tensor<T, 3>({2, 13, 20});
    const Tensor<T, 3> clean = layer(x);
    for (Index e = 0; e < 20; ++e) {
      x(0, 12, e) = std::numeric_limits<T>::quiet_NaN();
      x(1, 4, e) = std::numeric_limits<T>::infinity();
    }
    const Tensor<T, 3> poisoned = layer(x);
    for (Index b = 0; b < 2; ++b) {
      for (Index l = 0; l < 13; ++l) {
        if ((b == 0 && l == 12) || (b == 1 && l == 4)) {
          EXPECT_FALSE(std::isfinite(poisoned(b, l, 3)));
        } else {
          EXPECT_TRUE(bits_equal(clean.view()[b][l], poisoned.view()[b][l])) << b << ", " << l;
        }
      }
    }
    layer.pack();
  }
}

TYPED_TEST(LinearOf, AllocatesNothingOnceWarm) {
  using T = TypeParam;
  if (!heed_test::counts_allocations()) GTEST_SKIP() << "allocations are not counted on this platform";
  Linear<T> layer = random_linear<T>({.in_features = 40, .out_features = 50});
  const auto x = random_tensor<T, 3>({2, 30, 40});
  Tensor<T, 3> y(2, 30, 50);
  heed::Context context;
  for (int packed = 0; packed < 2; ++packed) {
    layer.forward(x, y, context);
    EXPECT_EQ(heed_test::allocations_of([&] { layer.forward(x, y, context); }), 0);
    layer.pack();
  }
}

TYPED_TEST(LinearOf, StartsAsInPyTorch) {
  using T = TypeParam;
  Linear<T> layer({.in_features = 64, .out_features = 200});
  initialize(layer, 5, "layers.0.linear1");
  layer.visit("", [](std::string_view name, const heed::Parameter<T>& parameter) {
    double low = 0, high = 0, squares = 0;
    for (Index i = 0; i < parameter.size(); ++i) {
      const double value = static_cast<double>(parameter.value()(i));
      low = std::min(low, value);
      high = std::max(high, value);
      squares += value * value;
    }
    EXPECT_GE(low, -0.125) << name;
    EXPECT_LT(low, -0.12) << name;
    EXPECT_LE(high, 0.125) << name;
    EXPECT_GT(high, 0.12) << name;
    // A uniform number's variance is the bound's square over 3.
    EXPECT_NEAR(squares / static_cast<double>(parameter.size()) * 3 * 64, 1, 0.25) << name;
  });

  Linear<T> again({.in_features = 64, .out_features = 200}), elsewhere = again;
  initialize(again, 5, "layers.0.linear1");
  initialize(elsewhere, 5, "layers.1.linear1");
  EXPECT_TRUE(bits_equal(layer.weight.value(), again.weight.value()));
  EXPECT_FALSE(bits_equal(layer.weight.value(), elsewhere.weight.value()));
  EXPECT_FALSE(bits_equal(layer.bias.value(), elsewhere.bias.value()));
}

TEST(Linear, NamesAndCounts) {
  const Linear<float> layer({.in_features = 3, .out_features = 4});
  std::string names;
  layer.visit("encoder.head", [&](std::string_view name, const auto& parameter) {
    names += std::string(name) + " " + std::to_string(parameter.extents()[0]) + " ";
  });
  EXPECT_EQ(names, "encoder.head.weight 4 encoder.head.bias 4 ");
  EXPECT_EQ(heed::parameter_count(layer), 4 * 3 + 4);
  EXPECT_EQ(heed::parameter_count(Linear<float>({.in_features = 3, .out_features = 4, .bias = false})), 4 * 3);
}

TEST(Linear, ErrorsSayWhatIsWrong) {
  const Linear<float> layer({.in_features = 3, .out_features = 4});
  heed::Context context;
  EXPECT_EQ(message_of<heed::ShapeError>([&] { layer(Tensor<float, 3>(2, 5, 7)); }),
            "heed::Linear: x (2, 5, 7) has width 7 but the layer takes 3");
  Tensor<float, 3> x(2, 5, 3), y(2, 4, 4), fits(2, 5, 4), residual(2, 5, 3);
  EXPECT_EQ(message_of<heed::ShapeError>([&] { layer.forward(x, y, context); }),
            "heed::Linear: y (2, 4, 4) does not fit x (2, 5, 3); make it (2, 5, 4)");
  EXPECT_EQ(message_of<heed::ShapeError>([&] { layer.forward(x, {.residual = residual}, fits, context); }),
            "heed::Linear: residual (2, 5, 3) does not fit y (2, 5, 4); they are added element by element");
  EXPECT_EQ(message_of<heed::ValueError>([&] { layer.forward(x, {.residual = fits}, fits, context); }),
            "heed::Linear: y shares memory with the residual; it needs separate memory");
  EXPECT_EQ(message_of<heed::ShapeError>([] { Linear<float>({.in_features = 0, .out_features = 4}); }),
            "heed::Linear: in_features = 0 and out_features = 4 must be at least 1");
}

}  // namespace
