// SPDX-License-Identifier: MIT
// The example train_text_classifier: how it cuts texts, and a short training on Jane Austen's novels.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/context.hpp>

#include "common/files.hpp"
#include "train_text_classifier/classifier.hpp"
#include "train_text_classifier/passages.hpp"

namespace {

using namespace train_text_classifier;
using heed::Context;
using heed::Index;

std::string repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(TextClassifierPassages, SplitsWords) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(split_words("\"It's Mr. Darcy's,\" said _Elizabeth_--1811!"),
            (Words{"it's", "mr", ".", "darcy's", ",", "said", "elizabeth", "!"}));
  EXPECT_EQ(split_words("'tis the girls' 'way'"), (Words{"tis", "the", "girls", "way"}));
  EXPECT_EQ(split_words(" \n"), Words{});
}

TEST(TextClassifierPassages, NumbersTheMostFrequentWords) {
  const std::vector<std::vector<std::string>> texts{{"b", "a", "c"}, {"c", "b", "c", "d"}};
  const Vocabulary ids(texts, 4);
  EXPECT_EQ(ids.size(), 4);
  EXPECT_EQ(ids.id("c"), 1);
  EXPECT_EQ(ids.id("b"), 2);
  EXPECT_EQ(ids.id("a"), 3);
  EXPECT_EQ(ids.id("d"), 0);
}

TEST(TextClassifierPassages, NothingHeldOutIsTrainedOn) {
  // The last fifth has words of its own, which the vocabulary must not know.
  const std::vector<std::string> texts{repeat("x y ", 80) + repeat("held ", 40),
                                       repeat("y z z ", 80) + repeat("out ", 60)};
  const Passages passages(texts, 16, 100);
  EXPECT_EQ(passages.vocabulary_size(), 4);
  EXPECT_EQ(passages.held_out_count(), 2 + 3);
  EXPECT_EQ(passages.held_out_count(1), 3);
  Batch batch;
  passages.held_out(0, 5, batch);
  for (Index b = 0; b < 5; ++b) {
    EXPECT_EQ(batch.labels(b, 0), b < 2 ? 0 : 1);
    for (Index l = 0; l < 16; ++l) EXPECT_EQ(batch.ids(b, l), 0);
  }
  std::set<int> labels;
  for (Index step = 0; step < 100; ++step) {
    passages.sample(1, step, 3, batch);
    for (Index b = 0; b < 3; ++b) {
      labels.insert(batch.labels(b, 0));
      for (Index l = 0; l < 16; ++l) ASSERT_NE(batch.ids(b, l), 0);
    }
  }
  EXPECT_EQ(labels.size(), 2u);
  EXPECT_THROW(Passages({texts[0]}, 16, 100), std::runtime_error);
  EXPECT_THROW(Passages(texts, 50, 100), std::runtime_error);
}

TEST(TextClassifier, TellsNovelsApartAfterAFewSteps) {
  const std::filesystem::path directory = examples::cache_directory() / "austen";
  std::vector<std::string> texts;
  for (const char* name :
       {"emma", "mansfield_park", "northanger_abbey", "persuasion", "pride_and_prejudice", "sense_and_sensibility"}) {
    const std::filesystem::path file = directory / (std::string(name) + ".txt");
    if (!std::filesystem::exists(file)) {
      GTEST_SKIP() << "there is no text " << file << ": examples/common/fetch_text.sh austen fetches it";
    }
    texts.push_back(examples::read_file(file));
  }
  const Passages passages(texts, 128, 1001);
  EXPECT_GT(passages.held_out_count(), 1200);
  Classifier model(
      {.vocab_size = passages.vocabulary_size(), .length = 128, .classes = 6, .embed_dim = 32, .num_layers = 1});
  Context context;
  heed::TrainingTimer timer;
  const std::vector<double> losses =
      train(model, passages, {.steps = 80, .learning_rate = 5e-3}, timer, context, [](double) {});
  EXPECT_EQ(losses.size(), 80u);
  EXPECT_NEAR(losses.front(), std::log(6.0), 0.5);
  const Evaluation found = evaluate(model, passages, context);
  // Guessing gives 0.23 at best: Mansfield Park is the longest.
  EXPECT_GT(found.accuracy, 0.45);
  int right = 0, total = 0;
  for (Index i = 0; i < 6; ++i) {
    int of_text = 0;
    for (Index j = 0; j < 6; ++j) of_text += found.confusion(i, j);
    EXPECT_EQ(of_text, passages.held_out_count(static_cast<int>(i)));
    right += found.confusion(i, i);
    total += of_text;
  }
  EXPECT_DOUBLE_EQ(found.accuracy, static_cast<double>(right) / total);
}

}  // namespace
