// SPDX-License-Identifier: MIT
// IntSpan and IntView: integers of every type from everything that holds them, and what is refused.
#include <array>
#include <cstdint>
#include <limits>
#include <list>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/integers.hpp>

namespace heed_test {
namespace {

using heed::IntSpan;
using heed::IntView;

template <class T>
class IntegersOf : public testing::Test {};
using IntegerTypes = testing::Types<signed char, unsigned char, short, unsigned short, int, unsigned, long,
                                    unsigned long, long long, unsigned long long>;
TYPED_TEST_SUITE(IntegersOf, IntegerTypes);

// F47
TYPED_TEST(IntegersOf, EveryContainerAreReadInPlace) {
  using T = TypeParam;
  using Vector = Eigen::Matrix<T, Eigen::Dynamic, 1>;
  const std::vector<T> vector{3, 1, 7};
  const std::array<T, 3> array{3, 1, 7};
  const T plain[] = {3, 1, 7};
  Vector eigen(3);
  eigen << T(3), T(1), T(7);
  const Eigen::Matrix<T, 1, 3> row = eigen.transpose();
  Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic> matrix(2, 3);
  matrix.row(1) = row;
  heed::Tensor<T, 1> tensor(3);
  heed::Tensor<T, 2> table(3, 2);
  for (int i = 0; i < 3; ++i) tensor(i) = table(i, 1) = vector[static_cast<std::size_t>(i)];
  const IntSpan spans[] = {vector,        array,
                           plain,         std::span<const T>(vector),
                           eigen,         row,
                           matrix.row(1), Eigen::Map<const Vector>(plain, 3),
                           tensor,        table.view().transpose(0, 1)[1],
                           eigen.head(3), Eigen::Ref<const Vector>(eigen)};
  for (const IntSpan& span : spans) {
    ASSERT_EQ(span.size(), 3);
    EXPECT_EQ(span[0], 3);
    EXPECT_EQ(span[1], 1);
    EXPECT_EQ(span[2], 7);
    EXPECT_EQ(span.text(2), "7");
    EXPECT_EQ(IntView(span).extents(), (heed::Extents<2>{1, 3}));
    EXPECT_EQ(IntView(span)(0, 2), 7);
  }
  const IntView views[] = {table, table.view(), matrix};
  EXPECT_EQ(views[0].extents(), (heed::Extents<2>{3, 2}));
  EXPECT_EQ(views[1](2, 1), 7);
  EXPECT_EQ(views[2](1, 2), 7);
  EXPECT_EQ(views[2].text(1, 0), "3");
  EXPECT_EQ(IntView(std::as_const(table)).transpose()(1, 0), 3);
}

TYPED_TEST(IntegersOf, ExtremesKeepTheirValues) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  const T extremes[] = {Limits::min(), Limits::max()};
  const IntSpan span(extremes);
  EXPECT_EQ(span.text(0), std::to_string(Limits::min()));
  EXPECT_EQ(span.text(1), std::to_string(Limits::max()));
  constexpr heed::Index most = std::numeric_limits<heed::Index>::max();
  EXPECT_EQ(span[1], std::in_range<heed::Index>(Limits::max()) ? static_cast<heed::Index>(Limits::max()) : most);
  EXPECT_TRUE(std::cmp_equal(span[0], Limits::min()));
}

TEST(Integers, CountsUpToAValue) {
  const std::uint16_t offsets[] = {0, 2, 2, 5};
  const IntSpan span(offsets);
  for (int value = -1; value < 7; ++value) {
    int up_to = 0, below = 0;
    for (const int x : offsets) up_to += x <= value, below += x < value;
    EXPECT_EQ(span.upper_bound(value), up_to);
    EXPECT_EQ(span.lower_bound(value), below);
  }
  EXPECT_EQ(IntSpan().upper_bound(1), 0);
  EXPECT_TRUE(IntSpan().empty());
}

enum class Token : std::uint16_t { Begin = 1, End = 60000 };
enum class Switch : bool { Off, On };

TEST(Integers, EnumerationsAreIntegers) {
  const std::vector<Token> tokens{Token::Begin, Token::End};
  EXPECT_EQ(IntSpan(tokens)[0], 1);
  EXPECT_EQ(IntSpan(tokens)[1], 60000);
}

template <class T>
concept TakesBraces = requires { T({3, 1}); };
template <class T>
inline constexpr bool is_refused = !std::is_constructible_v<IntSpan, T> && !std::is_constructible_v<IntView, T>;

TEST(Integers, OfTemporariesDoNotCompile) {
  static_assert(!TakesBraces<IntSpan>);
  static_assert(is_refused<std::vector<int>>);
  static_assert(is_refused<std::vector<std::int64_t>>);
  static_assert(is_refused<const std::vector<int>>);
  static_assert(is_refused<std::array<int, 3>>);
  static_assert(is_refused<Eigen::VectorXi>);
  static_assert(is_refused<Eigen::MatrixXi>);
  static_assert(is_refused<heed::Tensor<int, 1>>);
  static_assert(is_refused<heed::Tensor<std::int64_t, 2>>);
  static_assert(is_refused<std::initializer_list<long>>);
  static_assert(std::is_constructible_v<IntSpan, std::span<const long>>);
  static_assert(std::is_constructible_v<IntSpan, heed::TensorView<const long, 1>>);
}

TEST(Integers, OtherTypesDoNotCompile) {
  static_assert(is_refused<std::vector<bool>&>);
  static_assert(is_refused<std::array<bool, 2>&>);
  static_assert(is_refused<std::vector<float>&>);
  static_assert(is_refused<Eigen::VectorXf&>);
  static_assert(is_refused<Eigen::MatrixXd&>);
  static_assert(is_refused<std::string&>);
  static_assert(is_refused<const char(&)[4]>);
  static_assert(is_refused<std::vector<wchar_t>&>);
  static_assert(is_refused<std::vector<Switch>&>);
  static_assert(is_refused<std::list<int>&>);
  static_assert(!std::is_constructible_v<IntSpan, heed::Tensor<int, 2>&>);
  static_assert(!std::is_constructible_v<IntView, heed::Tensor<int, 3>&>);
}

}  // namespace
}  // namespace heed_test
