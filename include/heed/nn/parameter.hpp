// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Parameter: a trainable value with its gradient; and the names of parameters.

#include <memory>
#include <set>

#include <heed/core/core.hpp>
#include <heed/core/quantized.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// A number that no other call of this process returns. Two values with the same number are copies of each other, so a
/// parameter assigned from another can't be mistaken for the one that a layer has packed.
inline std::uint64_t next_version() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace detail

/// A vector (n) or a matrix (rows, columns) of trainable numbers and, once a backward has run, their gradient.
///
/// Layers show them through visit(prefix, f) under PyTorch's names and in a stable order. A default-constructed
/// parameter does not exist (a Linear without bias has none) and is not visited. A vector starts with zeros; a matrix
/// must be initialized, loaded or written before it is read.
template <class T>
class Parameter {
 public:
  using Scalar = T;  ///< type of the numbers

  Parameter() = default;
  /// n zeros.
  explicit Parameter(Index n) : rank_(1), extents_{n, 1}, is_set_(true) { value_.template view<2>(extents_); }
  /// rows × columns numbers to be set. Weights are (out, in), as PyTorch stores them.
  Parameter(Index rows, Index columns) : rank_(2), extents_{rows, columns} { value_.template view<2>(extents_); }

  /// False for a default-constructed one, which has no numbers.
  bool exists() const { return rank_ > 0; }
  /// 1 for a vector, 2 for a matrix.
  int rank() const { return rank_; }
  /// (n, 1) for a vector.
  const Extents<2>& extents() const { return extents_; }
  /// The number of elements.
  Index size() const { return extents_[0] * extents_[1]; }

  /// All numbers in row-major order; the view ends with the parameter, and a temporary one has none. Throws ValueError
  /// after release(), and for a matrix that was never set.
  TensorView<const T, 1> value() const& {
    require_value();
    HEED_CHECK(is_set_, ValueError, "heed::Parameter: a weight of shape ", extents_,
               " is read before it was set; call initialize(random), load_parameters(), or write mutable_value()");
    return {value_.data(), {size()}};
  }
  /// The same as a matrix (rows, columns); a vector is (n, 1).
  TensorView<const T, 2> matrix() const& { return {value().data(), extents_}; }
  /// For writing. Packed copies that layers made of this value are dropped.
  TensorView<T, 1> mutable_value() & {
    require_value();
    is_set_ = true;
    version_ = detail::next_version();
    return {value_.data(), {size()}};
  }
  /// The same as a matrix (rows, columns).
  TensorView<T, 2> mutable_matrix() & { return {mutable_value().data(), extents_}; }
  /// layer.weight = W: copies a matrix of this shape, a vector of this length into a vector; Eigen of any storage
  /// order, a block, a map or an expression; a tensor or a view. W is (out, in): where another code computes x·W,
  /// assign W.transpose(). A square W can't be told from its transpose. Packed copies are dropped, and a released value
  /// is back. Throws ShapeError for another shape, ValueError for a parameter that does not exist.
  template <TensorLike X>
  Parameter& operator=(const X& x) & {
    static_assert(std::is_same_v<scalar_of_t<X>, T>,
                  "heed::Parameter: the numbers have another type than the parameter; convert them: W.cast<float>()");
    static_assert(rank_of_v<X> <= 2,
                  "heed::Parameter: a parameter is a vector or a matrix; give a tensor of that rank");
    HEED_CHECK(exists(), ValueError,
               "heed::Parameter: numbers are assigned to a parameter that the layer does not have; turn it on in the "
               "layer's options (a bias: .bias = true)");
    assign(matrix_of(x));
    return *this;
  }
  void value() const&& = delete;
  void matrix() const&& = delete;
  void mutable_value() && = delete;
  void mutable_matrix() && = delete;

  /// Changes with every mutable access and assignment, so that a layer knows whether its packed copy is still good.
  std::uint64_t version() const { return version_; }

  /// Frees the numbers; a layer that has packed them keeps working. Reading them afterwards throws ValueError.
  void release() {
    value_ = {};
    quantized_.reset();
  }
  /// True after release().
  bool released() const { return value_.size() != size() && !quantized_; }

  /// Replaces the numbers by a matrix in few bits: Linear, Embedding and attention layers multiply it in place.
  /// Copies of the parameter share it. value() and its kind throw until dequantize(). Throws ShapeError for a matrix of
  /// another shape.
  void store(QuantizedMatrix matrix) {
    HEED_CHECK((std::is_same_v<T, float>), ValueError, "heed::Parameter: only weights of float can be quantized");
    const Extents<2> extents{matrix.rows(), matrix.columns()};
    HEED_CHECK(rank_ == 2 && extents == extents_, ShapeError, "heed::Parameter: the weight is ", extents_,
               " but the quantized matrix is ", extents, "; weights are (out, in): give a matrix of that shape");
    quantized_ = std::make_shared<const QuantizedMatrix>(std::move(matrix));
    value_ = {};
    version_ = detail::next_version();
  }
  /// store() of the numbers in a format. Throws ShapeError for a vector, or a matrix that the format can't hold,
  /// ValueError for numbers that are not finite or not there.
  void quantize(WeightFormat format) {
    HEED_CHECK(rank_ == 2, ShapeError, "heed::Parameter: a vector ", extents_, " can't be quantized; matrices can");
    if constexpr (std::is_same_v<T, float>)
      store(QuantizedMatrix::quantize(matrix(), format));
    else
      detail::raise<ValueError>("heed::Parameter: only weights of float can be quantized");
  }
  /// Makes a quantized matrix numbers again; without one, nothing changes.
  void dequantize() {
    if (!quantized_) return;
    const std::shared_ptr<const QuantizedMatrix> from = std::move(quantized_);
    quantized_.reset();
    value_.template view<2>(extents_);
    if constexpr (std::is_same_v<T, float>) {
      const TensorView<T, 2> to = mutable_matrix();
      for (Index row = 0; row < extents_[0]; ++row) from->read_row(row, to[row].data());
    }
  }
  /// The quantized matrix; null without one.
  const QuantizedMatrix* quantized() const { return quantized_.get(); }

  /// The gradient, zero at first; the first call allocates it. Backwards add to it until zero_grad(). Taking it for
  /// writing, as backwards do, counts as having one; writing to a view from before zero_grad() does not.
  TensorView<T, 1> grad() & {
    has_grad_ = exists() && size() > 0;
    return {grad_.template view<2>(extents_).data(), {size()}};
  }
  /// For reading: empty unless has_grad().
  TensorView<const T, 1> grad() const& {
    return has_grad_ ? TensorView<const T, 1>(grad_.data(), {size()}) : kNotWanted;
  }
  /// The same as a matrix (rows, columns).
  TensorView<T, 2> grad_matrix() & { return {grad().data(), extents_}; }
  void grad() const&& = delete;
  void grad_matrix() && = delete;
  /// True once a backward, or grad(), has taken the gradient for writing since zero_grad(). Optimizers leave the other
  /// parameters alone.
  bool has_grad() const { return has_grad_; }
  /// Sets the gradient to zero, for the next backward to add to. Until then there is none.
  void zero_grad() {
    std::fill_n(grad_.data(), grad_.size(), T(0));
    has_grad_ = false;
  }

 private:
  using Matrix = typename TensorView<T, 2>::Matrix;

  /// A copy, so that x may read this parameter: weight = weight.matrix().transpose(0, 1).
  template <class X>
  static Matrix matrix_of(const X& x) {
    if constexpr (EigenDense<X>)
      return x.derived().matrix();
    else if constexpr (rank_of_v<X> == 2)
      return TensorView<const T, 2>(view_of(x)).matrix();
    else
      return TensorView<const T, 1>(view_of(x)).unsqueeze().matrix();
  }
  void assign(const Matrix& numbers) {
    const Index rows = numbers.rows(), columns = numbers.cols();
    if (rank_ == 1) {
      HEED_CHECK((rows == 1 || columns == 1) && numbers.size() == size(), ShapeError, "heed::Parameter: a vector of ",
                 size(), " numbers can't take a matrix ", Extents<2>{rows, columns}, "; give ", size(), " numbers");
    } else {
      HEED_CHECK((Extents<2>{rows, columns} == extents_), ShapeError, "heed::Parameter: the weight is ", extents_,
                 " but the matrix is ", Extents<2>{rows, columns},
                 Extents<2>{columns, rows} == extents_
                     ? "; its transpose fits: weights are (out, in), assign W.transpose()"
                     : "; weights are (out, in): give a matrix of that shape");
    }
    value_.template view<2>(extents_);
    quantized_.reset();
    const TensorView<T, 1> to = mutable_value();
    std::copy_n(numbers.data(), numbers.size(), to.data());
  }
  void require_value() const {
    HEED_CHECK(!quantized_, ValueError, "heed::Parameter: the value of shape ", extents_, " is stored as ",
               to_string(quantized_->format()), "; read it with quantized(), or call dequantize() to train or save it");
    HEED_CHECK(!released(), ValueError, "heed::Parameter: the value of shape ", extents_,
               " was released after packing; keep it (don't call release) to read, train or save it");
  }

  int rank_ = 0;
  Extents<2> extents_{0, 0};
  bool is_set_ = false, has_grad_ = false;
  detail::CopiedBuffer<T> value_, grad_;
  std::shared_ptr<const QuantizedMatrix> quantized_;
  std::uint64_t version_ = detail::next_version();
};

namespace detail {

/// "prefix.name", or "name" alone.
inline std::string join(std::string_view prefix, std::string_view name) {
  std::string path(prefix);
  if (!path.empty() && !name.empty()) path += '.';
  return path += name;
}
inline std::string join(std::string_view prefix, std::string_view name, int number) {
  return join(join(prefix, name), std::to_string(number));
}

/// The numbers of a parameter, and its gradient; null for one that does not exist.
template <class T>
const T* value_or_null(const Parameter<T>& parameter) {
  return parameter.exists() ? parameter.value().data() : nullptr;
}
template <class T>
T* grad_or_null(Parameter<T>& parameter) {
  return parameter.exists() ? parameter.grad().data() : nullptr;
}

/// f(name, parameter) for a parameter that exists.
template <class P, class F>
void visit_parameter(std::string_view prefix, std::string_view name, P& parameter, F& f) {
  if (parameter.exists()) f(std::string_view(join(prefix, name)), parameter);
}

}  // namespace detail

/// The number of trainable numbers of a layer or a model. A parameter that is visited under several names counts once.
template <class Model>
Index parameter_count(const Model& model) {
  Index count = 0;
  std::set<const void*> seen;
  auto add = [&](std::string_view, const auto& parameter) {
    if (seen.insert(&parameter).second) count += parameter.size();
  };
  model.visit("", add);
  return count;
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
