// SPDX-License-Identifier: MIT
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/scalar.hpp>

#include "common/float_modes.hpp"

namespace {

using heed::bfloat16;
using heed::half;

static_assert(std::is_same_v<heed::accumulate_t<half>, float>);
static_assert(std::is_same_v<heed::accumulate_t<const bfloat16>, float>);
static_assert(std::is_same_v<heed::accumulate_t<float>, float>);
static_assert(std::is_same_v<heed::accumulate_t<const double>, double>);
static_assert(heed::is_narrow_v<half> && heed::is_narrow_v<const bfloat16> && !heed::is_narrow_v<float>);
static_assert(heed::StorageFor<float, float> && heed::StorageFor<half, float> && heed::StorageFor<bfloat16, float>);
static_assert(!heed::StorageFor<double, float> && !heed::StorageFor<float, double> && !heed::StorageFor<float, half>);

/// What the bits of a 16-bit number mean, by the definition of IEEE 754: `exponent_bits` and 15 - exponent_bits.
double meaning(std::uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

template <class T>
void expect_every_pattern_means_its_number(int exponent_bits) {
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const T x = std::bit_cast<T>(static_cast<std::uint16_t>(bits));
    const double right = meaning(static_cast<std::uint16_t>(bits), exponent_bits);
    const double read = static_cast<double>(static_cast<float>(x));
    if (std::isnan(right)) {
      ASSERT_TRUE(std::isnan(read)) << std::hex << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(T(static_cast<float>(x))))) << std::hex << bits;
      continue;
    }
    ASSERT_EQ(read, right) << std::hex << bits;
    ASSERT_EQ(std::signbit(read), std::signbit(right)) << std::hex << bits;
    ASSERT_EQ(std::bit_cast<std::uint16_t>(T(static_cast<float>(x))), bits) << "does not survive float";
  }
}

TEST(Scalar, EveryHalfMeansItsNumberAndSurvivesFloat) { expect_every_pattern_means_its_number<half>(5); }
TEST(Scalar, EveryBfloat16MeansItsNumberAndSurvivesFloat) { expect_every_pattern_means_its_number<bfloat16>(8); }

/// Between neighbors a and b, float rounds to the nearer one, from the middle to the even one.
template <class T>
void expect_rounding_to_nearest_even() {
  const auto infinity = std::bit_cast<std::uint16_t>(std::numeric_limits<T>::infinity());
  for (std::uint16_t bits = 0; bits + 1 < infinity; ++bits) {
    const float a = static_cast<float>(std::bit_cast<T>(bits));
    const float b = static_cast<float>(std::bit_cast<T>(static_cast<std::uint16_t>(bits + 1)));
    const float middle = static_cast<float>((static_cast<double>(a) + static_cast<double>(b)) / 2);
    const auto rounded = [](float x) { return std::bit_cast<std::uint16_t>(T(x)); };
    ASSERT_EQ(rounded(std::nextafter(middle, a)), bits);
    ASSERT_EQ(rounded(std::nextafter(middle, b)), bits + 1);
    ASSERT_EQ(rounded(middle), bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(rounded(-middle), (bits % 2 == 0 ? bits : bits + 1) | 0x8000);
  }
}

TEST(Scalar, FloatRoundsToTheNearestHalf) { expect_rounding_to_nearest_even<half>(); }
TEST(Scalar, FloatRoundsToTheNearestBfloat16) { expect_rounding_to_nearest_even<bfloat16>(); }

TEST(Scalar, F17_StoringAsHalfDoesNotDependOnTheFloatState) {
  // Every exponent, with mantissas that lie on, next to and between the halves of steps.
  std::vector<float> values;
  for (std::uint32_t high = 0; high <= 0xffffu; ++high) {
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x8000u, 0xffffu}) {
      values.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  // A NaN is stored as one pattern; Eigen's conversion keeps more of its digits where the processor does.
  const auto expected = [](const float& x) {
    const auto sign = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16 & 0x8000u);
    return heed::detail::is_nan(x) ? static_cast<std::uint16_t>(0x7e00u | sign) : std::bit_cast<std::uint16_t>(half(x));
  };
  std::vector<std::uint16_t> right;
  for (const float& x : values) right.push_back(expected(x));
  for (const bool flush : {false, true}) {
    for (const int rounding : {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
      const heed_test::FloatMode mode(flush, rounding);
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(std::bit_cast<std::uint16_t>(heed::detail::stored_as<half>(values[i])), right[i])
            << std::hex << std::bit_cast<std::uint32_t>(values[i]);
      }
    }
  }
}

TEST(Scalar, FiniteNumbersAreKnownByTheirBits) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const float sign : {1.f, -1.f}) {
    EXPECT_FALSE(heed::detail::is_finite(sign * infinity) || heed::detail::is_nan(sign * infinity));
    EXPECT_FALSE(heed::detail::is_finite(double{sign * infinity}) || heed::detail::is_nan(double{sign * infinity}));
    EXPECT_TRUE(heed::detail::is_nan(sign * nan) && !heed::detail::is_finite(sign * nan));
    EXPECT_TRUE(heed::detail::is_nan(double{sign * nan}) && !heed::detail::is_finite(double{sign * nan}));
    for (const float x : {0.f, 1e-45f, 1.f, std::numeric_limits<float>::max()}) {
      EXPECT_TRUE(heed::detail::is_finite(sign * x) && !heed::detail::is_nan(sign * x));
      EXPECT_TRUE(heed::detail::is_finite(double{sign * x}) && !heed::detail::is_nan(double{sign * x}));
    }
  }
}

}  // namespace
