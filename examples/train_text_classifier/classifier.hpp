// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include <heed/core/context.hpp>
#include <heed/core/tensor.hpp>
#include <heed/nn/embedding.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/positional.hpp>
#include <heed/nn/transformer.hpp>
#include <heed/train/monitor.hpp>

#include "passages.hpp"

namespace train_text_classifier {

struct ClassifierOptions {
  heed::Index vocab_size;      // V
  heed::Index length;          // L, the most words in a passage
  heed::Index classes;         // C
  heed::Index embed_dim = 64;  // E
  heed::Index num_heads = 4;
  heed::Index num_layers = 2;
};

// logits (B, 1, C) of passages (B, L): word and position embeddings, pre-norm encoder blocks, the mean over the words,
// a linear layer.
class Classifier {
 public:
  struct Cache {
    heed::Embedding<float>::Cache embedding;
    heed::LearnedPositions<float>::Cache positions;
    heed::Encoder<float>::Cache blocks;
    heed::Linear<float>::Cache head;
    heed::Tensor<float, 3> embedded, encoded, pooled, d_pooled, d_encoded, d_embedded;
  };

  explicit Classifier(const ClassifierOptions& options);

  const ClassifierOptions& options() const { return options_; }
  template <class F>
  void visit(std::string_view, F&& f) {
    embedding_.visit("embedding", f);
    positions_.visit("positions", f);
    blocks_.visit("blocks", f);
    head_.visit("head", f);
  }
  void initialize(std::uint64_t seed);

  void forward(heed::TensorView<const int, 2> ids, heed::TensorView<float, 3> logits, Cache& cache,
               heed::Context& context) const;
  // Adds to the gradients of the parameters.
  void backward(heed::TensorView<const float, 3> dlogits, Cache& cache, heed::Context& context);

 private:
  ClassifierOptions options_;
  heed::Embedding<float> embedding_;
  heed::LearnedPositions<float> positions_;
  heed::Encoder<float> blocks_;
  heed::Linear<float> head_;
};

struct TrainOptions {
  int steps = 300, warmup = 20;
  int batch = 18;               // passages in a step
  double learning_rate = 3e-3;  // the largest; it falls to a hundredth of it
  double weight_decay = 0.05;
  double clip = 1;
  std::uint64_t seed = 1;
};

// Trains a model from its start; returns the loss of each step. after_step(loss) is called after each.
std::vector<double> train(Classifier& model, const Passages& passages, const TrainOptions& options,
                          heed::TrainingTimer& timer, heed::Context& context,
                          const std::function<void(double)>& after_step);

// How often a held-out passage of text i was taken for one of text j, (C, C), and the mean loss.
struct Evaluation {
  heed::Tensor<int, 2> confusion;
  double loss = 0;
  double accuracy = 0;
};
Evaluation evaluate(const Classifier& model, const Passages& passages, heed::Context& context);

}  // namespace train_text_classifier
