// SPDX-License-Identifier: MIT
// Loads files with the names and shapes of published models through their maps. Every number differs, so a row in the
// wrong place shows.
#include <deque>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/io/name_maps.hpp>
#include <heed/nn/embedding.hpp>
#include <heed/nn/positional.hpp>
#include <heed/nn/transformer.hpp>

#include "common/temporary_directory.hpp"

namespace {

using heed::Index;
using heed::SafeTensors;
namespace name_maps = heed::name_maps;

constexpr Index E = 8, H = 2, F = 12, V = 5;

/// A stack with everything that a map may name.
template <class Stack, class Options>
struct Model : heed::Module<Model<Stack, Options>> {
  Stack stack;
  std::optional<heed::Embedding<float>> tokens, token_types;
  std::optional<heed::LearnedPositions<float>> positions;
  std::optional<heed::Norm<float>> embedding_norm;
  std::optional<heed::Linear<float>> patches, head;
  heed::Parameter<float> class_token, relative_bias;

  explicit Model(const Options& options) : stack(options) {}
  static void members(auto&& f) {
    f("", &Model::stack);
    f("tokens", &Model::tokens);
    f("token_types", &Model::token_types);
    f("positions", &Model::positions);
    f("embedding_norm", &Model::embedding_norm);
    f("patches", &Model::patches);
    f("class_token", &Model::class_token);
    f("relative_bias", &Model::relative_bias);
    f("head", &Model::head);
  }
};

using EncoderModel = Model<heed::Encoder<float>, heed::EncoderOptions>;
using DecoderModel = Model<heed::Decoder<float>, heed::DecoderOptions>;

/// A file of float tensors with names and shapes; the numbers count through all of them.
class ModelFile {
 public:
  void add(const std::string& name, const std::vector<Index>& shape) {
    Index size = 1;
    for (const Index e : shape) size *= e;
    auto& numbers = memory_.emplace_back(static_cast<std::size_t>(size));
    for (float& x : numbers) x = static_cast<float>(next_++);
    if (shape.size() == 1) tensors_.emplace_back(name, heed::TensorView<const float, 1>(numbers.data(), {shape[0]}));
    if (shape.size() == 2)
      tensors_.emplace_back(name, heed::TensorView<const float, 2>(numbers.data(), {shape[0], shape[1]}));
    if (shape.size() == 3)
      tensors_.emplace_back(name, heed::TensorView<const float, 3>(numbers.data(), {shape[0], shape[1], shape[2]}));
    if (shape.size() == 4) {
      tensors_.emplace_back(name,
                            heed::TensorView<const float, 4>(numbers.data(), {shape[0], shape[1], shape[2], shape[3]}));
    }
  }
  void linear(const std::string& name, Index out, Index in, bool bias = true) {
    add(name + ".weight", {out, in});
    if (bias) add(name + ".bias", {out});
  }
  void norm(const std::string& name, bool bias = true) {
    add(name + ".weight", {E});
    if (bias) add(name + ".bias", {E});
  }
  SafeTensors open() const {
    const std::string path = directory_.path("model.safetensors");
    heed::save_safetensors(path, tensors_);
    return SafeTensors::open(path);
  }

 private:
  std::deque<std::vector<float>> memory_;
  std::vector<heed::NamedTensor> tensors_;
  int next_ = 1;
  const heed_test::TemporaryDirectory directory_;
};

/// The number of a file's matrix.
float number(const SafeTensors& file, const std::string& name, Index row, Index column) {
  return file.read<float, 2>(name)(row, column);
}

TEST(NameMaps, Bert) {
  ModelFile file;
  for (const char* layer : {"encoder.layer.0.", "encoder.layer.1."}) {
    const std::string name = layer;
    for (const char* part : {"query", "key", "value"}) file.linear(name + "attention.self." + part, E, E);
    file.linear(name + "attention.output.dense", E, E);
    file.norm(name + "attention.output.LayerNorm");
    file.linear(name + "intermediate.dense", F, E);
    file.linear(name + "output.dense", E, F);
    file.norm(name + "output.LayerNorm");
  }
  file.add("embeddings.word_embeddings.weight", {V, E});
  file.add("embeddings.position_embeddings.weight", {7, E});
  file.add("embeddings.token_type_embeddings.weight", {2, E});
  file.norm("embeddings.LayerNorm");
  file.linear("pooler.dense", E, E);
  EncoderModel model({.num_layers = 2, .layer = {.embed_dim = E, .num_heads = H, .ffn_dim = F}});
  model.tokens.emplace(heed::EmbeddingOptions{.vocab_size = V, .embed_dim = E});
  model.token_types.emplace(heed::EmbeddingOptions{.vocab_size = 2, .embed_dim = E});
  model.positions.emplace(heed::LearnedPositionsOptions{.length = 7, .embed_dim = E});
  model.embedding_norm.emplace(heed::NormOptions{.embed_dim = E});
  const SafeTensors opened = file.open();
  load_parameters(model, opened, name_maps::bert());
  const auto& attention = model.stack.layers[1].self_attn;
  EXPECT_EQ(attention.in_proj_weight.matrix()(E + 3, 5),
            number(opened, "encoder.layer.1.attention.self.key.weight", 3, 5));
}

TEST(NameMaps, Gpt2) {
  ModelFile file;
  file.add("h.0.attn.c_attn.weight", {E, 3 * E});
  file.add("h.0.attn.c_attn.bias", {3 * E});
  file.add("h.0.attn.c_proj.weight", {E, E});
  file.add("h.0.attn.c_proj.bias", {E});
  file.add("h.0.mlp.c_fc.weight", {E, F});
  file.add("h.0.mlp.c_fc.bias", {F});
  file.add("h.0.mlp.c_proj.weight", {F, E});
  file.add("h.0.mlp.c_proj.bias", {E});
  file.add("h.0.attn.bias", {1, 1, 7, 7});
  for (const char* norm : {"h.0.ln_1", "h.0.ln_2", "ln_f"}) file.norm(norm);
  file.add("wte.weight", {V, E});
  file.add("wpe.weight", {7, E});
  EncoderModel model(
      {.num_layers = 1,
       .layer = {.embed_dim = E, .num_heads = H, .ffn_dim = F, .norm_placement = heed::NormPlacement::Pre},
       .final_norm = true});
  model.tokens.emplace(heed::EmbeddingOptions{.vocab_size = V, .embed_dim = E});
  model.positions.emplace(heed::LearnedPositionsOptions{.length = 7, .embed_dim = E});
  model.head.emplace(E, V, false);
  const SafeTensors opened = file.open();
  load_parameters(model, opened, name_maps::gpt2());
  const auto& layer = model.stack.layers[0];
  EXPECT_EQ(layer.self_attn.in_proj_weight.matrix()(2 * E + 1, 3),
            number(opened, "h.0.attn.c_attn.weight", 3, 2 * E + 1));
  EXPECT_EQ(layer.feed_forward.linear2.weight.matrix()(1, 9), number(opened, "h.0.mlp.c_proj.weight", 9, 1));
  EXPECT_EQ(model.head->weight.matrix()(4, 2), number(opened, "wte.weight", 4, 2));
}

/// Llama's blocks with one key head, and biases of its projections as in Qwen2.
heed::EncoderOptions llama_options(bool bias) {
  return {.num_layers = 2,
          .layer = {.embed_dim = E,
                    .num_heads = H,
                    .ffn_dim = F,
                    .norm_placement = heed::NormPlacement::Pre,
                    .activation = heed::Activation::SiLU,
                    .gated = true,
                    .bias = bias,
                    .num_kv_heads = 1,
                    .norm = heed::NormKind::RMS},
          .final_norm = true};
}
void add_llama_rest(ModelFile& file) {
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    const std::string name = layer;
    file.linear(name + "self_attn.o_proj", E, E, false);
    file.linear(name + "mlp.down_proj", E, F, false);
    file.norm(name + "input_layernorm", false);
    file.norm(name + "post_attention_layernorm", false);
  }
  file.norm("model.norm", false);
  file.add("model.embed_tokens.weight", {V, E});
  file.add("lm_head.weight", {V, E});
}

TEST(NameMaps, LlamaAndQwen2) {
  for (const bool qwen : {false, true}) {
    ModelFile file;
    for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
      const std::string name = layer;
      file.linear(name + "self_attn.q_proj", E, E, qwen);
      file.linear(name + "self_attn.k_proj", E / H, E, qwen);
      file.linear(name + "self_attn.v_proj", E / H, E, qwen);
      file.linear(name + "mlp.gate_proj", F, E, false);
      file.linear(name + "mlp.up_proj", F, E, false);
    }
    add_llama_rest(file);
    EncoderModel model(llama_options(qwen));
    model.tokens.emplace(heed::EmbeddingOptions{.vocab_size = V, .embed_dim = E});
    model.head.emplace(E, V, false);
    const SafeTensors opened = file.open();
    load_parameters(model, opened, name_maps::llama());
    const auto& layer = model.stack.layers[1];
    EXPECT_EQ(layer.self_attn.in_proj_weight.matrix()(E + 4, 7),
              number(opened, "model.layers.1.self_attn.v_proj.weight", 0, 7));
    EXPECT_EQ(layer.feed_forward.gate->weight.matrix()(3, 1),
              number(opened, "model.layers.1.mlp.gate_proj.weight", 3, 1));
    if (qwen) {
      EXPECT_EQ(layer.self_attn.in_proj_bias.value()(E),
                (opened.read<float, 1>("model.layers.1.self_attn.k_proj.bias")(0)));
      EXPECT_EQ(layer.feed_forward.linear2.bias.value()(1), 0);
    }
  }
}

TEST(NameMaps, Phi3) {
  ModelFile file;
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    file.linear(layer + std::string("self_attn.qkv_proj"), 2 * E, E, false);
    file.linear(layer + std::string("mlp.gate_up_proj"), 2 * F, E, false);
  }
  add_llama_rest(file);
  EncoderModel model(llama_options(false));
  model.tokens.emplace(heed::EmbeddingOptions{.vocab_size = V, .embed_dim = E});
  model.head.emplace(E, V, false);
  const SafeTensors opened = file.open();
  load_parameters(model, opened, name_maps::phi3());
  const auto& layer = model.stack.layers[1];
  EXPECT_EQ(layer.self_attn.in_proj_weight.matrix()(E + 4, 7),
            number(opened, "model.layers.1.self_attn.qkv_proj.weight", E + 4, 7));
  EXPECT_EQ(layer.feed_forward.gate->weight.matrix()(3, 1),
            number(opened, "model.layers.1.mlp.gate_up_proj.weight", 3, 1));
  EXPECT_EQ(layer.feed_forward.linear1.weight.matrix()(3, 1),
            number(opened, "model.layers.1.mlp.gate_up_proj.weight", F + 3, 1));
}

TEST(NameMaps, NeoxAndBloom) {
  for (const bool bloom : {false, true}) {
    ModelFile file;
    const std::string layer = bloom ? "h.0." : "gpt_neox.layers.0.";
    const std::string attention = layer + (bloom ? "self_attention." : "attention.");
    file.linear(attention + "query_key_value", 3 * E, E);
    file.linear(attention + "dense", E, E);
    file.linear(layer + "mlp.dense_h_to_4h", F, E);
    file.linear(layer + "mlp.dense_4h_to_h", E, F);
    file.norm(layer + "input_layernorm");
    file.norm(layer + "post_attention_layernorm");
    file.norm(bloom ? "ln_f" : "gpt_neox.final_layer_norm");
    file.add(bloom ? "word_embeddings.weight" : "gpt_neox.embed_in.weight", {V, E});
    if (bloom) file.norm("word_embeddings_layernorm");
    if (!bloom) file.add("embed_out.weight", {V, E});
    EncoderModel model(
        {.num_layers = 1,
         .layer = {.embed_dim = E, .num_heads = H, .ffn_dim = F, .norm_placement = heed::NormPlacement::Pre},
         .final_norm = true});
    model.tokens.emplace(heed::EmbeddingOptions{.vocab_size = V, .embed_dim = E});
    if (bloom) model.embedding_norm.emplace(heed::NormOptions{.embed_dim = E});
    model.head.emplace(E, V, false);
    const SafeTensors opened = file.open();
    load_parameters(model, opened, bloom ? name_maps::bloom(H) : name_maps::gpt_neox(H));
    // Rows of the file are (H, 3, D); those of the layer (3, H, D).
    const auto& projection = model.stack.layers[0].self_attn.in_proj_weight;
    const Index D = E / H;
    for (Index part = 0; part < 3; ++part) {
      for (Index h = 0; h < H; ++h) {
        EXPECT_EQ(projection.matrix()(part * E + h * D + 1, 2),
                  number(opened, attention + "query_key_value.weight", (h * 3 + part) * D + 1, 2));
      }
    }
  }
}

// F03
TEST(NameMaps, F03_Whisper) {
  ModelFile file;
  const auto attention = [&](const std::string& name) {
    file.linear(name + ".q_proj", E, E);
    file.linear(name + ".k_proj", E, E, false);
    file.linear(name + ".v_proj", E, E);
    file.linear(name + ".out_proj", E, E);
    file.norm(name + "_layer_norm");
  };
  for (const std::string stack : {"model.encoder.", "model.decoder."}) {
    const std::string layer = stack + "layers.0.";
    attention(layer + "self_attn");
    if (stack == "model.decoder.") attention(layer + "encoder_attn");
    file.linear(layer + "fc1", F, E);
    file.linear(layer + "fc2", E, F);
    file.norm(layer + "final_layer_norm");
    file.norm(stack + "layer_norm");
    file.add(stack + "embed_positions.weight", {7, E});
  }
  file.add("model.decoder.embed_tokens.weight", {V, E});
  const SafeTensors opened = file.open();

  EncoderModel encoder(
      {.num_layers = 1,
       .layer = {.embed_dim = E, .num_heads = H, .ffn_dim = F, .norm_placement = heed::NormPlacement::Pre},
       .final_norm = true});
  encoder.positions.emplace(heed::LearnedPositionsOptions{.length = 7, .embed_dim = E});
  load_parameters(encoder, opened, name_maps::whisper_encoder());
  const auto bias = encoder.stack.layers[0].self_attn.in_proj_bias.value();
  EXPECT_EQ(bias(E - 1), (opened.read<float, 1>("model.encoder.layers.0.self_attn.q_proj.bias")(E - 1)));
  for (Index i = E; i < 2 * E; ++i) EXPECT_EQ(bias(i), 0);
  EXPECT_EQ(bias(2 * E), (opened.read<float, 1>("model.encoder.layers.0.self_attn.v_proj.bias")(0)));

  DecoderModel decoder(
      {.num_layers = 1,
       .layer = {.embed_dim = E, .num_heads = H, .ffn_dim = F, .norm_placement = heed::NormPlacement::Pre},
       .final_norm = true});
  decoder.positions.emplace(heed::LearnedPositionsOptions{.length = 7, .embed_dim = E});
  decoder.tokens.emplace(heed::EmbeddingOptions{.vocab_size = V, .embed_dim = E});
  decoder.head.emplace(E, V, false);
  load_parameters(decoder, opened, name_maps::whisper_decoder());
  EXPECT_EQ(decoder.stack.layers[0].multihead_attn.in_proj_weight.matrix()(E, 1),
            number(opened, "model.decoder.layers.0.encoder_attn.k_proj.weight", 0, 1));
  EXPECT_EQ(decoder.head->weight.matrix()(2, 2), number(opened, "model.decoder.embed_tokens.weight", 2, 2));
}

TEST(NameMaps, VisionTransformer) {
  ModelFile file;
  const std::string layer = "vit.encoder.layer.0.";
  for (const char* part : {"query", "key", "value"}) file.linear(layer + "attention.attention." + part, E, E);
  file.linear(layer + "attention.output.dense", E, E);
  file.linear(layer + "intermediate.dense", F, E);
  file.linear(layer + "output.dense", E, F);
  for (const std::string& norm : {layer + "layernorm_before", layer + "layernorm_after", std::string("vit.layernorm")})
    file.norm(norm);
  file.add("vit.embeddings.cls_token", {1, 1, E});
  file.add("vit.embeddings.position_embeddings", {1, 5, E});
  file.add("vit.embeddings.patch_embeddings.projection.weight", {E, 3, 2, 2});
  file.add("vit.embeddings.patch_embeddings.projection.bias", {E});
  file.linear("classifier", 4, E);
  EncoderModel model(
      {.num_layers = 1,
       .layer = {.embed_dim = E, .num_heads = H, .ffn_dim = F, .norm_placement = heed::NormPlacement::Pre},
       .final_norm = true});
  model.patches.emplace(12, E);
  model.positions.emplace(heed::LearnedPositionsOptions{.length = 5, .embed_dim = E});
  model.class_token = heed::Parameter<float>(E);
  model.head.emplace(E, 4);
  const SafeTensors opened = file.open();
  load_parameters(model, opened, name_maps::vit());
  EXPECT_EQ(model.patches->weight.matrix()(3, 7),
            (opened.read<float, 4>("vit.embeddings.patch_embeddings.projection.weight")(3, 1, 1, 1)));
  EXPECT_EQ(model.class_token.value()(3), (opened.read<float, 3>("vit.embeddings.cls_token")(0, 0, 3)));
}

TEST(NameMaps, T5) {
  for (const bool gated : {false, true}) {
    ModelFile file;
    const std::string layer = "encoder.block.0.layer.";
    for (const char* part : {"q", "k", "v", "o"}) file.linear(layer + "0.SelfAttention." + part, E, E, false);
    file.add(layer + "0.SelfAttention.relative_attention_bias.weight", {32, H});
    if (gated) {
      file.linear(layer + "1.DenseReluDense.wi_0", F, E, false);
      file.linear(layer + "1.DenseReluDense.wi_1", F, E, false);
    } else {
      file.linear(layer + "1.DenseReluDense.wi", F, E, false);
    }
    file.linear(layer + "1.DenseReluDense.wo", E, F, false);
    for (const std::string& norm :
         {layer + "0.layer_norm", layer + "1.layer_norm", std::string("encoder.final_layer_norm")})
      file.norm(norm, false);
    file.add("shared.weight", {V, E});
    heed::EncoderOptions options = llama_options(false);
    options.num_layers = 1;
    options.layer.num_kv_heads = 0;
    options.layer.gated = gated;
    EncoderModel model(options);
    model.tokens.emplace(heed::EmbeddingOptions{.vocab_size = V, .embed_dim = E});
    model.relative_bias = heed::Parameter<float>(32, H);
    load_parameters(model, file.open(), name_maps::t5_encoder(gated));
    EXPECT_GT(model.relative_bias.matrix()(31, 1), 0);
  }
}

}  // namespace
