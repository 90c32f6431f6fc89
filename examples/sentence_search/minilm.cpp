// SPDX-License-Identifier: MIT
#include "minilm.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <heed/core/error.hpp>
#include <heed/io/name_map.hpp>
#include <heed/io/safetensors.hpp>
#include <heed/mask/basic.hpp>

namespace sentence_search {

namespace {

constexpr int kVocabulary = 30522;
constexpr int kPositions = 512;

// Enough rows for the matrix products to run at full speed, few enough for the hidden layer to stay in the cache.
constexpr std::size_t kBatchTokens = 1024;

constexpr char kTokenTypes[] = "embeddings.token_type_embeddings.weight";

const heed::NameMap& names() {
  static const heed::NameMap map{
      .rules = {{"words.*", {"embeddings.word_embeddings.*"}},
                {"positions.*", {"embeddings.position_embeddings.*"}},
                {"norm.*", {"embeddings.LayerNorm.*"}},
                {"layers.*.self_attn.in_proj_*",
                 {"encoder.layer.*.attention.self.query.*", "encoder.layer.*.attention.self.key.*",
                  "encoder.layer.*.attention.self.value.*"}},
                {"layers.*.self_attn.out_proj.*", {"encoder.layer.*.attention.output.dense.*"}},
                {"layers.*.norm1.*", {"encoder.layer.*.attention.output.LayerNorm.*"}},
                {"layers.*.linear1.*", {"encoder.layer.*.intermediate.dense.*"}},
                {"layers.*.linear2.*", {"encoder.layer.*.output.dense.*"}},
                {"layers.*.norm2.*", {"encoder.layer.*.output.LayerNorm.*"}}},
      .ignored = {kTokenTypes, "embeddings.position_ids", "pooler.*"}};
  return map;
}

// The mean of rows [first, last) of x, scaled to norm 1.
void pool(heed::TensorView<const float, 2> x, int first, int last, float* embedding) {
  double mean[MiniLm::kWidth] = {};
  for (int row = first; row < last; ++row) {
    for (int e = 0; e < MiniLm::kWidth; ++e) mean[e] += static_cast<double>(x(row, e));
  }
  double squares = 0;
  for (double& value : mean) {
    value /= last - first;
    squares += value * value;
  }
  const double norm = std::max(std::sqrt(squares), 1e-12);
  for (int e = 0; e < MiniLm::kWidth; ++e) embedding[e] = static_cast<float>(mean[e] / norm);
}

}  // namespace

MiniLm::MiniLm(const std::filesystem::path& model_directory)
    : words_({.vocab_size = kVocabulary, .embed_dim = kWidth}),
      positions_({.length = kPositions, .embed_dim = kWidth}),
      norm_({.embed_dim = kWidth, .eps = 1e-12}),
      encoder_({.num_layers = kLayers,
                .layer = {.embed_dim = kWidth,
                          .num_heads = kHeads,
                          .ffn_dim = 4 * kWidth,
                          .norm_placement = heed::NormPlacement::Post,
                          .activation = heed::Activation::GELU,
                          .eps = 1e-12}}) {
  const auto file = heed::SafeTensors::open((model_directory / "model.safetensors").string());
  heed::load_parameters(*this, file, names());

  // BERT adds to each token the vector of its segment. There is but one here, so it goes into every position.
  const auto types = file.read<float, 2>(kTokenTypes);
  HEED_CHECK(types.extent(1) == kWidth && types.extent(0) > 0, FormatError, "MiniLm: file ", file.file(), ": ",
             kTokenTypes, " has shape ", types.extents(), " but needs (2, ", kWidth, ")");
  const auto positions = positions_.weight.mutable_matrix();
  for (int position = 0; position < kPositions; ++position) {
    for (int e = 0; e < kWidth; ++e) positions(position, e) += types(0, e);
  }

  encoder_.pack({.release = true});
}

Embeddings MiniLm::embed(std::span<const std::vector<int>> texts, heed::Context& context,
                         const std::function<void(std::size_t)>& on_done) const {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].empty()) {
      throw heed::ValueError("MiniLm::embed: text " + std::to_string(i) +
                             " has no token ids; an empty text has two, [CLS] and [SEP]");
    }
  }
  // Long texts first: the first batch then is about the largest, and later ones find its memory.
  std::vector<std::size_t> order(texts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return texts[a].size() > texts[b].size(); });

  Embeddings embeddings(static_cast<Eigen::Index>(texts.size()), kWidth);
  std::vector<int> ids, positions, offsets;
  for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    ids.clear();
    positions.clear();
    offsets.assign(1, 0);
    for (; end < order.size(); ++end) {
      const std::vector<int>& text = texts[order[end]];
      if (end > begin && ids.size() + text.size() > kBatchTokens) break;
      ids.insert(ids.end(), text.begin(), text.end());
      for (std::size_t position = 0; position < text.size(); ++position)
        positions.push_back(static_cast<int>(position));
      offsets.push_back(static_cast<int>(ids.size()));
    }

    const heed::Workspace::Frame frame(context.workspace());
    const auto length = static_cast<heed::Index>(ids.size());
    const auto states = context.workspace().tensor<float, 3>({1, length, kWidth});
    forward({ids.data(), {1, length}}, positions, offsets, states, context);
    for (std::size_t i = begin; i < end; ++i) {
      float* embedding = embeddings.row(static_cast<Eigen::Index>(order[i])).data();
      pool(states[0], offsets[i - begin], offsets[i - begin + 1], embedding);
    }
    if (on_done) on_done(ids.size());
  }
  return embeddings;
}

void MiniLm::forward(heed::TensorView<const int, 2> ids, heed::IntSpan positions, heed::IntSpan offsets,
                     heed::TensorView<float, 3> y, heed::Context& context) const {
  const heed::Workspace::Frame frame(context.workspace());
  const auto x = context.workspace().tensor<float, 3>(y.extents());
  {
    const heed::Context::Scope scope(context, "words");
    words_.forward(ids, x, context);
  }
  {
    const heed::Context::Scope scope(context, "positions");
    positions_.forward(x, heed::Positions::at(positions), x, context);
  }
  {
    const heed::Context::Scope scope(context, embeddings_name());
    norm_.forward(x, x, context);
  }
  encoder_.forward(x, heed::DocumentMask(offsets), y, context);
}

}  // namespace sentence_search
