// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// SelfAttention: the textbook layer, one head.

#include <heed/attention/attention.hpp>
#include <heed/nn/attention_layer.hpp>
#include <heed/nn/linear.hpp>

HEED_NAMESPACE_BEGIN

/// Options of SelfAttention.
struct SelfAttentionOptions {
  Index embed_dim = 0;            ///< E
  Index head_dim = 0;             ///< Dk; 0 means E
  Index value_head_dim = 0;       ///< Dv; 0 means Dk
  Index out_dim = 0;              ///< width of an output projection; 0 for none: y is then (B, L, Dv)
  bool bias = false;              ///< in every projection
  std::optional<double> scale{};  ///< of the scores; 1/√Dk by default
  double dropout = 0;             ///< probability that a weight is dropped, while context.training
};

/// y = softmax(scale · Q·Kᵀ)·V under any attention, with Q = q_proj(x), K = k_proj(x), V = v_proj(x); one head.
/// x (B, L, E), y (B, L, Dv), weights (B, L, L). With out_dim, y is out_proj of that, (B, L, out).
/// Vaswani et al.: "Attention is all you need", 2017, section 3.2.1.
///
///   heed::SelfAttention<float> layer({.embed_dim = 16, .head_dim = 24, .value_head_dim = 28});
///   layer.initialize(random);
///   auto [y, weights] = layer.with_weights(x, heed::Causal{});
template <LayerScalar T>
class SelfAttention : public AttentionLayer<SelfAttention<T>, T> {
  using In = TensorView<const T, 3>;
  using Out = TensorView<T, 3>;
  SelfAttentionOptions options_;

 public:
  using AttentionLayer<SelfAttention, T>::run;

  /// Throws ShapeError for a width below 1, ValueError for a scale that is not finite or a dropout outside [0, 1].
  explicit SelfAttention(const SelfAttentionOptions& options)
      : options_(resolved(options)),
        q_proj(options_.embed_dim, options_.head_dim, options_.bias),
        k_proj(q_proj.options()),
        v_proj(options_.embed_dim, options_.value_head_dim, options_.bias) {
    if (options_.out_dim > 0) out_proj.emplace(options_.value_head_dim, options_.out_dim, options_.bias);
  }

  /// Memory of a forward that backward() needs: its x, borrowed, the projections, the attended values, and what
  /// attention keeps.
  struct Cache {
    TensorView<const T, 3> x{};
    Buffer<T> q, k, v, attended;
    AttentionCache<T> attention;

    /// Memory held.
    std::size_t bytes() const { return q.bytes() + k.bytes() + v.bytes() + attended.bytes() + attention.bytes(); }
  };

  Linear<T> q_proj;                   ///< (Dk, E)
  Linear<T> k_proj;                   ///< (Dk, E)
  Linear<T> v_proj;                   ///< (Dv, E)
  std::optional<Linear<T>> out_proj;  ///< (out, Dv), with out_dim

  /// The list of members, for Module.
  static void members(auto&& f) {
    f("q_proj", &SelfAttention::q_proj);
    f("k_proj", &SelfAttention::k_proj);
    f("v_proj", &SelfAttention::v_proj);
    f("out_proj", &SelfAttention::out_proj);
  }
  static constexpr std::string_view name() { return "heed::SelfAttention"; }  ///< the layer in error texts
  /// With the widths as they are used.
  const SelfAttentionOptions& options() const { return options_; }
  Index input_width(Index) const { return options_.embed_dim; }                                      ///< of x
  Index output_width(Index) const { return out_proj ? options_.out_dim : options_.value_head_dim; }  ///< of y

  /// Xavier-uniform weights, biases 0.
  void initialize(Random& random, std::string_view name = "") {
    this->visit(name, [&](std::string_view path, Parameter<T>& parameter) {
      if (parameter.rank() == 2)
        init::xavier_uniform(parameter, random(path));
      else
        init::zeros(parameter);
    });
  }

  /// auto [y, weights] = layer.with_weights(x, parts...): y is identical to layer(x, parts...), the weights (B, L, L)
  /// are those before dropout. A plain Eigen x gives Eigen matrices.
  template <TensorLike X, class... Parts>
  auto with_weights(const X& x, Parts&&... parts) const {
    detail::check_elements<T, X>();
    detail::check_parts<Parts...>();
    detail::OwnContext<Parts...> own;
    Context& context = detail::pick<detail::Part::Context>(own, parts...);
    using Result = detail::result_t<X, T>;
    const Workspace::Frame frame(context.workspace());
    const auto in = detail::read_as<3>(x, context.workspace());
    const Index B = in.extent(0), L = in.extent(1);
    detail::OutputAndWeights<Result, Result> result{detail::make_result<X, T, 3>({B, L, output_width(0)}),
                                                    detail::make_result<X, T, 3>({B, L, L})};
    forward_with_weights(in, detail::attention_of(parts...), result.out, result.weights, context);
    return result;
  }
  /// forward() that also writes the weights (B, L, L).
  template <TensorLike X, TensorLike Y, TensorLike Weights>
  void forward_with_weights(const X& x, const AnyAttention<T>& attention, Y&& y, Weights&& weights,
                            Context& context) const {
    const Workspace::Frame frame(context.workspace());
    const In in = detail::read_as<3>(x, context.workspace());
    const Out out = detail::write_as<3>(y), w = detail::write_as<3>(weights);
    detail::check_layer_shapes(name(), in, out, options_.embed_dim, output_width(0));
    const Extents<3> expected{in.extent(0), in.extent(1), in.extent(1)};
    HEED_CHECK(w.extents() == expected, ShapeError, name(), ": weights ", w.extents(), " do not fit x ", in.extents(),
               "; make them ", expected);
    run(in, attention, out, one_head(w), nullptr, context, {});
  }

  /// The extents of a KvCache for this layer.
  KvShape kv_shape() const {
    return {.num_kv_heads = 1, .head_dim = options_.head_dim, .value_head_dim = options_.value_head_dim};
  }

  /// The layer without checks, for layers made of it.
  void run(const In& x, const AnyAttention<T>& attention, const Out& y, Cache* cache, Context& context,
           const KvStep<T>& kv = {}) const {
    run(x, attention, y, {}, cache, context, kv);
  }

  /// The gradients, under the attention of the forward.
  void run_backward(const In& dy, const Out& dx, Cache& cache, Context& context) {
    const In x = cache.x;
    detail::check_cache(name(), "head_dim", cache.attention.q().extent(3), options_.head_dim);
    detail::check_cache(name(), "value_head_dim", cache.attention.v().extent(3), options_.value_head_dim);
    Workspace& workspace = context.workspace();
    const Workspace::Frame frame(workspace);
    const auto of_width = [&](Index width) {
      return workspace.template tensor<T, 3>({x.extent(0), x.extent(1), width});
    };
    In dattended = dy;
    if (out_proj) {
      const Out d = of_width(options_.value_head_dim);
      out_proj->run_backward(dy, cache.attended.template view<3>(d.extents()), {}, d, context);
      dattended = d;
    }
    const Out dq = of_width(options_.head_dim), dk = of_width(options_.head_dim),
              dv = of_width(options_.value_head_dim);
    detail::attend_backward<T>(cache.attention, one_head(dattended), {one_head(dq), one_head(dk), one_head(dv)},
                               context);
    q_proj.run_backward(dq, x, {}, dx, context);
    k_proj.run_backward(dk, x, dx, dx, context);
    v_proj.run_backward(dv, x, dx, dx, context);
  }

 private:
  static SelfAttentionOptions resolved(SelfAttentionOptions options) {
    HEED_CHECK(options.embed_dim >= 1 && options.head_dim >= 0 && options.value_head_dim >= 0 && options.out_dim >= 0,
               ShapeError, name(), ": embed_dim = ", options.embed_dim,
               " must be at least 1, head_dim = ", options.head_dim, ", value_head_dim = ", options.value_head_dim,
               " and out_dim = ", options.out_dim, " at least 0");
    detail::check_attention_options(name(), options.scale, options.dropout);
    if (options.head_dim == 0) options.head_dim = options.embed_dim;
    if (options.value_head_dim == 0) options.value_head_dim = options.head_dim;
    return options;
  }

  /// (B, L, D) as (B, 1, L, D).
  template <class U>
  static TensorView<U, 4> one_head(const TensorView<U, 3>& x) {
    return {x.data(), {x.extent(0), 1, x.extent(1), x.extent(2)}, {x.stride(0), 0, x.stride(1), x.stride(2)}};
  }

  void run(const In& x, const AnyAttention<T>& attention, const Out& y, const TensorView<T, 4>& weights, Cache* cache,
           Context& context, const KvStep<T>& kv) const {
    if (kv) kv.cache().check(name(), kv, kv_shape(), x.extent(0), x.extent(1));
    Workspace& workspace = context.workspace();
    const Workspace::Frame frame(workspace);
    const auto memory = [&](Buffer<T>* kept, Index width) {
      const Extents<3> extents{x.extent(0), x.extent(1), width};
      return kept ? kept->template view<3>(extents) : workspace.template tensor<T, 3>(extents);
    };
    const auto project = [&](const Linear<T>& layer, std::string_view part, Buffer<T>* kept) {
      const Out to = memory(kept, layer.options().out_features);
      const Context::Scope scope(context, part);
      layer.run(x, to, nullptr, context);
      return one_head(to);
    };
    if (cache) cache->x = x;
    const auto q = project(q_proj, "q_proj", cache ? &cache->q : nullptr),
               k = project(k_proj, "k_proj", cache ? &cache->k : nullptr),
               v = project(v_proj, "v_proj", cache ? &cache->v : nullptr);
    Out attended = y;
    if (cache || out_proj) attended = memory(cache ? &cache->attended : nullptr, options_.value_head_dim);
    detail::attend<T>({q,
                       k,
                       v,
                       one_head(attended),
                       weights,
                       {.scale = options_.scale, .dropout = options_.dropout},
                       cache ? &cache->attention : nullptr},
                      attention, kv, context);
    if (out_proj) {
      const Context::Scope scope(context, "out_proj");
      out_proj->run(attended, y, nullptr, context);
    } else if (attended.data() != y.data()) {
      detail::transform_rows<T>(attended, y, context, [&](Index, Index, const T* from, T* to) {
        std::copy_n(from, options_.value_head_dim, to);
      });
    }
    context.observe(y);
  }
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
