// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// SelfAttention: the textbook layer, one head.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include <heed/attention/attention.hpp>
#include <heed/core/arguments.hpp>
#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/core/tensor.hpp>
#include <heed/core/workspace.hpp>
#include <heed/mask/basic.hpp>
#include <heed/nn/backward.hpp>
#include <heed/nn/init.hpp>
#include <heed/nn/layer.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/masked_layer.hpp>
#include <heed/nn/parameter.hpp>

HEED_NAMESPACE_BEGIN

struct SelfAttentionOptions {
  Index embed_dim;                ///< E
  Index head_dim = 0;             ///< Dk; 0 stands for E
  Index value_head_dim = 0;       ///< Dv; 0 stands for Dk
  Index out_dim = 0;              ///< width of an output projection; 0 for none: y is then (B, L, Dv)
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
///   heed::SelfAttention<float> layer({.embed_dim = 16, .head_dim = 24, .value_head_dim = 28});
///   layer.initialize(1);
///   auto [y, weights] = layer.with_weights(x, heed::Causal{});
template <class T>
class SelfAttention : public detail::MaskedLayer<SelfAttention<T>, T> {
 public:
  using detail::MaskedLayer<SelfAttention<T>, T>::forward;

  /// Throws ShapeError for a width below 1, ValueError for a scale that is not finite or a dropout outside [0, 1].
  explicit SelfAttention(const SelfAttentionOptions& options)
      : options_(resolved(options)),
        q_proj_({.in_features = options_.embed_dim, .out_features = options_.head_dim, .bias = options_.bias}),
        k_proj_(q_proj_.options()),
        v_proj_({.in_features = options_.embed_dim, .out_features = options_.value_head_dim, .bias = options_.bias}) {
    if (options_.out_dim > 0)
      out_proj_.emplace(LinearOptions{options_.value_head_dim, options_.out_dim, options_.bias});
  }

  /// What backward() needs of a forward: its x, borrowed, the projections, what attention gave, and its statistics.
  struct Cache {
    TensorView<const T, 3> x{};
    detail::Buffer<T> q, k, v, attended;
    AttentionCache<T> attention;
  };

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
  Index output_width(Index) const { return out_proj_ ? options_.out_dim : options_.value_head_dim; }

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
    detail::OutputAndWeights<Result, Result> result{detail::make_result<X, T, 3>({B, L, output_width(in.extent(2))}),
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

  /// forward() that a backward() can follow; x must live, unchanged, until then.
  void forward(TensorView<const T, 3> x, const MaskArgument<T>& mask, TensorView<T, 3> y, Cache& cache,
               Context& context) const {
    detail::check_layer_shapes(kName, x, y, options_.embed_dim, output_width(options_.embed_dim));
    cache.x = x;
    const Projected in = projected(cache);
    run_linear(q_proj_, "q_proj", x, in.q, context);
    run_linear(k_proj_, "k_proj", x, in.k, context);
    run_linear(v_proj_, "v_proj", x, in.v, context);
    mask.attend(attention(in, cache), context);
    if (out_proj_) {
      run_linear(*out_proj_, "out_proj", in.attended, y, context);
    } else {
      detail::transform_rows<T>(in.attended, y, context, [&](Index, Index, const T* from, T* to) {
        std::copy_n(from, options_.value_head_dim, to);
      });
    }
    context.observe(y);
  }
  /// Adds to the gradients of the projections and writes dx, under the mask of the forward; a dx without data is not
  /// computed. Throws ShapeError when dy or dx don't fit the forward, ValueError when dx overlaps dy or x.
  void backward(TensorView<const T, 3> dy, [[maybe_unused]] const MaskArgument<T>& mask, TensorView<T, 3> dx,
                Cache& cache, Context& context) {
    const TensorView<const T, 3> x = cache.x;
    const Index B = x.extent(0), L = x.extent(1);
    detail::check_backward(kName, x, {B, L, output_width(options_.embed_dim)}, dy, dx);
    Workspace& workspace = context.workspace();
    const Workspace::Frame frame(workspace);
    const Projected in = projected(cache);
    TensorView<const T, 3> dattended = dy;
    if (out_proj_) {
      const auto d = workspace.template tensor<T, 3>(in.attended.extents());
      out_proj_->backward(dy, d, {in.attended}, context);
      dattended = d;
    }
    const auto dq = workspace.template tensor<T, 3>(in.q.extents()),
               dk = workspace.template tensor<T, 3>(in.k.extents());
    const auto dv = workspace.template tensor<T, 3>(in.v.extents());
    detail::attend_backward<T>(cache.attention, one_head(dattended), {one_head(dq), one_head(dk), one_head(dv)},
                               context);
    q_proj_.backward(dq, dx, {x}, context);
    k_proj_.backward_residual(dk, dx, dx, {x}, context);
    v_proj_.backward_residual(dv, dx, dx, {x}, context);
  }

 private:
  static constexpr std::string_view kName = "heed::SelfAttention";

  static SelfAttentionOptions resolved(SelfAttentionOptions options) {
    HEED_CHECK(options.embed_dim >= 1 && options.head_dim >= 0 && options.value_head_dim >= 0 && options.out_dim >= 0,
               ShapeError, kName, ": embed_dim = ", options.embed_dim,
               " must be at least 1, head_dim = ", options.head_dim, ", value_head_dim = ", options.value_head_dim,
               " and out_dim = ", options.out_dim, " at least 0");
    detail::check_attention_options(kName, options.scale, options.dropout);
    if (options.head_dim == 0) options.head_dim = options.embed_dim;
    if (options.value_head_dim == 0) options.value_head_dim = options.head_dim;
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

  /// What a cache holds, (B, L, D) each.
  struct Projected {
    TensorView<T, 3> q, k, v, attended;
  };
  Projected projected(Cache& cache) const {
    const Index B = cache.x.extent(0), L = cache.x.extent(1);
    const Extents<3> keys{B, L, options_.head_dim}, values{B, L, options_.value_head_dim};
    return {cache.q.template view<3>(keys), cache.k.template view<3>(keys), cache.v.template view<3>(values),
            cache.attended.template view<3>(values)};
  }
  detail::LayerAttention<T> attention(const Projected& in, Cache& cache) const {
    return {one_head(in.q),      one_head(in.k),  one_head(in.v), one_head(in.attended), {},
            attention_options(), &cache.attention};
  }
  AttentionOptions attention_options() const { return {.scale = options_.scale, .dropout = options_.dropout}; }

  static void run_linear(const Linear<T>& layer, std::string_view name, const TensorView<const T, 3>& x,
                         const TensorView<T, 3>& y, Context& context) {
    const Context::Scope scope(context, name);
    layer.forward(x, y, context);
  }
  TensorView<const T, 4> project(const Linear<T>& layer, std::string_view name, const TensorView<const T, 3>& x,
                                 Context& context) const {
    const auto y = context.workspace().template tensor<T, 3>({x.extent(0), x.extent(1), layer.options().out_features});
    run_linear(layer, name, x, y, context);
    return one_head(TensorView<const T, 3>(y));
  }

  void run(const TensorView<const T, 3>& x, const MaskArgument<T>& mask, const TensorView<T, 3>& y,
           const TensorView<T, 4>& weights, Context& context) const {
    detail::check_layer_shapes(kName, x, y, options_.embed_dim, output_width(options_.embed_dim));
    const Workspace::Frame frame(context.workspace());
    const TensorView<const T, 4> q = project(q_proj_, "q_proj", x, context), k = project(k_proj_, "k_proj", x, context),
                                 v = project(v_proj_, "v_proj", x, context);
    TensorView<T, 3> attended = y;
    if (out_proj_) {
      attended = context.workspace().template tensor<T, 3>({x.extent(0), x.extent(1), options_.value_head_dim});
    }
    mask.attend({q, k, v, one_head(attended), weights, attention_options()}, context);
    if (out_proj_) run_linear(*out_proj_, "out_proj", attended, y, context);
    context.observe(y);
  }

  SelfAttentionOptions options_;
  Linear<T> q_proj_, k_proj_, v_proj_;
  std::optional<Linear<T>> out_proj_;
};

HEED_NAMESPACE_END
