// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// DecoderLayer: one block of a decoder that reads a memory.

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

struct DecoderLayerOptions {
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
  Index memory_dim = 0;                            ///< width of the memory; 0 stands for E
  double dropout = 0;  ///< while context.training: of attention weights, hidden units, a, c and f
};

namespace detail {

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

}  // namespace detail

/// One decoder block; x and y (B, Lq, E), memory (B, Lk, memory_model), with a = self_attn, c = multihead_attn, which
/// reads keys and values from the memory, and f = linear2(activation(linear1(·))):
///   NormPlacement::Post  s = norm1(x + a(x)),  t = norm2(s + c(s, memory)),  y = norm3(t + f(t))
///   NormPlacement::Pre   s = x + a(norm1(x)),  t = s + c(norm2(s), memory),  y = t + f(norm3(t))
/// Dropout acts where PyTorch's TransformerDecoderLayer has it.
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
        multihead_attn_({.embed_dim = options.embed_dim,
                         .num_heads = options.num_heads,
                         .num_kv_heads = options.num_kv_heads,
                         .key_dim = options.memory_dim,
                         .bias = options.bias,
                         .dropout = options.dropout}),
        feed_forward_(detail::feed_forward_options(options)),
        norm1_(detail::norm_options(options)),
        norm2_(norm1_.options()),
        norm3_(norm1_.options()),
        dropout_({.probability = options.dropout}) {}

  /// What backward() needs of a forward: its inputs, borrowed, and what its parts gave and keep.
  struct Cache {
    TensorView<const T, 3> x{}, memory{};
    detail::Buffer<T> first, second, normed1, normed2, normed3;
    typename MultiHeadAttention<T>::Cache self_attn, multihead_attn;
    typename FeedForward<T>::Cache feed_forward;
    typename LayerNorm<T>::Cache norm1, norm2, norm3;
    typename Dropout<T>::Cache dropout1, dropout2, dropout3;

    /// Memory held.
    std::size_t bytes() const {
      return first.bytes() + second.bytes() + normed1.bytes() + normed2.bytes() + normed3.bytes() + self_attn.bytes() +
             multihead_attn.bytes() + feed_forward.bytes() + norm1.bytes() + norm2.bytes() + norm3.bytes();
    }
  };

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
    check_inputs(x, memory, y);
    Workspace& workspace = context.workspace();
    const Workspace::Frame frame(workspace);
    const TensorView<T, 3> first = workspace.template tensor<T, 3>(x.extents());
    const TensorView<T, 3> second = workspace.template tensor<T, 3>(x.extents());
    if (options_.norm_placement == NormPlacement::Pre) {
      const TensorView<T, 3> normed = workspace.template tensor<T, 3>(x.extents());
      detail::run_norm<T>(norm1_, "norm1", x, normed, context);
      attend(self_attn_, "self_attn", normed, normed, self_mask, x, first, context);
      detail::run_norm<T>(norm2_, "norm2", first, normed, context);
      attend(multihead_attn_, "multihead_attn", normed, memory, memory_mask, first, second, context);
      detail::run_norm<T>(norm3_, "norm3", second, normed, context);
      detail::add_feed_forward<T>(feed_forward_, dropout_, normed, second, y, context);
    } else {
      attend(self_attn_, "self_attn", x, x, self_mask, x, first, context);
      detail::run_norm<T>(norm1_, "norm1", first, first, context);
      attend(multihead_attn_, "multihead_attn", first, memory, memory_mask, first, second, context);
      detail::run_norm<T>(norm2_, "norm2", second, second, context);
      detail::add_feed_forward<T>(feed_forward_, dropout_, second, second, y, context);
      detail::run_norm<T>(norm3_, "norm3", y, y, context);
    }
    context.observe(y);
  }

  /// forward() that a backward() can follow; x and memory must live, unchanged, until then.
  void forward(TensorView<const T, 3> x, TensorView<const T, 3> memory, const MaskArgument<T>& self_mask,
               const MaskArgument<T>& memory_mask, TensorView<T, 3> y, Cache& cache, Context& context) const {
    check_inputs(x, memory, y);
    cache.x = x;
    cache.memory = memory;
    const Extents<3>& e = x.extents();
    const auto first = cache.first.template view<3>(e), second = cache.second.template view<3>(e);
    const auto normed1 = cache.normed1.template view<3>(e), normed2 = cache.normed2.template view<3>(e);
    const auto normed3 = cache.normed3.template view<3>(e);
    const Part self_attn{cache.self_attn, cache.dropout1}, multihead_attn{cache.multihead_attn, cache.dropout2};
    if (options_.norm_placement == NormPlacement::Pre) {
      detail::run_norm<T>(norm1_, "norm1", x, normed1, cache.norm1, context);
      attend(self_attn_, "self_attn", normed1, normed1, self_mask, x, first, self_attn, context);
      detail::run_norm<T>(norm2_, "norm2", first, normed2, cache.norm2, context);
      attend(multihead_attn_, "multihead_attn", normed2, memory, memory_mask, first, second, multihead_attn, context);
      detail::run_norm<T>(norm3_, "norm3", second, normed3, cache.norm3, context);
      detail::add_feed_forward<T>(feed_forward_, dropout_, normed3, second, y, cache.feed_forward, cache.dropout3,
                                  context);
    } else {
      attend(self_attn_, "self_attn", x, x, self_mask, x, first, self_attn, context);
      detail::run_norm<T>(norm1_, "norm1", first, normed1, cache.norm1, context);
      attend(multihead_attn_, "multihead_attn", normed1, memory, memory_mask, normed1, second, multihead_attn, context);
      detail::run_norm<T>(norm2_, "norm2", second, normed2, cache.norm2, context);
      detail::add_feed_forward<T>(feed_forward_, dropout_, normed2, normed2, normed3, cache.feed_forward,
                                  cache.dropout3, context);
      detail::run_norm<T>(norm3_, "norm3", normed3, y, cache.norm3, context);
    }
    context.observe(y);
  }
  /// Adds to the gradients of the parts and writes dx and dmemory, under the masks of the forward; one without data is
  /// not computed. Throws ShapeError when a view doesn't fit the forward, ValueError when a gradient overlaps dy or its
  /// input.
  void backward(TensorView<const T, 3> dy, const MaskArgument<T>& self_mask, const MaskArgument<T>& memory_mask,
                TensorView<T, 3> dx, TensorView<T, 3> dmemory, Cache& cache, Context& context) {
    backward_residual(dy, self_mask, memory_mask, dx, {dmemory}, cache, context);
  }
  /// The same with a residual added to the gradient of the memory, which the blocks of a stack share.
  void backward_residual(TensorView<const T, 3> dy, const MaskArgument<T>& self_mask,
                         const MaskArgument<T>& memory_mask, TensorView<T, 3> dx, const InputGradient<T>& memory,
                         Cache& cache, Context& context) {
    const Extents<3>& e = cache.x.extents();
    detail::check_backward(kName, cache.x, e, dy, dx);
    detail::check_backward(kName, cache.memory, e, dy, memory.dx);
    Workspace& workspace = context.workspace();
    const Workspace::Frame frame(workspace);
    const TensorView<T, 3> dfirst = workspace.template tensor<T, 3>(e), dsecond = workspace.template tensor<T, 3>(e);
    const TensorView<T, 3> dnormed = workspace.template tensor<T, 3>(e);
    // Keys and values come from the memory, by one product or by two, of which the second adds to the first.
    const auto& options = multihead_attn_.options();
    const InputGradient<T> values =
        options.key_dim == options.embed_dim ? InputGradient<T>{} : InputGradient<T>{memory.dx, memory.dx};
    if (options_.norm_placement == NormPlacement::Pre) {
      feed_forward_.backward(dropped(dy, cache.dropout3, context), dnormed, cache.feed_forward, context);
      norm3_.backward_residual(dnormed, dy, dsecond, cache.norm3, context);
      multihead_attn_.backward_residual(dropped(dsecond, cache.dropout2, context), memory_mask, {dnormed}, memory,
                                        values, cache.multihead_attn, context);
      norm2_.backward_residual(dnormed, dsecond, dfirst, cache.norm2, context);
      self_attn_.backward(dropped(dfirst, cache.dropout1, context), self_mask, dnormed, cache.self_attn, context);
      norm1_.backward_residual(dnormed, dfirst, dx, cache.norm1, context);
    } else {
      norm3_.backward(dy, dsecond, cache.norm3, context);
      feed_forward_.backward_residual(dropped(dsecond, cache.dropout3, context), dsecond, dnormed, cache.feed_forward,
                                      context);
      norm2_.backward(dnormed, dsecond, cache.norm2, context);
      multihead_attn_.backward_residual(dropped(dsecond, cache.dropout2, context), memory_mask, {dnormed, dsecond},
                                        memory, values, cache.multihead_attn, context);
      norm1_.backward(dnormed, dfirst, cache.norm1, context);
      self_attn_.backward_residual(dropped(dfirst, cache.dropout1, context), self_mask, {dx, dfirst}, {}, {},
                                   cache.self_attn, context);
    }
  }

 private:
  static constexpr std::string_view kName = "heed::DecoderLayer";

  void check_inputs(const TensorView<const T, 3>& x, const TensorView<const T, 3>& memory,
                    const TensorView<T, 3>& y) const {
    detail::check_layer_shapes(kName, x, y, options_.embed_dim, options_.embed_dim);
    const Index memory_model = multihead_attn_.options().key_dim;
    HEED_CHECK(memory.extent(2) == memory_model, ShapeError, kName, ": memory ", memory.extents(), " has width ",
               memory.extent(2), " but the layer takes ", memory_model);
    HEED_CHECK(memory.extent(0) == x.extent(0), ShapeError, kName, ": memory ", memory.extents(),
               " has B = ", memory.extent(0), " but x ", x.extents(), " has B = ", x.extent(0),
               "; each sample needs its own");
    HEED_CHECK(!detail::may_overlap(memory, y), ValueError, kName,
               ": y overlaps the memory; give it memory of its own");
  }

  template <class Self, class F>
  static void visit_parameters(Self& self, std::string_view prefix, F& f) {
    self.self_attn_.visit(detail::join(prefix, "self_attn"), f);
    self.multihead_attn_.visit(detail::join(prefix, "multihead_attn"), f);
    self.feed_forward_.visit(prefix, f);
    self.norm1_.visit(detail::join(prefix, "norm1"), f);
    self.norm2_.visit(detail::join(prefix, "norm2"), f);
    self.norm3_.visit(detail::join(prefix, "norm3"), f);
  }

  /// What backward() needs of one attention and its dropout.
  struct Part {
    typename MultiHeadAttention<T>::Cache& attention;
    typename Dropout<T>::Cache& dropout;
  };

  /// sum = residual + dropout(attention(x, source)).
  void attend(const MultiHeadAttention<T>& attention, std::string_view name, const TensorView<const T, 3>& x,
              const TensorView<const T, 3>& source, const MaskArgument<T>& mask, const TensorView<const T, 3>& residual,
              const TensorView<T, 3>& sum, Context& context) const {
    const Context::Scope scope(context, name);
    detail::add_branch<T>(dropout_, residual, sum, context, [&](const auto& r, const auto& y) {
      attention.forward_residual(x, source, source, mask, r, y, context);
    });
  }
  void attend(const MultiHeadAttention<T>& attention, std::string_view name, const TensorView<const T, 3>& x,
              const TensorView<const T, 3>& source, const MaskArgument<T>& mask, const TensorView<const T, 3>& residual,
              const TensorView<T, 3>& sum, const Part& cache, Context& context) const {
    const Context::Scope scope(context, name);
    detail::add_branch<T>(dropout_, residual, sum, cache.dropout, context, [&](const auto& r, const auto& y) {
      attention.forward_residual(x, source, source, mask, r, y, cache.attention, context);
    });
  }

  TensorView<const T, 3> dropped(const TensorView<const T, 3>& dy, const typename Dropout<T>::Cache& cache,
                                 Context& context) const {
    return detail::branch_gradient<T>(dropout_, dy, cache, context);
  }

  DecoderLayerOptions options_;
  MultiHeadAttention<T> self_attn_, multihead_attn_;
  FeedForward<T> feed_forward_;
  LayerNorm<T> norm1_, norm2_, norm3_;
  Dropout<T> dropout_;
};

HEED_NAMESPACE_END
