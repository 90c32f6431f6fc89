// SPDX-License-Identifier: MIT
// Searches text files by meaning: every passage and every query becomes a vector, the nearest passages answer.

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>

#include <heed/core/context.hpp>
#include <heed/core/parallel.hpp>
#include <heed/inspect/heatmap.hpp>
#include <heed/inspect/html.hpp>
#include <heed/inspect/recorder.hpp>

#include "../common/progress.hpp"
#include "minilm.hpp"
#include "search.hpp"
#include "text.hpp"
#include "wordpiece.hpp"

namespace sentence_search {
namespace {

struct Options {
  std::filesystem::path model = default_model_directory();
  int threads = 0;  // 0: one for each core
  bool embed = false;
  bool tokens = false;
  std::vector<std::string> files;
  std::vector<std::string> queries;
  std::size_t top = 3;
  std::string by = "paragraph";
  bool full = false;
  std::string heatmap, html;
  std::string sentence;
  int layer = 3;  // whose head 1 links "it" and "she" to what they stand for
  int head = 1;

  bool draws() const { return !heatmap.empty() || !html.empty(); }
};

// Returns the exit status if there is nothing left to do: help was asked for, or the command line makes no sense.
std::optional<int> parse(int argc, char** argv, Options& options) {
  CLI::App app("Searches text files by meaning, with the sentence embeddings of all-MiniLM-L6-v2.", "sentence_search");
  app.get_formatter()->column_width(36);
  app.add_option("FILES", options.files, "UTF-8 text files to search")->option_text(" ");
  app.add_option("--query", options.queries,
                 "The query; can be repeated. Without it, queries are read from stdin")
      ->allow_extra_args(false)  // one a time: what follows is a file
      ->option_text("TEXT");
  app.add_option("--top", options.top, "Number of passages to print for a query")
      ->check(CLI::Range(1, 1'000'000))
      ->option_text("N [3]");
  app.add_option("--by", options.by, "A passage is a 'paragraph', up to an empty line, or a 'line'")
      ->check(CLI::IsMember({"line", "paragraph"}))
      ->option_text("UNIT [paragraph]");
  app.add_flag("--full", options.full, "Print whole passages, not only their beginnings");

  app.add_option("--heatmap", options.heatmap, "Draw the attention of one head, as SVG")->option_text("FILE");
  app.add_option("--html", options.html, "Write a page that shows the attention of all heads")->option_text("FILE");
  app.add_option("--sentence", options.sentence, "The sentence to draw; by default the first query")
      ->option_text("TEXT");
  app.add_option("--layer", options.layer, "The layer of the head to draw, or to show first")
      ->check(CLI::Range(0, MiniLm::kLayers - 1))
      ->option_text("0-5 [3]");
  app.add_option("--head", options.head, "The head to draw, or to show first")
      ->check(CLI::Range(0, MiniLm::kHeads - 1))
      ->option_text("0-11 [1]");

  auto* embed = app.add_flag("--embed", options.embed, "Print the embedding of each line of stdin, as a JSON array");
  auto* tokens = app.add_flag("--tokens", options.tokens, "Print the token ids of each line of stdin, as a JSON array");
  tokens->excludes(embed);

  app.add_option("--model", options.model,
                 "Directory of model.safetensors and vocab.txt; by default $HEED_MODEL_DIR, "
                 "or the directory that fetch_model.sh fills")
      ->option_text("DIR");
  app.add_option("--threads", options.threads, "0: one for each core")
      ->check(CLI::Range(0, 1024))
      ->option_text("N [0]");

  app.callback([&options] {
    const bool reads_stdin = options.embed || options.tokens;
    const bool searches = !options.files.empty();
    if (reads_stdin && (searches || !options.queries.empty() || options.draws())) {
      throw CLI::ValidationError("--embed and --tokens read stdin; they go with no files, queries or drawings");
    }
    if (!reads_stdin && !searches && !options.draws()) {
      throw CLI::ValidationError(
          "there is nothing to do: give files to search, --embed, --tokens, --heatmap or --html");
    }
    if (options.draws() && options.sentence.empty() && options.queries.empty()) {
      throw CLI::ValidationError("--heatmap and --html need a --sentence or a --query to draw");
    }
    if (!options.draws() && !options.sentence.empty()) {
      throw CLI::ValidationError("--sentence is drawn by --heatmap or --html");
    }
  });

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  return std::nullopt;
}

// One line with a JSON array.
template <class Numbers>
void print_array(const Numbers& numbers) {
  std::string line;
  for (const auto number : numbers) {
    std::array<char, 32> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
    line += line.empty() ? '[' : ',';
    line.append(digits.data(), end);
  }
  std::cout << line << "]\n";
}

void print_tokens(const WordPiece& tokenizer) {
  for (std::string line; std::getline(std::cin, line);) print_array(tokenizer.encode(line, MiniLm::kMaxLength));
}

// Whoever writes a line and waits for its embedding gets it; who writes many at once has them embedded together.
void print_embeddings(const WordPiece& tokenizer, const MiniLm& model, heed::Context& context) {
  constexpr std::size_t most = 512;
  std::vector<std::vector<int>> texts;
  for (std::string line; std::getline(std::cin, line);) {
    texts.push_back(tokenizer.encode(line, MiniLm::kMaxLength));
    if (texts.size() < most && std::cin.rdbuf()->in_avail() > 0) continue;
    const Embeddings embeddings = model.embed(texts, context);
    for (Eigen::Index i = 0; i < embeddings.rows(); ++i) print_array(embeddings.row(i));
    std::cout.flush();
    texts.clear();
  }
}

// Draws the attention in one sentence: one head as a picture, all heads as a page.
void draw_attention(const Options& options, const WordPiece& tokenizer, const MiniLm& model, heed::Context& context) {
  const std::string& sentence = options.sentence.empty() ? options.queries.front() : options.sentence;
  const std::vector<int> ids = tokenizer.encode(sentence, MiniLm::kMaxLength);
  std::vector<std::string> labels;
  for (const int id : ids) labels.push_back(tokenizer.token(id));

  const heed::Recorder recorder = heed::record(context, [&] { model.embed({&ids, 1}, context); });
  if (!options.heatmap.empty()) {
    heed::save_heatmap(
        options.heatmap, recorder.of(MiniLm::attention_name(options.layer)).weights.view()[0][options.head], labels,
        labels, {.title = "MiniLM, layer " + std::to_string(options.layer) + ", head " + std::to_string(options.head)});
  }
  if (!options.html.empty()) {
    heed::save_attention_html(options.html, recorder,
                              {.title = "MiniLM: " + sentence,
                               .labels = {{.queries = labels}},
                               .layer = MiniLm::attention_name(options.layer),
                               .head = options.head});
  }
}

std::vector<Passage> read_passages(const Options& options, const WordPiece& tokenizer) {
  const SplitBy by = options.by == "line" ? SplitBy::Line : SplitBy::Paragraph;
  std::vector<Passage> passages;
  for (const std::string& file : options.files) {
    auto read = split_passages(read_text_file(file), file, by);
    if (by == SplitBy::Paragraph) {
      read = split_long_passages(std::move(read), MiniLm::kMaxLength - 2,
                                 [&](std::string_view text) { return tokenizer.encode(text).size() - 2; });
    }
    std::move(read.begin(), read.end(), std::back_inserter(passages));
  }
  return passages;
}

Embeddings embed_passages(const std::vector<Passage>& passages, const WordPiece& tokenizer, const MiniLm& model,
                          heed::Context& context) {
  const auto start = std::chrono::steady_clock::now();
  std::size_t tokens = 0, cut = 0;
  std::vector<std::vector<int>> texts;
  texts.reserve(passages.size());
  for (const Passage& passage : passages) {
    texts.push_back(tokenizer.encode(passage.text, MiniLm::kMaxLength));
    tokens += texts.back().size();
    if (texts.back().size() == MiniLm::kMaxLength && tokenizer.encode(passage.text).size() > MiniLm::kMaxLength) ++cut;
  }
  if (cut > 0) {
    std::fprintf(stderr,
                 "sentence_search: %zu passages are longer than %zu tokens; what follows these is not searched\n", cut,
                 MiniLm::kMaxLength);
  }
  Embeddings embeddings;
  {
    examples::Progress progress("embedding", tokens);
    embeddings = model.embed(texts, context, [&progress](std::size_t n) { progress.advance(n); });
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  std::fprintf(stderr, "sentence_search: embedded %zu passages, %zu tokens, in %.1f s\n", passages.size(), tokens,
               taken.count());
  return embeddings;
}

void print_match(const Passage& passage, float score, bool full) {
  constexpr std::size_t width = 90, lines = 4;
  char shown[16];
  std::snprintf(shown, sizeof shown, "%.3f", static_cast<double>(score));
  std::cout << "  " << shown << "  " << passage.file << ':' << passage.line << '\n';
  for (const std::string& line : wrap(passage.text, width, full ? WordPiece::kNoLimit : lines)) {
    std::cout << "         " << line << '\n';
  }
}

void search(const Options& options, const WordPiece& tokenizer, const std::vector<Passage>& passages,
            const MiniLm& model, heed::Context& context) {
  const Embeddings embeddings = embed_passages(passages, tokenizer, model, context);
  const auto answer = [&](const std::string& query) {
    const std::vector<int> ids = tokenizer.encode(query, MiniLm::kMaxLength);
    std::cout << query << '\n';
    for (const Match& match : nearest(embeddings, model.embed({&ids, 1}, context), 0, options.top)) {
      print_match(passages[match.passage], match.score, options.full);
    }
    std::cout << std::endl;
  };
  std::for_each(options.queries.begin(), options.queries.end(), answer);
  if (!options.queries.empty()) return;

  const bool typed = examples::stdin_is_terminal() && examples::stderr_is_terminal();
  for (std::string line;;) {
    if (typed) std::fputs("look for: ", stderr);
    if (!std::getline(std::cin, line)) break;
    if (line.find_first_not_of(" \t\r") != line.npos) answer(line);
  }
  if (typed) std::fputs("\n", stderr);
}

void run(const Options& options) {
  const WordPiece tokenizer(options.model / "vocab.txt");
  if (options.tokens) return print_tokens(tokenizer);

  // Reports faults of the files before loading the model.
  const std::vector<Passage> passages = read_passages(options, tokenizer);
  const MiniLm model(options.model);
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  heed::ThreadPool threads(options.threads > 0 ? options.threads : cores);
  heed::Context context(threads);

  if (options.embed) return print_embeddings(tokenizer, model, context);
  if (options.draws()) draw_attention(options, tokenizer, model, context);
  if (!passages.empty()) search(options, tokenizer, passages, model, context);
}

}  // namespace
}  // namespace sentence_search

int main(int argc, char** argv) {
  try {
    std::ios::sync_with_stdio(false);  // lets std::cin tell what is waiting
    sentence_search::Options options;
    if (const auto status = sentence_search::parse(argc, argv, options)) return *status;
    std::error_code unreadable;
    if (!std::filesystem::exists(options.model / "vocab.txt", unreadable)) {
      throw std::runtime_error("there is no model in " + sentence_search::in_quotes(options.model) +
                               ": examples/sentence_search/fetch_model.sh fetches it, --model names another directory");
    }
    sentence_search::run(options);
    if (!std::cout.flush()) throw std::runtime_error("cannot write to standard output");
  } catch (const std::exception& error) {
    std::cerr << "sentence_search: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
