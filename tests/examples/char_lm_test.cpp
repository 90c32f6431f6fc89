// SPDX-License-Identifier: MIT
// The example train_char_lm on a small model and a text of this repository.
#include "train_char_lm/char_lm.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/context.hpp>
#include <heed/core/parallel.hpp>
#include <heed/io/name_map.hpp>
#include <heed/io/safetensors.hpp>

#include "common/files.hpp"
#include "common/temporary_directory.hpp"
#include "train_char_lm/corpus.hpp"
#include "train_char_lm/training.hpp"

namespace {

using namespace train_char_lm;
using heed::Context;
using heed::Index;

std::string novel() {
  return examples::read_file(HEED_TEST_DATA_DIR "/../examples/sentence_search/data/pride_and_prejudice.txt");
}

Settings small(int steps) {
  return {.embed_dim = 32,
          .num_heads = 2,
          .num_layers = 2,
          .length = 32,
          .batch = 8,
          .steps = steps,
          .warmup = 5,
          .seed = 7};
}

TEST(CharLmCorpus, TargetsFollowAndTheHeldOutPartIsNeverTrainedOn) {
  // Letters stand for the first nine tenths, digits for what is held out.
  std::string text, rest;
  for (int i = 0; i < 900; ++i) text += static_cast<char>('a' + i % 26);
  for (int i = 0; i < 100; ++i) rest += static_cast<char>('0' + i % 10);
  const Corpus corpus(text + rest, 20);
  EXPECT_EQ(corpus.alphabet().size(), 36);
  EXPECT_EQ(corpus.training().size(), 900u);
  EXPECT_EQ(corpus.held_out().size(), 100u);
  const auto decode = [&](int id) { return corpus.alphabet().decode(id); };
  Batch batch;
  for (Index step = 0; step < 200; ++step) {
    corpus.sample(1, step, 8, batch);
    for (Index b = 0; b < 8; ++b) {
      for (Index l = 0; l < 20; ++l) {
        const char here = decode(batch.ids(b, l)), next = decode(batch.targets(b, l));
        ASSERT_GE(here, 'a');
        ASSERT_EQ(next, here == 'z' ? 'a' : here + 1);
      }
    }
  }
  corpus.held_out_windows(0, 3, 3, batch);
  EXPECT_EQ(decode(batch.ids(0, 0)), '0');
  EXPECT_EQ(decode(batch.targets(2, 19)), '9') << "the last window ends where the text does";
  for (Index l = 0; l < 20; ++l) EXPECT_LE(decode(batch.ids(1, l)), '9');
  EXPECT_THROW(Corpus("too short", 20), std::runtime_error);
  EXPECT_THROW(corpus.alphabet().encode("?"), std::runtime_error);
}

TEST(CharLmCorpus, ABatchIsAFunctionOfSeedAndStep) {
  const Corpus corpus(novel(), 16);
  Batch a, b;
  const auto same = [&] { return std::equal(a.ids.data(), a.ids.data() + a.ids.size(), b.ids.data()); };
  corpus.sample(3, 5, 4, a);
  corpus.sample(3, 5, 4, b);
  EXPECT_TRUE(same());
  corpus.sample(3, 6, 4, b);
  EXPECT_FALSE(same());
  corpus.sample(4, 5, 4, b);
  EXPECT_FALSE(same());
}

TEST(CharLm, LearnsMoreThanTheFrequenciesOfCharacters) {
  const Corpus corpus(novel(), 32);
  Context context;
  Training training(small(200), corpus, context);
  while (!training.is_done()) training.step();
  // Frequencies alone give 3.08, an untrained model about 4.3.
  EXPECT_LT(training.measure_held_out(64), 2.75);
}

TEST(CharLm, GoesOnWithTheSameNumbersAtAnyThreadCount) {
  const Corpus corpus(novel(), 32);
  const heed_test::TemporaryDirectory directory;
  const std::string whole = directory.path("whole"), parts = directory.path("parts");
  {
    Context context;
    Training training(small(12), corpus, context);
    for (int i = 0; i < 7; ++i) training.step();
    training.measure_held_out(4);
    while (!training.is_done()) training.step();
    training.save(whole);
  }
  {
    Context context;
    Training training(small(12), corpus, context);
    for (int i = 0; i < 7; ++i) training.step();
    training.save(parts);
  }
  heed::ThreadPool threads(2);
  Context context(threads);
  Training training(heed::SafeTensors::open(parts), corpus, context);
  EXPECT_EQ(training.steps(), 7);
  EXPECT_EQ(training.settings().embed_dim, 32);
  EXPECT_EQ(context.seed, 7u);
  training.measure_held_out(4);
  while (!training.is_done()) training.step();
  training.save(parts);
  EXPECT_EQ(heed_test::read_text(parts), heed_test::read_text(whole));
}

TEST(CharLm, RefusesACheckpointOfAnotherText) {
  const heed_test::TemporaryDirectory directory;
  const std::string file = directory.path("training");
  const std::string text = novel();
  const Corpus corpus(text, 32), other(text.substr(1), 32);
  Context context;
  Training(small(10), corpus, context).save(file);
  EXPECT_THROW(Training(heed::SafeTensors::open(file), other, context), std::runtime_error);
  CharLm small_model({.alphabet = 5, .embed_dim = 8, .num_heads = 2, .num_layers = 1});
  small_model.initialize(1);
  heed::save_parameters(small_model, file);
  EXPECT_THROW(Training(heed::SafeTensors::open(file), corpus, context), std::runtime_error);
}

TEST(CharLm, WritesTheSameForTheSameSeed) {
  CharLm model({.alphabet = 11, .embed_dim = 16, .num_heads = 2, .num_layers = 1});
  model.initialize(2);
  Context context;
  const auto write = [&](const GenerateOptions& options) {
    std::vector<int> ids;
    generate(model, {3, 4}, options, context, [&](int id) { ids.push_back(id); });
    return ids;
  };
  const std::vector<int> bold = write({.count = 40, .window = 8, .temperature = 1, .seed = 1});
  EXPECT_EQ(bold.size(), 40u);
  EXPECT_EQ(bold, write({.count = 40, .window = 8, .temperature = 1, .seed = 1}));
  EXPECT_NE(bold, write({.count = 40, .window = 8, .temperature = 1, .seed = 2}));
  EXPECT_EQ(write({.count = 40, .window = 8, .temperature = 0, .seed = 1}),
            write({.count = 40, .window = 8, .temperature = 1e-6, .seed = 2}));
}

// Up to its window, the cache changes nothing but the time.
TEST(CharLm, WritesWhatTheModelWithoutACacheWouldWrite) {
  CharLm model({.alphabet = 11, .embed_dim = 16, .num_heads = 2, .num_layers = 2});
  model.initialize(2);
  Context context;
  std::vector<int> ids{3, 4, 0}, written;
  generate(model, ids, {.count = 30, .window = 64, .temperature = 0}, context, [&](int id) { written.push_back(id); });
  CharLm::Cache cache;
  for (std::size_t i = 0; i < written.size(); ++i) {
    const heed::Index length = static_cast<heed::Index>(ids.size());
    heed::Tensor<float, 3> logits(1, length, 11);
    model.forward(heed::TensorView<const int, 2>(ids.data(), {1, length}), logits, cache, context);
    const float* last = &logits(0, length - 1, 0);
    ids.push_back(static_cast<int>(std::max_element(last, last + 11) - last));
    ASSERT_EQ(written[i], ids.back()) << i;
  }
}

}  // namespace
