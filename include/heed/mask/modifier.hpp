// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Score modifiers. A modifier changes scores after scaling and before the mask: s -> f(s, b, h, q, k).
///
/// A modifier derives from ModifierBase and is written once, generic over a scalar and a register of lanes:
///   `template <class V> V operator()(V score, const ScoreIndex<V>& at) const`
/// V has + - * / and exp, tanh, abs, max, min, found by argument-dependent lookup (`using std::exp` for scalars). A
/// result of -inf hides the pair exactly as a mask does. Optional members:
///
///   auto bind(const AttentionShape&) const
///       Checks the modifier against a call and returns the modifier to use for it.
///   V derivative(V score, const ScoreIndex<V>& at) const
///       The derivative by the score. Without it, backward uses the (slow) reference path with dual numbers.
///   void accumulate(V d, const ScoreIndex<V>& at) const
///       Adds to the gradients of the modifier's parameters; d is the gradient of the result, 0 for hidden pairs.
///   auto for_head(Index b, Index h) const
///       Returns the modifier for one head, with everything that depends on the head computed once.
///
/// then(a, b, ...) applies several, left to right; heed::modifier(f) makes one from a function.

#include <cmath>

#include <heed/core/arguments.hpp>
#include <heed/core/simd.hpp>
#include <heed/core/vec_math.hpp>
#include <heed/mask/basic.hpp>

HEED_NAMESPACE_BEGIN

/// The position of a score: sample b, head h, query q + lane·q_step, key k + lane·k_step. Only the first `lanes` lanes
/// exist: a modifier that reads memory must not read for the others.
template <class V>
struct ScoreIndex {
  int b = 0;       ///< sample
  int h = 0;       ///< head
  int q = 0;       ///< query of the first lane
  int k = 0;       ///< key of the first lane
  int q_step = 0;  ///< from a lane's query to the next
  int k_step = 0;  ///< from a lane's key to the next
  int lanes = 1;   ///< the number of lanes that exist
  V query;         ///< the lanes' queries as numbers; spare lanes repeat the last one that exists
  V key;           ///< the lanes' keys, likewise
};

/// Base class of all score modifiers.
struct ModifierBase {};

template <class M>
concept Modifier = std::derived_from<std::remove_cvref_t<M>, ModifierBase>;

/// Returns the modifier to use for a call of this shape; throws if the modifier does not fit the call.
template <Modifier M>
auto bind(const M& m, [[maybe_unused]] const AttentionShape& shape) {
  if constexpr (requires { m.bind(shape); })
    return m.bind(shape);
  else
    return m;
}

namespace detail {

template <class V>
struct lane_scalar {
  using type = V;
};
template <class T>
struct lane_scalar<Vec<T>> {
  using type = T;
};

}  // namespace detail

/// The scalar in a lane of V: T for Vec<T>, V itself for a scalar.
template <class V>
using lane_scalar_t = typename detail::lane_scalar<V>::type;
/// True when V is one scalar and not a register of lanes.
template <class V>
inline constexpr bool is_one_lane_v = std::is_same_v<V, lane_scalar_t<V>>;

/// V with x in every lane. For modifiers.
template <class V>
V in_lanes(double x) {
  return V(static_cast<lane_scalar_t<V>>(x));
}

/// V with f(lane) in each lane. f is called for the first `lanes` lanes only. For modifiers that read memory.
template <class V, class F>
V gather(int lanes, F&& f) {
  if constexpr (is_one_lane_v<V>) {
    return static_cast<V>(f(0));
  } else {
    typename V::Scalar values[V::size];
    for (int i = 0; i < V::size; ++i) values[i] = static_cast<typename V::Scalar>(f(std::min(i, lanes - 1)));
    return V::load(values);
  }
}

/// The score, but -inf where `test` is -inf: a hidden pair stays hidden, whatever its score (NaN, Inf) or a later
/// modifier (tanh(-inf) = -1) would make of it.
template <class V>
V hide_where(const V& test, const V& score) {
  const V none = in_lanes<V>(-std::numeric_limits<double>::infinity());
  if constexpr (is_one_lane_v<V>)
    return test == none ? none : score;
  else
    return select(equal(test, none), none, score);
}

namespace detail {

/// The gradient, but 0 where `test` is 0: hidden pairs contribute nothing, whatever their derivative.
template <class V>
V zero_where(const V& test, const V& gradient) {
  const V zero = in_lanes<V>(0);
  if constexpr (is_one_lane_v<V>)
    return test == zero ? zero : gradient;
  else
    return select(equal(test, zero), zero, gradient);
}

/// Adds lane i of `d` to gradient[i · step]; several lanes may add to one element.
template <class T, class V>
void scatter_add(T* gradient, Index step, int lanes, const V& d) {
  if constexpr (is_one_lane_v<V>) {
    *gradient = static_cast<T>(*gradient + static_cast<T>(d));
  } else {
    typename V::Scalar values[V::size];
    d.store(values);
    for (int i = 0; i < lanes; ++i) gradient[i * step] = static_cast<T>(gradient[i * step] + static_cast<T>(values[i]));
  }
}

template <Modifier M>
auto for_head(const M& m, [[maybe_unused]] int b, [[maybe_unused]] int h) {
  if constexpr (requires { m.for_head(b, h); })
    return m.for_head(b, h);
  else
    return m;
}

}  // namespace detail

/// Base class of modifiers that add a number to the score: their derivative is 1.
struct AdditiveModifier : ModifierBase {
  /// 1.
  template <class V>
  V derivative(const V&, const ScoreIndex<V>&) const {
    return in_lanes<V>(1);
  }
};

/// Leaves scores unchanged.
struct NoModifier : AdditiveModifier {
  /// The changed score.
  template <class V>
  V operator()(V score, const ScoreIndex<V>&) const {
    return score;
  }
};

/// s -> cap · tanh(s / cap): keeps scores within ±cap (Gemma 2, 2024).
class SoftCap : public ModifierBase {
 public:
  /// Throws ValueError unless cap is positive and finite.
  explicit SoftCap(double cap) : cap_(cap) {
    HEED_CHECK(cap > 0 && std::isfinite(cap), ValueError, "heed::SoftCap: cap = ", cap, " must be positive and finite");
  }
  /// The changed score.
  template <class V>
  V operator()(V score, const ScoreIndex<V>&) const {
    using std::tanh;
    return in_lanes<V>(cap_) * tanh(score * in_lanes<V>(1 / cap_));
  }
  /// The derivative by the score.
  template <class V>
  V derivative(V score, const ScoreIndex<V>&) const {
    using std::tanh;
    const V t = tanh(score * in_lanes<V>(1 / cap_));
    return in_lanes<V>(1) - t * t;
  }

 private:
  double cap_;
};

/// s -> s - slope(h) · |p(q) - k|: distant keys get less weight (Press, Smith, Lewis: "Train short, test long", 2022).
/// p(q) is the query's position among the keys, with the alignments of Causal. With a DocumentMask it is the position
/// in the query's sequence.
class Alibi : public AdditiveModifier {
 public:
  /// For H heads; the call must have as many, and Lq = Lk unless an alignment is named. Throws ValueError when H < 1.
  explicit Alibi(Index num_heads) : Alibi(num_heads, Alignment()) {}
  /// Query 0 has the position of key 0.
  static Alibi top_left(Index num_heads) { return Alibi(num_heads, Alignment::top_left()); }
  /// The last query has the position of the last key.
  static Alibi bottom_right(Index num_heads) { return Alibi(num_heads, Alignment::bottom_right()); }
  /// Query 0 of sample b has the position first[b].
  static Alibi from(IntSpan first, Index num_heads) { return Alibi(num_heads, Alignment::from(first)); }

  /// The slope of head h of `num_heads`: for a power of two n the series 2^(-8/n), 2^(-16/n), ...; other counts take
  /// the series of the power of two below and then every second term of the next one.
  static double slope(Index num_heads, Index h) {
    Index n = 1;
    while (2 * n <= num_heads) n *= 2;
    const double at = static_cast<double>(h), terms = static_cast<double>(n);
    return h < n ? std::exp2(-8.0 * (at + 1) / terms) : std::exp2(-4.0 * (2 * (at - terms) + 1) / terms);
  }

  /// The changed score.
  template <class V>
  V operator()(V score, const ScoreIndex<V>& at) const {
    return for_head(at.b, at.h)(score, at);
  }
  /// Throws ShapeError when the call has another number of heads.
  Alibi bind(const AttentionShape& s) const {
    HEED_CHECK(s.H == num_heads_, ShapeError, "heed::Alibi: made for ", num_heads_,
               " heads but the call has H = ", s.H);
    return Alibi(num_heads_, alignment_.bind(s, "Alibi"));
  }

  /// The modifier for one head of one sample.
  struct Head : AdditiveModifier {
    double slope;         ///< in slope · |q + shift - k|
    double shift;         ///< in slope · |q + shift - k|, where it is the same for all queries
    Alignment alignment;  ///< the position of each query
    int b;                ///< the sample
    /// Of a head and a sample.
    Head(double slope_of_head, const Alignment& bound, int sample)
        : slope(slope_of_head), shift(static_cast<double>(bound.position(sample, 0))), alignment(bound), b(sample) {}
    /// The changed score.
    template <class V>
    V operator()(V score, const ScoreIndex<V>& at) const {
      using std::abs;
      if (alignment.shifts_alike()) return score - in_lanes<V>(slope) * abs(at.query + in_lanes<V>(shift) - at.key);
      const V distance = gather<V>(at.lanes, [&](int lane) {
        return alignment.position(b, at.q + lane * at.q_step) - (at.k + lane * at.k_step);
      });
      return score - in_lanes<V>(slope) * abs(distance);
    }
  };
  /// The modifier for head h of a sample.
  Head for_head(int b, int h) const { return Head(slope(num_heads_, h), alignment_, b); }

 private:
  Alibi(Index num_heads, Alignment alignment) : num_heads_(num_heads), alignment_(alignment) {
    HEED_CHECK(num_heads >= 1, ValueError, "heed::Alibi: num_heads = ", num_heads, " must be at least 1");
  }
  Index num_heads_;
  Alignment alignment_;
};

/// First a, then b. A pair that a hides stays hidden.
template <Modifier A, Modifier B>
struct Then : ModifierBase {
  A a;                                                                    ///< applied first
  B b;                                                                    ///< applied to the result
  Then(A first, B second) : a(std::move(first)), b(std::move(second)) {}  ///< of both
  /// The changed score.
  template <class V>
  V operator()(V score, const ScoreIndex<V>& at) const {
    const V first = a(score, at);
    return hide_where(first, b(first, at));
  }
  /// Both, bound to a call.
  auto bind(const AttentionShape& s) const {
    return Then<decltype(heed::bind(a, s)), decltype(heed::bind(b, s))>(heed::bind(a, s), heed::bind(b, s));
  }
  /// The modifier for head h of a sample.
  auto for_head(int sample, int h) const {
    using HeadA = decltype(detail::for_head(a, sample, h));
    using HeadB = decltype(detail::for_head(b, sample, h));
    return Then<HeadA, HeadB>(detail::for_head(a, sample, h), detail::for_head(b, sample, h));
  }
};

/// then(SoftCap{50}, Alibi{H}) applies the modifiers in order, left to right.
template <Modifier A>
A then(A a) {
  return a;
}
/// @overload
template <Modifier A, Modifier B, Modifier... More>
auto then(A a, B b, More... more) {
  return then(Then<A, B>(std::move(a), std::move(b)), std::move(more)...);
}

/// A modifier made of a generic function of (score, index) and, optionally, one for its derivative by the score.
template <class F, class Derivative = void>
struct FunctionModifier : ModifierBase {
  F f;            ///< of score and index
  Derivative df;  ///< its derivative by the score
  /// Of the function and its derivative.
  FunctionModifier(F function, Derivative derivative) : f(std::move(function)), df(std::move(derivative)) {}
  /// The changed score.
  template <class V>
  V operator()(V score, const ScoreIndex<V>& at) const {
    return static_cast<V>(f(score, at));
  }
  /// The derivative by the score.
  template <class V>
  V derivative(V score, const ScoreIndex<V>& at) const {
    return static_cast<V>(df(score, at));
  }
};
/// The same without a derivative: backward takes the reference path.
template <class F>
struct FunctionModifier<F, void> : ModifierBase {
  F f;  ///< of score and index
  /// Of the function.
  explicit FunctionModifier(F function) : f(std::move(function)) {}
  /// The changed score.
  template <class V>
  V operator()(V score, const ScoreIndex<V>& at) const {
    return static_cast<V>(f(score, at));
  }
};

/// Makes a modifier from a function, for example
///   heed::modifier([](auto s, const auto& at) { using std::abs; return s - 0.5 * abs(at.query - at.key); })
template <class F>
requires(!Modifier<F>)
FunctionModifier<F> modifier(F f) {
  return FunctionModifier<F>(std::move(f));
}
/// Makes a modifier with its derivative by the score, a function of the same arguments, for a fast backward.
template <class F, class Derivative>
requires(!Modifier<F>)
FunctionModifier<F, Derivative> modifier(F f, Derivative derivative) {
  return {std::move(f), std::move(derivative)};
}

namespace detail {

template <class M>
inline constexpr bool is_then_v = false;
template <class A, class B>
inline constexpr bool is_then_v<Then<A, B>> = true;

/// True when M and every part of it have a derivative, so that backward needs no dual numbers.
template <class M, class V>
inline constexpr bool has_derivative_v = requires(const M& m, V s, const ScoreIndex<V>& at) { m.derivative(s, at); };
template <class A, class B, class V>
inline constexpr bool has_derivative_v<Then<A, B>, V> = has_derivative_v<A, V> && has_derivative_v<B, V>;

/// True when backward with this modifier adds to gradients of parameters.
template <class M>
bool accumulates(const M& m) {
  if constexpr (is_then_v<M>)
    return accumulates(m.a) || accumulates(m.b);
  else if constexpr (requires { m.accumulates(); })
    return m.accumulates();
  else
    return requires(float d, const ScoreIndex<float>& at) { m.accumulate(d, at); };
}

/// The gradient of the modifier's input from `d`, the gradient of its output.
template <class V, class M>
V modifier_backward(const M& m, V score, V d, const ScoreIndex<V>& at) {
  if constexpr (is_then_v<M>) {
    const V first = m.a(score, at);
    return modifier_backward(m.a, score, modifier_backward(m.b, first, d, at), at);
  } else {
    if constexpr (requires { m.accumulate(d, at); }) {
      if (accumulates(m)) m.accumulate(d, at);
    }
    if constexpr (has_derivative_v<M, V>) {
      return zero_where(d, d * m.derivative(score, at));
    } else {
      ScoreIndex<Dual<V>> place;
      place.b = at.b, place.h = at.h, place.q = at.q, place.k = at.k;
      place.query = at.query, place.key = at.key;
      return zero_where(d, d * m(Dual<V>(score, V(1)), place).derivative);
    }
  }
}

}  // namespace detail

/// s -> s + bias[b, h, q, k], from a matrix (Lq, Lk) or a tensor (B, H, Lq, Lk) where any extent may be 1 and is then
/// broadcast. -inf hides the pair. The memory is borrowed.
template <class T>
class Bias : public AdditiveModifier {
 public:
  /// The extents are checked in the call.
  template <class X>
  requires(TensorLike<std::remove_reference_t<X>> && !std::derived_from<std::remove_cvref_t<X>, ModifierBase>)
  explicit Bias(X&& bias) : view_(view(bias)) {
    static_assert(AnyTensor<X> || EigenDirect<X>,
                  "heed::Bias borrows memory: evaluate the expression into a matrix first");
    static_assert(std::is_lvalue_reference_v<X> || detail::is_view_v<std::remove_cvref_t<X>>,
                  "heed::Bias borrows memory: this temporary would be gone; give it a name");
  }

  /// The score plus its bias.
  template <class V>
  V operator()(V score, const ScoreIndex<V>& at) const {
    const T* p = &view_(at.b, at.h, at.q, at.k);
    const Index step = at.q_step * view_.stride(2) + at.k_step * view_.stride(3);
    const V bias = gather<V>(at.lanes, [&](int lane) { return p[lane * step]; });
    return hide_where(bias, score + bias);
  }
  /// The same bias, whose gradient backward adds to `gradient`, of the bias's extents, summed where it is broadcast.
  /// The backward then runs on one thread.
  Bias with_gradient(TensorView<T, 4> gradient) const {
    HEED_CHECK(gradient.extents() == view_.extents(), ShapeError, "heed::Bias: the gradient is ", gradient.extents(),
               " but the bias is ", view_.extents());
    Bias result = *this;
    result.gradient_ = gradient;
    return result;
  }
  /// Adds d to the gradient.
  template <class V>
  void accumulate(const V& d, const ScoreIndex<V>& at) const {
    detail::scatter_add(&gradient_(at.b, at.h, at.q, at.k),
                        at.q_step * gradient_.stride(2) + at.k_step * gradient_.stride(3), at.lanes, d);
  }
  bool accumulates() const { return gradient_.data() != nullptr; }  ///< true with a gradient
  /// Throws ShapeError unless each extent fits the call or is 1.
  Bias bind(const AttentionShape& s) const {
    const Extents<4> wanted{s.B, s.H, s.Lq, s.Lk};
    Extents<4> strides = view_.strides(), gradient_strides = gradient_.strides();
    for (std::size_t d = 0; d < 4; ++d) {
      HEED_CHECK(view_.extents()[d] == wanted[d] || view_.extents()[d] == 1, ShapeError, "heed::Bias: the bias is ",
                 view_.extents(), " but the call is (B, H, Lq, Lk) = ", wanted, "; each extent must be equal or 1");
      if (view_.extents()[d] == 1) strides[d] = gradient_strides[d] = 0;
    }
    Bias bound(TensorView<const T, 4>(view_.data(), view_.extents(), strides));
    bound.gradient_ = {gradient_.data(), gradient_.extents(), gradient_strides};
    return bound;
  }
  /// The bias as (B, H, Lq, Lk), with the extents that it was given.
  const TensorView<const T, 4>& view() const { return view_; }

 private:
  template <class X>
  static TensorView<const T, 4> view(X& x) {
    static_assert(rank_of_v<X> == 2 || rank_of_v<X> == 4, "heed::Bias takes (Lq, Lk) or (B, H, Lq, Lk)");
    return detail::with_rank<4>(TensorView<const T, rank_of_v<X>>(view_of(x)));
  }
  TensorView<const T, 4> view_;
  TensorView<T, 4> gradient_;
};
/// T is the element type of the matrix.
template <class X>
Bias(X&&) -> Bias<scalar_of_t<std::remove_reference_t<X>>>;

/// s -> s + table[h, clamp(k - p(q), -R, R) + R] from a table (H, 2R + 1), or (1, 2R + 1) for all heads: a bias for
/// each distance (Shaw et al., 2018; T5, 2020). p(q) is the query's position, its Alignment named unless Lq = Lk. The
/// memory is borrowed.
template <class T>
class RelativeBias : public AdditiveModifier {
 public:
  /// Throws ShapeError unless the table has an odd number of columns.
  template <class X>
  requires TensorLike<std::remove_reference_t<X>>
  explicit RelativeBias(X&& table, Alignment alignment = {}) : table_(view_of(table)), alignment_(alignment) {
    static_assert(AnyTensor<X> || EigenDirect<X>,
                  "heed::RelativeBias borrows memory: evaluate the expression into a matrix first");
    static_assert(std::is_lvalue_reference_v<X> || detail::is_view_v<std::remove_cvref_t<X>>,
                  "heed::RelativeBias borrows memory: this temporary would be gone; give it a name");
    HEED_CHECK(table_.extent(1) % 2 == 1, ShapeError, "heed::RelativeBias: the table is ", table_.extents(),
               " but needs an odd number of columns, 2R + 1 for distances from -R to R");
  }

  /// The score plus its bias.
  template <class V>
  V operator()(V score, const ScoreIndex<V>& at) const {
    const V bias = gather<V>(at.lanes, [&](int lane) { return table_(row(at), column(at, lane)); });
    return hide_where(bias, score + bias);
  }
  /// The same bias; a backward adds the gradient of the table to `gradient`. The backward then runs on one thread.
  RelativeBias with_gradient(TensorView<T, 2> gradient) const {
    HEED_CHECK(gradient.extents() == table_.extents(), ShapeError, "heed::RelativeBias: the gradient is ",
               gradient.extents(), " but the table is ", table_.extents());
    RelativeBias result = *this;
    result.gradient_ = gradient;
    return result;
  }
  /// Adds d to the gradient.
  template <class V>
  void accumulate(const V& d, const ScoreIndex<V>& at) const {
    if constexpr (is_one_lane_v<V>) {
      detail::scatter_add(&gradient_(row(at), column(at, 0)), 0, 1, d);
    } else {
      typename V::Scalar values[V::size];
      d.store(values);
      for (int i = 0; i < at.lanes; ++i) detail::scatter_add(&gradient_(row(at), column(at, i)), 0, 1, values[i]);
    }
  }
  bool accumulates() const { return gradient_.data() != nullptr; }  ///< true with a gradient
  /// Throws ShapeError unless the table has one row or H.
  RelativeBias bind(const AttentionShape& s) const {
    HEED_CHECK(table_.extent(0) == 1 || table_.extent(0) == s.H, ShapeError, "heed::RelativeBias: the table is ",
               table_.extents(), " but the call has H = ", s.H, "; give one row for each head or one for all");
    RelativeBias bound = *this;
    bound.alignment_ = alignment_.bind(s, "RelativeBias", "Alignment");
    return bound;
  }

 private:
  template <class V>
  Index row(const ScoreIndex<V>& at) const {
    return table_.extent(0) == 1 ? 0 : at.h;
  }
  /// Where the table holds the distance of a lane.
  template <class V>
  Index column(const ScoreIndex<V>& at, int lane) const {
    const Index reach = table_.extent(1) / 2;
    const Index distance = at.k + lane * at.k_step - alignment_.position(at.b, at.q + lane * at.q_step);
    return std::clamp(distance, -reach, reach) + reach;
  }

  TensorView<const T, 2> table_;
  Alignment alignment_;
  TensorView<T, 2> gradient_;
};
/// T is the element type of the matrix.
template <class X>
RelativeBias(X&&) -> RelativeBias<scalar_of_t<std::remove_reference_t<X>>>;
/// T is the element type of the matrix.
template <class X>
RelativeBias(X&&, Alignment) -> RelativeBias<scalar_of_t<std::remove_reference_t<X>>>;

HEED_NAMESPACE_END
