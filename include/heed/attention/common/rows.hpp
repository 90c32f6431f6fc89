// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Rows of a tensor without its element type: the kernels see float or double, whatever is stored.

#include <heed/core/core.hpp>
#include <heed/core/simd.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// Extends a width to whole registers.
template <class A>
constexpr Index whole_registers(Index n) {
  return (n + Vec<A>::size - 1) / Vec<A>::size * Vec<A>::size;
}

/// The rows of a (B, heads, L, D) tensor, read as A.
template <class A>
class RowSource {
 public:
  template <class S>
  explicit RowSource(const TensorView<const S, 4>& view)
      : data_(reinterpret_cast<const std::byte*>(view.data())),
        sample_(view.stride(0) * size<S>()),
        head_(view.stride(1) * size<S>()),
        row_(view.stride(2) * size<S>()),
        element_(view.stride(3)),
        width_(view.extent(3)),
        direct_(std::is_same_v<S, A> && view.has_dense_rows()),
        read_(&read_as<S>) {}

  Index width() const { return width_; }
  /// Whether rows are A next to each other, so that they can be read where they lie.
  bool direct() const { return direct_; }
  /// Whether rows also follow each other without gaps.
  bool contiguous() const { return direct_ && row_ == width_ * size<A>(); }
  /// Row i where it lies; only for direct rows.
  const A* in_place(int b, int head, Index i) const { return reinterpret_cast<const A*>(at(b, head, i)); }
  /// Elements from row to row; only for direct rows.
  Index row_stride() const { return row_ / size<A>(); }
  /// Copies row i, converted.
  void copy(int b, int head, Index i, A* to) const { read_(at(b, head, i), element_, width_, to); }

 private:
  template <class S>
  static constexpr Index size() {
    return static_cast<Index>(sizeof(S));
  }
  template <class S>
  static void read_as(const std::byte* from, Index stride, Index n, A* to) {
    convert_row(reinterpret_cast<const S*>(from), stride, n, to);
  }
  const std::byte* at(int b, int head, Index i) const { return data_ + b * sample_ + head * head_ + i * row_; }

  const std::byte* data_;
  Index sample_, head_, row_, element_, width_;
  bool direct_;
  void (*read_)(const std::byte*, Index, Index, A*);
};

/// The rows of a (B, heads, L, D) tensor, written from A.
template <class A>
class RowSink {
 public:
  template <class T>
  explicit RowSink(const TensorView<T, 4>& view)
      : data_(reinterpret_cast<std::byte*>(view.data())),
        sample_(view.stride(0) * size<T>()),
        head_(view.stride(1) * size<T>()),
        row_(view.stride(2) * size<T>()),
        element_(view.stride(3)),
        width_(view.extent(3)),
        direct_(std::is_same_v<T, A> && view.has_dense_rows()),
        write_(&write_as<T>) {}

  Index width() const { return width_; }
  /// False for the sink of a view without data.
  bool is_wanted() const { return data_ != nullptr; }
  bool direct() const { return direct_; }
  A* in_place(int b, int head, Index i) const { return reinterpret_cast<A*>(at(b, head, i)); }
  void write(int b, int head, Index i, const A* from) const { write_(from, width_, at(b, head, i), element_); }

 private:
  template <class T>
  static constexpr Index size() {
    return static_cast<Index>(sizeof(T));
  }
  template <class T>
  static void write_as(const A* from, Index n, std::byte* to, Index stride) {
    T* out = reinterpret_cast<T*>(to);
    for (Index i = 0; i < n; ++i) out[i * stride] = stored_as<T>(from[i]);
  }
  std::byte* at(int b, int head, Index i) const { return data_ + b * sample_ + head * head_ + i * row_; }

  std::byte* data_;
  Index sample_, head_, row_, element_, width_;
  bool direct_;
  void (*write_)(const A*, Index, std::byte*, Index);
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
