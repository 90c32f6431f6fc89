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
  int vocab_size = 0;  // V: the ids are below it; 0 is padding
  int classes = 0;
};

// Examples first, ..., first + size - 1, padded with 0.
Batch batch_of(const std::vector<Example>& examples, std::size_t first, std::size_t size);
// `size` neighbors chosen by (seed, step) alone: of one length nearly, where the examples are in the order of their
// lengths.
Batch sample(const std::vector<Example>& examples, std::uint64_t seed, int step, std::size_t size);

// The share of examples that a model takes for what they are; counted for each group.
std::vector<double> accuracies(const Model& model, const std::vector<Example>& examples, heed::Context& context);

// The code points of a UTF-8 text. Throws std::runtime_error, which tells the byte, for what is not UTF-8, text in GBK
// for instance.
std::vector<char32_t> code_points(std::string_view text);

// The first part of Pride and Prejudice, from the example sentence_search.
std::string pride_and_prejudice();

// A text as characters, of which each is to be told from those before it; the last tenth is held out.
class Characters {
 public:
  // Windows of `length` characters. Throws std::runtime_error where the text is too short for them.
  Characters(std::string_view text, int length);

  int vocabulary() const { return static_cast<int>(alphabet_.size()); }
  // `size` windows of the first part, chosen by (seed, step) alone; each target is the character that follows.
  Batch sample(std::uint64_t seed, int step, int size) const;
  // `size` windows at equal distances over the held-out part.
  Batch held_out(int size) const;

 private:
  Batch windows(const std::vector<std::size_t>& begins) const;

  std::vector<char> alphabet_;
  std::vector<int> ids_;
  std::size_t length_, split_;
};

struct NeedleOptions {
  int length = 256;  // words of a passage
  int training = 4000, held_out = 800;
  int vocab_size = 1000;
  int groups = 8;  // the needle begins in part `group` of the passage
  std::uint64_t seed = 1;
};
// Passages of a text in which one sentence decides the label, anywhere: "the answer was WORD .". The four words are the
// text's own, but the passages are without them. Held-out passages are from the last fifth, an equal number for each
// place. Throws std::runtime_error where the text doesn't know one of the words.
Dataset needle_sentences(std::string_view text, const NeedleOptions& options);

struct ReviewOptions {
  int longest = 256;      // characters; what is behind is cut off
  int vocab_size = 1500;  // the most frequent characters; the others share one id
  std::uint64_t seed = 1;
};
// The reviews that fetch_reviews.sh has fetched, each text once, label 1 for praise, in the order of their lengths;
// every fifth is held out. The group is 0 up to 100 characters, 1 up to 200, else 2. Throws Skipped where they are not
// there.
Dataset reviews(const ReviewOptions& options);

struct PassageOptions {
  int length = 48;  // words of a passage, the opening not counted
  int training = 4000, held_out = 1000;
  int vocab_size = 1000;
  std::uint64_t seed = 1;
};
// Passages of the six novels of Jane Austen behind one opening, the same for all; the label is the book. Held-out
// ones are from the last fifths, and come in pairs: number 2i and 2i + 1, from one book in every other pair. Throws
// Skipped where the novels are not there.
struct Passages : Dataset {
  int opening = 0;  // words of it
};
Passages novel_passages(const PassageOptions& options);

}  // namespace article
