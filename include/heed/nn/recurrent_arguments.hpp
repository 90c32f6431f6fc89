// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Options, lengths, states and gradients of recurrent layers, with the checks of a call.

#include <cstddef>
#include <span>
#include <string_view>

#include <heed/core/config.hpp>
#include <heed/core/error.hpp>
#include <heed/core/tensor.hpp>

HEED_NAMESPACE_BEGIN

/// Options of LSTM and GRU.
struct RecurrentOptions {
  Index input_size = 0;        ///< E, width of x
  Index hidden_size = 0;       ///< width of a state
  Index num_layers = 1;        ///< each on the output of the one before
  bool bidirectional = false;  ///< a second pass from the end, its states behind the first one's in y
  bool bias = true;            ///< add bias_ih and bias_hh
  double dropout = 0;          ///< probability that an element between two layers is dropped, while context.training
};

/// The function that an RNN applies to its states.
enum class Nonlinearity { Tanh, Relu };

/// Options of RNN.
struct RNNOptions {
  Index input_size = 0;        ///< E, width of x
  Index hidden_size = 0;       ///< width of a state
  Index num_layers = 1;        ///< each on the output of the one before
  bool bidirectional = false;  ///< a second pass from the end, its states behind the first one's in y
  bool bias = true;            ///< add bias_ih and bias_hh
  double dropout = 0;          ///< probability that an element between two layers is dropped, while context.training
  Nonlinearity nonlinearity = Nonlinearity::Tanh;  ///< of each step
};

/// Optional inputs and outputs of a recurrent layer. S = layers · directions; a state has the number
/// layer · directions + direction, as in PyTorch.
template <class T>
struct RecurrentArguments {
  std::span<const int> lengths{};  ///< (B), the length of each sequence; by default all of x
  TensorView<const T, 3> h_0{};    ///< (S, B, hidden), the state before; without data it is 0
  TensorView<const T, 3> c_0{};    ///< the same of an LSTM's cells
  TensorView<T, 3> h_n{};          ///< (S, B, hidden), receives the state at the end of each sequence; it may be h_0
  TensorView<T, 3> c_n{};          ///< the same of an LSTM's cells; it may be c_0
};

/// The gradients of the states, (S, B, hidden) each.
template <class T>
struct RecurrentGradients {
  TensorView<const T, 3> dh_n{};  ///< of the final state; without data 0
  TensorView<const T, 3> dc_n{};  ///< of the final cell state; without data 0
  TensorView<T, 3> dh_0{};        ///< receives that of the initial state where it has data; may be dh_n
  TensorView<T, 3> dc_0{};        ///< receives that of the initial cell state where it has data; may be dc_n
};

namespace detail {

/// A view that a call of a recurrent layer reads or writes.
template <class T>
struct RecurrentArgument {
  std::string_view name;
  TensorView<const T, 3> view;
  bool written = false;
  char state = 0;  ///< 'h' or 'c' for a state: one that is written may be the one that is read
};

/// The facts about a layer that the checks need.
struct RecurrentBoundary {
  std::string_view name;
  bool has_cell_state;
  Extents<3> state;  ///< (layers · directions, B, hidden)

  /// Throws unless every state fits the layer and nothing that is written shares memory with another argument.
  template <class T, std::size_t N>
  void check(const RecurrentArgument<T> (&arguments)[N]) const {
    for (std::size_t i = 0; i < N; ++i) {
      const RecurrentArgument<T>& a = arguments[i];
      if (!a.view.data()) continue;
      HEED_CHECK(a.state != 'c' || has_cell_state, ValueError, name, ": ", a.name,
                 " was given, but the layer has no cells; leave it out");
      HEED_CHECK(a.state == 0 || a.view.extents() == state, ShapeError, name, ": ", a.name, " ", a.view.extents(),
                 " does not fit; make it ", state, ", (layers · directions, B, hidden)");
      for (std::size_t j = 0; j < N; ++j) {
        const RecurrentArgument<T>& b = arguments[j];
        const bool is_same = a.view.data() == b.view.data() && a.view.strides() == b.view.strides();
        if (i == j || !a.written || !b.view.data() || (is_same && a.state != 0 && a.state == b.state)) continue;
        HEED_CHECK(!may_overlap(a.view, b.view), ValueError, name, ": ", a.name, " shares memory with ", b.name,
                   "; give it memory of its own");
      }
    }
  }
};

template <class T>
void check_forward(const RecurrentBoundary& layer, const TensorView<const T, 3>& x, const RecurrentArguments<T>& a,
                   const TensorView<T, 3>& y) {
  const Index B = x.extent(0), L = x.extent(1);
  if (!a.lengths.empty()) {
    HEED_CHECK(static_cast<Index>(a.lengths.size()) == B, ShapeError, layer.name, ": ", a.lengths.size(),
               " lengths were given for the ", B, " sequences of x ", x.extents(), "; give one for each");
    for (std::size_t b = 0; b < a.lengths.size(); ++b) {
      HEED_CHECK(a.lengths[b] >= 0 && a.lengths[b] <= L, ValueError, layer.name, ": lengths[", b, "] = ", a.lengths[b],
                 " must be between 0 and L = ", L, " of x ", x.extents());
    }
  }
  const RecurrentArgument<T> arguments[] = {{"y", y, true},
                                            {"x", x},
                                            {"h_0", a.h_0, false, 'h'},
                                            {"c_0", a.c_0, false, 'c'},
                                            {"h_n", a.h_n, true, 'h'},
                                            {"c_n", a.c_n, true, 'c'}};
  layer.check(arguments);
}

template <class T>
void check_backward(const RecurrentBoundary& layer, const TensorView<const T, 3>& dy, const RecurrentGradients<T>& g,
                    const TensorView<T, 3>& dx) {
  const RecurrentArgument<T> arguments[] = {{"dy", dy},
                                            {"dh_n", g.dh_n, false, 'h'},
                                            {"dc_n", g.dc_n, false, 'c'},
                                            {"dh_0", g.dh_0, true, 'h'},
                                            {"dc_0", g.dc_0, true, 'c'},
                                            {"dx", dx, true}};
  layer.check(arguments);
}

}  // namespace detail

HEED_NAMESPACE_END
