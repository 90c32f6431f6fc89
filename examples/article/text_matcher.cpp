// SPDX-License-Identifier: MIT
// A text matcher, shown by diagnostics: where do its heads look when all texts open with the same boilerplate? And does
// it change with the scale of the positions and with a stronger feed-forward layer?

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <Eigen/Core>

#include <heed/inspect/diagnostics.hpp>

#include "common/claim.hpp"
#include "common/models.hpp"
#include "common/texts.hpp"

namespace {

constexpr std::uint64_t kSeed = 1;

struct Variant {
  std::string name;
  double position_scale;
  int ffn_dim;
};

// The diagnostics of the heads, whose "first tokens" are those of the opening.
struct Look {
  double mean = 0, largest = 0;  // weight on the opening over its share of the tokens, over all heads
  int sinks = 0;                 // heads that the diagnostics call attention sinks
};
Look look(const article::Model& model, const article::Batch& batch, int opening) {
  heed::Recorder recorder({.weights = {"*"}, .outputs = {}});
  heed::Context context;
  context.observer = &recorder;
  model.loss(batch, context);
  const heed::Diagnosis diagnosis = heed::diagnose(recorder, heed::DiagnosticOptions{.first_tokens = opening});
  const double share = static_cast<double>(opening) / static_cast<double>(batch.ids.extent(1));
  Look found;
  for (const heed::HeadStatistics& head : diagnosis.heads) {
    found.mean += head.first_weight / share / static_cast<double>(diagnosis.heads.size());
    found.largest = std::max(found.largest, head.first_weight / share);
  }
  for (const heed::Finding& finding : diagnosis.findings)
    found.sinks += finding.kind == heed::FindingKind::AttentionSink;
  return found;
}

// The share of pairs that are told right: one book, or two. Each passage has a distribution over the books.
double matching_accuracy(const article::Model& model, const article::Passages& passages) {
  heed::Context context;
  std::size_t right = 0, first = 0;
  for (; first + 100 <= passages.held_out.size(); first += 100) {
    const heed::Tensor<float, 3> logits = model.logits(article::batch_of(passages.held_out, first, 100), context);
    const auto probabilities = [&](std::size_t row) {
      Eigen::ArrayXf p = logits.matrix(static_cast<heed::Index>(row)).row(0).transpose().array();
      p = (p - p.maxCoeff()).exp();
      return Eigen::ArrayXf(p / p.sum());
    };
    for (std::size_t i = 0; i < 100; i += 2) {
      const bool same = passages.held_out[first + i].label == passages.held_out[first + i + 1].label;
      right += ((probabilities(i) * probabilities(i + 1)).sum() > 0.5f) == same;
    }
  }
  return static_cast<double>(right) / static_cast<double>(first / 2);
}

void measure(article::Report& report) {
  const article::Passages passages = article::novel_passages({.training = 8000, .seed = kSeed});
  const article::Batch held_out = article::batch_of(passages.held_out, 0, 64);
  const int steps = report.pick(400, 120);
  report.text(
      "Passages of 48 words from six novels, each behind the same opening, \"My dear sir, I have the honour to "
      "send you the following\". A model of two blocks, E = 64, learns to tell the book of each; a pair matches "
      "where both are likely to be of one book. Does its attention sit on the opening, which tells nothing? "
      "1 is the weight that the opening has where all words weigh alike.");
  const std::vector<Variant> all{{"F = 2·E", 1, 128},
                                 {"positions x 0.1", 0.1, 128},
                                 {"F = 8·E", 1, 512},
                                 {"positions x 0.1, F = 8·E", 0.1, 512},
                                 {"positions x 3", 3, 128}};
  article::Table& table = report.table("weight on the opening, over its share of the words, and pairs told right",
                                       {"model", "before", "after", "largest head", "sinks", "accuracy"});
  std::vector<examples::Curve> curves;
  std::vector<Look> after;
  std::vector<double> accuracies;
  for (const Variant& variant : all) {
    if (report.quick() && variant.position_scale != 1) continue;
    article::Model model({.vocab_size = passages.vocab_size,
                          .classes = passages.classes,
                          .length = 128,
                          .ffn_dim = variant.ffn_dim,
                          .position_scale = variant.position_scale,
                          .seed = kSeed});
    heed::Context context;
    const Look before = look(model, held_out, passages.opening);
    examples::Curve curve{variant.name, {{0, before.mean}}};
    article::train(
        model, [&](int step) { return article::sample(passages.training, kSeed, step, 16); },
        {.steps = steps, .learning_rate = 3e-3}, context,
        [&](int step, double) {
          if ((step + 1) % (steps / 10) != 0) return;
          curve.points.push_back({step + 1.0, look(model, held_out, passages.opening).mean});
        });
    after.push_back(look(model, held_out, passages.opening));
    accuracies.push_back(matching_accuracy(model, passages));
    curves.push_back(curve);
    table.row(
        {variant.name, before.mean, after.back().mean, after.back().largest, after.back().sinks, accuracies.back()});
  }
  report.curves("Weight on the opening", curves, "step", "over its share of the words");

  const double stronger = after[report.quick() ? 1 : 2].mean;
  report.text(
      "Training takes weight away from the opening. Nothing has to be cured here; weaker positions leave the "
      "weights nearer to where they started.");
  report.expect("weight on the opening after training", after[0].mean, article::at_most(0.9));
  report.expect("the same with the stronger feed-forward layer", stronger, article::at_most(0.9));
  report.expect("heads that are sinks", after[0].sinks, article::at_most(0));
  if (!report.quick()) report.expect("pairs told right", accuracies[0], article::at_least(0.57));
  report.verdict(false, "weight on the opening after training: " + article::format("%.2f", after[0].mean) +
                            " of its share, " + article::format("%.2f", stronger) +
                            " with a stronger feed-forward layer; no head is a sink");
}

}  // namespace

int main(int argc, char** argv) {
  return article::run(
      argc, argv,
      {.name = "text_matcher",
       .claim = "The attention of a text matcher sits on the head of its sentences, which are alike; the "
                "scale of the positions and a stronger feed-forward layer spread it."},
      measure);
}
