// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// What goes into recurrent layers and comes out of them: options, lengths, states and their gradients, with the checks
/// at the boundary.

#include <span>
#include <string_view>

#include <heed/core/config.hpp>
#include <heed/core/error.hpp>
#include <heed/core/tensor.hpp>
#include <heed/nn/layer.hpp>

HEED_NAMESPACE_BEGIN

struct RecurrentOptions {
  Index input_size;            ///< E, width of x
  Index hidden_size;           ///< width of a state
  int num_layers = 1;          ///< each on the output of the one before
  bool bidirectional = false;  ///< a second pass from the end, its states behind the first one's in y
  bool bias = true;            ///< add bias_ih and bias_hh
  double dropout = 0;          ///< probability that an element between two layers is dropped, while context.training
};

/// What an RNN squashes its states with.
enum class Nonlinearity { Tanh, Relu };

struct RNNOptions {
  Index input_size;            ///< E, width of x
  Index hidden_size;           ///< width of a state
  int num_layers = 1;          ///< each on the output of the one before
  bool bidirectional = false;  ///< a second pass from the end, its states behind the first one's in y
  bool bias = true;            ///< add bias_ih and bias_hh
  double dropout = 0;          ///< probability that an element between two layers is dropped, while context.training
  Nonlinearity nonlinearity = Nonlinearity::Tanh;
};

/// What goes into a recurrent layer beside x, and out of it beside y. S = layers · directions; state number
/// layer · directions + direction, as in PyTorch.
template <class T>
struct RecurrentArguments {
  std::span<const int> lengths{};  ///< (B), what counts of each sequence; nothing stands for all of x
  TensorView<const T, 3> h_0{};    ///< (S, B, hidden), the state before; without data it is 0
  TensorView<const T, 3> c_0{};    ///< the same of an LSTM's cells
  TensorView<T, 3> h_n{};          ///< (S, B, hidden), receives each sequence's state at its own end; it may be h_0
  TensorView<T, 3> c_n{};          ///< the same of an LSTM's cells; it may be c_0
};

/// The gradients of the states, (S, B, hidden) each.
template <class T>
struct RecurrentGradients {
  TensorView<const T, 3> dh_n{}, dc_n{};  ///< what comes from the final state; without data it is 0
  TensorView<T, 3> dh_0{}, dc_0{};  ///< receive those of the initial state where they have data; may be dh_n, dc_n
};

namespace detail {

/// What the checks know of a layer.
struct RecurrentBoundary {
  std::string_view name;
  bool has_cell_state;
  Index in, out, states, hidden;

  Extents<3> state_extents(Index B) const { return {states, B, hidden}; }

  /// A state of that name: it must fit B sequences, and be there only where it means something.
  template <class U>
  void check_state(std::string_view argument, const TensorView<U, 3>& state, Index B, bool is_cell_state) const {
    if (!state.data()) return;
    HEED_CHECK(!is_cell_state || has_cell_state, ValueError, name, ": ", argument,
               " was given, but the layer has no cells; leave it out");
    HEED_CHECK(state.extents() == state_extents(B), ShapeError, name, ": ", argument, " ", state.extents(),
               " does not fit; make it ", state_extents(B), ", (layers · directions, B, hidden)");
  }
  /// What is written must not share memory with what another argument reads or writes.
  template <class U, class V>
  void check_apart(std::string_view written, const TensorView<U, 3>& to, std::string_view other,
                   const TensorView<V, 3>& view) const {
    HEED_CHECK(!to.data() || !view.data() || !may_overlap(to, view), ValueError, name, ": ", written,
               " shares memory with ", other, "; give it memory of its own");
  }
  /// The same where both may be one view: a state that goes on in place.
  template <class T>
  void check_carried(std::string_view written, const TensorView<T, 3>& to, std::string_view read,
                     const TensorView<const T, 3>& from) const {
    if (to.data() != from.data() || to.strides() != from.strides()) check_apart(written, to, read, from);
  }
};

template <class T>
void check_forward(const RecurrentBoundary& layer, const TensorView<const T, 3>& x, const RecurrentArguments<T>& a,
                   const TensorView<T, 3>& y) {
  check_layer_shapes(layer.name, x, y, layer.in, layer.out);
  const Index B = x.extent(0), L = x.extent(1);
  if (!a.lengths.empty()) {
    HEED_CHECK(static_cast<Index>(a.lengths.size()) == B, ShapeError, layer.name, ": ", a.lengths.size(),
               " lengths were given for the ", B, " sequences of x ", x.extents(), "; give one for each");
    for (std::size_t b = 0; b < a.lengths.size(); ++b) {
      HEED_CHECK(a.lengths[b] >= 0 && a.lengths[b] <= L, ValueError, layer.name, ": lengths[", b, "] = ", a.lengths[b],
                 " must lie between 0 and L = ", L, " of x ", x.extents());
    }
  }
  layer.check_state("h_0", a.h_0, B, false);
  layer.check_state("c_0", a.c_0, B, true);
  layer.check_state("h_n", a.h_n, B, false);
  layer.check_state("c_n", a.c_n, B, true);
  layer.check_carried("h_n", a.h_n, "h_0", a.h_0);
  layer.check_carried("c_n", a.c_n, "c_0", a.c_0);
  layer.check_apart("h_n", a.h_n, "c_0", a.c_0);
  layer.check_apart("c_n", a.c_n, "h_0", a.h_0);
  layer.check_apart("h_n", a.h_n, "c_n", a.c_n);
  layer.check_apart("h_n", a.h_n, "x", x);
  layer.check_apart("c_n", a.c_n, "x", x);
  layer.check_apart("y", y, "h_0", a.h_0);
  layer.check_apart("y", y, "c_0", a.c_0);
  layer.check_apart("y", y, "h_n", a.h_n);
  layer.check_apart("y", y, "c_n", a.c_n);
}

/// x: the extents of the forward's x.
template <class T>
void check_backward(const RecurrentBoundary& layer, const Extents<3>& x, const TensorView<const T, 3>& dy,
                    const RecurrentGradients<T>& g, const TensorView<T, 3>& dx) {
  const Extents<3> y{x[0], x[1], layer.out};
  HEED_CHECK(dy.extents() == y, ShapeError, layer.name, ": dy ", dy.extents(), " does not fit the y ", y,
             " of the forward with this cache");
  HEED_CHECK(!dx.data() || dx.extents() == x, ShapeError, layer.name, ": dx ", dx.extents(), " does not fit the x ", x,
             " of the forward with this cache; give a view without data where no dx is needed");
  layer.check_state("dh_n", g.dh_n, x[0], false);
  layer.check_state("dc_n", g.dc_n, x[0], true);
  layer.check_state("dh_0", g.dh_0, x[0], false);
  layer.check_state("dc_0", g.dc_0, x[0], true);
  layer.check_carried("dh_0", g.dh_0, "dh_n", g.dh_n);
  layer.check_carried("dc_0", g.dc_0, "dc_n", g.dc_n);
  layer.check_apart("dh_0", g.dh_0, "dc_n", g.dc_n);
  layer.check_apart("dc_0", g.dc_0, "dh_n", g.dh_n);
  layer.check_apart("dh_0", g.dh_0, "dc_0", g.dc_0);
  layer.check_apart("dh_0", g.dh_0, "dy", dy);
  layer.check_apart("dc_0", g.dc_0, "dy", dy);
  layer.check_apart("dh_0", g.dh_0, "dx", dx);
  layer.check_apart("dc_0", g.dc_0, "dx", dx);
  layer.check_apart("dx", dx, "dy", dy);
  layer.check_apart("dx", dx, "dh_n", g.dh_n);
  layer.check_apart("dx", dx, "dc_n", g.dc_n);
}

}  // namespace detail

HEED_NAMESPACE_END
