// SPDX-License-Identifier: MIT
// The use of the projections of queries, keys and values, and of several heads: a small GPT over the
// characters of a novel is trained with and without projections, and with 1, 2, 8 and 64 heads.

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <heed/nn/transformer_layer.hpp>

#include "common/claim.hpp"
#include "common/models.hpp"
#include "common/texts.hpp"

namespace {

constexpr int kWidth = 64, kLayers = 2;
// The parameters that a block saves without projections, 3·E² + 3·E, as hidden units of the FFN, 2·E + 1 each.
constexpr int kEqualFeedForward = 4 * kWidth + (3 * kWidth * kWidth + 3 * kWidth) / (2 * kWidth + 1);

struct Variant {
  std::string name;
  int num_heads;
  bool projections = true;
  int ffn_dim = 4 * kWidth;
};
struct Result {
  heed::Index parameters;
  double loss = 0, accuracy = 0;  // of the held-out text, the mean over the seeds
  std::vector<double> losses{};   // in training, of the last seed
};

Result train_variant(const Variant& variant, const article::Characters& text, article::Report& report) {
  const int seeds = report.pick(2, 1);
  Result result{};
  const article::Batch held_out = text.held_out(128);
  for (int seed = 1; seed <= seeds; ++seed) {
    article::Model model({.vocab_size = text.vocabulary(),
                          .classes = text.vocabulary(),
                          .embed_dim = kWidth,
                          .num_heads = variant.num_heads,
                          .num_layers = kLayers,
                          .ffn_dim = variant.ffn_dim,
                          .readout = article::Readout::EachToken,
                          .causal = true,
                          .projections = variant.projections,
                          .seed = static_cast<std::uint64_t>(seed)});
    heed::Context context;
    const auto sample = [&](int step) {
      return text.sample(static_cast<std::uint64_t>(seed), step, report.pick(16, 8));
    };
    result.losses = article::train(model, sample, {.steps = 300, .learning_rate = 5e-3}, context);
    result.parameters = model.parameter_count();
    result.loss += model.loss(held_out, context) / seeds;
    result.accuracy += model.accuracy(held_out, context) / seeds;
  }
  return result;
}

template <class Layer>
heed::Index parameter_count(Layer&& layer) {
  heed::Index count = 0;
  layer.visit("", [&](std::string_view, const auto& parameter) { count += parameter.size(); });
  return count;
}

// Returns how many counts are not what the formula says.
int count_parameters(article::Report& report) {
  article::Table& table =
      report.table("parameters of one layer, counted",
                   {"width E", "heads", "attention", "4E² + 4E", "block", "12E² + 13E", "attention with 1 head"});
  int differences = 0;
  for (const auto& [width, heads] : {std::array{512, 8}, std::array{768, 12}, std::array{1024, 16}}) {
    const heed::Index attention =
        parameter_count(heed::MultiHeadAttention<float>({.embed_dim = width, .num_heads = heads}));
    const heed::Index one_head = parameter_count(heed::MultiHeadAttention<float>({.embed_dim = width, .num_heads = 1}));
    const heed::Index block = parameter_count(heed::EncoderLayer<float>({.embed_dim = width, .num_heads = heads}));
    const int of_attention = 4 * width * width + 4 * width, of_block = 12 * width * width + 13 * width;
    table.row({width, heads, attention, of_attention, block, of_block, one_head});
    differences += (attention != of_attention) + (one_head != of_attention) + (block != of_block);
  }
  return differences;
}

void measure(article::Report& report) {
  const article::Characters text(article::pride_and_prejudice(), report.pick(64, 32));
  report.text(
      "A model of two causal blocks, E = 64, learns to tell the next character of Pride and Prejudice. Without "
      "projections, queries, keys and values are columns of the tokens themselves; in a second variant the "
      "feed-forward layer is wider by as many parameters as that saves.");
  const std::vector<Variant> variants{{"1 head", 1},
                                      {"2 heads", 2},
                                      {"8 heads", 8},
                                      {"64 heads", 64},
                                      {"8 heads, no projections", 8, false},
                                      {"8 heads, no projections, wider", 8, false, kEqualFeedForward}};
  article::Table& table = report.table("held-out text", {"variant", "parameters", "loss (nats)", "accuracy"});
  std::map<std::string, Result> results;
  std::vector<examples::Curve> curves;
  for (const Variant& variant : variants) {
    if (report.quick() && (variant.num_heads == 2 || variant.num_heads == 64)) continue;
    const Result& result = results[variant.name] = train_variant(variant, text, report);
    table.row({variant.name, result.parameters, result.loss, result.accuracy});
    curves.push_back({variant.name, examples::group_means(result.losses, 20)});
  }
  report.curves("Training with and without projections", curves, "step", "loss");
  const Result &one = results["1 head"], &eight = results["8 heads"], &plain = results["8 heads, no projections"];
  const Result& wide = results["8 heads, no projections, wider"];

  const bool counted =
      report.expect("counts that differ from the formulas", count_parameters(report), article::between(0, 0));
  const bool several =
      report.expect("loss with one head, above that with eight", one.loss - eight.loss, article::at_least(0.01));
  const bool dropped =
      report.expect("accuracy lost without projections", eight.accuracy - plain.accuracy, article::at_least(0.005));
  const bool dropped_at_equal_size = report.expect("loss without projections at equal parameters, above that with them",
                                                   wide.loss - eight.loss, article::at_least(0.01));
  if (!report.quick()) {
    report.text("One head is too few; from two on, it matters little how many share the width, even 64 of one column.");
    const double two = results["2 heads"].loss, most = results["64 heads"].loss;
    report.expect("difference in loss between 2, 8 and 64 heads",
                  std::max({two, eight.loss, most}) - std::min({two, eight.loss, most}), article::at_most(0.06));
  }
  std::string figure = "accuracy " + article::format("%.3f", eight.accuracy) + " with projections, " +
                       article::format("%.3f", plain.accuracy) + " without, " + article::format("%.3f", wide.accuracy) +
                       " without at equal parameters; ";
  for (const Variant& variant : variants) {
    if (variant.projections && results.contains(variant.name)) {
      figure += variant.name + " " + article::format("%.3f", results[variant.name].accuracy) + ", ";
    }
  }
  figure.resize(figure.size() - 2);
  report.verdict(counted && several && dropped && dropped_at_equal_size, figure);
}

}  // namespace

int main(int argc, char** argv) {
  return article::run(argc, argv,
                      {.name = "projections_heads",
                       .claim = "Dropping the projections of queries, keys and values costs accuracy; the number of "
                                "heads changes the accuracy, but no parameter count."},
                      measure);
}
