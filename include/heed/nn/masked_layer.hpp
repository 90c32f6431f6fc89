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

#include <heed/attention/any_attention.hpp>
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

/// The attention that a layer's call takes.
template <class T>
using MaskArgument = AnyAttention<T>;

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
