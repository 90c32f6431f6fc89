// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/files.hpp"
#include "generate/bpe.hpp"

// Results of the original model and tokenizer: see golden/smollm2/generate.py.
inline nlohmann::json smollm2_golden(const std::string& name) {
  return nlohmann::json::parse(std::ifstream(HEED_TEST_DATA_DIR "/golden/smollm2/" + name));
}

inline std::filesystem::path smollm2_file() {
  return examples::cache_directory() / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf";
}

#define HEED_SKIP_WITHOUT_SMOLLM2()                                                                        \
  do {                                                                                                     \
    if (!std::filesystem::exists(smollm2_file())) {                                                        \
      GTEST_SKIP() << "there is no " << smollm2_file() << ": examples/generate/fetch_model.sh fetches it"; \
    }                                                                                                      \
  } while (false)
