// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include <heed/core/context.hpp>
#include <heed/core/tensor.hpp>
#include <heed/nn/embedding.hpp>
#include <heed/nn/kv_cache.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/transformer.hpp>

namespace train_char_lm {

struct CharLmOptions {
  heed::Index alphabet;         // V, the number of characters
  heed::Index embed_dim = 128;  // E
  heed::Index num_heads = 4;
  heed::Index num_layers = 3;
};

// A small GPT over characters: logits (B, L, V) of the next one at each place, from ids (B, L). Pre-norm blocks under a
// causal mask, rotary positions, GELU.
class CharLm {
 public:
  struct Cache {
    heed::Embedding<float>::Cache embedding;
    heed::Encoder<float>::Cache blocks;
    heed::Linear<float>::Cache head;
    heed::Tensor<float, 3> embedded, encoded, d_encoded, d_embedded;
  };

  explicit CharLm(const CharLmOptions& options);

  const CharLmOptions& options() const { return options_; }
  template <class F>
  void visit(std::string_view, F&& f) {
    embedding_.visit("embedding", f);
    blocks_.visit("blocks", f);
    head_.visit("head", f);
  }
  template <class F>
  void visit(std::string_view, F&& f) const {
    embedding_.visit("embedding", f);
    blocks_.visit("blocks", f);
    head_.visit("head", f);
  }
  void initialize(std::uint64_t seed);

  void forward(heed::TensorView<const int, 2> ids, heed::TensorView<float, 3> logits, Cache& cache,
               heed::Context& context) const;
  // logits (B, L, V) of ids (B, L) that follow those in the cache, which then holds them too.
  void forward(heed::TensorView<const int, 2> ids, heed::TensorView<float, 3> logits, heed::AnyKvCache<float>& kv,
               heed::Context& context) const;
  // The extents of a KvCache for the model.
  heed::KvShape kv_shape() const { return blocks_.kv_shape(); }
  // Adds to the gradients of the parameters.
  void backward(heed::TensorView<const float, 3> dlogits, Cache& cache, heed::Context& context);

 private:
  CharLmOptions options_;
  heed::Embedding<float> embedding_;
  heed::Encoder<float> blocks_;
  heed::Linear<float> head_;
};

struct GenerateOptions {
  heed::Index count = 400;   // characters to write
  heed::Index window = 128;  // how many of the last ones each character sees
  double temperature = 0.8;  // logits are divided by it; 0 takes the likeliest character
  std::uint64_t seed = 1;
};

// Writes on after `prompt`, which is not empty, one id at a time: put(id).
void generate(const CharLm& model, std::vector<int> prompt, const GenerateOptions& options, heed::Context& context,
              const std::function<void(int)>& put);

}  // namespace train_char_lm
