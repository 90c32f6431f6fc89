// SPDX-License-Identifier: MIT
// Fuzzes the reader of safetensors files: it refuses a file with an error, or reads all of it.
#include <cstddef>
#include <cstdint>
#include <span>

#include "fuzz/safetensors_target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  heed_test::refusal_of(std::as_bytes(std::span(data, size)));
  return 0;
}
