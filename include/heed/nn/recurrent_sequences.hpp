// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// PackedSequences: the order in which a recurrent layer runs through sequences of several lengths, step by step and
/// the longest first, so that the sequences that a step still reaches are the first rows of every state.

#include <numeric>

#include <heed/core/integers.hpp>
#include <heed/nn/rows.hpp>

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
  IntSpan lengths{};             ///< (B), the length of each sequence, integers of any type; by default all of x
  TensorView<const T, 3> h_0{};  ///< (S, B, hidden), the state before; without data it is 0
  TensorView<const T, 3> c_0{};  ///< the same of an LSTM's cells
  TensorView<T, 3> h_n{};        ///< (S, B, hidden), receives the state at the end of each sequence; it may be h_0
  TensorView<T, 3> c_n{};        ///< the same of an LSTM's cells; it may be c_0
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
                   "; it needs separate memory");
      }
    }
  }
};

template <class T>
void check_forward(const RecurrentBoundary& layer, const TensorView<const T, 3>& x, const RecurrentArguments<T>& a,
                   const TensorView<T, 3>& y) {
  const Index B = x.extent(0), L = x.extent(1);
  if (!a.lengths.empty()) {
    HEED_CHECK(a.lengths.size() == B, ShapeError, layer.name, ": ", a.lengths.size(), " lengths were given for the ", B,
               " sequences of x ", x.extents(), "; give one for each");
    for (int b = 0; b < a.lengths.size(); ++b) {
      HEED_CHECK(a.lengths[b] >= 0 && a.lengths[b] <= L, ValueError, layer.name, ": lengths[", b,
                 "] = ", a.lengths.text(b), " must be between 0 and L = ", L, " of x ", x.extents());
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

template <class T>
void copy_row(const TensorView<const T, 1>& from, const TensorView<T, 1>& to) {
  if (from.has_dense_rows() && to.has_dense_rows()) {
    std::copy_n(from.data(), from.extent(0), to.data());
  } else {
    for (Index e = 0; e < from.extent(0); ++e) to(e) = from(e);
  }
}
template <class T>
void clear_row(const TensorView<T, 1>& row) {
  for (Index e = 0; e < row.extent(0); ++e) row(e) = T(0);
}

/// The tokens of B sequences in packed rows: first all first tokens, then all second ones, and so on; nothing for
/// padding. Within a step, sequences are in the order of their ranks, longest first; equals keep their order.
class PackedSequences {
 public:
  /// The memory that the constructor needs.
  static Index memory_size(Index batch, Index length) { return batch + length + 1; }

  PackedSequences() = default;
  /// Borrows the memory. `lengths` holds B lengths of at most `length`, or nothing: then all are `length`.
  PackedSequences(const IntSpan& lengths, Index batch, Index length, Index* memory)
      : batch_(batch), samples_(memory), first_(memory + batch) {
    const auto length_of = [&](Index b) { return lengths.empty() ? length : lengths[b]; };
    std::iota(samples_, samples_ + batch, Index{0});
    std::sort(samples_, samples_ + batch,
              [&](Index a, Index b) { return length_of(a) != length_of(b) ? length_of(a) > length_of(b) : a < b; });
    first_[0] = 0;
    Index count = batch;
    for (Index t = 0; t < length; ++t) {
      while (count > 0 && length_of(samples_[count - 1]) <= t) --count;
      first_[t + 1] = first_[t] + count;
      if (count > 0) steps_ = t + 1;
    }
  }

  Index batch() const { return batch_; }
  /// The length of the longest sequence.
  Index steps() const { return steps_; }
  /// Tokens of all sequences.
  Index rows() const { return steps_ == 0 ? 0 : first_[steps_]; }
  /// The row of the sequence of rank 0 at step t.
  Index first(Index t) const { return first_[t]; }
  /// The number of sequences longer than t; t below the padded length.
  Index count(Index t) const { return first_[t + 1] - first_[t]; }
  Index sample(Index rank) const { return samples_[rank]; }

  /// packed (rows, E) = x (B, L, E) without its padding, which is not read.
  template <class T>
  void pack(const TensorView<const T, 3>& x, const TensorView<T, 2>& packed, Context& context) const {
    parallel_for_rows(context, steps_, batch_ * x.extent(2), [&](Index begin, Index end, int) {
      for (Index t = begin; t < end; ++t) {
        for (Index r = 0; r < count(t); ++r) copy_row<T>(x[sample(r)][t], packed[first(t) + r]);
      }
    });
  }
  /// y (B, L, E) = packed (rows, E), and 0 in the padding.
  template <class T>
  void unpack(const TensorView<const T, 2>& packed, const TensorView<T, 3>& y, Context& context) const {
    parallel_for_rows(context, y.extent(1), batch_ * y.extent(2), [&](Index begin, Index end, int) {
      for (Index t = begin; t < end; ++t) {
        const Index n = count(t);
        for (Index r = 0; r < n; ++r) copy_row<T>(packed[first(t) + r], y[sample(r)][t]);
        for (Index r = n; r < batch_; ++r) clear_row(y[sample(r)][t]);
      }
    });
  }

  /// by_rank (B, E) = the rows of `state` in the order of ranks; zeros for a state without data.
  template <class T>
  void sort(const TensorView<const T, 2>& state, const TensorView<T, 2>& by_rank) const {
    for (Index r = 0; r < batch_; ++r) {
      if (state.data())
        copy_row<T>(state[sample(r)], by_rank[r]);
      else
        clear_row(by_rank[r]);
    }
  }
  /// The way back; a state without data is not written.
  template <class T>
  void restore(const TensorView<const T, 2>& by_rank, const TensorView<T, 2>& state) const {
    if (!state.data()) return;
    for (Index r = 0; r < batch_; ++r) copy_row<T>(by_rank[r], state[sample(r)]);
  }

 private:
  Index batch_ = 0, steps_ = 0;
  Index *samples_ = nullptr, *first_ = nullptr;
};

/// The two ways to go through packed sequences: from the first step to the last, or back.
struct StepOrder {
  const PackedSequences& sequences;
  bool reverse;

  /// The step that is taken as number i.
  Index step(Index i) const { return reverse ? sequences.steps() - 1 - i : i; }
  /// The rows of sequences that step t finds in the state that another step left, and where that step's rows begin; the
  /// rest of its rows start from the initial state.
  struct Before {
    Index rows, first;
  };
  Before before(Index t) const {
    if (!reverse) return t == 0 ? Before{0, 0} : Before{sequences.count(t), sequences.first(t - 1)};
    return t + 1 == sequences.steps() ? Before{0, 0} : Before{sequences.count(t + 1), sequences.first(t + 1)};
  }
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
