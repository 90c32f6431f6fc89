// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Heads as views of a projection, and AttentionLayer: the public calls of a layer with one input and an attention
/// value.

#include <heed/attention/any_attention.hpp>
#include <heed/nn/any_kv_cache.hpp>
#include <heed/nn/layer.hpp>

HEED_NAMESPACE_BEGIN

/// Queries, keys and values as heads.
template <class T>
struct Heads {
  TensorView<T, 4> q;  ///< (B, H, L, D)
  TensorView<T, 4> k;  ///< (B, G, L, D)
  TensorView<T, 4> v;  ///< (B, G, L, D)
};

namespace detail {

/// Columns [column, column + heads·width) of x (B, L, columns) as (B, heads, L, width), without a copy.
template <class T>
TensorView<T, 4> split_heads(const TensorView<T, 3>& x, Index column, Index heads, Index width) {
  return {x.data() + column * x.stride(2),
          {x.extent(0), heads, x.extent(1), width},
          {x.stride(0), width * x.stride(2), x.stride(1), x.stride(2)}};
}

}  // namespace detail

/// The queries, keys and values of a fused projection qkv (B, L, 3·H·D) or (L, 3·H·D), views (B, H, L, D) of its
/// memory:
///
///   auto [q, k, v] = heed::split_qkv(qkv, num_heads);
///   auto out = heed::attention(q, k, v, heed::Causal{});
///
/// Throws ShapeError unless the width is a multiple of 3·H.
template <TensorLike X>
auto split_qkv(X&& qkv, Index num_heads) {
  static_assert(std::is_lvalue_reference_v<X> || detail::is_view_v<std::remove_cvref_t<X>>,
                "heed::split_qkv: the argument is a temporary, whose memory would end before the views; name it first");
  const auto x = detail::write_as<3>(qkv);
  HEED_CHECK(num_heads >= 1 && x.extent(2) % (3 * num_heads) == 0, ShapeError, "heed::split_qkv: qkv ", x.extents(),
             " has width ", x.extent(2), ", not a multiple of 3·num_heads with num_heads = ", num_heads);
  const Index width = x.extent(2) / 3, head_dim = width / num_heads;
  using T = std::remove_pointer_t<decltype(x.data())>;
  return Heads<T>{detail::split_heads(x, 0, num_heads, head_dim), detail::split_heads(x, width, num_heads, head_dim),
                  detail::split_heads(x, 2 * width, num_heads, head_dim)};
}

/// The mean of attention weights (B, H, Lq, Lk) over the heads, (B, Lq, Lk): PyTorch's average_attn_weights.
template <AnyTensor Weights>
auto mean_over_heads(const Weights& weights) {
  static_assert(rank_of_v<Weights> == 4, "heed::mean_over_heads: the weights must be (B, H, Lq, Lk)");
  using T = scalar_of_t<Weights>;
  using A = accumulate_t<T>;
  const TensorView<const T, 4> w = view_of(weights);
  Tensor<T, 3> mean(w.extent(0), w.extent(2), w.extent(3));
  for (Index b = 0; b < w.extent(0); ++b) {
    for (Index q = 0; q < w.extent(2); ++q) {
      for (Index k = 0; k < w.extent(3); ++k) {
        A sum(0);
        for (Index h = 0; h < w.extent(1); ++h) sum += static_cast<A>(w(b, h, q, k));
        mean(b, q, k) = static_cast<T>(sum / static_cast<A>(w.extent(1)));
      }
    }
  }
  return mean;
}

/// Base of a layer with one input and an attention value, for elements T. Beyond those of Layer, it has
///   y = layer(x, parts...)                         parts by kind: masks, modifiers, Scale, an Attention, a KvCache or
///                                                  a step of one, a Context
///   forward(x, attention, y, context)              attention is a part or an AnyAttention<T>
///   forward(x, attention, y, kv, context)          goes on after the tokens in a KvCache, see nn/kv_cache.hpp
///   forward(x, attention, y, cache, context)       keeps what a backward needs
///   backward(dy, dx, cache, context)               with the attention of the forward, which the cache keeps
/// Without attention every query sees every key. Derived defines run(x, attention, y, cache, context, kv), where kv, a
/// KvStep<T>, has no cache by default.
template <class Derived, class T>
class AttentionLayer : public Layer<Derived> {
 public:
  using Scalar = T;  ///< type of parameters and values
  using Layer<Derived>::forward;

  /// y = layer(x, parts...): a new result, a matrix for plain Eigen, else a Tensor of the rank of x.
  template <TensorLike X, class... Parts>
  requires(!TensorLike<Parts> && ...)
  auto operator()(const X& x, Parts&&... parts) const {
    detail::check_elements<T, X>();
    detail::check_parts<Parts...>();
    detail::OwnContext<Parts...> own;
    Context& context = detail::pick<detail::Part::Context>(own, parts...);
    return detail::apply<T>(
        self().output_width(detail::width_of(x)), context,
        [&](const auto& in, const auto& y) {
          forward(in, detail::attention_of(parts...), y, detail::step_of<T>(parts...), context);
        },
        x);
  }

  /// forward() with attention. Throws also for a mask or modifier that does not fit Lq = Lk = L.
  template <TensorLike X, TensorLike Y>
  void forward(const X& x, const AnyAttention<T>& attention, Y&& y, Context& context) const {
    checked(x, attention, y, nullptr, KvStep<T>(), context);
  }
  /// forward() of tokens that go on after those in a cache of keys and values, which then holds them too. Masks and
  /// modifiers count positions from the first token of each sample, so Causal{} needs no alignment. Throws ShapeError
  /// for a cache of another model, ValueError when it is full; it is then as before.
  template <TensorLike X, TensorLike Y>
  void forward(const X& x, const AnyAttention<T>& attention, Y&& y, const KvStep<T>& kv, Context& context) const {
    checked(x, attention, y, nullptr, kv, context);
  }
  /// forward() that a backward() can follow: x must live, unchanged, until then, and so must the lists and matrices
  /// that the attention borrows.
  template <TensorLike X, TensorLike Y, class Cache>
  requires(detail::kind_v<Cache> != detail::Part::KeyValues)
  void forward(const X& x, const AnyAttention<T>& attention, Y&& y, Cache& cache, Context& context) const {
    checked(x, attention, y, &cache, KvStep<T>(), context);
  }

  /// The layer without attention value and without checks, for layers made of it.
  template <class Cache>
  void run(const TensorView<const T, 3>& x, const TensorView<T, 3>& y, Cache cache, Context& context) const {
    self().run(x, AnyAttention<T>(), y, cache, context);
  }

 private:
  const Derived& self() const { return static_cast<const Derived&>(*this); }

  template <class X, class Y, class Cache>
  void checked(const X& x, const AnyAttention<T>& attention, Y&& y, Cache cache, const KvStep<T>& kv,
               Context& context) const {
    detail::check_elements<T, X>();
    const Workspace::Frame frame(context.workspace());
    const auto in = detail::read_as<3>(x, context.workspace());
    const auto out = detail::write_as<3>(y);
    detail::check_layer_shapes(
        self().name(), in, out, self().input_width(0), self().output_width(0),
        Derived::kInPlace && std::is_null_pointer_v<Cache> ? detail::InPlace::Allowed : detail::InPlace::Forbidden);
    if constexpr (std::is_null_pointer_v<Cache> && requires { self().run(in, attention, out, cache, context, kv); }) {
      self().run(in, attention, out, cache, context, kv);
    } else {
      HEED_CHECK(!kv, ValueError, self().name(), ": the layer does not take a KvCache; define run() with a KvStep");
      self().run(in, attention, out, cache, context);
    }
  }
};

namespace detail {

inline void check_attention_options(std::string_view name, const std::optional<double>& scale, double dropout) {
  HEED_CHECK(!scale || detail::is_finite(*scale), ValueError, name, ": scale = ", scale.value_or(0), " must be finite");
  HEED_CHECK(dropout >= 0 && dropout <= 1, ValueError, name, ": dropout = ", dropout,
             " must be a probability between 0 and 1");
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
