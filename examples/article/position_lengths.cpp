// SPDX-License-Identifier: MIT
// Sinusoidal against learned positions, at the length that a model was trained on and beyond it.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <heed/core/random.hpp>

#include "common/claim.hpp"
#include "common/models.hpp"

namespace {

constexpr int kSymbols = 8, kBack = 5, kTrained = 64;

// Random symbols; at each position, the model must name the symbol kBack places back. Only positions identify it.
article::Batch look_back(int step, int size, int length) {
  article::Batch batch{heed::Tensor<int, 2>(size, length), {}, heed::Tensor<int, 2>(size, length)};
  const heed::Philox random(3, static_cast<std::uint64_t>(step));
  for (int b = 0; b < size; ++b) {
    for (int l = 0; l < length; ++l) {
      batch.ids(b, l) = static_cast<int>(kSymbols * random.uniform(static_cast<std::uint64_t>(b * length + l)));
      batch.targets(b, l) = l < kBack ? article::kIgnored : batch.ids(b, l - kBack);
    }
  }
  return batch;
}

// The share of right answers in each 16 positions.
std::vector<examples::Curve::Point> accuracy_over_position(const article::Model& model, const article::Batch& batch) {
  constexpr int group = 16;
  heed::Context context;
  const heed::Tensor<float, 3> logits = model.logits(batch, context);
  const int B = static_cast<int>(batch.ids.extent(0)), L = static_cast<int>(batch.ids.extent(1));
  std::vector<examples::Curve::Point> points;
  for (int first = 0; first < L; first += group) {
    int right = 0, counted = 0;
    for (int b = 0; b < B; ++b) {
      for (int l = std::max(first, kBack); l < first + group; ++l) {
        const float* row = &logits(b, l, 0);
        right += std::max_element(row, row + kSymbols) - row == batch.targets(b, l);
        ++counted;
      }
    }
    points.push_back({first + group / 2.0, static_cast<double>(right) / counted});
  }
  return points;
}

double mean(const std::vector<examples::Curve::Point>& points, double above, double below) {
  double sum = 0, count = 0;
  for (const auto& point : points) {
    if (above < point.x && point.x < below) {
      sum += point.y;
      ++count;
    }
  }
  return sum / count;
}

void measure(article::Report& report) {
  const int longest = 4 * kTrained, steps = report.pick(1000, 300);
  const article::Batch long_batch = look_back(1000000, 32, longest);
  report.text(
      "Each position is to tell the symbol 5 places before it, one of 8: nothing but positions says which that is. "
      "Causal transformers of one block learn it for " +
      std::to_string(steps) +
      " steps of 8 sequences of 64, "
      "and then read 256. The learned table has rows for all of them, but those beyond 64 stay as they started.");
  article::Table& table =
      report.table("share of right answers; chance is 0.125", {"positions", "up to 64", "65 to 96", "129 to 256"});
  std::vector<examples::Curve> curves;
  std::vector<double> within, beyond;
  heed::Context context;
  const std::vector<std::pair<const char*, article::Positions>> kinds{{"none", article::Positions::None},
                                                                      {"learned", article::Positions::Learned},
                                                                      {"sinusoidal", article::Positions::Sinusoidal}};
  for (const auto& [name, positions] : kinds) {
    article::Model model({.vocab_size = kSymbols,
                          .classes = kSymbols,
                          .length = longest,
                          .num_layers = 1,
                          .readout = article::Readout::EachToken,
                          .causal = true,
                          .positions = positions});
    article::train(model, [](int step) { return look_back(step, 8, kTrained); }, {.steps = steps}, context);
    curves.push_back({name, accuracy_over_position(model, long_batch)});
    within.push_back(mean(curves.back().points, 0, kTrained));
    beyond.push_back(mean(curves.back().points, 2 * kTrained, longest));
    table.row({name, within.back(), mean(curves.back().points, kTrained, 1.5 * kTrained), beyond.back()});
  }
  report.curves("Right answers over the position; trained up to 64", curves, "position", "share");

  report.text(
      "A sinusoidal encoding is defined at every position, and \"5 before\" is the same rotation everywhere; what "
      "the model makes of encodings that it has never met is another matter.");
  report.expect("sinusoidal, trained length", within[2], article::at_least(0.6));
  report.expect("none, trained length", within[0], article::at_most(within[2] - 0.1));
  report.expect("learned, beyond 128", beyond[1], article::at_most(0.3));
  const bool equal = std::abs(within[2] - within[1]) < 0.05, goes_on = beyond[2] > 0.8 * within[2];
  report.verdict(
      equal && goes_on                                  ? article::Verdict::Held
      : equal || goes_on || beyond[2] > beyond[1] + 0.1 ? article::Verdict::Partly
                                                        : article::Verdict::Contradicted,
      article::format("right answers up to the trained length: %.2f sinusoidal, %.2f learned, %.2f none; at twice "
                      "the length and more: %.2f, %.2f and %.2f",
                      {within[2], within[1], within[0], beyond[2], beyond[1], beyond[0]}));
}

}  // namespace

int main(int argc, char** argv) {
  return article::run(
      argc, argv,
      {.name = "position_lengths",
       .claim = "SinusoidalPositions and learned positions are equally good at a fixed length, but only the "
                "sinusoidal ones go on beyond the trained length."},
      measure);
}
