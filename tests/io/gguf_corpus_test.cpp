// SPDX-License-Identifier: MIT
// Replays the fuzzer's corpus of GGUF files.
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "common/safetensors_bytes.hpp"
#include "common/temporary_directory.hpp"
#include "fuzz/gguf_target.hpp"

namespace {

TEST(GgufCorpus, EveryFileIsReadOrRefusedAsItsNameSays) {
  int accepted = 0, refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(HEED_TEST_DATA_DIR "/fuzz/corpus/gguf")) {
    const std::string name = entry.path().filename().string();
    const std::string bytes = heed_test::read_text(entry.path().string());
    const std::string refusal = heed_test::gguf_refusal_of(heed_test::as_bytes(bytes));
    EXPECT_EQ(refusal.empty(), name.starts_with("accepted_")) << name << ": " << refusal;
    ++(refusal.empty() ? accepted : refused);
  }
  EXPECT_GE(accepted, 5);
  EXPECT_GE(refused, 18);
}

}  // namespace
