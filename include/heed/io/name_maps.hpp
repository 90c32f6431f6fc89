// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Name maps of common models, as Hugging Face saves them, for an Encoder or a Decoder and what a model has around it.
///
///     heed::load_parameters(model, "bert-base-uncased", heed::name_maps::bert());
///
/// The model lists its stack of layers under the name "", and the rest, as far as it has it, under these names:
///
///     tokens, positions, token_types, embedding_norm   embeddings (V, E), and the norm after them
///     patches, class_token                             a Linear of flattened patches, a vector (E)
///     relative_bias                                    a matrix of T5, (buckets, H)
///     head                                             the output layer
///
/// A tensor that the file has and the model lacks is an error that names it: add it to the map's `ignored`. `prefix`
/// begins all names in the file; files of a bare model have none. Files of torch.nn need no map: heed's layers have
/// their names.

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include <heed/io/name_map.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// Renamings of whole layers: {"layers.*.linear1", "h.*.mlp.c_fc"} is for weight and bias. A bias that the file lacks
/// is zero, since a bias of zeros computes the same as none.
inline void add_layers(NameMap& map, const std::string& prefix,
                       std::initializer_list<std::pair<const char*, const char*>> layers, bool transposed = false) {
  for (const auto& [ours, theirs] : layers) {
    map.rules.push_back({std::string(ours) + ".weight", {prefix + theirs + ".weight"}, transposed});
    map.rules.push_back({std::string(ours) + ".bias", {{prefix + theirs + ".bias", {.if_missing = 0}}}});
  }
}

/// The joined projection of queries, keys and values, from three tensors.
inline void add_projections(NameMap& map, const std::string& ours, const std::string& q, const std::string& k,
                            const std::string& v) {
  const RowSelection or_zeros{.if_missing = 0};
  map.rules.push_back({ours + ".in_proj_weight", {q + ".weight", k + ".weight", v + ".weight"}});
  map.rules.push_back(
      {ours + ".in_proj_bias", {{q + ".bias", or_zeros}, {k + ".bias", or_zeros}, {v + ".bias", or_zeros}}});
}
/// The same from `theirs`.q_proj, k_proj and v_proj.
inline void add_projections(NameMap& map, const std::string& ours, const std::string& theirs) {
  add_projections(map, ours, theirs + ".q_proj", theirs + ".k_proj", theirs + ".v_proj");
}
/// The same from one tensor in which each head has its query, key and value rows.
inline void add_head_projections(NameMap& map, const std::string& ours, const std::string& qkv, Index num_heads) {
  const auto rows = [&](Index part) { return FileRows(qkv + ".*", {.heads = num_heads, .parts = 3, .part = part}); };
  map.rules.push_back({ours + ".in_proj_*", {rows(0), rows(1), rows(2)}});
}
/// The parts of a layer that Whisper's encoder and decoder have in common.
inline void add_whisper_layers(NameMap& map, const std::string& layer) {
  add_projections(map, "layers.*.self_attn", layer + "self_attn");
  add_layers(map, layer,
             {{"layers.*.self_attn.out_proj", "self_attn.out_proj"},
              {"layers.*.linear1", "fc1"},
              {"layers.*.linear2", "fc2"},
              {"layers.*.norm1", "self_attn_layer_norm"}});
}

}  // namespace detail

/// Name maps of common models.
namespace name_maps {

/// BERT and models with its names: NormPlacement::Post, GELU.
inline NameMap bert(const std::string& prefix = "") {
  NameMap map{.ignored = {prefix + "embeddings.position_ids", prefix + "pooler.*", "cls.*"}};
  const std::string layer = prefix + "encoder.layer.*.";
  detail::add_projections(map, "layers.*.self_attn", layer + "attention.self.query", layer + "attention.self.key",
                          layer + "attention.self.value");
  detail::add_layers(map, layer,
                     {{"layers.*.self_attn.out_proj", "attention.output.dense"},
                      {"layers.*.norm1", "attention.output.LayerNorm"},
                      {"layers.*.linear1", "intermediate.dense"},
                      {"layers.*.linear2", "output.dense"},
                      {"layers.*.norm2", "output.LayerNorm"}});
  detail::add_layers(map, prefix,
                     {{"tokens", "embeddings.word_embeddings"},
                      {"positions", "embeddings.position_embeddings"},
                      {"token_types", "embeddings.token_type_embeddings"},
                      {"embedding_norm", "embeddings.LayerNorm"}});
  return map;
}

/// GPT-2, whose matrices are (in, out): NormPlacement::Pre, tanh GELU. The head is the table of tokens.
inline NameMap gpt2(const std::string& prefix = "") {
  NameMap map{.ignored = {prefix + "h.*.attn.bias", prefix + "h.*.attn.masked_bias", "lm_head.weight"}};
  map.rules.push_back({"layers.*.self_attn.in_proj_*", {prefix + "h.*.attn.c_attn.*"}, true});
  detail::add_layers(map, prefix,
                     {{"layers.*.self_attn.out_proj", "h.*.attn.c_proj"},
                      {"layers.*.linear1", "h.*.mlp.c_fc"},
                      {"layers.*.linear2", "h.*.mlp.c_proj"}},
                     true);
  detail::add_layers(map, prefix,
                     {{"layers.*.norm1", "h.*.ln_1"},
                      {"layers.*.norm2", "h.*.ln_2"},
                      {"norm", "ln_f"},
                      {"tokens", "wte"},
                      {"positions", "wpe"},
                      {"head", "wte"}});
  return map;
}

/// Llama, Mistral and Qwen2: NormPlacement::Pre, RMSNorm, a gate with SiLU, rotary half-splits. Qwen2 has biases of
/// queries, keys and values alone; with `bias`, the others become zeros. Where the file has no lm_head.weight, put the
/// rule {"head.weight", {"model.embed_tokens.weight"}} first.
inline NameMap llama(const std::string& prefix = "model.") {
  NameMap map{.ignored = {prefix + "layers.*.self_attn.rotary_emb.inv_freq"}};
  const std::string layer = prefix + "layers.*.";
  detail::add_projections(map, "layers.*.self_attn", layer + "self_attn");
  detail::add_layers(map, layer,
                     {{"layers.*.self_attn.out_proj", "self_attn.o_proj"},
                      {"layers.*.gate", "mlp.gate_proj"},
                      {"layers.*.linear1", "mlp.up_proj"},
                      {"layers.*.linear2", "mlp.down_proj"},
                      {"layers.*.norm1", "input_layernorm"},
                      {"layers.*.norm2", "post_attention_layernorm"}});
  detail::add_layers(map, prefix, {{"norm", "norm"}, {"tokens", "embed_tokens"}});
  detail::add_layers(map, "", {{"head", "lm_head"}});
  return map;
}

/// GGUF files of Llama and models like it, with the blocks of llama(). Their rows of queries and keys are in the order
/// of RotaryPairing::Interleaved. Files without output.weight share the table of tokens: call Embedding::project().
inline NameMap gguf_llama() {
  NameMap map;
  const std::string layer = "blk.*.";
  detail::add_projections(map, "layers.*.self_attn", layer + "attn_q", layer + "attn_k", layer + "attn_v");
  detail::add_layers(map, layer,
                     {{"layers.*.self_attn.out_proj", "attn_output"},
                      {"layers.*.gate", "ffn_gate"},
                      {"layers.*.linear1", "ffn_up"},
                      {"layers.*.linear2", "ffn_down"},
                      {"layers.*.norm1", "attn_norm"},
                      {"layers.*.norm2", "ffn_norm"}});
  detail::add_layers(map, "", {{"norm", "output_norm"}, {"tokens", "token_embd"}, {"head", "output"}});
  return map;
}
/// The same with the rows of queries and keys in the order of RotaryPairing::HalfSplit; of a model with these heads.
inline NameMap gguf_llama_half_split(Index num_heads, Index num_kv_heads, Index head_dim) {
  NameMap map;
  const auto rows = [&](const char* name, Index heads) {
    return FileRows("blk.*." + std::string(name) + ".weight", {.heads = heads, .parts = head_dim / 2});
  };
  map.rules = {{"layers.*.self_attn.in_proj_weight",
                {rows("attn_q", num_heads), rows("attn_k", num_kv_heads), "blk.*.attn_v.weight"}}};
  NameMap rest = gguf_llama();
  map.rules.insert(map.rules.end(), rest.rules.begin(), rest.rules.end());
  return map;
}

/// Phi-3: Llama with queries, keys and values in one tensor, and with gate and linear1 in one.
inline NameMap phi3(const std::string& prefix = "model.") {
  NameMap map;
  const std::string layer = prefix + "layers.*.";
  map.rules = {{"layers.*.self_attn.in_proj_*", {layer + "self_attn.qkv_proj.*"}},
               {"layers.*.gate.*", {{layer + "mlp.gate_up_proj.*", {.parts = 2, .part = 0}}}},
               {"layers.*.linear1.*", {{layer + "mlp.gate_up_proj.*", {.parts = 2, .part = 1}}}}};
  NameMap rest = llama(prefix);
  map.rules.insert(map.rules.end(), rest.rules.begin(), rest.rules.end());
  map.ignored = std::move(rest.ignored);
  return map;
}

/// GPT-NeoX and Pythia; num_heads of the model. Their blocks add both branches to x, unless the model's configuration
/// says use_parallel_residual = false; an EncoderLayer has the second form.
inline NameMap gpt_neox(Index num_heads, const std::string& prefix = "gpt_neox.") {
  NameMap map{.ignored = {prefix + "layers.*.attention.bias", prefix + "layers.*.attention.masked_bias",
                          prefix + "layers.*.attention.rotary_emb.inv_freq"}};
  detail::add_head_projections(map, "layers.*.self_attn", prefix + "layers.*.attention.query_key_value", num_heads);
  detail::add_layers(map, prefix,
                     {{"layers.*.self_attn.out_proj", "layers.*.attention.dense"},
                      {"layers.*.linear1", "layers.*.mlp.dense_h_to_4h"},
                      {"layers.*.linear2", "layers.*.mlp.dense_4h_to_h"},
                      {"layers.*.norm1", "layers.*.input_layernorm"},
                      {"layers.*.norm2", "layers.*.post_attention_layernorm"},
                      {"norm", "final_layer_norm"},
                      {"tokens", "embed_in"}});
  detail::add_layers(map, "", {{"head", "embed_out"}});
  return map;
}

/// BLOOM; num_heads of the model: NormPlacement::Pre, tanh GELU, ALiBi. The head is the table of tokens.
inline NameMap bloom(Index num_heads, const std::string& prefix = "") {
  NameMap map{.ignored = {"lm_head.weight"}};
  detail::add_head_projections(map, "layers.*.self_attn", prefix + "h.*.self_attention.query_key_value", num_heads);
  detail::add_layers(map, prefix,
                     {{"layers.*.self_attn.out_proj", "h.*.self_attention.dense"},
                      {"layers.*.linear1", "h.*.mlp.dense_h_to_4h"},
                      {"layers.*.linear2", "h.*.mlp.dense_4h_to_h"},
                      {"layers.*.norm1", "h.*.input_layernorm"},
                      {"layers.*.norm2", "h.*.post_attention_layernorm"},
                      {"norm", "ln_f"},
                      {"tokens", "word_embeddings"},
                      {"embedding_norm", "word_embeddings_layernorm"},
                      {"head", "word_embeddings"}});
  return map;
}

/// Whisper's encoder, whose keys have no bias: NormPlacement::Pre, GELU. Its two convolutions keep their names.
inline NameMap whisper_encoder(const std::string& prefix = "model.") {
  NameMap map{.ignored = {prefix + "decoder.*", "proj_out.weight"}};
  const std::string encoder = prefix + "encoder.", layer = encoder + "layers.*.";
  detail::add_whisper_layers(map, layer);
  detail::add_layers(map, layer, {{"layers.*.norm2", "final_layer_norm"}});
  detail::add_layers(
      map, encoder, {{"norm", "layer_norm"}, {"positions", "embed_positions"}, {"conv1", "conv1"}, {"conv2", "conv2"}});
  return map;
}

/// Whisper's decoder, for a Decoder. The head is the table of tokens.
inline NameMap whisper_decoder(const std::string& prefix = "model.") {
  NameMap map{.ignored = {prefix + "encoder.*", "proj_out.weight"}};
  const std::string decoder = prefix + "decoder.", layer = decoder + "layers.*.";
  detail::add_whisper_layers(map, layer);
  detail::add_projections(map, "layers.*.multihead_attn", layer + "encoder_attn");
  detail::add_layers(map, layer,
                     {{"layers.*.multihead_attn.out_proj", "encoder_attn.out_proj"},
                      {"layers.*.norm2", "encoder_attn_layer_norm"},
                      {"layers.*.norm3", "final_layer_norm"}});
  detail::add_layers(
      map, decoder,
      {{"norm", "layer_norm"}, {"positions", "embed_positions"}, {"tokens", "embed_tokens"}, {"head", "embed_tokens"}});
  return map;
}

/// ViT: NormPlacement::Pre, GELU. A patch's numbers are in the order (channels, rows, columns).
inline NameMap vit(const std::string& prefix = "vit.") {
  NameMap map{.ignored = {prefix + "pooler.*"}};
  const std::string layer = prefix + "encoder.layer.*.";
  detail::add_projections(map, "layers.*.self_attn", layer + "attention.attention.query",
                          layer + "attention.attention.key", layer + "attention.attention.value");
  detail::add_layers(map, layer,
                     {{"layers.*.self_attn.out_proj", "attention.output.dense"},
                      {"layers.*.linear1", "intermediate.dense"},
                      {"layers.*.linear2", "output.dense"},
                      {"layers.*.norm1", "layernorm_before"},
                      {"layers.*.norm2", "layernorm_after"}});
  detail::add_layers(map, prefix, {{"norm", "layernorm"}, {"patches", "embeddings.patch_embeddings.projection"}});
  map.rules.push_back({"positions.weight", {prefix + "embeddings.position_embeddings"}});
  map.rules.push_back({"class_token", {prefix + "embeddings.cls_token"}});
  detail::add_layers(map, "", {{"head", "classifier"}});
  return map;
}

/// T5's encoder: NormPlacement::Pre, RMSNorm, no scale of the scores; with a gate those of T5 1.1 and Flan.
inline NameMap t5_encoder(bool gated = false) {
  NameMap map{.ignored = {"decoder.*", "lm_head.weight", "encoder.embed_tokens.weight"}};
  const std::string layer = "encoder.block.*.layer.", attention = layer + "0.SelfAttention.";
  detail::add_projections(map, "layers.*.self_attn", attention + "q", attention + "k", attention + "v");
  detail::add_layers(map, layer,
                     {{"layers.*.self_attn.out_proj", "0.SelfAttention.o"},
                      {"layers.*.gate", "1.DenseReluDense.wi_0"},
                      {"layers.*.linear1", gated ? "1.DenseReluDense.wi_1" : "1.DenseReluDense.wi"},
                      {"layers.*.linear2", "1.DenseReluDense.wo"},
                      {"layers.*.norm1", "0.layer_norm"},
                      {"layers.*.norm2", "1.layer_norm"}});
  detail::add_layers(map, "", {{"norm", "encoder.final_layer_norm"}, {"tokens", "shared"}});
  map.rules.push_back({"relative_bias", {"encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"}});
  return map;
}

}  // namespace name_maps

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
