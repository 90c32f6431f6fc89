// SPDX-License-Identifier: MIT
// How the programs of examples/article cut real texts.
#include "article/common/texts.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "article/common/claim.hpp"

namespace {

using namespace article;

TEST(ArticleTexts, ReadsUtf8AndNothingElse) {
  EXPECT_EQ(code_points("a\xC3\xA9\xE5\xA5\xBD\xF0\x9F\x98\x80"), (std::vector<char32_t>{'a', 0xE9, 0x597D, 0x1F600}));
  EXPECT_EQ(code_points(""), std::vector<char32_t>{});
  const std::string gbk = "ab\xBA\xC3\xB5\xC4";
  try {
    code_points(gbk);
    FAIL() << "GBK was taken for UTF-8";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("byte 2"), std::string::npos) << error.what();
  }
  // Cut off, too long for what they hold, half of a pair, beyond the last code point.
  for (const char* text :
       {"\xE5\xA5", "\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\x80", "\xFF"}) {
    EXPECT_THROW(code_points(text), std::runtime_error);
  }
}

TEST(ArticleTexts, PadsBatches) {
  const std::vector<Example> examples{{{1, 2, 3}, 1}, {{4}, 0}, {{5, 6}, 1}};
  const Batch batch = batch_of(examples, 1, 2);
  EXPECT_EQ(batch.lengths, (std::vector<int>{1, 2}));
  EXPECT_EQ(std::vector<int>(batch.ids.data(), batch.ids.data() + 4), (std::vector<int>{4, 0, 5, 6}));
  EXPECT_EQ(batch.targets(0, 0), 0);
  EXPECT_EQ(batch.targets(1, 0), 1);
}

TEST(ArticleTexts, NextCharactersAreTargetsAndNothingHeldOutIsTrainedOn) {
  std::string text;
  for (int i = 0; i < 90; ++i) text += "abc"[i % 3];
  const Characters characters(text + "xyzxyzxyzx", 4);
  EXPECT_EQ(characters.vocabulary(), 6);
  for (int step = 0; step < 50; ++step) {
    const Batch batch = characters.sample(1, step, 2);
    for (int b = 0; b < 2; ++b) {
      for (int l = 0; l < 4; ++l) {
        ASSERT_LT(batch.targets(b, l), 3);
        ASSERT_EQ(batch.targets(b, l), (batch.ids(b, l) + 1) % 3);
      }
    }
  }
  const Batch held_out = characters.held_out(3);
  for (int b = 0; b < 3; ++b) {
    for (int l = 0; l < 4; ++l) EXPECT_GE(held_out.ids(b, l), 3);
  }
  EXPECT_THROW(Characters("too short", 4), std::runtime_error);
}

TEST(ArticleTexts, ANeedleIsInItsPartAndNowhereElse) {
  const Dataset data = needle_sentences(pride_and_prejudice(), {.length = 64, .training = 200, .held_out = 80});
  EXPECT_EQ(data.classes, 4);
  std::vector<int> of_group(8);
  for (const Example& example : data.held_out) ++of_group[static_cast<std::size_t>(example.group)];
  EXPECT_EQ(of_group, std::vector<int>(8, 10));
  // The answer of a label is the word that all its examples have, and no other example has.
  std::vector<std::map<int, int>> counts(4);
  std::vector<int> total(4), answers;
  for (const Example& example : data.training) {
    ASSERT_EQ(example.ids.size(), 64u);
    ++total[static_cast<std::size_t>(example.label)];
    for (const int id : std::set<int>(example.ids.begin(), example.ids.end())) {
      ++counts[static_cast<std::size_t>(example.label)][id];
    }
  }
  for (std::size_t label = 0; label < 4; ++label) {
    for (const auto& [id, count] : counts[label]) {
      const auto has_it = [id = id](const std::map<int, int>& others) { return others.contains(id); };
      if (count == total[label] && std::count_if(counts.begin(), counts.end(), has_it) == 1) answers.push_back(id);
    }
    ASSERT_EQ(answers.size(), label + 1);
  }
  for (const Example& example : data.held_out) {
    const int answer = answers[static_cast<std::size_t>(example.label)];
    const auto found = std::find(example.ids.begin(), example.ids.end(), answer);
    ASSERT_EQ(std::count(example.ids.begin(), example.ids.end(), answer), 1);
    const auto begin = found - example.ids.begin() - 3;
    EXPECT_EQ(std::min<std::ptrdiff_t>(begin / 8, 7), example.group);
  }
  EXPECT_THROW(needle_sentences(std::string(50000, 'x'), {}), std::runtime_error);
}

TEST(ArticleTexts, ReviewsAreThereOnceInTheOrderOfTheirLengths) {
  Dataset data;
  try {
    data = reviews({});
  } catch (const Skipped& missing) {
    GTEST_SKIP() << missing.what();
  }
  EXPECT_EQ(data.training.size() + data.held_out.size(), 17458u);
  for (const auto* part : {&data.training, &data.held_out}) {
    EXPECT_TRUE(std::is_sorted(part->begin(), part->end(),
                               [](const Example& a, const Example& b) { return a.ids.size() < b.ids.size(); }));
    for (const Example& example : *part) {
      ASSERT_EQ(example.group, example.ids.size() <= 100 ? 0 : example.ids.size() <= 200 ? 1 : 2);
      for (const int id : example.ids) ASSERT_TRUE(id >= 1 && id < data.vocab_size);
    }
  }
}

TEST(ArticleTexts, PassagesOfNovelsComeInPairs) {
  Passages passages;
  try {
    passages = novel_passages({.length = 20, .training = 50, .held_out = 40});
  } catch (const Skipped& missing) {
    GTEST_SKIP() << missing.what();
  }
  EXPECT_EQ(passages.classes, 6);
  const auto opening = static_cast<std::size_t>(passages.opening);
  const std::vector<int>& first = passages.training[0].ids;
  for (const Example& example : passages.training) {
    ASSERT_EQ(example.ids.size(), opening + 20);
    EXPECT_TRUE(std::equal(first.begin(), first.begin() + passages.opening, example.ids.begin()));
  }
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(passages.held_out[2 * i].label == passages.held_out[2 * i + 1].label, i % 2 == 0);
  }
}

}  // namespace
