// SPDX-License-Identifier: MIT
// Attention by itself does not know the order of its tokens; positions that are added to them tell it. The sinusoidal
// ones are bounded, and the encoding of p + k is a rotation of that of p, the same one for every p.

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include <heed/core/random.hpp>
#include <heed/nn/positional.hpp>
#include <heed/nn/rotary.hpp>

#include "common/claim.hpp"
#include "common/models.hpp"

namespace {

constexpr int kLength = 64, kWidth = 64;

// The largest difference between the outputs of permuted tokens and the permuted outputs, against the largest output.
double difference_under_permutation(article::Positions positions) {
  const article::Model model({.vocab_size = 50,
                              .classes = 8,
                              .length = kLength,
                              .embed_dim = kWidth,
                              .readout = article::Readout::EachToken,
                              .positions = positions});
  const heed::Philox random(1, 0);
  article::Batch plain{heed::Tensor<int, 2>(1, kLength), {}, {}}, permuted = plain;
  std::vector<int> order(kLength);
  for (int l = 0; l < kLength; ++l) {
    plain.ids(0, l) = static_cast<int>(50 * random.uniform(static_cast<std::uint64_t>(l)));
    order[static_cast<std::size_t>(l)] = (37 * l + 11) % kLength;  // 37 and 64 share no factor: a permutation
  }
  for (int l = 0; l < kLength; ++l) permuted.ids(0, l) = plain.ids(0, order[static_cast<std::size_t>(l)]);
  heed::Context context;
  const heed::Tensor<float, 3> y = model.encode(plain, context), z = model.encode(permuted, context);
  double difference = 0, largest = 0;
  for (int l = 0; l < kLength; ++l) {
    for (int i = 0; i < kWidth; ++i) {
      const float expected = y(0, order[static_cast<std::size_t>(l)], i);
      difference = std::max<double>(difference, std::abs(z(0, l, i) - expected));
      largest = std::max<double>(largest, std::abs(expected));
    }
  }
  return difference / largest;
}

// PE(position) as the layer adds it: to nothing.
std::vector<double> encoding(const heed::SinusoidalPositions<double>& layer, int position) {
  heed::Tensor<double, 3> x(1, 1, kWidth), y(1, 1, kWidth);
  heed::Context context;
  layer.forward(x, heed::Positions(position), y, context);
  return {y.data(), y.data() + kWidth};
}

// The largest element of PE(p + k) - R·PE(p), where R turns columns 2i and 2i + 1 by k·10000^(-2i/E), whatever p is.
double rotation_error(const heed::SinusoidalPositions<double>& layer, int p, int k) {
  const std::vector<double> from = encoding(layer, p), to = encoding(layer, p + k);
  double error = 0;
  for (std::size_t i = 0; i < kWidth; i += 2) {
    const double angle = k * std::pow(10000.0, -static_cast<double>(i) / kWidth);
    const double s = std::cos(angle) * from[i] + std::sin(angle) * from[i + 1];
    const double c = std::cos(angle) * from[i + 1] - std::sin(angle) * from[i];
    error = std::max({error, std::abs(s - to[i]), std::abs(c - to[i + 1])});
  }
  return error;
}

void measure(article::Report& report) {
  report.text(
      "The tokens of a sequence of 64 are put into another order. Without positions, a transformer of two blocks "
      "gives every token the output that it had before, at its new place: the order changes nothing.");
  article::Table& order = report.table("outputs of permuted tokens against permuted outputs",
                                       {"positions", "largest difference / largest output"});
  const double none = difference_under_permutation(article::Positions::None);
  const double sinusoidal = difference_under_permutation(article::Positions::Sinusoidal);
  const double learned = difference_under_permutation(article::Positions::Learned);
  order.row({"none", none}).row({"sinusoidal", sinusoidal}).row({"learned, at the start", learned});

  const heed::SinusoidalPositions<double> layer({.embed_dim = kWidth});
  report.text(
      "Sinusoidal positions: PE(p + k) is formed from PE(p) by one matrix that depends on k alone, a rotation of "
      "each pair of a sine and a cosine. So \"k tokens before\" is the same linear map everywhere.");
  article::Table& shifts =
      report.table("PE(p + k) against the rotation of PE(p), p = 0 ... 1000", {"k", "largest error"});
  double error = 0, bound = 0;
  for (const int k : {1, 2, 7, 64, 500, 5000}) {
    double of_shift = 0;
    for (int p = 0; p <= 1000; p += 8) of_shift = std::max(of_shift, rotation_error(layer, p, k));
    shifts.row({k, of_shift});
    error = std::max(error, of_shift);
  }
  for (int p = 0; p < 100000; p += 97) {
    for (const double value : encoding(layer, p)) bound = std::max(bound, std::abs(value));
  }
  report.table("bounds", {"positions", "largest |PE|"}).row({"0 ... 100000", bound});

  std::vector<examples::Curve> curves;
  const std::vector<double> at = encoding(layer, 500);
  const std::array<int, 4> columns{0, 8, 16, 32};
  for (const int i : columns) curves.push_back({"column " + std::to_string(i), {}});
  examples::Curve closeness{"PE(500) · PE(500 + k)", {}};
  for (int k = -100; k <= 100; ++k) {
    const std::vector<double> other = encoding(layer, 500 + k);
    double dot = 0;
    for (std::size_t i = 0; i < kWidth; ++i) dot += at[i] * other[i];
    closeness.points.push_back({static_cast<double>(k), dot / (kWidth / 2)});
    if (k < 0) continue;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      curves[c].points.push_back({static_cast<double>(k), encoding(layer, k)[static_cast<std::size_t>(columns[c])]});
    }
  }
  report.curves("Four columns of the encoding", curves, "position", "PE");
  report.curves("How alike the encodings of two positions are", {closeness}, "k", "cosine");

  const bool unordered = report.expect("difference without positions", none, article::at_most(1e-5));
  const bool ordered = report.expect("difference with sinusoidal positions", sinusoidal, article::at_least(0.05)) &&
                       report.expect("difference with learned positions", learned, article::at_least(0.05));
  const bool linear = report.expect("largest error of the rotation", error, article::at_most(1e-9));
  const bool bounded = report.expect("largest |PE|", bound, article::at_most(1));
  report.verdict(
      unordered && ordered && linear && bounded,
      article::format("without positions the outputs differ by %.1g, with them by %.2g; the rotation is exact to "
                      "%.1g",
                      {none, sinusoidal, error}));
}

}  // namespace

int main(int argc, char** argv) {
  return article::run(argc, argv,
                      {.name = "positions",
                       .claim = "Permuting the tokens permutes the outputs without positions, but not with them; "
                                "PE(p + k) is a linear map of PE(p), and bounded in [-1, 1]."},
                      measure);
}
