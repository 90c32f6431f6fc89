// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The blocks of transformers: EncoderLayer, also the block of decoder-only models, and DecoderLayer, which reads a
/// memory as well. Names and defaults are those of PyTorch's TransformerEncoderLayer and TransformerDecoderLayer.
/// Vaswani et al.: "Attention is all you need", 2017, section 3.1; the place of the norms: Xiong et al.: "On layer
/// normalization in the transformer architecture", 2020.

#include <heed/nn/feed_forward.hpp>
#include <heed/nn/memory_layer.hpp>
#include <heed/nn/multi_head_attention.hpp>
#include <heed/nn/norm.hpp>

HEED_NAMESPACE_BEGIN

/// The place of a block's norms.
enum class NormPlacement {
  Pre,  ///< x + f(norm(x)); a stack of such blocks wants a final norm
  Post  ///< norm(x + f(x)), as in the paper and in BERT
};

/// Options of EncoderLayer.
struct EncoderLayerOptions {
  Index embed_dim = 0;                                 ///< E
  Index num_heads = 0;                                 ///< H
  Index ffn_dim = 0;                                   ///< F; 0 means 4·E
  NormPlacement norm_placement = NormPlacement::Post;  ///< before or after each branch
  Activation activation = Activation::ReLU;            ///< of the feed-forward layer
  bool gated = false;                                  ///< a gated feed-forward layer (SwiGLU with SiLU)
  double eps = 1e-5;                                   ///< of the norms
  bool bias = true;                                    ///< in projections and norms
  Index num_kv_heads = 0;                              ///< G, a divisor of H; 0 means H
  RotaryEmbeddingOptions rotary = kNoRotary;           ///< of self-attention; head_dim 0 means the width of a head
  double dropout = 0;                    ///< while context.training: of attention weights, hidden units, a and f
  NormKind norm = NormKind::Layer;       ///< LayerNorm or RMSNorm
  std::optional<NormOptions> qk_norm{};  ///< of each head's queries and keys in self-attention
};

/// Options of DecoderLayer.
struct DecoderLayerOptions {
  Index embed_dim = 0;                                 ///< E
  Index num_heads = 0;                                 ///< H
  Index ffn_dim = 0;                                   ///< F; 0 means 4·E
  NormPlacement norm_placement = NormPlacement::Post;  ///< before or after each branch
  Activation activation = Activation::ReLU;            ///< of the feed-forward layer
  bool gated = false;                                  ///< a gated feed-forward layer (SwiGLU with SiLU)
  double eps = 1e-5;                                   ///< of the norms
  bool bias = true;                                    ///< in projections and norms
  Index num_kv_heads = 0;                              ///< G, a divisor of H; 0 means H
  RotaryEmbeddingOptions rotary = kNoRotary;           ///< of self-attention; head_dim 0 means the width of a head
  Index memory_dim = 0;                                ///< width of the memory; 0 means E
  double dropout = 0;                    ///< while context.training: of attention weights, hidden units, a, c and f
  NormKind norm = NormKind::Layer;       ///< LayerNorm or RMSNorm
  std::optional<NormOptions> qk_norm{};  ///< of each head's queries and keys in self-attention
};

namespace detail {

// The parts of a block, from the options of an encoder or a decoder layer.
template <class Options>
MultiHeadAttentionOptions self_attention_options(const Options& o) {
  return {.embed_dim = o.embed_dim,
          .num_heads = o.num_heads,
          .num_kv_heads = o.num_kv_heads,
          .bias = o.bias,
          .dropout = o.dropout,
          .rotary = o.rotary,
          .qk_norm = o.qk_norm};
}
template <class Options>
FeedForwardOptions feed_forward_options(const Options& o) {
  return {.embed_dim = o.embed_dim,
          .ffn_dim = o.ffn_dim,
          .activation = o.activation,
          .gated = o.gated,
          .bias = o.bias,
          .dropout = o.dropout};
}
template <class Options>
NormOptions norm_options(const Options& o) {
  return {.embed_dim = o.embed_dim, .eps = o.eps, .bias = o.bias, .kind = o.norm};
}

/// One branch of a block, Pre: y = x + dropout(f(norm(x))), Post: y = norm(x + dropout(f(x))); x and y (B, L, E).
/// NormType is Norm<T>, const for a forward.
template <class NormType>
struct Residual {
  using T = typename NormType::Scalar;
  using In = TensorView<const T, 3>;
  using Out = TensorView<T, 3>;

  /// Memory of a forward that backward() needs.
  struct Cache {
    Buffer<T> inner;
    typename Norm<T>::Cache norm;
    typename Dropout<T>::Cache dropout;

    std::size_t bytes() const { return inner.bytes() + norm.bytes(); }
  };

  NormPlacement placement;
  NormType& norm;
  std::string_view norm_name;
  const Dropout<T>& dropout;

  /// branch(in, residual, out) computes out = residual + f(in). Without a cache, memory comes from the workspace.
  template <class AnyCache, class Branch>
  void forward(const In& x, const Out& y, AnyCache* cache, Context& context, Branch&& branch) const {
    const Workspace::Frame frame(context.workspace());
    const Out inner =
        cache ? cache->inner.template view<3>(x.extents()) : context.workspace().template tensor<T, 3>(x.extents());
    if (placement == NormPlacement::Pre) {
      normalize(x, inner, cache, context);
      add(inner, x, y, cache, context, branch);
    } else {
      add(x, x, inner, cache, context, branch);
      normalize(inner, y, cache, context);
    }
  }
  /// branch(d, residual, dx) computes dx = residual + the gradient of f from that of its result.
  template <class AnyCache, class Branch>
  void backward(const In& dy, const Out& dx, AnyCache& cache, Context& context, Branch&& branch) const {
    const Workspace::Frame frame(context.workspace());
    const Out d = context.workspace().template tensor<T, 3>(dy.extents());
    if (placement == NormPlacement::Pre) {
      branch(kept(dy, cache, context), In{}, d);
      norm.run_backward(d, dy, dx, cache.norm, context);
    } else {
      norm.run_backward(dy, {}, d, cache.norm, context);
      branch(kept(d, cache, context), d, dx);
    }
  }

 private:
  template <class AnyCache>
  void normalize(const In& x, const Out& y, AnyCache* cache, Context& context) const {
    const Context::Scope scope(context, norm_name);
    norm.run(x, y, cache ? &cache->norm : nullptr, context);
  }
  /// y = x + dropout(f(in)): one product when nothing is dropped.
  template <class AnyCache, class Branch>
  void add(const In& in, const In& x, const Out& y, AnyCache* cache, Context& context, Branch&& branch) const {
    if (cache) cache->dropout = {};
    if (!dropout.acts(context)) return branch(in, x, y);
    branch(in, In{}, y);
    dropout.run(y, x, y, cache ? &cache->dropout : nullptr, context);
  }
  /// The gradient of dropout(f): dy itself where nothing was dropped.
  template <class AnyCache>
  In kept(const In& dy, const AnyCache& cache, Context& context) const {
    if (!cache.dropout.pattern) return dy;
    const Out d = context.workspace().template tensor<T, 3>(dy.extents());
    dropout.run_backward(dy, d, cache.dropout, context);
    return d;
  }
};
template <class T>
using ResidualCache = typename Residual<Norm<T>>::Cache;

/// The branch of a block that has this norm.
template <class Block, class NormType>
Residual<NormType> residual(const Block& block, NormType& norm, std::string_view norm_name) {
  return {block.options().norm_placement, norm, norm_name, block.dropout};
}

}  // namespace detail

/// One encoder block; x and y (B, L, E), with a = self_attn and f = linear2(activation(linear1(·))):
///   NormPlacement::Post  s = norm1(x + a(x)),  y = norm2(s + f(s))
///   NormPlacement::Pre   s = x + a(norm1(x)),  y = s + f(norm2(s))
/// Dropout acts where PyTorch's TransformerEncoderLayer has it. With heed::Causal it is the block of a decoder-only
/// model. A query that its mask leaves without keys still has its row, made of itself alone.
///
///   heed::EncoderLayer<float> block({.embed_dim = 64, .num_heads = 4});
///   block.initialize(random);
///   auto y = block(x, heed::Causal{}, context);
template <LayerScalar T>
class EncoderLayer : public AttentionLayer<EncoderLayer<T>, T> {
  using In = TensorView<const T, 3>;
  using Out = TensorView<T, 3>;
  EncoderLayerOptions options_;

 public:
  using AttentionLayer<EncoderLayer, T>::run;
  static constexpr bool kInPlace = true;  ///< without a cache, y may be x; dx may be dy

  /// Throws what its parts find wrong with the options.
  explicit EncoderLayer(const EncoderLayerOptions& options)
      : options_(options),
        self_attn(detail::self_attention_options(options)),
        feed_forward(detail::feed_forward_options(options)),
        norm1(detail::norm_options(options)),
        norm2(norm1.options()),
        dropout({.probability = options.dropout}) {}

  /// Memory of a forward that backward() needs: its x, borrowed, and the caches of its parts.
  struct Cache {
    TensorView<const T, 3> x{};
    Buffer<T> middle;
    detail::ResidualCache<T> first, second;
    typename MultiHeadAttention<T>::Cache self_attn;
    typename FeedForward<T>::Cache feed_forward;

    /// Memory held.
    std::size_t bytes() const {
      return middle.bytes() + first.bytes() + second.bytes() + self_attn.bytes() + feed_forward.bytes();
    }
  };

  MultiHeadAttention<T> self_attn;  ///< between tokens
  FeedForward<T> feed_forward;      ///< its parameters have no further prefix: linear1.weight
  Norm<T> norm1;                    ///< of the attention branch
  Norm<T> norm2;                    ///< of the feed-forward branch
  Dropout<T> dropout;               ///< of a and f

  /// The list of members, for Module.
  static void members(auto&& f) {
    f("self_attn", &EncoderLayer::self_attn);
    f("", &EncoderLayer::feed_forward);
    f("norm1", &EncoderLayer::norm1);
    f("norm2", &EncoderLayer::norm2);
  }
  static constexpr std::string_view name() { return "heed::EncoderLayer"; }  ///< the layer in error texts
  const EncoderLayerOptions& options() const { return options_; }            ///< as constructed
  KvShape kv_shape() const { return self_attn.kv_shape(); }       ///< the extents of a KvCache for this layer
  Index input_width(Index) const { return options_.embed_dim; }   ///< of x
  Index output_width(Index) const { return options_.embed_dim; }  ///< of y

  /// The layer without checks, for layers made of it.
  void run(const In& x, const AnyAttention<T>& attention, const Out& y, Cache* cache, Context& context,
           const KvStep<T>& kv = {}) const {
    const Workspace::Frame frame(context.workspace());
    const Out middle =
        cache ? cache->middle.template view<3>(x.extents()) : context.workspace().template tensor<T, 3>(x.extents());
    if (cache) cache->x = x;
    detail::residual(*this, norm1, "norm1")
        .forward(x, middle, cache ? &cache->first : nullptr, context,
                 [&](const In& in, const In& residual, const Out& out) {
                   const Context::Scope scope(context, "self_attn");
                   self_attn.run({in, in, in}, attention, residual, out, {}, cache ? &cache->self_attn : nullptr,
                                 context, kv);
                 });
    detail::residual(*this, norm2, "norm2")
        .forward(middle, y, cache ? &cache->second : nullptr, context,
                 [&](const In& in, const In& residual, const Out& out) {
                   feed_forward.run(in, residual, out, cache ? &cache->feed_forward : nullptr, context);
                 });
    context.observe(y);
  }
  /// The gradients, under the attention of the forward.
  void run_backward(const In& dy, const Out& dx, Cache& cache, Context& context) {
    const Workspace::Frame frame(context.workspace());
    const Out dmiddle = context.workspace().template tensor<T, 3>(dy.extents());
    detail::residual(*this, norm2, "norm2")
        .backward(dy, dmiddle, cache.second, context, [&](const In& d, const In& residual, const Out& to) {
          feed_forward.run_backward(d, residual, to, cache.feed_forward, context);
        });
    detail::residual(*this, norm1, "norm1")
        .backward(dmiddle, dx, cache.first, context, [&](const In& d, const In& residual, const Out& to) {
          self_attn.run_backward(d, {{{to, residual}}}, cache.self_attn, context);
        });
  }
};

/// One decoder block; x and y (B, Lq, E), memory (B, Lk, memory_dim), with a = self_attn, c = multihead_attn, which
/// reads keys and values from the memory, and f = linear2(activation(linear1(·))):
///   NormPlacement::Post  s = norm1(x + a(x)),  t = norm2(s + c(s, memory)),  y = norm3(t + f(t))
///   NormPlacement::Pre   s = x + a(norm1(x)),  t = s + c(norm2(s), memory),  y = t + f(norm3(t))
/// Dropout acts where PyTorch's TransformerDecoderLayer has it.
template <LayerScalar T>
class DecoderLayer : public MemoryLayer<DecoderLayer<T>, T> {
  using In = TensorView<const T, 3>;
  using Out = TensorView<T, 3>;
  DecoderLayerOptions options_;

 public:
  /// Throws what its parts find wrong with the options.
  explicit DecoderLayer(const DecoderLayerOptions& options)
      : options_(options),
        self_attn(detail::self_attention_options(options)),
        multihead_attn({.embed_dim = options.embed_dim,
                        .num_heads = options.num_heads,
                        .num_kv_heads = options.num_kv_heads,
                        .key_dim = options.memory_dim,
                        .bias = options.bias,
                        .dropout = options.dropout}),
        feed_forward(detail::feed_forward_options(options)),
        norm1(detail::norm_options(options)),
        norm2(norm1.options()),
        norm3(norm1.options()),
        dropout({.probability = options.dropout}) {}

  /// Memory of a forward that backward() needs: its inputs, borrowed, and the caches of its parts.
  struct Cache {
    TensorView<const T, 3> x{}, memory{};
    Buffer<T> middle[2];
    detail::ResidualCache<T> first, second, third;
    typename MultiHeadAttention<T>::Cache self_attn, multihead_attn;
    typename FeedForward<T>::Cache feed_forward;

    /// Memory held.
    std::size_t bytes() const {
      return middle[0].bytes() + middle[1].bytes() + first.bytes() + second.bytes() + third.bytes() +
             self_attn.bytes() + multihead_attn.bytes() + feed_forward.bytes();
    }
  };

  MultiHeadAttention<T> self_attn;       ///< between tokens
  MultiHeadAttention<T> multihead_attn;  ///< to the memory
  FeedForward<T> feed_forward;           ///< its parameters have no further prefix: linear1.weight
  Norm<T> norm1;                         ///< of self_attn's branch
  Norm<T> norm2;                         ///< of multihead_attn's branch
  Norm<T> norm3;                         ///< of the feed-forward branch
  Dropout<T> dropout;                    ///< of a, c and f

  /// The list of members, for Module.
  static void members(auto&& f) {
    f("self_attn", &DecoderLayer::self_attn);
    f("multihead_attn", &DecoderLayer::multihead_attn);
    f("", &DecoderLayer::feed_forward);
    f("norm1", &DecoderLayer::norm1);
    f("norm2", &DecoderLayer::norm2);
    f("norm3", &DecoderLayer::norm3);
  }
  /// The layer in error texts.
  static constexpr std::string_view name() { return "heed::DecoderLayer"; }
  const DecoderLayerOptions& options() const { return options_; }  ///< as constructed
  /// E
  Index input_width(Index) const { return options_.embed_dim; }
  /// The width of the memory.
  Index memory_width() const { return multihead_attn.options().key_dim; }
  /// The extents of a KvCache for the tokens.
  KvShape kv_shape() const { return self_attn.kv_shape(); }
  /// The extents of a KvCache for the memory.
  KvShape memory_kv_shape() const { return multihead_attn.kv_shape(); }

  /// The layer without checks, for layers made of it.
  void run(const In& x, const In& memory, const DecoderAttention<T>& attention, const Out& y, Cache* cache,
           Context& context, const DecoderKvStep<T>& kv = {}) const {
    const Workspace::Frame frame(context.workspace());
    const auto middle = [&](int i) {
      return cache ? cache->middle[i].template view<3>(x.extents())
                   : context.workspace().template tensor<T, 3>(x.extents());
    };
    const Out s = middle(0), t = middle(1);
    if (cache) cache->x = x;
    if (cache) cache->memory = memory;
    detail::residual(*this, norm1, "norm1")
        .forward(x, s, cache ? &cache->first : nullptr, context, [&](const In& in, const In& r, const Out& out) {
          const Context::Scope scope(context, "self_attn");
          self_attn.run({in, in, in}, attention.self, r, out, {}, cache ? &cache->self_attn : nullptr, context,
                        kv.self);
        });
    detail::residual(*this, norm2, "norm2")
        .forward(s, t, cache ? &cache->second : nullptr, context, [&](const In& in, const In& r, const Out& out) {
          const Context::Scope scope(context, "multihead_attn");
          multihead_attn.run({in, memory, memory}, attention.memory, r, out, {},
                             cache ? &cache->multihead_attn : nullptr, context, kv.memory);
        });
    detail::residual(*this, norm3, "norm3")
        .forward(t, y, cache ? &cache->third : nullptr, context, [&](const In& in, const In& r, const Out& out) {
          feed_forward.run(in, r, out, cache ? &cache->feed_forward : nullptr, context);
        });
    context.observe(y);
  }
  /// remember() without checks, for layers made of it.
  void run_remember(const In& memory, const KvStep<T>& kv, Context& context) const {
    multihead_attn.run_append({{{}, memory, memory}}, kv, context);
  }
  /// The gradients, without checks, for layers made of it.
  void run_backward(const In& dy, const Out& dx, const Out& dmemory, Cache& cache, Context& context) {
    run_backward(dy, dx, dmemory, {}, cache, context);
  }
  /// The gradients, and a residual added to that of the memory, which the blocks of a stack share.
  void run_backward(const In& dy, const Out& dx, const Out& dmemory, const In& memory_residual, Cache& cache,
                    Context& context) {
    const Workspace::Frame frame(context.workspace());
    const Out ds = context.workspace().template tensor<T, 3>(dy.extents());
    const Out dt = context.workspace().template tensor<T, 3>(dy.extents());
    detail::residual(*this, norm3, "norm3")
        .backward(dy, dt, cache.third, context, [&](const In& d, const In& r, const Out& to) {
          feed_forward.run_backward(d, r, to, cache.feed_forward, context);
        });
    detail::residual(*this, norm2, "norm2")
        .backward(dt, ds, cache.second, context, [&](const In& d, const In& r, const Out& to) {
          // Keys and values come from the memory by one product or by two, of which the second adds to the first.
          using Gradient = typename MultiHeadAttention<T>::Gradient;
          const Gradient values =
              multihead_attn.shares_input(cache.multihead_attn.inputs, 2) ? Gradient{} : Gradient{dmemory, dmemory};
          multihead_attn.run_backward(d, {{{to, r}, {dmemory, memory_residual}, values}}, cache.multihead_attn,
                                      context);
        });
    detail::residual(*this, norm1, "norm1")
        .backward(ds, dx, cache.first, context, [&](const In& d, const In& r, const Out& to) {
          self_attn.run_backward(d, {{{to, r}}}, cache.self_attn, context);
        });
  }
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
