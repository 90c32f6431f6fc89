// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// What all attention layers share: how they take a mask and call attention, forward and backward, and the convenience
/// calls.

#include <cmath>
#include <cstddef>
#include <optional>
#include <string_view>
#include <type_traits>

#include <heed/attention/attention.hpp>
#include <heed/attention/backward.hpp>
#include <heed/attention/common/call.hpp>
#include <heed/attention/common/checks.hpp>
#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/core/parallel.hpp>
#include <heed/core/scalar.hpp>
#include <heed/core/tensor.hpp>
#include <heed/core/workspace.hpp>
#include <heed/mask/basic.hpp>
#include <heed/mask/concept.hpp>
#include <heed/mask/modifier.hpp>
#include <heed/nn/layer.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// A call of attention inside a layer: q (B, H, Lq, Dk), k (B, G, Lk, Dk), v (B, G, Lk, Dv), out (B, H, Lq, Dv), and
/// weights (B, H, Lq, Lk), which are written where they have memory. In training, the cache takes what the backward
/// needs.
template <class T>
struct LayerAttention {
  TensorView<const T, 4> q, k, v;
  TensorView<T, 4> out, weights;
  AttentionOptions options;
  AttentionCache<T>* cache = nullptr;
};

/// The bytes that a cache of attention holds.
template <class T>
std::size_t bytes_of(const AttentionCache<T>& cache) {
  return static_cast<std::size_t>(cache.maximum().size() + cache.sum().size()) * sizeof(accumulate_t<T>);
}

template <class T>
AttentionShape shape_of(const LayerAttention<T>& call) {
  return CallChecks{"heed::attention"}.shape(call.q.extents(), call.k.extents(), call.v.extents());
}

}  // namespace detail

/// Any mask, as the forward() of a layer takes it: of the code of a layer, only the call of attention is compiled again
/// for another mask. Borrows the mask; write it in the call that takes it.
template <class T>
class MaskArgument {
 public:
  /// From any mask, which must live through the call; implicit.
  template <Mask MaskType>
  MaskArgument(const MaskType& mask)
      : mask_(&mask), attend_(&attend_under<MaskType>), with_bound_(&with_bound_mask<MaskType>) {}

  /// The layers' way to attention. An observer who asks for the weights gets them, and the mask, under the layer's
  /// name.
  void attend(detail::LayerAttention<T> call, Context& context) const {
    const bool shown = context.observer && context.observer->wants_weights(context.name());
    const Workspace::Frame frame(context.workspace());
    if (shown && !call.weights.data()) {
      const Extents<4> extents{call.q.extent(0), call.q.extent(1), call.q.extent(2), call.k.extent(2)};
      call.weights = context.workspace().template tensor<T, 4>(extents);
    }
    attend_(mask_, call, context);
    if (shown) show(call, context);
  }
  /// The gradients of attend() with a cache, from that of its out. dq, dk and dv may be columns of one memory.
  void attend_backward(const detail::LayerAttention<T>& call, TensorView<const T, 4> dout,
                       const AttentionGradients<T>& gradients, Context& context) const {
    const AttentionShape shape = detail::shape_of(call);
    // The mask is known by its functions alone: the backward is compiled once for all masks, by those who train.
    with_bound_(mask_, shape, [&](const MaskRef& mask) {
      const detail::AttentionBackwardCall<T> backward = detail::backward_call<T>(
          shape, {call.q, call.k, call.v}, call.out, dout, gradients, mask, call.options, *call.cache);
      if (context.path == Path::Reference)
        detail::reference_backward(backward, NoModifier{}, context.workspace());
      else
        detail::blocked_backward(backward, NoModifier{}, context);
    });
  }

 private:
  /// Weights alone don't tell what the mask hides: that of a visible key may be too small for T.
  void show(const detail::LayerAttention<T>& call, Context& context) const {
    const AttentionShape shape = detail::shape_of(call);
    with_bound_(mask_, shape, [&](const MaskRef& mask) {
      const auto visible = [&](int b, int h, int q, int k) { return mask.visible(b, h, q, k); };
      context.observer->mask(context.name(), call.weights.extents(), visible);
    });
    context.observer->weights(context.name(), ObservedTensor(TensorView<const T, 4>(call.weights)));
  }

  template <class MaskType>
  static void attend_under(const void* mask, const detail::LayerAttention<T>& call, Context& context) {
    detail::AttentionExtras<T> extras;
    extras.weights = call.weights;
    if (call.cache) {
      call.cache->begin({call.q.extent(0), call.q.extent(1), call.q.extent(2)}, context, call.options.dropout);
      extras.row_max = call.cache->maximum();
      extras.row_sum = call.cache->sum();
      extras.stream = call.cache->stream();
    }
    detail::run_attention<T, T>(call.out, call.q, call.k, call.v, *static_cast<const MaskType*>(mask), NoModifier{},
                                call.options, context, extras);
  }

  template <class MaskType>
  static void with_bound_mask(const void* mask, const AttentionShape& shape, FunctionRef<void(const MaskRef&)> f) {
    const auto bound = bind(*static_cast<const MaskType*>(mask), shape);
    f(MaskRef(bound));
  }

  const void* mask_;
  void (*attend_)(const void*, const detail::LayerAttention<T>&, Context&);
  void (*with_bound_)(const void*, const AttentionShape&, FunctionRef<void(const MaskRef&)>);
};

namespace detail {

template <class X, class T>
inline constexpr bool has_elements_of_v = std::is_same_v<scalar_of_t<X>, T>;

/// Gives a layer with one input and a mask its convenience calls, y = layer(x), layer(x, mask), layer(x, context) and
/// layer(x, mask, context) for any TensorLike x, and a forward() without a mask.
template <class Layer, class T>
class MaskedLayer {
 public:
  template <TensorLike X>
  auto operator()(const X& x, const MaskArgument<T>& mask, Context& context) const {
    static_assert(has_elements_of_v<X, T>,
                  "heed: the elements of x are not of the layer's type; cast "
                  "x, x.cast<float>() for plain Eigen");
    const Layer& layer = static_cast<const Layer&>(*this);
    return apply<T>(
        layer.output_width(width_of(x)), context,
        [&](TensorView<const T, 3> in, TensorView<T, 3> out) { layer.forward(in, mask, out, context); }, x);
  }
  template <TensorLike X>
  auto operator()(const X& x, Context& context) const {
    return (*this)(x, NoMask{}, context);
  }
  template <TensorLike X>
  auto operator()(const X& x, const MaskArgument<T>& mask = NoMask{}) const {
    Context context;
    return (*this)(x, mask, context);
  }
  /// forward() where every query sees every key.
  void forward(TensorView<const T, 3> x, TensorView<T, 3> y, Context& context) const {
    static_cast<const Layer&>(*this).forward(x, NoMask{}, y, context);
  }
};

inline void check_attention_options(std::string_view name, const std::optional<double>& scale, double dropout) {
  HEED_CHECK(!scale || std::isfinite(*scale), ValueError, name, ": scale = ", scale.value_or(0), " must be finite");
  HEED_CHECK(dropout >= 0 && dropout <= 1, ValueError, name, ": dropout = ", dropout,
             " must be a probability between 0 and 1");
}

}  // namespace detail

HEED_NAMESPACE_END
