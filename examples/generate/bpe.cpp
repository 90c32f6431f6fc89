// SPDX-License-Identifier: MIT
#include "bpe.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <queue>
#include <stdexcept>

#include <utf8proc.h>

#include "utf8.hpp"

namespace generate {

namespace {

// GPT-2 writes the bytes that are no printable character of Latin-1 as the characters from U+0100 on.
std::array<std::uint32_t, 256> byte_characters() {
  std::array<std::uint32_t, 256> characters{};
  std::uint32_t next = 256;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte < 127) || (byte >= 0xA1 && byte != 0xAD);
    characters[byte] = printable ? byte : next++;
  }
  return characters;
}

// The bytes of a token; false for one with a character that means no byte.
bool to_bytes(std::string_view token, const std::unordered_map<std::uint32_t, char>& byte_of, std::string& bytes) {
  bytes.clear();
  for (std::size_t i = 0; i < token.size();) {
    const CodePoint c = next_code_point(token.substr(i));
    const auto byte = byte_of.find(c.value);
    if (!c.valid || byte == byte_of.end()) return false;
    bytes += byte->second;
    i += c.length;
  }
  return true;
}

enum class Kind { Letter, Number, Space, Other };

Kind kind_of(std::uint32_t c) {
  if ((c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
      c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000) {
    return Kind::Space;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return Kind::Letter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return Kind::Number;
    default:
      return Kind::Other;
  }
}

struct Character {
  std::size_t begin;  // in the text
  std::uint32_t value;
  Kind kind;
};

// The characters of one word from `first` on, in a part of a text that ends with `last`: GPT-2's pattern
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
std::size_t word_end(const std::vector<Character>& text, std::size_t first, std::size_t last) {
  const auto is = [&](std::size_t i, char c) { return i < last && text[i].value == static_cast<unsigned char>(c); };
  if (is(first, '\'')) {
    for (const char* ending : {"s", "t", "re", "ve", "m", "ll", "d"}) {
      const std::string_view letters(ending);
      std::size_t n = 0;
      while (n < letters.size() && is(first + 1 + n, letters[n])) ++n;
      if (n == letters.size()) return first + 1 + n;
    }
  }
  const std::size_t body = is(first, ' ') && first + 1 < last ? first + 1 : first;
  if (const Kind kind = text[body].kind; kind != Kind::Space) {
    std::size_t end = body;
    while (end < last && text[end].kind == kind) ++end;
    return end;
  }
  std::size_t end = first;
  while (end < last && text[end].kind == Kind::Space) ++end;
  // The last space before a word belongs to it.
  return end < last && end > first + 1 ? end - 1 : end;
}

}  // namespace

Bpe::Bpe(const BpeVocabulary& vocabulary) : byte_ids_(256, -1) {
  if (vocabulary.pre_tokenizer != "smollm" && vocabulary.pre_tokenizer != "gpt-2") {
    throw std::runtime_error("the tokenizer cuts text into words by the rules \"" + vocabulary.pre_tokenizer +
                             "\"; only \"gpt-2\" and \"smollm\" are known");
  }
  if (vocabulary.types.size() != vocabulary.tokens.size()) {
    throw std::runtime_error("the tokenizer has " + std::to_string(vocabulary.tokens.size()) + " tokens but " +
                             std::to_string(vocabulary.types.size()) + " types of tokens");
  }
  single_digits_ = vocabulary.pre_tokenizer == "smollm";
  const auto characters = byte_characters();
  std::unordered_map<std::uint32_t, char> byte_of;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    byte_of[characters[byte]] = static_cast<char>(static_cast<unsigned char>(byte));
  }
  constexpr int control = 3, user_defined = 4;
  std::unordered_map<std::string, int> ids;
  std::string bytes;
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const int id = static_cast<int>(i), type = vocabulary.types[i];
    const std::string& token = vocabulary.tokens[i];
    is_control_.push_back(type == control);
    if (type == control || type == user_defined) {
      if (!token.empty()) controls_.emplace_back(token, id);
      bytes_.push_back(token);
    } else if (to_bytes(token, byte_of, bytes)) {
      ids.emplace(bytes, id);
      if (bytes.size() == 1) byte_ids_[static_cast<unsigned char>(bytes[0])] = id;
      bytes_.push_back(bytes);
    } else {
      throw std::runtime_error("token " + std::to_string(id) + " of the tokenizer, \"" + token +
                               "\", is not written in GPT-2's characters for bytes");
    }
  }
  std::stable_sort(controls_.begin(), controls_.end(),
                   [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
  int rank = 0;
  std::string left, right;
  for (const std::string& merge : vocabulary.merges) {
    const std::size_t space = merge.find(' ', 1);
    const bool split = space != merge.npos && to_bytes(std::string_view(merge).substr(0, space), byte_of, left) &&
                       to_bytes(std::string_view(merge).substr(space + 1), byte_of, right);
    const auto a = split ? ids.find(left) : ids.end(), b = split ? ids.find(right) : ids.end();
    const auto both = split ? ids.find(left + right) : ids.end();
    if (a == ids.end() || b == ids.end() || both == ids.end()) {
      throw std::runtime_error("merge " + std::to_string(rank) + " of the tokenizer, \"" + merge +
                               "\", is not of two tokens that make a third");
    }
    merges_.emplace(pair(a->second, b->second), Merge{rank, both->second});
    ++rank;
  }
}

std::vector<int> Bpe::encode(std::string_view text) const {
  std::vector<int> ids;
  std::size_t plain = 0;
  for (std::size_t i = 0; i < text.size();) {
    const auto found = std::find_if(controls_.begin(), controls_.end(),
                                    [&](const auto& control) { return text.substr(i).starts_with(control.first); });
    if (found == controls_.end()) {
      ++i;
      continue;
    }
    encode_plain(text.substr(plain, i - plain), ids);
    ids.push_back(found->second);
    plain = i += found->first.size();
  }
  encode_plain(text.substr(plain), ids);
  return ids;
}

std::string Bpe::decode(const std::vector<int>& ids) const {
  std::string text;
  for (const int id : ids) {
    if (!is_control(id)) text += bytes(id);
  }
  return text;
}

void Bpe::encode_plain(std::string_view text, std::vector<int>& ids) const {
  std::string valid;
  std::vector<Character> characters;
  for (std::size_t i = 0; i < text.size();) {
    const CodePoint c = next_code_point(text.substr(i));
    characters.push_back({valid.size(), c.value, kind_of(c.value)});
    valid += c.valid ? text.substr(i, c.length) : std::string_view("\xEF\xBF\xBD");
    i += c.length;
  }
  const auto begin_of = [&](std::size_t i) { return i < characters.size() ? characters[i].begin : valid.size(); };
  const auto is_digit = [&](std::size_t i) { return single_digits_ && characters[i].kind == Kind::Number; };
  for (std::size_t first = 0; first < characters.size();) {
    // A digit is a part of its own, and so is the text between digits.
    std::size_t last = first + 1;
    while (!is_digit(first) && last < characters.size() && !is_digit(last)) ++last;
    while (first < last) {
      const std::size_t end = word_end(characters, first, last);
      encode_word(std::string_view(valid).substr(begin_of(first), begin_of(end) - begin_of(first)), ids);
      first = end;
    }
  }
}

// Joins the pair of the lowest rank, the leftmost of equals, until none is left: in time n·log n, since a word may be a
// line of ten thousand dashes.
void Bpe::encode_word(std::string_view word, std::vector<int>& ids) const {
  struct Symbol {
    int id;
    std::size_t previous, next;
  };
  struct Candidate {
    int rank;
    std::size_t left;
    int left_id, right_id;  // of the time it was found
    bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : left > other.left; }
  };
  std::vector<Symbol> symbols;
  for (const char c : word) {
    if (const int id = byte_ids_[static_cast<unsigned char>(c)]; id >= 0) symbols.push_back({id, 0, 0});
  }
  const std::size_t n = symbols.size(), none = n;
  for (std::size_t i = 0; i < n; ++i) {
    symbols[i].previous = i > 0 ? i - 1 : none;
    symbols[i].next = i + 1;
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto consider = [&](std::size_t left) {
    if (left == none || symbols[left].next == none) return;
    const int a = symbols[left].id, b = symbols[symbols[left].next].id;
    if (const auto merge = merges_.find(pair(a, b)); merge != merges_.end()) {
      candidates.push({merge->second.rank, left, a, b});
    }
  };
  for (std::size_t i = 0; i < n; ++i) consider(i);
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Symbol& left = symbols[best.left];
    if (left.id != best.left_id || left.next == none || symbols[left.next].id != best.right_id) continue;
    Symbol& right = symbols[left.next];
    left.id = merges_.at(pair(best.left_id, best.right_id)).id;
    right.id = -1;
    left.next = right.next;
    if (left.next != none) symbols[left.next].previous = best.left;
    consider(best.left);
    consider(left.previous);
  }
  for (std::size_t i = 0; i < n; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace generate
