// SPDX-License-Identifier: MIT
// The symptoms of a forgotten mask, which the training loss does not show.

#include <cstddef>
#include <vector>

#include <heed/core/random.hpp>

#include "common/claim.hpp"
#include "common/models.hpp"
#include "common/texts.hpp"

namespace {

constexpr int kLength = 32;

struct CausalResult {
  std::vector<double> losses;
  double held_out = 0;  // as in training: with or without the mask
  double causal = 0;    // under a causal mask, which is what generating amounts to
};

CausalResult train_language_model(const article::Characters& text, bool causal, int steps) {
  heed::Context context;
  article::Model model({.vocab_size = text.vocabulary(),
                        .classes = text.vocabulary(),
                        .length = kLength,
                        .num_layers = 1,
                        .readout = article::Readout::EachToken,
                        .causal = causal,
                        .positions = article::Positions::Learned});
  CausalResult result;
  result.losses = article::train(
      model, [&](int step) { return text.sample(1, step, 16); }, {.steps = steps, .learning_rate = 5e-3}, context);
  const article::Batch held_out = text.held_out(48);
  result.held_out = model.loss(held_out, context);
  model.set_masks(true, true, false);
  result.causal = model.loss(held_out, context);
  return result;
}

double measure_causal(article::Report& report) {
  const int steps = report.pick(600, 150);
  report.text(
      "Causal mask: two character models learn Pride and Prejudice, windows of 32. Without the mask, each position "
      "sees the character that it is to predict, one place to its right.");
  const article::Characters text(article::pride_and_prejudice(), kLength);
  const CausalResult with = train_language_model(text, true, steps), without = train_language_model(text, false, steps);
  report
      .table("loss, nats a character; guessing by frequency alone gives about 3",
             {"model", "end of training", "held out, as trained", "held out, seeing the past only"})
      .row({"causal", article::tail_mean(with.losses), with.held_out, with.causal})
      .row({"mask forgotten", article::tail_mean(without.losses), without.held_out, without.causal});
  const std::size_t group = with.losses.size() / 40;
  report.curves("A loss too good to be true",
                {{"causal", examples::group_means(with.losses, group)},
                 {"mask forgotten", examples::group_means(without.losses, group)}},
                "step", "loss, nats");
  report.text(
      "By Shannon's estimate, someone who knows English still needs 0.4 to 0.9 nats a character: a loss that goes on "
      "to "
      "0 is a leak. What this model has learned is to copy; when it sees the past only, as in generating, it is "
      "useless.");
  report.expect("training loss, causal - mask forgotten",
                article::tail_mean(with.losses) - article::tail_mean(without.losses), article::at_least(0.5));
  report.expect("held-out loss on the past only, mask forgotten - causal", without.causal - with.causal,
                article::at_least(0.5));
  return without.causal - with.causal;
}

// Texts of 6 to 30 symbols 1 ... 9; the class is whether more of them are below 5 than above. 0 is padding.
article::Batch counting_batch(int step, int size, int length) {
  article::Batch batch{heed::Tensor<int, 2>(size, length), {}, heed::Tensor<int, 2>(size, 1)};
  const heed::Philox random(7, static_cast<std::uint64_t>(step));
  std::uint64_t draw = 0;
  for (int b = 0; b < size; ++b) {
    const int count = 6 + static_cast<int>(25 * random.uniform(draw++));
    int balance = 0;
    for (int l = 0; l < count; ++l) {
      const int symbol = 1 + static_cast<int>(9 * random.uniform(draw++));
      batch.ids(b, l) = symbol;
      balance += (symbol < 5) - (symbol > 5);
    }
    batch.lengths.push_back(count);
    batch.targets(b, 0) = balance > 0;
  }
  return batch;
}

double measure_padding(article::Report& report) {
  report.text(
      "Padding: a classifier tells whether a text of 6 to 30 symbols holds more small ones than large ones; "
      "trained in batches padded to 32. The same texts are then padded to other lengths, as a batch with one long "
      "text in it would.");
  article::Table& table =
      report.table("accuracy on 2000 new texts", {"model", "padded to 32, as trained", "to 64", "to 256"});
  heed::Context context;
  std::vector<double> at_long;
  std::vector<examples::Curve> curves;
  for (const bool forgotten : {false, true}) {
    article::Model model({.vocab_size = 10,
                          .classes = 2,
                          .embed_dim = 32,
                          .num_layers = 1,
                          .mask_padding = !forgotten,
                          .pool_padding = forgotten,
                          .positions = article::Positions::None});
    const std::vector<double> losses = article::train(
        model, [&](int step) { return counting_batch(step, 32, 32); }, {.steps = report.pick(600, 250)}, context);
    std::vector<double> accuracies;
    for (const int length : {32, 64, 256}) {
      double right = 0;
      for (int part = 0; part < 20; ++part)
        right += model.accuracy(counting_batch(1000000 + part, 100, length), context) / 20;
      accuracies.push_back(right);
    }
    const char* name = forgotten ? "mask forgotten" : "padding masked";
    table.row({name, accuracies[0], accuracies[1], accuracies[2]});
    curves.push_back({name, examples::group_means(losses, losses.size() / 25)});
    at_long.push_back(accuracies[2]);
  }
  report.curves("Both train without a complaint", curves, "step", "loss, nats");
  report.expect("accuracy when padded to 256, masked - forgotten", at_long[0] - at_long[1], article::at_least(0.05));
  return at_long[0] - at_long[1];
}

void measure(article::Report& report) {
  const double causal = measure_causal(report), padding = measure_padding(report);
  report.verdict(
      causal > 0.5 && padding > 0.05,
      article::format("a model trained without its causal mask is %.1f nats worse once it sees the past only; "
                      "forgotten padding costs %.0f points of accuracy when batches get longer",
                      {causal, 100 * padding}));
}

}  // namespace

int main(int argc, char** argv) {
  return article::run(argc, argv,
                      {.name = "masks_forgotten",
                       .claim = "A forgotten causal or padding mask lets training run and look good, and spoils the "
                                "model."},
                      measure);
}
