// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// MemoryLayer: the public calls of a layer that also reads a memory, with their attention and their caches.

#include <heed/nn/attention_layer.hpp>
#include <heed/nn/kv_cache.hpp>

HEED_NAMESPACE_BEGIN

/// The attention of a decoder block: between its tokens, and to the memory.
template <class T>
struct DecoderAttention {
  AnyAttention<T> self{};    ///< between tokens
  AnyAttention<T> memory{};  ///< to the memory

  DecoderAttention() = default;
  /// Each is an attention value, a mask or a modifier.
  template <class Self, class Memory = AnyAttention<T>>
  requires(std::is_convertible_v<Self, AnyAttention<T>> && std::is_convertible_v<Memory, AnyAttention<T>>)
  DecoderAttention(const Self& to_itself, const Memory& to_memory = {}) : self(to_itself), memory(to_memory) {}
};

/// A DecoderKvCache in one call; none by default.
template <class T>
struct DecoderKvStep {
  KvStep<T> self{};    ///< of the tokens
  KvStep<T> memory{};  ///< of the memory

  /// True with a cache.
  explicit operator bool() const { return static_cast<bool>(self); }
  /// Layer i of caches for several.
  DecoderKvStep layer(Index i) const { return {self.layer(i), memory.layer(i)}; }
};

/// The keys and values of a decoder: those of its tokens, which grow call by call, and those of the memory, which are
/// projected once.
///
///   heed::DecoderKvCache<float> kv(decoder, {.batch = 2, .capacity = 128}, memory.extent(1));
///   decoder.remember(memory, kv.memory, context);
///   decoder.forward(tokens, {heed::Causal{}, heed::Padding(memory_lengths)}, y, kv.step(), context);   // and again
template <class T, class S = T>
struct DecoderKvCache {
  KvCache<T, S> self;    ///< of the tokens
  KvCache<T, S> memory;  ///< of the memory

  /// For a DecoderLayer or a Decoder and memories of up to memory_length rows.
  template <class Model>
  DecoderKvCache(const Model& model, const KvCacheOptions& options, Index memory_length)
      : self(model, options), memory(model.memory_kv_shape(), {.batch = options.batch, .capacity = memory_length}) {}

  /// A call of which every row of x is a token.
  DecoderKvStep<T> step() { return {self.step(), memory.stored()}; }
  /// A call that adds counts[b] tokens to sample b; see AnyKvCache::step().
  DecoderKvStep<T> step(IntSpan counts, PaddingSide side = PaddingSide::Right) {
    return {self.step(counts, side), memory.stored()};
  }
};

/// Base of a layer with an input x (B, Lq, E) and a memory (B, Lk, memory_dim), for elements T:
///   y = layer(x, memory, {Causal{}, Padding(memory_lengths)}, context)
///   forward(x, memory, attention, y, context), forward(x, memory, attention, y, cache, context)
///   remember(memory, kv.memory, context), forward(x, attention, y, kv.step(), context)
///   backward(dy, dx, dmemory, cache, context)
/// A single attention value is that of the layer's tokens to each other; every key of the memory is then visible.
template <class Derived, class T>
class MemoryLayer : public Module<Derived> {
 public:
  using Scalar = T;  ///< type of parameters and values

  /// y = layer(x, memory, attention): a new result of the kind of x.
  template <TensorLike X, TensorLike Memory>
  auto operator()(const X& x, const Memory& memory, const DecoderAttention<T>& attention, Context& context) const {
    detail::check_elements<T, X, Memory>();
    return detail::apply<T>(
        detail::width_of(x), context,
        [&](const auto& in, const auto& from, const auto& y) { forward(in, from, attention, y, context); }, x, memory);
  }
  /// @overload
  template <TensorLike X, TensorLike Memory>
  auto operator()(const X& x, const Memory& memory, const DecoderAttention<T>& attention) const {
    Context context;
    return (*this)(x, memory, attention, context);
  }

  /// y may be x. Throws ShapeError unless x and y are (B, Lq, E) and memory (B, Lk, memory_dim), ValueError when y
  /// overlaps a part of x or memory, and for a mask or modifier that does not fit.
  template <TensorLike X, TensorLike Memory, TensorLike Y>
  void forward(const X& x, const Memory& memory, const DecoderAttention<T>& attention, Y&& y, Context& context) const {
    checked(x, memory, attention, y, nullptr, context);
  }
  /// forward() that a backward() can follow: x and memory must live, unchanged, until then, and so must the lists and
  /// matrices that the attention borrows.
  template <TensorLike X, TensorLike Memory, TensorLike Y, class Cache>
  void forward(const X& x, const Memory& memory, const DecoderAttention<T>& attention, Y&& y, Cache& cache,
               Context& context) const {
    checked(x, memory, attention, y, &cache, context);
  }
  /// Projects the memory for the calls with a cache that follow. Throws ShapeError unless memory is (B, L, memory_dim),
  /// ValueError when the cache is full.
  template <TensorLike Memory>
  void remember(const Memory& memory, AnyKvCache<T>& kv, Context& context) const {
    detail::check_elements<T, Memory>();
    const Workspace::Frame frame(context.workspace());
    const TensorView<const T, 3> from = detail::read_as<3>(memory, context.workspace());
    detail::check_width(self().name(), "memory", from, self().memory_width());
    self().run_remember(from, kv.step(), context);
  }
  /// forward() of tokens that go on after those in a cache, with the memory that it remembers; y may be x. Throws as
  /// AttentionLayer::forward() with a cache.
  template <TensorLike X, TensorLike Y>
  void forward(const X& x, const DecoderAttention<T>& attention, Y&& y, const DecoderKvStep<T>& kv,
               Context& context) const {
    detail::check_elements<T, X>();
    const Workspace::Frame frame(context.workspace());
    const TensorView<const T, 3> in = detail::read_as<3>(x, context.workspace());
    const TensorView<T, 3> out = detail::write_as<3>(y);
    detail::check_layer_shapes(self().name(), in, out, self().input_width(0), self().input_width(0),
                               detail::InPlace::Allowed);
    HEED_CHECK(kv && kv.memory, ValueError, self().name(), ": no cache was given; make a DecoderKvCache");
    self().run(in, {}, attention, out, nullptr, context, kv);
  }
  /// Adds to the gradients of the parameters and writes dx and dmemory, under the attention of the forward; a gradient
  /// that is kNotWanted is not computed. Throws ShapeError when a view doesn't fit the forward with this cache,
  /// ValueError when a gradient overlaps dy or its input.
  template <TensorLike DY, class DX, class DMemory, class Cache>
  void backward(const DY& dy, DX&& dx, DMemory&& dmemory, Cache& cache, Context& context) {
    const Workspace::Frame frame(context.workspace());
    const TensorView<const T, 3> errors = detail::read_as<3>(dy, context.workspace());
    const TensorView<T, 3> to = detail::gradient_view<T>(dx), memory_to = detail::gradient_view<T>(dmemory);
    detail::check_backward(self().name(), cache.x, cache.x.extents(), errors, to);
    detail::check_backward(self().name(), cache.memory, cache.x.extents(), errors, memory_to);
    detail::check_cache(self().name(), "width of x", cache.x.extent(2), self().input_width(0));
    static_cast<Derived&>(*this).run_backward(errors, to, memory_to, cache, context);
  }

 private:
  const Derived& self() const { return static_cast<const Derived&>(*this); }

  template <class X, class Memory, class Y, class Cache>
  void checked(const X& x, const Memory& memory, const DecoderAttention<T>& attention, Y&& y, Cache cache,
               Context& context) const {
    detail::check_elements<T, X, Memory>();
    const Workspace::Frame frame(context.workspace());
    const TensorView<const T, 3> in = detail::read_as<3>(x, context.workspace());
    const TensorView<const T, 3> from = detail::read_as<3>(memory, context.workspace());
    const TensorView<T, 3> out = detail::write_as<3>(y);
    detail::check_layer_shapes(self().name(), in, out, self().input_width(0), self().input_width(0),
                               std::is_null_pointer_v<Cache> ? detail::InPlace::Allowed : detail::InPlace::Forbidden);
    detail::check_width(self().name(), "memory", from, self().memory_width());
    HEED_CHECK(from.extent(0) == in.extent(0), ShapeError, self().name(), ": memory ", from.extents(),
               " has B = ", from.extent(0), " but x ", in.extents(), " has B = ", in.extent(0),
               "; each sample needs a memory");
    HEED_CHECK(!detail::may_overlap(from, out), ValueError, self().name(),
               ": y overlaps the memory; it needs separate memory");
    self().run(in, from, attention, out, cache, context);
  }
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
