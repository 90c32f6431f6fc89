// SPDX-License-Identifier: MIT
// SmolLM2-135M-Instruct, as examples/generate runs it: a prompt in one call, and one token after a text.

#include <cstddef>
#include <filesystem>
#include <list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <heed/io/gguf.hpp>
#include <heed/io/name_map.hpp>
#include <heed/io/name_maps.hpp>
#include <heed/nn/kv_cache.hpp>

#include "common/files.hpp"
#include "generate/llama.hpp"
#include "machine.hpp"
#include "workload.hpp"

namespace heed_bench {

namespace {

using generate::Llama;
using generate::Weights;
using heed::Index;

constexpr Index kVocabulary = 49152;

std::string model_file() {
  return (examples::cache_directory() / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf").string();
}

/// `count` new tokens after `past` ones. Each call begins at the same place of the text.
class SmolLm2 final : public Workload {
 public:
  SmolLm2(Weights weights, Index past, Index count)
      : weights_(weights),
        model_(heed::Gguf::open(model_file()), weights),
        kv_(model_, {.capacity = past + count}),
        past_(random_ids(past, 1)),
        ids_(random_ids(count, 2)),
        logits_(1, kVocabulary) {
    heed::Context context;
    if (past > 0) model_.step(past_.view(), kv_, logits_.view(), context);
  }

  void run(heed::Context& context) override {
    model_.step(ids_.view(), kv_, logits_.view(), context);
    kv_.rewind(ids_.size());
    touch(logits_.data());
  }

  void save(const std::string& path) const override {
    heed::Metadata metadata{
        {"kind", "llama_step"}, {"heads", "9"}, {"kv_heads", "3"}, {"theta", "100000"}, {"model", model_file()}};
    std::vector<heed::NamedTensor> tensors{
        {"past", past_.view()[0]}, {"ids", ids_.view()[0]}, {"out", logits_.view()[0]}};
    if (weights_ == Weights::Quantized) {
      // llama.cpp rounds activations to 8 bits.
      metadata["tolerance"] = "0.1";
      heed::save_safetensors(path, tensors, metadata);
      return;
    }
    metadata["weights"] = weights_ == Weights::BFloat16 ? "bfloat16" : "float";
    if (weights_ == Weights::BFloat16) metadata["tolerance"] = "0.05";
    // The weights as numbers, which the model that runs has not.
    const heed::Gguf file = heed::Gguf::open(model_file());
    Llama numbers = Llama::unpacked(file);
    save_with_parameters(path, tensors, numbers, metadata);
  }

 private:
  /// Any ids cost the same; the first ones are control tokens.
  static heed::Tensor<int, 2> random_ids(Index count, std::uint64_t stream) {
    const heed::Philox random(42, stream);
    heed::Tensor<int, 2> ids(1, count);
    for (Index i = 0; i < count; ++i) {
      ids(0, i) = 100 + static_cast<int>(49000 * random.uniform(static_cast<std::uint64_t>(i)));
    }
    return ids;
  }

  Weights weights_;
  Llama model_;
  heed::KvCache<float> kv_;
  heed::Tensor<int, 2> past_, ids_;
  heed::Tensor<float, 2> logits_;
};

NamedWorkload smollm2(const std::string& form, Weights weights, Index past, Index count) {
  constexpr double parameters = 134.5e6, layers = 30, width = 576;
  const double tokens = static_cast<double>(count), keys = static_cast<double>(past) + (tokens + 1) / 2;
  NamedWorkload w;
  w.name = "SmolLM2-" + form + (past > 0 ? "-decode-" : "-prefill-") + std::to_string(past > 0 ? past : count);
  w.shape = past > 0 ? "1 token after " + std::to_string(past) : std::to_string(count) + " tokens";
  // The head is for the last token alone.
  w.flops =
      2 * (parameters - kVocabulary * width) * tokens + 2 * kVocabulary * width + 4 * layers * width * tokens * keys;
  if (past > 0) w.bytes = weights == Weights::Quantized ? 96.5e6 : weights == Weights::BFloat16 ? 269e6 : 538e6;
  w.make = [=] { return std::make_unique<SmolLm2>(weights, past, count); };
  return w;
}

}  // namespace

std::vector<NamedWorkload> smollm2_workloads() {
  std::vector<NamedWorkload> all;
  for (const auto& [form, weights] : {std::pair<const char*, Weights>{"q", Weights::Quantized},
                                      {"bf16", Weights::BFloat16},
                                      {"f32", Weights::Float}}) {
    for (const Index count : {16, 128, 512}) all.push_back(smollm2(form, weights, 0, count));
    for (const Index past : {16, 512, 2048}) all.push_back(smollm2(form, weights, past, 1));
  }
  return all;
}

}  // namespace heed_bench
