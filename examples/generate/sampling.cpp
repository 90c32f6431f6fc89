// SPDX-License-Identifier: MIT
#include "sampling.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>

#include <heed/nn/init.hpp>

namespace generate {

namespace {

void require(bool holds, const std::string& option, const std::string& range) {
  if (!holds) throw std::invalid_argument(option + " must be " + range);
}

void require_finite(std::span<const float> logits) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      throw std::runtime_error("the model's logit of token " + std::to_string(i) + " is " + std::to_string(logits[i]));
    }
  }
}

}  // namespace

Sampler::Sampler(const SamplingOptions& options, std::uint64_t text)
    : options_(options), random_(options.seed, heed::init::stream("sampling") + text) {
  require(options.temperature >= 0, "the temperature", "0 or more");
  require(options.top_k >= 0, "top-k", "0 or more");
  require(options.top_p > 0 && options.top_p <= 1, "top-p", "above 0 and at most 1");
  require(options.min_p >= 0 && options.min_p <= 1, "min-p", "from 0 to 1");
  require(options.repetition_penalty > 0, "the repetition penalty", "above 0");
}

std::vector<Candidate> Sampler::candidates(std::span<const float> logits, std::span<const int> seen) const {
  require_finite(logits);
  std::vector<Candidate> all;
  all.reserve(logits.size());
  for (const float logit : logits) all.push_back({static_cast<int>(all.size()), double{logit}});
  if (options_.repetition_penalty != 1) {
    std::vector<bool> penalized(logits.size(), false);
    for (const int id : seen) {
      const auto at = static_cast<std::size_t>(id);
      if (penalized.at(at)) continue;
      penalized[at] = true;
      double& logit = all[at].probability;
      logit = logit > 0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
    }
  }
  const auto likelier = [](const Candidate& a, const Candidate& b) {
    return a.probability != b.probability ? a.probability > b.probability : a.id < b.id;
  };
  std::size_t kept = all.size();
  if (options_.temperature == 0) kept = 1;
  if (options_.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(options_.top_k));
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(kept), all.end(), likelier);
  all.resize(kept);
  if (options_.temperature == 0) return {{all[0].id, 1}};

  const double largest = all[0].probability;
  double sum = 0;
  for (Candidate& c : all) sum += c.probability = std::exp((c.probability - largest) / options_.temperature);
  double before = 0;
  std::size_t end = 0;
  const double least = options_.min_p * all[0].probability;
  // The likeliest token always stays.
  while (end < all.size() && (end == 0 || (before < options_.top_p * sum && all[end].probability >= least))) {
    before += all[end++].probability;
  }
  all.resize(end);
  for (Candidate& c : all) c.probability /= before;
  return all;
}

int Sampler::next(std::span<const float> logits, std::span<const int> seen) {
  if (options_.temperature == 0 && options_.repetition_penalty == 1) {
    require_finite(logits);
    return static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  const std::vector<Candidate> choices = candidates(logits, seen);
  if (choices.size() == 1) return choices[0].id;
  double rest = random_.uniform(draws_++);
  for (const Candidate& c : choices) {
    rest -= c.probability;
    if (rest < 0) return c.id;
  }
  return choices.back().id;
}

}  // namespace generate
