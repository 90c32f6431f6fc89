// SPDX-License-Identifier: MIT
// libFuzzer target: heed_safetensors_fuzz corpus/safetensors
#include <cstddef>
#include <cstdint>
#include <span>

#include "fuzz/safetensors_target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  heed_test::refusal_of(std::as_bytes(std::span(data, size)));
  return 0;
}
