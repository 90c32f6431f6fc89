// SPDX-License-Identifier: MIT
#include "corpus.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <stdexcept>

#include <heed/core/random.hpp>
#include <heed/nn/init.hpp>

#include "../common/tensors.hpp"

namespace train_char_lm {

namespace {

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

Alphabet::Alphabet(std::string_view text) {
  std::array<bool, 256> occurs{};
  for (const char c : text) occurs[static_cast<unsigned char>(c)] = true;
  for (std::size_t c = 0; c < occurs.size(); ++c) {
    if (occurs[c]) characters_ += static_cast<char>(c);
  }
}

std::vector<int> Alphabet::encode(std::string_view text) const {
  std::array<int, 256> id_of{};
  id_of.fill(-1);
  for (int id = 0; id < size(); ++id) id_of[static_cast<unsigned char>(decode(id))] = id;
  std::vector<int> ids;
  ids.reserve(text.size());
  for (const char c : text) {
    const int id = id_of[static_cast<unsigned char>(c)];
    if (id < 0) throw std::runtime_error(std::string("the text the model learns from has no '") + c + "'");
    ids.push_back(id);
  }
  return ids;
}

Corpus::Corpus(std::string_view text, heed::Index length)
    : alphabet_(text),
      length_(length),
      ids_(alphabet_.encode(text)),
      split_(ids_.size() - ids_.size() / 10),
      fingerprint_(fnv1a(text)) {
  const std::size_t room = static_cast<std::size_t>(length) + 1;
  if (held_out().size() < room) {
    throw std::runtime_error("a text of " + std::to_string(text.size()) + " characters is too short: its last tenth " +
                             "has to hold a window of " + std::to_string(room) + " characters");
  }
}

void Corpus::sample(std::uint64_t seed, heed::Index step, heed::Index size, Batch& batch) const {
  const heed::Philox random(seed, heed::init::stream("batch." + std::to_string(step)));
  examples::sized<int, 2>(batch.ids, {size, length_});
  examples::sized<int, 2>(batch.targets, {size, length_});
  const std::size_t starts = training().size() - static_cast<std::size_t>(length_);
  for (heed::Index b = 0; b < size; ++b) {
    const double place = random.uniform(static_cast<std::uint64_t>(b)) * static_cast<double>(starts);
    read(training(), static_cast<std::size_t>(place), b, batch);
  }
}

void Corpus::held_out_windows(heed::Index first, heed::Index size, heed::Index count, Batch& batch) const {
  examples::sized<int, 2>(batch.ids, {size, length_});
  examples::sized<int, 2>(batch.targets, {size, length_});
  const std::size_t last_start = held_out().size() - static_cast<std::size_t>(length_) - 1;
  for (heed::Index b = 0; b < size; ++b) {
    const auto window = static_cast<std::size_t>(first + b);
    read(held_out(), last_start * window / static_cast<std::size_t>(std::max<heed::Index>(1, count - 1)), b, batch);
  }
}

void Corpus::read(std::span<const int> part, std::size_t start, heed::Index row, Batch& batch) const {
  const std::span<const int> window = part.subspan(start, static_cast<std::size_t>(length_) + 1);
  std::copy(window.begin(), window.end() - 1, &batch.ids(row, 0));
  std::copy(window.begin() + 1, window.end(), &batch.targets(row, 0));
}

}  // namespace train_char_lm
