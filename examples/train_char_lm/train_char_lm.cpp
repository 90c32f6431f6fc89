// SPDX-License-Identifier: MIT
// Trains a small GPT on the characters of a text, and prints a sample of its writing.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include <heed/core/context.hpp>
#include <heed/core/parallel.hpp>
#include <heed/core/tensor.hpp>
#include <heed/inspect/html.hpp>
#include <heed/inspect/recorder.hpp>
#include <heed/io/safetensors.hpp>

#include "../common/files.hpp"
#include "../common/interrupt.hpp"
#include "../common/loss_curve.hpp"
#include "../common/progress.hpp"
#include "char_lm.hpp"
#include "corpus.hpp"
#include "training.hpp"

namespace train_char_lm {
namespace {

struct Options {
  std::filesystem::path text = examples::cache_directory() / "kjv" / "kjv.txt";
  Settings settings;
  int threads = 1;
  int report_every = 50;
  int windows = 128;  // of the held-out text
  std::string checkpoint = "char_lm.safetensors";
  std::string curve = "char_lm.svg";
  bool resume = false, overwrite = false;
  std::string prompt = "And ";
  int sample = 400;
  double temperature = 0.8;
  std::string html;
};

// Returns the exit status if there is nothing left to do: help was asked for, or the command line makes no sense.
std::optional<int> parse(int argc, char** argv, Options& options) {
  CLI::App app("Trains a small GPT on the characters of a text, and prints a sample of its writing.", "train_char_lm");
  app.get_formatter()->column_width(34);
  Settings& settings = options.settings;
  app.add_option("--text", options.text,
                 "The text; by default the King James Bible that ../common/fetch_text.sh fetches")
      ->option_text("FILE");
  app.add_option("--checkpoint", options.checkpoint, "The file that keeps the training")
      ->option_text("FILE [" + options.checkpoint + "]");
  auto* resume = app.add_flag("--resume", options.resume, "Continue the training in the checkpoint, with its settings")
                     ->option_text(" ");
  app.add_flag("--overwrite", options.overwrite, "Start anew even if there is a checkpoint")
      ->excludes(resume)
      ->option_text(" ");
  app.add_option("--curve", options.curve, "The file for the loss curve, as SVG")
      ->option_text("FILE [" + options.curve + "]");
  const auto add = [&](const char* name, auto& value, const char* what, auto least, auto most) {
    std::ostringstream text;
    text << "N [" << value << "]";
    return app.add_option(name, value, what)->check(CLI::Range(least, most))->option_text(text.str());
  };
  add("--threads", options.threads, "Threads; they change no number", 1, 1024);
  add("--report-every", options.report_every, "Steps between reports of the held-out loss", 1, 1'000'000);
  add("--windows", options.windows, "Windows of the held-out text in a report", 1, 1'000'000);

  // A training that goes on has these from its checkpoint.
  add("--steps", settings.steps, "Steps", 1, 100'000'000)->excludes(resume);
  add("--warmup", settings.warmup, "Steps over which the learning rate rises", 0, 100'000'000)->excludes(resume);
  add("--batch", settings.batch, "Windows of the text in a step", 1, 65536)->excludes(resume);
  add("--length", settings.length, "Characters in a window", 1, 65536)->excludes(resume);
  add("--width", settings.embed_dim, "Width of the model", 2, 65536)->excludes(resume);
  add("--heads", settings.num_heads, "Heads, each of an even width", 1, 1024)->excludes(resume);
  add("--layers", settings.num_layers, "Blocks", 0, 1024)->excludes(resume);
  add("--learning-rate", settings.learning_rate, "The largest learning rate", 0.0, 1e3)->excludes(resume);
  add("--seed", settings.seed, "Where the random numbers come from", std::uint64_t{0}, ~std::uint64_t{0})
      ->excludes(resume);

  add("--sample", options.sample, "Characters to write in the end", 0, 100'000'000);
  app.add_option("--prompt", options.prompt, "The beginning of the sample")
      ->option_text("TEXT [" + options.prompt + "]");
  add("--temperature", options.temperature, "Randomness of the sample; 0 takes the likeliest character", 0.0, 100.0);
  app.add_option("--html", options.html, "Write a page that shows the attention of all heads in the sample")
      ->option_text("FILE");
  app.callback([&options] {
    const Settings& set = options.settings;
    if (!options.resume && set.warmup >= set.steps) {
      throw CLI::ValidationError("--warmup " + std::to_string(set.warmup) + " must be below --steps " +
                                 std::to_string(set.steps));
    }
    if (options.prompt.empty()) throw CLI::ValidationError("--prompt must not be empty");
  });

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  return std::nullopt;
}

std::string read_text(const Options& options) {
  std::error_code unreadable;
  if (options.text == Options{}.text && !std::filesystem::exists(options.text, unreadable)) {
    throw std::runtime_error("there is no text in " + examples::in_quotes(options.text) +
                             ": examples/common/fetch_text.sh kjv fetches it, --text names another");
  }
  return examples::read_file(options.text);
}

// A line of the table, and the checkpoint that belongs to it.
void report(Training& training, const Options& options, double seconds) {
  const double held_out = training.measure_held_out(options.windows);
  const std::vector<examples::Curve::Point> losses = training.curves().front().points;
  char before[16] = "-";
  if (!losses.empty()) std::snprintf(before, sizeof before, "%.4f", losses.back().y);
  std::printf("%8d  %9s  %9.4f  %9.1f\n", static_cast<int>(training.steps()), before, held_out, seconds);
  std::fflush(stdout);
  training.save(options.checkpoint);
}

std::string describe_speed(double loss, double characters, heed::TrainingTimer& timer) {
  const double total = timer.total();
  const auto share = [&](heed::Phase phase) { return 100 * timer.seconds(phase) / total; };
  char text[128];
  std::snprintf(text, sizeof text, "loss %.3f, %.1f k/s, data %.0f forward %.0f backward %.0f step %.0f %%", loss,
                characters / total / 1000, share(heed::Phase::Data), share(heed::Phase::Forward),
                share(heed::Phase::Backward), share(heed::Phase::Step));
  return text;
}

// Steps until all are made or a signal comes, which is returned; 0 without one.
int train(Training& training, const Options& options) {
  const examples::Interrupt interrupt;
  const Settings& settings = training.settings();
  const double batch_characters = static_cast<double>(settings.batch) * settings.length;
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  std::printf("    step   training   held out    seconds   (losses in nats per character)\n");
  double characters = 0;
  {
    examples::Progress progress("training", static_cast<std::size_t>(settings.steps),
                                static_cast<std::size_t>(training.steps()));
    if (training.steps() == 0) {
      progress.wipe();
      report(training, options, seconds());
    }
    while (!training.is_done() && interrupt.signal() == 0) {
      const double loss = training.step();
      characters += batch_characters;
      progress.advance(1, describe_speed(loss, characters, training.timer()));
      if (training.steps() % options.report_every == 0 || training.is_done()) {
        progress.wipe();
        report(training, options, seconds());
      }
    }
  }
  if (characters > 0) {
    std::printf("%.0f characters a second; %s\n", characters / training.timer().total(),
                training.timer().text().c_str());
  }
  return training.is_done() ? 0 : interrupt.signal();
}

// Writes the attention of all heads to the last characters of a sample, as many as the model sees.
void write_page(const Training& training, const Corpus& corpus, std::vector<int> sample, const Options& options,
                heed::Context& context) {
  const std::size_t seen = std::min(sample.size(), static_cast<std::size_t>(training.settings().length));
  sample.erase(sample.begin(), sample.end() - static_cast<std::ptrdiff_t>(seen));
  std::vector<std::string> labels;
  for (const int id : sample) labels.emplace_back(1, corpus.alphabet().decode(id));

  const auto length = static_cast<heed::Index>(seen);
  heed::Tensor<float, 3> logits(1, length, training.model().options().alphabet);
  CharLm::Cache cache;
  const heed::Recorder recorder =
      heed::record(context, [&] { training.model().forward({sample.data(), {1, length}}, logits, cache, context); });
  heed::save_attention_html(options.html, recorder,
                            {.title = "What the characters attend to", .labels = {{.queries = labels}}});
}

void write_sample(const Training& training, const Corpus& corpus, const Options& options, heed::Context& context) {
  std::vector<int> sample = corpus.alphabet().encode(options.prompt);
  std::cout << options.prompt;
  generate(training.model(), sample,
           {.count = options.sample,
            .window = training.settings().length,
            .temperature = options.temperature,
            .seed = training.settings().seed},
           context, [&](int id) {
             sample.push_back(id);
             std::cout << corpus.alphabet().decode(id) << std::flush;
           });
  std::cout << "\n";
  if (!options.html.empty()) write_page(training, corpus, std::move(sample), options, context);
}

// The exit status.
int run(const Options& options) {
  std::error_code unreadable;
  const bool kept = std::filesystem::exists(options.checkpoint, unreadable);
  if (kept && !options.resume && !options.overwrite) {
    throw std::runtime_error("there is a training in " + examples::in_quotes(options.checkpoint) +
                             ": --resume goes on with it, --overwrite starts anew, --checkpoint names another file");
  }
  heed::ThreadPool threads(options.threads);
  heed::Context context(threads);
  std::optional<heed::SafeTensors> file;
  if (options.resume) file = heed::SafeTensors::open(options.checkpoint);
  const Corpus corpus(read_text(options), file ? Training::settings_of(*file).length : options.settings.length);
  corpus.alphabet().encode(options.prompt);  // what is wrong with it shows before the training
  auto training = file ? std::make_unique<Training>(*file, corpus, context)
                       : std::make_unique<Training>(options.settings, corpus, context);
  file.reset();

  std::printf("%zu characters, %d of them different; %d parameters; steps %d to %d\n",
              corpus.training().size() + corpus.held_out().size(), corpus.alphabet().size(),
              static_cast<int>(heed::parameter_count(training->model())), static_cast<int>(training->steps()),
              training->settings().steps);
  int signal = 0;
  if (!training->is_done()) {
    signal = train(*training, options);
    const std::vector<examples::Curve> curves = training->curves();
    examples::save_curves(options.curve, curves, "Loss per character", "step", "nats");
    std::printf("\n%s\n", examples::draw_curves(curves).c_str());
  }
  if (signal != 0) {
    training->save(options.checkpoint);
    std::printf("stopped after step %d, which is saved; this goes on:\n  train_char_lm --resume --checkpoint %s\n",
                static_cast<int>(training->steps()), options.checkpoint.c_str());
    return 128 + signal;
  }
  if (options.sample > 0 || !options.html.empty()) write_sample(*training, corpus, options, context);
  return 0;
}

}  // namespace
}  // namespace train_char_lm

int main(int argc, char** argv) {
  try {
    train_char_lm::Options options;
    if (const auto status = train_char_lm::parse(argc, argv, options)) return *status;
    const int status = train_char_lm::run(options);
    if (!std::cout.flush() || std::fflush(stdout) != 0) throw std::runtime_error("cannot write to standard output");
    return status;
  } catch (const std::exception& error) {
    std::cerr << "train_char_lm: " << error.what() << '\n';
    return 1;
  }
}
