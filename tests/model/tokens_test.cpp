// SPDX-License-Identifier: MIT
// F41: the ids of chosen texts are those of the original tokenizer. cases/tokens.py wrote them.
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/minilm_files.hpp"
#include "sentence_search/wordpiece.hpp"

namespace sentence_search {
namespace {

const nlohmann::json& tokens() {
  static const nlohmann::json file = nlohmann::json::parse(std::ifstream(HEED_TEST_DATA_DIR "/cases/tokens.json"));
  return file;
}

void expect_ids(const WordPiece& tokenizer, const char* which) {
  int count = 0;
  for (const auto& entry : tokens().at("texts")) {
    const auto text = entry.at("text").get<std::string>();
    EXPECT_EQ(tokenizer.encode(text), entry.at(which).get<std::vector<int>>()) << entry.at("text");
    ++count;
  }
  EXPECT_GE(count, 100);
}

TEST(Field, F41_IdsOfASmallVocabulary) {
  expect_ids(WordPiece(tokens().at("vocabulary").get<std::vector<std::string>>()), "small");
}

TEST(Field, F41_IdsOfTheModelsVocabulary) {
  HEED_SKIP_WITHOUT_MINILM();
  expect_ids(WordPiece(minilm_directory() / "vocab.txt"), "ids");
}

}  // namespace
}  // namespace sentence_search
