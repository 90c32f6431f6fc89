// SPDX-License-Identifier: MIT
// Learns which of some texts a passage is from.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>

#include <heed/core/context.hpp>
#include <heed/core/parallel.hpp>
#include <heed/train/monitor.hpp>

#include "../common/files.hpp"
#include "../common/loss_curve.hpp"
#include "../common/progress.hpp"
#include "classifier.hpp"
#include "passages.hpp"

namespace train_text_classifier {
namespace {

struct Options {
  std::vector<std::string> files;  // none: the novels
  int seeds = 3;
  int threads = 1;
  int steps = TrainOptions{}.steps;
  int length = 256;
  int vocab_size = 1001;
  std::string curve = "text_classifier.svg";
};

// Returns the exit status if there is nothing left to do: help was asked for, or the command line makes no sense.
std::optional<int> parse(int argc, char** argv, Options& options) {
  CLI::App app("Learns to recognize the text that a passage is from; the last fifth of each text is held out.",
               "train_text_classifier");
  app.get_formatter()->column_width(34);
  app.add_option("FILES", options.files, "Text files; by default the six novels that ../common/fetch_text.sh fetches")
      ->option_text(" ");
  const auto add = [&](const char* name, int& value, const char* what, int least, int most) {
    app.add_option(name, value, what)->check(CLI::Range(least, most))->option_text("N [" + std::to_string(value) + "]");
  };
  add("--seeds", options.seeds, "Trainings, with the seeds 1, 2, ...", 1, 1000);
  add("--threads", options.threads, "Threads; they change no number", 1, 1024);
  add("--steps", options.steps, "Steps of each training", TrainOptions{}.warmup + 1, 100'000'000);
  add("--length", options.length, "Words in a passage", 1, 65536);
  add("--vocabulary", options.vocab_size, "Words that are told apart, and one for all others", 2, 1'000'000);
  app.add_option("--curve", options.curve, "The file for the loss curves, as SVG")
      ->option_text("FILE [" + options.curve + "]");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  return std::nullopt;
}

std::vector<std::filesystem::path> text_files(const Options& options) {
  if (!options.files.empty()) return {options.files.begin(), options.files.end()};
  const std::filesystem::path directory = examples::cache_directory() / "austen";
  std::vector<std::filesystem::path> files;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(directory, unreadable)) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  if (files.empty()) {
    throw std::runtime_error("there are no texts in " + examples::in_quotes(directory) +
                             ": examples/common/fetch_text.sh austen fetches them, or name files");
  }
  std::sort(files.begin(), files.end());
  return files;
}

void print_confusion(const heed::Tensor<int, 2>& confusion, const std::vector<std::string>& names) {
  std::printf("\nheld-out passages of each text (rows), and what they were taken for (columns, in the same order)\n");
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::printf("%-24.24s", names[i].c_str());
    for (std::size_t j = 0; j < names.size(); ++j) std::printf("%6d", confusion(i, j));
    std::printf("\n");
  }
}

void run(const Options& options) {
  std::vector<std::string> names, texts;
  for (const std::filesystem::path& file : text_files(options)) {
    names.push_back(file.stem().string());
    texts.push_back(examples::read_file(file));
  }
  const Passages passages(texts, options.length, static_cast<std::size_t>(options.vocab_size));
  std::printf("%zu texts, %d held-out passages of %d words, a vocabulary of %d\n\n", texts.size(),
              static_cast<int>(passages.held_out_count()), options.length, passages.vocabulary_size());
  heed::ThreadPool threads(options.threads);
  heed::Context context(threads);

  std::printf("    seed   accuracy   held-out loss    seconds\n");
  std::vector<double> accuracies;
  std::vector<examples::Curve> curves;
  std::string time_split;
  heed::Tensor<int, 2> confusion;
  for (int seed = 1; seed <= options.seeds; ++seed) {
    const auto start = std::chrono::steady_clock::now();
    Classifier model(
        {.vocab_size = passages.vocabulary_size(), .length = options.length, .classes = passages.classes()});
    heed::TrainingTimer timer;
    examples::Progress progress("seed " + std::to_string(seed), static_cast<std::size_t>(options.steps));
    const std::vector<double> losses =
        train(model, passages, {.steps = options.steps, .seed = static_cast<std::uint64_t>(seed)}, timer, context,
              [&](double loss) {
                char note[32];
                std::snprintf(note, sizeof note, "loss %.3f", loss);
                progress.advance(1, note);
              });
    const Evaluation found = evaluate(model, passages, context);
    progress.wipe();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    std::printf("%8d   %7.2f %%   %13.4f  %9.1f\n", seed, 100 * found.accuracy, found.loss, taken.count());
    std::fflush(stdout);
    accuracies.push_back(found.accuracy);
    curves.push_back(
        {"seed " + std::to_string(seed), examples::group_means(losses, std::max<std::size_t>(1, losses.size() / 60))});
    confusion = found.confusion;
    time_split = timer.text();
  }
  std::sort(accuracies.begin(), accuracies.end());
  const double median = (accuracies[(accuracies.size() - 1) / 2] + accuracies[accuracies.size() / 2]) / 2;
  std::printf("  median   %7.2f %%\n", 100 * median);
  std::printf("\nthe last training: %s\n", time_split.c_str());
  print_confusion(confusion, names);
  examples::save_curves(options.curve, curves, "Loss per passage", "step", "nats");
  std::printf("\n%s", examples::draw_curves(curves).c_str());
}

}  // namespace
}  // namespace train_text_classifier

int main(int argc, char** argv) {
  try {
    train_text_classifier::Options options;
    if (const auto status = train_text_classifier::parse(argc, argv, options)) return *status;
    train_text_classifier::run(options);
    if (std::fflush(stdout) != 0) throw std::runtime_error("cannot write to standard output");
  } catch (const std::exception& error) {
    std::cerr << "train_text_classifier: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
