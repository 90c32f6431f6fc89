// SPDX-License-Identifier: MIT
// all-MiniLM-L6-v2 end to end: token ids in, one embedding a text out, as examples/sentence_search runs it.

#include "sentence_search/minilm.hpp"

#include <cstddef>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <heed/io/safetensors.hpp>

#include "machine.hpp"
#include "sentence_search/text.hpp"
#include "workload.hpp"

namespace heed_bench {

namespace {

using Lengths = std::vector<int>;

class MiniLm final : public Workload {
 public:
  explicit MiniLm(Lengths lengths) : lengths_(std::move(lengths)), model_(sentence_search::default_model_directory()) {
    // Any ids cost the same. The first thousand of the vocabulary are its special and unused tokens.
    constexpr int begin_of_text = 101, end_of_text = 102, first_word = 1000, words = 29000;
    const heed::Philox random(42);
    std::uint64_t drawn = 0;
    for (const int length : lengths_) {
      std::vector<int>& ids = texts_.emplace_back();
      for (int i = 0; i < length; ++i) ids.push_back(first_word + static_cast<int>(words * random.uniform(drawn++)));
      ids.front() = begin_of_text;
      ids.back() = end_of_text;
    }
  }

  void run(heed::Context& context) override {
    embeddings_ = model_.embed(texts_, context);
    touch(embeddings_.data());
  }

  void save(const std::string& path) const override {
    std::vector<int> ids;
    for (const std::vector<int>& text : texts_) ids.insert(ids.end(), text.begin(), text.end());
    const heed::TensorView<const int, 1> all_ids(ids.data(), {heed::Index(ids.size())});
    const heed::TensorView<const int, 1> lengths(lengths_.data(), {heed::Index(lengths_.size())});
    const std::string model = (sentence_search::default_model_directory() / "model.safetensors").string();
    heed::save_safetensors(path, {{"ids", all_ids}, {"lengths", lengths}, {"out", embeddings_}},
                           {{"kind", "minilm"}, {"heads", "12"}, {"model", model}});
  }

 private:
  Lengths lengths_;
  sentence_search::MiniLm model_;
  std::vector<std::vector<int>> texts_;
  sentence_search::Embeddings embeddings_;
};

NamedWorkload minilm(const std::string& name, const std::string& shape, const Lengths& lengths) {
  constexpr double E = sentence_search::MiniLm::kWidth, F = 4 * E;
  NamedWorkload w;
  w.name = name;
  w.shape = shape;
  w.flops = 0;
  for (const int L : lengths) w.flops += sentence_search::MiniLm::kLayers * L * E * (8 * E + 4 * L + 4 * F);
  w.make = [lengths] { return std::make_unique<MiniLm>(lengths); };
  return w;
}

}  // namespace

std::vector<NamedWorkload> minilm_workloads() {
  Lengths mixed(32);
  for (std::size_t i = 0; i < mixed.size(); ++i) mixed[i] = 8 * (1 + static_cast<int>(i * 13 % mixed.size()));
  return {
      minilm("MiniLM-1x16", "1 text of 16 tokens", {16}),
      minilm("MiniLM-1x128", "1 text of 128 tokens", {128}),
      minilm("MiniLM-32x128", "32 texts of 128 tokens", Lengths(32, 128)),
      minilm("MiniLM-mixed", "32 texts of 8-256 tokens", mixed),
  };
}

}  // namespace heed_bench
