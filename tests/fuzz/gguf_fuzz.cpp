// SPDX-License-Identifier: MIT
// Fuzzes the reader of GGUF files: it refuses a file with an error, or reads all of it.
#include <span>

#include "fuzz/gguf_target.hpp"

void heed_test::fuzz(FuzzInput& input) { gguf_refusal_of(as_bytes(std::span(input.rest()))); }
