// SPDX-License-Identifier: MIT
#include "char_lm.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include <heed/core/random.hpp>
#include <heed/mask/basic.hpp>
#include <heed/nn/init.hpp>

#include "../common/tensors.hpp"

namespace train_char_lm {

using heed::Context;
using heed::Index;
using heed::TensorView;

namespace {

heed::EncoderOptions block_options(const CharLmOptions& options) {
  return {.num_layers = options.num_layers,
          .layer = {.embed_dim = options.embed_dim,
                    .num_heads = options.num_heads,
                    .norm_placement = heed::NormPlacement::Pre,
                    .activation = heed::Activation::GELU,
                    .rotary = {}},
          .final_norm = true};
}

// The id whose share of the probability softmax(logits/temperature) the point, in [0, 1), falls into.
int choose(TensorView<const float, 1> logits, double temperature, double point) {
  const float* begin = logits.data();
  const float* largest = std::max_element(begin, begin + logits.extent(0));
  if (temperature <= 0) return static_cast<int>(largest - begin);
  std::vector<double> weights;
  double total = 0;
  for (Index i = 0; i < logits.extent(0); ++i) {
    weights.push_back(std::exp(static_cast<double>(begin[i] - *largest) / temperature));
    total += weights.back();
  }
  double rest = point * total;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    rest -= weights[i];
    if (rest < 0) return static_cast<int>(i);
  }
  return static_cast<int>(largest - begin);
}

}  // namespace

CharLm::CharLm(const CharLmOptions& options)
    : options_(options),
      embedding_({.vocab_size = options.alphabet, .embed_dim = options.embed_dim}),
      blocks_(block_options(options)),
      head_({.in_features = options.embed_dim, .out_features = options.alphabet}) {}

void CharLm::initialize(std::uint64_t seed) {
  heed::Random random(seed);
  embedding_.initialize(random, "embedding", 0.1);
  blocks_.initialize(random, "blocks");
  head_.initialize(random, "head");
}

void CharLm::forward(TensorView<const int, 2> ids, TensorView<float, 3> logits, Cache& cache, Context& context) const {
  const heed::Extents<3> extents{ids.extent(0), ids.extent(1), options_.embed_dim};
  const TensorView<float, 3> embedded = examples::sized(cache.embedded, extents);
  const TensorView<float, 3> encoded = examples::sized(cache.encoded, extents);
  {
    const Context::Scope scope(context, "embedding");
    embedding_.forward(ids, embedded, cache.embedding, context);
  }
  {
    const Context::Scope scope(context, "blocks");
    blocks_.forward(embedded, heed::Causal{}, encoded, cache.blocks, context);
  }
  const Context::Scope scope(context, "head");
  head_.forward(encoded, logits, cache.head, context);
}

void CharLm::forward(TensorView<const int, 2> ids, TensorView<float, 3> logits, heed::AnyKvCache<float>& kv,
                     Context& context) const {
  heed::Workspace& workspace = context.workspace();
  const heed::Workspace::Frame frame(workspace);
  const TensorView<float, 3> x = workspace.tensor<float, 3>({ids.extent(0), ids.extent(1), options_.embed_dim});
  embedding_.forward(ids, x, context);
  blocks_.forward(x, heed::Causal{}, x, kv, context);
  head_.forward(x, logits, context);
}

void CharLm::backward(TensorView<const float, 3> dlogits, Cache& cache, Context& context) {
  const TensorView<float, 3> d_encoded = examples::sized(cache.d_encoded, cache.encoded.extents());
  const TensorView<float, 3> d_embedded = examples::sized(cache.d_embedded, cache.encoded.extents());
  head_.backward(dlogits, d_encoded, cache.head, context);
  blocks_.backward(d_encoded, d_embedded, cache.blocks, context);
  embedding_.backward(d_embedded, cache.embedding, context);
}

void generate(const CharLm& model, std::vector<int> prompt, const GenerateOptions& options, Context& context,
              const std::function<void(int)>& put) {
  const heed::Philox random(options.seed, heed::init::stream("generate"));
  heed::KvCache<float> kv(model, {.window = options.window});
  heed::Tensor<float, 3> logits;
  for (Index i = 0; i < options.count; ++i) {
    // The prompt, then the character that was written last.
    const TensorView<const int, 2> ids(prompt.data(), {1, static_cast<Index>(prompt.size())});
    const auto scores = examples::sized<float, 3>(logits, {1, ids.extent(1), model.options().alphabet});
    model.forward(ids, scores, kv, context);
    const double point = random.uniform(static_cast<std::uint64_t>(i));
    prompt.assign(1, choose(scores[0][ids.extent(1) - 1], options.temperature, point));
    put(prompt[0]);
  }
}

}  // namespace train_char_lm
