// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "../common/files.hpp"

namespace sentence_search {

using examples::in_quotes;
using examples::read_file;

// A passage of a text file: its text, unchanged, and its position.
struct Passage {
  std::string text;
  std::string file;
  std::size_t line = 0;  // from 1
};

enum class SplitBy { Line, Paragraph };

// A UTF-8 text file without its byte order mark and with "\n" for "\r\n".
// Throws std::runtime_error if it cannot be read, is blank, or holds NUL bytes (then it is no UTF-8 text).
std::string read_text_file(const std::filesystem::path& file);

// Calls f with each line of the text, without its "\n" or "\r\n". A last line without "\n" counts, nothing after a last
// "\n" does not.
void for_each_line(std::string_view text, const std::function<void(std::string_view)>& f);

// The non-blank lines of a text, or its paragraphs: runs of non-blank lines. Surrounding white space is removed.
std::vector<Passage> split_passages(std::string_view text, const std::string& file, SplitBy by);

// Cuts passages of more than `limit` tokens at ends of sentences, into as few passages as a greedy filling gives. A
// single sentence over the limit stays whole. `count_tokens` must add up over sentences (be about equal to the sum).
std::vector<Passage> split_long_passages(std::vector<Passage> passages, std::size_t limit,
                                         const std::function<std::size_t(std::string_view)>& count_tokens);

// Broken into lines of at most `width` code points at white space; longer words stand alone. Runs of white space become
// one space. If more than `max_lines` are needed, the last one ends in "...".
std::vector<std::string> wrap(std::string_view text, std::size_t width,
                              std::size_t max_lines = static_cast<std::size_t>(-1));

// $HEED_MODEL_DIR, or else where fetch_model.sh puts the model: minilm in the cache directory.
std::filesystem::path default_model_directory();

}  // namespace sentence_search
