// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Linear: y = x·Wᵀ + b; and the products, packed copies and gradients that larger layers share with it.

#include <heed/core/activation.hpp>
#include <heed/core/gemm.hpp>
#include <heed/nn/layer.hpp>
#include <heed/nn/rows.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// Rows [first, first + rows) of a weight (out, in), packed, and the version of the weight that they were packed from.
template <class T>
class PackedRows {
 public:
  /// Packs anew unless the copy is current. Throws ValueError when the weight has been released.
  void pack(const Parameter<T>& weight, Index first, Index rows) {
    if (current(weight) || weight.quantized()) return;
    matrix_ = PackedMatrix<T>::pack(weight.matrix().slice(0, first, rows).transpose(0, 1));
    version_ = weight.version();
  }
  /// Null when nothing is packed or the weight may have changed since.
  const PackedMatrix<T>* current(const Parameter<T>& weight) const {
    return !matrix_.empty() && version_ == weight.version() ? &matrix_ : nullptr;
  }

 private:
  PackedMatrix<T> matrix_;
  std::uint64_t version_ = 0;
};

/// True when x (B, L, E) can be read as (B·L, E): samples follow each other at the distance of their rows.
template <class T>
bool has_one_row_stride(const TensorView<T, 3>& x) {
  return x.extent(0) <= 1 || x.extent(1) <= 1 || x.stride(0) == x.extent(1) * x.stride(1);
}
template <class T>
TensorView<T, 2> flatten_rows(const TensorView<T, 3>& x) {
  const Index row_stride = x.extent(1) > 1 ? x.stride(1) : x.stride(0);
  return {x.data(), {x.extent(0) * x.extent(1), x.extent(2)}, {row_stride, x.stride(2)}};
}

/// y (B, L, out) = x·Wᵀ with the epilogue: one product over all rows, or one for each sample where strides require it.
/// `multiply(x, y, epilogue)` computes the product of rows.
template <class T, class Multiply>
void multiply_rows(const TensorView<const T, 3>& x, const TensorView<T, 3>& y, const Epilogue<T, 3>& epilogue,
                   Multiply&& multiply) {
  if (y.empty()) return;
  const TensorView<const T, 3>& residual = epilogue.residual;
  Epilogue<T> rows{epilogue.bias, epilogue.activation, {}, epilogue.accumulate};
  if (has_one_row_stride(x) && has_one_row_stride(y) && (!residual.data() || has_one_row_stride(residual))) {
    if (residual.data()) rows.residual = flatten_rows(residual);
    multiply(flatten_rows(x), flatten_rows(y), rows);
  } else {
    for (Index b = 0; b < x.extent(0); ++b) {
      if (residual.data()) rows.residual = residual[b];
      multiply(x[b], y[b], rows);
    }
  }
}
/// The product with a weight (out, in) where it is, or with its packed copy.
template <class T>
void linear(const TensorView<const T, 3>& x, const TensorView<const T, 2>& weight, const TensorView<T, 3>& y,
            const Epilogue<T, 3>& epilogue, Context& context) {
  multiply_rows<T>(x, y, epilogue, [&](const auto& from, const auto& to, const Epilogue<T>& rows) {
    gemm<T>(from, weight.transpose(0, 1), to, rows, context);
  });
}
template <class T>
void linear(const TensorView<const T, 3>& x, const PackedPanels<T>& weight, const TensorView<T, 3>& y,
            const Epilogue<T, 3>& epilogue, Context& context) {
  multiply_rows<T>(x, y, epilogue, [&](const auto& from, const auto& to, const Epilogue<T>& rows) {
    gemm<T>(from, weight, to, rows, context);
  });
}
inline void linear(const TensorView<const float, 3>& x, const QuantizedPanels& weight, const TensorView<float, 3>& y,
                   const Epilogue<float, 3>& epilogue, Context& context) {
  multiply_rows<float>(x, y, epilogue, [&](const auto& from, const auto& to, const Epilogue<float>& rows) {
    gemm(from, weight, to, rows, context);
  });
}
/// The product with rows [first, first + count) of a weight where they are, as numbers or in few bits.
template <class T>
void linear(const TensorView<const T, 3>& x, const Parameter<T>& weight, Index first, Index count,
            const TensorView<T, 3>& y, const Epilogue<T, 3>& epilogue, Context& context) {
  if constexpr (std::is_same_v<T, float>) {
    if (const QuantizedMatrix* quantized = weight.quantized()) {
      if (QuantizedMatrix::can_slice_at(first)) return linear(x, quantized->panels(first, count), y, epilogue, context);
      const Workspace::Frame frame(context.workspace());
      const TensorView<T, 2> rows = context.workspace().template tensor<T, 2>({count, quantized->columns()});
      for (Index row = 0; row < count; ++row) quantized->read_row(first + row, rows[row].data());
      return linear<T>(x, rows, y, epilogue, context);
    }
  }
  linear<T>(x, weight.matrix().slice(0, first, count), y, epilogue, context);
}
/// The product with the packed copy where it is current, else with the weight.
template <class T>
void linear(const TensorView<const T, 3>& x, const Parameter<T>& weight, const PackedRows<T>& packed,
            const TensorView<T, 3>& y, const Epilogue<T, 3>& epilogue, Context& context) {
  if (const PackedMatrix<T>* panels = packed.current(weight))
    linear<T>(x, *panels, y, epilogue, context);
  else
    linear<T>(x, weight, 0, weight.extents()[0], y, epilogue, context);
}

/// y = activation(y) + residual in place: an epilogue after an observer has seen y.
template <class T>
void apply_epilogue(const TensorView<T, 3>& y, const Epilogue<T, 3>& epilogue, Context& context) {
  transform_rows<T>(y, y, context, [&](Index b, Index l, const T*, T* row) {
    activate(epilogue.activation, row, y.extent(2));
    if (!epilogue.residual.data()) return;
    for (Index e = 0; e < y.extent(2); ++e) row[e] += epilogue.residual(b, l, e);
  });
}

/// A residual must fit y and have memory of its own; one without data adds nothing.
template <class T>
void check_residual(std::string_view name, const TensorView<const T, 3>& residual, const TensorView<T, 3>& y) {
  if (!residual.data()) return;
  HEED_CHECK(residual.extents() == y.extents(), ShapeError, name, ": residual ", residual.extents(), " does not fit y ",
             y.extents(), "; they are added element by element");
  HEED_CHECK(!may_overlap(residual, y), ValueError, name,
             ": y shares memory with the residual; it needs separate memory");
}

/// x (B, L, E) as (B·L, E): where it is, or a copy in the workspace when its samples don't follow each other.
template <class T>
TensorView<const T, 2> all_rows(const TensorView<const T, 3>& x, Workspace& workspace) {
  if (has_one_row_stride(x)) return flatten_rows(x);
  const TensorView<T, 3> copy = workspace.template tensor<T, 3>(x.extents());
  for (Index b = 0; b < x.extent(0); ++b) copy_matrix<T>(x[b], copy[b]);
  return flatten_rows(TensorView<const T, 3>(copy));
}

/// Parameter gradients of linear(): dweight (out, in) += dyᵀ·x, and dbias (out), null for none, += the sum of the rows
/// of dy. One product over all rows whatever the strides, so that they change no bit.
template <class T>
void linear_backward_parameters(const TensorView<const T, 3>& x, const TensorView<const T, 3>& dy,
                                const TensorView<T, 2>& dweight, T* dbias, Context& context) {
  const Workspace::Frame frame(context.workspace());
  const TensorView<const T, 2> errors = all_rows(dy, context.workspace());
  gemm<T>(errors.transpose(0, 1), all_rows(x, context.workspace()), dweight, {.accumulate = true}, context);
  if (dbias) add_column_sums(dy, dbias, context);
}

/// Input gradient of linear(): dx (B, L, in) = dy (B, L, out) · weight (out, in) + residual; a residual without data
/// adds nothing, one that is dx itself adds to it.
template <class T>
void linear_backward_input(const TensorView<const T, 3>& dy, const TensorView<const T, 2>& weight,
                           const TensorView<const T, 3>& residual, const TensorView<T, 3>& dx, Context& context) {
  const bool accumulates = residual.data() && residual.data() == dx.data();
  const Epilogue<T, 3> epilogue{.residual = accumulates ? TensorView<const T, 3>{} : residual,
                                .accumulate = accumulates};
  multiply_rows<T>(dy, dx, epilogue, [&](const auto& from, const auto& to, const Epilogue<T>& rows) {
    gemm<T>(from, weight, to, rows, context);
  });
}

}  // namespace detail

/// Options of Linear.
struct LinearOptions {
  Index in_features = 0;   ///< width of x
  Index out_features = 0;  ///< width of y
  bool bias = true;        ///< add `bias`
};

/// y = x·weightᵀ + bias; x (B, L, in), y (B, L, out), weight (out, in), bias (out). Load weights or call initialize()
/// before the first use.
///
///   heed::Linear<float> layer(64, 10);
///   layer.initialize(random);
///   Eigen::MatrixXf y = layer(x);
template <LayerScalar T>
class Linear : public Layer<Linear<T>> {
 public:
  using Scalar = T;  ///< type of parameters and values
  using Layer<Linear>::forward;

  /// Throws ShapeError for a width below 1.
  explicit Linear(const LinearOptions& options) : options_(options) {
    HEED_CHECK(options.in_features >= 1 && options.out_features >= 1, ShapeError, name(),
               ": in_features = ", options.in_features, " and out_features = ", options.out_features,
               " must be at least 1");
    weight = Parameter<T>(options.out_features, options.in_features);
    if (options.bias) bias = Parameter<T>(options.out_features);
  }
  /// @overload
  explicit Linear(Index in_features, Index out_features, bool with_bias = true)
      : Linear(LinearOptions{in_features, out_features, with_bias}) {}

  /// Memory of a forward that backward() needs: its x, borrowed.
  struct Cache {
    TensorView<const T, 3> x{};
  };

  Parameter<T> weight;  ///< (out, in)
  Parameter<T> bias;    ///< (out); does not exist without `bias`

  /// The list of members, for Module.
  static void members(auto&& f) {
    f("weight", &Linear::weight);
    f("bias", &Linear::bias);
  }
  static constexpr std::string_view name() { return "heed::Linear"; }  ///< the layer in error texts
  const LinearOptions& options() const { return options_; }            ///< as constructed
  Index input_width(Index) const { return options_.in_features; }      ///< of x
  Index output_width(Index) const { return options_.out_features; }    ///< of y

  /// Uniform numbers within ±1/√in, in weight and bias, as PyTorch's Linear starts.
  void initialize(Random& random, std::string_view name = "") {
    init::kaiming_uniform(weight, random(detail::join(name, "weight")), {.gain = 1 / detail::kSqrt3});
    const double bound = detail::inverse_root_fan(options_.in_features);
    if (bias.exists()) init::uniform(bias, random(detail::join(name, "bias")), -bound, bound);
  }

  /// See Module::pack().
  void pack(const PackOptions& options = {}) {
    packed_.pack(weight, 0, options_.out_features);
    if (options.release && !weight.quantized()) weight.release();
  }
  /// See Module::quantize().
  void quantize(WeightFormat format) { weight.quantize(format); }
  /// True when forward uses a packed copy.
  bool is_packed() const { return packed_.current(weight) != nullptr; }

  /// y = activation(x·weightᵀ + bias) + residual in one pass; with accumulate, what y holds is added before the
  /// activation. An observer is shown x·weightᵀ + bias, which then takes two passes, to the same bits. Throws as
  /// forward(x, y, context) does, ShapeError also for a residual that is not (B, L, out), ValueError for one that
  /// overlaps y and for an epilogue with a bias.
  template <TensorLike X, TensorLike Y>
  void forward(const X& x, const Epilogue<T, 3>& epilogue, Y&& y, Context& context) const {
    const Workspace::Frame frame(context.workspace());
    const auto in = detail::read_as<3>(x, context.workspace());
    const auto out = detail::write_as<3>(y);
    detail::check_layer_shapes(name(), in, out, options_.in_features, options_.out_features);
    detail::check_residual(name(), epilogue.residual, out);
    HEED_CHECK(!epilogue.bias, ValueError, name(), ": epilogue.bias is given, but the layer adds `bias`; leave it out");
    run(in, epilogue, out, context);
  }

  /// The layer without checks, for layers made of it.
  void run(const TensorView<const T, 3>& x, const TensorView<T, 3>& y, Cache* cache, Context& context) const {
    run(x, {}, y, context);
    if (cache) cache->x = x;
  }
  /// @overload
  void run(const TensorView<const T, 3>& x, Epilogue<T, 3> epilogue, const TensorView<T, 3>& y,
           Context& context) const {
    epilogue.bias = detail::value_or_null(bias);
    if (!context.observer) return detail::linear(x, weight, packed_, y, epilogue, context);
    detail::linear(x, weight, packed_, y, {.bias = epilogue.bias, .accumulate = epilogue.accumulate}, context);
    context.observe(y);
    detail::apply_epilogue(y, epilogue, context);
  }
  /// weight.grad += dyᵀ·x, bias.grad += the sum of the rows of dy, dx = dy·weight + residual; the residual may be dx.
  void run_backward(const TensorView<const T, 3>& dy, const TensorView<T, 3>& dx, const Cache& cache,
                    Context& context) {
    run_backward(dy, cache.x, {}, dx, context);
  }
  /// The gradients, without checks, for layers made of it.
  void run_backward(const TensorView<const T, 3>& dy, const TensorView<const T, 3>& x,
                    const TensorView<const T, 3>& residual, const TensorView<T, 3>& dx, Context& context) {
    detail::linear_backward_parameters(x, dy, weight.grad_matrix(), detail::grad_or_null(bias), context);
    if (dx.data()) detail::linear_backward_input(dy, weight.matrix(), residual, dx, context);
  }

 private:
  LinearOptions options_;
  detail::PackedRows<T> packed_;
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
