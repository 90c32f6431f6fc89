// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// AnyAttention: an owning attention value of any type. AttentionCache: what a backward pass needs of a forward pass,
/// the attention value included.

#include <heed/attention/common/parts.hpp>
#include <heed/attention/softmax/select.hpp>
#include <heed/mask/any_mask.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// An owning score modifier of any type, for scores computed in A. It may be bound to a shape.
template <class A>
class AnyModifier {
 public:
  template <Modifier M>
  explicit AnyModifier(const M& modifier) : bind_(&bind_held<M>), reference_(&reference_to_held<M>), held_(modifier) {}

  AnyModifier bind(const AttentionShape& shape) const { return bind_(held_.get(), shape); }
  ModifierRef<A> reference() const { return reference_(held_.get()); }

 private:
  template <class M>
  static AnyModifier bind_held(const void* held, const AttentionShape& shape) {
    return AnyModifier(heed::bind(*static_cast<const M*>(held), shape));
  }
  template <class M>
  static ModifierRef<A> reference_to_held(const void* held) {
    return ModifierRef<A>(*static_cast<const M*>(held));
  }

  AnyModifier (*bind_)(const void*, const AttentionShape&);
  ModifierRef<A> (*reference_)(const void*);
  InlineValue<384> held_;
};

/// An attention call inside a layer: q (B, H, Lq, Dk), k (B, G, Lk, Dk), v (B, G, Lk, Dv), out (B, H, Lq, Dv), and the
/// weights (B, H, Lq, Lk), which are written if they have memory. S is how keys and values are stored.
template <class T, class S = T>
struct LayerAttention {
  TensorView<const T, 4> q;
  TensorView<const S, 4> k, v;
  TensorView<T, 4> out, weights;
  /// The layer's scale and dropout, where the attention value has none.
  AttentionOptions options;
  /// Filled for a backward pass; null for inference.
  AttentionCache<T>* cache = nullptr;
  /// Of a layer with a KvCache.
  std::optional<Continuation> continuation = std::nullopt;

  AttentionTensors<T, S> tensors() const {
    return {.q = q, .k = k, .v = v, .out = out, .weights = weights, .continuation = continuation};
  }
};

}  // namespace detail

/// Attention of any kind behind one type, for elements of type T. Layers take it; it is made implicitly from a mask, a
/// score modifier, Scale, AttentionOptions, Attention, LinearAttention or SegmentedAttention, so that of a layer's code
/// only the attention value is compiled again for another mask:
///
///   heed::AnyAttention<float> attention = Attention(Causal{}, Alibi(8));
///   y = layer(x, attention, context);
///
/// It owns masks and modifiers; the lists, matrices and sinks that those borrow must outlive it. Values of trivially
/// copyable parts are stored inline, so making and copying them allocates nothing.
template <class T>
class AnyAttention {
 public:
  using A = accumulate_t<T>;  ///< type of accumulation

  /// Softmax attention in which every query sees every key.
  AnyAttention() : AnyAttention(Attention()) {}
  /// Softmax attention with this part.
  template <class P>
  requires(detail::are_terms_v<P>)
  AnyAttention(const P& part) : AnyAttention(Attention(part)) {}
  /// Softmax attention.
  template <Mask M, Modifier F>
  AnyAttention(const Attention<M, F>& attention)
      : mask_(attention.mask), modifier_(attention.modifier), options_(attention.options), kind_(0) {}
  /// Attention of another kind.
  template <class V>
  requires(detail::kind_v<V> == detail::Part::Value &&
           requires(const V& v, const detail::AttentionTensors<T>& x, Context& context) { v.forward(x, context); })
  AnyAttention(const V& value) : functions_(&kFunctions<V>), kind_(value) {}

  /// The probability that a weight is dropped in training.
  double dropout() const { return options_.dropout; }
  /// True for softmax attention, which has weights.
  bool has_weights() const { return !functions_; }

  /// The same attention with these options where it has none: for a layer that has a scale or a dropout.
  AnyAttention with_defaults(const AttentionOptions& defaults) const {
    AnyAttention result = *this;
    if (!result.options_.scale) result.options_.scale = defaults.scale;
    if (result.options_.dropout == 0) result.options_.dropout = defaults.dropout;
    return result;
  }

  /// Runs a layer's call. An observer that asks for the weights receives them, and the mask, under the layer's name.
  template <class S>
  void attend(detail::LayerAttention<T, S> call, Context& context) const {
    const Workspace::Frame frame(context.workspace());
    const bool shown = context.observer && has_weights() && context.observer->wants_weights(context.name());
    if (shown && !call.weights.data()) {
      const Extents<4> extents{call.q.extent(0), call.q.extent(1), call.q.extent(2), call.k.extent(2)};
      call.weights = context.workspace().template tensor<T, 4>(extents);
    }
    detail::AttentionTensors<T, S> x = call.tensors();
    if constexpr (std::is_same_v<S, T>) {
      if (call.cache) {
        call.cache->begin(with_defaults(call.options), x);
        call.cache->attention().run(x, context);
      } else {
        with_defaults(call.options).run(x, context);
      }
    } else {
      with_defaults(call.options).run_softmax(x, context);
    }
    if (shown) show(call, context);
  }

  /// Runs a forward call. attention() calls this.
  void run(const detail::AttentionTensors<T>& x, Context& context) const {
    if (functions_) {
      HEED_CHECK(!x.weights.data(), ValueError,
                 "heed::attention: only softmax attention has weights; ask for them with an Attention value");
      HEED_CHECK(!options_.scale && (options_.dropout == 0 || !context.training), ValueError,
                 "heed::attention: a layer's scale and dropout are for softmax attention; leave them out of its "
                 "options for another kind");
      return functions_->forward(kind_.get(), x, context);
    }
    run_softmax(x, context);
  }

  /// The gradients of run() with this cache.
  void run_backward(AttentionCache<T>& cache, TensorView<const T, 4> dout, const AttentionGradients<T>& to,
                    Context& context) const {
    if (functions_) return functions_->backward(kind_.get(), cache, dout, to, context);
    constexpr detail::CallChecks check{"heed::attention_backward"};
    const AttentionShape shape = detail::with_sequences(mask_, cache.shape());
    HEED_CHECK(to.dsinks.empty() || to.dsinks.size() == options_.sinks.size(), ShapeError, check.function, ": ",
               to.dsinks.size(), " dsinks but ", options_.sinks.size(), " sinks; give one for each sink or none");
    const AnyMask mask = mask_.bind(shape);
    const detail::AnyModifier<A> modifier = modifier_.bind(shape);
    const DropoutPattern& dropped = cache.dropped();
    const detail::AttentionBackwardCall<T> call{
        {shape, mask.reference(), modifier.reference(), detail::scale_of<A>(options_.scale, shape.Dk), options_.sinks,
         dropped.probability(), dropped, cache.maximum(), cache.sum()},
        cache.q(),
        cache.k(),
        cache.v(),
        cache.out(),
        dout,
        to};
    detail::softmax_attention_backward(call, context);
  }

 private:
  struct Functions {
    void (*forward)(const void*, const detail::AttentionTensors<T>&, Context&);
    void (*backward)(const void*, AttentionCache<T>&, TensorView<const T, 4>, const AttentionGradients<T>&, Context&);
  };
  template <class V>
  static constexpr Functions kFunctions{
      [](const void* value, const detail::AttentionTensors<T>& x, Context& context) {
        static_cast<const V*>(value)->forward(x, context);
      },
      [](const void* value, AttentionCache<T>& cache, TensorView<const T, 4> dout, const AttentionGradients<T>& to,
         Context& context) { static_cast<const V*>(value)->backward(cache, dout, to, context); }};

  /// f(mask, modifier) of a call, bound: those of this value, and what a cache with a window hides.
  template <class S, class F>
  void with_bound(const detail::AttentionTensors<T, S>& x, F&& f) const {
    const std::optional<detail::Continuation>& continuation = x.continuation;
    AttentionShape shape = detail::shape_of(x);
    if (continuation) shape = continuation->whole(shape);
    shape = detail::with_sequences(mask_, shape);
    const AnyMask mask = mask_.bind(shape);
    const detail::AnyModifier<A> modifier = modifier_.bind(shape);
    if (!continuation) return f(mask.reference(), modifier.reference());
    const auto shifted = [&](const auto& part) { return part.shifted(continuation->sample, continuation->past); };
    if (!continuation->recent) return f(shifted(mask.reference()), shifted(modifier.reference()));
    const And both(mask, *continuation->recent);
    f(shifted(MaskRef(both)), shifted(modifier.reference()));
  }

  template <class S>
  void run_softmax(const detail::AttentionTensors<T, S>& x, Context& context) const {
    with_bound(x, [&](const MaskRef& mask, const detail::ModifierRef<A>& modifier) {
      const DropoutPattern dropped = detail::draw_dropout(options_.dropout, context);
      if (x.cache) x.cache->keep(dropped);
      detail::run_softmax(x, detail::shape_of(x), mask, modifier, options_, dropped, context);
    });
  }

  /// Weights alone do not show what the mask hides: the weight of a visible key may be too small for T.
  template <class S>
  void show(const detail::LayerAttention<T, S>& call, Context& context) const {
    with_bound(call.tensors(), [&](const MaskRef& mask, const auto&) {
      const auto visible = [&](int b, int h, int q, int k) { return mask.visible(b, h, q, k); };
      context.observer->mask(context.name(), call.weights.extents(), visible);
    });
    context.observer->weights(context.name(), ObservedTensor(TensorView<const T, 4>(call.weights)));
  }

  AnyMask mask_;
  detail::AnyModifier<A> modifier_ = detail::AnyModifier<A>(NoModifier{});
  AttentionOptions options_;
  const Functions* functions_ = nullptr;
  detail::InlineValue<384> kind_;
};

/// The inputs of a backward pass, kept by a forward: the attention value, the inputs and the output (borrowed: they
/// must live, unchanged, until then), and the row statistics. Its memory is reused from step to step. Move-only.
///
///   heed::AttentionCache<float> cache;
///   heed::attention_into(out, q, k, v, Causal{}, cache, context);
///   heed::attention_backward_into({dq, dk, dv}, dout, cache, context);
template <class T>
class AttentionCache {
 public:
  using A = accumulate_t<T>;  ///< type of accumulation

  const AnyAttention<T>& attention() const { return attention_; }  ///< of the forward call
  const TensorView<const T, 4>& q() const { return q_; }           ///< (B, H, Lq, Dk)
  const TensorView<const T, 4>& k() const { return k_; }           ///< (B, G, Lk, Dk)
  const TensorView<const T, 4>& v() const { return v_; }           ///< (B, G, Lk, Dv)
  const TensorView<const T, 4>& out() const { return out_; }       ///< (B, H, Lq, Dv)
  /// (B, H, Lq): the maximum of each row's scores, sinks included.
  const TensorView<A, 3>& maximum() const { return maximum_; }
  /// (B, H, Lq): the sum of exp(score - maximum), kept apart from the maximum because one log-sum-exp loses the weights
  /// of large scores; of linear attention, the denominator.
  const TensorView<A, 3>& sum() const { return sum_; }
  const DropoutPattern& dropped() const { return dropped_; }  ///< the weights that dropout removed
  /// True after a forward; one of a call without elements counts.
  bool is_filled() const { return is_filled_; }
  /// The shape of the forward call.
  AttentionShape shape() const { return detail::shape_of(detail::AttentionTensors<T>{q_, k_, v_, {}}); }
  /// Memory held.
  std::size_t bytes() const { return statistics_.bytes(); }

  /// Takes up a forward call and points its statistics into this cache. Attention calls this.
  void begin(const AnyAttention<T>& attention, detail::AttentionTensors<T>& x) {
    attention_ = attention;
    q_ = x.q, k_ = x.k, v_ = x.v, out_ = x.out;
    dropped_ = DropoutPattern(0, 0, 0);
    const TensorView<A, 4> both = statistics_.template view<4>({2, x.q.extent(0), x.q.extent(1), x.q.extent(2)});
    x.row_max = maximum_ = both[0];
    x.row_sum = sum_ = both[1];
    x.cache = this;
    is_filled_ = true;
  }
  /// Keeps the dropout pattern of the forward call. Attention calls this.
  void keep(const DropoutPattern& dropped) { dropped_ = dropped; }

 private:
  AnyAttention<T> attention_;
  TensorView<const T, 4> q_, k_, v_, out_;
  TensorView<A, 3> maximum_, sum_;
  Buffer<A> statistics_;
  DropoutPattern dropped_{0, 0, 0};
  bool is_filled_ = false;
};

namespace detail {

template <class T>
inline constexpr Part kind_v<AnyAttention<T>> = Part::Value;
template <class T>
inline constexpr Part kind_v<AttentionCache<T>> = Part::Cache;

/// The gradients of the forward call that filled the cache. Throws ValueError for a cache that no forward has filled,
/// ShapeError for gradients that do not fit it.
template <class T>
void attend_backward(AttentionCache<T>& cache, const TensorView<const T, 4>& dout, const AttentionGradients<T>& to,
                     Context& context) {
  constexpr CallChecks check{"heed::attention_backward"};
  HEED_CHECK(cache.is_filled(), ValueError, check.function,
             ": no forward has filled the cache; give it to attention_into first");
  check.extents(dout, cache.out().extents(), "dout");
  check.gradients(to, cache, dout);
  cache.attention().run_backward(cache, dout, to, context);
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
