// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <heed/core/tensor.hpp>

namespace train_char_lm {

// The characters (bytes) that occur in a text, in their order; a character's place is its id.
class Alphabet {
 public:
  explicit Alphabet(std::string_view text);

  const std::string& characters() const { return characters_; }
  int size() const { return static_cast<int>(characters_.size()); }
  // The ids of a text. Throws std::runtime_error for a character that is not in the alphabet.
  std::vector<int> encode(std::string_view text) const;
  char decode(int id) const { return characters_[static_cast<std::size_t>(id)]; }

 private:
  std::string characters_;
};

// Windows of a text: ids (B, L), and as targets the ids that follow each of them.
struct Batch {
  heed::Tensor<int, 2> ids, targets;
};

// A text, of which the last tenth is held out.
class Corpus {
 public:
  // Throws std::runtime_error unless both parts have room for windows of `length` characters.
  Corpus(std::string_view text, heed::Index length);

  const Alphabet& alphabet() const { return alphabet_; }
  std::span<const int> training() const { return std::span(ids_).first(split_); }
  std::span<const int> held_out() const { return std::span(ids_).subspan(split_); }
  // Tells texts apart: FNV-1a, 64 bits.
  std::uint64_t fingerprint() const { return fingerprint_; }

  // `size` windows of the training part, chosen by (seed, step) alone, so that a training that goes on sees the same.
  void sample(std::uint64_t seed, heed::Index step, heed::Index size, Batch& batch) const;
  // Windows first, ..., first + size - 1 of `count` windows at equal distances over the held-out part.
  void held_out_windows(heed::Index first, heed::Index size, heed::Index count, Batch& batch) const;

 private:
  void read(std::span<const int> part, std::size_t start, heed::Index row, Batch& batch) const;

  Alphabet alphabet_;
  heed::Index length_;
  std::vector<int> ids_;
  std::size_t split_;
  std::uint64_t fingerprint_;
};

}  // namespace train_char_lm
