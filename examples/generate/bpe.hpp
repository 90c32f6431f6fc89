// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace generate {

// The parts of a byte-level BPE tokenizer, as GGUF files hold them.
struct BpeVocabulary {
  std::vector<std::string> tokens;  // tokens[id], with bytes written as GPT-2's printable characters
  std::vector<std::string> merges;  // "left right", the first one is applied first
  std::vector<int> types;           // of tokens: 1 normal, 3 control, 4 user-defined
  std::string pre_tokenizer;        // the name of the rules that cut text into words
};

// The byte-level BPE tokenizer of GPT-2 and its kind: text in, ids out, the same ids as Hugging Face's `tokenizers`.
// Sennrich et al.: "Neural machine translation of rare words with subword units", 2016; Radford et al.: GPT-2, 2019.
//
// Text is any bytes: what is not valid UTF-8 counts as U+FFFD. Bytes that the vocabulary has no token for are left out.
// Const calls may run from many threads.
class Bpe {
 public:
  // Throws std::runtime_error for tokens and types of different numbers, a token that is not written in GPT-2's
  // characters, a merge of tokens that there are not, or rules of words other than those of "gpt-2" and "smollm".
  explicit Bpe(const BpeVocabulary& vocabulary);

  // Control tokens in the text, such as <|im_start|>, become their ids.
  std::vector<int> encode(std::string_view text) const;
  // The bytes of a token, which need not be whole characters; of a control token, its name.
  const std::string& bytes(int id) const { return bytes_.at(static_cast<std::size_t>(id)); }
  // The bytes of several tokens, without control tokens.
  std::string decode(const std::vector<int>& ids) const;
  bool is_control(int id) const { return is_control_.at(static_cast<std::size_t>(id)); }
  std::size_t size() const { return bytes_.size(); }

 private:
  struct Merge {
    int rank, id;
  };
  static std::uint64_t pair(int left, int right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }

  void encode_plain(std::string_view text, std::vector<int>& ids) const;
  void encode_word(std::string_view word, std::vector<int>& ids) const;

  std::vector<std::string> bytes_;
  std::vector<bool> is_control_;
  std::vector<std::pair<std::string, int>> controls_;  // longest first
  std::vector<int> byte_ids_;                          // the token of each byte
  std::unordered_map<std::uint64_t, Merge> merges_;
  bool single_digits_ = false;
};

}  // namespace generate
