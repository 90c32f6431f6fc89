// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// SelfAttention: the textbook layer, one head; and what all attention layers share: how they take a mask and call
/// attention, and the convenience calls.

#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#include <heed/attention/attention.hpp>
#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/core/operand.hpp>
#include <heed/core/tensor.hpp>
#include <heed/core/workspace.hpp>
#include <heed/mask/basic.hpp>
#include <heed/mask/modifier.hpp>
#include <heed/nn/layer.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/parameter.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// A call of attention inside a layer: q (B, H, Lq, Dk), k (B, G, Lk, Dk), v (B, G, Lk, Dv), out (B, H, Lq, Dv), and
/// weights (B, H, Lq, Lk), which are written where they have memory.
template <class T>
struct LayerAttention {
  TensorView<const T, 4> q, k, v;
  TensorView<T, 4> out, weights;
  AttentionOptions options;
};

}  // namespace detail

/// Any mask, as the forward() of a layer takes it: of the code of a layer, only the call of attention is compiled again
/// for another mask. Borrows the mask; write it in the call that takes it.
template <class T>
class MaskArgument {
 public:
  template <Mask MaskType>
  MaskArgument(const MaskType& mask) : mask_(&mask), attend_(&attend_under<MaskType>) {}

  /// The layers' way to attention. An observer who asks for the weights gets them under the layer's name.
  void attend(detail::LayerAttention<T> call, Context& context) const {
    const bool shown = context.observer && context.observer->wants_weights(context.name());
    const Workspace::Frame frame(context.workspace());
    if (shown && !call.weights.data()) {
      const Extents<4> extents{call.q.extent(0), call.q.extent(1), call.q.extent(2), call.k.extent(2)};
      call.weights = context.workspace().template tensor<T, 4>(extents);
    }
    attend_(mask_, call, context);
    if (shown) context.observer->weights(context.name(), ObservedTensor(TensorView<const T, 4>(call.weights)));
  }

 private:
  template <class MaskType>
  static void attend_under(const void* mask, const detail::LayerAttention<T>& call, Context& context) {
    detail::AttentionExtras<T> extras;
    extras.weights = call.weights;
    detail::run_attention<T, T>(call.out, call.q, call.k, call.v, *static_cast<const MaskType*>(mask), NoModifier{},
                                call.options, context, extras);
  }

  const void* mask_;
  void (*attend_)(const void*, const detail::LayerAttention<T>&, Context&);
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
                  "heed: the elements of x are not of the layer's type; cast x, x.cast<float>() for plain Eigen");
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

struct SelfAttentionOptions {
  Index model;                    ///< E
  Index key_width = 0;            ///< Dk; 0 stands for E
  Index value_width = 0;          ///< Dv; 0 stands for Dk
  Index out = 0;                  ///< width of an output projection; 0 for none: y is then (B, L, Dv)
  bool bias = false;              ///< in every projection
  std::optional<double> scale{};  ///< of the scores; 1/√Dk where not given
  double dropout = 0;             ///< probability that a weight is dropped, while context.training
};

/// y = softmax(scale · Q·Kᵀ under a mask)·V with Q = q_proj(x), K = k_proj(x), V = v_proj(x); one head.
/// x (B, L, E), q_proj and k_proj (Dk, E), v_proj (Dv, E), y (B, L, Dv), weights (B, L, L). With `out`, y is
/// out_proj (out, Dv) of that. Vaswani et al.: "Attention is all you need", 2017, section 3.2.1.
///
/// Starts with zeros: load weights or call initialize().
///
///   heed::SelfAttention<float> layer({.model = 16, .key_width = 24, .value_width = 28});
///   layer.initialize(1);
///   auto [y, weights] = layer.with_weights(x, heed::Causal{});
template <class T>
class SelfAttention : public detail::MaskedLayer<SelfAttention<T>, T> {
 public:
  using detail::MaskedLayer<SelfAttention<T>, T>::forward;

  /// Throws ShapeError for a width below 1, ValueError for a scale that is not finite or a dropout outside [0, 1].
  explicit SelfAttention(const SelfAttentionOptions& options)
      : options_(resolved(options)),
        q_proj_({.in = options_.model, .out = options_.key_width, .bias = options_.bias}),
        k_proj_(q_proj_.options()),
        v_proj_({.in = options_.model, .out = options_.value_width, .bias = options_.bias}) {
    if (options_.out > 0) out_proj_.emplace(LinearOptions{options_.value_width, options_.out, options_.bias});
  }

  /// With the widths as they are used.
  const SelfAttentionOptions& options() const { return options_; }
  Linear<T>& q_proj() { return q_proj_; }
  const Linear<T>& q_proj() const { return q_proj_; }
  Linear<T>& k_proj() { return k_proj_; }
  const Linear<T>& k_proj() const { return k_proj_; }
  Linear<T>& v_proj() { return v_proj_; }
  const Linear<T>& v_proj() const { return v_proj_; }
  /// Null unless there is an output projection.
  Linear<T>* out_proj() { return out_proj_ ? &*out_proj_ : nullptr; }
  const Linear<T>* out_proj() const { return out_proj_ ? &*out_proj_ : nullptr; }
  Index output_width(Index) const { return out_proj_ ? options_.out : options_.value_width; }

  template <class F>
  void visit(std::string_view prefix, F&& f) {
    visit_parameters(*this, prefix, f);
  }
  template <class F>
  void visit(std::string_view prefix, F&& f) const {
    visit_parameters(*this, prefix, f);
  }

  /// Xavier-uniform weights, biases 0. `name` is the layer's name in its model: layers of one model need different
  /// ones.
  void initialize(std::uint64_t seed, std::string_view name = "") {
    visit(name, [&](std::string_view parameter_name, Parameter<T>& parameter) {
      if (parameter.rank() == 2)
        init::xavier_uniform(parameter, detail::generator(seed, parameter_name, ""));
      else
        init::zeros(parameter);
    });
  }

  /// Packs each projection as Linear::pack().
  void pack(const PackOptions& options = {}) {
    q_proj_.pack(options);
    k_proj_.pack(options);
    v_proj_.pack(options);
    if (out_proj_) out_proj_->pack(options);
  }

  /// auto [y, weights] = layer.with_weights(x, mask): y as without asking, the weights (B, L, L) before dropout. A
  /// plain Eigen x gives Eigen matrices.
  template <TensorLike X>
  auto with_weights(const X& x, const MaskArgument<T>& mask, Context& context) const {
    static_assert(detail::has_elements_of_v<X, T>, "heed: the elements of x are not of the layer's type; cast x");
    using Result = detail::result_t<X, T>;
    const Workspace::Frame frame(context.workspace());
    const auto in = detail::read_as<3>(x, context.workspace());
    const Index B = in.extent(0), L = in.extent(1);
    AttentionWithWeights<Result, Result> result{detail::make_result<X, T, 3>({B, L, output_width(in.extent(2))}),
                                                detail::make_result<X, T, 3>({B, L, L})};
    forward_with_weights(in, mask, detail::write_as<3>(result.out), detail::write_as<3>(result.weights), context);
    return result;
  }
  template <TensorLike X>
  auto with_weights(const X& x, const MaskArgument<T>& mask = NoMask{}) const {
    Context context;
    return with_weights(x, mask, context);
  }

  /// Throws ShapeError unless x is (B, L, E) and y (B, L, Dv), or (B, L, out), ValueError when they overlap, and what
  /// the mask finds wrong with Lq = Lk = L.
  void forward(TensorView<const T, 3> x, const MaskArgument<T>& mask, TensorView<T, 3> y, Context& context) const {
    run(x, mask, y, {}, context);
  }
  /// forward() that also writes the weights (B, L, L).
  void forward_with_weights(TensorView<const T, 3> x, const MaskArgument<T>& mask, TensorView<T, 3> y,
                            TensorView<T, 3> weights, Context& context) const {
    const Extents<3> expected{x.extent(0), x.extent(1), x.extent(1)};
    HEED_CHECK(weights.extents() == expected, ShapeError, kName, ": weights ", weights.extents(), " do not fit x ",
               x.extents(), "; make them ", expected);
    run(x, mask, y, one_head(weights), context);
  }

 private:
  static constexpr std::string_view kName = "heed::SelfAttention";

  static SelfAttentionOptions resolved(SelfAttentionOptions options) {
    HEED_CHECK(options.model >= 1 && options.key_width >= 0 && options.value_width >= 0 && options.out >= 0, ShapeError,
               kName, ": model = ", options.model, " must be at least 1, key_width = ", options.key_width,
               ", value_width = ", options.value_width, " and out = ", options.out, " at least 0");
    detail::check_attention_options(kName, options.scale, options.dropout);
    if (options.key_width == 0) options.key_width = options.model;
    if (options.value_width == 0) options.value_width = options.key_width;
    return options;
  }

  template <class Self, class F>
  static void visit_parameters(Self& self, std::string_view prefix, F& f) {
    self.q_proj_.visit(detail::join(prefix, "q_proj"), f);
    self.k_proj_.visit(detail::join(prefix, "k_proj"), f);
    self.v_proj_.visit(detail::join(prefix, "v_proj"), f);
    if (self.out_proj_) self.out_proj_->visit(detail::join(prefix, "out_proj"), f);
  }

  /// (B, L, D) as (B, 1, L, D).
  template <class U>
  static TensorView<U, 4> one_head(const TensorView<U, 3>& x) {
    return {x.data(), {x.extent(0), 1, x.extent(1), x.extent(2)}, {x.stride(0), 0, x.stride(1), x.stride(2)}};
  }

  TensorView<const T, 4> project(const Linear<T>& layer, std::string_view name, const TensorView<const T, 3>& x,
                                 Context& context) const {
    const auto y = context.workspace().template tensor<T, 3>({x.extent(0), x.extent(1), layer.options().out});
    const Context::Scope scope(context, name);
    layer.forward(x, y, context);
    return one_head(TensorView<const T, 3>(y));
  }

  void run(const TensorView<const T, 3>& x, const MaskArgument<T>& mask, const TensorView<T, 3>& y,
           const TensorView<T, 4>& weights, Context& context) const {
    detail::check_layer_shapes(kName, x, y, options_.model, output_width(options_.model));
    const Workspace::Frame frame(context.workspace());
    const TensorView<const T, 4> q = project(q_proj_, "q_proj", x, context), k = project(k_proj_, "k_proj", x, context),
                                 v = project(v_proj_, "v_proj", x, context);
    TensorView<T, 3> attended = y;
    if (out_proj_) {
      attended = context.workspace().template tensor<T, 3>({x.extent(0), x.extent(1), options_.value_width});
    }
    mask.attend({q, k, v, one_head(attended), weights, {.scale = options_.scale, .dropout = options_.dropout}},
                context);
    if (out_proj_) {
      const Context::Scope scope(context, "out_proj");
      out_proj_->forward(attended, y, context);
    }
    context.observe(y);
  }

  SelfAttentionOptions options_;
  Linear<T> q_proj_, k_proj_, v_proj_;
  std::optional<Linear<T>> out_proj_;
};

HEED_NAMESPACE_END
