// SPDX-License-Identifier: MIT
// When attention weights are uniform, attention takes the mean of its keys, whatever the query. Measured as the entropy
// of the weights over the logarithm of the number of visible keys: 1 is uniform, 0 looks at one key.

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <heed/inspect/diagnostics.hpp>

#include "common/claim.hpp"
#include "common/models.hpp"
#include "common/texts.hpp"

namespace {

constexpr int kWidth = 64;
constexpr std::uint64_t kSeed = 1;

enum class Projections { Drawn, Proportional, Constant };

struct Start {
  std::string name;
  article::Init init = article::Init::Xavier;
  double std = 0;  // of Init::Normal; the gain of Init::Orthogonal
  Projections projections = Projections::Drawn;
};

article::Model started(const Start& start, int vocabulary) {
  article::Model model({.vocab_size = vocabulary,
                        .classes = vocabulary,
                        .embed_dim = kWidth,
                        .readout = article::Readout::EachToken,
                        .causal = true,
                        .init = start.init,
                        .init_std = start.std,
                        .seed = kSeed});
  model.visit("", [&](std::string_view name, heed::Parameter<float>& parameter) {
    if (start.projections == Projections::Drawn || !name.ends_with("in_proj_weight")) return;
    const auto weight = parameter.mutable_matrix();
    for (heed::Index r = 0; r < 3 * kWidth; ++r) {
      for (heed::Index c = 0; c < kWidth; ++c) {
        weight(r, c) = start.projections == Projections::Constant ? 0.05f : weight(r % kWidth, c);
      }
    }
  });
  return model;
}

// Means over all heads, on held-out text.
struct Look {
  double entropy = 0, own = 0, loss = 0;  // own: the weight of a query on its own key
};
Look look(const article::Model& model, const article::Batch& batch) {
  heed::Recorder recorder({.weights = {"*"}, .outputs = {}});
  heed::Context context;
  context.observer = &recorder;
  Look found{.loss = model.loss(batch, context)};
  const heed::Diagnosis diagnosis = heed::diagnose(recorder);
  for (const heed::HeadStatistics& head : diagnosis.heads) {
    found.entropy += head.entropy / static_cast<double>(diagnosis.heads.size());
  }
  double count = 0;
  for (const heed::RecordedAttention& attention : recorder.attention()) {
    const auto& extents = attention.weights.extents();
    for (heed::Index b = 0; b < extents[0]; ++b) {
      for (heed::Index h = 0; h < extents[1]; ++h) {
        for (heed::Index q = 1; q < extents[2]; ++q, ++count) found.own += attention.weights(b, h, q, q);
      }
    }
  }
  found.own /= count;
  return found;
}

// By its start and its learning rate.
Look train(const Start& start, double rate, const article::Characters& text, const article::Report& report) {
  article::Model model = started(start, text.vocabulary());
  heed::Context context;
  article::train(
      model, [&](int step) { return text.sample(kSeed, step, report.pick(16, 8)); },
      {.steps = report.pick(200, 50), .warmup = 0, .learning_rate = rate}, context);
  return look(model, text.held_out(16));
}

void measure(article::Report& report) {
  const article::Characters text(article::pride_and_prejudice(), 64);
  const std::vector<Start> all{{.name = "Xavier"},
                               {.name = "Q, K and V the same matrix", .projections = Projections::Proportional},
                               {.name = "all numbers 0.05", .projections = Projections::Constant},
                               {.name = "normal, std 1", .init = article::Init::Normal, .std = 1},
                               {.name = "normal, std 0.02", .init = article::Init::Normal, .std = 0.02},
                               {.name = "orthogonal", .init = article::Init::Orthogonal, .std = 1}};
  report.text(
      "A causal model of two blocks, E = 64, over the characters of a novel. Entropy over log(keys) is 1 where "
      "weights are uniform; \"own key\" is the weight of a token on itself, 0.06 where they are. \"After\" "
      "is after " +
      std::to_string(report.pick(200, 50)) + " steps of AdamW without warm-up, at the learning rate 0.003.");
  article::Table& starts = report.table(
      "by the start", {"start", "entropy, before", "own key, before", "entropy, after", "own key, after", "loss"});
  std::vector<Look> before, after;
  for (const Start& start : all) {
    before.push_back(look(started(start, text.vocabulary()), text.held_out(16)));
    after.push_back(train(start, 3e-3, text, report));
    starts.row({start.name, before.back().entropy, before.back().own, after.back().entropy, after.back().own,
                after.back().loss});
  }

  const std::vector<Start> drawn{all[0], all[4], all[5]};
  article::Table& rates = report.table(
      "after training, by the learning rate",
      {"learning rate", "Xavier: entropy", "loss", "std 0.02: entropy", "loss", "orthogonal: entropy", "loss"});
  std::vector<examples::Curve> entropies, losses;
  for (const Start& start : drawn) {
    entropies.push_back({start.name, {}});
    losses.push_back({start.name, {}});
  }
  double highest_entropy = 0, lowest_loss = 10;  // at the largest rate
  for (const double rate : report.pick(std::vector{1e-3, 1e-2, 3e-2, 1e-1, 3e-1}, std::vector{1e-1})) {
    std::vector<article::Cell> row{rate};
    highest_entropy = 0;
    lowest_loss = 10;
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      const Look found = train(drawn[i], rate, text, report);
      row.insert(row.end(), {found.entropy, found.loss});
      entropies[i].points.push_back({rate, found.entropy});
      losses[i].points.push_back({rate, found.loss});
      highest_entropy = std::max(highest_entropy, found.entropy);
      lowest_loss = std::min(lowest_loss, found.loss);
    }
    rates.row(row);
  }
  report.curves("Entropy of the weights after training", entropies, "learning rate", "entropy / log(keys)",
                {.x = examples::Scale::Log10});
  report.curves("Loss after training", losses, "learning rate", "loss", {.x = examples::Scale::Log10});

  report.text(
      "Proportional projections make the scores squares of one form: a token looks at itself, not at all "
      "tokens alike. Uniform are weights whose scores are near 0: those of projections without any difference "
      "between their numbers, and those of a small standard deviation, which training leaves behind. Too high "
      "a learning rate ends in the contrary, weights that see one key, whatever the start was.");
  report.expect("own key with proportional projections, over Xavier's", before[1].own / before[0].own,
                article::at_least(2));
  report.expect("entropy with proportional projections", before[1].entropy, article::at_most(0.9));
  report.expect("entropy with constant projections", before[2].entropy, article::at_least(0.99));
  report.expect("entropy with std 0.02", before[4].entropy, article::at_least(0.99));
  report.expect("highest entropy at the largest rate", highest_entropy, article::at_most(0.6));
  report.expect("lowest loss at the largest rate, above that at 0.003", lowest_loss - after[4].loss,
                article::at_least(0.1));
  report.verdict(false, "entropy / log(keys): " + article::format("%.2f", before[1].entropy) +
                            " with proportional projections (Xavier " + article::format("%.2f", before[0].entropy) +
                            ", std 0.02 " + article::format("%.2f", before[4].entropy) + "); at most " +
                            article::format("%.2f", highest_entropy) + " after too high a learning rate");
}

}  // namespace

int main(int argc, char** argv) {
  return article::run(argc, argv,
                      {.name = "uniform_weights",
                       .claim = "Proportional projections at the start, or too high a learning rate, leave attention "
                                "weights uniform; a smaller standard deviation and orthogonal weights cure it."},
                      measure);
}
