// SPDX-License-Identifier: MIT
#include "training.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include <heed/core/context.hpp>
#include <heed/train/checkpoint.hpp>
#include <heed/train/loss.hpp>
#include <heed/train/parameter_list.hpp>

#include "../common/tensors.hpp"

namespace train_char_lm {

using heed::Context;
using heed::Index;
using heed::Phase;
using heed::TensorView;

namespace {

constexpr std::string_view kText = "char_lm.text", kLosses = "char_lm.losses", kHeldOut = "char_lm.held_out";

// f(name in the file, setting) for each of them.
template <class S, class F>
void for_each_setting(S& settings, F&& f) {
  f("char_lm.width", settings.embed_dim);
  f("char_lm.heads", settings.num_heads);
  f("char_lm.layers", settings.num_layers);
  f("char_lm.length", settings.length);
  f("char_lm.batch", settings.batch);
  f("char_lm.steps", settings.steps);
  f("char_lm.warmup", settings.warmup);
  f("char_lm.learning_rate", settings.learning_rate);
  f("char_lm.weight_decay", settings.weight_decay);
  f("char_lm.clip", settings.clip);
  f("char_lm.seed", settings.seed);
}

// The shortest text that reads as the same number.
template <class Number>
std::string text_of(Number number) {
  std::array<char, 32> digits{};
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr};
}

// Numbers with spaces between them.
std::string list_of(const std::vector<double>& numbers) {
  std::string text;
  for (const double number : numbers) text.append(text.empty() ? "" : " ").append(text_of(number));
  return text;
}

const std::string& entry(const heed::SafeTensors& file, std::string_view key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) {
    throw std::runtime_error(file.file() + " has no metadata '" + std::string(key) +
                             "': train_char_lm did not write it");
  }
  return found->second;
}

template <class Number>
std::vector<Number> read_list(const heed::SafeTensors& file, std::string_view key) {
  const std::string& text = entry(file, key);
  std::vector<Number> numbers;
  const char *at = text.data(), *end = at + text.size();
  while (at != end) {
    Number number{};
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc() || (next != end && *next != ' ')) {
      throw std::runtime_error(file.file() + ": metadata '" + std::string(key) + "' holds something else than numbers");
    }
    numbers.push_back(number);
    at = next == end ? end : next + 1;
  }
  return numbers;
}

CharLmOptions model_options(const Settings& settings, const Corpus& corpus) {
  return {.alphabet = corpus.alphabet().size(),
          .embed_dim = settings.embed_dim,
          .num_heads = settings.num_heads,
          .num_layers = settings.num_layers};
}

}  // namespace

Training::Training(const Settings& settings, const Corpus& corpus, Context& context)
    : settings_(settings),
      corpus_(&corpus),
      context_(&context),
      model_(model_options(settings, corpus)),
      optimizer_(model_,
                 {.learning_rate = settings.learning_rate, .beta2 = 0.99, .weight_decay = settings.weight_decay}),
      schedule_({.max_lr = settings.learning_rate,
                 .warmup_steps = settings.warmup,
                 .decay = heed::Decay::Cosine,
                 .steps = settings.steps,
                 .min_lr = settings.learning_rate / 100}) {
  context.seed = settings.seed;
  model_.initialize(settings.seed);
}

Training::Training(const heed::SafeTensors& file, const Corpus& corpus, Context& context)
    : Training(settings_of(file), corpus, context) {
  if (entry(file, kText) != text_of(corpus.fingerprint())) {
    throw std::runtime_error(file.file() + " comes from training on another text; go on with the same one");
  }
  heed::load_checkpoint(file, model_, optimizer_, context);
  losses_ = read_list<double>(file, kLosses);
  const std::vector<double> held_out = read_list<double>(file, kHeldOut);
  for (std::size_t i = 0; i + 1 < held_out.size(); i += 2) held_out_.push_back({held_out[i], held_out[i + 1]});
}

Settings Training::settings_of(const heed::SafeTensors& file) {
  Settings settings;
  for_each_setting(settings, [&]<class Number>(std::string_view name, Number& setting) {
    const std::vector<Number> numbers = read_list<Number>(file, name);
    if (numbers.size() != 1)
      throw std::runtime_error(file.file() + ": metadata '" + std::string(name) + "' is no number");
    setting = numbers.front();
  });
  return settings;
}

double Training::step() {
  Context& context = *context_;
  timer_.time(Phase::Data, [&] { corpus_->sample(settings_.seed, steps(), settings_.batch, batch_); });
  const auto logits =
      examples::sized<float, 3>(logits_, {settings_.batch, settings_.length, corpus_->alphabet().size()});
  context.training = true;
  const heed::Loss loss = timer_.time(Phase::Forward, [&] {
    const heed::ActivationCheckpoint before(context);
    const auto forward = [&] { model_.forward(batch_.ids, logits, cache_, context); };
    forward();
    const heed::Loss result = heed::cross_entropy(logits, batch_.targets, logits, context);
    heed::require_finite(result.value, before, context, forward);
    return result;
  });
  timer_.time(Phase::Backward, [&] {
    optimizer_.zero_grad();
    model_.backward(logits, cache_, context);
  });
  timer_.time(Phase::Step, [&] {
    optimizer_.set_learning_rate(schedule_(steps()));
    optimizer_.step(context, {.clip = settings_.clip});
  });
  context.training = false;
  losses_.push_back(loss.value);
  return loss.value;
}

double Training::measure_held_out(Index windows) {
  double total = 0;
  for (Index first = 0, count; first < windows; first += count) {
    count = std::min<Index>(settings_.batch, windows - first);
    corpus_->held_out_windows(first, count, windows, batch_);
    const auto logits = examples::sized<float, 3>(logits_, {count, settings_.length, corpus_->alphabet().size()});
    model_.forward(batch_.ids, logits, cache_, *context_);
    total += heed::cross_entropy(logits, batch_.targets, {}, *context_).value * static_cast<double>(count);
  }
  held_out_.push_back({static_cast<double>(steps()), total / static_cast<double>(windows)});
  return held_out_.back().y;
}

std::vector<examples::Curve> Training::curves() const {
  const std::size_t group = std::max<std::size_t>(1, losses_.size() / 60);
  return {{"training", examples::group_means(losses_, group)}, {"held out", held_out_}};
}

void Training::save(const std::string& file) const {
  heed::Metadata metadata;
  for_each_setting(settings_,
                   [&](std::string_view name, auto setting) { metadata[std::string(name)] = text_of(setting); });
  metadata[std::string(kText)] = text_of(corpus_->fingerprint());
  metadata[std::string(kLosses)] = list_of(losses_);
  std::vector<double> held_out;
  for (const auto& point : held_out_) held_out.insert(held_out.end(), {point.x, point.y});
  metadata[std::string(kHeldOut)] = list_of(held_out);
  heed::save_checkpoint(file, model_, optimizer_, *context_, std::move(metadata));
}

}  // namespace train_char_lm
