// SPDX-License-Identifier: MIT
// Fuzzes the reader of safetensors files: it refuses a file with an error, or reads all of it.
#include <span>

#include "fuzz/safetensors_target.hpp"

void heed_test::fuzz(FuzzInput& input) { refusal_of(as_bytes(std::span(input.rest()))); }
