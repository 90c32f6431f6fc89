// SPDX-License-Identifier: MIT
#include "passages.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <utility>

#include <heed/core/random.hpp>
#include <heed/nn/init.hpp>

#include "../common/tensors.hpp"

namespace train_text_classifier {

using heed::Index;

std::vector<std::string> split_words(std::string_view text) {
  constexpr std::string_view marks = ".,;!?";
  std::vector<std::string> words;
  std::string word;
  const auto finish = [&] {
    while (!word.empty() && word.back() == '\'') word.pop_back();
    if (!word.empty()) words.push_back(std::exchange(word, {}));
  };
  for (const char c : text) {
    if ('a' <= c && c <= 'z') {
      word += c;
    } else if ('A' <= c && c <= 'Z') {
      word += static_cast<char>(c - 'A' + 'a');
    } else if (c == '\'' && !word.empty()) {
      word += c;
    } else {
      finish();
      if (marks.find(c) != marks.npos) words.emplace_back(1, c);
    }
  }
  finish();
  return words;
}

Vocabulary::Vocabulary(std::span<const std::vector<std::string>> texts, std::size_t size) {
  std::map<std::string, std::size_t> counts;
  for (const auto& text : texts) {
    for (const std::string& word : text) ++counts[word];
  }
  std::vector<std::pair<std::string, std::size_t>> words(counts.begin(), counts.end());
  std::stable_sort(words.begin(), words.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  words.resize(std::min(words.size(), size - 1));
  for (const auto& entry : words) ids_.emplace(entry.first, static_cast<int>(ids_.size()) + 1);
}

int Vocabulary::id(const std::string& word) const {
  const auto found = ids_.find(word);
  return found == ids_.end() ? 0 : found->second;
}

Passages::Passages(const std::vector<std::string>& texts, Index length, std::size_t vocabulary) : length_(length) {
  if (texts.size() < 2) throw std::runtime_error("there must be at least two texts to tell apart");
  std::vector<std::vector<std::string>> words, first_parts;
  for (const std::string& text : texts) {
    words.push_back(split_words(text));
    const std::size_t held_out = words.back().size() / 5;
    if (held_out < static_cast<std::size_t>(length)) {
      throw std::runtime_error("a text of " + std::to_string(words.back().size()) + " words is too short: its last " +
                               "fifth has to hold a passage of " + std::to_string(length));
    }
    first_parts.emplace_back(words.back().begin(), words.back().end() - static_cast<std::ptrdiff_t>(held_out));
  }
  const Vocabulary ids(first_parts, vocabulary);
  vocabulary_size_ = ids.size();
  for (const auto& text : words) {
    ids_.emplace_back();
    for (const std::string& word : text) ids_.back().push_back(ids.id(word));
  }
  const auto room = static_cast<std::size_t>(length);
  for (std::size_t t = 0; t < ids_.size(); ++t) {
    const std::span<const int> all(ids_[t]);
    const std::size_t split = first_parts[t].size();
    training_.push_back(all.first(split));
    for (std::size_t begin = split; begin + room <= all.size(); begin += room) {
      held_out_.push_back({all.subspan(begin, room), static_cast<int>(t)});
    }
  }
}

void Passages::sample(std::uint64_t seed, Index step, Index size, Batch& batch) const {
  const heed::Philox random(seed, heed::init::stream("batch." + std::to_string(step)));
  examples::sized<int, 2>(batch.ids, {size, length_});
  examples::sized<int, 2>(batch.labels, {size, 1});
  for (Index b = 0; b < size; ++b) {
    const auto label = static_cast<std::size_t>(step * size + b) % training_.size();
    const std::span<const int> text = training_[label];
    const auto starts = static_cast<double>(text.size() - static_cast<std::size_t>(length_) + 1);
    const auto begin = static_cast<std::size_t>(random.uniform(static_cast<std::uint64_t>(b)) * starts);
    put({text.subspan(begin, static_cast<std::size_t>(length_)), static_cast<int>(label)}, b, batch);
  }
}

void Passages::held_out(Index first, Index size, Batch& batch) const {
  examples::sized<int, 2>(batch.ids, {size, length_});
  examples::sized<int, 2>(batch.labels, {size, 1});
  for (Index b = 0; b < size; ++b) put(held_out_[static_cast<std::size_t>(first + b)], b, batch);
}

Index Passages::held_out_count(int label) const {
  return std::count_if(held_out_.begin(), held_out_.end(),
                       [&](const Passage& passage) { return passage.label == label; });
}

void Passages::put(const Passage& passage, Index row, Batch& batch) {
  std::copy(passage.ids.begin(), passage.ids.end(), &batch.ids(row, 0));
  batch.labels(row, 0) = passage.label;
}

}  // namespace train_text_classifier
