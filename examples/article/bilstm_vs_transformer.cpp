// SPDX-License-Identifier: MIT
// One sentence decides, and it may be anywhere in a long text: a bidirectional LSTM has to carry it through all that
// follows, attention reads it where it is. Measured on needles in passages of a novel, and on reviews.

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "common/claim.hpp"
#include "common/models.hpp"
#include "common/texts.hpp"

namespace {

struct Contestant {
  std::string name;
  article::Body body;
  article::Readout readout;
  int num_layers;
  double learning_rate;
};
// About equal in their parameters; each at the learning rate that suits it.
const std::vector<Contestant> kContestants{
    {"transformer, mean", article::Body::Transformer, article::Readout::Mean, 1, 3e-3},
    {"BiLSTM, mean", article::Body::Lstm, article::Readout::Mean, 2, 5e-3},
    {"BiLSTM, last states", article::Body::Lstm, article::Readout::Ends, 2, 5e-3}};

struct Outcome {
  heed::Index parameters = 0;
  std::vector<double> by_group{};  // accuracies on held-out texts
  std::vector<double> losses{};    // in training
  double accuracy() const {
    return std::accumulate(by_group.begin(), by_group.end(), 0.0) / static_cast<double>(by_group.size());
  }
};

// Without the last one where only the direction is wanted: the two BiLSTMs lose the sentence alike.
std::vector<Contestant> contestants(const article::Report& report) {
  return {kContestants.begin(), kContestants.end() - report.pick(0, 1)};
}

Outcome train(const Contestant& contestant, const article::Dataset& data, int steps, int batch) {
  article::Model model({.vocab_size = data.vocab_size,
                        .classes = data.classes,
                        .num_layers = contestant.num_layers,
                        .body = contestant.body,
                        .readout = contestant.readout});
  heed::Context context;
  Outcome outcome{.parameters = model.parameter_count()};
  outcome.losses = article::train(
      model, [&](int step) { return article::sample(data.training, 1, step, batch); },
      {.steps = steps, .learning_rate = contestant.learning_rate}, context);
  outcome.by_group = article::accuracies(model, data.held_out, context);
  return outcome;
}

struct Needles {
  std::vector<Outcome> shortest, longest;  // of each contestant
};

Needles find_needles(article::Report& report) {
  const int steps = report.pick(240, 140), batch = report.pick(16, 8);
  const std::vector<int> lengths = report.pick(std::vector{32, 64, 128, 256}, std::vector{32, 256});
  report.text(
      "Passages of Pride and Prejudice, in each of which one sentence was put, \"the answer was london\" (or "
      "letter, dinner, library: words of the novel, but not of the passage). Which one is to be told, after " +
      std::to_string(steps) + " steps of " + std::to_string(batch) + " passages; a guess is right once in four.");
  const std::string novel = article::pride_and_prejudice();
  const std::vector<Contestant> all = contestants(report);
  std::vector<std::string> columns{"words"};
  std::vector<examples::Curve> curves;
  for (const Contestant& contestant : all) {
    columns.push_back(contestant.name);
    curves.push_back({contestant.name, {}});
  }
  article::Table& by_length = report.table("held-out accuracy by the length of the text", columns);
  Needles needles;
  for (const int length : lengths) {
    const article::Dataset data =
        article::needle_sentences(novel, {.length = length, .held_out = report.pick(800, 160)});
    std::vector<Outcome> outcomes;
    std::vector<article::Cell> row{length};
    for (std::size_t i = 0; i < all.size(); ++i) {
      outcomes.push_back(train(all[i], data, length == 32 ? report.pick(steps, 300) : steps, batch));
      row.push_back(outcomes[i].accuracy());
      curves[i].points.push_back({static_cast<double>(length), outcomes[i].accuracy()});
    }
    by_length.row(row);
    if (length == lengths.front()) needles.shortest = outcomes;
    needles.longest = outcomes;
  }
  report.curves("A decisive sentence in longer and longer texts", curves, "words", "accuracy",
                {.x = examples::Scale::Log2});

  article::Table& by_place = report.table("the longest texts, by the eighth in which the sentence begins",
                                          {"model", "1", "2", "3", "4", "5", "6", "7", "8"});
  std::vector<examples::Curve> training;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Outcome& outcome = needles.longest[i];
    std::vector<article::Cell> row{all[i].name};
    row.insert(row.end(), outcome.by_group.begin(), outcome.by_group.end());
    by_place.row(row);
    training.push_back({all[i].name, examples::group_means(outcome.losses, 10)});
  }
  report.curves("Training on texts of 256 words", training, "step", "loss");
  return needles;
}

// Nothing where the reviews are not there.
std::optional<std::vector<Outcome>> judge_reviews(article::Report& report) {
  article::Dataset data;
  try {
    data = article::reviews({});
  } catch (const article::Skipped& missing) {
    report.text(std::string("Reviews were not judged: ") + missing.what() + ".");
    return std::nullopt;
  }
  report.text(
      "Chinese reviews of books and hotels, character by character: praise or not? Here, words all over the "
      "text decide, not one sentence. Held-out reviews, each text once.");
  if (report.quick()) {
    std::vector<article::Example> some;
    for (std::size_t i = 0; i < data.held_out.size(); i += 16) some.push_back(data.held_out[i]);
    data.held_out = some;
  }
  article::Table& table = report.table("accuracy by the length of a review",
                                       {"model", "parameters", "to 100 characters", "to 200", "longer"});
  std::vector<Outcome> outcomes;
  for (const Contestant& contestant : contestants(report)) {
    const Outcome& outcome = outcomes.emplace_back(train(contestant, data, report.pick(800, 25), report.pick(16, 8)));
    table.row({contestant.name, outcome.parameters, outcome.by_group[0], outcome.by_group[1], outcome.by_group[2]});
  }
  return outcomes;
}

// "transformer, mean 1.00; BiLSTM, mean 0.31": `value` of each contestant.
template <class Value>
std::string figures(const std::vector<Outcome>& outcomes, Value&& value) {
  std::string text;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    text += (i == 0 ? "" : "; ") + kContestants[i].name + article::format(" %.2f", value(outcomes[i]));
  }
  return text;
}

// `value` of the better BiLSTM.
template <class Value>
double better_lstm(const std::vector<Outcome>& outcomes, Value&& value) {
  double best = 0;
  for (std::size_t i = 1; i < outcomes.size(); ++i) best = std::max(best, value(outcomes[i]));
  return best;
}

void measure(article::Report& report) {
  const Needles needles = find_needles(report);
  const std::optional<std::vector<Outcome>> reviews = judge_reviews(report);
  const auto everywhere = [](const Outcome& outcome) { return outcome.accuracy(); };
  const auto in_long_reviews = [](const Outcome& outcome) { return outcome.by_group[2]; };
  const double attention = *std::min_element(needles.longest[0].by_group.begin(), needles.longest[0].by_group.end());
  const bool found =
      report.expect("accuracy of the transformer where it is lowest, 256 words", attention, article::at_least(0.9));
  const bool lost = report.expect("accuracy of the better BiLSTM, 256 words", better_lstm(needles.longest, everywhere),
                                  article::at_most(0.85));
  report.expect("accuracy of the BiLSTM with the mean, 32 words", needles.shortest[1].accuracy(),
                article::at_least(0.6));
  std::string figure = "a sentence in 256 words: " + figures(needles.longest, everywhere);
  bool held = found && lost;
  if (reviews) {
    figure += "; reviews over 200 characters: " + figures(*reviews, in_long_reviews);
    held = held && in_long_reviews((*reviews)[0]) - better_lstm(*reviews, in_long_reviews) > 0.02;
  }
  report.verdict(held            ? article::Verdict::Held
                 : found && lost ? article::Verdict::Partly
                                 : article::Verdict::Contradicted,
                 figure);
}

}  // namespace

int main(int argc, char** argv) {
  return article::run(argc, argv,
                      {.name = "bilstm_vs_transformer",
                       .claim = "Where a decisive sentence moves through texts longer than 200 tokens, a transformer "
                                "finds it and a BiLSTM loses it."},
                      measure);
}
