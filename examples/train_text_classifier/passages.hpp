// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <heed/core/tensor.hpp>

namespace train_text_classifier {

// The lower-case words of a text, letters of ASCII with apostrophes between them, and its . , ; ! ? as words of their
// own. What else there is (digits, quotes, dashes) only separates.
std::vector<std::string> split_words(std::string_view text);

// Numbers for the most frequent words; 0 for all others.
class Vocabulary {
 public:
  // The `size - 1` most frequent words of the texts; of equally frequent ones, those first in the alphabet.
  Vocabulary(std::span<const std::vector<std::string>> texts, std::size_t size);

  int size() const { return static_cast<int>(ids_.size()) + 1; }
  int id(const std::string& word) const;

 private:
  std::map<std::string, int> ids_;
};

// Passages: ids (B, L), and the number of the text that each is from, (B, 1).
struct Batch {
  heed::Tensor<int, 2> ids, labels;
};

// Texts cut in two: their last fifth is held out. The vocabulary is that of the first parts. No word is in a passage of
// both.
class Passages {
 public:
  // Passages of `length` words. Throws std::runtime_error for fewer than two texts, and when one is too short to have
  // passages in both parts.
  Passages(const std::vector<std::string>& texts, heed::Index length, std::size_t vocabulary);

  int classes() const { return static_cast<int>(training_.size()); }
  heed::Index length() const { return length_; }
  int vocabulary_size() const { return vocabulary_size_; }

  // `size` passages of the first parts, from texts in turn, at places chosen by (seed, step) alone: every text is seen
  // equally often, though they differ in length.
  void sample(std::uint64_t seed, heed::Index step, heed::Index size, Batch& batch) const;

  // The held-out passages one after the other, without overlap.
  heed::Index held_out_count() const { return static_cast<heed::Index>(held_out_.size()); }
  void held_out(heed::Index first, heed::Index size, Batch& batch) const;
  // How many of them are from a text.
  heed::Index held_out_count(int label) const;

 private:
  struct Passage {
    std::span<const int> ids;
    int label;
  };
  static void put(const Passage& passage, heed::Index row, Batch& batch);

  heed::Index length_;
  int vocabulary_size_ = 0;
  std::vector<std::vector<int>> ids_;           // of each text
  std::vector<std::span<const int>> training_;  // their first parts
  std::vector<Passage> held_out_;
};

}  // namespace train_text_classifier
