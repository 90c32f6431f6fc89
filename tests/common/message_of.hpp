// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The text of an exception, for tests of messages.

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace heed_test {

/// Runs f and returns the text of the Exception that it must throw.
template <class Exception, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Exception& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

/// Whether all parts occur in the text.
inline ::testing::AssertionResult has_all(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (text.find(part) == std::string::npos) {
      return ::testing::AssertionFailure() << "\"" << part << "\" is missing in \"" << text << "\"";
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace heed_test
