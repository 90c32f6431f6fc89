// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <heed/core/random.hpp>

namespace generate {

// The choice of the next token. In this order: the repetition penalty, the temperature, top-k, top-p, min-p, and a draw
// from what is left, in proportion to its probability.
struct SamplingOptions {
  double temperature = 0;  // logits are divided by it; 0 takes the likeliest token
  int top_k = 0;           // keeps the k likeliest tokens; 0: all
  double top_p = 1;        // keeps the likeliest tokens up to this sum of probabilities (Holtzman et al. 2020)
  double min_p = 0;        // keeps tokens at least this times as likely as the likeliest
  double repetition_penalty =
      1;  // logits of tokens that occurred are divided by it, or multiplied below 0 (Keskar 2019)
  std::uint64_t seed = 1;
};

struct Candidate {
  int id;
  double probability;
};

// Chooses tokens of one text.
class Sampler {
 public:
  // Texts with the same seed and other numbers `text` are drawn independently. Throws std::invalid_argument for options
  // out of range.
  explicit Sampler(const SamplingOptions& options, std::uint64_t text = 0);

  // The next token. `seen` are the tokens so far. Throws std::runtime_error for logits that are not finite.
  int next(std::span<const float> logits, std::span<const int> seen);
  // The tokens that may be drawn, the likeliest first; their probabilities add up to 1.
  std::vector<Candidate> candidates(std::span<const float> logits, std::span<const int> seen) const;

 private:
  SamplingOptions options_;
  heed::Philox random_;
  std::uint64_t draws_ = 0;
};

}  // namespace generate
