// SPDX-License-Identifier: MIT
#include "text.hpp"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <utility>

namespace sentence_search {

namespace {

constexpr std::string_view kWhiteSpace = " \t\n\r\v\f";

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kWhiteSpace);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kWhiteSpace) - first + 1);
}

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> prefixes, std::size_t& length) {
  for (const std::string_view prefix : prefixes) {
    if (text.substr(0, prefix.size()) == prefix) {
      length = prefix.size();
      return true;
    }
  }
  return false;
}

// "Mr. Bennet", "St. James", "J. Austen": a short capitalised word before the full stop ends no sentence. Now and then
// that is wrong ("He saw Bob."), which only moves a cut by a sentence.
bool is_abbreviation(std::string_view before_stop) {
  const std::size_t space = before_stop.find_last_of(" \t\n\"'(");
  const std::string_view word = space == before_stop.npos ? before_stop : before_stop.substr(space + 1);
  return !word.empty() && word.size() <= 3 && 'A' <= word.front() && word.front() <= 'Z';
}

// The offset just after the first sentence of the text and its closing quotes; the size of the text if it has but one.
std::size_t first_sentence_end(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    std::size_t length = 1;
    const bool wide_stop = starts_with_any(text.substr(i), {"。", "！", "？"}, length);
    const bool stop = wide_stop || starts_with_any(text.substr(i), {".", "!", "?", "…"}, length);
    if (!stop) {
      ++i;
      continue;
    }
    const bool abbreviation = text[i] == '.' && is_abbreviation(text.substr(0, i));
    i += length;
    while (starts_with_any(text.substr(i),
                           {".", "!", "?", "…", "。", "！", "？", "\"", "'", "”", "’", ")", "]", "»", "」", "』"},
                           length)) {
      i += length;
    }
    // Only text set without spaces, Chinese or Japanese, may go on right after the stop.
    const bool ends = wide_stop || i == text.size() || kWhiteSpace.find(text[i]) != kWhiteSpace.npos;
    if (ends && !abbreviation) return i;
  }
  return text.size();
}

std::size_t count_newlines(std::string_view text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

std::size_t count_code_points(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }));
}

}  // namespace

std::string read_text_file(const std::filesystem::path& file) {
  std::string text = read_file(file);
  if (text.find('\0') != text.npos) {
    throw std::runtime_error(in_quotes(file) + " is not a UTF-8 text file: it holds NUL bytes");
  }
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
  if (text.compare(0, byte_order_mark.size(), byte_order_mark) == 0) text.erase(0, byte_order_mark.size());
  std::size_t kept = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r' || i + 1 == text.size() || text[i + 1] != '\n') text[kept++] = text[i];
  }
  text.resize(kept);
  if (trim(text).empty()) throw std::runtime_error(in_quotes(file) + " is empty: there is no text to search");
  return text;
}

void for_each_line(std::string_view text, const std::function<void(std::string_view)>& f) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    f(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

std::vector<Passage> split_passages(std::string_view text, const std::string& file, SplitBy by) {
  std::vector<Passage> passages;
  bool in_paragraph = false;
  std::size_t line_number = 0;
  for_each_line(text, [&](std::string_view line) {
    ++line_number;
    line = trim(line);
    if (line.empty()) {
      in_paragraph = false;
    } else if (in_paragraph) {
      passages.back().text.append(1, '\n').append(line);
    } else {
      passages.push_back({std::string(line), file, line_number});
      in_paragraph = by == SplitBy::Paragraph;
    }
  });
  return passages;
}

std::vector<Passage> split_long_passages(std::vector<Passage> passages, std::size_t limit,
                                         const std::function<std::size_t(std::string_view)>& count_tokens) {
  std::vector<Passage> result;
  result.reserve(passages.size());
  for (Passage& passage : passages) {
    if (count_tokens(passage.text) <= limit) {
      result.push_back(std::move(passage));
      continue;
    }
    const std::string_view text = passage.text;
    std::size_t begin = 0;
    std::size_t end = 0;
    std::size_t tokens = 0;
    const auto push = [&] {
      const std::string_view piece = text.substr(begin, end - begin);
      const std::size_t lead = std::min(piece.find_first_not_of(kWhiteSpace), piece.size());
      if (lead < piece.size()) {
        result.push_back(
            {std::string(trim(piece)), passage.file, passage.line + count_newlines(text.substr(0, begin + lead))});
      }
      begin = end;
      tokens = 0;
    };
    while (end < text.size()) {
      const std::size_t sentence = first_sentence_end(text.substr(end));
      const std::size_t sentence_tokens = count_tokens(text.substr(end, sentence));
      if (tokens + sentence_tokens > limit) push();
      tokens += sentence_tokens;
      end += sentence;
    }
    push();
  }
  return result;
}

std::vector<std::string> wrap(std::string_view text, std::size_t width, std::size_t max_lines) {
  std::vector<std::string> lines;
  std::size_t used = 0;
  for (text = trim(text); !text.empty();) {
    const std::size_t end = std::min(text.find_first_of(kWhiteSpace), text.size());
    const std::string_view word = text.substr(0, end);
    const std::size_t size = count_code_points(word);
    if (!lines.empty() && used + 1 + size <= width) {
      lines.back().append(1, ' ').append(word);
      used += 1 + size;
    } else if (lines.size() == max_lines) {
      lines.back() += " ...";
      break;
    } else {
      lines.emplace_back(word);
      used = size;
    }
    text = trim(text.substr(end));
  }
  return lines;
}

std::filesystem::path default_model_directory() {
  const char* model = std::getenv("HEED_MODEL_DIR");
  return model != nullptr && *model != '\0' ? std::filesystem::path(model) : examples::cache_directory() / "minilm";
}

}  // namespace sentence_search
