// SPDX-License-Identifier: MIT
#include "classifier.hpp"

#include <algorithm>

#include <heed/core/context.hpp>
#include <heed/core/random.hpp>
#include <heed/mask/basic.hpp>
#include <heed/nn/init.hpp>
#include <heed/train/loss.hpp>
#include <heed/train/optimizer.hpp>
#include <heed/train/parameter_list.hpp>

#include "../common/tensors.hpp"

namespace train_text_classifier {

using heed::Context;
using heed::Index;
using heed::Phase;
using heed::TensorView;

namespace {

heed::EncoderOptions block_options(const ClassifierOptions& options) {
  return {.num_layers = options.num_layers,
          .layer = {.embed_dim = options.embed_dim,
                    .num_heads = options.num_heads,
                    .norm_placement = heed::NormPlacement::Pre,
                    .activation = heed::Activation::GELU},
          .final_norm = true};
}

// to (B, 1, E) = the mean of x (B, L, E) over the words.
void mean_over_words(const TensorView<const float, 3>& x, const TensorView<float, 3>& to) {
  for (Index b = 0; b < x.extent(0); ++b) {
    std::fill_n(&to(b, 0, 0), to.extent(2), 0.0f);
    for (Index l = 0; l < x.extent(1); ++l) to.matrix(b) += x[b].slice(0, l, 1).matrix();
    to.matrix(b) /= static_cast<float>(x.extent(1));
  }
}

}  // namespace

Classifier::Classifier(const ClassifierOptions& options)
    : options_(options),
      embedding_({.vocab_size = options.vocab_size, .embed_dim = options.embed_dim}),
      positions_({.length = options.length, .embed_dim = options.embed_dim}),
      blocks_(block_options(options)),
      head_({.in_features = options.embed_dim, .out_features = options.classes}) {}

void Classifier::initialize(std::uint64_t seed) {
  heed::Random random(seed);
  embedding_.initialize(random, "embedding", 0.1);
  positions_.initialize(random, "positions");
  blocks_.initialize(random, "blocks");
  head_.initialize(random, "head");
}

void Classifier::forward(TensorView<const int, 2> ids, TensorView<float, 3> logits, Cache& cache,
                         Context& context) const {
  const heed::Extents<3> extents{ids.extent(0), ids.extent(1), options_.embed_dim};
  const auto embedded = examples::sized(cache.embedded, extents), encoded = examples::sized(cache.encoded, extents);
  const auto pooled = examples::sized<float, 3>(cache.pooled, {ids.extent(0), 1, options_.embed_dim});
  {
    const Context::Scope scope(context, "embedding");
    embedding_.forward(ids, embedded, cache.embedding, context);
  }
  {
    const Context::Scope scope(context, "positions");
    positions_.forward(embedded, embedded, cache.positions, context);
  }
  {
    const Context::Scope scope(context, "blocks");
    blocks_.forward(embedded, heed::NoMask{}, encoded, cache.blocks, context);
  }
  mean_over_words(encoded, pooled);
  const Context::Scope scope(context, "head");
  head_.forward(pooled, logits, cache.head, context);
}

void Classifier::backward(TensorView<const float, 3> dlogits, Cache& cache, Context& context) {
  const heed::Extents<3> extents = cache.encoded.extents();
  const auto d_pooled = examples::sized(cache.d_pooled, cache.pooled.extents());
  const auto d_encoded = examples::sized(cache.d_encoded, extents);
  const auto d_embedded = examples::sized(cache.d_embedded, extents);
  head_.backward(dlogits, d_pooled, cache.head, context);
  for (Index b = 0; b < extents[0]; ++b) {
    for (Index l = 0; l < extents[1]; ++l) {
      d_encoded[b].slice(0, l, 1).matrix() = d_pooled.matrix(b) / static_cast<float>(extents[1]);
    }
  }
  blocks_.backward(d_encoded, d_embedded, cache.blocks, context);
  positions_.backward(d_embedded, d_embedded, cache.positions, context);
  embedding_.backward(d_embedded, cache.embedding, context);
}

std::vector<double> train(Classifier& model, const Passages& passages, const TrainOptions& options,
                          heed::TrainingTimer& timer, Context& context, const std::function<void(double)>& after_step) {
  model.initialize(options.seed);
  context.seed = options.seed;
  heed::AdamW<float> optimizer(model, {.learning_rate = options.learning_rate, .weight_decay = options.weight_decay});
  const heed::Schedule schedule({.max_lr = options.learning_rate,
                                 .warmup_steps = options.warmup,
                                 .decay = heed::Decay::Cosine,
                                 .steps = options.steps,
                                 .min_lr = options.learning_rate / 100});
  Classifier::Cache cache;
  Batch batch;
  heed::Tensor<float, 3> logits(options.batch, 1, passages.classes());
  std::vector<double> losses;
  for (int step = 0; step < options.steps; ++step) {
    timer.time(Phase::Data, [&] { passages.sample(options.seed, step, options.batch, batch); });
    const heed::Loss loss = timer.time(Phase::Forward, [&] {
      const heed::ActivationCheckpoint before(context);
      const auto forward = [&] { model.forward(batch.ids, logits, cache, context); };
      forward();
      const heed::Loss result = heed::cross_entropy(logits, batch.labels, logits, context);
      heed::require_finite(result.value, before, context, forward);
      return result;
    });
    timer.time(Phase::Backward, [&] {
      optimizer.zero_grad();
      model.backward(logits, cache, context);
    });
    timer.time(Phase::Step, [&] {
      optimizer.set_learning_rate(schedule(step));
      optimizer.step(context, {.clip = options.clip});
    });
    losses.push_back(loss.value);
    after_step(loss.value);
  }
  return losses;
}

Evaluation evaluate(const Classifier& model, const Passages& passages, Context& context) {
  constexpr Index most = 32;
  const Index classes = passages.classes(), total = passages.held_out_count();
  Evaluation result;
  result.confusion = heed::Tensor<int, 2>(classes, classes);
  Classifier::Cache cache;
  Batch batch;
  heed::Tensor<float, 3> logits;
  Index right = 0;
  for (Index first = 0, count; first < total; first += count) {
    count = std::min(most, total - first);
    passages.held_out(first, count, batch);
    const auto scores = examples::sized<float, 3>(logits, {count, 1, classes});
    model.forward(batch.ids, scores, cache, context);
    for (Index b = 0; b < count; ++b) {
      const float* row = &scores(b, 0, 0);
      const Index taken_for = std::max_element(row, row + classes) - row;
      ++result.confusion(batch.labels(b, 0), taken_for);
      right += taken_for == batch.labels(b, 0);
    }
    result.loss += heed::cross_entropy(scores, batch.labels, context).value * static_cast<double>(count);
  }
  result.loss /= static_cast<double>(total);
  result.accuracy = static_cast<double>(right) / static_cast<double>(total);
  return result;
}

}  // namespace train_text_classifier
