// SPDX-License-Identifier: MIT
#include "models.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include <heed/attention/attention.hpp>
#include <heed/core/random.hpp>
#include <heed/mask/basic.hpp>
#include <heed/nn/embedding.hpp>
#include <heed/nn/feed_forward.hpp>
#include <heed/nn/init.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/multi_head_attention.hpp>
#include <heed/nn/norm.hpp>
#include <heed/nn/positional.hpp>
#include <heed/nn/recurrent.hpp>
#include <heed/train/loss.hpp>
#include <heed/train/optimizer.hpp>
#include <heed/train/parameter_list.hpp>

#include "common/tensors.hpp"

namespace article {

using heed::Context;
using heed::Extents;
using heed::Index;
using heed::Tensor;
using heed::TensorView;
using Attention = heed::AnyAttention<float>;
using In = TensorView<const float, 3>;
using Out = TensorView<float, 3>;

namespace {

// to = a + b, all of the same shape; to may be one of them.
void add(const In& a, const In& b, const Out& to) {
  for (Index i = 0; i < a.extent(0); ++i) to.matrix(i) = a.matrix(i) + b.matrix(i);
}

// Attention of x (B, L, E) to itself without projections of queries, keys and values: their heads are columns of x.
// out_proj still mixes the outputs of the heads.
class PlainAttention {
 public:
  struct Cache {
    In x;
    Tensor<float, 3> attended, d_attended, dq, dk, dv;
    heed::AttentionCache<float> attention;
  };

  PlainAttention(Index width, Index heads, std::optional<double> scale)
      : heads_(heads), scale_(scale), out_proj_({.in_features = width, .out_features = width}) {}

  void initialize(heed::Random& random, std::string_view name) { out_proj_.initialize(random, name); }
  template <class F>
  void visit(std::string_view prefix, F&& f) {
    out_proj_.visit(std::string(prefix) + ".out_proj", f);
  }
  void forward(In x, const Attention& attention, Out y, Cache& cache, Context& context) const {
    cache.x = x;
    const Out attended = examples::sized(cache.attended, x.extents());
    heed::attention_into(split(attended), split(x), split(x), split(x), attention.with_defaults({.scale = scale_}),
                         cache.attention, context);
    out_proj_.forward(attended, y, context);
  }
  void backward(In dy, Out dx, Cache& cache, Context& context) {
    const Extents<3> extents = dy.extents();
    const Out d_attended = examples::sized(cache.d_attended, extents);
    heed::Linear<float>::Cache projected{cache.attended};
    out_proj_.backward(dy, d_attended, projected, context);
    const Out dq = examples::sized(cache.dq, extents), dk = examples::sized(cache.dk, extents);
    const Out dv = examples::sized(cache.dv, extents);
    heed::attention_backward_into({split(dq), split(dk), split(dv)}, split(d_attended), cache.attention, context);
    add(dq, dk, dx);
    add(dx, dv, dx);
  }

 private:
  // (B, L, E) as (B, H, L, E/H).
  template <class T>
  TensorView<T, 4> split(const TensorView<T, 3>& x) const {
    const Index width = x.extent(2) / heads_;
    return {x.data(),
            {x.extent(0), heads_, x.extent(1), width},
            {x.stride(0), width * x.stride(2), x.stride(1), x.stride(2)}};
  }

  Index heads_;
  std::optional<double> scale_;
  heed::Linear<float> out_proj_;
};

// A transformer block, Pre: s = x + a(norm1(x)), y = s + f(norm2(s)); Post: s = norm1(x + a(x)), y = norm2(s + f(s)).
// It is heed::EncoderLayer with the scale and the projections of its attention left open.
class Block {
 public:
  struct Cache {
    heed::LayerNorm<float>::Cache norm1, norm2;
    heed::MultiHeadAttention<float>::Cache attention;
    PlainAttention::Cache plain;
    heed::FeedForward<float>::Cache feed_forward;
    Tensor<float, 3> inner, attended, sum, outer, fed, d_sum, d_part;
  };

  explicit Block(const ModelOptions& options)
      : place_(options.norm),
        norm1_({.embed_dim = options.embed_dim}),
        norm2_({.embed_dim = options.embed_dim}),
        feed_forward_(
            {.embed_dim = options.embed_dim, .ffn_dim = options.ffn_dim, .activation = heed::Activation::GELU}) {
    if (options.projections) {
      attention_.emplace(heed::MultiHeadAttentionOptions{.embed_dim = options.embed_dim,
                                                         .num_heads = options.num_heads,
                                                         .scale = options.scale,
                                                         .dropout = options.dropout});
    } else {
      plain_.emplace(options.embed_dim, options.num_heads, options.scale);
    }
  }

  void initialize(heed::Random& random, const std::string& name) {
    if (attention_) attention_->initialize(random, name + ".self_attn");
    if (plain_) plain_->initialize(random, name + ".self_attn.out_proj");
    feed_forward_.initialize(random, name);
  }
  template <class F>
  void visit(const std::string& prefix, F&& f) {
    if (attention_) attention_->visit(prefix + ".self_attn", f);
    if (plain_) plain_->visit(prefix + ".self_attn", f);
    feed_forward_.visit(prefix, f);
    norm1_.visit(prefix + ".norm1", f);
    norm2_.visit(prefix + ".norm2", f);
  }

  void forward(In x, const Attention& attention, Out y, Cache& cache, Context& context) const {
    const Out inner = examples::sized(cache.inner, x.extents()),
              attended = examples::sized(cache.attended, x.extents());
    const Out sum = examples::sized(cache.sum, x.extents()), outer = examples::sized(cache.outer, x.extents());
    const Out fed = examples::sized(cache.fed, x.extents());
    if (place_ == NormPlace::Pre) {
      norm1_.forward(x, inner, cache.norm1, context);
      attend(inner, attention, attended, cache, context);
      add(x, attended, sum);
      norm2_.forward(sum, outer, cache.norm2, context);
      feed_forward_.forward(outer, fed, cache.feed_forward, context);
      add(sum, fed, y);
    } else {
      attend(x, attention, attended, cache, context);
      add(x, attended, inner);
      norm1_.forward(inner, sum, cache.norm1, context);
      feed_forward_.forward(sum, fed, cache.feed_forward, context);
      add(sum, fed, outer);
      norm2_.forward(outer, y, cache.norm2, context);
    }
  }
  void backward(In dy, Out dx, Cache& cache, Context& context) {
    const Out d_sum = examples::sized(cache.d_sum, dy.extents()), d_part = examples::sized(cache.d_part, dy.extents());
    const auto attention_backward = [&](In d, Out to) {
      if (attention_) attention_->backward(d, to, cache.attention, context);
      if (plain_) plain_->backward(d, to, cache.plain, context);
    };
    if (place_ == NormPlace::Pre) {
      feed_forward_.backward(dy, d_part, cache.feed_forward, context);
      norm2_.backward(d_part, d_sum, cache.norm2, context);
      add(dy, d_sum, d_sum);
      attention_backward(d_sum, d_part);
      norm1_.backward(d_part, dx, cache.norm1, context);
      add(dx, d_sum, dx);
    } else {
      norm2_.backward(dy, d_sum, cache.norm2, context);
      feed_forward_.backward(d_sum, d_part, cache.feed_forward, context);
      add(d_sum, d_part, d_part);
      norm1_.backward(d_part, d_sum, cache.norm1, context);
      attention_backward(d_sum, dx);
      add(dx, d_sum, dx);
    }
  }

 private:
  void attend(In x, const Attention& attention, Out y, Cache& cache, Context& context) const {
    const Context::Scope scope(context, "self_attn");
    if (attention_) attention_->forward(x, attention, y, cache.attention, context);
    if (plain_) plain_->forward(x, attention, y, cache.plain, context);
  }

  NormPlace place_;
  std::optional<heed::MultiHeadAttention<float>> attention_;
  std::optional<PlainAttention> plain_;
  heed::LayerNorm<float> norm1_, norm2_;
  heed::FeedForward<float> feed_forward_;
};

}  // namespace

struct Model::Parts {
  // The state of one forward.
  struct Cache {
    heed::Embedding<float>::Cache embedding;
    heed::LearnedPositions<float>::Cache positions;
    std::vector<Block::Cache> blocks;
    std::vector<Tensor<float, 3>> between;  // what goes into each block, and comes out of the last one
    heed::Recurrent<float>::Cache lstm;
    heed::LayerNorm<float>::Cache norm;
    heed::Linear<float>::Cache head;
    std::vector<int> lengths, visible;  // of each sequence; of its keys
    Tensor<float, 3> encoded, read, logits, d_read, d_encoded, d_between[2];
  };

  explicit Parts(const ModelOptions& o)
      : options(o),
        embedding({.vocab_size = o.vocab_size, .embed_dim = o.embed_dim}),
        head({.in_features = o.embed_dim, .out_features = o.classes}) {
    if (o.positions == Positions::Sinusoidal) {
      // A sine has the mean square 1/2.
      sinusoidal.emplace(heed::SinusoidalPositionsOptions{
          .embed_dim = o.embed_dim, .scale = std::sqrt(2.0) * o.embedding_std * o.position_scale, .length = o.length});
    } else if (o.positions == Positions::Learned) {
      learned.emplace(heed::LearnedPositionsOptions{.length = o.length, .embed_dim = o.embed_dim});
    }
    if (o.body == Body::Lstm) {
      const Index hidden = o.causal ? o.embed_dim : o.embed_dim / 2;
      lstm.emplace(heed::RecurrentOptions{
          .input_size = o.embed_dim, .hidden_size = hidden, .num_layers = o.num_layers, .bidirectional = !o.causal});
    } else {
      for (Index i = 0; i < o.num_layers; ++i) blocks.emplace_back(o);
      if (o.norm == NormPlace::Pre) norm.emplace(heed::LayerNormOptions{.embed_dim = o.embed_dim});
    }
    initialize();
    parameters = heed::ParameterList<float>(*this);
  }

  template <class F>
  void visit(std::string_view, F&& f) {
    embedding.visit("embedding", f);
    if (learned) learned->visit("positions", f);
    visit_body(f);
    head.visit("head", f);
  }
  template <class F>
  void visit_body(F&& f) {
    for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i].visit("blocks." + std::to_string(i), f);
    if (lstm) lstm->visit("lstm", f);
    if (norm) norm->visit("norm", f);
  }

  void initialize() {
    heed::Random random(options.seed);
    embedding.initialize(random, "embedding", options.embedding_std);
    if (learned) learned->initialize(random, "positions", options.embedding_std * options.position_scale);
    for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i].initialize(random, "blocks." + std::to_string(i));
    if (lstm) lstm->initialize(random, "lstm");
    head.initialize(random, "head");
    if (options.init == Init::Xavier) return;
    const auto start = [&](std::string_view name, heed::Parameter<float>& parameter) {
      if (parameter.rank() != 2) return;
      const heed::Philox numbers(options.seed, heed::init::stream(name));
      if (options.init == Init::Normal)
        heed::init::normal(parameter, numbers, options.init_std);
      else
        heed::init::orthogonal(parameter, numbers, options.init_std);
    };
    visit_body(start);
    head.visit("head", start);
  }

  // The attention of a batch of these lengths, which the result borrows.
  Attention attention_of(const std::vector<int>& lengths) const {
    if (options.causal) return heed::Causal{} & heed::Padding(lengths);
    return heed::Padding(lengths);
  }

  void encode(const Batch& batch, Cache& cache, Context& context) const {
    const Index B = batch.ids.extent(0), L = batch.ids.extent(1);
    const Extents<3> extents{B, L, options.embed_dim};
    cache.lengths = batch.lengths;
    if (cache.lengths.empty()) cache.lengths.assign(static_cast<std::size_t>(B), static_cast<int>(L));
    cache.between.resize(blocks.size() + 1);
    const Out first = examples::sized(cache.between[0], extents), encoded = examples::sized(cache.encoded, extents);
    embedding.forward(batch.ids, first, cache.embedding, context);
    if (sinusoidal) sinusoidal->forward(first, first, context);
    if (learned) learned->forward(first, first, cache.positions, context);
    if (lstm) {
      heed::RecurrentArguments<float> arguments;
      if (options.mask_padding) arguments.lengths = cache.lengths;
      lstm->forward(first, arguments, encoded, cache.lstm, context);
      return;
    }
    cache.blocks.resize(blocks.size());
    cache.visible = cache.lengths;
    if (!options.mask_padding) cache.visible.assign(cache.lengths.size(), static_cast<int>(L));
    const Attention attention = attention_of(cache.visible);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const Context::Scope scope(context, "blocks", static_cast<int>(i));
      const Out to = examples::sized(cache.between[i + 1], extents);
      blocks[i].forward(cache.between[i], attention, to, cache.blocks[i], context);
    }
    if (norm)
      norm->forward(cache.between.back(), encoded, cache.norm, context);
    else
      for (Index b = 0; b < B; ++b) encoded.matrix(b) = cache.between.back().matrix(b);
  }

  // place(token, columns, weight) for each piece of the body's output that the row of a sample is the sum of.
  template <class F>
  void parallel_for_each(int length, Index L, F&& place) const {
    const Index last = options.pool_padding ? L : std::max(1, length), half = options.embed_dim / 2;
    switch (options.readout) {
      case Readout::Mean:
        for (Index l = 0; l < last; ++l) place(l, Index{0}, options.embed_dim, 1 / static_cast<float>(last));
        break;
      case Readout::First:
        place(Index{0}, Index{0}, options.embed_dim, 1.0f);
        break;
      case Readout::Ends:
        place(last - 1, Index{0}, half, 1.0f);
        place(Index{0}, half, options.embed_dim - half, 1.0f);
        break;
      case Readout::EachToken:
        break;
    }
  }

  Out forward(const Batch& batch, Cache& cache, Context& context) const {
    encode(batch, cache, context);
    const Index B = batch.ids.extent(0), L = batch.ids.extent(1);
    const bool each = options.readout == Readout::EachToken;
    const Out logits = examples::sized<float, 3>(cache.logits, {B, each ? L : 1, options.classes});
    if (each) {
      head.forward(cache.encoded, logits, cache.head, context);
      return logits;
    }
    const Out read = examples::sized<float, 3>(cache.read, {B, 1, options.embed_dim});
    for (Index b = 0; b < B; ++b) {
      read.matrix(b).setZero();
      parallel_for_each(
          cache.lengths[static_cast<std::size_t>(b)], L, [&](Index l, Index column, Index count, float weight) {
            read.matrix(b).middleCols(column, count) += weight * cache.encoded.matrix(b).block(l, column, 1, count);
          });
    }
    head.forward(read, logits, cache.head, context);
    return logits;
  }

  // dlogits are in cache.logits.
  void backward(Cache& cache, Context& context) {
    const Extents<3> extents = cache.encoded.extents();
    const Out d_encoded = examples::sized(cache.d_encoded, extents);
    if (options.readout == Readout::EachToken) {
      head.backward(cache.logits, d_encoded, cache.head, context);
    } else {
      const Out d_read = examples::sized(cache.d_read, cache.read.extents());
      head.backward(cache.logits, d_read, cache.head, context);
      for (Index b = 0; b < extents[0]; ++b) {
        d_encoded.matrix(b).setZero();
        parallel_for_each(cache.lengths[static_cast<std::size_t>(b)], extents[1],
                          [&](Index l, Index column, Index count, float weight) {
                            d_encoded.matrix(b).block(l, column, 1, count) +=
                                weight * d_read.matrix(b).middleCols(column, count);
                          });
      }
    }
    Out buffers[2];
    for (int i = 0; i < 2; ++i) buffers[i] = examples::sized(cache.d_between[i], extents);
    int at = 0;
    if (lstm) {
      lstm->backward(d_encoded, buffers[at], cache.lstm, context);
    } else {
      if (norm)
        norm->backward(d_encoded, buffers[at], cache.norm, context);
      else
        for (Index b = 0; b < extents[0]; ++b) buffers[at].matrix(b) = d_encoded.matrix(b);
      for (std::size_t i = blocks.size(); i-- > 0; at = 1 - at) {
        blocks[i].backward(buffers[at], buffers[1 - at], cache.blocks[i], context);
      }
    }
    if (learned) learned->backward(buffers[at], buffers[at], cache.positions, context);
    embedding.backward(buffers[at], cache.embedding, context);
  }

  ModelOptions options;
  heed::Embedding<float> embedding;
  std::optional<heed::SinusoidalPositions<float>> sinusoidal;
  std::optional<heed::LearnedPositions<float>> learned;
  std::vector<Block> blocks;
  std::optional<heed::LSTM<float>> lstm;
  std::optional<heed::LayerNorm<float>> norm;
  heed::Linear<float> head;
  heed::ParameterList<float> parameters;
  mutable Cache latest;  // a model is used by one thread at a time
};

Model::Model(const ModelOptions& options) : parts_(std::make_unique<Parts>(options)) {}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

const ModelOptions& Model::options() const { return parts_->options; }
void Model::set_masks(bool causal, bool mask_padding, bool pool_padding) {
  parts_->options.causal = causal;
  parts_->options.mask_padding = mask_padding;
  parts_->options.pool_padding = pool_padding;
}
const heed::ParameterList<float>& Model::parameters() const { return parts_->parameters; }

Tensor<float, 3> Model::logits(const Batch& batch, Context& context) const {
  parts_->forward(batch, parts_->latest, context);
  return parts_->latest.logits;
}
Tensor<float, 3> Model::encode(const Batch& batch, Context& context) const {
  parts_->encode(batch, parts_->latest, context);
  return parts_->latest.encoded;
}
double Model::loss(const Batch& batch, Context& context) const {
  return heed::cross_entropy(parts_->forward(batch, parts_->latest, context), batch.targets, context).value;
}
double Model::loss_and_gradients(const Batch& batch, Context& context, std::optional<Index> divisor) {
  const Out logits = parts_->forward(batch, parts_->latest, context);
  const heed::Loss loss = heed::cross_entropy(logits, batch.targets, logits, {.normalizer = divisor}, context);
  parts_->backward(parts_->latest, context);
  return loss.value;
}
double Model::accuracy(const Batch& batch, Context& context) const {
  const Out logits = parts_->forward(batch, parts_->latest, context);
  Index right = 0, counted = 0;
  for (Index b = 0; b < logits.extent(0); ++b) {
    for (Index l = 0; l < logits.extent(1); ++l) {
      const int target = batch.targets(b, l);
      if (target == kIgnored) continue;
      const float* row = &logits(b, l, 0);
      ++counted;
      right += std::max_element(row, row + logits.extent(2)) - row == target;
    }
  }
  return static_cast<double>(right) / static_cast<double>(std::max<Index>(1, counted));
}

std::vector<double> train(Model& model, const std::function<Batch(int step)>& sample, const TrainOptions& options,
                          Context& context, const std::function<void(int, double)>& after_step) {
  heed::AdamW<float> optimizer(model, {.learning_rate = options.learning_rate, .weight_decay = options.weight_decay});
  const heed::Schedule schedule({.max_lr = options.learning_rate,
                                 .warmup_steps = options.warmup,
                                 .decay = heed::Decay::Cosine,
                                 .steps = options.steps,
                                 .min_lr = options.learning_rate / 100});
  context.training = true;
  std::vector<double> losses;
  for (int step = 0; step < options.steps; ++step) {
    optimizer.zero_grad();
    losses.push_back(model.loss_and_gradients(sample(step), context));
    optimizer.set_learning_rate(schedule(step));
    optimizer.step(context, {.clip = options.clip});
    if (after_step) {
      context.training = false;
      after_step(step, losses.back());
      context.training = true;
    }
  }
  context.training = false;
  return losses;
}

double tail_mean(const std::vector<double>& losses, double part) {
  const auto count = std::max<std::size_t>(1, static_cast<std::size_t>(part * static_cast<double>(losses.size())));
  double sum = 0;
  for (std::size_t i = losses.size() - count; i < losses.size(); ++i) sum += losses[i];
  return sum / static_cast<double>(count);
}

}  // namespace article
