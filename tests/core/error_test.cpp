// SPDX-License-Identifier: MIT
#include <array>
#include <clocale>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include <heed/core/error.hpp>

#include "common/message_of.hpp"
#include "common/temporary_directory.hpp"

namespace {

using heed_test::message_of;

TEST(Error, EveryErrorIsOfOneBase) {
  static_assert(std::is_base_of_v<std::runtime_error, heed::Error>);
  static_assert(std::is_base_of_v<heed::Error, heed::ShapeError>);
  static_assert(std::is_base_of_v<heed::Error, heed::ValueError>);
  static_assert(std::is_base_of_v<heed::Error, heed::FormatError>);
}

TEST(Error, CheckThrowsTheNamedExceptionWithAllParts) {
  const auto check = [](long dk) { HEED_CHECK(dk == 64, ShapeError, "k has Dk = ", dk, " but q has Dk = ", 64); };
  EXPECT_NO_THROW(check(64));
  EXPECT_EQ(message_of<heed::ShapeError>([&] { check(48); }), "k has Dk = 48 but q has Dk = 64");
}

TEST(Error, CheckIsOneStatement) {
  const auto check = [](bool outer, bool inner) {
    if (outer)
      HEED_CHECK(inner, ValueError, "inner");
    else
      throw heed::FormatError("outer");
  };
  EXPECT_NO_THROW(check(true, true));
  EXPECT_THROW(check(true, false), heed::ValueError);
  EXPECT_THROW(check(false, true), heed::FormatError);
}

TEST(Error, PartsAreEvaluatedOnlyOnFailure) {
  int evaluated = 0;
  const auto part = [&] {
    ++evaluated;
    return "part";
  };
  HEED_CHECK(true, ValueError, part());
  EXPECT_EQ(evaluated, 0);
  EXPECT_EQ(message_of<heed::ValueError>([&] { HEED_CHECK(false, ValueError, part(), '!'); }), "part!");
  EXPECT_EQ(evaluated, 1);
}

TEST(Error, ConditionIsEvaluatedOnce) {
  int evaluated = 0;
  HEED_CHECK(++evaluated == 1, ValueError, "twice");
  EXPECT_EQ(evaluated, 1);
}

TEST(Error, PartsOfEveryKindBecomeText) {
  const std::array<heed::Index, 3> extents{2, -3, 4};
  EXPECT_EQ(heed::detail::concat("a", std::string("b"), std::string_view("c"), 'd', true, false), "abcdtruefalse");
  EXPECT_EQ(heed::detail::concat(-1, " ", 18446744073709551615u, " ", extents), "-1 18446744073709551615 (2, -3, 4)");
  EXPECT_EQ(heed::detail::concat(0.5, " ", -2.5f, " ", 1e300), "0.5 -2.5 1e+300");
  EXPECT_EQ(heed::detail::concat(), "");
}

TEST(Error, NumbersHaveSixDigitsAsPrintfWritesThem) {
  for (const double value : {0.0, -0.0, 0.1, 1.0 / 3, 1e-5, 123456.0, 1234567.0, 1e6, 3.4028235e38, 5e-324, 1e39,
                             std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    char expected[40];
    std::snprintf(expected, sizeof expected, "%g", value);
    EXPECT_EQ(heed::detail::concat(value), expected);
  }
}

/// A locale with a decimal comma, as in German. Machines that build programs rarely have one installed, so this writes
/// the LC_NUMERIC file that glibc reads: a magic number, the number of items, their offsets, the items.
class CommaLocale {
 public:
  CommaLocale() {
    const std::filesystem::path folder = directory_.path("comma");
    std::filesystem::create_directory(folder);
    // decimal_point, thousands_sep, grouping, the first two as wide characters, the name of the character set
    const std::array<std::uint32_t, 13> words{
        0x20031114, 6, 32, 34, 35, 36, 40, 44, 0x0000'002c /* ",\0\0\0" */, ',', '.', 0x2d465455 /* "UTF-" */, '8'};
    std::ofstream(folder / "LC_NUMERIC", std::ios::binary)
        .write(reinterpret_cast<const char*>(words.data()), sizeof words);
    setenv("LOCPATH", directory_.path("").c_str(), 1);
    is_set_ = std::setlocale(LC_NUMERIC, "comma") != nullptr;
    unsetenv("LOCPATH");
  }
  ~CommaLocale() { std::setlocale(LC_NUMERIC, "C"); }
  bool is_set() const { return is_set_; }

 private:
  heed_test::TemporaryDirectory directory_;
  bool is_set_ = false;
};

TEST(Error, NumbersIgnoreTheLocale) {
  const CommaLocale locale;
  if (!locale.is_set()) GTEST_SKIP() << "this C library reads other files";
  ASSERT_EQ(std::localeconv()->decimal_point, std::string(","));
  EXPECT_EQ(heed::detail::concat(0.1, ' ', 1234567.5, ' ', 1234567), "0.1 1.23457e+06 1234567");
}

}  // namespace
