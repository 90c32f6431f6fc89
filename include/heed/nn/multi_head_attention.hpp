// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// MultiHeadAttention: self- and cross-attention with projections; grouped and multi-query heads.

#include <heed/attention/attention.hpp>
#include <heed/nn/attention_layer.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/multi_head_attention_options.hpp>

HEED_NAMESPACE_BEGIN

/// y = out_proj(concat over h of softmax(scale · Q_h·K_gᵀ)·V_g), g = h / (H/G), under any attention: masks, score
/// modifiers, another kind of attention. query (B, Lq, E), key (B, Lk, key_dim), value (B, Lk, value_dim), y (B, Lq,
/// E), weights (B, H, Lq, Lk). Vaswani et al.: "Attention is all you need", 2017, section 3.2.2; grouped heads: Ainslie
/// et al.: "GQA", 2023.
///
/// Parameters as in PyTorch's MultiheadAttention: with one input width in_proj_weight, the rows of the query, key and
/// value projections one after the other, else q_proj_weight, k_proj_weight and v_proj_weight.
///
///   heed::MultiHeadAttention<float> mha({.embed_dim = 512, .num_heads = 8});
///   mha.initialize(random);
///   Eigen::MatrixXf y = mha(x);                                  // x (L, E), any storage order
///   heed::Tensor<float, 3> z = mha(batch, heed::Padding(lengths), heed::Alibi(8), context);
///   auto [c, weights] = mha.with_weights(query, memory, memory);
template <LayerScalar T>
class MultiHeadAttention : public AttentionLayer<MultiHeadAttention<T>, T> {
  using In = TensorView<const T, 3>;
  using Out = TensorView<T, 3>;
  MultiHeadAttentionOptions options_;
  std::array<Index, 3> heads_, width_, input_;  // of query, key and value, which are parts 0, 1 and 2

 public:
  using Inputs = std::array<In, 3>;  ///< query, key and value
  using AttentionLayer<MultiHeadAttention, T>::operator();
  using AttentionLayer<MultiHeadAttention, T>::forward;
  using AttentionLayer<MultiHeadAttention, T>::backward;
  using AttentionLayer<MultiHeadAttention, T>::run;

  /// Throws ShapeError for widths or heads that don't fit each other, ValueError for a scale that is not finite or a
  /// dropout outside [0, 1].
  explicit MultiHeadAttention(const MultiHeadAttentionOptions& options)
      : options_(detail::resolved(options, name())),
        heads_{options_.num_heads, options_.num_kv_heads, options_.num_kv_heads},
        width_{options_.head_dim, options_.head_dim, options_.value_head_dim},
        input_{options_.embed_dim, options_.key_dim, options_.value_dim},
        out_proj(options_.num_heads * options_.value_head_dim, options_.embed_dim, options_.bias) {
    if (is_joint()) {
      in_proj_weight = Parameter<T>(first_row(3), input_[0]);
    } else {
      for (int part = 0; part < 3; ++part) weight(part) = Parameter<T>(rows(part), input_[at(part)]);
    }
    if (options_.bias) in_proj_bias = Parameter<T>(first_row(3));
    if (options_.rotary.enabled) rotary_.emplace(options_.rotary);
    if (options_.qk_norm) q_norm.emplace(*options_.qk_norm), k_norm.emplace(*options_.qk_norm);
  }

  /// Memory of a forward that backward() needs: its inputs, borrowed, the projections, before and after a norm, the
  /// attended values, and what attention keeps.
  struct Cache {
    Inputs inputs{};
    std::array<Buffer<T>, 3> projected;
    std::array<Buffer<T>, 2> normalized;
    std::array<typename Norm<T>::Cache, 2> norms;
    Buffer<T> attended;
    AttentionCache<T> attention;

    /// Memory held.
    std::size_t bytes() const {
      return projected[0].bytes() + projected[1].bytes() + projected[2].bytes() + normalized[0].bytes() +
             normalized[1].bytes() + norms[0].bytes() + norms[1].bytes() + attended.bytes() + attention.bytes();
    }
  };

  Parameter<T> in_proj_weight;    ///< (H·Dk + G·Dk + G·Dv, E), where the inputs have one width
  Parameter<T> q_proj_weight;     ///< (H·Dk, E), where they do not
  Parameter<T> k_proj_weight;     ///< (G·Dk, key_dim), where they do not
  Parameter<T> v_proj_weight;     ///< (G·Dv, value_dim), where they do not
  Parameter<T> in_proj_bias;      ///< (H·Dk + G·Dk + G·Dv)
  Linear<T> out_proj;             ///< (E, H·Dv)
  std::optional<Norm<T>> q_norm;  ///< (Dk), of each head's queries, where `qk_norm` asks for it
  std::optional<Norm<T>> k_norm;  ///< (Dk), of each head's keys, where `qk_norm` asks for it

  /// The list of members, for Module.
  static void members(auto&& f) {
    f("in_proj_weight", &MultiHeadAttention::in_proj_weight);
    f("q_proj_weight", &MultiHeadAttention::q_proj_weight);
    f("k_proj_weight", &MultiHeadAttention::k_proj_weight);
    f("v_proj_weight", &MultiHeadAttention::v_proj_weight);
    f("in_proj_bias", &MultiHeadAttention::in_proj_bias);
    f("out_proj", &MultiHeadAttention::out_proj);
    f("q_norm", &MultiHeadAttention::q_norm);
    f("k_norm", &MultiHeadAttention::k_norm);
  }
  static constexpr std::string_view name() { return "heed::MultiHeadAttention"; }  ///< the layer in error texts
  /// With everything that 0 means filled in.
  const MultiHeadAttentionOptions& options() const { return options_; }
  /// The extents of a KvCache for this layer.
  KvShape kv_shape() const {
    return {.num_kv_heads = options_.num_kv_heads,
            .head_dim = options_.head_dim,
            .value_head_dim = options_.value_head_dim};
  }
  Index input_width(Index) const { return options_.embed_dim; }   ///< of x
  Index output_width(Index) const { return options_.embed_dim; }  ///< of y

  /// Xavier-uniform weights, each of the four projections by its widths; biases 0.
  void initialize(Random& random, std::string_view name = "") {
    constexpr std::string_view kParts[] = {"q_proj_weight", "k_proj_weight", "v_proj_weight"};
    for (int part = 0; part < 3; ++part) {
      init::xavier_uniform(weight(part).mutable_matrix().slice(0, first_weight_row(part), rows(part)),
                           random(detail::join(name, kParts[part])));
    }
    if (in_proj_bias.exists()) init::zeros(in_proj_bias);
    init::xavier_uniform(out_proj.weight, random(detail::join(name, "out_proj.weight")));
    if (out_proj.bias.exists()) init::zeros(out_proj.bias);
    if (q_norm) q_norm->initialize(random), k_norm->initialize(random);
  }

  /// See Module::pack().
  void pack(const PackOptions& options = {}) {
    if (shares_panels())
      packed_[0].pack(weight(0), 0, first_row(3));
    else
      for (int part = 0; part < 3; ++part) packed_[at(part)].pack(weight(part), first_weight_row(part), rows(part));
    for (int part = 0; options.release && part < 3; ++part) {
      if (!weight(part).quantized()) weight(part).release();
    }
    out_proj.pack(options);
  }
  /// See Module::quantize().
  void quantize(WeightFormat format) {
    for (int part = 0; part < (is_joint() ? 1 : 3); ++part) weight(part).quantize(format);
    out_proj.quantize(format);
  }

  /// y = mha(query, key, value, parts...). Inputs that are the same view share a product.
  template <TensorLike Q, TensorLike K, TensorLike V, class... Parts>
  auto operator()(const Q& query, const K& key, const V& value, Parts&&... parts) const {
    detail::check_elements<T, Q, K, V>();
    detail::check_parts<Parts...>();
    detail::OwnContext<Parts...> own;
    Context& context = detail::pick<detail::Part::Context>(own, parts...);
    return detail::apply<T>(
        options_.embed_dim, context,
        [&](const In& q, const In& k, const In& v, const Out& y) {
          forward(q, k, v, detail::attention_of(parts...), y, detail::step_of<T>(parts...), context);
        },
        query, key, value);
  }

  /// auto [y, weights] = mha.with_weights(x, parts...) or (query, key, value, parts...): y is identical to
  /// mha(x, parts...); the weights, a Tensor (B, H, Lq, Lk), are those before dropout. weights.matrix(b, h) is one head
  /// as an Eigen map; mean_over_heads(weights) averages.
  template <TensorLike X, class... Parts>
  requires(!TensorLike<Parts> && ...)
  auto with_weights(const X& x, Parts&&... parts) const {
    detail::OwnContext<Parts...> own;
    Context& context = detail::pick<detail::Part::Context>(own, parts...);
    const Workspace::Frame frame(context.workspace());
    const In view = detail::read_as<3>(x, context.workspace());
    return result_with_weights<X>(view, view, view, context, parts...);
  }
  /// @overload
  template <TensorLike Q, TensorLike K, TensorLike V, class... Parts>
  auto with_weights(const Q& query, const K& key, const V& value, Parts&&... parts) const {
    detail::OwnContext<Parts...> own;
    Context& context = detail::pick<detail::Part::Context>(own, parts...);
    Workspace& workspace = context.workspace();
    const Workspace::Frame frame(workspace);
    return result_with_weights<Q>(detail::read_as<3>(query, workspace), detail::read_as<3>(key, workspace),
                                  detail::read_as<3>(value, workspace), context, parts...);
  }

  /// forward() with inputs that differ: forward(query, key, value, y, rest...), or with the attention before y. `rest`
  /// are by kind: an attention value or its parts, a cache, which a backward needs, and the Context. Throws ShapeError
  /// when the inputs don't fit the layer or each other, or y is not (B, Lq, E); ValueError when y overlaps an input.
  template <TensorLike Q, TensorLike K, TensorLike V, TensorLike Y, class... Rest>
  void forward(const Q& query, const K& key, const V& value, Y&& y, Rest&&... rest) const {
    static_assert(detail::count_v<detail::Part::Context, Rest...> == 1,
                  "heed::MultiHeadAttention: forward takes one Context, after the other arguments");
    Context& context = detail::pick<detail::Part::Context>(detail::kNoMask, rest...);
    detail::check_elements<T, Q, K, V, Y>();
    Workspace& workspace = context.workspace();
    const Workspace::Frame frame(workspace);
    const Inputs inputs{detail::read_as<3>(query, workspace), detail::read_as<3>(key, workspace),
                        detail::read_as<3>(value, workspace)};
    const Out out = detail::write_as<3>(y);
    check_inputs(inputs, out);
    Cache* cache = nullptr;
    const auto take = [&](auto& argument) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(argument)>, Cache>) cache = &argument;
    };
    (take(rest), ...);
    const KvStep<T> kv = detail::step_of<T>(rest...);
    HEED_CHECK(!cache || !kv, ValueError, name(), ": a cache for a backward and a KvCache were given; give one");
    run(inputs, detail::attention_of(rest...), {}, out, {}, cache, context, kv);
  }
  /// @overload
  template <TensorLike Q, TensorLike K, TensorLike V, TensorLike Y, class... Rest>
  void forward(const Q& query, const K& key, const V& value, const AnyAttention<T>& attention, Y&& y,
               Rest&&... rest) const {
    forward(query, key, value, y, attention, rest...);
  }
  /// forward() of inputs {query, key, value} that also writes the weights (B, H, Lq, Lk).
  template <TensorLike Y, AnyTensor Weights>
  void forward_with_weights(const Inputs& inputs, const AnyAttention<T>& attention, Y&& y, Weights&& weights,
                            Context& context) const {
    const Out out = detail::write_as<3>(y);
    check_inputs(inputs, out);
    const TensorView<T, 4> w = view_of(weights);
    const Extents<4> expected{inputs[0].extent(0), options_.num_heads, inputs[0].extent(1), inputs[1].extent(1)};
    HEED_CHECK(w.extents() == expected, ShapeError, name(), ": weights ", w.extents(),
               " do not fit the call; make them ", expected);
    run(inputs, attention, {}, out, w, nullptr, context);
  }

  /// backward() of a forward with inputs that differ. Inputs that were the same view and share their weight have one
  /// gradient, that of the first of them; the others are kNotWanted. Throws ShapeError when a view doesn't fit the
  /// forward, ValueError when a gradient overlaps dy or an input, or is asked for although it is part of another.
  template <TensorLike DY, class DQ, class DK, class DV>
  void backward(const DY& dy, DQ&& dquery, DK&& dkey, DV&& dvalue, Cache& cache, Context& context) {
    const Workspace::Frame frame(context.workspace());
    const In errors = detail::read_as<3>(dy, context.workspace());
    const std::array<Out, 3> gradients{detail::gradient_view<T>(dquery), detail::gradient_view<T>(dkey),
                                       detail::gradient_view<T>(dvalue)};
    check_gradients(errors, gradients, cache);
    run_backward(errors, {{{gradients[0]}, {gradients[1]}, {gradients[2]}}}, cache, context);
  }

  /// Projects keys and values and stores them, once for all calls that then attend to kv.stored(): cross-attention to
  /// key (B, L, key_dim) and value (B, L, value_dim). Throws as forward() with a cache does.
  template <TensorLike K, TensorLike V>
  void append(const K& key, const V& value, const KvStep<T>& kv, Context& context) const {
    detail::check_elements<T, K, V>();
    Workspace& workspace = context.workspace();
    const Workspace::Frame frame(workspace);
    const In k = detail::read_as<3>(key, workspace), v = detail::read_as<3>(value, workspace);
    const Inputs inputs{In(nullptr, {k.extent(0), 0, options_.embed_dim}), k, v};
    check_inputs(inputs, Out(nullptr, {k.extent(0), 0, options_.embed_dim}));
    HEED_CHECK(kv && kv.appends(), ValueError, name(), ": append() needs a KvCache that is written to, not stored()");
    run_append(inputs, kv, context);
  }

  /// The layer without checks, for layers made of it.
  void run(const In& x, const AnyAttention<T>& attention, const Out& y, Cache* cache, Context& context,
           const KvStep<T>& kv = {}) const {
    if (!kv || kv.appends()) {
      detail::check_width<T>(name(), "key", x, options_.key_dim);
      detail::check_width<T>(name(), "value", x, options_.value_dim);
    }
    run({x, x, x}, attention, {}, y, {}, cache, context, kv);
  }
  /// append() without checks, for layers made of it.
  void run_append(const Inputs& inputs, const KvStep<T>& kv, Context& context) const {
    kv.cache().check(name(), kv, kv_shape(), inputs[1].extent(0), inputs[1].extent(1));
    const Workspace::Frame frame(context.workspace());
    const Heads<T> in = project_heads(inputs, 1, 3, nullptr, kv, context);
    kv.cache().append(kv, in.k, in.v);
  }
  /// y = residual + layer(inputs): the addition is part of the last product; a residual without data adds nothing. An
  /// observer is shown the layer's output without the residual, which then takes two passes, to the same bits. With a
  /// cache of keys and values, inputs go on after the tokens in it; for kv.stored() only the query counts.
  void run(const Inputs& inputs, const AnyAttention<T>& attention, const In& residual, const Out& y,
           const TensorView<T, 4>& weights, Cache* cache, Context& context, const KvStep<T>& kv = {}) const {
    if (kv) check_step(kv, inputs[0]);
    const Workspace::Frame frame(context.workspace());
    if (cache) cache->inputs = inputs;
    const Heads<T> in = project_heads(inputs, 0, kv && !kv.appends() ? 1 : 3, cache, kv, context);
    const Out attended = memory(cache ? &cache->attended : nullptr, attended_extents(inputs[0]), context);
    detail::attend<T>({in.q,
                       in.k,
                       in.v,
                       split_values(attended),
                       weights,
                       {.scale = options_.scale, .dropout = options_.dropout},
                       cache ? &cache->attention : nullptr},
                      attention, kv, context);
    {
      const Context::Scope scope(context, "out_proj");
      out_proj.run(attended, {.residual = context.observer ? In{} : residual}, y, context);
    }
    context.observe(y);
    if (context.observer && residual.data()) detail::apply_epilogue<T>(y, {.residual = residual}, context);
  }

  /// The gradients, without checks, for layers made of it.
  void run_backward(const In& dy, const Out& dx, Cache& cache, Context& context) {
    check_gradients(dy, {dx}, cache);
    run_backward(dy, {{{dx}}}, cache, context);
  }
  /// The gradient of an input: dx + residual in one pass; a residual without data adds nothing, and it may be dx.
  struct Gradient {
    Out dx{};       ///< written, unless not wanted
    In residual{};  ///< added to dx
  };
  /// The gradients, under the attention of the forward.
  void run_backward(const In& dy, const std::array<Gradient, 3>& gradients, Cache& cache, Context& context) {
    const Inputs& inputs = cache.inputs;
    Workspace& workspace = context.workspace();
    const Workspace::Frame frame(workspace);
    const Extents<3> extents = attended_extents(inputs[0]);
    const Out dattended = workspace.template tensor<T, 3>(extents);
    out_proj.run_backward(dy, cache.attended.template view<3>(extents), {}, dattended, context);
    std::array<Out, 3> projected;
    const Heads<T> d = heads_of(inputs, 0, 3, [&](int part, int, const Extents<3>& e) {
      return projected[at(part)] = workspace.template tensor<T, 3>(e);
    });
    detail::attend_backward<T>(cache.attention, split_values(dattended), {d.q, d.k, d.v}, context);
    if (rotary_) {
      rotary_->inverse(d.q, Positions(), d.q, context);
      rotary_->inverse(d.k, Positions(), d.k, context);
    }
    if (q_norm) {
      q_norm->run_backward(rows_of_heads(d.q), rows_of_heads(d.q), cache.norms[0], context);
      k_norm->run_backward(rows_of_heads(d.k), rows_of_heads(d.k), cache.norms[1], context);
    }
    heads_of(inputs, 0, 3, [&](int part, int end, const Extents<3>&) {
      const Out& errors = projected[at(part)];
      const Index first = first_weight_row(part), count = first_row(end) - first_row(part);
      T* dbias = in_proj_bias.exists() ? in_proj_bias.grad().data() + first_row(part) : nullptr;
      detail::linear_backward_parameters<T>(inputs[at(part)], errors, weight(part).grad_matrix().slice(0, first, count),
                                            dbias, context);
      if (const auto& [dx, residual] = gradients[at(part)]; dx.data()) {
        detail::linear_backward_input<T>(errors, weight(part).matrix().slice(0, first, count), residual, dx, context);
      }
      return errors;
    });
  }
  /// True when the gradient of a part's input is in that of the part before it: they share input and weight.
  bool shares_input(const Inputs& inputs, int part) const {
    const In &a = inputs[at(part - 1)], &b = inputs[at(part)];
    return is_joint() && a.data() == b.data() && a.extents() == b.extents() && a.strides() == b.strides();
  }

 private:
  static constexpr std::string_view kInputs[] = {"query", "key", "value"};
  static constexpr std::size_t at(int part) { return static_cast<std::size_t>(part); }

  void check_inputs(const Inputs& inputs, const Out& y) const {
    const auto& [query, key, value] = inputs;
    for (int part = 0; part < 3; ++part) {
      const In& input = inputs[at(part)];
      detail::check_width<T>(name(), kInputs[part], input, input_[at(part)]);
      HEED_CHECK(input.extent(0) == query.extent(0), ShapeError, name(), ": ", kInputs[part], " ", input.extents(),
                 " has B = ", input.extent(0), " but query ", query.extents(), " has B = ", query.extent(0));
      HEED_CHECK(!detail::may_overlap(input, y), ValueError, name(), ": y shares memory with ", kInputs[part],
                 "; it needs separate memory");
    }
    HEED_CHECK(key.extent(1) == value.extent(1), ShapeError, name(), ": value ", value.extents(),
               " has Lk = ", value.extent(1), " but key ", key.extents(), " has Lk = ", key.extent(1),
               "; each key needs one value");
    const Extents<3> expected{query.extent(0), query.extent(1), options_.embed_dim};
    HEED_CHECK(y.extents() == expected, ShapeError, name(), ": y ", y.extents(), " does not fit query ",
               query.extents(), "; make it ", expected);
  }
  void check_gradients(const In& dy, const std::array<Out, 3>& gradients, const Cache& cache) const {
    const In& query = cache.inputs[0];
    for (int part = 0; part < 3; ++part) {
      detail::check_backward(name(), cache.inputs[at(part)], {query.extent(0), query.extent(1), options_.embed_dim}, dy,
                             gradients[at(part)]);
      HEED_CHECK(!gradients[at(part)].data() || part == 0 || !shares_input(cache.inputs, part), ValueError, name(),
                 ": the input of ", kInputs[part], " was the same view as ", kInputs[part - 1],
                 "; its gradient is part of that one, give kNotWanted");
    }
    detail::check_cache(name(), "num_heads", cache.attention.q().extent(1), options_.num_heads);
    detail::check_cache(name(), "head_dim", cache.attention.q().extent(3), options_.head_dim);
    detail::check_cache(name(), "num_kv_heads", cache.attention.k().extent(1), options_.num_kv_heads);
    detail::check_cache(name(), "value_head_dim", cache.attention.v().extent(3), options_.value_head_dim);
  }

  void check_step(const KvStep<T>& kv, const In& query) const {
    kv.cache().check(name(), kv, kv_shape(), query.extent(0), query.extent(1));
    HEED_CHECK(kv.appends() || !rotary_, ValueError, name(),
               ": the queries of stored() have no positions that rotary could turn them by; turn rotary off in "
               "cross-attention");
  }

  bool is_joint() const { return input_[0] == input_[1] && input_[0] == input_[2]; }
  Index rows(int part) const { return heads_[at(part)] * width_[at(part)]; }
  /// The first row of a part in in_proj_weight and in_proj_bias; for 3, the number of rows.
  Index first_row(int part) const {
    Index first = 0;
    for (int before = 0; before < part; ++before) first += rows(before);
    return first;
  }
  Index first_weight_row(int part) const { return is_joint() ? first_row(part) : 0; }
  template <class Self>
  static auto& weight_of(Self& self, int part) {
    if (self.is_joint()) return self.in_proj_weight;
    return part == 0 ? self.q_proj_weight : part == 1 ? self.k_proj_weight : self.v_proj_weight;
  }
  Parameter<T>& weight(int part) { return weight_of(*this, part); }
  const Parameter<T>& weight(int part) const { return weight_of(*this, part); }

  TensorView<T, 4> split_values(const Out& x) const {
    return detail::split_heads(x, 0, options_.num_heads, options_.value_head_dim);
  }
  Extents<3> attended_extents(const In& query) const {
    return {query.extent(0), query.extent(1), options_.num_heads * options_.value_head_dim};
  }

  /// Memory of a forward: kept for a backward, or in the workspace.
  static Out memory(Buffer<T>* kept, const Extents<3>& extents, Context& context) {
    return kept ? kept->template view<3>(extents) : context.workspace().template tensor<T, 3>(extents);
  }
  /// Parts [first, last) as attention reads them: projected, normalized and turned.
  Heads<T> project_heads(const Inputs& inputs, int first, int last, Cache* cache, const KvStep<T>& kv,
                         Context& context) const {
    Heads<T> in = heads_of(inputs, first, last, [&](int part, int end, const Extents<3>& extents) {
      const Out projected = memory(cache ? &cache->projected[at(part)] : nullptr, extents, context);
      project(inputs[at(part)], part, end, projected, context);
      return projected;
    });
    for (int part = first; part < std::min(last, 2); ++part) {
      TensorView<T, 4>& x = part == 0 ? in.q : in.k;
      if (q_norm) x = normalize(part, x, cache, context);
      if (rotary_) rotary_->forward(x, kv ? kv.positions(x.extent(2)) : Positions(), x, context);
    }
    return in;
  }
  /// The heads of parts [first, last) in memory(part, end, extents), which is called for each run of parts [part, end)
  /// that share their input and weight; the columns of such a run are next to each other.
  template <class Memory>
  Heads<T> heads_of(const Inputs& inputs, int first_part, int last_part, Memory&& memory) const {
    TensorView<T, 4> parts[3];
    for (int part = first_part; part < last_part;) {
      int end = part + 1;
      while (end < last_part && shares_input(inputs, end)) ++end;
      const In& x = inputs[at(part)];
      const Index first = first_row(part);
      const Out run = memory(part, end, Extents<3>{x.extent(0), x.extent(1), first_row(end) - first});
      for (; part < end; ++part) {
        parts[part] = detail::split_heads(run, first_row(part) - first, heads_[at(part)], width_[at(part)]);
      }
    }
    return {parts[0], parts[1], parts[2]};
  }
  /// True when one packed copy of the joint weight serves any run of parts: each part starts at a panel of it.
  bool shares_panels() const {
    using Packed = PackedMatrix<T>;
    return is_joint() && Packed::can_slice_at(first_row(1)) && Packed::can_slice_at(first_row(2));
  }
  /// Parts [first, end) of the projection of x: one product with the weight, or one for each packed part.
  void project(const In& x, int first, int end, const Out& to, Context& context) const {
    const T* bias = detail::value_or_null(in_proj_bias);
    const auto bias_of = [&](int part) { return bias ? bias + first_row(part) : nullptr; };
    if (!packed_[shares_panels() ? 0 : at(first)].current(weight(first))) {
      return detail::linear<T>(x, weight(first), first_weight_row(first), first_row(end) - first_row(first), to,
                               {.bias = bias_of(first)}, context);
    }
    if (shares_panels()) {
      const auto panels = packed_[0].current(weight(0))->slice(first_row(first), first_row(end) - first_row(first));
      return detail::linear<T>(x, panels, to, {.bias = bias_of(first)}, context);
    }
    for (int part = first; part < end; ++part) {
      const Out columns = to.slice(2, first_row(part) - first_row(first), rows(part));
      detail::linear<T>(x, *packed_[at(part)].current(weight(part)), columns, {.bias = bias_of(part)}, context);
    }
  }

  /// Heads (B, heads, L, Dk) of a projection as rows (B·L, heads, Dk).
  static Out rows_of_heads(const TensorView<T, 4>& x) {
    return {x.data(), {x.extent(0) * x.extent(2), x.extent(1), x.extent(3)}, {x.stride(2), x.stride(1), x.stride(3)}};
  }
  /// Queries (part 0) or keys (part 1) after their norm: in place, unless a backward needs both.
  TensorView<T, 4> normalize(int part, const TensorView<T, 4>& x, Cache* cache, Context& context) const {
    const Context::Scope scope(context, part == 0 ? "q_norm" : "k_norm");
    const Norm<T>& norm = part == 0 ? *q_norm : *k_norm;
    const Out rows = rows_of_heads(x);
    if (!cache) {
      norm.run(rows, rows, nullptr, context);
      return x;
    }
    const Out y = cache->normalized[at(part)].template view<3>({x.extent(0), x.extent(2), x.extent(1) * x.extent(3)});
    const TensorView<T, 4> heads = detail::split_heads(y, 0, x.extent(1), x.extent(3));
    norm.run(rows, rows_of_heads(heads), &cache->norms[at(part)], context);
    return heads;
  }

  template <TensorLike Q, class... Parts>
  auto result_with_weights(const In& query, const In& key, const In& value, Context& context, Parts&... parts) const {
    detail::check_parts<Parts...>();
    static_assert(detail::count_v<detail::Part::KeyValues, Parts...> == 0,
                  "heed: with_weights does not take a KvCache; an observer of the Context is shown the weights of "
                  "calls with one");
    const Index B = query.extent(0), Lq = query.extent(1);
    detail::OutputAndWeights<detail::result_t<Q, T>, Tensor<T, 4>> result{
        detail::make_result<Q, T, 3>({B, Lq, options_.embed_dim}),
        Tensor<T, 4>(B, options_.num_heads, Lq, key.extent(1))};
    forward_with_weights({query, key, value}, detail::attention_of(parts...), result.out, result.weights, context);
    return result;
  }

  std::array<detail::PackedRows<T>, 3> packed_;
  std::optional<RotaryEmbedding<T>> rotary_;
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
