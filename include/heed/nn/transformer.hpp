// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Transformer blocks and their stacks: EncoderLayer, DecoderLayer, Encoder, Decoder.
/// Vaswani et al.: "Attention is all you need", 2017, section 3.1; where the norms stand: Xiong et al.: "On layer
/// normalization in the transformer architecture", 2020.
///
/// Names of parameters and defaults are those of PyTorch's TransformerEncoderLayer, TransformerDecoderLayer,
/// TransformerEncoder and TransformerDecoder. Everything starts with zeros, norms with ones: load weights or call
/// initialize().

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/core/tensor.hpp>
#include <heed/core/vec_math.hpp>
#include <heed/core/workspace.hpp>
#include <heed/mask/basic.hpp>
#include <heed/nn/feed_forward.hpp>
#include <heed/nn/init.hpp>
#include <heed/nn/layer.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/multi_head_attention.hpp>
#include <heed/nn/norm.hpp>
#include <heed/nn/positional.hpp>
#include <heed/nn/self_attention.hpp>

HEED_NAMESPACE_BEGIN

/// Where a block normalises.
enum class Norm {
  Pre,  ///< x + f(norm(x)); a stack of such blocks wants a final norm
  Post  ///< norm(x + f(x)), as in the paper and in BERT
};

struct EncoderLayerOptions {
  Index model;             ///< E
  Index heads;             ///< H
  Index feed_forward = 0;  ///< F; 0 stands for 4·E
  Norm norm = Norm::Post;
  Activation activation = Activation::ReLU;  ///< of the feed-forward layer
  bool gated = false;                        ///< a gated feed-forward layer (SwiGLU with SiLU)
  double eps = 1e-5;                         ///< of the norms
  bool bias = true;                          ///< in projections and norms
  Index kv_heads = 0;                        ///< G, a divisor of H; 0 stands for H
  std::optional<RotaryOptions> rotary{};     ///< of self-attention; width 0 stands for the width of a head
};

struct DecoderLayerOptions {
  Index model;             ///< E
  Index heads;             ///< H
  Index feed_forward = 0;  ///< F; 0 stands for 4·E
  Norm norm = Norm::Post;
  Activation activation = Activation::ReLU;  ///< of the feed-forward layer
  bool gated = false;                        ///< a gated feed-forward layer (SwiGLU with SiLU)
  double eps = 1e-5;                         ///< of the norms
  bool bias = true;                          ///< in projections and norms
  Index kv_heads = 0;                        ///< G, a divisor of H; 0 stands for H
  std::optional<RotaryOptions> rotary{};     ///< of self-attention; width 0 stands for the width of a head
  Index memory_model = 0;                    ///< width of the memory; 0 stands for E
};

/// A stack of blocks.
template <class LayerOptions>
struct StackOptions {
  Index layers;                      ///< how many
  LayerOptions layer;                ///< of each block
  bool final_norm = false;           ///< after the last block
  std::optional<double> norm_eps{};  ///< of the final norm; the blocks' where not given
};
using EncoderOptions = StackOptions<EncoderLayerOptions>;
using DecoderOptions = StackOptions<DecoderLayerOptions>;

namespace detail {

// The parts of a block, from the options of an encoder or a decoder layer.

template <class Options>
MultiHeadAttentionOptions self_attention_options(const Options& o) {
  return {.model = o.model, .heads = o.heads, .kv_heads = o.kv_heads, .bias = o.bias, .rotary = o.rotary};
}
template <class Options>
FeedForwardOptions feed_forward_options(const Options& o) {
  return {.model = o.model, .hidden = o.feed_forward, .activation = o.activation, .gated = o.gated, .bias = o.bias};
}
template <class Options>
LayerNormOptions norm_options(const Options& o) {
  return {.width = o.model, .eps = o.eps, .bias = o.bias};
}

template <class T>
void start_norm(LayerNorm<T>& norm) {
  init::constant(norm.weight(), 1);
  if (norm.bias().exists()) init::zeros(norm.bias());
}

template <class T>
void run_norm(const LayerNorm<T>& norm, std::string_view name, const TensorView<const T, 3>& x,
              const TensorView<T, 3>& y, Context& context) {
  const Context::Scope scope(context, name);
  norm.forward(x, y, context);
}

/// Gives a layer with an input, a memory and a mask for each its convenience calls.
template <class Layer, class T>
class MemoryLayer {
 public:
  template <TensorLike X, TensorLike Memory>
  auto operator()(const X& x, const Memory& memory, const MaskArgument<T>& self_mask,
                  const MaskArgument<T>& memory_mask, Context& context) const {
    static_assert(
        has_elements_of_v<X, T> && has_elements_of_v<Memory, T>,
        "heed: the elements of an input are not of the layer's type; cast it, x.cast<float>() for plain Eigen");
    const Layer& layer = static_cast<const Layer&>(*this);
    const auto forward = [&](TensorView<const T, 3> in, TensorView<const T, 3> from, TensorView<T, 3> out) {
      layer.forward(in, from, self_mask, memory_mask, out, context);
    };
    return apply<T>(width_of(x), context, forward, x, memory);
  }
  template <TensorLike X, TensorLike Memory>
  auto operator()(const X& x, const Memory& memory, const MaskArgument<T>& self_mask,
                  const MaskArgument<T>& memory_mask = NoMask{}) const {
    Context context;
    return (*this)(x, memory, self_mask, memory_mask, context);
  }
};

/// What Encoder and Decoder share: blocks one after the other, with an optional norm at the end.
template <class Layer, class Options, class T>
class Stack {
 public:
  const Options& options() const { return options_; }
  /// The number of blocks.
  Index size() const { return static_cast<Index>(layers_.size()); }
  /// Block i; unchecked.
  Layer& layer(Index i) { return layers_[static_cast<std::size_t>(i)]; }
  const Layer& layer(Index i) const { return layers_[static_cast<std::size_t>(i)]; }
  /// The final norm; null unless there is one.
  LayerNorm<T>* norm() { return norm_ ? &*norm_ : nullptr; }
  const LayerNorm<T>* norm() const { return norm_ ? &*norm_ : nullptr; }
  Index output_width(Index) const { return options_.layer.model; }

  template <class F>
  void visit(std::string_view prefix, F&& f) {
    visit_parameters(*this, prefix, f);
  }
  template <class F>
  void visit(std::string_view prefix, F&& f) const {
    visit_parameters(*this, prefix, f);
  }

  /// Each block as it starts itself. `name` is the stack's name in its model.
  void initialize(std::uint64_t seed, std::string_view name = "") {
    for (Index i = 0; i < size(); ++i) layer(i).initialize(seed, join(name, "layers", static_cast<int>(i)));
    if (norm_) start_norm(*norm_);
  }
  /// Packs every projection as Linear::pack().
  void pack(const PackOptions& options = {}) {
    for (Layer& layer : layers_) layer.pack(options);
  }

 protected:
  Stack(std::string_view name, const Options& options) : name_(name), options_(options) {
    HEED_CHECK(options.layers >= 0, ShapeError, name, ": layers = ", options.layers, " is negative");
    layers_.reserve(static_cast<std::size_t>(options.layers));
    for (Index i = 0; i < options.layers; ++i) layers_.emplace_back(options.layer);
    if (options.final_norm) {
      LayerNormOptions norm = norm_options(options.layer);
      norm.eps = options.norm_eps.value_or(norm.eps);
      norm_.emplace(norm);
    }
  }

  /// run(block, x, y) for each block in turn; the output of one is the input of the next.
  template <class Run>
  void forward_blocks(const TensorView<const T, 3>& x, const TensorView<T, 3>& y, Context& context, Run&& run) const {
    const Index width = options_.layer.model;
    check_layer_shapes(name_, x, y, width, width);
    const Workspace::Frame frame(context.workspace());
    // Between the blocks two buffers of row-major memory take turns; only the last block writes to y, whose strides are
    // the caller's.
    TensorView<T, 3> buffers[2];
    for (Index i = 0; i < std::min<Index>(2, size() - 1); ++i) {
      buffers[i] = context.workspace().template tensor<T, 3>(x.extents());
    }
    TensorView<const T, 3> from = x;
    for (Index i = 0; i < size(); ++i) {
      const TensorView<T, 3> to = i + 1 < size() ? buffers[i % 2] : y;
      const Context::Scope scope(context, "layers", static_cast<int>(i));
      run(layer(i), from, to);
      from = to;
    }
    if (norm_) {
      run_norm<T>(*norm_, "norm", from, y, context);
    } else if (size() == 0) {
      transform_rows<T>(x, y, context, [&](Index, Index, const T* in, T* out) { std::copy_n(in, width, out); });
    }
    context.observe(y);
  }

 private:
  template <class Self, class F>
  static void visit_parameters(Self& self, std::string_view prefix, F& f) {
    for (Index i = 0; i < self.size(); ++i) self.layer(i).visit(join(prefix, "layers", static_cast<int>(i)), f);
    if (self.norm_) self.norm_->visit(join(prefix, "norm"), f);
  }

  std::string_view name_;
  Options options_;
  std::vector<Layer> layers_;
  std::optional<LayerNorm<T>> norm_;
};

}  // namespace detail

/// One encoder block; x and y (B, L, E), with a = self_attn and f = linear2(activation(linear1(·))):
///   Norm::Post  s = norm1(x + a(x)),  y = norm2(s + f(s))
///   Norm::Pre   s = x + a(norm1(x)),  y = s + f(norm2(s))
/// With heed::Causal it is the block of a decoder-only model. A query that its mask leaves without keys still has its
/// row, made of itself alone.
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
        norm2_(norm1_.options()) {}

  const EncoderLayerOptions& options() const { return options_; }
  MultiHeadAttention<T>& self_attn() { return self_attn_; }
  const MultiHeadAttention<T>& self_attn() const { return self_attn_; }
  FeedForward<T>& feed_forward() { return feed_forward_; }
  const FeedForward<T>& feed_forward() const { return feed_forward_; }
  LayerNorm<T>& norm1() { return norm1_; }
  const LayerNorm<T>& norm1() const { return norm1_; }
  LayerNorm<T>& norm2() { return norm2_; }
  const LayerNorm<T>& norm2() const { return norm2_; }
  Index output_width(Index) const { return options_.model; }

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
    detail::check_layer_shapes(kName, x, y, options_.model, options_.model);
    Workspace& workspace = context.workspace();
    const Workspace::Frame frame(workspace);
    const TensorView<T, 3> sum = workspace.template tensor<T, 3>(x.extents());
    if (options_.norm == Norm::Pre) {
      const TensorView<T, 3> normed = workspace.template tensor<T, 3>(x.extents());
      detail::run_norm<T>(norm1_, "norm1", x, normed, context);
      attend(normed, mask, x, sum, context);
      detail::run_norm<T>(norm2_, "norm2", sum, normed, context);
      feed_forward_.forward_residual(normed, sum, y, context);
    } else {
      attend(x, mask, x, sum, context);
      detail::run_norm<T>(norm1_, "norm1", sum, sum, context);
      feed_forward_.forward_residual(sum, sum, y, context);
      detail::run_norm<T>(norm2_, "norm2", y, y, context);
    }
    context.observe(y);
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

  /// sum = residual + self_attn(x).
  void attend(const TensorView<const T, 3>& x, const MaskArgument<T>& mask, const TensorView<const T, 3>& residual,
              const TensorView<T, 3>& sum, Context& context) const {
    const Context::Scope scope(context, "self_attn");
    self_attn_.forward_residual(x, x, x, mask, residual, sum, context);
  }

  EncoderLayerOptions options_;
  MultiHeadAttention<T> self_attn_;
  FeedForward<T> feed_forward_;
  LayerNorm<T> norm1_, norm2_;
};

/// One decoder block; x and y (B, Lq, E), memory (B, Lk, memory_model), with a = self_attn, c = multihead_attn, which
/// reads keys and values from the memory, and f = linear2(activation(linear1(·))):
///   Norm::Post  s = norm1(x + a(x)),  t = norm2(s + c(s, memory)),  y = norm3(t + f(t))
///   Norm::Pre   s = x + a(norm1(x)),  t = s + c(norm2(s), memory),  y = t + f(norm3(t))
/// The self mask is always named: y = layer(x, memory, heed::Causal{}, heed::Padding(memory_lengths)).
///
/// Parameters: self_attn.*, multihead_attn.*, linear1.*, linear2.* (and gate.*), norm1.*, norm2.*, norm3.*.
template <class T>
class DecoderLayer : public detail::MemoryLayer<DecoderLayer<T>, T> {
 public:
  /// Throws what its parts find wrong with the options.
  explicit DecoderLayer(const DecoderLayerOptions& options)
      : options_(options),
        self_attn_(detail::self_attention_options(options)),
        multihead_attn_({.model = options.model,
                         .heads = options.heads,
                         .kv_heads = options.kv_heads,
                         .key_model = options.memory_model,
                         .bias = options.bias}),
        feed_forward_(detail::feed_forward_options(options)),
        norm1_(detail::norm_options(options)),
        norm2_(norm1_.options()),
        norm3_(norm1_.options()) {}

  const DecoderLayerOptions& options() const { return options_; }
  MultiHeadAttention<T>& self_attn() { return self_attn_; }
  const MultiHeadAttention<T>& self_attn() const { return self_attn_; }
  MultiHeadAttention<T>& multihead_attn() { return multihead_attn_; }
  const MultiHeadAttention<T>& multihead_attn() const { return multihead_attn_; }
  FeedForward<T>& feed_forward() { return feed_forward_; }
  const FeedForward<T>& feed_forward() const { return feed_forward_; }
  LayerNorm<T>& norm1() { return norm1_; }
  const LayerNorm<T>& norm1() const { return norm1_; }
  LayerNorm<T>& norm2() { return norm2_; }
  const LayerNorm<T>& norm2() const { return norm2_; }
  LayerNorm<T>& norm3() { return norm3_; }
  const LayerNorm<T>& norm3() const { return norm3_; }

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
    multihead_attn_.initialize(seed, detail::join(name, "multihead_attn"));
    feed_forward_.initialize(seed, name);
    detail::start_norm(norm1_);
    detail::start_norm(norm2_);
    detail::start_norm(norm3_);
  }

  /// Packs every projection as Linear::pack().
  void pack(const PackOptions& options = {}) {
    self_attn_.pack(options);
    multihead_attn_.pack(options, Projections::Separate);
    feed_forward_.pack(options);
  }

  /// Throws ShapeError unless x and y are (B, Lq, E) and memory (B, Lk, memory_model), ValueError when y overlaps x or
  /// memory, and what the masks find wrong.
  void forward(TensorView<const T, 3> x, TensorView<const T, 3> memory, const MaskArgument<T>& self_mask,
               const MaskArgument<T>& memory_mask, TensorView<T, 3> y, Context& context) const {
    detail::check_layer_shapes(kName, x, y, options_.model, options_.model);
    const Index memory_model = multihead_attn_.options().key_model;
    HEED_CHECK(memory.extent(2) == memory_model, ShapeError, kName, ": memory ", memory.extents(), " has width ",
               memory.extent(2), " but the layer takes ", memory_model);
    HEED_CHECK(memory.extent(0) == x.extent(0), ShapeError, kName, ": memory ", memory.extents(),
               " has B = ", memory.extent(0), " but x ", x.extents(), " has B = ", x.extent(0),
               "; each sample needs its own");
    HEED_CHECK(!detail::may_overlap(memory, y), ValueError, kName,
               ": y overlaps the memory; give it memory of its own");
    Workspace& workspace = context.workspace();
    const Workspace::Frame frame(workspace);
    const TensorView<T, 3> first = workspace.template tensor<T, 3>(x.extents());
    const TensorView<T, 3> second = workspace.template tensor<T, 3>(x.extents());
    if (options_.norm == Norm::Pre) {
      const TensorView<T, 3> normed = workspace.template tensor<T, 3>(x.extents());
      detail::run_norm<T>(norm1_, "norm1", x, normed, context);
      attend(self_attn_, "self_attn", normed, normed, self_mask, x, first, context);
      detail::run_norm<T>(norm2_, "norm2", first, normed, context);
      attend(multihead_attn_, "multihead_attn", normed, memory, memory_mask, first, second, context);
      detail::run_norm<T>(norm3_, "norm3", second, normed, context);
      feed_forward_.forward_residual(normed, second, y, context);
    } else {
      attend(self_attn_, "self_attn", x, x, self_mask, x, first, context);
      detail::run_norm<T>(norm1_, "norm1", first, first, context);
      attend(multihead_attn_, "multihead_attn", first, memory, memory_mask, first, second, context);
      detail::run_norm<T>(norm2_, "norm2", second, second, context);
      feed_forward_.forward_residual(second, second, y, context);
      detail::run_norm<T>(norm3_, "norm3", y, y, context);
    }
    context.observe(y);
  }

 private:
  static constexpr std::string_view kName = "heed::DecoderLayer";

  template <class Self, class F>
  static void visit_parameters(Self& self, std::string_view prefix, F& f) {
    self.self_attn_.visit(detail::join(prefix, "self_attn"), f);
    self.multihead_attn_.visit(detail::join(prefix, "multihead_attn"), f);
    self.feed_forward_.visit(prefix, f);
    self.norm1_.visit(detail::join(prefix, "norm1"), f);
    self.norm2_.visit(detail::join(prefix, "norm2"), f);
    self.norm3_.visit(detail::join(prefix, "norm3"), f);
  }

  /// sum = residual + attention(x, source).
  static void attend(const MultiHeadAttention<T>& attention, std::string_view name, const TensorView<const T, 3>& x,
                     const TensorView<const T, 3>& source, const MaskArgument<T>& mask,
                     const TensorView<const T, 3>& residual, const TensorView<T, 3>& sum, Context& context) {
    const Context::Scope scope(context, name);
    attention.forward_residual(x, source, source, mask, residual, sum, context);
  }

  DecoderLayerOptions options_;
  MultiHeadAttention<T> self_attn_, multihead_attn_;
  FeedForward<T> feed_forward_;
  LayerNorm<T> norm1_, norm2_, norm3_;
};

/// A stack of encoder blocks and, with final_norm, a LayerNorm at the end; x and y (B, L, E).
/// Parameters: layers.N.*, norm.*.
///
///   heed::Encoder<float> encoder({.layers = 6, .layer = {.model = 384, .heads = 12, .feed_forward = 1536}});
///   heed::load_parameters(encoder, heed::SafeTensors::open(path), names);
///   heed::Tensor<float, 3> y = encoder(x, heed::Padding(lengths));
template <class T>
class Encoder : public detail::Stack<EncoderLayer<T>, EncoderOptions, T>, public detail::MaskedLayer<Encoder<T>, T> {
 public:
  using detail::MaskedLayer<Encoder<T>, T>::forward;

  /// Throws ShapeError for a negative number of layers, and what a layer finds wrong with its options.
  explicit Encoder(const EncoderOptions& options)
      : detail::Stack<EncoderLayer<T>, EncoderOptions, T>("heed::Encoder", options) {}

  /// Throws ShapeError unless x and y are (B, L, E), ValueError when they overlap, and what the mask finds wrong.
  void forward(TensorView<const T, 3> x, const MaskArgument<T>& mask, TensorView<T, 3> y, Context& context) const {
    this->forward_blocks(x, y, context,
                         [&](const EncoderLayer<T>& layer, TensorView<const T, 3> from, TensorView<T, 3> to) {
                           layer.forward(from, mask, to, context);
                         });
  }
};

/// A stack of decoder blocks, all of which read the same memory, and, with final_norm, a LayerNorm at the end;
/// x and y (B, Lq, E), memory (B, Lk, memory_model). Parameters: layers.N.*, norm.*.
///
///   heed::Tensor<float, 3> y = decoder(x, memory, heed::Causal{}, heed::Padding(memory_lengths));
template <class T>
class Decoder : public detail::Stack<DecoderLayer<T>, DecoderOptions, T>, public detail::MemoryLayer<Decoder<T>, T> {
 public:
  /// Throws ShapeError for a negative number of layers, and what a layer finds wrong with its options.
  explicit Decoder(const DecoderOptions& options)
      : detail::Stack<DecoderLayer<T>, DecoderOptions, T>("heed::Decoder", options) {}

  /// Throws as DecoderLayer::forward() does.
  void forward(TensorView<const T, 3> x, TensorView<const T, 3> memory, const MaskArgument<T>& self_mask,
               const MaskArgument<T>& memory_mask, TensorView<T, 3> y, Context& context) const {
    this->forward_blocks(x, y, context,
                         [&](const DecoderLayer<T>& layer, TensorView<const T, 3> from, TensorView<T, 3> to) {
                           layer.forward(from, memory, self_mask, memory_mask, to, context);
                         });
  }
};

HEED_NAMESPACE_END
