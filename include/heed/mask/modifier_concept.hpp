// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The Modifier concept. A score modifier changes scores after scaling and before the mask: s -> f(s, b, h, q, k).
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

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
