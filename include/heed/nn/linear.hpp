// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Linear: y = x·Wᵀ + b, and what the larger layers share of it: rows of a weight with their packed copy, what may
/// follow the product in the same pass over y, and the gradients.

#include <algorithm>
#include <cstdint>
#include <string_view>

#include <heed/core/activation.hpp>
#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/core/gemm.hpp>
#include <heed/core/random.hpp>
#include <heed/core/tensor.hpp>
#include <heed/core/workspace.hpp>
#include <heed/nn/backward.hpp>
#include <heed/nn/init.hpp>
#include <heed/nn/layer.hpp>
#include <heed/nn/parameter.hpp>

HEED_NAMESPACE_BEGIN

struct PackOptions {
  bool release = false;  ///< free the raw weights that were packed: they can then not be read, trained or saved
};

/// What follows the product x·Wᵀ + b, in this order.
template <class T>
struct LinearEpilogue {
  Activation activation = Activation::None;
  TensorView<const T, 3> residual{};  ///< (B, L, out), added at last; a view without data adds nothing
};

namespace detail {

/// Rows [first, first + rows) of a weight (out, in), packed, with the version of the weight they were packed from.
template <class T>
class PackedRows {
 public:
  /// Packs anew unless the copy is current. Throws ValueError when the weight has been released.
  void pack(const Parameter<T>& weight, Index first, Index rows) {
    if (current(weight)) return;
    matrix_ = PackedMatrix<T>::pack(weight.matrix().slice(0, first, rows).transpose(0, 1));
    version_ = weight.version();
  }
  void drop() { matrix_ = {}; }
  /// Null when nothing is packed or the weight may have changed since.
  const PackedMatrix<T>* current(const Parameter<T>& weight) const {
    return !matrix_.empty() && version_ == weight.version() ? &matrix_ : nullptr;
  }

 private:
  PackedMatrix<T> matrix_;
  std::uint64_t version_ = 0;
};

/// What x (B, L, in) is multiplied with: a weight (out, in), read where it lies unless there is a packed copy, and a
/// bias (out), null for none.
template <class T>
struct LinearOperand {
  TensorView<const T, 2> weight{};
  const PackedMatrix<T>* packed = nullptr;
  const T* bias = nullptr;
};

/// The numbers of a bias from `first` on; null for a bias that does not exist.
template <class T>
const T* bias_from(const Parameter<T>& bias, Index first = 0) {
  return bias.exists() ? bias.value().data() + first : nullptr;
}

/// Whether x (B, L, E) is also (B·L, E): its samples follow each other at the distance of their rows.
template <class T>
bool has_one_row_stride(const TensorView<T, 3>& x) {
  return x.extent(0) <= 1 || x.extent(1) <= 1 || x.stride(0) == x.extent(1) * x.stride(1);
}
template <class T>
TensorView<T, 2> flatten_rows(const TensorView<T, 3>& x) {
  const Index row_stride = x.extent(1) > 1 ? x.stride(1) : x.stride(0);
  return {x.data(), {x.extent(0) * x.extent(1), x.extent(2)}, {row_stride, x.stride(2)}};
}

/// y (B, L, out) = activation(x·Wᵀ + b) + residual: one product over all rows, or one a sample where strides ask for
/// it.
template <class T>
void linear(const TensorView<const T, 3>& x, const LinearOperand<T>& operand, const TensorView<T, 3>& y,
            const LinearEpilogue<T>& then, Context& context) {
  const auto multiply = [&](TensorView<const T, 2> rows, TensorView<T, 2> to, TensorView<const T, 2> residual) {
    const Epilogue<T> epilogue{operand.bias, then.activation, residual, false};
    if (operand.packed)
      gemm<T>(rows, *operand.packed, to, epilogue, context);
    else
      gemm<T>(rows, operand.weight.transpose(0, 1), to, epilogue, context);
  };
  if (y.empty()) return;
  const bool adds = then.residual.data() != nullptr;
  if (has_one_row_stride(x) && has_one_row_stride(y) && (!adds || has_one_row_stride(then.residual))) {
    multiply(flatten_rows(x), flatten_rows(y), adds ? flatten_rows(then.residual) : TensorView<const T, 2>{});
  } else {
    for (Index b = 0; b < x.extent(0); ++b) multiply(x[b], y[b], adds ? then.residual[b] : TensorView<const T, 2>{});
  }
}

/// y = activation(y) + residual, in place: what an epilogue does, for a y that an observer had to see before.
template <class T>
void apply_epilogue(const TensorView<T, 3>& y, const LinearEpilogue<T>& then, Context& context) {
  transform_rows<T>(y, y, context, [&](Index b, Index l, const T*, T* row) {
    activate(then.activation, row, y.extent(2));
    if (!then.residual.data()) return;
    for (Index e = 0; e < y.extent(2); ++e) row[e] += then.residual(b, l, e);
  });
}

/// The residual of a layer: it must fit y and lie elsewhere. Without data it is fine.
template <class T>
void check_residual(std::string_view name, const TensorView<const T, 3>& residual, const TensorView<T, 3>& y) {
  if (!residual.data()) return;
  HEED_CHECK(residual.extents() == y.extents(), ShapeError, name, ": residual ", residual.extents(), " does not fit y ",
             y.extents(), "; they are added element by element");
  HEED_CHECK(!may_overlap(residual, y), ValueError, name,
             ": y shares memory with the residual; give it memory of its own");
}

/// x (B, L, E) as (B·L, E): where it lies, or a copy in the workspace when its samples don't follow each other.
template <class T>
TensorView<const T, 2> all_rows(const TensorView<const T, 3>& x, Workspace& workspace) {
  if (has_one_row_stride(x)) return flatten_rows(x);
  const TensorView<T, 3> copy = workspace.template tensor<T, 3>(x.extents());
  for (Index b = 0; b < x.extent(0); ++b) copy_matrix<T>(x[b], copy[b]);
  return flatten_rows(TensorView<const T, 3>(copy));
}

/// What linear() did to x, undone for its parameters: dweight (out, in) += dyᵀ·x, and dbias (out), null for none, +=
/// the sum of the rows of dy. One product over all rows whatever the strides, so that they change no bit.
template <class T>
void linear_backward_parameters(const TensorView<const T, 3>& x, const TensorView<const T, 3>& dy,
                                const TensorView<T, 2>& dweight, T* dbias, Context& context) {
  const Workspace::Frame frame(context.workspace());
  const TensorView<const T, 2> errors = all_rows(dy, context.workspace());
  gemm<T>(errors.transpose(0, 1), all_rows(x, context.workspace()), dweight, {.accumulate = true}, context);
  if (dbias) add_column_sums(dy, dbias, context);
}

/// dx (B, L, in) = dy (B, L, out) · weight (out, in) + residual; a residual without data adds nothing, one that is dx
/// itself adds to it.
template <class T>
void linear_backward_input(const TensorView<const T, 3>& dy, const TensorView<const T, 2>& weight,
                           const TensorView<const T, 3>& residual, const TensorView<T, 3>& dx, Context& context) {
  if (dx.empty()) return;
  const bool accumulates = residual.data() == dx.data();
  const bool adds = residual.data() && !accumulates;
  const auto multiply = [&](TensorView<const T, 2> rows, TensorView<T, 2> to, TensorView<const T, 2> more) {
    gemm<T>(rows, weight, to, {.residual = more, .accumulate = accumulates}, context);
  };
  if (has_one_row_stride(dy) && has_one_row_stride(dx) && (!adds || has_one_row_stride(residual))) {
    multiply(flatten_rows(dy), flatten_rows(dx), adds ? flatten_rows(residual) : TensorView<const T, 2>{});
  } else {
    for (Index b = 0; b < dy.extent(0); ++b) multiply(dy[b], dx[b], adds ? residual[b] : TensorView<const T, 2>{});
  }
}

/// The generator of a parameter's starting values; the name keeps the parameters of one model apart.
inline Philox generator(std::uint64_t seed, std::string_view prefix, std::string_view name) {
  return Philox(seed, init::stream(join(prefix, name)));
}

}  // namespace detail

struct LinearOptions {
  Index in_features;   ///< width of x
  Index out_features;  ///< width of y
  bool bias = true;    ///< add `bias`
};

/// y = x·weightᵀ + bias; x (B, L, in), y (B, L, out), weight (out, in), bias (out).
/// Starts with zeros: load weights or call initialize().
template <class T>
class Linear : public detail::UnaryLayer<Linear<T>> {
 public:
  /// Throws ShapeError for a width below 1.
  explicit Linear(const LinearOptions& options) : options_(options) {
    HEED_CHECK(options.in_features >= 1 && options.out_features >= 1, ShapeError, kName,
               ": in_features = ", options.in_features, " and out_features = ", options.out_features,
               " must be at least 1");
    weight_ = Parameter<T>(options.out_features, options.in_features);
    if (options.bias) bias_ = Parameter<T>(options.out_features);
  }

  /// What backward() needs of a forward: its x, borrowed.
  struct Cache {
    TensorView<const T, 3> x{};
  };

  const LinearOptions& options() const { return options_; }
  Parameter<T>& weight() { return weight_; }
  const Parameter<T>& weight() const { return weight_; }
  Parameter<T>& bias() { return bias_; }
  const Parameter<T>& bias() const { return bias_; }
  Index output_width(Index) const { return options_.out_features; }

  template <class F>
  void visit(std::string_view prefix, F&& f) {
    visit_parameters(*this, prefix, f);
  }
  template <class F>
  void visit(std::string_view prefix, F&& f) const {
    visit_parameters(*this, prefix, f);
  }

  /// Uniform numbers within ±1/√in, in weight and bias, as PyTorch's Linear starts. `name` is the layer's name in its
  /// model: layers of one model need different ones.
  void initialize(std::uint64_t seed, std::string_view name = "") {
    init::kaiming_uniform(weight_, detail::generator(seed, name, "weight"), {.gain = 1 / detail::kSqrt3});
    const double bound = detail::inverse_root_fan(options_.in_features);
    if (bias_.exists()) init::uniform(bias_, detail::generator(seed, name, "bias"), -bound, bound);
  }

  /// Lays the weight out as the kernel reads it: forward gives the same bits in less time. Mutable access to the weight
  /// drops the copy. Throws ValueError when the weight was released and changed since.
  void pack(const PackOptions& options = {}) {
    packed_.pack(weight_, 0, options_.out_features);
    if (options.release) weight_.release();
  }
  /// Whether forward uses a packed copy.
  bool is_packed() const { return packed_.current(weight_) != nullptr; }

  /// Throws ShapeError unless x is (B, L, in) and y (B, L, out), ValueError when they overlap.
  void forward(TensorView<const T, 3> x, TensorView<T, 3> y, Context& context) const { forward(x, {}, y, context); }
  /// y = activation(x·weightᵀ + bias) + residual in one pass. An observer is shown x·weightᵀ + bias, which then takes
  /// two passes, to the same bits. Throws ShapeError also for a residual that is not (B, L, out), ValueError for one
  /// that overlaps y.
  void forward(TensorView<const T, 3> x, const LinearEpilogue<T>& then, TensorView<T, 3> y, Context& context) const {
    detail::check_layer_shapes(kName, x, y, options_.in_features, options_.out_features);
    detail::check_residual(kName, then.residual, y);
    detail::LinearOperand<T> operand;
    operand.packed = packed_.current(weight_);
    if (!operand.packed) operand.weight = weight_.matrix();
    operand.bias = detail::bias_from(bias_);
    if (!context.observer) return detail::linear(x, operand, y, then, context);
    detail::linear(x, operand, y, {}, context);
    context.observe(y);
    detail::apply_epilogue(y, then, context);
  }
  /// forward() that a backward() can follow; x must live, unchanged, until then.
  void forward(TensorView<const T, 3> x, TensorView<T, 3> y, Cache& cache, Context& context) const {
    forward(x, {}, y, context);
    cache.x = x;
  }

  /// weight.grad += dyᵀ·x, bias.grad += the sum of the rows of dy, dx = dy·weight; a dx without data is not computed.
  /// Throws ShapeError when dy or dx don't fit the forward, ValueError when dx overlaps dy or x or the weight was
  /// released.
  void backward(TensorView<const T, 3> dy, TensorView<T, 3> dx, const Cache& cache, Context& context) {
    backward_residual(dy, {}, dx, cache, context);
  }
  /// The same with dx = residual + dy·weight, in one pass; the residual may be dx.
  void backward_residual(TensorView<const T, 3> dy, TensorView<const T, 3> residual, TensorView<T, 3> dx,
                         const Cache& cache, Context& context) {
    detail::check_backward(kName, cache.x, {cache.x.extent(0), cache.x.extent(1), options_.out_features}, dy, dx);
    detail::check_backward_residual(kName, residual, dx);
    detail::linear_backward_parameters(cache.x, dy, weight_.grad_matrix(),
                                       bias_.exists() ? bias_.grad().data() : nullptr, context);
    if (dx.data()) detail::linear_backward_input(dy, weight_.matrix(), residual, dx, context);
  }

 private:
  static constexpr std::string_view kName = "heed::Linear";

  template <class Self, class F>
  static void visit_parameters(Self& self, std::string_view prefix, F& f) {
    detail::visit_parameter(prefix, "weight", self.weight_, f);
    detail::visit_parameter(prefix, "bias", self.bias_, f);
  }

  LinearOptions options_;
  Parameter<T> weight_, bias_;
  detail::PackedRows<T> packed_;
};

HEED_NAMESPACE_END
