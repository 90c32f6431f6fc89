// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/activation.hpp>

#include "common/random_inputs.hpp"
#include "common/special_values.hpp"
#include "common/views.hpp"

namespace {

using heed::Activation;
using heed::Index;
using heed::Vec;
using heed_test::equal_bits;
using heed_test::kInf;
using heed_test::kNaN;
using heed_test::Random;

constexpr std::array kActivations = {Activation::None, Activation::ReLU, Activation::GELU, Activation::GELUTanh,
                                     Activation::SiLU};

template <class T>
T scalar(Activation activation, T x) {
  switch (activation) {
    case Activation::None:
      return x;
    case Activation::ReLU:
      return heed::relu(x);
    case Activation::GELU:
      return heed::gelu(x);
    case Activation::GELUTanh:
      return heed::gelu_tanh(x);
    case Activation::SiLU:
      return heed::silu(x);
  }
  return kNaN<T>;
}
template <class T>
Vec<T> lanes(Activation activation, Vec<T> x) {
  switch (activation) {
    case Activation::None:
      return x;
    case Activation::ReLU:
      return heed::relu(x);
    case Activation::GELU:
      return heed::gelu(x);
    case Activation::GELUTanh:
      return heed::gelu_tanh(x);
    case Activation::SiLU:
      return heed::silu(x);
  }
  return Vec<T>(kNaN<T>);
}

// The formulas in long double.
long double exact_gelu(long double x) { return 0.5L * x * std::erfc(x * -0.70710678118654752440084436210484904L); }
long double tanh_argument(long double x) {
  return 0.79788456080286535587989211986876374L * (x + 0.044715L * x * x * x);
}
long double exact_gelu_tanh(long double x) { return 0.5L * x * (1 + std::tanh(tanh_argument(x))); }
long double exact_silu(long double x) { return x / (1 + std::exp(-x)); }

/// f(x) for x from low to high in equal steps, and at random in between.
template <class T, class F>
void for_each_x(double low, double high, F&& f) {
  const int steps = heed_test::effort(100'000);
  Random random(1);
  for (int i = 0; i <= steps; ++i) {
    f(static_cast<T>(low + (high - low) * i / steps));
    f(static_cast<T>(low + (high - low) * random.uniform()));
  }
}

template <class T>
class VecMathTest : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(VecMathTest, Scalars);

TYPED_TEST(VecMathTest, ReluKeepsWhatIsPositive) {
  using T = TypeParam;
  for_each_x<T>(-10, 10, [](T x) { EXPECT_EQ(heed::relu(x), x > 0 ? x : T(0)); });
}

TEST(VecMath, GeluInFloatIsWithinItsAbsoluteError) {
  long double worst = 0;
  for_each_x<float>(-8, 8, [&](float x) {
    worst =
        std::max(worst, std::abs(static_cast<long double>(heed::gelu(x)) - exact_gelu(static_cast<long double>(x))));
  });
  EXPECT_LE(worst, 3e-7L);
}

TEST(VecMath, GeluInFloatIsWithinItsRelativeErrorWhereItMatters) {
  long double worst = 0;
  const auto compare = [&](float x) {
    const long double exact = exact_gelu(static_cast<long double>(x));
    if (exact != 0) worst = std::max(worst, std::abs(static_cast<long double>(heed::gelu(x)) / exact - 1));
  };
  for_each_x<float>(-2, 100, compare);
  for_each_x<float>(-1e-3, 1e-3, compare);
  for_each_x<float>(-1e-30, 1e-30, compare);
  EXPECT_LE(worst, 1e-6L);
}

TEST(VecMath, GeluInFloatFallsToZeroOnTheLeft) {
  for_each_x<float>(-1e4, -8, [&](float x) {
    EXPECT_LE(heed::gelu(x), 0) << x;
    EXPECT_GE(heed::gelu(x), -1e-14f) << x;
  });
  EXPECT_EQ(heed::gelu(-20.f), 0);
  EXPECT_EQ(heed::gelu(std::numeric_limits<float>::lowest()), 0);
}

/// The largest |f(x)/exact(x) - 1| / (1 + |argument(x)|) in eps, over results that are normal numbers.
template <class T, class F, class Exact, class Argument>
double worst_relative_error(double low, double high, F&& f, Exact&& exact, Argument&& argument) {
  long double worst = 0;
  for_each_x<T>(low, high, [&](T x) {
    const auto wide = static_cast<long double>(x);
    const long double expected = exact(wide);
    if (std::abs(expected) < static_cast<long double>(std::numeric_limits<T>::min())) return;
    const long double error = std::abs(static_cast<long double>(f(x)) / expected - 1);
    worst = std::max(worst, error / (1 + std::abs(argument(wide))));
  });
  return static_cast<double>(worst / static_cast<long double>(std::numeric_limits<T>::epsilon()));
}

TEST(VecMath, GeluInDoubleIsWithinItsRelativeError) {
  if (sizeof(long double) == sizeof(double)) GTEST_SKIP() << "long double is no wider than double here";
  EXPECT_LE(worst_relative_error<double>(
                -35, 35, [](double x) { return heed::gelu(x); }, exact_gelu, [](long double x) { return x * x; }),
            1.5);
}

TYPED_TEST(VecMathTest, GeluTanhIsWithinItsRelativeError) {
  using T = TypeParam;
  // Further left the sum 1 + tanh cancels more digits than long double has to spare.
  const double low = std::is_same_v<T, float> ? -6 : -3;
  EXPECT_LE(worst_relative_error<T>(
                low, 30, [](T x) { return heed::gelu_tanh(x); }, exact_gelu_tanh,
                [](long double x) { return 2 * tanh_argument(x); }),
            1.5);
}

TYPED_TEST(VecMathTest, SiluIsWithinItsRelativeError) {
  using T = TypeParam;
  EXPECT_LE(worst_relative_error<T>(
                -85, 85, [](T x) { return heed::silu(x); }, exact_silu, [](long double x) { return x; }),
            1.5);
}

TYPED_TEST(VecMathTest, LimitsAndNaN) {
  using T = TypeParam;
  for (const Activation activation : kActivations) {
    SCOPED_TRACE(static_cast<int>(activation));
    EXPECT_TRUE(std::isnan(scalar(activation, kNaN<T>)));
    EXPECT_TRUE(std::isnan(scalar(activation, -kNaN<T>)));
    EXPECT_EQ(scalar(activation, kInf<T>), kInf<T>);
    EXPECT_EQ(scalar(activation, std::numeric_limits<T>::max()), std::numeric_limits<T>::max());
    EXPECT_EQ(scalar(activation, T(0)), 0);
    EXPECT_EQ(scalar(activation, T(-0.0)), 0);
    if (activation == Activation::None) continue;
    EXPECT_EQ(scalar(activation, -kInf<T>), 0);
    EXPECT_EQ(scalar(activation, std::numeric_limits<T>::lowest()), 0);
  }
}

TYPED_TEST(VecMathTest, LanesAreIndependentAndEqualTheScalar) {
  using T = TypeParam;
  constexpr int W = Vec<T>::size;
  Random random(2);
  for (const Activation activation : kActivations) {
    for (int repeat = 0; repeat < 200; ++repeat) {
      T x[W], y[W];
      for (T& value : x) value = static_cast<T>(random.normal() * 3);
      x[random.integer(0, W - 1)] = random.pick({kNaN<T>, kInf<T>, -kInf<T>, T(0), T(1)});
      lanes(activation, Vec<T>::load(x)).store(y);
      for (int i = 0; i < W; ++i) {
        const T alone = scalar(activation, x[i]);
        EXPECT_TRUE(equal_bits(y[i], alone) || (std::isnan(y[i]) && std::isnan(alone))) << x[i];
      }
    }
  }
}

TYPED_TEST(VecMathTest, AnArrayOfAnyLengthEqualsTheScalarsAndNothingBeyondIsTouched) {
  using T = TypeParam;
  Random random(3);
  for (const Activation activation : kActivations) {
    for (Index n = 0; n <= 5 * 4 * Vec<T>::size; ++n) {
      std::vector<T> x(static_cast<std::size_t>(n) + 2);
      for (T& value : x) value = static_cast<T>(random.normal() * 3);
      const std::vector<T> before = x;
      heed::detail::activate(activation, x.data() + 1, n);
      EXPECT_TRUE(equal_bits(x.front(), before.front()) && equal_bits(x.back(), before.back())) << n;
      for (std::size_t i = 1; i + 1 < x.size(); ++i) {
        EXPECT_TRUE(equal_bits(x[i], scalar(activation, before[i]))) << n << " " << before[i];
      }
    }
  }
}

}  // namespace
