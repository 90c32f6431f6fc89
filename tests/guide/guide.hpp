// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// What the programs that generate.py makes of the guide include.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <iomanip>
#include <iostream>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <heed/compiled/layers.hpp>
#include <heed/heed.hpp>
#include <heed/inspect.hpp>

namespace heed_test {

/// Holds what the blocks of one page print to std::cout.
class GuidePage {
 public:
  explicit GuidePage(std::string name) : name_(std::move(name)), cout_(std::cout.rdbuf(text_.rdbuf())) {
    std::cout.copyfmt(std::ios(nullptr));
  }
  ~GuidePage() { std::cout.rdbuf(cout_); }
  GuidePage(const GuidePage&) = delete;
  GuidePage& operator=(const GuidePage&) = delete;

  /// The page shows, from that line on, what was printed since the last call.
  void expect(int line, const std::string& output) {
    EXPECT_EQ(text_.str(), output) << "docs/guide/" << name_ << ", line " << line;
    skip();
  }
  /// What was printed since the last call is not shown.
  void skip() { text_.str({}); }

 private:
  std::string name_;
  std::ostringstream text_;
  std::streambuf* cout_;
};

}  // namespace heed_test
