// SPDX-License-Identifier: MIT
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include <heed/core/error.hpp>

#include "common/message_of.hpp"

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

}  // namespace
