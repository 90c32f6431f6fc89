// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The cells of recurrent layers: one step of one sequence, forward and backward. RNN, LSTM and GRU differ in nothing
/// else; nn/recurrent.hpp runs any of them.

#include <heed/core/vec_math.hpp>
#include <heed/nn/rows.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// The derivatives of sigmoid and tanh from their results.
template <class T>
HEED_ALWAYS_INLINE Vec<T> sigmoid_slope(Vec<T> s) {
  return s * (Vec<T>(T(1)) - s);
}
template <class T>
HEED_ALWAYS_INLINE Vec<T> tanh_slope(Vec<T> t) {
  return fma(-t, t, Vec<T>(T(1)));
}

/// Some rows of `width` elements behind each other: the gates of a step.
template <class T>
struct GateRows {
  T* data;
  Index width;

  HEED_ALWAYS_INLINE auto load(Index gate, Index e) const { return load_lanes(data + gate * width + e, width - e); }
  HEED_ALWAYS_INLINE void store(Index gate, Index e, Vec<std::remove_const_t<T>> value) const {
    store_lanes<T>(value, data + gate * width + e, width - e);
  }
};

/// One step of one sequence, `width` units.
template <class T>
struct CellStep {
  T* saved;            ///< rows for the backward; before, the first `gates` of them hold x·W_ihᵀ + b_ih
  const T* recurrent;  ///< `gates` rows: h·W_hhᵀ + b_hh
  T *h, *c;            ///< the state, before and after; c null where a cell has none
  T* y;                ///< h once more
  Index width;
};

/// The same step backwards.
template <class T>
struct CellBackwardStep {
  const T* saved;
  const T *h_before, *c_before;  ///< the state before the step
  const T* dy;                   ///< the gradient of y
  /// The gradients of the state. Before: after the step; then: before it, in dh without what comes through h·W_hhᵀ.
  T *dh, *dc;
  T* dgates;  ///< gradients of the rows that x·W_ihᵀ + b_ih gave; then those of h·W_hhᵀ + b_hh where they are others
  Index width;
};

/// A cell, as the layer sees it.
template <class T>
struct RecurrentCell {
  std::string_view name;
  Index gates;            ///< rows of units in weights and biases
  Index saved;            ///< rows that a step keeps; the last one is c where there is one
  bool has_cell_state;    ///< c as well as h
  bool blends_state;      ///< h is also used without a product
  bool splits_gradients;  ///< the two products have different gradients
  void (*forward)(const CellStep<T>&);
  void (*backward)(const CellBackwardStep<T>&);

  Index gradient_rows() const { return splits_gradients ? 2 * gates : gates; }
};

/// h' = f(x·W_ihᵀ + b_ih + h·W_hhᵀ + b_hh), f = tanh or max(·, 0). Elman: "Finding structure in time", 1990.
template <class T, bool IsReLU>
struct SimpleCell {
  static HEED_NOINLINE void forward(const CellStep<T>& step) {
    const GateRows<T> saved{step.saved, step.width}, h{step.h, step.width}, y{step.y, step.width};
    const GateRows<const T> recurrent{step.recurrent, step.width};
    for (Index e = 0; e < step.width; e += Vec<T>::size) {
      const Vec<T> sum = saved.load(0, e) + recurrent.load(0, e);
      const Vec<T> result = IsReLU ? max(sum, Vec<T>(T(0))) : tanh(sum);
      for (const GateRows<T>& to : {saved, h, y}) to.store(0, e, result);
    }
  }
  static HEED_NOINLINE void backward(const CellBackwardStep<T>& step) {
    const GateRows<const T> saved{step.saved, step.width}, dy{step.dy, step.width};
    const GateRows<T> dh{step.dh, step.width}, dgates{step.dgates, step.width};
    for (Index e = 0; e < step.width; e += Vec<T>::size) {
      const Vec<T> h = saved.load(0, e), error = dh.load(0, e) + dy.load(0, e), zero = T(0);
      dgates.store(0, e, IsReLU ? select(equal(h, zero), zero, error) : error * tanh_slope(h));
    }
  }
  static constexpr RecurrentCell<T> kind{"heed::RNN", 1, 1, false, false, false, &forward, &backward};
};

/// i, f, o = sigmoid(·), g = tanh(·) of the rows of x·W_ihᵀ + b_ih + h·W_hhᵀ + b_hh, in the order i, f, g, o;
/// c' = f·c + i·g, h' = o·tanh(c'). Hochreiter, Schmidhuber: "Long short-term memory", 1997, with the forget gate of
/// Gers, Schmidhuber, Cummins, 2000. Saved: i, f, g, o, c'.
template <class T>
struct LstmCell {
  static HEED_NOINLINE void forward(const CellStep<T>& step) {
    const GateRows<T> saved{step.saved, step.width}, h{step.h, step.width}, c{step.c, step.width};
    const GateRows<T> y{step.y, step.width};
    const GateRows<const T> recurrent{step.recurrent, step.width};
    for (Index e = 0; e < step.width; e += Vec<T>::size) {
      const auto sum = [&](Index gate)
                           HEED_ALWAYS_INLINE_LAMBDA { return saved.load(gate, e) + recurrent.load(gate, e); };
      const Vec<T> i = sigmoid(sum(0)), f = sigmoid(sum(1)), g = tanh(sum(2)), o = sigmoid(sum(3));
      const Vec<T> state = fma(f, c.load(0, e), i * g);
      const Vec<T> result = o * tanh(state);
      saved.store(0, e, i);
      saved.store(1, e, f);
      saved.store(2, e, g);
      saved.store(3, e, o);
      saved.store(4, e, state);
      c.store(0, e, state);
      h.store(0, e, result);
      y.store(0, e, result);
    }
  }
  static HEED_NOINLINE void backward(const CellBackwardStep<T>& step) {
    const GateRows<const T> saved{step.saved, step.width}, before{step.c_before, step.width}, dy{step.dy, step.width};
    const GateRows<T> dh{step.dh, step.width}, dc{step.dc, step.width}, dgates{step.dgates, step.width};
    for (Index e = 0; e < step.width; e += Vec<T>::size) {
      const Vec<T> i = saved.load(0, e), f = saved.load(1, e), g = saved.load(2, e), o = saved.load(3, e);
      const Vec<T> squashed = tanh(saved.load(4, e)), error = dh.load(0, e) + dy.load(0, e);
      const Vec<T> dstate = fma(error * o, tanh_slope(squashed), dc.load(0, e));
      dgates.store(0, e, dstate * g * sigmoid_slope(i));
      dgates.store(1, e, dstate * before.load(0, e) * sigmoid_slope(f));
      dgates.store(2, e, dstate * i * tanh_slope(g));
      dgates.store(3, e, error * squashed * sigmoid_slope(o));
      dc.store(0, e, dstate * f);
    }
  }
  static constexpr RecurrentCell<T> kind{"heed::LSTM", 4, 5, true, false, false, &forward, &backward};
};

/// With a = x·W_ihᵀ + b_ih and b = h·W_hhᵀ + b_hh, rows in the order r, z, n: r, z = sigmoid(a + b),
/// n = tanh(a + r·b), h' = (1 - z)·n + z·h. Cho et al.: "Learning phrase representations using RNN encoder-decoder for
/// statistical machine translation", 2014, in the third version, where r acts after the product. Saved: r, z, n, and
/// the row of b that goes to n.
template <class T>
struct GruCell {
  static HEED_NOINLINE void forward(const CellStep<T>& step) {
    const GateRows<T> saved{step.saved, step.width}, h{step.h, step.width}, y{step.y, step.width};
    const GateRows<const T> recurrent{step.recurrent, step.width};
    for (Index e = 0; e < step.width; e += Vec<T>::size) {
      const Vec<T> r = sigmoid(saved.load(0, e) + recurrent.load(0, e));
      const Vec<T> z = sigmoid(saved.load(1, e) + recurrent.load(1, e));
      const Vec<T> b = recurrent.load(2, e), n = tanh(fma(r, b, saved.load(2, e)));
      const Vec<T> result = fma(z, h.load(0, e) - n, n);
      saved.store(0, e, r);
      saved.store(1, e, z);
      saved.store(2, e, n);
      saved.store(3, e, b);
      h.store(0, e, result);
      y.store(0, e, result);
    }
  }
  static HEED_NOINLINE void backward(const CellBackwardStep<T>& step) {
    const GateRows<const T> saved{step.saved, step.width}, before{step.h_before, step.width}, dy{step.dy, step.width};
    const GateRows<T> dh{step.dh, step.width}, dgates{step.dgates, step.width};
    for (Index e = 0; e < step.width; e += Vec<T>::size) {
      const Vec<T> r = saved.load(0, e), z = saved.load(1, e), n = saved.load(2, e), b = saved.load(3, e);
      const Vec<T> error = dh.load(0, e) + dy.load(0, e);
      const Vec<T> dn = error * (Vec<T>(T(1)) - z) * tanh_slope(n);
      const Vec<T> dr = dn * b * sigmoid_slope(r), dz = error * (before.load(0, e) - n) * sigmoid_slope(z);
      dgates.store(0, e, dr);
      dgates.store(1, e, dz);
      dgates.store(2, e, dn);
      dgates.store(3, e, dr);
      dgates.store(4, e, dz);
      dgates.store(5, e, dn * r);
      dh.store(0, e, error * z);
    }
  }
  static constexpr RecurrentCell<T> kind{"heed::GRU", 3, 4, false, true, true, &forward, &backward};
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
