// SPDX-License-Identifier: MIT
// Why a mask is not a large negative number: what is large depends on the scores and their type, and in a row without
// visible keys none is.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <heed/attention/attention.hpp>
#include <heed/mask/basic.hpp>

#include "common/claim.hpp"

namespace {

// The weights of a query over 8 keys, softmax in the type T, where a number is added to the scores of hidden keys.
template <class T>
std::vector<T> softmax_with_filler(const std::vector<double>& scores, int visible, double filler) {
  std::vector<T> s;
  for (std::size_t k = 0; k < scores.size(); ++k) {
    s.push_back(static_cast<T>(scores[k]) + (static_cast<int>(k) < visible ? T(0) : static_cast<T>(filler)));
  }
  const T largest = *std::max_element(s.begin(), s.end());
  float sum = 0;
  for (T& x : s) sum += static_cast<float>(x = static_cast<T>(std::exp(static_cast<float>(x - largest))));
  for (T& x : s) x = static_cast<T>(static_cast<float>(x) / sum);
  return s;
}

// The weight of the hidden keys: 0 is right.
template <class T>
double hidden_weight(const std::vector<double>& scores, int visible, double filler) {
  const std::vector<T> weights = softmax_with_filler<T>(scores, visible, filler);
  double sum = 0;
  for (std::size_t k = static_cast<std::size_t>(visible); k < weights.size(); ++k) {
    sum += static_cast<double>(weights[k]);
  }
  return sum;
}

// The same with heed's mask.
template <class T>
double hidden_weight_with_mask(const std::vector<double>& scores, int visible) {
  const auto L = static_cast<heed::Index>(scores.size());
  heed::Tensor<T, 4> q(1, 1, 1, 1), k(1, 1, L, 1), v(1, 1, L, 1);
  q(0, 0, 0, 0) = T(1);
  for (heed::Index i = 0; i < L; ++i) {
    k(0, 0, i, 0) = static_cast<T>(scores[static_cast<std::size_t>(i)]);
    v(0, 0, i, 0) = static_cast<T>(i < visible ? 0 : 1);  // so that the output is the weight of hidden keys
  }
  const std::vector<int> lengths{visible};
  return static_cast<double>(heed::attention(q, k, v, heed::Padding(lengths))(0, 0, 0, 0));
}

// The weight of hidden keys in the cases of a row of the table, in float and half.
template <class Weight>
std::vector<double> in_all_cases(Weight&& weight) {
  const std::vector<double> ordinary{0.3, -1.2, 0.8, 2.1, 0.5, 1.7, -0.4, 0.9};
  const std::vector<double> low{-12000, -12001, -12000.5, 3, 1, 2, 0, 1};
  std::vector<double> found;
  const auto add = [&](auto type) {
    for (const auto& [scores, visible] : {std::pair{&ordinary, 3}, {&low, 3}, {&ordinary, 0}}) {
      found.push_back(weight(type, *scores, visible));
    }
  };
  add(float());
  add(Eigen::half());
  return found;
}

void measure(article::Report& report) {
  report.text(
      "A number is added to the scores of hidden keys, in place of a mask; what is shown is the weight that they get, "
      "all "
      "in all, in a row of 8 keys. Right is 0. Ordinary scores lie around 0; low means that those of the visible keys "
      "lie "
      "at -12000, as a bias like ALiBi's makes them over long distances; in a row of padding nothing is visible.");
  article::Table& table =
      report.table("weight of hidden keys", {"added to hidden scores", "float, ordinary", "float, low",
                                             "float, padding", "half, ordinary", "half, low", "half, padding"});
  double worst = 0;
  bool has_nan = false;
  const auto add_row = [&](const std::string& name, const std::vector<double>& found) {
    std::vector<article::Cell> row{name};
    for (const double x : found) row.push_back(std::isnan(x) ? article::Cell("NaN") : article::Cell(x));
    table.row(row);
  };
  for (const double filler : {-1e4, -65504.0, -1e9, -std::numeric_limits<double>::infinity()}) {
    const std::vector<double> found = in_all_cases([&](auto type, const std::vector<double>& scores, int visible) {
      return hidden_weight<decltype(type)>(scores, visible, filler);
    });
    add_row(std::isinf(filler) ? "-inf" : article::format("%g", filler), found);
    for (const double x : found) {
      if (std::isnan(x))
        has_nan = true;
      else
        worst = std::max(worst, x);
    }
  }
  const std::vector<double> with_mask = in_all_cases([](auto type, const std::vector<double>& scores, int visible) {
    return hidden_weight_with_mask<decltype(type)>(scores, visible);
  });
  add_row("heed::Padding", with_mask);

  std::vector<examples::Curve> curves;
  for (const double level : {0.0, -100.0, -12000.0}) {
    const std::vector<double> scores{level, level - 1, level - 0.5, 3, 1, 2, 0, 1};
    curves.push_back({article::format("visible scores near %g", level), {}});
    for (double filler = 1; filler < 1e5; filler *= 1.25) {
      curves.back().points.push_back({filler, hidden_weight<float>(scores, 3, -filler)});
    }
  }
  report.curves("How large is large enough?", curves, "subtracted from hidden scores", "weight of hidden keys",
                {.x = examples::Scale::Log10});

  const double masked = *std::max_element(with_mask.begin(), with_mask.end());
  report.expect("largest weight of a hidden key, by a number", worst, article::at_least(0.9));
  report.expect("whether some rows are not numbers", has_nan, article::at_least(1));
  report.expect("largest weight under heed's mask", masked, article::between(0, 0));
  report.verdict(
      worst > 0.9 && has_nan && masked == 0,
      article::format("in place of a mask, numbers from -1e4 on give hidden keys up to %.2g of the weight, and "
                      "-inf rows of NaN; under a mask they get %g in every case",
                      {worst, masked}));
}

}  // namespace

int main(int argc, char** argv) {
  return article::run(
      argc, argv,
      {.name = "mask_fillers",
       .claim = "A large negative number is no mask: it leaks where scores are low or nothing is visible "
                "and overflows in half; -inf makes NaN."},
      measure);
}
