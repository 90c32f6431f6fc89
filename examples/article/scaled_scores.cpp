// SPDX-License-Identifier: MIT
// Why attention divides its scores by √Dk. The sum of Dk products of numbers with variance 1 has the variance Dk; a
// softmax of scores that far apart is nearly a choice, and a choice has no gradient.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <Eigen/Core>

#include <heed/core/random.hpp>

#include "common/claim.hpp"
#include "common/models.hpp"
#include "common/texts.hpp"

namespace {

struct Softmax {
  double variance = 0;  // of the scores
  double largest = 0;   // the mean of each query's largest weight
  double entropy = 0;   // of the weights, against that of equal weights
  double gradient = 0;  // the norm of the Jacobian, d weights / d scores: the median over the queries
  double vanished = 0;  // the share of queries whose Jacobian is below a hundredth
};

// Scores of normal queries and keys of width Dk, times `scale`, and their softmax over L keys.
Softmax measure_softmax(int Dk, double scale, int queries) {
  constexpr int L = 256;
  const auto normal = [&](int rows, std::uint64_t stream) {
    const heed::Philox random(1, stream);
    Eigen::MatrixXd m(rows, Dk);
    for (Eigen::Index i = 0; i < m.size(); ++i) m.data()[i] = random.normal(static_cast<std::uint64_t>(i));
    return m;
  };
  const Eigen::MatrixXd scores = scale * normal(queries, 1) * normal(L, 2).transpose();
  Softmax mean;
  std::vector<double> gradients;
  mean.variance = (scores.array() - scores.mean()).square().mean();
  for (int q = 0; q < queries; ++q) {
    Eigen::ArrayXd p = (scores.row(q).array() - scores.row(q).maxCoeff()).exp();
    p /= p.sum();
    mean.largest += p.maxCoeff() / queries;
    mean.entropy -= (p > 0).select(p * p.max(1e-300).log(), 0).sum() / std::log(L) / queries;
    // The Jacobian is diag(p) - p·pᵀ; its squares sum to Σp² - 2Σp³ + (Σp²)².
    const double squares = p.square().sum();
    gradients.push_back(std::sqrt(std::max(0.0, squares - 2 * p.cube().sum() + squares * squares)));
    mean.vanished += (gradients.back() < 0.01) / static_cast<double>(queries);
  }
  std::nth_element(gradients.begin(), gradients.begin() + queries / 2, gradients.end());
  mean.gradient = gradients[static_cast<std::size_t>(queries / 2)];
  return mean;
}

void measure(article::Report& report) {
  report.text(
      "Queries and keys of independent normal numbers, 256 keys. The gradient is the norm of the Jacobian of the "
      "softmax: what reaches the scores of a unit gradient of the weights. It has vanished below a hundredth.");
  article::Table& table = report.table("softmax of scores", {"Dk", "scores", "variance", "largest weight",
                                                             "entropy / log L", "median gradient", "vanished"});
  examples::Curve plain{"q·k", {}}, scaled{"q·k / √Dk", {}};
  Softmax at64, at64_scaled, at1024;
  for (const int Dk : {4, 16, 64, 256, 1024}) {
    for (const bool is_scaled : {false, true}) {
      const Softmax s = measure_softmax(Dk, is_scaled ? 1 / std::sqrt(Dk) : 1, report.pick(1000, 200));
      table.row({Dk, is_scaled ? "q·k / √Dk" : "q·k", s.variance, s.largest, s.entropy, s.gradient, s.vanished});
      (is_scaled ? scaled : plain).points.push_back({static_cast<double>(Dk), s.entropy});
      if (Dk == 64) (is_scaled ? at64_scaled : at64) = s;
      if (Dk == 1024 && !is_scaled) at1024 = s;
    }
  }
  report.curves("How evenly a query looks at 256 keys", {plain, scaled}, "Dk", "entropy / log L",
                {.x = examples::Scale::Log2});

  // One head as wide as the model, so that Dk is large.
  const int steps = report.pick(400, 120), width = report.pick(128, 64);
  const article::Characters text(article::pride_and_prejudice(), 64);
  report.text("A character model of two blocks, one head of Dk = " + std::to_string(width) +
              ", learns Pride and "
              "Prejudice for " +
              std::to_string(steps) + " steps of 8 windows of 64; all that differs is the scale.");
  std::vector<examples::Curve> curves;
  std::vector<double> losses;
  heed::Context context;
  for (const bool is_scaled : {false, true}) {
    article::Model model({.vocab_size = text.vocabulary(),
                          .classes = text.vocabulary(),
                          .length = 64,
                          .embed_dim = width,
                          .num_heads = 1,
                          .readout = article::Readout::EachToken,
                          .causal = true,
                          .scale = is_scaled ? 1 / std::sqrt(width) : 1});
    const std::vector<double> run =
        article::train(model, [&](int step) { return text.sample(1, step, 8); }, {.steps = steps}, context);
    curves.push_back({is_scaled ? "scaled" : "unscaled", examples::group_means(run, run.size() / 20)});
    losses.push_back(model.loss(text.held_out(64), context));
  }
  report.table("loss on the held-out tenth, nats a character", {"unscaled", "scaled"}).row({losses[0], losses[1]});
  report.curves("Learning with and without the scale", curves, "step", "loss, nats");

  report.expect("variance / Dk at Dk = 64, unscaled", at64.variance / 64, article::between(0.9, 1.1));
  report.expect("variance at Dk = 64, scaled", at64_scaled.variance, article::between(0.9, 1.1));
  report.expect("largest weight at Dk = 1024, unscaled", at1024.largest, article::at_least(0.8));
  report.expect("share of vanished gradients at Dk = 1024, unscaled", at1024.vanished, article::at_least(0.4));
  report.expect("the same at Dk = 64, scaled", at64_scaled.vanished, article::at_most(0.01));
  report.expect("held-out loss, unscaled - scaled", losses[0] - losses[1], article::at_least(0.01));

  // At moderate widths a query hesitates between a few keys, and its gradient is large: it vanishes as they win.
  const bool slower = losses[0] > losses[1], vanishes = at64.gradient < at64_scaled.gradient;
  report.verdict(
      !slower    ? article::Verdict::Contradicted
      : vanishes ? article::Verdict::Held
                 : article::Verdict::Partly,
      article::format("variance %.1f at Dk = 64 and the largest of 256 weights %.2f, scaled %.2f; the gradient "
                      "vanishes for %.0f %% of the queries at Dk = 64 and %.0f %% at 1024, while its median at "
                      "64 is %.1f times that of scaled scores; held-out loss %.3f unscaled, %.3f scaled",
                      {at64.variance, at64.largest, at64_scaled.largest, 100 * at64.vanished, 100 * at1024.vanished,
                       at64.gradient / at64_scaled.gradient, losses[0], losses[1]}));
}

}  // namespace

int main(int argc, char** argv) {
  return article::run(argc, argv,
                      {.name = "scaled_scores",
                       .claim = "Without the scale, scores have the variance Dk: softmax saturates, gradients vanish, "
                                "and the model learns more slowly."},
                      measure);
}
