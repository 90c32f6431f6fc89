// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// QuantizedMatrix: a weight in few bits, multiplied in place.

#include <heed/core/gemm.hpp>

HEED_NAMESPACE_BEGIN

/// A weight (rows, columns) = (out, in) in few bits, laid out for gemm. It holds the numbers of the blocks that it was
/// made of exactly; products with it have the same bits as those with dequantize(). Activations stay float.
///
///   layer.weight.store(heed::QuantizedMatrix::quantize(layer.weight.matrix(), heed::WeightFormat::Q8_0));
class QuantizedMatrix {
 public:
  /// rows × columns zeros. Throws ShapeError for extents below 1, or columns that are no multiple of 32 in a block
  /// format.
  QuantizedMatrix(WeightFormat format, Index rows, Index columns) : format_(format), rows_(rows), columns_(columns) {
    const Index block = detail::facts_of(format).block;
    HEED_CHECK(rows >= 1 && columns >= 1 && columns % block == 0, ShapeError, kName, ": a matrix (", rows, ", ",
               columns, ") can't be ", to_string(format), ": it needs rows, and a multiple of ", block, " columns");
    panels_.view<2>({detail::panel_count<float>(rows), detail::panel_bytes(format, columns)});
  }
  /// From numbers (rows, columns). Throws ShapeError as the constructor does, ValueError for one that is not finite, or
  /// too large for the factor of its block, which is a half.
  static QuantizedMatrix quantize(const TensorView<const float, 2>& numbers, WeightFormat format) {
    QuantizedMatrix result(format, numbers.extent(0), numbers.extent(1));
    result.for_each_block([&](Index row, Index first, Index count, std::byte* group, Index column) {
      float x[detail::kBlock];
      for (Index i = 0; i < count; ++i) {
        x[i] = numbers(row, first + i);
        HEED_CHECK(detail::is_finite(x[i]), ValueError, kName, ": weight (", row, ", ", first + i, ") is ", x[i],
                   ", which can't be quantized");
      }
      const detail::WeightBlock block = detail::quantize_block(format, x, count);
      for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
        HEED_CHECK(detail::is_finite(detail::value_of(format, block, i)), ValueError, kName, ": weight (", row, ", ",
                   first, ") = ", x[0], " is among numbers too large for ", to_string(format));
      }
      detail::write_group(format, block, group, column);
    });
    return result;
  }

  WeightFormat format() const { return format_; }        ///< of all numbers
  Index rows() const { return rows_; }                   ///< out
  Index columns() const { return columns_; }             ///< in
  std::size_t bytes() const { return panels_.bytes(); }  ///< memory held

  /// Writes `count` rows from `first` on, from blocks as files hold them, row after row. Unchecked.
  void set_blocks(Index first, Index count, const std::byte* from) {
    const Index row_bytes = bytes_of_row(format_, columns_), block_bytes = detail::facts_of(format_).block_bytes;
    const Index per_block = detail::facts_of(format_).block;
    for (Index row = first; row < first + count; ++row, from += row_bytes) {
      for (Index k = 0; k < columns_; k += detail::kBlock) {
        detail::write_group(
            format_,
            detail::read_block(format_, from + k / per_block * block_bytes, std::min(detail::kBlock, columns_ - k)),
            group(row, k), row % kWidth);
      }
    }
  }
  /// The numbers of a row. Unchecked.
  void read_row(Index row, float* to) const {
    for (Index k = 0; k < columns_; k += detail::kBlock) {
      const detail::WeightBlock block = detail::read_group(format_, group(row, k), row % kWidth);
      const Index count = std::min(detail::kBlock, columns_ - k);
      for (Index i = 0; i < count; ++i) to[k + i] = detail::value_of(format_, block, static_cast<std::size_t>(i));
    }
  }
  /// All numbers.
  Tensor<float, 2> dequantize() const {
    Tensor<float, 2> numbers(rows_, columns_);
    for (Index row = 0; row < rows_; ++row) read_row(row, &numbers(row, 0));
    return numbers;
  }

  /// True when panels() can start at this row: panels are read whole.
  static bool can_slice_at(Index row) { return row % kWidth == 0; }
  /// Rows first, ..., first + count - 1 as columns of B, where can_slice_at(first); unchecked.
  QuantizedPanels panels(Index first, Index count) const {
    return {format_, panels_.data() + first / kWidth * detail::panel_bytes(format_, columns_), columns_, count};
  }

 private:
  static constexpr std::string_view kName = "heed::QuantizedMatrix";
  static constexpr Index kWidth = detail::kPanelWidth<float>;

  Index offset(Index row, Index column) const {
    return row / kWidth * detail::panel_bytes(format_, columns_) +
           column / detail::kBlock * detail::group_bytes(format_);
  }
  std::byte* group(Index row, Index column) { return panels_.data() + offset(row, column); }
  const std::byte* group(Index row, Index column) const { return panels_.data() + offset(row, column); }
  template <class F>
  void for_each_block(F&& f) {
    for (Index row = 0; row < rows_; ++row) {
      for (Index k = 0; k < columns_; k += detail::kBlock) {
        f(row, k, std::min(detail::kBlock, columns_ - k), group(row, k), row % kWidth);
      }
    }
  }

  WeightFormat format_;
  Index rows_, columns_;
  detail::CopiedBuffer<std::byte> panels_;
};

/// The error of quantized numbers.
struct QuantizationError {
  double largest = 0;           ///< of a number
  double root_mean_square = 0;  ///< over all numbers
};

/// The error of QuantizedMatrix::quantize(numbers, format). Throws as that does.
inline QuantizationError quantization_error(const TensorView<const float, 2>& numbers, WeightFormat format) {
  const QuantizedMatrix quantized = QuantizedMatrix::quantize(numbers, format);
  std::vector<float> row(static_cast<std::size_t>(numbers.extent(1)));
  QuantizationError error;
  double squares = 0;
  for (Index i = 0; i < numbers.extent(0); ++i) {
    quantized.read_row(i, row.data());
    for (Index j = 0; j < numbers.extent(1); ++j) {
      const double e = static_cast<double>(row[static_cast<std::size_t>(j)]) - static_cast<double>(numbers(i, j));
      error.largest = std::max(error.largest, std::abs(e));
      squares += e * e;
    }
  }
  error.root_mean_square = std::sqrt(squares / static_cast<double>(numbers.size()));
  return error;
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
