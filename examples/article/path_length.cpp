// SPDX-License-Identifier: MIT
// How far apart two tokens are for a gradient: k steps in a recurrent layer, one in attention. And what a training step
// costs when the steps of a sequence have to wait for each other.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <heed/core/parallel.hpp>

#include "common/claim.hpp"
#include "common/models.hpp"

namespace {

using article::Body;

article::Batch distinct_tokens(int B, int L) {
  article::Batch batch{heed::Tensor<int, 2>(B, L), {}, heed::Tensor<int, 2>(B, L)};
  for (int b = 0; b < B; ++b) {
    for (int l = 0; l < L; ++l) batch.ids(b, l) = l;
  }
  return batch;
}

// |d loss at the last position / d input k positions before it|, for k = 0, ..., L - 1, of a layer as it starts. Each
// token occurs once, so that the gradient of its embedding is that of the input.
std::vector<double> gradient_over_distance(Body body, int L, std::uint64_t seed) {
  article::Model model({.vocab_size = L,
                        .classes = 16,
                        .length = L,
                        .num_layers = 1,
                        .body = body,
                        .readout = article::Readout::EachToken,
                        .causal = true,
                        .embedding_std = 1,
                        .seed = seed});
  article::Batch batch = distinct_tokens(1, L);
  for (int l = 0; l + 1 < L; ++l) batch.targets(0, l) = article::kIgnored;
  heed::Context context;
  model.loss_and_gradients(batch, context);
  std::vector<double> norms;
  for (const auto& entry : model.parameters()) {
    if (entry.name != "embedding.weight") continue;
    for (int k = 0; k < L; ++k) norms.push_back(entry.parameter->grad_matrix().matrix().row(L - 1 - k).norm());
  }
  return norms;
}

// Seconds of forward and backward, the best of a few.
double step_seconds(Body body, int L, heed::Executor& executor, int repeats) {
  article::Model model({.vocab_size = L,
                        .classes = 16,
                        .length = L,
                        .num_layers = 1,
                        .body = body,
                        .readout = article::Readout::EachToken,
                        .causal = true});
  const article::Batch batch = distinct_tokens(1, L);
  heed::Context context(executor);
  double best = 1e9;
  for (int i = 0; i <= repeats; ++i) {  // the first one warms up
    const auto start = std::chrono::steady_clock::now();
    model.loss_and_gradients(batch, context);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (i > 0) best = std::min(best, seconds.count());
  }
  return best;
}

void measure(article::Report& report) {
  const int L = report.pick(256, 128), seeds = report.pick(20, 4);
  report.text(
      "One layer of width 64 as it starts, in one direction. The loss is that of the last position alone; the "
      "gradient of each input before it is averaged over " +
      std::to_string(seeds) + " starts.");
  std::vector<double> lstm(static_cast<std::size_t>(L)), attention(static_cast<std::size_t>(L));
  for (int seed = 1; seed <= seeds; ++seed) {
    const auto s = static_cast<std::uint64_t>(seed);
    const std::vector<double> a = gradient_over_distance(Body::Lstm, L, s);
    const std::vector<double> b = gradient_over_distance(Body::Transformer, L, s);
    for (std::size_t k = 0; k < a.size(); ++k) {
      lstm[k] += a[k] / seeds;
      attention[k] += b[k] / seeds;
    }
  }
  article::Table& gradients = report.table("gradient of the input k positions before", {"k", "LSTM", "attention"});
  for (int k = 1; k < L; k *= 2) {
    gradients.row({k, lstm[static_cast<std::size_t>(k)], attention[static_cast<std::size_t>(k)]});
  }
  std::vector<examples::Curve> curves{{"LSTM", {}}, {"attention", {}}};
  for (std::size_t k = 1; k < lstm.size(); k += k < 32 ? 1 : 8) {
    // Below that, float itself ends: a picture down to 1e-40 shows nothing else.
    if (lstm[k] > 1e-20) curves[0].points.push_back({static_cast<double>(k), lstm[k]});
    curves[1].points.push_back({static_cast<double>(k), attention[k]});
  }
  report.curves("Gradient over the distance", curves, "k", "|d loss(i + k) / d input(i)|",
                {.y = examples::Scale::Log10});

  report.text(
      "A training step, forward and backward, of the same layers on one sequence, in seconds. In attention all "
      "positions "
      "of a sequence are computed at once, so that a second thread can take its share; in the LSTM a position waits "
      "for "
      "the one before it. But the LSTM has less to do: no feed-forward layer, and nothing that grows with L squared.");
  heed::ThreadPool two(2);
  heed::Serial one;
  article::Table& times = report.table("seconds of a training step",
                                       {"L", "LSTM", "LSTM, 2 threads", "transformer", "transformer, 2 threads"});
  std::vector<examples::Curve> time_curves{
      {"LSTM", {}}, {"LSTM, 2 threads", {}}, {"transformer", {}}, {"transformer, 2 threads", {}}};
  std::vector<std::vector<double>> seconds;
  for (int length = 128; length <= report.pick(4096, 512); length *= 2) {
    std::vector<double> row;
    for (const Body body : {Body::Lstm, Body::Transformer}) {
      for (heed::Executor* executor : std::vector<heed::Executor*>{&one, &two}) {
        row.push_back(step_seconds(body, length, *executor, report.pick(7, 3)));
      }
    }
    times.row({length, row[0], row[1], row[2], row[3]});
    for (std::size_t i = 0; i < row.size(); ++i) time_curves[i].points.push_back({static_cast<double>(length), row[i]});
    seconds.push_back(row);
  }
  report.curves("Time of a training step", time_curves, "L", "seconds",
                {.x = examples::Scale::Log2, .y = examples::Scale::Log10});

  const auto far = static_cast<std::size_t>(L / 2);
  const double lstm_ratio = lstm[far] / lstm[1], attention_ratio = attention[far] / attention[1];
  report.expect("LSTM: gradient at k = L/2 / at k = 1", lstm_ratio, article::at_most(1e-6));
  report.expect("attention: gradient at k = L/2 / at k = 1", attention_ratio, article::between(0.2, 5));
  const std::vector<double>& longest = seconds.back();
  // The clock shows if the waiting costs time, too.
  const bool reaches = lstm_ratio < 1e-6 && attention_ratio > 0.2,
             is_faster = std::min(longest[2], longest[3]) < std::min(longest[0], longest[1]);
  report.verdict(
      reaches && is_faster   ? article::Verdict::Held
      : reaches || is_faster ? article::Verdict::Partly
                             : article::Verdict::Contradicted,
      article::format(
          "from k = 1 to %.0f the gradient falls %.0e times in an LSTM, %.2g times in attention; at L = %.0f a "
          "step takes %.3g ms against %.3g ms, and two threads make it %.2f and %.2f times as fast",
          {static_cast<double>(far), 1 / lstm_ratio, 1 / attention_ratio, time_curves[0].points.back().x,
           1e3 * longest[0], 1e3 * longest[2], longest[0] / longest[1], longest[2] / longest[3]}));
}

}  // namespace

int main(int argc, char** argv) {
  return article::run(argc, argv,
                      {.name = "path_length",
                       .claim = "Attention joins any two positions in one step, so that gradients don't fade with the "
                                "distance and all positions are computed at once; a recurrent layer takes k steps."},
                      measure);
}
