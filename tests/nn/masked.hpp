// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// A layer with a mask, as the checks of layers with one input want a layer.

#include <string_view>
#include <utility>

#include <heed/core/context.hpp>
#include <heed/core/tensor.hpp>

#include "nn/backward_checks.hpp"

namespace backward_checks {

template <class T, class Layer, class Mask>
struct Masked {
  using Cache = typename Layer::Cache;
  Layer layer;
  Mask mask;

  Index output_width(Index width) const { return layer.output_width(width); }
  template <class F>
  void visit(std::string_view prefix, F&& f) {
    layer.visit(prefix, f);
  }
  template <class F>
  void visit(std::string_view prefix, F&& f) const {
    layer.visit(prefix, f);
  }
  Tensor<T, 3> operator()(const Tensor<T, 3>& x, Context& context) const { return layer(x, mask, context); }
  void forward(TensorView<const T, 3> x, TensorView<T, 3> y, Context& context) const {
    layer.forward(x, mask, y, context);
  }
  void forward(TensorView<const T, 3> x, TensorView<T, 3> y, Cache& cache, Context& context) const {
    layer.forward(x, mask, y, cache, context);
  }
  void backward(TensorView<const T, 3> dy, TensorView<T, 3> dx, Cache& cache, Context& context) {
    layer.backward(dy, dx, cache, context);
  }
};
template <class T, class Layer, class Mask>
Masked<T, Layer, Mask> masked(Layer layer, Mask mask) {
  fill_parameters<T>(layer, 3);
  return {std::move(layer), std::move(mask)};
}

}  // namespace backward_checks
