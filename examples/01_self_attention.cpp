// SPDX-License-Identifier: MIT
// Self-attention on one sentence, without a mask, with a causal mask, and with padding. Prints the attention weights.
#include <cstdio>
#include <string>
#include <vector>

#include <heed/heed.hpp>

using Eigen::MatrixXf;

// Prints a weights matrix (Lq, Lk): row q is the attention of query q to each key.
void print(const char* title, const std::vector<std::string>& words, const MatrixXf& weights) {
  std::printf("\n%s\n%8s", title, "");
  for (const auto& word : words) std::printf("%8s", word.c_str());
  for (Eigen::Index q = 0; q < weights.rows(); ++q) {
    std::printf("\n%8s", words[static_cast<std::size_t>(q)].c_str());
    for (Eigen::Index k = 0; k < weights.cols(); ++k) std::printf("%8.2f", static_cast<double>(weights(q, k)));
  }
  std::printf("\n");
}

int main() {
  const std::vector<std::string> words{"the", "cat", "sat", "on", "the", "mat"};
  const MatrixXf x = MatrixXf::Random(6, 16);  // in place of six word embeddings of width E = 16

  // Each word asks a question (Q), offers a key to be found by (K), and a value to be read (V).
  const MatrixXf w_q = MatrixXf::Random(16, 8), w_k = MatrixXf::Random(16, 8), w_v = MatrixXf::Random(16, 4);
  const MatrixXf q = x * w_q, k = x * w_k, v = x * w_v;

  // out = softmax(q·kᵀ / √8) · v; plain Eigen in, plain Eigen out.
  const auto [out, weights] = heed::attention_with_weights(q, k, v);
  print("every word sees every word", words, weights);

  // A language model may not look ahead.
  print("causal", words, heed::attention_with_weights(q, k, v, heed::Causal{}).weights);

  // In a batch, the last two words may be padding: only the first 4 are real. Masks combine with & | and !.
  const std::vector<int> lengths{4};
  print("causal, 4 real words", words,
        heed::attention_with_weights(q, k, v, heed::Causal{} & heed::Padding(lengths)).weights);

  std::printf("\noutput: %d words of width %d\n", static_cast<int>(out.rows()), static_cast<int>(out.cols()));
}
