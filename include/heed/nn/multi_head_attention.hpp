// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// MultiHeadAttention: self- and cross-attention with projections; grouped and multi-query heads.

#include <array>
#include <cstddef>
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
#include <heed/nn/head_projection.hpp>
#include <heed/nn/init.hpp>
#include <heed/nn/layer.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/masked_layer.hpp>
#include <heed/nn/parameter.hpp>
#include <heed/nn/rotary.hpp>
#include <heed/nn/self_attention.hpp>

HEED_NAMESPACE_BEGIN

/// The mean of attention weights (B, H, Lq, Lk) over the heads, (B, Lq, Lk): what PyTorch's average_attn_weights gives.
template <AnyTensor Weights>
auto mean_over_heads(const Weights& weights) {
  static_assert(rank_of_v<Weights> == 4, "heed::mean_over_heads: the weights must be (B, H, Lq, Lk)");
  using T = scalar_of_t<Weights>;
  using A = accumulate_t<T>;
  const TensorView<const T, 4> w = view_of(weights);
  Tensor<T, 3> mean(w.extent(0), w.extent(2), w.extent(3));
  for (Index b = 0; b < w.extent(0); ++b) {
    for (Index q = 0; q < w.extent(2); ++q) {
      for (Index k = 0; k < w.extent(3); ++k) {
        A sum(0);
        for (Index h = 0; h < w.extent(1); ++h) sum += static_cast<A>(w(b, h, q, k));
        mean(b, q, k) = static_cast<T>(sum / static_cast<A>(w.extent(1)));
      }
    }
  }
  return mean;
}

/// y = out_proj(concat over h of softmax(scale · Q_h·K_gᵀ under a mask)·V_g), g = h / (H/G).
/// query (B, Lq, E), key (B, Lk, key_model), value (B, Lk, value_model), y (B, Lq, E), weights (B, H, Lq, Lk).
/// Vaswani et al.: "Attention is all you need", 2017, section 3.2.2; grouped heads: Ainslie et al.: "GQA", 2023.
///
/// Parameters, named as in PyTorch's MultiheadAttention: with one input width in_proj_weight, the rows of the query,
/// key and value projections one after the other (H·Dk + G·Dk + G·Dv, E), else q_proj_weight (H·Dk, E), k_proj_weight
/// (G·Dk, key_model) and v_proj_weight (G·Dv, value_model); in_proj_bias (H·Dk + G·Dk + G·Dv); out_proj.weight
/// (E, H·Dv) and out_proj.bias (E). Starts with zeros: load weights or call initialize().
///
///   heed::MultiHeadAttention<float> mha({.embed_dim = 512, .num_heads = 8});
///   mha.initialize(1);
///   Eigen::MatrixXf y = mha(x);                                  // x (L, E), any storage order
///   heed::Tensor<float, 3> z = mha(batch, heed::Padding(lengths));
///   auto [c, weights] = mha.with_weights(query, memory, memory);
template <class T>
class MultiHeadAttention : public detail::MaskedLayer<MultiHeadAttention<T>, T> {
 public:
  using detail::MaskedLayer<MultiHeadAttention<T>, T>::operator();
  using detail::MaskedLayer<MultiHeadAttention<T>, T>::forward;

  /// Throws ShapeError for widths or heads that don't fit each other, ValueError for a scale that is not finite or a
  /// dropout outside [0, 1].
  explicit MultiHeadAttention(const MultiHeadAttentionOptions& options)
      : options_(detail::resolved(options)),
        in_proj_(options_),
        out_proj_({.in_features = options_.num_heads * options_.value_head_dim,
                   .out_features = options_.embed_dim,
                   .bias = options_.bias}) {
    if (options_.rotary) rotary_.emplace(*options_.rotary);
  }

  /// What backward() needs of a forward: its inputs, borrowed, the projections, what attention gave, and its
  /// statistics.
  struct Cache {
    std::array<TensorView<const T, 3>, 3> inputs{};
    std::array<detail::Buffer<T>, 3> projected;
    detail::Buffer<T> attended;
    AttentionCache<T> attention;

    /// Memory held.
    std::size_t bytes() const {
      return projected[0].bytes() + projected[1].bytes() + projected[2].bytes() + attended.bytes() + attention.bytes();
    }
  };

  /// With everything that 0 stands for filled in.
  const MultiHeadAttentionOptions& options() const { return options_; }
  Parameter<T>& in_proj_weight() { return in_proj_.joint_weight(); }
  const Parameter<T>& in_proj_weight() const { return in_proj_.joint_weight(); }
  Parameter<T>& q_proj_weight() { return in_proj_.part_weight(0); }
  const Parameter<T>& q_proj_weight() const { return in_proj_.part_weight(0); }
  Parameter<T>& k_proj_weight() { return in_proj_.part_weight(1); }
  const Parameter<T>& k_proj_weight() const { return in_proj_.part_weight(1); }
  Parameter<T>& v_proj_weight() { return in_proj_.part_weight(2); }
  const Parameter<T>& v_proj_weight() const { return in_proj_.part_weight(2); }
  Parameter<T>& in_proj_bias() { return in_proj_.bias(); }
  const Parameter<T>& in_proj_bias() const { return in_proj_.bias(); }
  Linear<T>& out_proj() { return out_proj_; }
  const Linear<T>& out_proj() const { return out_proj_; }
  Index output_width(Index) const { return options_.embed_dim; }

  template <class F>
  void visit(std::string_view prefix, F&& f) {
    visit_parameters(*this, prefix, f);
  }
  template <class F>
  void visit(std::string_view prefix, F&& f) const {
    visit_parameters(*this, prefix, f);
  }

  /// Xavier-uniform weights, each of the four projections by its own widths; biases 0. `name` is the layer's name in
  /// its model: layers of one model need different ones.
  void initialize(std::uint64_t seed, std::string_view name = "") {
    in_proj_.initialize(seed, name);
    init::xavier_uniform(out_proj_.weight(), detail::generator(seed, name, "out_proj.weight"));
    if (options_.bias) init::zeros(out_proj_.bias());
  }

  /// Lays the weights out as the kernel reads them: calls give the same bits in less time. Mutable access to a weight
  /// drops its copy. With release, Projections::Joint leaves only self-attention possible. Throws ValueError when a
  /// weight was released and changed since, or packed in the other way before.
  void pack(const PackOptions& options = {}, Projections projections = Projections::Joint) {
    in_proj_.pack(options, projections);
    out_proj_.pack(options);
  }

  /// Cross-attention, y = mha(query, key, value, mask, context). The result is of the query's kind.
  template <TensorLike Q, TensorLike K, TensorLike V>
  auto operator()(const Q& query, const K& key, const V& value, const MaskArgument<T>& mask, Context& context) const {
    check_elements<Q, K, V>();
    const auto attention = [&](TensorView<const T, 3> q, TensorView<const T, 3> k, TensorView<const T, 3> v,
                               TensorView<T, 3> y) { forward(q, k, v, mask, y, context); };
    return detail::apply<T>(options_.embed_dim, context, attention, query, key, value);
  }
  template <TensorLike Q, TensorLike K, TensorLike V>
  auto operator()(const Q& query, const K& key, const V& value, Context& context) const {
    return (*this)(query, key, value, NoMask{}, context);
  }
  template <TensorLike Q, TensorLike K, TensorLike V>
  auto operator()(const Q& query, const K& key, const V& value, const MaskArgument<T>& mask = NoMask{}) const {
    Context context;
    return (*this)(query, key, value, mask, context);
  }

  /// auto [y, weights] = mha.with_weights(x, mask): y as without asking, and a Tensor of weights (B, H, Lq, Lk) before
  /// dropout. weights.matrix(b, h) is one head as an Eigen map; mean_over_heads(weights) averages.
  template <TensorLike X>
  auto with_weights(const X& x, const MaskArgument<T>& mask, Context& context) const {
    check_elements<X>();
    const Workspace::Frame frame(context.workspace());
    const auto view = detail::read_as<3>(x, context.workspace());
    return result_with_weights<X>(view, view, view, mask, context);
  }
  template <TensorLike X>
  auto with_weights(const X& x, const MaskArgument<T>& mask = NoMask{}) const {
    Context context;
    return with_weights(x, mask, context);
  }
  template <TensorLike Q, TensorLike K, TensorLike V>
  auto with_weights(const Q& query, const K& key, const V& value, const MaskArgument<T>& mask, Context& context) const {
    check_elements<Q, K, V>();
    Workspace& workspace = context.workspace();
    const Workspace::Frame frame(workspace);
    return result_with_weights<Q>(detail::read_as<3>(query, workspace), detail::read_as<3>(key, workspace),
                                  detail::read_as<3>(value, workspace), mask, context);
  }
  template <TensorLike Q, TensorLike K, TensorLike V>
  auto with_weights(const Q& query, const K& key, const V& value, const MaskArgument<T>& mask = NoMask{}) const {
    Context context;
    return with_weights(query, key, value, mask, context);
  }

  /// Throws ShapeError when the inputs don't fit the layer or each other, or y is not (B, Lq, E); ValueError when y
  /// overlaps an input; and what the mask finds wrong with the shape. Inputs that are the same view share a product.
  void forward(TensorView<const T, 3> query, TensorView<const T, 3> key, TensorView<const T, 3> value,
               const MaskArgument<T>& mask, TensorView<T, 3> y, Context& context) const {
    run(query, key, value, mask, {}, y, {}, context);
    context.observe(y);
  }
  /// Self-attention.
  void forward(TensorView<const T, 3> x, const MaskArgument<T>& mask, TensorView<T, 3> y, Context& context) const {
    forward(x, x, x, mask, y, context);
  }
  /// forward() that also writes the weights (B, H, Lq, Lk).
  void forward_with_weights(TensorView<const T, 3> query, TensorView<const T, 3> key, TensorView<const T, 3> value,
                            const MaskArgument<T>& mask, TensorView<T, 3> y, TensorView<T, 4> weights,
                            Context& context) const {
    const Extents<4> expected{query.extent(0), options_.num_heads, query.extent(1), key.extent(1)};
    HEED_CHECK(weights.extents() == expected, ShapeError, kName, ": weights ", weights.extents(),
               " do not fit the call; make them ", expected);
    run(query, key, value, mask, {}, y, weights, context);
    context.observe(y);
  }
  /// y = residual + layer(query, key, value): the addition is part of the last product. An observer is shown the
  /// layer's own output, which then takes two passes, to the same bits. Throws as forward() does, also for a residual
  /// that does not fit y or overlaps it.
  void forward_residual(TensorView<const T, 3> query, TensorView<const T, 3> key, TensorView<const T, 3> value,
                        const MaskArgument<T>& mask, TensorView<const T, 3> residual, TensorView<T, 3> y,
                        Context& context) const {
    detail::check_residual(kName, residual, y);
    if (!context.observer) return run(query, key, value, mask, residual, y, {}, context);
    forward(query, key, value, mask, y, context);
    detail::apply_epilogue(y, {.residual = residual}, context);
  }

  /// forward() that a backward() can follow; the inputs must live, unchanged, until then.
  void forward(TensorView<const T, 3> query, TensorView<const T, 3> key, TensorView<const T, 3> value,
               const MaskArgument<T>& mask, TensorView<T, 3> y, Cache& cache, Context& context) const {
    attend(query, key, value, mask, {}, y, cache, context);
    context.observe(y);
  }
  void forward(TensorView<const T, 3> x, const MaskArgument<T>& mask, TensorView<T, 3> y, Cache& cache,
               Context& context) const {
    forward(x, x, x, mask, y, cache, context);
  }
  /// forward_residual() that a backward() can follow.
  void forward_residual(TensorView<const T, 3> query, TensorView<const T, 3> key, TensorView<const T, 3> value,
                        const MaskArgument<T>& mask, TensorView<const T, 3> residual, TensorView<T, 3> y, Cache& cache,
                        Context& context) const {
    detail::check_residual(kName, residual, y);
    if (!context.observer) return attend(query, key, value, mask, residual, y, cache, context);
    forward(query, key, value, mask, y, cache, context);
    detail::apply_epilogue(y, {.residual = residual}, context);
  }

  /// Adds to the gradients of the projections and writes those of the inputs, under the mask of the forward. Inputs
  /// that were the same view and share their weight have one gradient, that of the first of them: give the others no
  /// data. Views without data are not computed. Throws ShapeError when a view doesn't fit the forward, ValueError when
  /// a gradient overlaps dy or an input, or is asked for although it is part of another.
  void backward(TensorView<const T, 3> dy, const MaskArgument<T>& mask, TensorView<T, 3> dquery, TensorView<T, 3> dkey,
                TensorView<T, 3> dvalue, Cache& cache, Context& context) {
    backward_residual(dy, mask, {dquery}, {dkey}, {dvalue}, cache, context);
  }
  /// Self-attention.
  void backward(TensorView<const T, 3> dy, [[maybe_unused]] const MaskArgument<T>& mask, TensorView<T, 3> dx,
                Cache& cache, Context& context) {
    backward_residual(dy, mask, {dx}, {}, {}, cache, context);
  }
  /// The same with residuals added to the gradients of the inputs, in one pass.
  void backward_residual(TensorView<const T, 3> dy, const MaskArgument<T>&, const InputGradient<T>& query,
                         const InputGradient<T>& key, const InputGradient<T>& value, Cache& cache, Context& context) {
    const std::array<InputGradient<T>, 3> gradients{query, key, value};
    check_gradients(cache, dy, gradients);
    Workspace& workspace = context.workspace();
    const Workspace::Frame frame(workspace);
    const Extents<3> extents = attended_extents(cache.inputs[0]);
    const TensorView<T, 3> attended = cache.attended.template view<3>(extents);
    const TensorView<T, 3> dattended = workspace.template tensor<T, 3>(extents);
    out_proj_.backward(dy, dattended, {attended}, context);
    std::array<TensorView<T, 3>, 3> memory;
    const detail::Heads<T> d = in_proj_.heads_in(cache.inputs, [&](int part, const Extents<3>& e) {
      return memory[static_cast<std::size_t>(part)] = workspace.template tensor<T, 3>(e);
    });
    detail::attend_backward<T>(cache.attention, split_values(dattended), {d.q, d.k, d.v}, context);
    if (rotary_) {
      rotary_->inverse(d.q, Positions(), d.q, context);
      rotary_->inverse(d.k, Positions(), d.k, context);
    }
    in_proj_.backward(cache.inputs, gradients, context,
                      [&](int part, const Extents<3>&) { return memory[static_cast<std::size_t>(part)]; });
  }

 private:
  static constexpr std::string_view kName = "heed::MultiHeadAttention";

  template <TensorLike... X>
  static constexpr void check_elements() {
    static_assert((detail::has_elements_of_v<X, T> && ...),
                  "heed: the elements of an input are not of the layer's type; "
                  "cast it, x.cast<float>() for plain Eigen");
  }

  template <class Self, class F>
  static void visit_parameters(Self& self, std::string_view prefix, F& f) {
    detail::HeadProjection<T>::visit_parameters(self.in_proj_, prefix, f);
    self.out_proj_.visit(detail::join(prefix, "out_proj"), f);
  }

  void check_inputs(const TensorView<const T, 3>& query, const TensorView<const T, 3>& key,
                    const TensorView<const T, 3>& value, const TensorView<T, 3>& y) const {
    constexpr std::string_view kNames[] = {"query", "key", "value"};
    const TensorView<const T, 3>* inputs[] = {&query, &key, &value};
    for (int part = 0; part < 3; ++part) {
      const TensorView<const T, 3>& input = *inputs[part];
      HEED_CHECK(input.extent(2) == in_proj_.input_width(part), ShapeError, kName, ": ", kNames[part], " ",
                 input.extents(), " has width ", input.extent(2), " but the layer takes ", in_proj_.input_width(part));
      HEED_CHECK(input.extent(0) == query.extent(0), ShapeError, kName, ": ", kNames[part], " ", input.extents(),
                 " has B = ", input.extent(0), " but query ", query.extents(), " has B = ", query.extent(0));
      HEED_CHECK(!detail::may_overlap(input, y), ValueError, kName, ": y shares memory with ", kNames[part],
                 "; give it memory of its own");
    }
    HEED_CHECK(key.extent(1) == value.extent(1), ShapeError, kName, ": value ", value.extents(),
               " has Lk = ", value.extent(1), " but key ", key.extents(), " has Lk = ", key.extent(1),
               "; each key needs one value");
    const Extents<3> expected{query.extent(0), query.extent(1), options_.embed_dim};
    HEED_CHECK(y.extents() == expected, ShapeError, kName, ": y ", y.extents(), " does not fit query ", query.extents(),
               "; make it ", expected);
  }

  AttentionOptions attention_options() const { return {.scale = options_.scale, .dropout = options_.dropout}; }
  TensorView<T, 4> split_values(const TensorView<T, 3>& x) const {
    return detail::split_heads(x, 0, options_.num_heads, options_.value_head_dim);
  }
  Extents<3> attended_extents(const TensorView<const T, 3>& query) const {
    return {query.extent(0), query.extent(1), options_.num_heads * options_.value_head_dim};
  }
  void rotate(const detail::Heads<T>& heads, Context& context) const {
    if (!rotary_) return;
    rotary_->forward(heads.q, Positions(), heads.q, context);
    rotary_->forward(heads.k, Positions(), heads.k, context);
  }
  /// Memory in the workspace for each part of a projection.
  static auto take_from(Workspace& workspace) {
    return [&workspace](int, const Extents<3>& extents) { return workspace.template tensor<T, 3>(extents); };
  }

  void run(const TensorView<const T, 3>& query, const TensorView<const T, 3>& key, const TensorView<const T, 3>& value,
           const MaskArgument<T>& mask, const TensorView<const T, 3>& residual, const TensorView<T, 3>& y,
           const TensorView<T, 4>& weights, Context& context) const {
    check_inputs(query, key, value, y);
    const Workspace::Frame frame(context.workspace());
    const detail::Heads<T> in =
        in_proj_.project({query, key, value}, context, take_from(context.workspace()), detail::Sharing::UnlessPacked);
    rotate(in, context);
    const auto attended = context.workspace().template tensor<T, 3>(attended_extents(query));
    mask.attend({in.q, in.k, in.v, split_values(attended), weights, attention_options()}, context);
    const Context::Scope scope(context, "out_proj");
    out_proj_.forward(attended, {.residual = residual}, y, context);
  }

  static auto memory_of(Cache& cache) {
    return [&cache](int part, const Extents<3>& extents) {
      return cache.projected[static_cast<std::size_t>(part)].template view<3>(extents);
    };
  }
  /// run() that fills a cache.
  void attend(const TensorView<const T, 3>& query, const TensorView<const T, 3>& key,
              const TensorView<const T, 3>& value, const MaskArgument<T>& mask, const TensorView<const T, 3>& residual,
              const TensorView<T, 3>& y, Cache& cache, Context& context) const {
    check_inputs(query, key, value, y);
    cache.inputs = {query, key, value};
    const detail::Heads<T> in = in_proj_.project(cache.inputs, context, memory_of(cache), detail::Sharing::Always);
    rotate(in, context);
    const TensorView<T, 3> attended = cache.attended.template view<3>(attended_extents(query));
    mask.attend({in.q, in.k, in.v, split_values(attended), {}, attention_options(), &cache.attention}, context);
    const Context::Scope scope(context, "out_proj");
    out_proj_.forward(attended, {.residual = residual}, y, context);
  }
  void check_gradients(const Cache& cache, const TensorView<const T, 3>& dy,
                       const std::array<InputGradient<T>, 3>& gradients) const {
    const TensorView<const T, 3>& query = cache.inputs[0];
    for (int part = 0; part < 3; ++part) {
      const auto at = static_cast<std::size_t>(part);
      detail::check_backward(kName, cache.inputs[at], {query.extent(0), query.extent(1), options_.embed_dim}, dy,
                             gradients[at].dx);
      detail::check_backward_residual(kName, gradients[at].residual, gradients[at].dx);
      HEED_CHECK(!gradients[at].dx.data() || !in_proj_.is_joined(cache.inputs, part), ValueError, kName,
                 ": the input of ", part == 1 ? "key" : "value",
                 " was the same view as the one before it; its gradient is part of "
                 "that one, give it no data");
    }
  }

  template <TensorLike Q>
  auto result_with_weights(const TensorView<const T, 3>& query, const TensorView<const T, 3>& key,
                           const TensorView<const T, 3>& value, const MaskArgument<T>& mask, Context& context) const {
    const Index B = query.extent(0), Lq = query.extent(1);
    detail::OutputAndWeights<detail::result_t<Q, T>, Tensor<T, 4>> result{
        detail::make_result<Q, T, 3>({B, Lq, options_.embed_dim}),
        Tensor<T, 4>(B, options_.num_heads, Lq, key.extent(1))};
    forward_with_weights(query, key, value, mask, detail::write_as<3>(result.out), result.weights.view(), context);
    return result;
  }

  MultiHeadAttentionOptions options_;
  detail::HeadProjection<T> in_proj_;
  Linear<T> out_proj_;
  std::optional<RotaryEmbedding<T>> rotary_;
};

HEED_NAMESPACE_END
