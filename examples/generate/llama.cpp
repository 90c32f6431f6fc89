// SPDX-License-Identifier: MIT
#include "llama.hpp"

#include <algorithm>
#include <stdexcept>

#include <heed/io/name_map.hpp>
#include <heed/io/name_maps.hpp>
#include <heed/mask/basic.hpp>

namespace generate {

using heed::Context;
using heed::Index;
using heed::TensorView;

LlamaConfig LlamaConfig::of(const heed::Gguf& file) {
  const auto refuse = [](const std::string& what) {
    throw std::runtime_error("the file holds a model with " + what + ", which this program does not run");
  };
  const std::string architecture = file.metadata<std::string>("general.architecture");
  if (architecture != "llama") refuse("the architecture \"" + architecture + "\" (not \"llama\")");
  const auto number = [&](const std::string& key) { return file.metadata<Index>("llama." + key); };
  const auto number_or = [&](const std::string& key, Index otherwise) {
    return file.metadata<Index>("llama." + key, otherwise);
  };

  const Index width = number("embedding_length"), heads = number("attention.head_count");
  if (heads < 1 || width % heads != 0) refuse("heads that do not divide its width");
  if (number_or("expert_count", 0) > 0) refuse("experts");
  const Index head_dim = number_or("attention.key_length", width / heads);
  if (head_dim * heads != width || number_or("attention.value_length", head_dim) != head_dim) {
    refuse("heads whose widths do not add up to that of the model");
  }
  if (file.contains("blk.0.attn_q.bias")) refuse("biases");
  if (file.contains("rope_freqs.weight")) refuse("rotary frequencies stored as a tensor");
  heed::RotaryScaling scaling;
  const std::string kind = file.metadata<std::string>("llama.rope.scaling.type", "none");
  if (kind == "linear") {
    scaling = {.kind = heed::RotaryScalingKind::Linear, .factor = file.metadata<double>("llama.rope.scaling.factor")};
  } else if (kind != "none") {
    refuse("rotary positions scaled by \"" + kind + "\"");
  }

  LlamaConfig config;
  config.context_length = number("context_length");
  config.has_head = file.contains("output.weight");
  const std::vector<Index>& table = file.shape("token_embd.weight");
  if (table.empty()) refuse("no table of tokens");
  config.vocab_size = number_or("vocab_size", table[0]);
  config.blocks = {.num_layers = number("block_count"),
                   .layer = {.embed_dim = width,
                             .num_heads = heads,
                             .ffn_dim = number("feed_forward_length"),
                             .norm_placement = heed::NormPlacement::Pre,
                             .activation = heed::Activation::SiLU,
                             .gated = true,
                             .eps = file.metadata<double>("llama.attention.layer_norm_rms_epsilon"),
                             .bias = false,
                             .num_kv_heads = number_or("attention.head_count_kv", heads),
                             .rotary = {.rotary_dim = number_or("rope.dimension_count", head_dim),
                                        .theta = file.metadata<double>("llama.rope.freq_base", 10000.0),
                                        .pairing = heed::RotaryPairing::Interleaved,
                                        .scaling = scaling},
                             .norm = heed::NormKind::RMS},
                   .final_norm = true};
  return config;
}

Llama::Llama(const LlamaConfig& config)
    : tokens({.vocab_size = config.vocab_size, .embed_dim = config.blocks.layer.embed_dim}),
      layers(config.blocks),
      config_(config) {
  if (config.has_head) head.emplace(config.blocks.layer.embed_dim, config.vocab_size, false);
}

Llama::Llama(const heed::Gguf& file, Weights weights) : Llama(LlamaConfig::of(file)) {
  heed::load_parameters(*this, file, heed::name_maps::gguf_llama(), {.keep_blocks = weights == Weights::Quantized});
  if (weights == Weights::BFloat16) quantize(heed::WeightFormat::BFloat16);
  // Weights of float are laid out for products.
  pack({.release = true});
  if (!head) tokens.pack_head({.release = true});
}

Llama Llama::unpacked(const heed::Gguf& file) {
  Llama model(LlamaConfig::of(file));
  heed::load_parameters(model, file, heed::name_maps::gguf_llama());
  return model;
}

void Llama::step(TensorView<const int, 2> ids, const heed::KvStep<float>& kv, TensorView<float, 2> logits,
                 Context& context) const {
  heed::Workspace& workspace = context.workspace();
  const heed::Workspace::Frame frame(workspace);
  const Index batch = ids.extent(0), length = ids.extent(1), width = config_.blocks.layer.embed_dim;
  const TensorView<float, 3> x = workspace.tensor<float, 3>({batch, length, width});
  const TensorView<float, 3> last = workspace.tensor<float, 3>({batch, 1, width});
  tokens.forward(ids, x, context);
  // The step's lengths are those before the call.
  layers.forward(x, heed::Causal{}, x, kv, context);
  for (Index b = 0; b < batch; ++b) {
    const Index row = std::max<Index>(0, kv.first_row(b, length) + kv.count(b, length) - 1);
    std::copy_n(&x(b, row, 0), width, &last(b, 0, 0));
  }
  const TensorView<float, 3> to(logits.data(), {batch, 1, config_.vocab_size});
  if (head)
    head->forward(last, to, context);
  else
    tokens.project(last, to, context);
}

heed::Tensor<float, 3> Llama::hidden(TensorView<const int, 2> ids, Context& context) const {
  return layers(tokens(ids, context), heed::Causal{}, context);
}

}  // namespace generate
