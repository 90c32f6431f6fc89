// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Activations as layers (ReLU, GELU, GELUTanh, SiLU) and as functions (relu, gelu, gelu_tanh, silu) of any TensorLike.
/// The formulas and their errors stand in core/activation.hpp, the derivatives in nn/activation_backward.hpp.

#include <algorithm>
#include <string_view>
#include <type_traits>

#include <heed/core/activation.hpp>
#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/scalar.hpp>
#include <heed/core/simd.hpp>
#include <heed/core/tensor.hpp>
#include <heed/nn/activation_backward.hpp>
#include <heed/nn/backward.hpp>
#include <heed/nn/layer.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// to[i] = f(from[i]) for n elements next to each other; `to` may be `from`. 16-bit elements are computed in float.
template <class T>
void activate_copy(Activation activation, const T* from, T* to, Index n) {
  if constexpr (is_narrow_v<T>) {
    constexpr Index block_size = 256;
    float block[block_size];
    for (Index i = 0; i < n; i += block_size) {
      const Index count = std::min(block_size, n - i);
      convert_row(from + i, 1, count, block);
      activate(activation, block, count);
      for (Index j = 0; j < count; ++j) to[i + j] = static_cast<T>(block[j]);
    }
  } else {
    if (to != from) std::copy_n(from, n, to);
    activate(activation, to, n);
  }
}

}  // namespace detail

/// y = f(x), element by element; x and y (B, L, E) of float, double, half or bfloat16. No parameters. y may be x.
template <Activation Function>
class ActivationLayer : public detail::UnaryLayer<ActivationLayer<Function>> {
 public:
  Index output_width(Index width) const { return width; }
  template <class F>
  void visit(std::string_view, F&&) const {}

  /// Throws ShapeError when y does not have the extents of x, ValueError when they overlap without being the same.
  void forward(TensorView<const float, 3> x, TensorView<float, 3> y, Context& context) const { run(x, y, context); }
  void forward(TensorView<const double, 3> x, TensorView<double, 3> y, Context& context) const { run(x, y, context); }
  void forward(TensorView<const half, 3> x, TensorView<half, 3> y, Context& context) const { run(x, y, context); }
  void forward(TensorView<const bfloat16, 3> x, TensorView<bfloat16, 3> y, Context& context) const {
    run(x, y, context);
  }

  /// What backward() needs of a forward: its x, borrowed.
  template <class T>
  struct Cache {
    TensorView<const T, 3> x{};
  };
  /// forward() that a backward() can follow; x must live, unchanged, until then, so y can't be x.
  template <class T>
  void forward(std::type_identity_t<TensorView<const T, 3>> x, std::type_identity_t<TensorView<T, 3>> y,
               Cache<T>& cache, Context& context) const {
    detail::check_layer_shapes(kName, x, y, x.extent(2), x.extent(2));
    run(x, y, context);
    cache.x = x;
  }
  /// dx = dy·f'(x); dx may be dy, and without data it is not computed. Throws ShapeError when dy or dx don't fit the
  /// forward, ValueError when dx overlaps x, or dy without being it.
  template <class T>
  void backward(std::type_identity_t<TensorView<const T, 3>> dy, std::type_identity_t<TensorView<T, 3>> dx,
                const Cache<T>& cache, Context& context) const {
    const TensorView<const T, 3>& x = cache.x;
    detail::check_backward(kName, x, x.extents(), dy, dx, detail::InPlace::Allowed);
    if (!dx.data()) return;
    if (x.is_contiguous() && dy.is_contiguous() && dx.is_contiguous()) {
      detail::parallel_for_elements(context, x.size(), [&](Index begin, Index end) {
        detail::activate_backward(Function, x.data() + begin, dy.data() + begin, dx.data() + begin, end - begin);
      });
    } else {
      const auto blocks = detail::RowBlocks::of(x.extent(0) * x.extent(1), x.extent(2));
      detail::backward_rows(blocks, x, dy, dx, context, [&](Index, Index, const T* from, const T* g, T* to) {
        detail::activate_backward(Function, from, g, to, x.extent(2));
      });
    }
  }

 private:
  static constexpr std::string_view kName = Function == Activation::ReLU       ? "heed::ReLU"
                                            : Function == Activation::GELU     ? "heed::GELU"
                                            : Function == Activation::GELUTanh ? "heed::GELUTanh"
                                                                               : "heed::SiLU";

  template <class T>
  void run(const TensorView<const T, 3>& x, const TensorView<T, 3>& y, Context& context) const {
    detail::check_layer_shapes(kName, x, y, x.extent(2), x.extent(2), detail::InPlace::Allowed);
    if (x.is_contiguous() && y.is_contiguous()) {
      detail::parallel_for_elements(context, x.size(), [&](Index begin, Index end) {
        detail::activate_copy(Function, x.data() + begin, y.data() + begin, end - begin);
      });
    } else {
      detail::transform_rows(x, y, context, [&](Index, Index, const T* from, T* to) {
        detail::activate_copy(Function, from, to, x.extent(2));
      });
    }
    context.observe(y);
  }
};

/// max(x, 0).
using ReLU = ActivationLayer<Activation::ReLU>;
/// x·Φ(x) with the exact normal distribution function: "gelu" of PyTorch, BERT, MiniLM.
/// Hendrycks, Gimpel: "Gaussian error linear units", 2016.
using GELU = ActivationLayer<Activation::GELU>;
/// The approximation of GELU by tanh: "gelu_new", "gelu_pytorch_tanh" of GPT-2 and others. Up to 5e-4 away from GELU.
using GELUTanh = ActivationLayer<Activation::GELUTanh>;
/// x / (1 + e^-x), also called swish.
using SiLU = ActivationLayer<Activation::SiLU>;

/// max(x, 0), element by element; x and the result (B, L, E), (L, E) or plain Eigen.
template <TensorLike X>
auto relu(const X& x) {
  return ReLU()(x);
}
template <TensorLike X>
auto relu(const X& x, Context& context) {
  return ReLU()(x, context);
}
/// As GELU, element by element; shapes as in relu().
template <TensorLike X>
auto gelu(const X& x) {
  return GELU()(x);
}
template <TensorLike X>
auto gelu(const X& x, Context& context) {
  return GELU()(x, context);
}
/// As GELUTanh, element by element; shapes as in relu().
template <TensorLike X>
auto gelu_tanh(const X& x) {
  return GELUTanh()(x);
}
template <TensorLike X>
auto gelu_tanh(const X& x, Context& context) {
  return GELUTanh()(x, context);
}
/// x / (1 + e^-x), element by element; shapes as in relu().
template <TensorLike X>
auto silu(const X& x) {
  return SiLU()(x);
}
template <TensorLike X>
auto silu(const X& x, Context& context) {
  return SiLU()(x, context);
}

HEED_NAMESPACE_END
