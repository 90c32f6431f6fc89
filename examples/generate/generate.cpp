// SPDX-License-Identifier: MIT
// Generates text with a language model from a GGUF file, such as SmolLM2-135M-Instruct.

#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>

#include <heed/core/context.hpp>
#include <heed/core/parallel.hpp>
#include <heed/inspect/html.hpp>
#include <heed/inspect/recorder.hpp>
#include <heed/io/gguf.hpp>

#include "../common/files.hpp"
#include "../common/interrupt.hpp"
#include "../common/progress.hpp"
#include "bpe.hpp"
#include "chat.hpp"
#include "llama.hpp"
#include "sampling.hpp"
#include "session.hpp"
#include "utf8.hpp"

namespace generate {
namespace {

using Clock = std::chrono::steady_clock;
using heed::Index;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Options {
  std::filesystem::path model;
  std::vector<std::string> prompts;
  bool instruct = false, chat = false, logits = false;
  std::string system, ids, html, weights = "q";
  int count = 256, context = 2048, window = 0, threads = 0;
  SamplingOptions sampling{};
};

std::filesystem::path default_model() {
  return examples::cache_directory() / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf";
}

// Returns the exit status if there is nothing left to do: help was asked for, or the command line makes no sense.
std::optional<int> parse(int argc, char** argv, Options& options) {
  CLI::App app("Generates text with a language model of Llama's kind from a GGUF file.", "generate");
  app.get_formatter()->column_width(34);
  app.add_option("PROMPT", options.prompts, "The text to write on; several are written on side by side")
      ->option_text(" ");
  auto* chat = app.add_flag("--chat", options.chat, "A conversation: each line of stdin is a message");
  app.add_flag("--instruct", options.instruct, "Each prompt is a message to the assistant, which answers");
  app.add_option("--system", options.system, "What the assistant is told at first, in place of the model's own")
      ->option_text("TEXT");
  auto* ids = app.add_option("--ids", options.ids, "The prompt as token ids; prints the ids of what is generated")
                  ->option_text("\"ID ID ...\"");
  app.add_flag("--logits", options.logits, "Print the logits of the first token, one a line, and end");
  app.add_option("-n,--count", options.count, "Most tokens to generate")
      ->check(CLI::Range(0, 1'000'000))
      ->option_text("N [256]");

  app.add_option("--temperature", options.sampling.temperature, "Divides the logits; 0 takes the likeliest token")
      ->check(CLI::Range(0.0, 100.0))
      ->option_text("T [0]");
  app.add_option("--top-k", options.sampling.top_k, "Choose among the K likeliest tokens; 0: all")
      ->check(CLI::Range(0, 1'000'000))
      ->option_text("K [0]");
  app.add_option("--top-p", options.sampling.top_p, "Choose among the likeliest tokens that make up this probability")
      ->check(CLI::Range(1e-9, 1.0))
      ->option_text("P [1]");
  app.add_option("--min-p", options.sampling.min_p, "Drop tokens less likely than P times the likeliest")
      ->check(CLI::Range(0.0, 1.0))
      ->option_text("P [0]");
  app.add_option("--repetition-penalty", options.sampling.repetition_penalty,
                 "Makes tokens that occurred less likely; 1: off")
      ->check(CLI::Range(0.01, 100.0))
      ->option_text("X [1]");
  app.add_option("--seed", options.sampling.seed, "Of the random choices")->option_text("N [1]");

  app.add_option("--model", options.model, "The GGUF file; by default the one that fetch_model.sh fetches")
      ->option_text("FILE");
  app.add_option("--weights", options.weights, "Hold weights as 'q', as in the file, 'bf16' or 'f32'")
      ->check(CLI::IsMember({"q", "bf16", "f32"}))
      ->option_text("FORM [q]");
  auto* context = app.add_option("--context", options.context, "Most tokens of a text, the prompt included")
                      ->check(CLI::Range(1, 10'000'000))
                      ->option_text("N [2048]");
  app.add_option("--window", options.window, "No most: a token sees the last N and the first 4")
      ->check(CLI::Range(1, 10'000'000))
      ->excludes(context)
      ->option_text("N");
  app.add_option("--threads", options.threads, "0: one for each core")
      ->check(CLI::Range(0, 1024))
      ->option_text("N [0]");
  app.add_option("--html", options.html, "Write a page that shows where each token looked, for one prompt")
      ->option_text("FILE");
  ids->excludes(chat);

  app.callback([&options] {
    const bool has_ids = !options.ids.empty();
    if (options.chat && !options.prompts.empty()) {
      throw CLI::ValidationError("--chat reads messages from stdin; it goes with no prompt");
    }
    if (!options.chat && !has_ids && options.prompts.empty()) {
      throw CLI::ValidationError("there is nothing to do: give a prompt, --ids or --chat");
    }
    if (has_ids && !options.prompts.empty()) {
      throw CLI::ValidationError("--ids is a prompt; it goes with no other");
    }
    if (options.instruct && has_ids) throw CLI::ValidationError("--instruct goes with a prompt of text");
    if ((!options.html.empty() || options.logits) && (options.chat || options.prompts.size() > 1)) {
      throw CLI::ValidationError("--html and --logits go with one prompt");
    }
    if (!options.system.empty() && !options.chat && !options.instruct) {
      throw CLI::ValidationError("--system goes with --chat or --instruct");
    }
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  if (options.model.empty()) options.model = default_model();
  return std::nullopt;
}

Bpe tokenizer_of(const heed::Gguf& file) {
  const std::string model = file.metadata<std::string>("tokenizer.ggml.model");
  if (model != "gpt2") {
    throw std::runtime_error("the file's tokenizer is \"" + model + "\"; only byte-level BPE (\"gpt2\") is known");
  }
  return Bpe({.tokens = file.metadata_array<std::string>("tokenizer.ggml.tokens"),
              .merges = file.metadata_array<std::string>("tokenizer.ggml.merges"),
              .types = file.metadata_array<int>("tokenizer.ggml.token_type"),
              .pre_tokenizer = file.metadata<std::string>("tokenizer.ggml.pre", "gpt-2")});
}

std::vector<int> parse_ids(const std::string& text, std::size_t vocabulary) {
  std::vector<int> ids;
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    std::size_t used = 0;
    int id = -1;
    try {
      id = std::stoi(word, &used);
    } catch (const std::exception&) {}
    if (used != word.size() || id < 0 || static_cast<std::size_t>(id) >= vocabulary) {
      throw std::runtime_error("--ids: \"" + word + "\" is no id from 0 to " + std::to_string(vocabulary - 1));
    }
    ids.push_back(id);
  }
  return ids;
}

// A model with all that a program needs around it.
class Program {
 public:
  Program(const Options& options, Clock::time_point start)
      : options_(options),
        start_(start),
        file_(heed::Gguf::open(options.model.string())),
        bpe_(tokenizer_of(file_)),
        model_(file_, options.weights == "f32"    ? Weights::Float
                      : options.weights == "bf16" ? Weights::BFloat16
                                                  : Weights::Quantized),
        pool_(options.threads > 0 ? options.threads
                                  : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))),
        context_(pool_),
        end_token_(file_.metadata<int>("tokenizer.ggml.eos_token_id", -1)) {
    if (bpe_.size() != static_cast<std::size_t>(model_.config().vocab_size)) {
      throw std::runtime_error("the file has " + std::to_string(bpe_.size()) + " tokens, but the model knows " +
                               std::to_string(model_.config().vocab_size));
    }
    if (options_.context > model_.config().context_length && options_.window == 0) {
      std::fprintf(stderr,
                   "generate: the model was trained on texts of up to %td tokens; beyond that expect nonsense\n",
                   static_cast<std::ptrdiff_t>(model_.config().context_length));
    }
  }

  int run() {
    if (options_.chat) return chat();
    std::vector<std::vector<int>> prompts;
    if (!options_.ids.empty()) prompts.push_back(parse_ids(options_.ids, bpe_.size()));
    for (const std::string& prompt : options_.prompts) prompts.push_back(bpe_.encode(with_template(prompt)));
    for (std::vector<int>& prompt : prompts) {
      // A model needs something to go on from.
      if (prompt.empty()) prompt.push_back(first_token());
    }
    return write(prompts);
  }

 private:
  std::string with_template(const std::string& prompt) const {
    if (!options_.instruct) return prompt;
    const ChatTemplate chat = chat_template();
    return chat.begin(options_.system) + chat.ask(prompt);
  }
  ChatTemplate chat_template() const {
    return ChatTemplate(file_.metadata<std::string>("tokenizer.chat_template", std::string()));
  }
  int first_token() const { return file_.metadata<int>("tokenizer.ggml.bos_token_id", 0); }
  bool adds_first_token() const { return file_.metadata<bool>("tokenizer.ggml.add_bos_token", false); }

  std::vector<Sampler> samplers(std::size_t texts) const {
    std::vector<Sampler> all;
    for (std::size_t i = 0; i < texts; ++i) all.emplace_back(options_.sampling, i);
    return all;
  }

  int write(std::vector<std::vector<int>> prompts) {
    std::size_t prompt_tokens = 0, longest = 0;
    for (std::vector<int>& prompt : prompts) {
      if (adds_first_token() && options_.ids.empty()) prompt.insert(prompt.begin(), first_token());
      prompt_tokens += prompt.size();
      longest = std::max(longest, prompt.size());
    }
    // No more memory than the texts can need.
    const Index room = std::min<Index>(options_.context, static_cast<Index>(longest) + options_.count);
    Session session(model_, static_cast<Index>(prompts.size()), options_.window > 0 ? 0 : room, options_.window);
    const Clock::time_point begin = Clock::now();
    session.add(prompts, context_);
    const double prompt_seconds = seconds_since(begin);
    if (options_.logits) {
      const auto logits = session.logits(0);
      for (Index i = 0; i < logits.size(); ++i) std::printf("%.9g\n", static_cast<double>(logits(i)));
      return 0;
    }

    const bool streams = prompts.size() == 1 && options_.ids.empty();
    if (streams && !options_.instruct) std::cout << options_.prompts[0] << std::flush;
    Utf8Stream stream;
    std::vector<std::vector<int>> written(prompts.size());
    std::optional<double> first;
    const examples::Interrupt interrupt;
    std::vector<Sampler> choose = samplers(prompts.size());
    const std::vector<End> ends = write_on(
        session, choose, end_token_, options_.count, context_,
        [&](std::size_t text, int id) {
          if (!first) first = seconds_since(start_);
          written[text].push_back(id);
          if (streams && !bpe_.is_control(id)) std::cout << stream.add(bpe_.bytes(id)) << std::flush;
        },
        [&] { return interrupt.signal() != 0; });
    std::size_t tokens = 0;
    for (const auto& ids : written) tokens += ids.size();
    const double seconds = seconds_since(begin) - prompt_seconds;
    if (streams) std::cout << stream.finish() << std::endl;
    if (!options_.ids.empty()) {
      if (ends[0] == End::Token) written[0].push_back(end_token_);
      print_ids(written[0]);
    }
    for (std::size_t i = 0; prompts.size() > 1 && i < prompts.size(); ++i) {
      Utf8Stream whole;
      std::cout << (i > 0 ? "\n" : "") << (options_.instruct ? "" : options_.prompts[i])
                << whole.add(bpe_.decode(written[i])) << whole.finish() << std::endl;
    }
    report(prompt_tokens, prompt_seconds, tokens, seconds, first, ends);
    if (!options_.html.empty()) draw(prompts[0], written[0]);
    return interrupt.signal() != 0 ? 128 + interrupt.signal() : 0;
  }

  static void print_ids(const std::vector<int>& ids) {
    for (std::size_t i = 0; i < ids.size(); ++i) std::cout << (i > 0 ? " " : "") << ids[i];
    std::cout << std::endl;
  }

  void report(std::size_t prompt_tokens, double prompt_seconds, std::size_t tokens, double seconds,
              std::optional<double> first, const std::vector<End>& ends) const {
    std::fprintf(stderr, "generate: %zu prompt tokens in %.2f s", prompt_tokens, prompt_seconds);
    if (first) std::fprintf(stderr, ", the first token after %.2f s", *first);
    // The first token needs no step of its own.
    if (tokens > 1) {
      std::fprintf(stderr, ", %zu tokens at %.1f a second", tokens, static_cast<double>(tokens - 1) / seconds);
    }
    std::fputs("\n", stderr);
    for (const End end : ends) {
      if (end == End::Room) {
        std::fprintf(stderr, "generate: a text reached %d tokens; --context allows more, --window any number\n",
                     options_.context);
      }
    }
  }

  // The attention of the whole text in one call, without a cache: the same weights, up to rounding.
  void draw(const std::vector<int>& prompt, const std::vector<int>& written) {
    std::vector<int> ids = prompt;
    ids.insert(ids.end(), written.begin(), written.end());
    std::vector<std::string> labels;
    for (const int id : ids) {
      Utf8Stream stream;
      std::string label = stream.add(bpe_.bytes(id));
      label += stream.finish();
      for (std::size_t at; (at = label.find('\n')) != label.npos;) label.replace(at, 1, "\u21B5");
      labels.push_back(std::move(label));
    }
    const heed::TensorView<const int, 2> view(ids.data(), {1, static_cast<Index>(ids.size())});
    const heed::Recorder recorder = heed::record(context_, [&] { model_.hidden(view, context_); });
    heed::save_attention_html(options_.html, recorder,
                              {.title = "Where each token looked", .labels = {{.queries = labels}}});
    std::fprintf(stderr, "generate: the page is in %s\n", options_.html.c_str());
  }

  int chat() {
    const ChatTemplate chat = chat_template();
    Session session(model_, 1, options_.window > 0 ? 0 : options_.context, options_.window);
    std::vector<Sampler> choose = samplers(1);
    const bool typed = examples::stdin_is_terminal() && examples::stderr_is_terminal();
    std::string before = chat.begin(options_.system);
    for (std::string line;;) {
      if (typed) std::fputs("> ", stderr);
      if (!std::getline(std::cin, line)) break;
      if (line.find_first_not_of(" \t\r") == line.npos) continue;
      const std::vector<int> message = bpe_.encode(before + chat.ask(line));
      if (session.room(0) < static_cast<Index>(message.size())) {
        std::fprintf(stderr,
                     "generate: the conversation has reached %d tokens; --context allows more, --window any number\n",
                     options_.context);
        return 1;
      }
      session.add({message}, context_);
      Utf8Stream stream;
      std::vector<int> last;
      const examples::Interrupt interrupt;
      write_on(
          session, choose, end_token_, options_.count, context_,
          [&](std::size_t, int id) {
            last.assign(1, id);
            if (!bpe_.is_control(id)) std::cout << stream.add(bpe_.bytes(id)) << std::flush;
          },
          [&] { return interrupt.signal() != 0; });
      std::cout << stream.finish() << std::endl;
      // The first Ctrl-C ends the answer, one at the prompt the program.
      if (interrupt.signal() != 0 && !typed) return 128 + interrupt.signal();
      before = chat.end_of_answer();
    }
    if (typed) std::fputs("\n", stderr);
    return 0;
  }

  const Options& options_;
  Clock::time_point start_;
  heed::Gguf file_;
  Bpe bpe_;
  Llama model_;
  heed::ThreadPool pool_;
  heed::Context context_;
  int end_token_;
};

}  // namespace
}  // namespace generate

int main(int argc, char** argv) {
  const auto start = std::chrono::steady_clock::now();
  try {
    generate::Options options;
    if (const auto status = generate::parse(argc, argv, options)) return *status;
    std::error_code unreadable;
    if (!std::filesystem::exists(options.model, unreadable)) {
      throw std::runtime_error("there is no model " + examples::in_quotes(options.model) +
                               ": examples/generate/fetch_model.sh fetches it, --model names another file");
    }
    const int status = generate::Program(options, start).run();
    if (!std::cout.flush()) throw std::runtime_error("cannot write to standard output");
    return status;
  } catch (const std::exception& error) {
    std::cerr << "generate: " << error.what() << '\n';
    return 1;
  }
}
