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
#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/core/operand.hpp>
#include <heed/core/tensor.hpp>
#include <heed/core/workspace.hpp>
#include <heed/mask/basic.hpp>
#include <heed/nn/init.hpp>
#include <heed/nn/layer.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/parameter.hpp>
#include <heed/nn/positional.hpp>
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

struct MultiHeadAttentionOptions {
  Index model;                            ///< E, the width of the queries' input and of y
  Index heads;                            ///< H
  Index kv_heads = 0;                     ///< G, a divisor of H; 0 stands for H, 1 is multi-query attention
  Index head_width = 0;                   ///< Dk; 0 stands for E/H
  Index value_head_width = 0;             ///< Dv; 0 stands for Dk
  Index key_model = 0;                    ///< the width of the keys' input (PyTorch: kdim); 0 stands for E
  Index value_model = 0;                  ///< the width of the values' input (PyTorch: vdim); 0 stands for key_model
  bool bias = true;                       ///< in every projection
  std::optional<double> scale{};          ///< of the scores; 1/√Dk where not given
  double dropout = 0;                     ///< probability that a weight is dropped, while context.training
  std::optional<RotaryOptions> rotary{};  ///< turns queries and keys by their positions; width 0 stands for Dk
};

/// Which products MultiHeadAttention::pack() prepares.
enum class Projections {
  Joint,    ///< query, key and value in one product, for self-attention; other calls use the raw weights
  Separate  ///< three products, which serve every call
};

/// y = out_proj(concat over h of softmax(scale · Q_h·K_gᵀ under a mask)·V_g), g = h / (H/G).
/// query (B, Lq, E), key (B, Lk, key_model), value (B, Lk, value_model), y (B, Lq, E), weights (B, H, Lq, Lk).
/// Vaswani et al.: "Attention is all you need", 2017, section 3.2.2; grouped heads: Ainslie et al.: "GQA", 2023.
///
/// Parameters, named as in PyTorch's MultiheadAttention: with one input width in_proj_weight, the rows of the query,
/// key and value projections one after the other (H·Dk + G·Dk + G·Dv, E), else q_proj_weight (H·Dk, E), k_proj_weight
/// (G·Dk, key_model) and v_proj_weight (G·Dv, value_model); in_proj_bias (H·Dk + G·Dk + G·Dv); out_proj.weight
/// (E, H·Dv) and out_proj.bias (E). Starts with zeros: load weights or call initialize().
///
///   heed::MultiHeadAttention<float> mha({.model = 512, .heads = 8});
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
      : options_(resolved(options)),
        out_proj_({.in = options_.heads * options_.value_head_width, .out = options_.model, .bias = options_.bias}) {
    if (has_joint_weight()) {
      in_proj_weight_ = Parameter<T>(first_row(3), options_.model);
    } else {
      for (int part = 0; part < 3; ++part) part_weight_[at(part)] = Parameter<T>(rows(part), input_width(part));
    }
    if (options_.bias) in_proj_bias_ = Parameter<T>(first_row(3));
    if (options_.rotary) rotary_.emplace(*options_.rotary);
  }

  /// With everything that 0 stands for filled in.
  const MultiHeadAttentionOptions& options() const { return options_; }
  Parameter<T>& in_proj_weight() { return in_proj_weight_; }
  const Parameter<T>& in_proj_weight() const { return in_proj_weight_; }
  Parameter<T>& q_proj_weight() { return part_weight_[0]; }
  const Parameter<T>& q_proj_weight() const { return part_weight_[0]; }
  Parameter<T>& k_proj_weight() { return part_weight_[1]; }
  const Parameter<T>& k_proj_weight() const { return part_weight_[1]; }
  Parameter<T>& v_proj_weight() { return part_weight_[2]; }
  const Parameter<T>& v_proj_weight() const { return part_weight_[2]; }
  Parameter<T>& in_proj_bias() { return in_proj_bias_; }
  const Parameter<T>& in_proj_bias() const { return in_proj_bias_; }
  Linear<T>& out_proj() { return out_proj_; }
  const Linear<T>& out_proj() const { return out_proj_; }
  Index output_width(Index) const { return options_.model; }

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
    constexpr std::string_view kParts[] = {"q_proj_weight", "k_proj_weight", "v_proj_weight"};
    for (int part = 0; part < 3; ++part) {
      Parameter<T>& weight = has_joint_weight() ? in_proj_weight_ : part_weight_[at(part)];
      const Index first = has_joint_weight() ? first_row(part) : 0;
      init::xavier_uniform(weight.mutable_matrix().slice(0, first, rows(part)),
                           detail::generator(seed, name, kParts[part]));
    }
    init::xavier_uniform(out_proj_.weight(), detail::generator(seed, name, "out_proj.weight"));
    if (options_.bias) {
      init::zeros(in_proj_bias_);
      init::zeros(out_proj_.bias());
    }
  }

  /// Lays the weights out as the kernel reads them: calls give the same bits in less time. Mutable access to a weight
  /// drops its copy. With release, Projections::Joint leaves only self-attention possible. Throws ValueError when a
  /// weight was released and changed since, or packed in the other way before.
  void pack(const PackOptions& options = {}, Projections projections = Projections::Joint) {
    if (!has_joint_weight()) {
      for (int part = 0; part < 3; ++part) {
        packed_[at(part)].pack(part_weight_[at(part)], 0, rows(part));
        if (options.release) part_weight_[at(part)].release();
      }
    } else if (projections == Projections::Joint) {
      packed_joint_.pack(in_proj_weight_, 0, first_row(3));
      for (auto& packed : packed_) packed.drop();
    } else {
      for (int part = 0; part < 3; ++part) packed_[at(part)].pack(in_proj_weight_, first_row(part), rows(part));
      packed_joint_.drop();
    }
    if (options.release) in_proj_weight_.release();
    out_proj_.pack(options);
  }

  /// Cross-attention, y = mha(query, key, value, mask, context). The result is of the query's kind.
  template <TensorLike Q, TensorLike K, TensorLike V>
  auto operator()(const Q& query, const K& key, const V& value, const MaskArgument<T>& mask, Context& context) const {
    check_elements<Q, K, V>();
    const auto attention = [&](TensorView<const T, 3> q, TensorView<const T, 3> k, TensorView<const T, 3> v,
                               TensorView<T, 3> y) { forward(q, k, v, mask, y, context); };
    return detail::apply<T>(options_.model, context, attention, query, key, value);
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
    const Extents<4> expected{query.extent(0), options_.heads, query.extent(1), key.extent(1)};
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

 private:
  static constexpr std::string_view kName = "heed::MultiHeadAttention";

  /// The projected inputs as heads.
  struct Heads {
    TensorView<T, 4> q, k, v;
  };

  static MultiHeadAttentionOptions resolved(MultiHeadAttentionOptions o) {
    HEED_CHECK(o.model >= 1 && o.heads >= 1, ShapeError, kName, ": model = ", o.model, " and heads = ", o.heads,
               " must be at least 1");
    HEED_CHECK(
        o.kv_heads >= 0 && o.head_width >= 0 && o.value_head_width >= 0 && o.key_model >= 0 && o.value_model >= 0,
        ShapeError, kName, ": kv_heads = ", o.kv_heads, ", head_width = ", o.head_width,
        ", value_head_width = ", o.value_head_width, ", key_model = ", o.key_model,
        " and value_model = ", o.value_model, " can't be negative");
    if (o.kv_heads == 0) o.kv_heads = o.heads;
    HEED_CHECK(o.heads % o.kv_heads == 0, ShapeError, kName, ": heads = ", o.heads, " but kv_heads = ", o.kv_heads,
               "; heads must be a multiple, query head h reads key head h / (heads/kv_heads)");
    if (o.head_width == 0) {
      HEED_CHECK(o.model % o.heads == 0, ShapeError, kName, ": model = ", o.model,
                 " is not a multiple of heads = ", o.heads, "; give head_width");
      o.head_width = o.model / o.heads;
    }
    if (o.value_head_width == 0) o.value_head_width = o.head_width;
    if (o.key_model == 0) o.key_model = o.model;
    if (o.value_model == 0) o.value_model = o.key_model;
    if (o.rotary) {
      if (o.rotary->width == 0) o.rotary->width = o.head_width;
      HEED_CHECK(o.rotary->width == o.head_width, ShapeError, kName, ": rotary.width = ", o.rotary->width,
                 " but head_width = ", o.head_width, "; leave it 0, or give rotary.turned to turn a part of each head");
    }
    detail::check_attention_options(kName, o.scale, o.dropout);
    return o;
  }

  template <TensorLike... X>
  static constexpr void check_elements() {
    static_assert(
        (detail::has_elements_of_v<X, T> && ...),
        "heed: the elements of an input are not of the layer's type; cast it, x.cast<float>() for plain Eigen");
  }

  // Query, key and value are parts 0, 1 and 2 of the input projection.

  static constexpr std::size_t at(int part) { return static_cast<std::size_t>(part); }
  bool has_joint_weight() const {
    return options_.key_model == options_.model && options_.value_model == options_.model;
  }
  Index heads(int part) const { return part == 0 ? options_.heads : options_.kv_heads; }
  Index head_width(int part) const { return part == 2 ? options_.value_head_width : options_.head_width; }
  Index rows(int part) const { return heads(part) * head_width(part); }
  Index input_width(int part) const {
    return part == 0 ? options_.model : part == 1 ? options_.key_model : options_.value_model;
  }
  /// Where the rows of a part begin in in_proj_weight and in_proj_bias; for 3, how many rows there are.
  Index first_row(int part) const {
    Index first = 0;
    for (int before = 0; before < part; ++before) first += rows(before);
    return first;
  }

  template <class Self, class F>
  static void visit_parameters(Self& self, std::string_view prefix, F& f) {
    detail::visit_parameter(prefix, "in_proj_weight", self.in_proj_weight_, f);
    detail::visit_parameter(prefix, "q_proj_weight", self.part_weight_[0], f);
    detail::visit_parameter(prefix, "k_proj_weight", self.part_weight_[1], f);
    detail::visit_parameter(prefix, "v_proj_weight", self.part_weight_[2], f);
    detail::visit_parameter(prefix, "in_proj_bias", self.in_proj_bias_, f);
    self.out_proj_.visit(detail::join(prefix, "out_proj"), f);
  }

  void check_inputs(const TensorView<const T, 3>& query, const TensorView<const T, 3>& key,
                    const TensorView<const T, 3>& value, const TensorView<T, 3>& y) const {
    constexpr std::string_view kNames[] = {"query", "key", "value"};
    const TensorView<const T, 3>* inputs[] = {&query, &key, &value};
    for (int part = 0; part < 3; ++part) {
      const TensorView<const T, 3>& input = *inputs[part];
      HEED_CHECK(input.extent(2) == input_width(part), ShapeError, kName, ": ", kNames[part], " ", input.extents(),
                 " has width ", input.extent(2), " but the layer takes ", input_width(part));
      HEED_CHECK(input.extent(0) == query.extent(0), ShapeError, kName, ": ", kNames[part], " ", input.extents(),
                 " has B = ", input.extent(0), " but query ", query.extents(), " has B = ", query.extent(0));
      HEED_CHECK(!detail::may_overlap(input, y), ValueError, kName, ": y shares memory with ", kNames[part],
                 "; give it memory of its own");
    }
    HEED_CHECK(key.extent(1) == value.extent(1), ShapeError, kName, ": value ", value.extents(),
               " has Lk = ", value.extent(1), " but key ", key.extents(), " has Lk = ", key.extent(1),
               "; each key needs one value");
    const Extents<3> expected{query.extent(0), query.extent(1), options_.model};
    HEED_CHECK(y.extents() == expected, ShapeError, kName, ": y ", y.extents(), " does not fit query ", query.extents(),
               "; make it ", expected);
  }

  static bool is_same(const TensorView<const T, 3>& a, const TensorView<const T, 3>& b) {
    return a.data() == b.data() && a.extents() == b.extents() && a.strides() == b.strides();
  }
  /// Columns [column, column + heads·width) of x (B, L, columns) as (B, heads, L, width), where they lie.
  static TensorView<T, 4> split_heads(const TensorView<T, 3>& x, Index column, Index heads, Index width) {
    return {x.data() + column * x.stride(2),
            {x.extent(0), heads, x.extent(1), width},
            {x.stride(0), width * x.stride(2), x.stride(1), x.stride(2)}};
  }

  /// Parts [part, end) of the input projection.
  detail::LinearOperand<T> projection(int part, int end) const {
    const bool joint = has_joint_weight();
    const Parameter<T>& weight = joint ? in_proj_weight_ : part_weight_[at(part)];
    const Index first = first_row(part), count = first_row(end) - first;
    detail::LinearOperand<T> operand;
    if (end - part == 3) operand.packed = packed_joint_.current(weight);
    if (end - part == 1) operand.packed = packed_[at(part)].current(weight);
    if (!operand.packed) {
      HEED_CHECK(!weight.released(), ValueError, kName,
                 ": in_proj_weight was released after it was packed for self-attention, but the inputs differ; "
                 "pack with Projections::Separate");
      operand.weight = weight.matrix().slice(0, joint ? first : 0, count);
    }
    operand.bias = detail::bias_from(in_proj_bias_, first);
    return operand;
  }

  /// One product for each run of parts that have one input and one weight.
  Heads project(const TensorView<const T, 3>& query, const TensorView<const T, 3>& key,
                const TensorView<const T, 3>& value, Context& context) const {
    const TensorView<const T, 3>* inputs[] = {&query, &key, &value};
    TensorView<T, 4> parts[3];
    const bool may_join = has_joint_weight() && !packed_[0].current(in_proj_weight_);
    for (int part = 0; part < 3;) {
      const TensorView<const T, 3>& x = *inputs[part];
      int end = part + 1;
      while (may_join && end < 3 && is_same(x, *inputs[end])) ++end;
      const Index first = first_row(part);
      const auto projected =
          context.workspace().template tensor<T, 3>({x.extent(0), x.extent(1), first_row(end) - first});
      detail::linear<T>(x, projection(part, end), projected, {}, context);
      for (; part < end; ++part) {
        parts[part] = split_heads(projected, first_row(part) - first, heads(part), head_width(part));
      }
    }
    return {parts[0], parts[1], parts[2]};
  }

  void run(const TensorView<const T, 3>& query, const TensorView<const T, 3>& key, const TensorView<const T, 3>& value,
           const MaskArgument<T>& mask, const TensorView<const T, 3>& residual, const TensorView<T, 3>& y,
           const TensorView<T, 4>& weights, Context& context) const {
    check_inputs(query, key, value, y);
    const Workspace::Frame frame(context.workspace());
    const Heads in = project(query, key, value, context);
    if (rotary_) {
      rotary_->forward(in.q, Positions(), in.q, context);
      rotary_->forward(in.k, Positions(), in.k, context);
    }
    const auto attended = context.workspace().template tensor<T, 3>(
        {query.extent(0), query.extent(1), options_.heads * options_.value_head_width});
    const TensorView<T, 4> out = split_heads(attended, 0, options_.heads, options_.value_head_width);
    mask.attend({in.q, in.k, in.v, out, weights, {.scale = options_.scale, .dropout = options_.dropout}}, context);
    const Context::Scope scope(context, "out_proj");
    out_proj_.forward(attended, {.residual = residual}, y, context);
  }

  template <TensorLike Q>
  auto result_with_weights(const TensorView<const T, 3>& query, const TensorView<const T, 3>& key,
                           const TensorView<const T, 3>& value, const MaskArgument<T>& mask, Context& context) const {
    const Index B = query.extent(0), Lq = query.extent(1);
    AttentionWithWeights<detail::result_t<Q, T>, Tensor<T, 4>> result{
        detail::make_result<Q, T, 3>({B, Lq, options_.model}), Tensor<T, 4>(B, options_.heads, Lq, key.extent(1))};
    forward_with_weights(query, key, value, mask, detail::write_as<3>(result.out), result.weights.view(), context);
    return result;
  }

  MultiHeadAttentionOptions options_;
  Parameter<T> in_proj_weight_, in_proj_bias_;
  std::array<Parameter<T>, 3> part_weight_;
  Linear<T> out_proj_;
  std::optional<Rotary<T>> rotary_;
  detail::PackedRows<T> packed_joint_;
  std::array<detail::PackedRows<T>, 3> packed_;
};

HEED_NAMESPACE_END
