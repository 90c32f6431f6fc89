// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// FeedForward: the two projections, plain or gated, that a transformer block applies to each token.

#include <heed/nn/activation.hpp>
#include <heed/nn/dropout.hpp>
#include <heed/nn/linear.hpp>

HEED_NAMESPACE_BEGIN

/// Options of FeedForward.
struct FeedForwardOptions {
  Index embed_dim = 0;                       ///< E
  Index ffn_dim = 0;                         ///< F; 0 means 4·E
  Activation activation = Activation::ReLU;  ///< between the projections
  bool gated = false;  ///< multiply by a second, activated projection; with SiLU this is SwiGLU, with GELU GEGLU
  bool bias = true;    ///< in every projection
  double dropout = 0;  ///< probability that a hidden unit is dropped, in [0, 1]; while context.training only
};

/// y = linear2(dropout(f(linear1(x)))), or gated y = linear2(dropout(f(gate(x)) ∘ linear1(x))); x and y (B, L, E).
/// Vaswani et al.: "Attention is all you need", 2017, section 3.3; Shazeer: "GLU variants improve transformer", 2020.
///
/// Llama's files call linear1, linear2 and gate up_proj, down_proj and gate_proj.
template <LayerScalar T>
class FeedForward : public Layer<FeedForward<T>> {
  using In = TensorView<const T, 3>;
  using Out = TensorView<T, 3>;
  FeedForwardOptions options_;

 public:
  using Scalar = T;  ///< type of parameters and values

  /// Throws ShapeError for a width below 1, ValueError for a dropout outside [0, 1].
  explicit FeedForward(const FeedForwardOptions& options)
      : options_(resolved(options)),
        linear1(options_.embed_dim, options_.ffn_dim, options_.bias),
        linear2(options_.ffn_dim, options_.embed_dim, options_.bias),
        dropout({.probability = options_.dropout}) {
    if (options_.gated) gate.emplace(linear1.options());
  }

  /// Memory of a forward that backward() needs: its x, borrowed, and the results of linear1 and gate before and after
  /// the activation.
  struct Cache {
    TensorView<const T, 3> x{};
    TensorView<T, 3> hidden{}, gate{}, activated{};
    Buffer<T> memory[3];
    typename Dropout<T>::Cache dropout;

    /// Memory held.
    std::size_t bytes() const { return memory[0].bytes() + memory[1].bytes() + memory[2].bytes(); }
  };

  Linear<T> linear1;              ///< (F, E)
  Linear<T> linear2;              ///< (E, F)
  std::optional<Linear<T>> gate;  ///< (F, E), where gated
  Dropout<T> dropout;             ///< of hidden units

  /// The list of members, for Module.
  static void members(auto&& f) {
    f("linear1", &FeedForward::linear1);
    f("linear2", &FeedForward::linear2);
    f("gate", &FeedForward::gate);
  }
  static constexpr std::string_view name() { return "heed::FeedForward"; }  ///< the layer in error texts
  /// With ffn_dim as it is used.
  const FeedForwardOptions& options() const { return options_; }
  Index input_width(Index) const { return options_.embed_dim; }   ///< of x
  Index output_width(Index) const { return options_.embed_dim; }  ///< of y

  /// The layer without checks, for layers made of it.
  void run(const In& x, const Out& y, Cache* cache, Context& context) const {
    run(x, {}, y, cache, context);
    context.observe(y);
  }
  /// y = residual + layer(x) in one pass; a residual without data adds nothing. Blocks show y under a name of their
  /// own, so the observer sees linear1, linear2 and gate, but not y.
  void run(const In& x, const In& residual, const Out& y, Cache* cache, Context& context) const {
    const Workspace::Frame frame(context.workspace());
    const Extents<3> extents{x.extent(0), x.extent(1), options_.ffn_dim};
    const auto memory = [&](int i) {
      return cache ? cache->memory[i].template view<3>(extents) : context.workspace().template tensor<T, 3>(extents);
    };
    // A training keeps the results before the activation, which is otherwise part of the product.
    const Epilogue<T, 3> plain{}, activates{.activation = cache ? Activation::None : options_.activation};
    const Out hidden = memory(0), factors = gate ? memory(1) : Out{}, activated = cache ? memory(2) : hidden;
    if (cache) {
      cache->x = x;
      cache->hidden = hidden;
      cache->gate = factors;
      cache->activated = activated;
    }
    {
      const Context::Scope scope(context, "linear1");
      linear1.run(x, gate ? plain : activates, hidden, context);
    }
    if (gate) {
      const Context::Scope scope(context, "gate");
      gate->run(x, activates, factors, context);
    }
    detail::parallel_for_elements(context, cache || gate ? hidden.size() : 0, [&](Index begin, Index end) {
      const T* before = (gate ? factors : hidden).data() + begin;
      T *h = hidden.data() + begin, *to = activated.data() + begin;
      if (!cache) {
        for (Index i = 0; i < end - begin; ++i) to[i] *= before[i];
        return;
      }
      detail::activate_copy(options_.activation, before, to, end - begin);
      for (Index i = 0; gate && i < end - begin; ++i) to[i] *= h[i];
    });
    if (options_.dropout > 0) {
      const Context::Scope scope(context, "dropout");
      dropout.run(activated, activated, cache ? &cache->dropout : nullptr, context);
    }
    const Context::Scope scope(context, "linear2");
    linear2.run(activated, {.residual = residual}, y, context);
  }

  /// The gradients, without checks, for layers made of it.
  void run_backward(const In& dy, const Out& dx, Cache& cache, Context& context) {
    run_backward(dy, {}, dx, cache, context);
  }
  /// The gradients, and dx + residual in one pass; the residual may be dx.
  void run_backward(const In& dy, const In& residual, const Out& dx, Cache& cache, Context& context) {
    const Extents<3> extents{cache.x.extent(0), cache.x.extent(1), options_.ffn_dim};
    detail::check_cache(name(), "ffn_dim", cache.hidden.extent(2), options_.ffn_dim);
    detail::check_cache(name(), "gated", cache.gate.data() != nullptr || cache.x.empty(), gate || cache.x.empty());
    const Workspace::Frame frame(context.workspace());
    const Out hidden = cache.hidden, dhidden = context.workspace().template tensor<T, 3>(extents);
    linear2.run_backward(dy, cache.activated, {}, dhidden, context);
    if (options_.dropout > 0) dropout.run_backward(dhidden, dhidden, cache.dropout, context);
    if (!gate) {
      detail::parallel_for_elements(context, hidden.size(), [&](Index begin, Index end) {
        T* d = dhidden.data() + begin;
        detail::activate_backward(options_.activation, hidden.data() + begin, d, d, end - begin);
      });
      return linear1.run_backward(dhidden, cache.x, residual, dx, context);
    }
    const Out dgate = context.workspace().template tensor<T, 3>(extents);
    detail::parallel_for_elements(context, hidden.size(), [&](Index begin, Index end) {
      // The activated gate takes the place of dgate until it has been used.
      T *dh = dhidden.data() + begin, *dg = dgate.data() + begin;
      const T *h = hidden.data() + begin, *g = cache.gate.data() + begin;
      detail::activate_copy(options_.activation, g, dg, end - begin);
      for (Index i = 0; i < end - begin; ++i) {
        const T factor = dg[i];
        dg[i] = dh[i] * h[i];
        dh[i] *= factor;
      }
      detail::activate_backward(options_.activation, g, dg, dg, end - begin);
    });
    linear1.run_backward(dhidden, cache.x, residual, dx, context);
    gate->run_backward(dgate, cache.x, dx, dx, context);
  }

 private:
  static FeedForwardOptions resolved(FeedForwardOptions options) {
    HEED_CHECK(options.embed_dim >= 1 && options.ffn_dim >= 0, ShapeError, name(), ": embed_dim = ", options.embed_dim,
               " must be at least 1 and ffn_dim = ", options.ffn_dim, " at least 0, which means 4·embed_dim");
    if (options.ffn_dim == 0) options.ffn_dim = 4 * options.embed_dim;
    return options;
  }
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
