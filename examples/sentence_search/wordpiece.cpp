// SPDX-License-Identifier: MIT
#include "wordpiece.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <utility>

#include <utf8proc.h>

#include "text.hpp"

namespace sentence_search {

namespace {

constexpr std::array<std::string_view, 5> kSpecialTokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
constexpr std::size_t kUnknown = 1, kCls = 2, kSep = 3;  // places in it

// Longer words become one [UNK]; counted in code points.
constexpr std::size_t kLongestWord = 100;

struct Range {
  std::int32_t first, last;
};

// The blocks BERT calls "CJK characters": each such character is a word. Kana and Hangul are not among them.
constexpr Range kIdeographs[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},   {0x20000, 0x2A6DF},
                                 {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F}};

// The vocabulary was made, and the `tokenizers` library still works, with tables of an older Unicode: what utf8proc has
// learnt since to be a mark, punctuation or a control is an unassigned code point there, and makes its word [UNK].
// Ranges reach over neighbors that are [UNK] either way. Found by comparing all code points with tokenizers 0.23.3.
constexpr Range kUnassigned[] = {
    {0x061D, 0x061D},   {0x07FD, 0x07FD},   {0x0890, 0x08E2},   {0x09FD, 0x09FE},   {0x0A76, 0x0A76},
    {0x0AFA, 0x0AFF},   {0x0B55, 0x0B55},   {0x0C04, 0x0C3C},   {0x0C77, 0x0C77},   {0x0C84, 0x0C84},
    {0x0D00, 0x0D00},   {0x0D3B, 0x0D3C},   {0x0D81, 0x0D81},   {0x0EBA, 0x0EBA},   {0x0ECE, 0x0ECE},
    {0x180F, 0x1886},   {0x1ABF, 0x1ACE},   {0x1B7D, 0x1B7E},   {0x1DF6, 0x1DFB},   {0x2E43, 0x2E5D},
    {0xA82C, 0xA82C},   {0xA8C5, 0xA8C5},   {0xA8FF, 0xA8FF},   {0xA9BD, 0xA9BD},   {0x10D24, 0x10F89},
    {0x11070, 0x11074}, {0x110C2, 0x110CD}, {0x111CF, 0x111CF}, {0x1123E, 0x11241}, {0x1133B, 0x1133B},
    {0x11438, 0x1145E}, {0x11660, 0x1166C}, {0x116B9, 0x116B9}, {0x1182F, 0x11FFF}, {0x12FF1, 0x13455},
    {0x16E97, 0x16F4F}, {0x16FE2, 0x16FE4}, {0x1CF00, 0x1CF46}, {0x1E000, 0x1E4EF}, {0x1E944, 0x1E95F}};

template <std::size_t N>
bool contains(const Range (&ranges)[N], std::int32_t code_point) {
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [code_point](Range range) { return range.first <= code_point && code_point <= range.last; });
}

utf8proc_category_t category_of(std::int32_t code_point) {
  if (code_point == 0x166D || code_point == 0x111C9) return UTF8PROC_CATEGORY_PO;  // reclassified since
  if (code_point == 0x1734) return UTF8PROC_CATEGORY_MN;
  if (code_point >= 0x80 && contains(kUnassigned, code_point)) return UTF8PROC_CATEGORY_CN;
  return utf8proc_category(code_point);
}

// Tab, line feed and carriage return are of category Cc, but BERT takes them for spaces.
bool is_space(std::int32_t code_point, utf8proc_category_t category) {
  return code_point == '\t' || code_point == '\n' || code_point == '\r' || category == UTF8PROC_CATEGORY_ZS ||
         category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

// Control, format, private use and surrogate code points. Unassigned ones stay: their word becomes [UNK].
bool is_dropped(std::int32_t code_point, utf8proc_category_t category) {
  return code_point == 0xFFFD || category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
         category == UTF8PROC_CATEGORY_CO || category == UTF8PROC_CATEGORY_CS;
}

// All of ASCII that is neither letter, digit, space nor control counts, also what Unicode calls a symbol ($ + < ...).
bool is_punctuation(std::int32_t code_point, utf8proc_category_t category) {
  if (code_point < 0x80) {
    return (33 <= code_point && code_point <= 47) || (58 <= code_point && code_point <= 64) ||
           (91 <= code_point && code_point <= 96) || (123 <= code_point && code_point <= 126);
  }
  return UTF8PROC_CATEGORY_PC <= category && category <= UTF8PROC_CATEGORY_PO;
}

std::vector<std::string> read_vocabulary(const std::filesystem::path& file) {
  std::vector<std::string> tokens;
  for_each_line(read_file(file), [&tokens](std::string_view line) { tokens.emplace_back(line); });
  return tokens;
}

}  // namespace

// The word being read, in UTF-8, with the offset of each of its code points.
class WordPiece::Word {
 public:
  void append(std::int32_t code_point) {
    if (++length_ > kLongestWord) return;  // [UNK] whatever follows, so nothing more needs to be kept
    offsets_[length_ - 1] = text_.size();
    std::array<utf8proc_uint8_t, 4> bytes{};
    const auto count = utf8proc_encode_char(code_point, bytes.data());
    text_.append(bytes.begin(), bytes.begin() + count);
  }

  void clear() {
    text_.clear();
    length_ = 0;
  }

  std::size_t length() const { return length_; }
  std::size_t offset(std::size_t code_point) const {
    return code_point < length_ ? offsets_[code_point] : text_.size();
  }
  std::string_view piece(std::size_t begin, std::size_t end) const {
    return std::string_view(text_).substr(offset(begin), offset(end) - offset(begin));
  }

 private:
  std::string text_;
  std::array<std::size_t, kLongestWord> offsets_{};
  std::size_t length_ = 0;
};

WordPiece::WordPiece(const std::filesystem::path& vocabulary_file)
    : WordPiece(read_vocabulary(vocabulary_file), in_quotes(vocabulary_file)) {}

WordPiece::WordPiece(std::vector<std::string> tokens, const std::string& source) : tokens_(std::move(tokens)) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view token = tokens_[i];
    const bool continuation = token.size() > 2 && token.substr(0, 2) == "##";
    const std::string_view piece = continuation ? token.substr(2) : token;
    longest_piece_ = std::max(longest_piece_, piece.size());
    (continuation ? continuation_pieces_ : first_pieces_).insert_or_assign(std::string(piece), static_cast<int>(i));
  }
  for (std::size_t i = 0; i < kSpecialTokens.size(); ++i) {
    const auto found = first_pieces_.find(kSpecialTokens[i]);
    if (found == first_pieces_.end()) {
      throw std::runtime_error(source + " is not a BERT vocabulary: there is no " + std::string(kSpecialTokens[i]) +
                               " among its " + std::to_string(tokens_.size()) + " tokens");
    }
    special_ids_[i] = found->second;
  }
}

std::vector<int> WordPiece::encode(std::string_view text, std::size_t max_length) const {
  if (max_length < 2)
    throw std::invalid_argument("WordPiece::encode: max_length must be at least 2, for [CLS] and [SEP]");
  const std::size_t limit = max_length - 1;  // [SEP] takes the last place
  std::vector<int> ids = {special_ids_[kCls]};

  // Special tokens are cut out of the raw text, before any clean-up. Each starts with '[' and holds no other, so the
  // leftmost match is the only candidate.
  std::size_t begin = 0;
  for (std::size_t at = text.find('['); at != text.npos && ids.size() < limit; at = text.find('[', at)) {
    const auto name = std::find_if(kSpecialTokens.begin(), kSpecialTokens.end(),
                                   [&](std::string_view token) { return text.substr(at, token.size()) == token; });
    if (name == kSpecialTokens.end()) {
      ++at;
      continue;
    }
    encode_plain(text.substr(begin, at - begin), limit, ids);
    ids.push_back(special_ids_[static_cast<std::size_t>(name - kSpecialTokens.begin())]);
    begin = at += name->size();
  }
  encode_plain(text.substr(begin), limit, ids);

  ids.resize(std::min(ids.size(), limit));
  ids.push_back(special_ids_[kSep]);
  return ids;
}

void WordPiece::encode_plain(std::string_view text, std::size_t limit, std::vector<int>& ids) const {
  Word word;
  const auto finish_word = [&] {
    if (word.length() > 0) encode_word(word, ids);
    word.clear();
  };

  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (std::size_t i = 0; i < text.size() && ids.size() < limit;) {
    utf8proc_int32_t code_point = 0;
    const auto count = utf8proc_iterate(bytes + i, static_cast<utf8proc_ssize_t>(text.size() - i), &code_point);
    if (count <= 0) {  // not UTF-8: as if U+FFFD stood here, which is dropped
      ++i;
      continue;
    }
    i += static_cast<std::size_t>(count);

    const auto category = category_of(code_point);
    if (is_space(code_point, category)) {
      finish_word();
      continue;
    }
    if (is_dropped(code_point, category)) continue;

    const bool ideograph = contains(kIdeographs, code_point);
    if (ideograph) finish_word();

    // Decomposed canonically (NFD; accents become non-spacing marks, Mn, which go) and lowered one by one. NFD would
    // also sort runs of marks; the few marks that are not Mn are in no vocabulary, so their order cannot matter.
    std::array<utf8proc_int32_t, 16> decomposed{};  // Unicode's longest canonical decomposition has 4
    int boundary_class = 0;
    const auto parts = utf8proc_decompose_char(code_point, decomposed.data(), std::ssize(decomposed),
                                               UTF8PROC_DECOMPOSE, &boundary_class);
    for (utf8proc_ssize_t part = 0; part < std::min(parts, std::ssize(decomposed)); ++part) {
      const utf8proc_int32_t lowered = utf8proc_tolower(decomposed[static_cast<std::size_t>(part)]);
      const auto part_category = category_of(lowered);
      if (part_category == UTF8PROC_CATEGORY_MN) continue;
      const bool alone = is_punctuation(lowered, part_category);
      if (alone) finish_word();
      word.append(lowered);
      if (alone) finish_word();
    }
    if (ideograph) finish_word();
  }
  finish_word();
}

// Greedy longest match first (Wu et al. 2016, https://arxiv.org/abs/1609.08144, as BERT has it). A word with a rest
// that nothing matches is one [UNK].
void WordPiece::encode_word(const Word& word, std::vector<int>& ids) const {
  const std::size_t length = word.length();
  const std::size_t ids_before = ids.size();
  std::size_t begin = length > kLongestWord ? length : 0;
  while (begin < length) {
    const Ids& pieces = begin == 0 ? first_pieces_ : continuation_pieces_;
    std::size_t end = length;
    auto found = pieces.end();
    for (; end > begin; --end) {
      const std::string_view piece = word.piece(begin, end);
      if (piece.size() > longest_piece_) continue;
      found = pieces.find(piece);
      if (found != pieces.end()) break;
    }
    if (found == pieces.end()) {
      ids.resize(ids_before);
      break;
    }
    ids.push_back(found->second);
    begin = end;
  }
  if (ids.size() == ids_before) ids.push_back(special_ids_[kUnknown]);
}

}  // namespace sentence_search
