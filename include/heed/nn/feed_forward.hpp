// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// FeedForward: what a transformer block does with each token by itself.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include <heed/core/activation.hpp>
#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/core/tensor.hpp>
#include <heed/core/workspace.hpp>
#include <heed/nn/activation.hpp>
#include <heed/nn/activation_backward.hpp>
#include <heed/nn/backward.hpp>
#include <heed/nn/dropout.hpp>
#include <heed/nn/layer.hpp>
#include <heed/nn/linear.hpp>

HEED_NAMESPACE_BEGIN

struct FeedForwardOptions {
  Index embed_dim;    ///< E
  Index ffn_dim = 0;  ///< F; 0 stands for 4·E
  Activation activation = Activation::ReLU;
  bool gated = false;  ///< multiply by a second, activated projection; with SiLU this is SwiGLU, with GELU GEGLU
  bool bias = true;    ///< in every projection
  double dropout = 0;  ///< probability that a hidden unit is dropped, in [0, 1]; while context.training only
};

/// y = linear2(dropout(f(linear1(x)))), or gated y = linear2(dropout(f(gate(x)) ∘ linear1(x))); x and y (B, L, E).
/// Vaswani et al.: "Attention is all you need", 2017, section 3.3; Shazeer: "GLU variants improve transformer", 2020.
///
/// Parameters: linear1 (F, E), linear2 (E, F) and, where gated, gate (F, E); Llama's files call them up_proj,
/// down_proj and gate_proj. Starts with zeros: load weights or call initialize().
template <class T>
class FeedForward : public detail::UnaryLayer<FeedForward<T>> {
 public:
  /// Throws ShapeError for a width below 1, ValueError for a dropout outside [0, 1].
  explicit FeedForward(const FeedForwardOptions& options)
      : options_(resolved(options)),
        linear1_({.in_features = options_.embed_dim, .out_features = options_.ffn_dim, .bias = options_.bias}),
        linear2_({.in_features = options_.ffn_dim, .out_features = options_.embed_dim, .bias = options_.bias}),
        dropout_({.probability = options_.dropout}) {
    if (options_.gated) gate_.emplace(linear1_.options());
  }

  /// What backward() needs of a forward: its x, borrowed, and what linear1 and gate gave, before and after activation.
  struct Cache {
    TensorView<const T, 3> x{};
    detail::Buffer<T> hidden, gate, activated;
    typename Dropout<T>::Cache dropout;

    /// Memory held.
    std::size_t bytes() const { return hidden.bytes() + gate.bytes() + activated.bytes(); }
  };

  /// With `hidden` as it is used.
  const FeedForwardOptions& options() const { return options_; }
  Linear<T>& linear1() { return linear1_; }
  const Linear<T>& linear1() const { return linear1_; }
  Linear<T>& linear2() { return linear2_; }
  const Linear<T>& linear2() const { return linear2_; }
  /// Null unless gated.
  Linear<T>* gate() { return gate_ ? &*gate_ : nullptr; }
  const Linear<T>* gate() const { return gate_ ? &*gate_ : nullptr; }
  Index output_width(Index) const { return options_.embed_dim; }

  template <class F>
  void visit(std::string_view prefix, F&& f) {
    visit_parameters(*this, prefix, f);
  }
  template <class F>
  void visit(std::string_view prefix, F&& f) const {
    visit_parameters(*this, prefix, f);
  }

  /// Each projection as Linear::initialize().
  void initialize(std::uint64_t seed, std::string_view name = "") {
    linear1_.initialize(seed, detail::join(name, "linear1"));
    linear2_.initialize(seed, detail::join(name, "linear2"));
    if (gate_) gate_->initialize(seed, detail::join(name, "gate"));
  }

  /// Packs each projection as Linear::pack().
  void pack(const PackOptions& options = {}) {
    linear1_.pack(options);
    linear2_.pack(options);
    if (gate_) gate_->pack(options);
  }

  /// Throws ShapeError unless x and y are (B, L, E), ValueError when they overlap.
  void forward(TensorView<const T, 3> x, TensorView<T, 3> y, Context& context) const {
    forward_residual(x, {}, y, context);
    context.observe(y);
  }

  /// y = residual + layer(x): the addition is part of the last product. For blocks, which show to an observer what they
  /// call their own: linear1, linear2 and gate are shown, y is not. Throws as forward() does, also for a residual that
  /// does not fit y or overlaps it.
  void forward_residual(TensorView<const T, 3> x, TensorView<const T, 3> residual, TensorView<T, 3> y,
                        Context& context) const {
    detail::check_layer_shapes(kName, x, y, options_.embed_dim, options_.embed_dim);
    Workspace::Frame frame(context.workspace());
    const Extents<3> extents = hidden_extents(x);
    const TensorView<T, 3> hidden = context.workspace().template tensor<T, 3>(extents);
    {
      const Context::Scope scope(context, "linear1");
      linear1_.forward(x, {.activation = gate_ ? Activation::None : options_.activation}, hidden, context);
    }
    if (gate_) {
      const TensorView<T, 3> gate = context.workspace().template tensor<T, 3>(extents);
      const Context::Scope scope(context, "gate");
      gate_->forward(x, {.activation = options_.activation}, gate, context);
      detail::transform_rows<T>(hidden, hidden, context, [&](Index b, Index l, const T*, T* row) {
        const T* factors = gate[b][l].data();
        for (Index e = 0; e < options_.ffn_dim; ++e) row[e] *= factors[e];
      });
    }
    if (options_.dropout > 0) {
      const Context::Scope scope(context, "dropout");
      dropout_.forward(hidden, hidden, context);
    }
    const Context::Scope scope(context, "linear2");
    linear2_.forward(hidden, {.residual = residual}, y, context);
  }

  /// forward() that a backward() can follow; x must live, unchanged, until then.
  void forward(TensorView<const T, 3> x, TensorView<T, 3> y, Cache& cache, Context& context) const {
    forward_residual(x, {}, y, cache, context);
    context.observe(y);
  }
  /// forward_residual() that a backward() can follow.
  void forward_residual(TensorView<const T, 3> x, TensorView<const T, 3> residual, TensorView<T, 3> y, Cache& cache,
                        Context& context) const {
    detail::check_layer_shapes(kName, x, y, options_.embed_dim, options_.embed_dim);
    cache.x = x;
    const Extents<3> extents = hidden_extents(x);
    const auto hidden = cache.hidden.template view<3>(extents), activated = cache.activated.template view<3>(extents);
    {
      const Context::Scope scope(context, "linear1");
      linear1_.forward(x, hidden, context);
    }
    if (gate_) {
      const auto gate = cache.gate.template view<3>(extents);
      const Context::Scope scope(context, "gate");
      gate_->forward(x, gate, context);
      detail::parallel_for_elements(context, hidden.size(), [&](Index begin, Index end) {
        detail::activate_copy(options_.activation, gate.data() + begin, activated.data() + begin, end - begin);
        for (Index i = begin; i < end; ++i) activated.data()[i] *= hidden.data()[i];
      });
    } else {
      detail::parallel_for_elements(context, hidden.size(), [&](Index begin, Index end) {
        detail::activate_copy(options_.activation, hidden.data() + begin, activated.data() + begin, end - begin);
      });
    }
    if (options_.dropout > 0) {
      const Context::Scope scope(context, "dropout");
      dropout_.forward(activated, activated, cache.dropout, context);
    }
    const Context::Scope scope(context, "linear2");
    linear2_.forward(activated, {.residual = residual}, y, context);
  }

  /// Adds to the gradients of the projections and writes dx; a dx without data is not computed. Throws ShapeError when
  /// dy or dx don't fit the forward, ValueError when dx overlaps dy or x.
  void backward(TensorView<const T, 3> dy, TensorView<T, 3> dx, Cache& cache, Context& context) {
    backward_residual(dy, {}, dx, cache, context);
  }
  /// The same with the residual added to dx; the residual may be dx.
  void backward_residual(TensorView<const T, 3> dy, TensorView<const T, 3> residual, TensorView<T, 3> dx, Cache& cache,
                         Context& context) {
    const TensorView<const T, 3> x = cache.x;
    detail::check_backward(kName, x, x.extents(), dy, dx);
    const Workspace::Frame frame(context.workspace());
    const Extents<3> extents = hidden_extents(x);
    const auto hidden = cache.hidden.template view<3>(extents), activated = cache.activated.template view<3>(extents);
    const TensorView<T, 3> dhidden = context.workspace().template tensor<T, 3>(extents);
    linear2_.backward(dy, dhidden, {TensorView<const T, 3>(activated)}, context);
    if (options_.dropout > 0) dropout_.backward(dhidden, dhidden, cache.dropout, context);
    if (!gate_) {
      detail::parallel_for_elements(context, hidden.size(), [&](Index begin, Index end) {
        T* d = dhidden.data() + begin;
        detail::activate_backward(options_.activation, hidden.data() + begin, d, d, end - begin);
      });
      return linear1_.backward_residual(dhidden, residual, dx, {x}, context);
    }
    const auto gate = cache.gate.template view<3>(extents);
    const TensorView<T, 3> dgate = context.workspace().template tensor<T, 3>(extents);
    detail::parallel_for_elements(context, hidden.size(), [&](Index begin, Index end) {
      // The activated gate takes the place of dgate until it has been used.
      T *dh = dhidden.data() + begin, *dg = dgate.data() + begin;
      const T *h = hidden.data() + begin, *g = gate.data() + begin;
      detail::activate_copy(options_.activation, g, dg, end - begin);
      for (Index i = 0; i < end - begin; ++i) {
        const T factor = dg[i];
        dg[i] = dh[i] * h[i];
        dh[i] *= factor;
      }
      detail::activate_backward(options_.activation, g, dg, dg, end - begin);
    });
    linear1_.backward_residual(dhidden, residual, dx, {x}, context);
    gate_->backward_residual(dgate, dx, dx, {x}, context);
  }

 private:
  static constexpr std::string_view kName = "heed::FeedForward";

  Extents<3> hidden_extents(const TensorView<const T, 3>& x) const {
    return {x.extent(0), x.extent(1), options_.ffn_dim};
  }

  static FeedForwardOptions resolved(FeedForwardOptions options) {
    HEED_CHECK(options.embed_dim >= 1 && options.ffn_dim >= 0, ShapeError, kName, ": embed_dim = ", options.embed_dim,
               " must be at least 1 and ffn_dim = ", options.ffn_dim, " at least 0, which stands for 4·embed_dim");
    if (options.ffn_dim == 0) options.ffn_dim = 4 * options.embed_dim;
    return options;
  }

  template <class Self, class F>
  static void visit_parameters(Self& self, std::string_view prefix, F& f) {
    self.linear1_.visit(detail::join(prefix, "linear1"), f);
    self.linear2_.visit(detail::join(prefix, "linear2"), f);
    if (self.gate_) self.gate_->visit(detail::join(prefix, "gate"), f);
  }

  FeedForwardOptions options_;
  Linear<T> linear1_, linear2_;
  std::optional<Linear<T>> gate_;
  Dropout<T> dropout_;
};

HEED_NAMESPACE_END
