// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Activations as layers (ReLU, GELU, GELUTanh, SiLU) and as functions (relu, gelu, gelu_tanh, silu) of any TensorLike.
/// core/activation.hpp has the formulas, their errors and the derivatives.

#include <heed/core/activation.hpp>
#include <heed/core/vec_math.hpp>
#include <heed/nn/layer.hpp>
#include <heed/nn/rows.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

template <Activation Function, class T>
void activate_backward(const T* x, const T* dy, T* dx, Index n) {
  using A = accumulate_t<T>;
  for (Index i = 0; i < n; i += Vec<A>::size) {
    const Index lanes = n - i;
    store_lanes<T>(times_slope<Function, A>(load_lanes(x + i, lanes), load_lanes(dy + i, lanes)), dx + i, lanes);
  }
}

/// dx[i] = dy[i]·f'(x[i]) for n elements next to each other; dx may be dy.
template <class T>
HEED_NOINLINE void activate_backward(Activation activation, const T* x, const T* dy, T* dx, Index n) {
  switch (activation) {
    case Activation::None:
      return activate_backward<Activation::None>(x, dy, dx, n);
    case Activation::ReLU:
      return activate_backward<Activation::ReLU>(x, dy, dx, n);
    case Activation::GELU:
      return activate_backward<Activation::GELU>(x, dy, dx, n);
    case Activation::GELUTanh:
      return activate_backward<Activation::GELUTanh>(x, dy, dx, n);
    case Activation::SiLU:
      return activate_backward<Activation::SiLU>(x, dy, dx, n);
  }
}

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

/// y = f(x), element by element; x and y (B, L, E) of float, double, half or bfloat16. No parameters. y may be x unless
/// a cache is filled.
template <Activation Function>
class ActivationLayer : public Layer<ActivationLayer<Function>> {
 public:
  static constexpr bool kInPlace = true;  ///< y may be x

  /// Memory of a forward that backward() needs: its x, borrowed.
  template <class T>
  struct Cache {
    TensorView<const T, 3> x{};
  };

  /// The layer in error texts.
  static constexpr std::string_view name() {
    return Function == Activation::ReLU       ? "heed::ReLU"
           : Function == Activation::GELU     ? "heed::GELU"
           : Function == Activation::GELUTanh ? "heed::GELUTanh"
                                              : "heed::SiLU";
  }

  /// The layer without checks, for layers made of it.
  template <class T>
  void run(const TensorView<const T, 3>& x, const TensorView<T, 3>& y, std::type_identity_t<Cache<T>>* cache,
           Context& context) const {
    if (x.is_contiguous() && y.is_contiguous()) {
      detail::parallel_for_elements(context, x.size(), [&](Index begin, Index end) {
        detail::activate_copy(Function, x.data() + begin, y.data() + begin, end - begin);
      });
    } else {
      detail::transform_rows(x, y, context, [&](Index, Index, const T* from, T* to) {
        detail::activate_copy(Function, from, to, x.extent(2));
      });
    }
    if (cache) cache->x = x;
    context.observe(y);
  }
  /// dx = dy·f'(x); dx may be dy.
  template <class T>
  void run_backward(const TensorView<const T, 3>& dy, const TensorView<T, 3>& dx, const Cache<T>& cache,
                    Context& context) const {
    const TensorView<const T, 3>& x = cache.x;
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

/// relu(x), relu(x, context): the layers as functions; x and the result (B, L, E), (L, E) or plain Eigen.
template <TensorLike X, std::same_as<Context>... C>
auto relu(const X& x, C&... context) {
  return ReLU()(x, context...);
}
/// As GELU; called as relu().
template <TensorLike X, std::same_as<Context>... C>
auto gelu(const X& x, C&... context) {
  return GELU()(x, context...);
}
/// As GELUTanh; called as relu().
template <TensorLike X, std::same_as<Context>... C>
auto gelu_tanh(const X& x, C&... context) {
  return GELUTanh()(x, context...);
}
/// As SiLU; called as relu().
template <TensorLike X, std::same_as<Context>... C>
auto silu(const X& x, C&... context) {
  return SiLU()(x, context...);
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
