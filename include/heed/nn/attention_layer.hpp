// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// AttentionLayer: the public calls of a layer with one input and an attention value.

#include <cmath>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include <heed/attention/any_attention.hpp>
#include <heed/attention/common/parts.hpp>
#include <heed/core/arguments.hpp>
#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/core/tensor.hpp>
#include <heed/core/workspace.hpp>
#include <heed/nn/layer.hpp>

HEED_NAMESPACE_BEGIN

/// Base of a layer with one input and an attention value, for elements T. Beyond those of Layer, it has
///   y = layer(x, parts...)                         parts by kind: masks, modifiers, Scale, an Attention, a Context
///   forward(x, attention, y, context)              attention is a part or an AnyAttention<T>
///   forward(x, attention, y, cache, context)
///   backward(dy, dx, cache, context)               with the attention of the forward, which the cache keeps
/// Without attention every query sees every key. Derived defines run(x, attention, y, cache, context).
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
    Context& context = detail::pick<detail::IsContext>(own, parts...);
    return detail::apply<T>(
        self().output_width(detail::width_of(x)), context,
        [&](const auto& in, const auto& y) { forward(in, detail::attention_of(parts...), y, context); }, x);
  }

  /// forward() with attention. Throws also for a mask or modifier that does not fit Lq = Lk = L.
  template <TensorLike X, TensorLike Y>
  void forward(const X& x, const AnyAttention<T>& attention, Y&& y, Context& context) const {
    checked(x, attention, y, nullptr, context);
  }
  /// forward() that a backward() can follow: x must live, unchanged, until then, and so must the lists and matrices
  /// that the attention borrows.
  template <TensorLike X, TensorLike Y, class Cache>
  void forward(const X& x, const AnyAttention<T>& attention, Y&& y, Cache& cache, Context& context) const {
    checked(x, attention, y, &cache, context);
  }

  /// The layer without attention value and without checks, for layers made of it.
  template <class Cache>
  void run(const TensorView<const T, 3>& x, const TensorView<T, 3>& y, Cache cache, Context& context) const {
    self().run(x, AnyAttention<T>(), y, cache, context);
  }

 private:
  const Derived& self() const { return static_cast<const Derived&>(*this); }

  template <class X, class Y, class Cache>
  void checked(const X& x, const AnyAttention<T>& attention, Y&& y, Cache cache, Context& context) const {
    detail::check_elements<T, X>();
    const Workspace::Frame frame(context.workspace());
    const auto in = detail::read_as<3>(x, context.workspace());
    const auto out = detail::write_as<3>(y);
    detail::check_layer_shapes(self().name(), in, out, self().input_width(0), self().output_width(0));
    self().run(in, attention, out, cache, context);
  }
};

namespace detail {

inline void check_attention_options(std::string_view name, const std::optional<double>& scale, double dropout) {
  HEED_CHECK(!scale || std::isfinite(*scale), ValueError, name, ": scale = ", scale.value_or(0), " must be finite");
  HEED_CHECK(dropout >= 0 && dropout <= 1, ValueError, name, ": dropout = ", dropout,
             " must be a probability between 0 and 1");
}

}  // namespace detail

HEED_NAMESPACE_END
