// SPDX-License-Identifier: MIT
// The place of the norm in a block decides how deep stacks start to learn: x + f(norm(x)) (Pre-LN) against
// norm(x + f(x)) (Post-LN), 12 blocks deep, without warm-up. Xiong et al.: "On layer normalization in the transformer
// architecture", 2020.

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "common/claim.hpp"
#include "common/models.hpp"
#include "common/texts.hpp"

namespace {

constexpr int kDepth = 12;
constexpr std::uint64_t kSeed = 1;

article::Model make_model(article::NormPlace norm, int vocabulary, int depth = kDepth) {
  return article::Model({.vocab_size = vocabulary,
                         .classes = vocabulary,
                         .embed_dim = 32,
                         .num_layers = depth,
                         .readout = article::Readout::EachToken,
                         .causal = true,
                         .norm = norm,
                         .seed = kSeed});
}

// The norm of the gradients of each block's attention and feed-forward weights.
std::vector<double> gradient_norms(article::NormPlace norm, const article::Characters& text) {
  article::Model model = make_model(norm, text.vocabulary());
  heed::Context context;
  model.loss_and_gradients(text.sample(kSeed, 0, 16), context);
  std::vector<double> squares(kDepth);
  model.visit("", [&](std::string_view name, heed::Parameter<float>& parameter) {
    if (!name.starts_with("blocks.") || parameter.rank() != 2) return;
    double& sum = squares[static_cast<std::size_t>(std::stoi(std::string(name.substr(7))))];
    const auto gradient = parameter.grad_matrix();
    for (heed::Index r = 0; r < gradient.extent(0); ++r) {
      for (heed::Index c = 0; c < gradient.extent(1); ++c) sum += std::pow(gradient(r, c), 2);
    }
  });
  for (double& sum : squares) sum = std::sqrt(sum);
  return squares;
}

// The loss of a predictor that knows only the frequency of the characters.
double frequency_loss(const article::Characters& text) {
  const article::Batch batch = text.held_out(512);
  std::vector<double> counts(static_cast<std::size_t>(text.vocabulary()));
  const auto total = static_cast<double>(batch.targets.size());
  for (heed::Index i = 0; i < batch.targets.size(); ++i) ++counts[static_cast<std::size_t>(batch.targets.data()[i])];
  double loss = 0;
  for (const double count : counts) loss -= count > 0 ? count / total * std::log(count / total) : 0;
  return loss;
}

double gradients_at_the_start(const article::Characters& text, article::Report& report) {
  const std::vector<double> pre = gradient_norms(article::NormPlace::Pre, text);
  const std::vector<double> post = gradient_norms(article::NormPlace::Post, text);
  article::Table& table = report.table("norm of a block's gradients before the first step", {"block", "Pre", "Post"});
  std::vector<examples::Curve> curves{{"Pre", {}}, {"Post", {}}};
  for (std::size_t i = 0; i < kDepth; ++i) {
    const auto block = static_cast<double>(i + 1);
    table.row({static_cast<int>(i + 1), pre[i], post[i]});
    curves[0].points.push_back({block, pre[i]});
    curves[1].points.push_back({block, post[i]});
  }
  report.curves("Gradients at the start", curves, "block", "norm", {.y = examples::Scale::Log10});
  return post.back() / pre.back();
}

// The mean loss over the last tenth of a training.
double trained_loss(article::Model model, const article::Characters& text, const article::TrainOptions& options) {
  heed::Context context;
  return article::tail_mean(
      article::train(model, [&](int step) { return text.sample(kSeed, step, 16); }, options, context));
}

struct Variant {
  std::string name;
  article::NormPlace norm;
  double warmup;  // share of the steps
};

void measure(article::Report& report) {
  const article::Characters text(article::pride_and_prejudice(), 32);
  const double frequencies = frequency_loss(text);
  report.text(
      "A causal model of 12 blocks, E = 32, over the characters of a novel. Who knows only how frequent each "
      "character is has a loss of " +
      article::format("%.2f", frequencies) + ".");
  const double last_block = gradients_at_the_start(text, report);

  const int steps = report.pick(150, 120);
  const std::vector<double> rates = report.pick(std::vector{3e-4, 1e-3, 3e-3, 1e-2, 3e-2}, std::vector{1e-2});
  std::vector<Variant> variants{{"Pre", article::NormPlace::Pre, 0}, {"Post", article::NormPlace::Post, 0}};
  if (!report.quick()) variants.push_back({"Post, warm-up", article::NormPlace::Post, 1.0 / 3});
  report.text(
      "AdamW at the full learning rate from the first step on, without clipping; the third column warms up "
      "over a third of the steps. Losses are means over the last tenth of the steps.");
  article::Table& table =
      report.table("loss after " + std::to_string(steps) + " steps", {"learning rate", "Pre", "Post", "Post, warm-up"});
  std::vector<examples::Curve> curves;
  for (const Variant& variant : variants) curves.push_back({variant.name, {}});
  std::vector<int> learned(variants.size());  // rates at which more than frequencies was learned
  double best_gap = 0;
  for (const double rate : rates) {
    std::vector<article::Cell> row{rate};
    std::vector<double> losses;
    for (std::size_t i = 0; i < variants.size(); ++i) {
      losses.push_back(trained_loss(
          make_model(variants[i].norm, text.vocabulary()), text,
          {.steps = steps, .warmup = static_cast<int>(variants[i].warmup * steps), .learning_rate = rate, .clip = 0}));
      row.push_back(losses.back());
      curves[i].points.push_back({rate, losses.back()});
      learned[i] += losses.back() < frequencies - 0.1;
    }
    table.row(row);
    best_gap = std::max(best_gap, losses[1] - losses[0]);
  }
  report.curves("Loss over the learning rate", curves, "learning rate", "loss", {.x = examples::Scale::Log10});

  const article::TrainOptions options{.steps = steps, .warmup = 0, .learning_rate = 1e-2, .clip = 0};
  const double shallow_pre = trained_loss(make_model(article::NormPlace::Pre, text.vocabulary(), 2), text, options);
  const double shallow_post = trained_loss(make_model(article::NormPlace::Post, text.vocabulary(), 2), text, options);
  report.table("the same with 2 blocks instead of 12", {"learning rate", "Pre", "Post"})
      .row({options.learning_rate, shallow_pre, shallow_post});

  report.expect("loss of Post with 2 blocks, below that of the frequencies", frequencies - shallow_post,
                article::at_least(0.1));
  report.expect("gradient of the last block at the start, Post / Pre", last_block, article::at_least(1.3));
  report.text("Two blocks deep, both learn: it is the depth that Post-LN can't stand.");
  const bool pre_learns = report.expect("rates at which Pre learns more than frequencies", learned[0],
                                        article::at_least(report.pick(2, 1)));
  const bool post_does_not = report.expect("rates at which Post does", learned[1], article::at_most(learned[0] - 1));
  const bool apart = report.expect("largest loss of Post above that of Pre", best_gap, article::at_least(0.1));
  report.verdict(pre_learns && post_does_not && apart,
                 "more than frequencies was learned at " + std::to_string(learned[0]) + " of " +
                     std::to_string(rates.size()) + " rates by Pre, at " + std::to_string(learned[1]) +
                     " by Post; the loss of Post is up to " + article::format("%.2f", best_gap) + " higher");
}

}  // namespace

int main(int argc, char** argv) {
  return article::run(argc, argv,
                      {.name = "pre_post_norm",
                       .claim = "Twelve blocks deep, Pre-LN learns over a wide range of learning rates without "
                                "warm-up, where Post-LN does not."},
                      measure);
}
