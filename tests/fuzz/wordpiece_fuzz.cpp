// SPDX-License-Identifier: MIT
// Fuzzes the tokenizer of the example sentence_search: any bytes become ids, texts joined by a space become the ids of
// both, a limit cuts, and ASCII is split as a few lines that follow the definition split it.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/fuzz_input.hpp"
#include "sentence_search/wordpiece.hpp"

namespace {

using Ids = std::vector<int>;

const std::vector<std::string>& vocabulary() {
  static const std::vector<std::string> tokens = [] {
    std::vector<std::string> list{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "##",
                                  "#",     "ab",    "abc",   "##bc",  "##cab"};
    for (const std::string_view piece : {"a", "b", "c", "e", "u", "0", "1", "東", "京", "ß", "σ", "한", "i", "я"}) {
      list.emplace_back(piece);
      list.push_back("##" + std::string(piece));
    }
    for (const char c : std::string_view("!-.,'\"$[]<>~")) list.emplace_back(1, c);
    return list;
  }();
  return tokens;
}

const sentence_search::WordPiece& tokenizer() {
  static const sentence_search::WordPiece instance(vocabulary());
  return instance;
}

int id_of(std::string_view token) {
  const auto found = std::find(vocabulary().begin(), vocabulary().end(), token);
  return found == vocabulary().end() ? -1 : static_cast<int>(found - vocabulary().begin());
}

/// One word of lower-case ASCII: its longest prefix first, the rest as continuations.
void encode_word(const std::string& word, Ids& ids) {
  if (word.empty()) return;
  const std::size_t before = ids.size();
  for (std::size_t begin = 0; begin < word.size() && word.size() <= 100;) {
    std::size_t end = word.size();
    int id = -1;
    for (; end > begin && id < 0; --end) {
      id = id_of((begin > 0 ? "##" : "") + word.substr(begin, end - begin));
    }
    if (id < 0) {
      ids.resize(before);
      break;
    }
    ids.push_back(id);
    begin = end + 1;
  }
  if (ids.size() == before) ids.push_back(1);
}

/// A text of ASCII by the definition.
Ids encode_ascii(std::string_view text) {
  Ids ids{2};
  std::string word;
  const auto end_word = [&] {
    encode_word(word, ids);
    word.clear();
  };
  while (!text.empty()) {
    bool special = false;
    for (int id = 0; id < 5 && !special; ++id) {
      if (!text.starts_with(vocabulary()[static_cast<std::size_t>(id)])) continue;
      end_word();
      ids.push_back(id);
      text.remove_prefix(vocabulary()[static_cast<std::size_t>(id)].size());
      special = true;
    }
    if (special) continue;
    const char c = text.front();
    text.remove_prefix(1);
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      end_word();
    } else if (c < ' ' || c == 0x7F) {
      continue;
    } else if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z')) {
      word += c;
    } else if (c >= 'A' && c <= 'Z') {
      word += static_cast<char>(c - 'A' + 'a');
    } else {
      end_word();
      encode_word(std::string(1, c), ids);
    }
  }
  end_word();
  ids.push_back(3);
  return ids;
}

}  // namespace

void heed_test::fuzz(FuzzInput& input) {
  const auto limit = static_cast<std::size_t>(input.integer(2, 40));
  const std::string_view a = input.text(static_cast<std::size_t>(input.integer(0, 255)));
  const std::string_view b = input.rest();

  const Ids of_a = tokenizer().encode(a), of_b = tokenizer().encode(b);
  require(of_a.size() >= 2 && of_a.front() == 2 && of_a.back() == 3, "ids begin with [CLS] and end with [SEP]");
  for (const int id : of_a) require(id >= 0 && id < static_cast<int>(vocabulary().size()), "an id is one of a token");

  Ids both(of_a.begin(), of_a.end() - 1);
  both.insert(both.end(), of_b.begin() + 1, of_b.end());
  const std::string joined = std::string(a) + " " + std::string(b);
  require(tokenizer().encode(joined) == both, "a space joins texts without an effect on either");

  Ids cut = both;
  if (cut.size() > limit) {
    cut.resize(limit);
    cut.back() = 3;
  }
  require(tokenizer().encode(joined, limit) == cut, "a limit cuts and keeps [SEP]");

  if (std::all_of(joined.begin(), joined.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) {
    require(both == encode_ascii(joined), "ASCII is split by the definition");
  }
}
