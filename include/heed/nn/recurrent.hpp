// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// RNN, LSTM and GRU: several layers, both directions, sequences of several lengths, with their gradients through time.

#include <heed/nn/linear.hpp>
#include <heed/nn/recurrent_cell.hpp>
#include <heed/nn/recurrent_sequences.hpp>

HEED_NAMESPACE_BEGIN

/// The parameters of one layer in one direction; G gates: 1 in an RNN, 4 in an LSTM, 3 in a GRU.
template <class T>
struct RecurrentWeights {
  Parameter<T> weight_ih;  ///< (G·hidden, in); in = directions · hidden from the second layer on
  Parameter<T> weight_hh;  ///< (G·hidden, hidden)
  Parameter<T> bias_ih;    ///< (G·hidden)
  Parameter<T> bias_hh;    ///< (G·hidden)
};

namespace detail {

/// b (k, n) as the kernel reads it, in the caller's frame: packed once for the products of all steps.
template <class T>
const T* step_panels(const TensorView<const T, 2>& b, Workspace& workspace) {
  const Index count = panel_count<T>(b.extent(1));
  T* panels = workspace.template take<T>(count * kPanelWidth<T> * b.extent(0));
  for (Index p = 0; p < count; ++p) pack_panel(b, p, panels);
  return panels;
}

}  // namespace detail

/// Base of RNN, LSTM and GRU: y = layer(x), x (B, L, in), y (B, L, directions · hidden). y of a padded position is 0;
/// the numbers that x holds there are not read.
///
/// Parameters under PyTorch's names, for each layer k: weight_ih_lk, weight_hh_lk, bias_ih_lk, bias_hh_lk, and the
/// same with _reverse. Load weights or call initialize() before the first use.
///
///   heed::LSTM<float> layer({.input_size = 32, .hidden_size = 64});
///   layer.forward(x, {.lengths = lengths, .h_n = h, .c_n = c}, y, context);
template <LayerScalar T>
class Recurrent : public Layer<Recurrent<T>> {
  using In = TensorView<const T, 3>;
  using Out = TensorView<T, 3>;
  struct PassCache {
    Buffer<T> saved, h_0, c_0;
  };
  struct LayerCache {
    Buffer<T> output, dropped;
    std::optional<DropoutPattern> pattern{};
    std::array<PassCache, 2> passes;
  };

 public:
  using Scalar = T;  ///< type of parameters and values
  using Layer<Recurrent>::operator();
  using Layer<Recurrent>::forward;
  using Layer<Recurrent>::backward;

  /// Memory of a forward that backward() needs. It borrows nothing: x and the states may go.
  class Cache {
   public:
    /// Memory held.
    std::size_t bytes() const {
      std::size_t sum = places_.bytes() + x_.bytes();
      for (const LayerCache& layer : layers_) {
        sum += layer.output.bytes() + layer.dropped.bytes();
        for (const PassCache& pass : layer.passes) sum += pass.saved.bytes() + pass.h_0.bytes() + pass.c_0.bytes();
      }
      return sum;
    }

   private:
    friend Recurrent;
    std::string_view name_;
    RecurrentOptions options_;
    Extents<3> extents_{};
    detail::PackedSequences sequences_;
    Buffer<Index> places_;
    Buffer<T> x_;
    std::vector<LayerCache> layers_;
  };

  std::string_view name() const { return cell_->name; }         ///< the layer in error texts
  const RecurrentOptions& options() const { return options_; }  ///< as constructed
  /// 2 where there is a pass from the end, else 1.
  Index directions() const { return options_.bidirectional ? 2 : 1; }
  Index input_width(Index) const { return options_.input_size; }                   ///< of x
  Index output_width(Index) const { return directions() * options_.hidden_size; }  ///< of y
  /// (S, B, hidden), the extents of a state for B sequences.
  Extents<3> state_extents(Index B) const { return {options_.num_layers * directions(), B, options_.hidden_size}; }

  /// The parameters of a layer; direction 1 is the one from the end. Throws ValueError where there is none.
  RecurrentWeights<T>& weights(Index layer, Index direction = 0) { return parts_[checked(layer, direction)].weights; }
  /// Those of a layer and direction (1: backward). Throws ValueError for one that does not exist.
  const RecurrentWeights<T>& weights(Index layer, Index direction = 0) const {
    return parts_[checked(layer, direction)].weights;
  }

  /// As Module::visit().
  template <class F>
  void visit(std::string_view prefix, F&& f) {
    visit_parameters(*this, prefix, f);
  }
  /// @overload
  template <class F>
  void visit(std::string_view prefix, F&& f) const {
    visit_parameters(*this, prefix, f);
  }

  /// Uniform numbers within ±1/√hidden, as PyTorch's layers start.
  void initialize(Random& random, std::string_view name = "") {
    const double bound = detail::inverse_root_fan(options_.hidden_size);
    visit(name, [&](std::string_view path, Parameter<T>& parameter) {
      init::uniform(parameter, random(path), -bound, bound);
    });
  }

  /// See Module::pack().
  void pack(const PackOptions& options = {}) {
    for (Part& part : parts_) {
      part.packed_ih.pack(part.weights.weight_ih, 0, part.weights.weight_ih.extents()[0]);
      part.packed_hh.pack(part.weights.weight_hh, 0, part.weights.weight_hh.extents()[0]);
      if (!options.release) continue;
      part.weights.weight_ih.release();
      part.weights.weight_hh.release();
    }
  }

  /// y = layer(x, {.lengths = lengths, ...}) for any TensorLike x.
  template <TensorLike X>
  auto operator()(const X& x, const RecurrentArguments<T>& arguments, Context& context) const {
    detail::check_elements<T, X>();
    return detail::apply<T>(
        output_width(0), context, [&](const In& in, const Out& out) { forward(in, arguments, out, context); }, x);
  }
  /// @overload
  template <TensorLike X>
  auto operator()(const X& x, const RecurrentArguments<T>& arguments) const {
    Context context;
    return (*this)(x, arguments, context);
  }

  /// forward() with lengths and states. Throws ShapeError also for lengths or states that don't fit x, ValueError for a
  /// length outside 0, ..., L, for a cell state where there are no cells, and for final states that overlap anything
  /// but the same initial ones.
  template <TensorLike X, TensorLike Y>
  void forward(const X& x, const RecurrentArguments<T>& arguments, Y&& y, Context& context) const {
    run_checked(x, arguments, y, nullptr, context);
  }
  /// @overload
  template <TensorLike X, TensorLike Y>
  void forward(const X& x, const RecurrentArguments<T>& arguments, Y&& y, Cache& cache, Context& context) const {
    run_checked(x, arguments, y, &cache, context);
  }

  /// Back through time: adds to the gradients of the parameters and writes dx, 0 in the padding; dy is not read there.
  /// Throws ShapeError when dy, dx or a gradient of a state doesn't fit the forward, ValueError when one that is
  /// written overlaps another or a weight was released.
  template <TensorLike DY, class DX>
  void backward(const DY& dy, const RecurrentGradients<T>& states, DX&& dx, Cache& cache, Context& context) {
    const Workspace::Frame frame(context.workspace());
    run_backward(detail::read_as<3>(dy, context.workspace()), states, detail::gradient_view<T>(dx), cache, context);
  }

  /// The layer without checks of x and y, for layers made of it.
  void run(const In& x, const Out& y, Cache* cache, Context& context) const { run(x, {}, y, cache, context); }
  /// The gradients, without checks, for layers made of it.
  void run_backward(const In& dy, const Out& dx, Cache& cache, Context& context) {
    run_backward(dy, RecurrentGradients<T>{}, dx, cache, context);
  }

 protected:
  /// Throws ShapeError for a width or a number of layers below 1, ValueError for a dropout outside [0, 1].
  Recurrent(const detail::RecurrentCell<T>& cell, const RecurrentOptions& options) : cell_(&cell), options_(options) {
    HEED_CHECK(options.input_size >= 1 && options.hidden_size >= 1 && options.num_layers >= 1, ShapeError, cell.name,
               ": input_size = ", options.input_size, ", hidden_size = ", options.hidden_size,
               " and num_layers = ", options.num_layers, " must be at least 1");
    HEED_CHECK(options.dropout >= 0 && options.dropout <= 1, ValueError, cell.name, ": dropout = ", options.dropout,
               " must be a probability between 0 and 1");
    const Index gates = cell.gates * options.hidden_size;
    for (Index layer = 0; layer < options.num_layers; ++layer) {
      const Index in = layer == 0 ? options.input_size : output_width(0);
      for (Index direction = 0; direction < directions(); ++direction) {
        RecurrentWeights<T>& w = parts_.emplace_back().weights;
        w.weight_ih = Parameter<T>(gates, in);
        w.weight_hh = Parameter<T>(gates, options.hidden_size);
        if (!options.bias) continue;
        w.bias_ih = Parameter<T>(gates);
        w.bias_hh = Parameter<T>(gates);
      }
    }
  }

 private:
  struct Part {
    RecurrentWeights<T> weights;
    detail::PackedRows<T> packed_ih, packed_hh;
  };
  /// One pass of one layer.
  struct Pass {
    Index layer, direction;
  };

  detail::RecurrentBoundary boundary(Index B) const { return {name(), cell_->has_cell_state, state_extents(B)}; }
  std::size_t index_of(const Pass& pass) const {
    return static_cast<std::size_t>(pass.layer * directions() + pass.direction);
  }
  std::size_t checked(Index layer, Index direction) const {
    HEED_CHECK(layer >= 0 && layer < options_.num_layers && direction >= 0 && direction < directions(), ValueError,
               cell_->name, "::weights: there is no layer ", layer, " in direction ", direction, " of ",
               options_.num_layers, " layers and ", directions(), " directions");
    return index_of({layer, direction});
  }

  template <class Self, class F>
  static void visit_parameters(Self& self, std::string_view prefix, F& f) {
    for (Index layer = 0; layer < self.options_.num_layers; ++layer) {
      for (Index direction = 0; direction < self.directions(); ++direction) {
        auto& w = self.weights(layer, direction);
        const std::string suffix = "_l" + std::to_string(layer) + (direction == 1 ? "_reverse" : "");
        detail::visit_parameter(prefix, "weight_ih" + suffix, w.weight_ih, f);
        detail::visit_parameter(prefix, "weight_hh" + suffix, w.weight_hh, f);
        detail::visit_parameter(prefix, "bias_ih" + suffix, w.bias_ih, f);
        detail::visit_parameter(prefix, "bias_hh" + suffix, w.bias_hh, f);
      }
    }
  }

  template <class X, class Y>
  void run_checked(const X& x, const RecurrentArguments<T>& arguments, Y&& y, Cache* cache, Context& context) const {
    detail::check_elements<T, X>();
    const Workspace::Frame frame(context.workspace());
    const In in = detail::read_as<3>(x, context.workspace());
    const Out out = detail::write_as<3>(y);
    detail::check_layer_shapes(name(), in, out, options_.input_size, output_width(0));
    run(in, arguments, out, cache, context);
  }

  /// The memory that the backward needs comes from the cache, or without one from the workspace; the arithmetic is the
  /// same.
  void run(const In& x, const RecurrentArguments<T>& arguments, const Out& y, Cache* cache, Context& context) const {
    detail::check_forward(boundary(x.extent(0)), x, arguments, y);
    Workspace& workspace = context.workspace();
    const Workspace::Frame frame(workspace);
    const Index B = x.extent(0), L = x.extent(1), places_size = detail::PackedSequences::memory_size(B, L);
    Index* places =
        cache ? cache->places_.template view<1>({places_size}).data() : workspace.template take<Index>(places_size);
    const detail::PackedSequences sequences(arguments.lengths, B, L, places);
    if (cache) {
      cache->name_ = name();
      cache->options_ = options_;
      cache->extents_ = x.extents();
      cache->sequences_ = sequences;
      cache->layers_.resize(static_cast<std::size_t>(options_.num_layers));
    }
    const Index rows = sequences.rows();
    const auto memory = [&](Buffer<T>* kept, Index width) {
      return kept ? kept->template view<2>({rows, width}) : workspace.template tensor<T, 2>({rows, width});
    };

    TensorView<T, 2> input = memory(cache ? &cache->x_ : nullptr, options_.input_size);
    sequences.pack(x, input, context);
    for (Index layer = 0; layer < options_.num_layers; ++layer) {
      LayerCache* kept = cache ? &cache->layers_[static_cast<std::size_t>(layer)] : nullptr;
      const TensorView<T, 2> output = memory(kept ? &kept->output : nullptr, output_width(0));
      for (Index direction = 0; direction < directions(); ++direction) {
        run_pass({layer, direction}, sequences, input, output, arguments,
                 kept ? &kept->passes[static_cast<std::size_t>(direction)] : nullptr, context);
      }
      input = output;
      std::optional<DropoutPattern> pattern;
      if (context.training && options_.dropout > 0 && layer + 1 < options_.num_layers) {
        pattern.emplace(context.seed, context.next_stream(), options_.dropout);
        if (kept) input = memory(&kept->dropped, output_width(0));
        drop(sequences, *pattern, output, input, context);
      }
      if (kept) kept->pattern = pattern;
    }
    sequences.unpack<T>(input, y, context);
    context.observe(y);
  }

  void run_backward(const In& dy, const RecurrentGradients<T>& states, const Out& dx, Cache& cache, Context& context) {
    const RecurrentOptions& held = cache.options_;
    HEED_CHECK(!cache.layers_.empty() && cache.name_ == name() && held.input_size == options_.input_size &&
                   held.hidden_size == options_.hidden_size && held.num_layers == options_.num_layers &&
                   held.bidirectional == options_.bidirectional,
               ShapeError, name(), ": the cache holds a forward of ",
               cache.layers_.empty() ? std::string_view("no layer") : cache.name_,
               " with num_layers = ", cache.layers_.size(), ", input_size = ", held.input_size,
               ", hidden_size = ", held.hidden_size, " but this layer has num_layers = ", options_.num_layers,
               ", input_size = ", options_.input_size, ", hidden_size = ", options_.hidden_size,
               "; give it to a forward of this layer first");
    const Extents<3>& x = cache.extents_;
    detail::check_gradient(name(), x, {x[0], x[1], output_width(0)}, dy, dx);
    detail::check_backward(boundary(x[0]), dy, states, dx);
    const detail::PackedSequences& sequences = cache.sequences_;
    Workspace& workspace = context.workspace();
    const Workspace::Frame frame(workspace);
    const Index rows = sequences.rows(), width = output_width(0);
    auto errors = workspace.template tensor<T, 2>({rows, width});
    auto errors_below = workspace.template tensor<T, 2>({options_.num_layers > 1 ? rows : 0, width});
    sequences.pack(dy, errors, context);
    for (Index layer = options_.num_layers; layer-- > 0;) {
      TensorView<T, 2> dinput = errors_below;
      if (layer == 0)
        dinput = dx.data() ? workspace.template tensor<T, 2>({rows, options_.input_size}) : TensorView<T, 2>{};
      for (Index direction = 0; direction < directions(); ++direction) {
        backward_pass({layer, direction}, errors, states, dinput, cache, context);
      }
      if (layer == 0) {
        if (dx.data()) sequences.unpack<T>(dinput, dx, context);
      } else {
        const std::optional<DropoutPattern>& pattern = cache.layers_[static_cast<std::size_t>(layer - 1)].pattern;
        if (pattern) drop(sequences, *pattern, dinput, dinput, context);
        std::swap(errors, errors_below);
      }
    }
  }

  /// The states of a pass; without data where there are none.
  template <class U>
  static TensorView<U, 2> state_of(const TensorView<U, 3>& states, std::size_t number) {
    return states.data() ? states[static_cast<Index>(number)] : TensorView<U, 2>{};
  }
  /// The columns of a direction in a layer's output.
  template <class U>
  TensorView<U, 2> columns_of(Index direction, const TensorView<U, 2>& output) const {
    return output.slice(1, direction * options_.hidden_size, options_.hidden_size);
  }

  /// One pass over input (rows, in), to its columns of output (rows, directions · hidden).
  void run_pass(const Pass& pass, const detail::PackedSequences& sequences, const TensorView<const T, 2>& input,
                const TensorView<T, 2>& output, const RecurrentArguments<T>& arguments, PassCache* kept,
                Context& context) const {
    Workspace& workspace = context.workspace();
    const Workspace::Frame frame(workspace);
    const std::size_t number = index_of(pass);
    const Part& part = parts_[number];
    const Index hidden = options_.hidden_size, gates = cell_->gates * hidden;
    const Extents<2> saved_extents{sequences.rows(), cell_->saved * hidden}, state{sequences.batch(), hidden};
    const auto saved =
        kept ? kept->saved.template view<2>(saved_extents) : workspace.template tensor<T, 2>(saved_extents);
    const auto h = workspace.template tensor<T, 2>(state);
    const auto c = cell_->has_cell_state ? workspace.template tensor<T, 2>(state) : TensorView<T, 2>{};
    sequences.sort(state_of(arguments.h_0, number), h);
    if (kept) detail::copy_matrix<T>(h, kept->h_0.template view<2>(state));
    if (c.data()) {
      sequences.sort(state_of(arguments.c_0, number), c);
      if (kept) detail::copy_matrix<T>(c, kept->c_0.template view<2>(state));
    }

    detail::linear<T>(input.unsqueeze(), part.weights.weight_ih, part.packed_ih, saved.slice(1, 0, gates).unsqueeze(),
                      {.bias = detail::value_or_null(part.weights.bias_ih)}, context);
    const auto recurrent = workspace.template tensor<T, 2>({sequences.batch(), gates});
    const PackedMatrix<T>* packed = part.packed_hh.current(part.weights.weight_hh);
    const T* panels =
        packed ? packed->panels() : detail::step_panels(part.weights.weight_hh.matrix().transpose(0, 1), workspace);
    const detail::StepOrder order{sequences, pass.direction == 1};
    const TensorView<T, 2> y = columns_of(pass.direction, output);
    for (Index i = 0; i < sequences.steps(); ++i) {
      const Index t = order.step(i), first = sequences.first(t), n = sequences.count(t);
      detail::multiply<T>(
          {h.slice(0, 0, n), panels, recurrent.slice(0, 0, n), {.bias = detail::value_or_null(part.weights.bias_hh)}},
          context);
      detail::parallel_for_rows(context, n, kWorkOfUnit * gates, [&](Index begin, Index end, int) {
        for (Index r = begin; r < end; ++r) {
          cell_->forward({saved[first + r].data(), recurrent[r].data(), h[r].data(), c.data() ? c[r].data() : nullptr,
                          y[first + r].data(), hidden});
        }
      });
    }
    sequences.restore<T>(h, state_of(arguments.h_n, number));
    if (c.data()) sequences.restore<T>(c, state_of(arguments.c_n, number));
  }

  /// The gradients of run_pass() from errors (rows, directions · hidden), those of output. The first direction writes
  /// dinput (rows, in), the second one adds to it; without data it is not computed.
  void backward_pass(const Pass& pass, const TensorView<const T, 2>& errors, const RecurrentGradients<T>& states,
                     const TensorView<T, 2>& dinput, Cache& cache, Context& context) {
    Workspace& workspace = context.workspace();
    const Workspace::Frame frame(workspace);
    const std::size_t number = index_of(pass);
    const detail::PackedSequences& sequences = cache.sequences_;
    const Index rows = sequences.rows(), hidden = options_.hidden_size, gates = cell_->gates * hidden;
    RecurrentWeights<T>& weights = parts_[number].weights;
    LayerCache& layer = cache.layers_[static_cast<std::size_t>(pass.layer)];
    PassCache& kept = layer.passes[static_cast<std::size_t>(pass.direction)];
    const Extents<2> state{sequences.batch(), hidden};
    const TensorView<const T, 2> saved = kept.saved.template view<2>({rows, cell_->saved * hidden});
    const TensorView<const T, 2> h_0 = kept.h_0.template view<2>(state);
    const TensorView<const T, 2> y = columns_of(pass.direction, layer.output.template view<2>({rows, output_width(0)}));
    const TensorView<const T, 2> dy = columns_of(pass.direction, errors);
    const auto dgates = workspace.template tensor<T, 2>({rows, cell_->gradient_rows() * hidden});
    const auto h_before = workspace.template tensor<T, 2>({rows, hidden});
    const auto dh = workspace.template tensor<T, 2>(state);
    sequences.sort(state_of(states.dh_n, number), dh);
    TensorView<const T, 2> c_0;
    TensorView<T, 2> dc;
    if (cell_->has_cell_state) {
      c_0 = kept.c_0.template view<2>(state);
      dc = workspace.template tensor<T, 2>(state);
      sequences.sort(state_of(states.dc_n, number), dc);
    }

    const T* panels = detail::step_panels(weights.weight_hh.matrix(), workspace);
    const TensorView<const T, 2> dinput_gates = dgates.slice(1, 0, gates);
    const TensorView<const T, 2> drecurrent = dgates.slice(1, cell_->splits_gradients ? gates : 0, gates);
    const detail::StepOrder order{sequences, pass.direction == 1};
    for (Index i = sequences.steps(); i-- > 0;) {
      const Index t = order.step(i), first = sequences.first(t), n = sequences.count(t);
      const auto before = order.before(t);
      detail::parallel_for_rows(context, n, kWorkOfUnit * gates, [&](Index begin, Index end, int) {
        for (Index r = begin; r < end; ++r) {
          const bool has_before = r < before.rows;
          detail::copy_row<T>(has_before ? y[before.first + r] : h_0[r], h_before[first + r]);
          const T* c_before = nullptr;
          if (dc.data()) c_before = has_before ? &saved(before.first + r, (cell_->saved - 1) * hidden) : c_0[r].data();
          cell_->backward({saved[first + r].data(), h_before[first + r].data(), c_before, dy[first + r].data(),
                           dh[r].data(), dc.data() ? dc[r].data() : nullptr, dgates[first + r].data(), hidden});
        }
      });
      detail::multiply<T>(
          {drecurrent.slice(0, first, n), panels, dh.slice(0, 0, n), {.accumulate = cell_->blends_state}}, context);
    }
    sequences.restore<T>(dh, state_of(states.dh_0, number));
    if (dc.data()) sequences.restore<T>(dc, state_of(states.dc_0, number));

    detail::linear_backward_parameters<T>(input_of(pass.layer, cache).unsqueeze(), dinput_gates.unsqueeze(),
                                          weights.weight_ih.grad_matrix(), detail::grad_or_null(weights.bias_ih),
                                          context);
    detail::linear_backward_parameters<T>(h_before.unsqueeze(), drecurrent.unsqueeze(), weights.weight_hh.grad_matrix(),
                                          detail::grad_or_null(weights.bias_hh), context);
    if (!dinput.data()) return;
    const TensorView<T, 3> to = dinput.unsqueeze();
    detail::linear_backward_input<T>(dinput_gates.unsqueeze(), weights.weight_ih.matrix(),
                                     pass.direction == 0 ? TensorView<T, 3>{} : to, to, context);
  }

  /// The input of layer `layer` in the forward of this cache, (rows, in).
  TensorView<const T, 2> input_of(Index layer, Cache& cache) const {
    const Index rows = cache.sequences_.rows();
    if (layer == 0) return cache.x_.template view<2>({rows, options_.input_size});
    LayerCache& below = cache.layers_[static_cast<std::size_t>(layer - 1)];
    return (below.pattern ? below.dropped : below.output).template view<2>({rows, output_width(0)});
  }

  /// to = from / (1 - dropout) where the pattern keeps an element, 0 elsewhere; `to` may be `from`. An element is known
  /// by its sample, its step and its column, whatever the lengths of other sequences.
  void drop(const detail::PackedSequences& sequences, const DropoutPattern& pattern, const TensorView<const T, 2>& from,
            const TensorView<T, 2>& to, Context& context) const {
    const T factor = options_.dropout < 1 ? static_cast<T>(1 / (1 - options_.dropout)) : T(0);
    const Index width = from.extent(1);
    detail::parallel_for_rows(context, sequences.steps(), sequences.batch() * width, [&](Index begin, Index end, int) {
      for (Index t = begin; t < end; ++t) {
        for (Index r = 0; r < sequences.count(t); ++r) {
          const std::uint32_t word = pattern.query_word(static_cast<int>(sequences.sample(r)), 0, static_cast<int>(t));
          const T* x = from[sequences.first(t) + r].data();
          T* y = to[sequences.first(t) + r].data();
          for (Index e = 0; e < width; ++e) {
            y[e] = pattern.keeps(word, DropoutPattern::key_word(static_cast<int>(e))) ? x[e] * factor : T(0);
          }
        }
      }
    });
  }

  /// A unit's gate costs some exponentials, about as much as this many elements of other work.
  static constexpr Index kWorkOfUnit = 4;

  const detail::RecurrentCell<T>* cell_;
  RecurrentOptions options_;
  std::vector<Part> parts_;
};

/// The simple recurrent layer: h' = f(x·W_ihᵀ + b_ih + h·W_hhᵀ + b_hh), f = tanh or ReLU. See Recurrent.
template <LayerScalar T>
class RNN : public Recurrent<T> {
 public:
  /// Throws ShapeError for a width or a number of layers below 1, ValueError for a dropout outside [0, 1].
  explicit RNN(const RNNOptions& o)
      : Recurrent<T>(o.nonlinearity == Nonlinearity::Tanh ? detail::SimpleCell<T, false>::kind
                                                          : detail::SimpleCell<T, true>::kind,
                     {o.input_size, o.hidden_size, o.num_layers, o.bidirectional, o.bias, o.dropout}) {}
};

/// Long short-term memory: gates i, f, g, o in this order, h' = o·tanh(c'), c' = f·c + i·g. See Recurrent.
template <LayerScalar T>
class LSTM : public Recurrent<T> {
 public:
  /// Throws as RNN.
  explicit LSTM(const RecurrentOptions& options) : Recurrent<T>(detail::LstmCell<T>::kind, options) {}
};

/// Gated recurrent unit: gates r, z, n in this order, h' = (1 - z)·n + z·h, where r acts on h·W_hnᵀ + b_hn. See
/// Recurrent.
template <LayerScalar T>
class GRU : public Recurrent<T> {
 public:
  /// Throws as RNN.
  explicit GRU(const RecurrentOptions& options) : Recurrent<T>(detail::GruCell<T>::kind, options) {}
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
