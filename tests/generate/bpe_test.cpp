// SPDX-License-Identifier: MIT
#include "generate/bpe.hpp"

#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/io/gguf.hpp>

#include "smollm2_files.hpp"

namespace generate {
namespace {

/// All bytes, then some joined ones; the last token is a control token.
BpeVocabulary small() {
  BpeVocabulary vocabulary;
  vocabulary.pre_tokenizer = "gpt-2";
  const auto add = [&](const std::string& token, int type = 1) {
    vocabulary.tokens.push_back(token);
    vocabulary.types.push_back(type);
  };
  for (char c = '!'; c <= '~'; ++c) add(std::string(1, c));
  for (const char* token :
       {"\xC4\xA0" /* Ġ, a space */, "\xC4\x8A" /* Ċ, a line break */, "ab", "abc", "bc", "\xC4\xA0\x61"})
    add(token);
  add("<end>", 3);
  vocabulary.merges = {"b c", "a b", "ab c", "\xC4\xA0 a"};
  return vocabulary;
}
std::vector<std::string> pieces(const Bpe& bpe, const std::string& text) {
  std::vector<std::string> all;
  for (const int id : bpe.encode(text)) all.push_back(bpe.bytes(id));
  return all;
}

TEST(Bpe, JoinsThePairOfTheLowestRankFirst) {
  const Bpe bpe(small());
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(pieces(bpe, "abc"), (Pieces{"a", "bc"})) << "b c comes before a b";
  EXPECT_EQ(pieces(bpe, "ab"), (Pieces{"ab"}));
  EXPECT_EQ(pieces(bpe, "abab"), (Pieces{"ab", "ab"}));
  EXPECT_EQ(pieces(bpe, "x abc"), (Pieces{"x", " a", "bc"})) << "a word begins with its space";
  EXPECT_EQ(pieces(bpe, "  ab"), (Pieces{" ", " ", "ab"})) << "a b comes before the space and a";
  EXPECT_EQ(pieces(bpe, "a<end>b<end"), (Pieces{"a", "<end>", "b", "<", "e", "n", "d"}));
  EXPECT_EQ(pieces(bpe,
                   "a\x01"
                   "b"),
            (Pieces{"a", "b"}))
      << "there is no token for the byte 1";
  EXPECT_EQ(bpe.encode(""), std::vector<int>());
  EXPECT_EQ(bpe.decode(bpe.encode("a b\n<end>c")), "a b\nc");
  // A long word takes n·log n steps.
  EXPECT_EQ(bpe.encode(std::string(200'000, 'a')).size(), 200'000u);
}

TEST(Bpe, RefusesVocabulariesThatAreNotOfItsKind) {
  const auto refused = [](auto change) {
    BpeVocabulary vocabulary = small();
    change(vocabulary);
    EXPECT_THROW(Bpe{vocabulary}, std::runtime_error);
  };
  refused([](BpeVocabulary& v) { v.pre_tokenizer = "llama-bpe"; });
  refused([](BpeVocabulary& v) { v.types.pop_back(); });
  refused([](BpeVocabulary& v) { v.merges.emplace_back("a x"); });
  refused([](BpeVocabulary& v) { v.merges.emplace_back("ab"); });
  refused([](BpeVocabulary& v) { v.tokens[0] = "\xE2\x82\xAC"; });
  refused([](BpeVocabulary& v) { v.tokens[0] = "\xFF"; });
}

TEST(Bpe, GivesTheIdsOfTheOriginal) {
  HEED_SKIP_WITHOUT_SMOLLM2();
  const heed::Gguf file = heed::Gguf::open(smollm2_file().string());
  const Bpe bpe({.tokens = file.metadata_array<std::string>("tokenizer.ggml.tokens"),
                 .merges = file.metadata_array<std::string>("tokenizer.ggml.merges"),
                 .types = file.metadata_array<int>("tokenizer.ggml.token_type"),
                 .pre_tokenizer = file.metadata<std::string>("tokenizer.ggml.pre")});
  const auto texts = smollm2_golden("texts.json");
  for (const auto& entry : texts) {
    const auto text = entry.at(0).get<std::string>();
    EXPECT_EQ(bpe.encode(text), entry.at(1).get<std::vector<int>>()) << text;
  }
  EXPECT_GE(texts.size(), 300u);
  const auto golden = smollm2_golden("golden.json");
  for (const auto& entry : golden.at("cases")) {
    const auto text = entry.at("text").get<std::string>();
    const auto ids = entry.at("ids").get<std::vector<int>>();
    EXPECT_EQ(bpe.encode(text), ids) << text;
  }
}

}  // namespace
}  // namespace generate
