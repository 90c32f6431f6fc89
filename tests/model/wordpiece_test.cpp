// SPDX-License-Identifier: MIT
#include "sentence_search/wordpiece.hpp"

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/minilm_files.hpp"

namespace sentence_search {
namespace {

using Ids = std::vector<int>;

constexpr int kUnknown = 1, kCls = 2, kSep = 3;

// A vocabulary small enough to read the expected ids off it.
const WordPiece& small() {
  static const WordPiece tokenizer({"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",  // 0-4
                                    "un", "##aff", "##able", "##a", "aff", "a",    // 5-10
                                    "e", "!", "-", "東", "##b", "b", "$"});        // 11-17
  return tokenizer;
}

Ids ids(std::string_view text, std::size_t max_length = WordPiece::kNoLimit) {
  return small().encode(text, max_length);
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(WordPiece, TakesTheLongestPieceFirst) {
  EXPECT_EQ(ids("unaffable"), (Ids{kCls, 5, 6, 7, kSep}));
  EXPECT_EQ(ids("una"), (Ids{kCls, 5, 8, kSep}));
}

TEST(WordPiece, MakesAWordWithAnyUnmatchedRestOneUnknown) {
  EXPECT_EQ(ids("unaffx a"), (Ids{kCls, kUnknown, 10, kSep}));
  EXPECT_EQ(ids("xun"), (Ids{kCls, kUnknown, kSep}));
}

TEST(WordPiece, FoldsCaseAndAccentsWrittenEitherWay) {
  EXPECT_EQ(ids("É é e\u0301 E\u0302\u0323"), (Ids{kCls, 11, 11, 11, 11, kSep}));
}

TEST(WordPiece, SplitsAtPunctuationSymbolsAndIdeographs) {
  EXPECT_EQ(ids("a-a!$a"), (Ids{kCls, 10, 13, 10, 12, 17, 10, kSep}));
  EXPECT_EQ(ids("a東a"), (Ids{kCls, 10, 14, 10, kSep}));
}

TEST(WordPiece, DropsControlsAndSeparatesAtWhiteSpace) {
  using namespace std::string_view_literals;
  EXPECT_EQ(ids("a\0\x01\x0b\u0085\u200b\u00ad\ufeff\ufffd\ue000b"sv), (Ids{kCls, 10, 15, kSep}));
  EXPECT_EQ(ids("a\tb\nb\rb\u00a0b\u2028b\u3000b"), (Ids{kCls, 10, 16, 16, 16, 16, 16, 16, kSep}));
}

TEST(WordPiece, CutsSpecialTokensOutOfTheRawText) {
  EXPECT_EQ(ids("a[MASK]b [SEP]"), (Ids{kCls, 10, 4, 16, 3, kSep}));
  EXPECT_EQ(ids("[[MASK]"), (Ids{kCls, kUnknown, 4, kSep}));
  EXPECT_EQ(ids("[mask]"), (Ids{kCls, kUnknown, kUnknown, kUnknown, kSep}));
  EXPECT_EQ(ids("[MASK\u200b]"), (Ids{kCls, kUnknown, kUnknown, kUnknown, kSep})) << "cut before the clean-up";
}

TEST(WordPiece, CountsTheLimitOfAWordInCodePoints) {
  const std::string a100(100, 'a');
  Ids expected(102, 8);  // "a", then 99 times "##a"
  expected[0] = kCls;
  expected[1] = 10;
  expected[101] = kSep;
  EXPECT_EQ(ids(a100), expected);
  EXPECT_EQ(ids(a100 + "a"), (Ids{kCls, kUnknown, kSep}));

  std::string accented;  // 200 code points in the text, 100 once the accents are gone
  for (int i = 0; i < 100; ++i) accented += "a\u0301";
  EXPECT_EQ(ids(accented), expected);
}

TEST(WordPiece, KeepsTheSeparatorWhenItCuts) {
  EXPECT_EQ(ids("a b a b", 6), (Ids{kCls, 10, 16, 10, 16, kSep}));
  EXPECT_EQ(ids("a b a b", 5), (Ids{kCls, 10, 16, 10, kSep}));
  EXPECT_EQ(ids("unaffable", 4), (Ids{kCls, 5, 6, kSep}));
  EXPECT_EQ(ids("a[MASK]", 3), (Ids{kCls, 10, kSep}));
  EXPECT_EQ(ids("a", 2), (Ids{kCls, kSep}));
  EXPECT_THROW(ids("a", 1), std::invalid_argument);
}

TEST(WordPiece, DropsWhatIsNotUtf8) {
  EXPECT_EQ(ids("\xff"
                "a\xc3"),
            (Ids{kCls, 10, kSep}));
  EXPECT_EQ(ids("a\xe6\x9d"
                "b"),
            (Ids{kCls, 10, 15, kSep}))
      << "a sequence that breaks off takes nothing with it";
  EXPECT_EQ(ids("a\xed\xa0\x80"
                "b"),
            (Ids{kCls, 10, 15, kSep}))
      << "a surrogate";
  EXPECT_EQ(ids("a\xc1\xa1"
                "b"),
            (Ids{kCls, 10, 15, kSep}))
      << "an overlong form";
  EXPECT_EQ(ids("a\xf4\x90\x80\x80"
                "b"),
            (Ids{kCls, 10, 15, kSep}))
      << "past U+10FFFF";
  EXPECT_EQ(ids("\xe6[MASK]"), (Ids{kCls, 4, kSep}));
}

TEST(WordPiece, SaysWhatIsWrongWithAVocabulary) {
  EXPECT_EQ(message_of([] { WordPiece({"[PAD]", "[UNK]", "[SEP]"}, "'x.txt'"); }),
            "'x.txt' is not a BERT vocabulary: there is no [CLS] among its 3 tokens");
  EXPECT_EQ(message_of([] { WordPiece("/nowhere/vocab.txt"); }),
            "cannot read '/nowhere/vocab.txt': No such file or directory");
}

TEST(WordPiece, ReadsAVocabularyWithEitherKindOfLineEnd) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "heed_wordpiece_test_vocab.txt";
  std::ofstream(file, std::ios::binary) << "[PAD]\r\n[UNK]\r\n[CLS]\n[SEP]\n[MASK]\na\r\n##b";
  const WordPiece tokenizer(file);
  std::filesystem::remove(file);
  EXPECT_EQ(tokenizer.size(), 7U);
  EXPECT_EQ(tokenizer.token(6), "##b");
  EXPECT_EQ(tokenizer.encode("ab"), (Ids{2, 5, 6, 3}));
}

TEST(WordPiece, GivesTheIdsOfTheOriginalTokenizer) {
  HEED_SKIP_WITHOUT_MINILM();
  const WordPiece tokenizer(minilm_directory() / "vocab.txt");
  EXPECT_EQ(tokenizer.size(), 30522U);
  const auto& golden = minilm_golden();
  std::size_t texts = 0;
  for (const char* group : {"cases", "cases512", "tokenizer"}) {
    for (const auto& entry : golden.at(group)) {
      const auto text = entry.at("text").get<std::string>();
      EXPECT_EQ(tokenizer.encode(text, entry.value("max_length", WordPiece::kNoLimit)), entry.at("ids").get<Ids>())
          << text;
      ++texts;
    }
  }
  EXPECT_GE(texts, 130U);
}

}  // namespace
}  // namespace sentence_search
