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
#include <heed/core/workspace.hpp>
#include <heed/mask/basic.hpp>
#include <heed/nn/activation_checkpoint.hpp>
#include <heed/nn/backward.hpp>
#include <heed/nn/decoder_layer.hpp>
#include <heed/nn/encoder_layer.hpp>
#include <heed/nn/layer.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/masked_layer.hpp>
#include <heed/nn/norm.hpp>
#include <heed/nn/transformer_block.hpp>

HEED_NAMESPACE_BEGIN

/// A stack of blocks.
template <class LayerOptions>
struct TransformerStackOptions {
  Index num_layers;                  ///< how many
  LayerOptions layer;                ///< of each block
  bool final_norm = false;           ///< after the last block
  std::optional<double> norm_eps{};  ///< of the final norm; the blocks' where not given
};
using EncoderOptions = TransformerStackOptions<EncoderLayerOptions>;  ///< what Encoder is made with
using DecoderOptions = TransformerStackOptions<DecoderLayerOptions>;  ///< what Decoder is made with

namespace detail {

/// What Encoder and Decoder share: blocks one after the other, with an optional norm at the end.
template <class Layer, class Options, class T>
class TransformerStack {
 public:
  /// What backward() needs of a forward: the input of each block, the first of them borrowed, and what the blocks keep.
  struct Cache {
    /// Set before a forward: the blocks keep nothing, and the backward runs each of them once more before its own
    /// backward. The gradients have the same bits; the memory is that of one block and the inputs of the others.
    bool checkpointing = false;

    TensorView<const T, 3> x{};
    std::vector<Buffer<T>> outputs;
    std::vector<typename Layer::Cache> layers;
    std::vector<ActivationCheckpoint> checkpoints;
    typename LayerNorm<T>::Cache norm;

    /// Memory held.
    std::size_t bytes() const {
      std::size_t total = norm.bytes();
      for (const auto& output : outputs) total += output.bytes();
      for (const auto& layer : layers) total += layer.bytes();
      return total;
    }
  };

  const Options& options() const { return options_; }
  /// The number of blocks.
  Index size() const { return static_cast<Index>(layers_.size()); }
  /// Block i; unchecked.
  Layer& layer(Index i) { return layers_[static_cast<std::size_t>(i)]; }
  const Layer& layer(Index i) const { return layers_[static_cast<std::size_t>(i)]; }
  /// The final norm; null unless there is one.
  LayerNorm<T>* norm() { return norm_ ? &*norm_ : nullptr; }
  const LayerNorm<T>* norm() const { return norm_ ? &*norm_ : nullptr; }
  Index output_width(Index) const { return options_.layer.embed_dim; }

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
  TransformerStack(std::string_view name, const Options& options) : name_(name), options_(options) {
    HEED_CHECK(options.num_layers >= 0, ShapeError, name, ": layers = ", options.num_layers, " is negative");
    layers_.reserve(static_cast<std::size_t>(options.num_layers));
    for (Index i = 0; i < options.num_layers; ++i) layers_.emplace_back(options.layer);
    if (options.final_norm) {
      LayerNormOptions norm = norm_options(options.layer);
      norm.eps = options.norm_eps.value_or(norm.eps);
      norm_.emplace(norm);
    }
  }

  /// run(block, x, y) for each block in turn; the output of one is the input of the next.
  template <class Run>
  void forward_blocks(const TensorView<const T, 3>& x, const TensorView<T, 3>& y, Context& context, Run&& run) const {
    const Index width = options_.layer.embed_dim;
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
      copy_rows(x, y, context);
    }
    context.observe(y);
  }

  /// forward_blocks() that fills a cache: plain(block, x, y) for each block when checkpointing, training(block, x, y,
  /// cache) otherwise.
  template <class Plain, class Training>
  void forward_blocks(const TensorView<const T, 3>& x, const TensorView<T, 3>& y, Cache& cache, Context& context,
                      Plain&& plain, Training&& training) const {
    check_layer_shapes(name_, x, y, options_.layer.embed_dim, options_.layer.embed_dim);
    cache.x = x;
    cache.outputs.resize(layers_.size());
    cache.layers.resize(cache.checkpointing ? std::min<std::size_t>(1, layers_.size()) : layers_.size());
    cache.checkpoints.clear();
    TensorView<const T, 3> from = x;
    for (Index i = 0; i < size(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      const bool is_last = i + 1 == size() && !norm_;
      const TensorView<T, 3> to = is_last ? y : cache.outputs[at].template view<3>(x.extents());
      const Context::Scope scope(context, "layers", static_cast<int>(i));
      if (cache.checkpointing) {
        cache.checkpoints.emplace_back(context);
        plain(layer(i), from, to);
      } else {
        training(layer(i), from, to, cache.layers[at]);
      }
      from = to;
    }
    if (norm_) {
      run_norm<T>(*norm_, "norm", from, y, cache.norm, context);
    } else if (size() == 0) {
      copy_rows(x, y, context);
    }
    context.observe(y);
  }
  /// backward(block, dy, dx, cache, is_first_call) for each block, last one first; dx is without data where it is not
  /// needed.
  template <class Training, class Backward>
  void backward_blocks(const TensorView<const T, 3>& dy, const TensorView<T, 3>& dx, Cache& cache, Context& context,
                       Training&& training, Backward&& backward) {
    const Extents<3> extents = cache.x.extents();
    check_backward(name_, cache.x, extents, dy, dx);
    Workspace& workspace = context.workspace();
    const Workspace::Frame frame(workspace);
    if (size() == 0) {
      if (norm_) return norm_->backward(dy, dx, cache.norm, context);
      if (dx.data()) copy_rows(dy, dx, context);
      return;
    }
    TensorView<T, 3> buffers[2];
    for (TensorView<T, 3>& buffer : buffers) buffer = workspace.template tensor<T, 3>(extents);
    TensorView<const T, 3> from = dy;
    int next = 0;
    if (norm_) {
      norm_->backward(dy, buffers[next], cache.norm, context);
      from = buffers[next];
      next = 1 - next;
    }
    for (Index i = size(); i-- > 0;) {
      const auto at = static_cast<std::size_t>(i);
      typename Layer::Cache& kept = cache.layers[cache.checkpointing ? 0 : at];
      if (cache.checkpointing) {
        const Workspace::Frame inner(workspace);
        const TensorView<T, 3> again = workspace.template tensor<T, 3>(extents);
        const TensorView<const T, 3> in = i == 0 ? cache.x : cache.outputs[at - 1].template view<3>(extents);
        cache.checkpoints[at].replay(context, [&] { training(layer(i), in, again, kept); });
      }
      const TensorView<T, 3> to = i == 0 ? dx : buffers[next];
      backward(layer(i), from, to, kept, i + 1 == size());
      from = to;
      next = 1 - next;
    }
  }

 private:
  void copy_rows(const TensorView<const T, 3>& from, const TensorView<T, 3>& to, Context& context) const {
    const Index width = options_.layer.embed_dim;
    transform_rows<T>(from, to, context, [&](Index, Index, const T* in, T* out) { std::copy_n(in, width, out); });
  }

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

/// A stack of encoder blocks and, with final_norm, a LayerNorm at the end; x and y (B, L, E).
/// Parameters: layers.N.*, norm.*.
///
///   heed::Encoder<float> encoder({.num_layers = 6, .layer = {.embed_dim = 384, .num_heads = 12, .ffn_dim = 1536}});
///   heed::load_parameters(encoder, heed::SafeTensors::open(path), names);
///   heed::Tensor<float, 3> y = encoder(x, heed::Padding(lengths));
template <class T>
class Encoder : public detail::TransformerStack<EncoderLayer<T>, EncoderOptions, T>,
                public detail::MaskedLayer<Encoder<T>, T> {
 public:
  using detail::MaskedLayer<Encoder<T>, T>::forward;

  /// Throws ShapeError for a negative number of layers, and what a layer finds wrong with its options.
  explicit Encoder(const EncoderOptions& options)
      : detail::TransformerStack<EncoderLayer<T>, EncoderOptions, T>("heed::Encoder", options) {}

  /// Throws ShapeError unless x and y are (B, L, E), ValueError when they overlap, and what the mask finds wrong.
  void forward(TensorView<const T, 3> x, const MaskArgument<T>& mask, TensorView<T, 3> y, Context& context) const {
    this->forward_blocks(x, y, context,
                         [&](const EncoderLayer<T>& layer, TensorView<const T, 3> from, TensorView<T, 3> to) {
                           layer.forward(from, mask, to, context);
                         });
  }

  using typename detail::TransformerStack<EncoderLayer<T>, EncoderOptions, T>::Cache;
  /// forward() that a backward() can follow; x must live, unchanged, until then.
  void forward(TensorView<const T, 3> x, const MaskArgument<T>& mask, TensorView<T, 3> y, Cache& cache,
               Context& context) const {
    this->forward_blocks(
        x, y, cache, context,
        [&](const EncoderLayer<T>& layer, TensorView<const T, 3> from, TensorView<T, 3> to) {
          layer.forward(from, mask, to, context);
        },
        training(mask, context));
  }
  /// Adds to the gradients of the blocks and writes dx, under the mask of the forward; a dx without data is not
  /// computed. Throws ShapeError when dy or dx don't fit the forward, ValueError when dx overlaps dy or x.
  void backward(TensorView<const T, 3> dy, const MaskArgument<T>& mask, TensorView<T, 3> dx, Cache& cache,
                Context& context) {
    this->backward_blocks(
        dy, dx, cache, context, training(mask, context),
        [&](EncoderLayer<T>& layer, TensorView<const T, 3> d, TensorView<T, 3> to,
            typename EncoderLayer<T>::Cache& kept, bool) { layer.backward(d, mask, to, kept, context); });
  }

 private:
  static auto training(const MaskArgument<T>& mask, Context& context) {
    return [&](const EncoderLayer<T>& layer, TensorView<const T, 3> from, TensorView<T, 3> to,
               typename EncoderLayer<T>::Cache& kept) { layer.forward(from, mask, to, kept, context); };
  }
};

/// A stack of decoder blocks, all of which read the same memory, and, with final_norm, a LayerNorm at the end;
/// x and y (B, Lq, E), memory (B, Lk, memory_model). Parameters: layers.N.*, norm.*.
///
///   heed::Tensor<float, 3> y = decoder(x, memory, heed::Causal{}, heed::Padding(memory_lengths));
template <class T>
class Decoder : public detail::TransformerStack<DecoderLayer<T>, DecoderOptions, T>,
                public detail::MemoryLayer<Decoder<T>, T> {
 public:
  /// Throws ShapeError for a negative number of layers, and what a layer finds wrong with its options.
  explicit Decoder(const DecoderOptions& options)
      : detail::TransformerStack<DecoderLayer<T>, DecoderOptions, T>("heed::Decoder", options) {}

  /// Throws as DecoderLayer::forward() does.
  void forward(TensorView<const T, 3> x, TensorView<const T, 3> memory, const MaskArgument<T>& self_mask,
               const MaskArgument<T>& memory_mask, TensorView<T, 3> y, Context& context) const {
    this->forward_blocks(x, y, context,
                         [&](const DecoderLayer<T>& layer, TensorView<const T, 3> from, TensorView<T, 3> to) {
                           layer.forward(from, memory, self_mask, memory_mask, to, context);
                         });
  }

  /// What backward() needs of a forward: also the memory, borrowed.
  struct Cache : detail::TransformerStack<DecoderLayer<T>, DecoderOptions, T>::Cache {
    TensorView<const T, 3> memory{};
  };
  /// forward() that a backward() can follow; x and memory must live, unchanged, until then.
  void forward(TensorView<const T, 3> x, TensorView<const T, 3> memory, const MaskArgument<T>& self_mask,
               const MaskArgument<T>& memory_mask, TensorView<T, 3> y, Cache& cache, Context& context) const {
    cache.memory = memory;
    this->forward_blocks(
        x, y, cache, context,
        [&](const DecoderLayer<T>& layer, TensorView<const T, 3> from, TensorView<T, 3> to) {
          layer.forward(from, memory, self_mask, memory_mask, to, context);
        },
        training(memory, self_mask, memory_mask, context));
  }
  /// Adds to the gradients of the blocks and writes dx and dmemory, the sum over the blocks, under the masks of the
  /// forward; one without data is not computed. Throws as DecoderLayer::backward() does.
  void backward(TensorView<const T, 3> dy, const MaskArgument<T>& self_mask, const MaskArgument<T>& memory_mask,
                TensorView<T, 3> dx, TensorView<T, 3> dmemory, Cache& cache, Context& context) {
    detail::check_backward("heed::Decoder", cache.memory, cache.x.extents(), dy, dmemory);
    for (Index b = 0; this->size() == 0 && dmemory.data() && b < dmemory.extent(0); ++b) {
      for (Index l = 0; l < dmemory.extent(1); ++l) {
        for (Index e = 0; e < dmemory.extent(2); ++e) dmemory(b, l, e) = T(0);
      }
    }
    this->backward_blocks(dy, dx, cache, context, training(cache.memory, self_mask, memory_mask, context),
                          [&](DecoderLayer<T>& layer, TensorView<const T, 3> d, TensorView<T, 3> to,
                              typename DecoderLayer<T>::Cache& kept, bool is_first) {
                            const TensorView<const T, 3> before = is_first ? TensorView<const T, 3>{} : dmemory;
                            layer.backward_residual(d, self_mask, memory_mask, to, {dmemory, before}, kept, context);
                          });
  }

 private:
  static auto training(const TensorView<const T, 3>& memory, const MaskArgument<T>& self_mask,
                       const MaskArgument<T>& memory_mask, Context& context) {
    return [&](const DecoderLayer<T>& layer, TensorView<const T, 3> from, TensorView<T, 3> to,
               typename DecoderLayer<T>::Cache& kept) {
      layer.forward(from, memory, self_mask, memory_mask, to, kept, context);
    };
  }
};

HEED_NAMESPACE_END
