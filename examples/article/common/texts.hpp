// SPDX-License-Identifier: MIT
// The real texts that claims are measured on, as sequences of ids with labels.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <heed/core/context.hpp>

#include "models.hpp"

namespace article {

// A sequence of ids above 0, what it is, and a number by which measurements are told apart: where in it something is.
struct Example {
  std::vector<int> ids{};
  int label = 0;
  int group = 0;
};

struct Dataset {
  std::vector<Example> training{}, held_out{};
  int vocabulary = 0;  // V: the ids are below it; 0 is padding
  int classes = 0;
};

// Examples first, ..., first + size - 1, padded with 0.
Batch batch_of(const std::vector<Example>& examples, std::size_t first, std::size_t size);
// `size` neighbours chosen by (seed, step) alone: of one length nearly, where the examples are in the order of their
// lengths.
Batch sample(const std::vector<Example>& examples, std::uint64_t seed, int step, std::size_t size);

// The share of examples that a model takes for what they are; counted for each group.
std::vector<double> accuracies(const Model& model, const std::vector<Example>& examples, heed::Context& context);

// The code points of a UTF-8 text. Throws std::runtime_error, which tells the byte, for what is not UTF-8, text in GBK
// for instance.
std::vector<char32_t> code_points(std::string_view text);

// The first part of Pride and Prejudice, which lies beside the example sentence_search.
std::string pride_and_prejudice();

struct NeedleOptions {
  int length = 256;  // words of a passage
  int training = 4000, held_out = 800;
  int vocabulary = 1000;
  int groups = 8;  // the needle begins in part `group` of the passage
  std::uint64_t seed = 1;
};
// Passages of a text in which one sentence decides the label, anywhere: "the answer was WORD .". The four words are the
// text's own, but the passages are without them. Held-out passages are from the last fifth, an equal number for each
// place. Throws std::runtime_error where the text doesn't know one of the words.
Dataset needle_sentences(std::string_view text, const NeedleOptions& options);

struct ReviewOptions {
  int longest = 256;      // characters; what is behind is cut off
  int vocabulary = 1500;  // the most frequent characters; the others share one id
  std::uint64_t seed = 1;
};
// The reviews that fetch_reviews.sh has fetched, each text once, label 1 for praise, in the order of their lengths;
// every fifth is held out. The group is 0 up to 100 characters, 1 up to 200, else 2. Throws Skipped where they are not
// there.
Dataset reviews(const ReviewOptions& options);

struct PairOptions {
  int length = 48;  // words of each passage, the opening not counted
  int training = 6000, held_out = 1000;
  int vocabulary = 1500;
  std::uint64_t seed = 1;
};
// Pairs of passages from the novels of Jane Austen, both behind the same opening; label 1 where the book is the same.
// One example is the two one after the other, of equal length. Held-out pairs are from the last fifths. Throws Skipped
// where the novels are not there.
struct Pairs : Dataset {
  int opening = 0;  // words of the opening
};
Pairs passage_pairs(const PairOptions& options);

}  // namespace article
