// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "sentence_search/text.hpp"

// What the original model gives: see golden/minilm/generate.py.
inline const nlohmann::json& minilm_golden() {
  static const nlohmann::json golden = [] {
    std::ifstream file(HEED_TEST_DATA_DIR "/golden/minilm/golden.json");
    return nlohmann::json::parse(file);
  }();
  return golden;
}

inline std::filesystem::path minilm_directory() { return sentence_search::default_model_directory(); }

#define HEED_SKIP_WITHOUT_MINILM()                                            \
  do {                                                                        \
    if (!std::filesystem::exists(minilm_directory() / "model.safetensors")) { \
      GTEST_SKIP() << "there is no MiniLM model in " << minilm_directory()    \
                   << ": examples/sentence_search/fetch_model.sh"             \
                   << " fetches it, HEED_MODEL_DIR names another place";      \
    }                                                                         \
  } while (false)
