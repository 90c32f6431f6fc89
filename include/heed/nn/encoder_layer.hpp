// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// EncoderLayer: one block of an encoder, or of a decoder-only model.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include <heed/core/activation.hpp>
#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/core/tensor.hpp>
#include <heed/core/workspace.hpp>
#include <heed/mask/basic.hpp>
#include <heed/nn/backward.hpp>
#include <heed/nn/dropout.hpp>
#include <heed/nn/feed_forward.hpp>
#include <heed/nn/layer.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/masked_layer.hpp>
#include <heed/nn/multi_head_attention.hpp>
#include <heed/nn/norm.hpp>
#include <heed/nn/rotary.hpp>
#include <heed/nn/transformer_block.hpp>

HEED_NAMESPACE_BEGIN

struct EncoderLayerOptions {
  Index embed_dim;    ///< E
  Index num_heads;    ///< H
  Index ffn_dim = 0;  ///< F; 0 stands for 4·E
  NormPlacement norm_placement = NormPlacement::Post;
  Activation activation = Activation::ReLU;        ///< of the feed-forward layer
  bool gated = false;                              ///< a gated feed-forward layer (SwiGLU with SiLU)
  double eps = 1e-5;                               ///< of the norms
  bool bias = true;                                ///< in projections and norms
  Index num_kv_heads = 0;                          ///< G, a divisor of H; 0 stands for H
  std::optional<RotaryEmbeddingOptions> rotary{};  ///< of self-attention; width 0 stands for the width of a head
  double dropout = 0;  ///< while context.training: of attention weights, hidden units, and a and f
};

/// One encoder block; x and y (B, L, E), with a = self_attn and f = linear2(activation(linear1(·))):
///   NormPlacement::Post  s = norm1(x + a(x)),  y = norm2(s + f(s))
///   NormPlacement::Pre   s = x + a(norm1(x)),  y = s + f(norm2(s))
/// Dropout acts where PyTorch's TransformerEncoderLayer has it. With heed::Causal it is the block of a decoder-only
/// model. A query that its mask leaves without keys still has its row, made of itself alone.
///
/// Parameters: self_attn.*, linear1.*, linear2.* (and gate.*), norm1.*, norm2.*.
template <class T>
class EncoderLayer : public detail::MaskedLayer<EncoderLayer<T>, T> {
 public:
  using detail::MaskedLayer<EncoderLayer<T>, T>::forward;

  /// Throws what its parts find wrong with the options.
  explicit EncoderLayer(const EncoderLayerOptions& options)
      : options_(options),
        self_attn_(detail::self_attention_options(options)),
        feed_forward_(detail::feed_forward_options(options)),
        norm1_(detail::norm_options(options)),
        norm2_(norm1_.options()),
        dropout_({.probability = options.dropout}) {}

  /// What backward() needs of a forward: its x, borrowed, and what its parts gave and keep.
  struct Cache {
    TensorView<const T, 3> x{};
    detail::Buffer<T> sum, normed1, normed2;
    typename MultiHeadAttention<T>::Cache self_attn;
    typename FeedForward<T>::Cache feed_forward;
    typename LayerNorm<T>::Cache norm1, norm2;
    typename Dropout<T>::Cache dropout1, dropout2;

    /// Memory held.
    std::size_t bytes() const {
      return sum.bytes() + normed1.bytes() + normed2.bytes() + self_attn.bytes() + feed_forward.bytes() +
             norm1.bytes() + norm2.bytes();
    }
  };

  const EncoderLayerOptions& options() const { return options_; }
  MultiHeadAttention<T>& self_attn() { return self_attn_; }
  const MultiHeadAttention<T>& self_attn() const { return self_attn_; }
  FeedForward<T>& feed_forward() { return feed_forward_; }
  const FeedForward<T>& feed_forward() const { return feed_forward_; }
  LayerNorm<T>& norm1() { return norm1_; }
  const LayerNorm<T>& norm1() const { return norm1_; }
  LayerNorm<T>& norm2() { return norm2_; }
  const LayerNorm<T>& norm2() const { return norm2_; }
  Index output_width(Index) const { return options_.embed_dim; }

  template <class F>
  void visit(std::string_view prefix, F&& f) {
    visit_parameters(*this, prefix, f);
  }
  template <class F>
  void visit(std::string_view prefix, F&& f) const {
    visit_parameters(*this, prefix, f);
  }

  /// Each part as it starts itself; norms with weight 1 and bias 0. `name` is the block's name in its model: blocks of
  /// one model need different ones.
  void initialize(std::uint64_t seed, std::string_view name = "") {
    self_attn_.initialize(seed, detail::join(name, "self_attn"));
    feed_forward_.initialize(seed, name);
    detail::start_norm(norm1_);
    detail::start_norm(norm2_);
  }

  /// Packs every projection as Linear::pack().
  void pack(const PackOptions& options = {}) {
    self_attn_.pack(options);
    feed_forward_.pack(options);
  }

  /// Throws ShapeError unless x and y are (B, L, E), ValueError when they overlap, and what the mask finds wrong.
  void forward(TensorView<const T, 3> x, const MaskArgument<T>& mask, TensorView<T, 3> y, Context& context) const {
    detail::check_layer_shapes(kName, x, y, options_.embed_dim, options_.embed_dim);
    Workspace& workspace = context.workspace();
    const Workspace::Frame frame(workspace);
    const TensorView<T, 3> sum = workspace.template tensor<T, 3>(x.extents());
    if (options_.norm_placement == NormPlacement::Pre) {
      const TensorView<T, 3> normed = workspace.template tensor<T, 3>(x.extents());
      detail::run_norm<T>(norm1_, "norm1", x, normed, context);
      attend(normed, mask, x, sum, context);
      detail::run_norm<T>(norm2_, "norm2", sum, normed, context);
      detail::add_feed_forward<T>(feed_forward_, dropout_, normed, sum, y, context);
    } else {
      attend(x, mask, x, sum, context);
      detail::run_norm<T>(norm1_, "norm1", sum, sum, context);
      detail::add_feed_forward<T>(feed_forward_, dropout_, sum, sum, y, context);
      detail::run_norm<T>(norm2_, "norm2", y, y, context);
    }
    context.observe(y);
  }

  /// forward() that a backward() can follow; x must live, unchanged, until then.
  void forward(TensorView<const T, 3> x, const MaskArgument<T>& mask, TensorView<T, 3> y, Cache& cache,
               Context& context) const {
    detail::check_layer_shapes(kName, x, y, options_.embed_dim, options_.embed_dim);
    cache.x = x;
    const auto sum = cache.sum.template view<3>(x.extents()), normed1 = cache.normed1.template view<3>(x.extents());
    const auto normed2 = cache.normed2.template view<3>(x.extents());
    if (options_.norm_placement == NormPlacement::Pre) {
      detail::run_norm<T>(norm1_, "norm1", x, normed1, cache.norm1, context);
      attend(normed1, mask, x, sum, cache, context);
      detail::run_norm<T>(norm2_, "norm2", sum, normed2, cache.norm2, context);
      detail::add_feed_forward<T>(feed_forward_, dropout_, normed2, sum, y, cache.feed_forward, cache.dropout2,
                                  context);
    } else {
      attend(x, mask, x, sum, cache, context);
      detail::run_norm<T>(norm1_, "norm1", sum, normed1, cache.norm1, context);
      detail::add_feed_forward<T>(feed_forward_, dropout_, normed1, normed1, normed2, cache.feed_forward,
                                  cache.dropout2, context);
      detail::run_norm<T>(norm2_, "norm2", normed2, y, cache.norm2, context);
    }
    context.observe(y);
  }
  /// Adds to the gradients of the parts and writes dx, under the mask of the forward; a dx without data is not
  /// computed. Throws ShapeError when dy or dx don't fit the forward, ValueError when dx overlaps dy or x.
  void backward(TensorView<const T, 3> dy, const MaskArgument<T>& mask, TensorView<T, 3> dx, Cache& cache,
                Context& context) {
    detail::check_backward(kName, cache.x, cache.x.extents(), dy, dx);
    Workspace& workspace = context.workspace();
    const Workspace::Frame frame(workspace);
    const TensorView<T, 3> dsum = workspace.template tensor<T, 3>(cache.x.extents());
    const TensorView<T, 3> dnormed = workspace.template tensor<T, 3>(cache.x.extents());
    if (options_.norm_placement == NormPlacement::Pre) {
      feed_forward_.backward(dropped(dy, cache.dropout2, context), dnormed, cache.feed_forward, context);
      norm2_.backward_residual(dnormed, dy, dsum, cache.norm2, context);
      self_attn_.backward(dropped(dsum, cache.dropout1, context), mask, dnormed, cache.self_attn, context);
      norm1_.backward_residual(dnormed, dsum, dx, cache.norm1, context);
    } else {
      norm2_.backward(dy, dsum, cache.norm2, context);
      feed_forward_.backward_residual(dropped(dsum, cache.dropout2, context), dsum, dnormed, cache.feed_forward,
                                      context);
      norm1_.backward(dnormed, dsum, cache.norm1, context);
      self_attn_.backward_residual(dropped(dsum, cache.dropout1, context), mask, {dx, dsum}, {}, {}, cache.self_attn,
                                   context);
    }
  }

 private:
  static constexpr std::string_view kName = "heed::EncoderLayer";

  template <class Self, class F>
  static void visit_parameters(Self& self, std::string_view prefix, F& f) {
    self.self_attn_.visit(detail::join(prefix, "self_attn"), f);
    self.feed_forward_.visit(prefix, f);
    self.norm1_.visit(detail::join(prefix, "norm1"), f);
    self.norm2_.visit(detail::join(prefix, "norm2"), f);
  }

  /// sum = residual + dropout(self_attn(x)).
  void attend(const TensorView<const T, 3>& x, const MaskArgument<T>& mask, const TensorView<const T, 3>& residual,
              const TensorView<T, 3>& sum, Context& context) const {
    const Context::Scope scope(context, "self_attn");
    detail::add_branch<T>(dropout_, residual, sum, context, [&](const auto& r, const auto& y) {
      self_attn_.forward_residual(x, x, x, mask, r, y, context);
    });
  }
  void attend(const TensorView<const T, 3>& x, const MaskArgument<T>& mask, const TensorView<const T, 3>& residual,
              const TensorView<T, 3>& sum, Cache& cache, Context& context) const {
    const Context::Scope scope(context, "self_attn");
    detail::add_branch<T>(dropout_, residual, sum, cache.dropout1, context, [&](const auto& r, const auto& y) {
      self_attn_.forward_residual(x, x, x, mask, r, y, cache.self_attn, context);
    });
  }

  TensorView<const T, 3> dropped(const TensorView<const T, 3>& dy, const typename Dropout<T>::Cache& cache,
                                 Context& context) const {
    return detail::branch_gradient<T>(dropout_, dy, cache, context);
  }

  EncoderLayerOptions options_;
  MultiHeadAttention<T> self_attn_;
  FeedForward<T> feed_forward_;
  LayerNorm<T> norm1_, norm2_;
  Dropout<T> dropout_;
};

HEED_NAMESPACE_END
