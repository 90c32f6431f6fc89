// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sentence_search {

// BERT's uncased WordPiece tokenizer: text in, vocabulary ids out, the same ids as Hugging Face's `tokenizers` gives.
//
// Text is any bytes: what is not valid UTF-8 counts as U+FFFD, which the clean-up drops. Const calls may run from many
// threads.
class WordPiece {
 public:
  // Reads a vocab.txt: one token a line, the line number (from 0) is its id.
  // Throws std::runtime_error if the file cannot be read or is no BERT vocabulary.
  explicit WordPiece(const std::filesystem::path& vocabulary_file);

  // tokens[id] is the token of that id. Throws std::runtime_error, which names the source, unless [PAD], [UNK], [CLS],
  // [SEP] and [MASK] are among them.
  explicit WordPiece(std::vector<std::string> tokens, const std::string& source = "the list of tokens");

  // [CLS] ... [SEP], at most max_length ids (at least 2, else std::invalid_argument): a longer text is cut so that
  // [SEP] stays last, as sentence-transformers does. The literal strings "[MASK]", "[SEP]", ... in the text are taken
  // as those tokens.
  std::vector<int> encode(std::string_view text, std::size_t max_length = kNoLimit) const;

  // The token of an id in [0, size()), "##" included.
  const std::string& token(int id) const { return tokens_.at(static_cast<std::size_t>(id)); }
  std::size_t size() const { return tokens_.size(); }

  static constexpr std::size_t kNoLimit = static_cast<std::size_t>(-1);

 private:
  struct Hash {
    using is_transparent = void;  // NOLINT(readability-identifier-naming): the name that std looks for
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  using Ids = std::unordered_map<std::string, int, Hash, std::equal_to<>>;

  class Word;

  void encode_plain(std::string_view text, std::size_t limit, std::vector<int>& ids) const;
  void encode_word(const Word& word, std::vector<int>& ids) const;

  std::vector<std::string> tokens_;
  Ids first_pieces_;         // tokens that start a word
  Ids continuation_pieces_;  // tokens that continue one, without their "##"
  std::size_t longest_piece_ = 0;
  std::array<int, 5> special_ids_{};
};

}  // namespace sentence_search
