// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Turns the bytes of a fuzzer into choices, and ends the program when a property does not hold.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>

#include "common/random_inputs.hpp"

namespace heed_test {

/// Ends the program, which is how a fuzzer learns of a fault.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

/// Makes the choices of a Random from bytes: as few of them for each choice as it needs, so that the fuzzer finds the
/// byte that matters. After the last byte every choice is the lowest one.
class FuzzInput final : public Random {
 public:
  FuzzInput(const std::uint8_t* data, std::size_t size) : Random(0), left_(data, size) {}

  bool empty() const { return left_.empty(); }
  std::uint64_t bits() override { return take(8); }
  double uniform() override { return static_cast<double>(take(1)) / 256; }
  int integer(int low, int high) override {
    const std::uint64_t choices = static_cast<std::uint64_t>(std::int64_t{high} - low) + 1;
    const int bytes = choices <= 1 ? 0 : choices <= 0x100 ? 1 : choices <= 0x10000 ? 2 : 4;
    return static_cast<int>(low + static_cast<std::int64_t>(take(bytes) % choices));
  }
  /// A generator of numbers whose values matter less than their number.
  Random numbers() { return Random(take(4)); }
  /// The next `size` bytes, or those that are left.
  std::string_view text(std::size_t size) {
    const auto part = left_.first(std::min(size, left_.size()));
    left_ = left_.subspan(part.size());
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }
  /// The bytes that are left.
  std::string_view rest() { return text(left_.size()); }

 private:
  std::uint64_t take(int bytes) {
    std::uint64_t value = 0;
    for (; bytes > 0 && !left_.empty(); --bytes, left_ = left_.subspan(1)) value = value << 8 | left_.front();
    return value;
  }

  std::span<const std::uint8_t> left_;
};

/// Checks one input: each NAME_fuzz.cpp defines it. libfuzzer.cpp and replay.cpp call it.
void fuzz(FuzzInput& input);

}  // namespace heed_test
