// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include <heed/core/context.hpp>
#include <heed/core/tensor.hpp>
#include <heed/io/gguf.hpp>
#include <heed/nn/embedding.hpp>
#include <heed/nn/kv_cache.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/transformer.hpp>

namespace generate {

// A model of Llama's kind: pre-norm blocks with RMSNorm, grouped heads, rotary positions and SwiGLU.
struct LlamaConfig {
  heed::Index vocab_size = 0;
  heed::Index context_length = 0;  // tokens that the model was trained on
  bool has_head = false;           // an output matrix of its own; else the table of tokens serves
  heed::EncoderOptions blocks{};

  // From the metadata of a file. Honoured: general.architecture (llama), and of llama.*: block_count, context_length,
  // embedding_length, feed_forward_length, attention.head_count, attention.head_count_kv, attention.key_length,
  // attention.layer_norm_rms_epsilon, rope.dimension_count, rope.freq_base, rope.scaling.type (none, linear) and
  // rope.scaling.factor, vocab_size. Throws std::runtime_error for another architecture, experts, biases, heads of
  // values of another width, other kinds of scaling, and rotary frequencies stored as a tensor.
  static LlamaConfig of(const heed::Gguf& file);
};

// The form in which weights are held.
enum class Weights {
  Float,      // 4 bytes
  BFloat16,   // 2 bytes
  Quantized,  // as in the file
};

class Llama : public heed::Module<Llama> {
 public:
  // Loads the weights. Throws std::runtime_error and heed::FormatError for a file that is no such model.
  Llama(const heed::Gguf& file, Weights weights);
  // The weights as numbers, to be saved or compared; slow.
  static Llama unpacked(const heed::Gguf& file);

  heed::Embedding<float> tokens;
  heed::Encoder<float> layers;
  std::optional<heed::Linear<float>> head;

  static void members(auto&& f) {
    f("tokens", &Llama::tokens);
    f("", &Llama::layers);
    f("head", &Llama::head);
  }
  const LlamaConfig& config() const { return config_; }
  heed::KvShape kv_shape() const { return layers.kv_shape(); }

  // logits (B, V) of what follows the last token of each sample: ids (B, L) go on after those in the cache. A sample to
  // which the step adds nothing has no meaningful row.
  void step(heed::TensorView<const int, 2> ids, const heed::KvStep<float>& kv, heed::TensorView<float, 2> logits,
            heed::Context& context) const;
  // hidden (B, L, E) after all blocks, without a cache.
  heed::Tensor<float, 3> hidden(heed::TensorView<const int, 2> ids, heed::Context& context) const;

 private:
  explicit Llama(const LlamaConfig& config);
  LlamaConfig config_;
};

}  // namespace generate
