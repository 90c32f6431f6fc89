// SPDX-License-Identifier: MIT
// Small models to train, with everything that the claims change as an option. Compiled once, in models.cpp: a program
// that includes this compiles in seconds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <heed/core/context.hpp>
#include <heed/core/tensor.hpp>
#include <heed/nn/parameter.hpp>
#include <heed/train/parameter_list.hpp>

namespace article {

// Sequences of tokens and what is to be said about them.
struct Batch {
  heed::Tensor<int, 2> ids;      // (B, L); padding must be a token too
  std::vector<int> lengths;      // (B) real tokens of each sequence, or empty: all of them
  heed::Tensor<int, 2> targets;  // (B, 1) classes, or (B, L) for Readout::EachToken; kIgnored does not count
};
inline constexpr int kIgnored = -100;

enum class Body { Transformer, Lstm };
enum class NormPlace { Pre, Post };
enum class Positions { None, Sinusoidal, Learned };
enum class Init { Xavier, Normal, Orthogonal };  // of the weight matrices in the body and the head
// The input of the head: the mean over the tokens, the first token, the ends (in an LSTM the state of each direction at
// its own end), or each token for itself.
enum class Readout { Mean, First, Ends, EachToken };

struct ModelOptions {
  heed::Index vocab_size;      // V
  heed::Index classes;         // C
  heed::Index length = 256;    // the most tokens, for learned positions
  heed::Index embed_dim = 64;  // E
  heed::Index num_heads = 4;   // H
  heed::Index num_layers = 2;
  heed::Index ffn_dim = 0;  // F; 0 means 4·E
  Body body = Body::Transformer;
  Readout readout = Readout::Mean;
  bool causal = false;        // of an LSTM: one direction instead of two
  bool mask_padding = true;   // false: attention, or the LSTM, takes the padding for text
  bool pool_padding = false;  // true: Readout::Mean counts the padding in, and Ends ends behind it

  NormPlace norm = NormPlace::Pre;  // with Pre there is a norm before the head
  Positions positions = Positions::Sinusoidal;
  double position_scale = 1;      // of what is added, against the embedding
  double embedding_std = 0.1;     // of the embeddings at the start
  bool projections = true;        // false: queries, keys and values are the columns of x itself
  std::optional<double> scale{};  // of the scores; 1/√Dk where not given
  double dropout = 0;             // of attention weights
  Init init = Init::Xavier;
  double init_std = 0.02;  // of Init::Normal, and the gain of Init::Orthogonal
  std::uint64_t seed = 1;
};

// logits (B, 1 or L, C) = head(readout(body(embedding(ids) + positions))).
// The body is a stack of transformer blocks ("blocks.0.self_attn" is what an observer is shown) or an LSTM.
class Model {
 public:
  explicit Model(const ModelOptions& options);
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  const ModelOptions& options() const;
  // Changes what the options say about masks and what the head reads; the parameters stay.
  void set_masks(bool causal, bool mask_padding, bool pool_padding);

  template <class F>
  void visit(std::string_view prefix, F&& f) {
    parameters().visit(prefix, f);
  }
  const heed::ParameterList<float>& parameters() const;
  heed::Index parameter_count() const { return parameters().element_count(); }

  heed::Tensor<float, 3> logits(const Batch& batch, heed::Context& context) const;
  // (B, L, E), the output of the body, of its last norm where there is one.
  heed::Tensor<float, 3> encode(const Batch& batch, heed::Context& context) const;
  // The mean cross entropy, in nats.
  double loss(const Batch& batch, heed::Context& context) const;
  // The same, and adds to the gradients. The divisor of the mean is the number of targets that count, where not given:
  // parts of a larger batch give that of the whole.
  double loss_and_gradients(const Batch& batch, heed::Context& context, std::optional<heed::Index> divisor = {});
  // The share of targets that are the largest logit.
  double accuracy(const Batch& batch, heed::Context& context) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

struct TrainOptions {
  int steps = 300;
  int warmup = 20;
  double learning_rate = 3e-3;  // the largest; it falls along a cosine to a hundredth of it
  double weight_decay = 0.01;
  double clip = 1;  // the largest norm of the gradients; 0 does not clip
};

// Trains with AdamW on sample(step); returns the loss of each step, those after the first one that is not finite too.
// after_step(step, loss) is called after each, where given.
std::vector<double> train(Model& model, const std::function<Batch(int step)>& sample, const TrainOptions& options,
                          heed::Context& context, const std::function<void(int, double)>& after_step = {});

// The mean over the last part of the losses, 0 to 1 of them.
double tail_mean(const std::vector<double>& losses, double part = 0.1);

}  // namespace article
