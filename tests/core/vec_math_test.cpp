// SPDX-License-Identifier: MIT
// Functions of rows: every length, so that registers and rest meet at every place. exp2, exp and tanh are in simd_test.
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/scalar.hpp>
#include <heed/core/vec_math.hpp>

namespace {

using heed::Index;
using heed::Vec;

template <class T>
class RowTest : public testing::Test {};
using RowScalars = testing::Types<float, double>;
TYPED_TEST_SUITE(RowTest, RowScalars);

/// n small whole numbers: their sums and products are exact in any order.
template <class T>
std::vector<T> whole_numbers(Index n, int factor) {
  std::vector<T> row(static_cast<std::size_t>(n));
  for (Index i = 0; i < n; ++i) row[static_cast<std::size_t>(i)] = static_cast<T>(i * factor % 7 - 3);
  return row;
}

TYPED_TEST(RowTest, SumsAndProductsOfEveryLength) {
  using T = TypeParam;
  for (Index n = 0; n < 70; ++n) {
    const std::vector<T> x = whole_numbers<T>(n, 3), y = whole_numbers<T>(n, 5);
    T total = 0, product = 0;
    std::vector<T> scaled = y;
    for (std::size_t i = 0; i < x.size(); ++i) {
      total += x[i];
      product += x[i] * y[i];
      scaled[i] += 2 * x[i];
    }
    EXPECT_EQ(heed::detail::sum_row(x.data(), n), total);
    EXPECT_EQ(heed::detail::dot_row(x.data(), y.data(), n), product);
    std::vector<T> sum = y;
    heed::detail::add_scaled_row(T(2), x.data(), sum.data(), n);
    EXPECT_EQ(sum, scaled);
    sum = y;
    heed::detail::add_row(sum.data(), x.data(), 1, n);
    heed::detail::add_row(sum.data(), x.data(), 1, n);
    EXPECT_EQ(sum, scaled);
  }
}

/// has_non_finite() of two rows, 3 elements apart, with each element in turn replaced; the gap does not count.
template <class S>
void expect_non_finite_found() {
  using A = heed::accumulate_t<S>;
  for (const Index width : {1, 2, 3, 8, 17, 40, 70}) {
    const Index stride = width + 3;
    std::vector<S> rows(static_cast<std::size_t>(2 * stride), static_cast<S>(A(1)));
    for (const A bad : {std::numeric_limits<A>::quiet_NaN(), std::numeric_limits<A>::infinity(),
                        -std::numeric_limits<A>::infinity()}) {
      for (Index at = 0; at < 2 * stride; ++at) {
        S& element = rows[static_cast<std::size_t>(at)];
        element = static_cast<S>(bad);
        EXPECT_EQ(heed::detail::has_non_finite(rows.data(), stride, 2, width), at % stride < width) << at;
        element = static_cast<S>(A(1));
      }
    }
    EXPECT_FALSE(heed::detail::has_non_finite(rows.data(), stride, 2, width));
  }
}

TEST(HasNonFinite, FindsEveryElementOfEveryType) {
  expect_non_finite_found<float>();
  expect_non_finite_found<double>();
  expect_non_finite_found<heed::half>();
  expect_non_finite_found<heed::bfloat16>();
}

TYPED_TEST(RowTest, SigmoidHasItsLimits) {
  using T = TypeParam;
  const auto sigmoid = [](T x) {
    T lanes[Vec<T>::size];
    heed::sigmoid(Vec<T>(x)).store(lanes);
    return lanes[0];
  };
  EXPECT_EQ(sigmoid(T(0)), T(0.5));
  EXPECT_EQ(sigmoid(std::numeric_limits<T>::infinity()), T(1));
  EXPECT_EQ(sigmoid(-std::numeric_limits<T>::infinity()), T(0));
  EXPECT_TRUE(std::isnan(sigmoid(std::numeric_limits<T>::quiet_NaN())));
  for (T x = -8; x <= 8; x += T(0.25))
    EXPECT_NEAR(sigmoid(x), 1 / (1 + std::exp(-x)), 20 * std::numeric_limits<T>::epsilon());
}

}  // namespace
