// SPDX-License-Identifier: MIT
#include "texts.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <stdexcept>
#include <utility>

#include <heed/core/random.hpp>
#include <heed/nn/init.hpp>

#include "claim.hpp"
#include "common/files.hpp"
#include "train_text_classifier/passages.hpp"

namespace article {

using heed::Index;
using train_text_classifier::split_words;
using train_text_classifier::Vocabulary;

namespace {

// Numbers in a row, each below what it is asked for.
class Draws {
 public:
  Draws(std::uint64_t seed, std::string_view name) : random_(seed, heed::init::stream(name)) {}
  std::size_t below(std::size_t count) {
    return static_cast<std::size_t>(random_.uniform(next_++) * static_cast<double>(count));
  }

 private:
  heed::Philox random_;
  std::uint64_t next_ = 0;
};

// The words of a text as ids from 1 on; 1 for all words outside the vocabulary.
std::vector<int> ids_of(const std::vector<std::string>& words, const Vocabulary& vocabulary) {
  std::vector<int> ids;
  for (const std::string& word : words) ids.push_back(vocabulary.id(word) + 1);
  return ids;
}

// The first four fifths, which are trained on, or the last one.
std::span<const int> part_of(std::span<const int> ids, bool held_out) {
  const std::size_t split = ids.size() - ids.size() / 5;
  return held_out ? ids.subspan(split) : ids.first(split);
}

std::span<const int> passage(std::span<const int> ids, std::size_t length, Draws& draws) {
  return ids.subspan(draws.below(ids.size() - length + 1), length);
}

void append(std::vector<int>& to, std::span<const int> ids) { to.insert(to.end(), ids.begin(), ids.end()); }

}  // namespace

Batch batch_of(const std::vector<Example>& examples, std::size_t first, std::size_t size) {
  const std::span<const Example> rows = std::span(examples).subspan(first, size);
  Batch batch;
  for (const Example& example : rows) batch.lengths.push_back(static_cast<int>(example.ids.size()));
  const Index longest = *std::max_element(batch.lengths.begin(), batch.lengths.end());
  batch.ids = heed::Tensor<int, 2>(static_cast<Index>(size), longest);
  batch.targets = heed::Tensor<int, 2>(static_cast<Index>(size), 1);
  for (Index b = 0; b < static_cast<Index>(size); ++b) {
    const Example& example = rows[static_cast<std::size_t>(b)];
    std::copy(example.ids.begin(), example.ids.end(), &batch.ids(b, 0));
    batch.targets(b, 0) = example.label;
  }
  return batch;
}

Batch sample(const std::vector<Example>& examples, std::uint64_t seed, int step, std::size_t size) {
  Draws draws(seed, "batch." + std::to_string(step));
  return batch_of(examples, draws.below(examples.size() - size + 1), size);
}

std::vector<double> accuracies(const Model& model, const std::vector<Example>& examples, heed::Context& context) {
  std::vector<double> right, count;
  for (std::size_t first = 0; first < examples.size(); first += 32) {
    const std::size_t size = std::min<std::size_t>(32, examples.size() - first);
    const heed::Tensor<float, 3> logits = model.logits(batch_of(examples, first, size), context);
    for (std::size_t i = 0; i < size; ++i) {
      const auto group = static_cast<std::size_t>(examples[first + i].group);
      right.resize(std::max(right.size(), group + 1));
      count.resize(right.size());
      const float* row = &logits(static_cast<Index>(i), 0, 0);
      right[group] += std::max_element(row, row + logits.extent(2)) - row == examples[first + i].label;
      ++count[group];
    }
  }
  for (std::size_t g = 0; g < right.size(); ++g) right[g] /= std::max(1.0, count[g]);
  return right;
}

std::vector<char32_t> code_points(std::string_view text) {
  std::vector<char32_t> points;
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(at < text.size() ? text[at] : 0); };
    const unsigned char lead = byte(i);
    const std::size_t length = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
    char32_t point = length == 1 ? lead : static_cast<char32_t>(lead & (0x7F >> length));
    bool valid = length > 0;
    for (std::size_t j = 1; j < length; ++j) {
      valid = valid && byte(i + j) >> 6 == 2;
      point = point << 6 | (byte(i + j) & 0x3F);
    }
    constexpr char32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (!valid || point < least[length] || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) {
      throw std::runtime_error("byte " + std::to_string(i) + " of the text is no UTF-8; is it in GBK?");
    }
    points.push_back(point);
    i += length;
  }
  return points;
}

std::string pride_and_prejudice() { return examples::read_file(HEED_ARTICLE_NOVEL); }

Characters::Characters(std::string_view text, int length)
    : length_(static_cast<std::size_t>(length)), split_(text.size() - text.size() / 10) {
  if (text.size() - split_ <= length_) throw std::runtime_error("the text is too short for windows of that length");
  const std::set<char> characters(text.begin(), text.end());
  alphabet_.assign(characters.begin(), characters.end());
  for (const char c : text) {
    ids_.push_back(static_cast<int>(std::lower_bound(alphabet_.begin(), alphabet_.end(), c) - alphabet_.begin()));
  }
}

Batch Characters::sample(std::uint64_t seed, int step, int size) const {
  Draws draws(seed, "windows." + std::to_string(step));
  std::vector<std::size_t> begins(static_cast<std::size_t>(size));
  for (std::size_t& begin : begins) begin = draws.below(split_ - length_);
  return windows(begins);
}

Batch Characters::held_out(int size) const {
  const std::size_t room = ids_.size() - split_ - length_;
  std::vector<std::size_t> begins(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < begins.size(); ++i) begins[i] = split_ + i * room / begins.size();
  return windows(begins);
}

Batch Characters::windows(const std::vector<std::size_t>& begins) const {
  const Index size = static_cast<Index>(begins.size()), length = static_cast<Index>(length_);
  Batch batch{heed::Tensor<int, 2>(size, length), {}, heed::Tensor<int, 2>(size, length)};
  for (Index b = 0; b < size; ++b) {
    const int* from = ids_.data() + begins[static_cast<std::size_t>(b)];
    std::copy_n(from, length_, &batch.ids(b, 0));
    std::copy_n(from + 1, length_, &batch.targets(b, 0));
  }
  return batch;
}

Dataset needle_sentences(std::string_view text, const NeedleOptions& options) {
  const std::vector<std::string> words = split_words(text);
  const std::vector<std::string> needle{"the", "answer", "was", "", "."},
      answers{"london", "letter", "dinner", "library"};
  std::vector<std::string> known(words.begin(), words.end() - static_cast<std::ptrdiff_t>(words.size() / 5));
  const Vocabulary vocabulary(std::span(&known, 1), static_cast<std::size_t>(options.vocab_size));
  const std::vector<int> ids = ids_of(words, vocabulary);
  for (const std::string& answer : answers) {
    if (vocabulary.id(answer) == 0)
      throw std::runtime_error("'" + answer + "' is too rare in the text to be an answer");
  }
  const auto is_answer = [&](int id) {
    return std::any_of(answers.begin(), answers.end(), [&](const auto& word) { return vocabulary.id(word) + 1 == id; });
  };
  Draws draws(options.seed, "needles");
  const auto example = [&](bool held_out, std::size_t number) {
    const auto groups = static_cast<std::size_t>(options.groups), length = static_cast<std::size_t>(options.length);
    const std::size_t group = number % groups, part = length / groups, answer = draws.below(answers.size());
    const std::size_t begin = std::min(group * part + draws.below(part), length - needle.size());
    Example made{.label = static_cast<int>(answer), .group = static_cast<int>(group)};
    do {
      made.ids.clear();
      append(made.ids, passage(part_of(ids, held_out), length, draws));
    } while (std::any_of(made.ids.begin(), made.ids.end(), is_answer));
    for (std::size_t i = 0; i < needle.size(); ++i) {
      made.ids[begin + i] = vocabulary.id(needle[i].empty() ? answers[answer] : needle[i]) + 1;
    }
    return made;
  };
  Dataset data{.vocab_size = vocabulary.size() + 1, .classes = static_cast<int>(answers.size())};
  for (int i = 0; i < options.training; ++i) data.training.push_back(example(false, static_cast<std::size_t>(i)));
  for (int i = 0; i < options.held_out; ++i) data.held_out.push_back(example(true, static_cast<std::size_t>(i)));
  return data;
}

Dataset reviews(const ReviewOptions& options) {
  const std::filesystem::path directory = examples::cache_directory() / "reviews";
  if (!std::filesystem::is_directory(directory)) {
    throw Skipped("the reviews are not there: examples/article/fetch_reviews.sh fetches them");
  }
  std::set<std::pair<std::vector<char32_t>, int>> texts;  // half of the lines are there twice
  std::map<char32_t, int> counts;
  for (const int label : {0, 1}) {
    std::vector<char32_t> line;
    for (const char32_t c : code_points(examples::read_file(directory / (label == 1 ? "pos.txt" : "neg.txt")))) {
      if (c != '\n') {
        line.push_back(c);
      } else if (const bool is_new = !line.empty() && texts.emplace(line, label).second; is_new) {
        for (const char32_t one : line) ++counts[one];
      }
      if (c == '\n') line.clear();
    }
  }
  std::vector<std::pair<int, char32_t>> frequent;
  for (const auto& [c, count] : counts) frequent.emplace_back(-count, c);
  std::sort(frequent.begin(), frequent.end());
  std::map<char32_t, int> ids;  // from 2 on: 0 is padding, 1 is for all others
  for (const auto& entry : frequent) {
    if (static_cast<int>(ids.size()) + 2 < options.vocab_size)
      ids.emplace(entry.second, static_cast<int>(ids.size()) + 2);
  }

  Dataset data{.vocab_size = options.vocab_size, .classes = 2};
  Draws draws(options.seed, "reviews");
  for (const auto& [text, label] : texts) {
    Example made{.label = label, .group = text.size() <= 100 ? 0 : text.size() <= 200 ? 1 : 2};
    for (const char32_t c : text) {
      const auto found = ids.find(c);
      if (static_cast<int>(made.ids.size()) < options.longest)
        made.ids.push_back(found == ids.end() ? 1 : found->second);
    }
    (draws.below(5) == 0 ? data.held_out : data.training).push_back(std::move(made));
  }
  for (std::vector<Example>* part : {&data.training, &data.held_out}) {
    std::stable_sort(part->begin(), part->end(),
                     [](const Example& a, const Example& b) { return a.ids.size() < b.ids.size(); });
  }
  return data;
}

Passages novel_passages(const PassageOptions& options) {
  const std::filesystem::path directory = text_directory("austen");
  std::vector<std::vector<std::string>> words;
  for (const char* name :
       {"emma", "mansfield_park", "northanger_abbey", "persuasion", "pride_and_prejudice", "sense_and_sensibility"}) {
    words.push_back(split_words(examples::read_file(directory / (std::string(name) + ".txt"))));
  }
  const std::vector<std::string> opening = split_words("My dear sir, I have the honour to send you the following:");
  const Vocabulary vocabulary(words, static_cast<std::size_t>(options.vocab_size));
  std::vector<std::vector<int>> ids;
  for (const auto& text : words) ids.push_back(ids_of(text, vocabulary));
  const std::vector<int> head = ids_of(opening, vocabulary);

  Draws draws(options.seed, "passages");
  const auto example = [&](bool held_out, std::size_t book) {
    Example made{.ids = head, .label = static_cast<int>(book)};
    append(made.ids, passage(part_of(ids[book], held_out), static_cast<std::size_t>(options.length), draws));
    return made;
  };
  Passages passages;
  passages.vocab_size = vocabulary.size() + 1;
  passages.classes = static_cast<int>(ids.size());
  passages.opening = static_cast<int>(head.size());
  for (int i = 0; i < options.training; ++i) passages.training.push_back(example(false, draws.below(ids.size())));
  for (int i = 0; i < options.held_out / 2; ++i) {
    const std::size_t first = draws.below(ids.size()), others = 1 + draws.below(ids.size() - 1);
    passages.held_out.push_back(example(true, first));
    passages.held_out.push_back(example(true, i % 2 == 0 ? first : (first + others) % ids.size()));
  }
  return passages;
}

}  // namespace article
