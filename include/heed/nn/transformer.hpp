// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Encoder and Decoder: stacks of transformer blocks. Names and defaults are those of PyTorch's TransformerEncoder and
/// TransformerDecoder.

#include <tuple>

#include <heed/nn/transformer_layer.hpp>

HEED_NAMESPACE_BEGIN

/// Options of a stack of blocks.
template <class LayerOptions>
struct TransformerStackOptions {
  Index num_layers = 0;              ///< the number of blocks
  LayerOptions layer{};              ///< of each block
  bool final_norm = false;           ///< a norm of the blocks' kind after the last block
  std::optional<double> norm_eps{};  ///< of the final norm; the blocks' by default
};
using EncoderOptions = TransformerStackOptions<EncoderLayerOptions>;  ///< Options of Encoder.
using DecoderOptions = TransformerStackOptions<DecoderLayerOptions>;  ///< Options of Decoder.

namespace detail {

/// Blocks one after the other, with an optional norm at the end: the common part of Encoder and Decoder. `More` are the
/// arguments of a block after x: the attention, or a memory and the attention; Step is a call of its cache of keys and
/// values.
template <class Block, class Options, class T, class Step, class... More>
class TransformerStack {
  using In = TensorView<const T, 3>;
  using Out = TensorView<T, 3>;
  Options options_;

 public:
  /// Memory of a forward that backward() needs: the input of each block, the first of them borrowed, and the caches of
  /// the blocks.
  struct Cache {
    /// Set before a forward: the blocks keep nothing, and the backward runs each of them once more. The gradients have
    /// the same bits; the memory is that of one block and the inputs of the others.
    bool checkpointing = false;

    TensorView<const T, 3> x{};
    std::optional<std::tuple<More...>> more{};
    std::vector<Buffer<T>> outputs;
    std::vector<typename Block::Cache> layers;
    std::vector<ActivationCheckpoint> checkpoints;
    typename Norm<T>::Cache norm;

    /// Memory held.
    std::size_t bytes() const {
      std::size_t total = norm.bytes();
      for (const auto& output : outputs) total += output.bytes();
      for (const auto& layer : layers) total += layer.bytes();
      return total;
    }
  };

  std::vector<Block> layers;
  std::optional<Norm<T>> norm;  ///< with final_norm

  const Options& options() const { return options_; }
  /// The number of blocks.
  Index size() const { return static_cast<Index>(layers.size()); }
  Index input_width(Index) const { return options_.layer.embed_dim; }
  Index output_width(Index) const { return options_.layer.embed_dim; }
  /// The extents of a KvCache for this stack.
  KvShape kv_shape() const {
    return kv_shape_of([](const Block& block) { return block.kv_shape(); });
  }

 protected:
  /// shape_of(block) for all blocks, which are alike.
  template <class ShapeOf>
  KvShape kv_shape_of(ShapeOf&& shape_of) const {
    KvShape shape = layers.empty() ? shape_of(Block(options_.layer)) : shape_of(layers[0]);
    shape.num_layers = size();
    return shape;
  }
  TransformerStack(std::string_view name, const Options& options) : options_(options) {
    HEED_CHECK(options.num_layers >= 0, ShapeError, name, ": num_layers = ", options.num_layers, " is negative");
    layers.reserve(static_cast<std::size_t>(options.num_layers));
    for (Index i = 0; i < options.num_layers; ++i) layers.emplace_back(options.layer);
    if (!options.final_norm) return;
    NormOptions last = norm_options(options.layer);
    last.eps = options.norm_eps.value_or(last.eps);
    norm.emplace(last);
  }

  /// The blocks in turn; the output of one is the input of the next.
  void run_blocks(const In& x, const Out& y, Cache* cache, Context& context, const Step& kv,
                  const More&... more) const {
    const Workspace::Frame frame(context.workspace());
    const bool keeps = cache && !cache->checkpointing;
    // Between the blocks two buffers of row-major memory take turns, or each block has one in the cache; only the last
    // block writes to y, whose strides are the caller's.
    Out buffers[2];
    for (Index i = 0; !cache && i < std::min<Index>(2, size() - 1); ++i) {
      buffers[i] = context.workspace().template tensor<T, 3>(x.extents());
    }
    if (cache) {
      cache->x = x;
      cache->more.emplace(more...);
      cache->outputs.resize(layers.size());
      cache->layers.resize(keeps ? layers.size() : std::min<std::size_t>(1, layers.size()));
      cache->checkpoints.clear();
    }
    In from = x;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      Out to = i + 1 < layers.size() ? buffers[i % 2] : y;
      if (cache && (i + 1 < layers.size() || norm)) to = cache->outputs[i].template view<3>(x.extents());
      const Context::Scope scope(context, "layers", static_cast<int>(i));
      if (cache && !keeps) cache->checkpoints.emplace_back(context);
      layers[i].run(from, more..., to, keeps ? &cache->layers[i] : nullptr, context, kv.layer(static_cast<Index>(i)));
      from = to;
    }
    if (norm) {
      const Context::Scope scope(context, "norm");
      norm->run(from, y, cache ? &cache->norm : nullptr, context);
    } else if (layers.empty()) {
      copy_rows(x, y, context);
    }
    context.observe(y);
  }

  /// backward(block, dy, dx, cache, is_first_call) for each block, last one first; dx is without data where it is not
  /// wanted.
  template <class Backward>
  void run_blocks_backward(std::string_view name, const In& dy, const Out& dx, Cache& cache, Context& context,
                           Backward&& backward) {
    check_cache(name, "num_layers", static_cast<Index>(cache.outputs.size()), size());
    check_cache(name, "final_norm", cache.norm.x.data() != nullptr || cache.x.empty(), norm || cache.x.empty());
    const Extents<3>& extents = cache.x.extents();
    Workspace& workspace = context.workspace();
    const Workspace::Frame frame(workspace);
    if (layers.empty()) {
      if (norm) return norm->run_backward(dy, dx, cache.norm, context);
      if (dx.data()) copy_rows(dy, dx, context);
      return;
    }
    Out buffers[2];
    for (Out& buffer : buffers) buffer = workspace.template tensor<T, 3>(extents);
    In from = dy;
    int next = 0;
    if (norm) {
      norm->run_backward(dy, buffers[next], cache.norm, context);
      from = buffers[next];
      next = 1 - next;
    }
    for (std::size_t i = layers.size(); i-- > 0;) {
      // The forward decided: without checkpoints, every block has a cache.
      const bool replays = !cache.checkpoints.empty();
      typename Block::Cache& kept = cache.layers[replays ? 0 : i];
      if (replays) {
        const Workspace::Frame inner(workspace);
        const Out again = workspace.template tensor<T, 3>(extents);
        const In in = i == 0 ? cache.x : In(cache.outputs[i - 1].template view<3>(extents));
        cache.checkpoints[i].replay(context, [&] {
          std::apply([&](const More&... more) { layers[i].run(in, more..., again, &kept, context); }, *cache.more);
        });
      }
      const Out to = i == 0 ? dx : buffers[next];
      backward(layers[i], from, to, kept, i + 1 == layers.size());
      from = to;
      next = 1 - next;
    }
  }

 private:
  void copy_rows(const In& from, const Out& to, Context& context) const {
    const Index width = options_.layer.embed_dim;
    transform_rows<T>(from, to, context, [&](Index, Index, const T* in, T* out) { std::copy_n(in, width, out); });
  }
};

template <class T>
using EncoderStack = TransformerStack<EncoderLayer<T>, EncoderOptions, T, KvStep<T>, AnyAttention<T>>;
template <class T>
using DecoderStack =
    TransformerStack<DecoderLayer<T>, DecoderOptions, T, DecoderKvStep<T>, TensorView<const T, 3>, DecoderAttention<T>>;

}  // namespace detail

/// A stack of encoder blocks and, with final_norm, a norm at the end; x and y (B, L, E).
///
///   heed::Encoder<float> encoder({.num_layers = 6, .layer = {.embed_dim = 384, .num_heads = 12, .ffn_dim = 1536}});
///   heed::load_parameters(encoder, heed::SafeTensors::open(path), names);
///   heed::Tensor<float, 3> y = encoder(x, heed::Padding(lengths));
template <LayerScalar T>
class Encoder : public detail::EncoderStack<T>, public AttentionLayer<Encoder<T>, T> {
 public:
  using typename detail::EncoderStack<T>::Cache;
  using detail::EncoderStack<T>::input_width;
  using detail::EncoderStack<T>::output_width;
  using AttentionLayer<Encoder, T>::run;
  static constexpr bool kInPlace = true;  ///< without a cache, y may be x; dx may be dy

  /// Throws ShapeError for a negative number of blocks, and what a block finds wrong with its options.
  explicit Encoder(const EncoderOptions& options) : detail::EncoderStack<T>(name(), options) {}

  /// The list of members, for Module.
  static void members(auto&& f) {
    f("layers", &Encoder::layers);
    f("norm", &Encoder::norm);
  }
  static constexpr std::string_view name() { return "heed::Encoder"; }  ///< the layer in error texts

  /// The stack without checks, for layers made of it.
  void run(const TensorView<const T, 3>& x, const AnyAttention<T>& attention, const TensorView<T, 3>& y, Cache* cache,
           Context& context, const KvStep<T>& kv = {}) const {
    this->run_blocks(x, y, cache, context, kv, attention);
  }
  /// The gradients, under the attention of the forward.
  void run_backward(const TensorView<const T, 3>& dy, const TensorView<T, 3>& dx, Cache& cache, Context& context) {
    this->run_blocks_backward(name(), dy, dx, cache, context,
                              [&](EncoderLayer<T>& layer, const auto& d, const auto& to, auto& kept, bool) {
                                layer.run_backward(d, to, kept, context);
                              });
  }
};

/// A stack of decoder blocks, all of which read the same memory, and, with final_norm, a norm at the end; x and y
/// (B, Lq, E), memory (B, Lk, memory_dim).
///
///   heed::Tensor<float, 3> y = decoder(x, memory, {heed::Causal{}, heed::Padding(memory_lengths)});
template <LayerScalar T>
class Decoder : public detail::DecoderStack<T>, public MemoryLayer<Decoder<T>, T> {
  using In = TensorView<const T, 3>;
  using Out = TensorView<T, 3>;

 public:
  /// Throws ShapeError for a negative number of blocks, and what a block finds wrong with its options.
  explicit Decoder(const DecoderOptions& options) : detail::DecoderStack<T>(name(), options) {}

  /// Memory of a forward that backward() needs: also the memory, borrowed.
  struct Cache : detail::DecoderStack<T>::Cache {
    TensorView<const T, 3> memory{};
  };

  /// The list of members, for Module.
  static void members(auto&& f) {
    f("layers", &Decoder::layers);
    f("norm", &Decoder::norm);
  }
  /// The layer in error texts.
  static constexpr std::string_view name() { return "heed::Decoder"; }
  /// The width of the memory.
  Index memory_width() const {
    const DecoderLayerOptions& layer = this->options().layer;
    return layer.memory_dim == 0 ? layer.embed_dim : layer.memory_dim;
  }
  /// The extents of a KvCache for the memory.
  KvShape memory_kv_shape() const {
    return this->kv_shape_of([](const auto& block) { return block.memory_kv_shape(); });
  }

  /// The stack without checks, for layers made of it.
  void run(const In& x, const In& memory, const DecoderAttention<T>& attention, const Out& y, Cache* cache,
           Context& context, const DecoderKvStep<T>& kv = {}) const {
    if (cache) cache->memory = memory;
    this->run_blocks(x, y, cache, context, kv, memory, attention);
  }
  /// remember() without checks, for layers made of it.
  void run_remember(const In& memory, const KvStep<T>& kv, Context& context) const {
    for (Index i = 0; i < this->size(); ++i) {
      this->layers[static_cast<std::size_t>(i)].run_remember(memory, kv.layer(i), context);
    }
  }
  /// The gradients; dmemory is the sum over the blocks.
  void run_backward(const In& dy, const Out& dx, const Out& dmemory, Cache& cache, Context& context) {
    for (Index b = 0; this->layers.empty() && dmemory.data() && b < dmemory.extent(0); ++b) {
      for (Index l = 0; l < dmemory.extent(1); ++l) {
        for (Index e = 0; e < dmemory.extent(2); ++e) dmemory(b, l, e) = T(0);
      }
    }
    this->run_blocks_backward(name(), dy, dx, cache, context,
                              [&](DecoderLayer<T>& layer, const auto& d, const auto& to, auto& kept, bool is_first) {
                                layer.run_backward(d, to, dmemory, is_first ? In{} : In(dmemory), kept, context);
                              });
  }
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
