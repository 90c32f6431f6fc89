// SPDX-License-Identifier: MIT
// The entry of libFuzzer.
#include <cstddef>
#include <cstdint>

#include "fuzz/fuzz_input.hpp"

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  heed_test::FuzzInput input(data, size);
  heed_test::fuzz(input);
  return 0;
}
