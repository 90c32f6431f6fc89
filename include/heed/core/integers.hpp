// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// IntSpan and IntView: borrowed integers of any type, for lengths, offsets, positions, ids and targets.

#include <bit>
#include <cstring>
#include <ranges>
#include <string>
#include <type_traits>

#include <heed/core/tensor.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// A type of integers of up to 64 bits. Truth values and characters are none.
template <class T>
inline constexpr bool is_integer_v =
    std::is_integral_v<T> && sizeof(T) <= 8 && !std::is_same_v<T, bool> && !std::is_same_v<T, char> &&
    !std::is_same_v<T, wchar_t> && !std::is_same_v<T, char8_t> && !std::is_same_v<T, char16_t> &&
    !std::is_same_v<T, char32_t>;
template <class T>
constexpr bool is_enumeration_of_integers() {
  if constexpr (std::is_enum_v<T>)
    return is_integer_v<std::underlying_type_t<T>>;
  else
    return false;
}

}  // namespace detail

/// An integer of up to 64 bits with or without a sign, or an enumeration of such. bool and characters are none.
template <class T>
concept Integer =
    detail::is_integer_v<std::remove_cv_t<T>> || detail::is_enumeration_of_integers<std::remove_cv_t<T>>();

namespace detail {

/// The address of integers whose type is known at run time. Everything that takes integers is compiled once and not
/// once per type.
class IntPointer {
  enum Kind : unsigned char { U8, S8, U16, S16, U32, S32, U64, S64 };
  template <class I>
  static constexpr int is_signed() {
    if constexpr (std::is_enum_v<I>)
      return std::is_signed_v<std::underlying_type_t<I>>;
    else
      return std::is_signed_v<I>;
  }
  template <class I>
  I load(Index offset) const {
    I value;
    std::memcpy(&value, static_cast<const I*>(address_) + offset, sizeof(I));
    return value;
  }
  template <class F>
  HEED_ALWAYS_INLINE auto visit(Index offset, F&& f) const {
    if (kind_ == S32) return f(load<std::int32_t>(offset));
    switch (kind_) {
      case U8:
        return f(load<std::uint8_t>(offset));
      case S8:
        return f(load<std::int8_t>(offset));
      case U16:
        return f(load<std::uint16_t>(offset));
      case S16:
        return f(load<std::int16_t>(offset));
      case U32:
        return f(load<std::uint32_t>(offset));
      case U64:
        return f(load<std::uint64_t>(offset));
      case S64:
        return f(load<std::int64_t>(offset));
      case S32:
        break;
    }
    return f(load<std::int32_t>(offset));
  }

 public:
  constexpr IntPointer() = default;
  /// To integers of type I.
  template <Integer I>
  constexpr explicit IntPointer(const I* address)
      : address_(address), kind_(static_cast<Kind>(2 * std::countr_zero(sizeof(I)) + is_signed<I>())) {}

  /// The integer `offset` elements on. A number that Index can't hold becomes the nearest one that it can.
  Index operator[](Index offset) const {
    return visit(offset, [](auto value) -> Index {
      using Limits = std::numeric_limits<Index>;
      if (std::in_range<Index>(value)) return static_cast<Index>(value);
      return std::cmp_less(value, 0) ? Limits::min() : Limits::max();
    });
  }
  /// The integer as it was given, for messages.
  std::string text(Index offset) const {
    return visit(offset, [](auto value) { return std::to_string(value); });
  }

 private:
  const void* address_ = nullptr;
  Kind kind_ = S32;
};

/// Integers side by side: std::vector, std::array, std::span, a C array and the like.
template <class C>
concept IntegerRange = std::ranges::contiguous_range<C> && std::ranges::sized_range<C> &&
                       Integer<std::remove_reference_t<std::ranges::range_reference_t<C>>>;

/// An Eigen vector with memory, or a tensor or view of rank 1, of integers.
template <class C>
concept IntegerVector = (EigenDirect<C> && std::remove_cvref_t<C>::IsVectorAtCompileTime != 0 &&
                         Integer<typename std::remove_cvref_t<C>::Scalar>) ||
                        (AnyTensor<C> && tensor_traits<std::remove_cvref_t<C>>::rank == 1 &&
                         Integer<typename tensor_traits<std::remove_cvref_t<C>>::value_type>);

/// An Eigen matrix with memory, or a tensor or view of rank 2, of integers.
template <class C>
concept IntegerMatrix = (AnyTensor<C> || EigenDirect<C>) && !IntegerVector<C> &&
                        rank_of_v<std::remove_cvref_t<C>> == 2 && Integer<scalar_of_t<std::remove_cvref_t<C>>>;

}  // namespace detail

/// A borrowed list of integers of any type. Owning temporaries and braced lists do not compile, since what keeps the
/// list would outlive them; neither do lists of bool, of characters or of floating-point numbers.
class IntSpan {
 public:
  /// No numbers.
  IntSpan() = default;
  /// Refers to a std::vector, std::array, std::span, C array, Eigen vector, or tensor of rank 1, which must outlive it.
  template <class C>
  requires((detail::IntegerRange<C> || detail::IntegerVector<C>) &&
           (detail::outlives_v<C> || std::ranges::enable_borrowed_range<std::remove_cvref_t<C>>))
  IntSpan(C&& c) {
    if constexpr (detail::IntegerRange<C>) {
      set(detail::IntPointer(std::ranges::data(c)), std::ranges::size(c), 1);
    } else {
      const auto view = view_of(c);
      if constexpr (AnyTensor<C>)
        set(detail::IntPointer(view.data()), static_cast<std::size_t>(view.extent(0)), view.stride(0));
      else
        set(detail::IntPointer(view.data()), static_cast<std::size_t>(c.size()),
            view.stride(std::remove_cvref_t<C>::ColsAtCompileTime == 1 ? 0 : 1));
    }
  }

  /// The number of elements.
  int size() const { return size_; }
  /// True without elements.
  bool empty() const { return size_ == 0; }
  /// Element i; unchecked. A number that Index can't hold becomes the nearest one that it can.
  Index operator[](Index i) const { return data_[i * stride_]; }
  /// Element i as it was given, for messages.
  std::string text(Index i) const { return data_.text(i * stride_); }
  /// The number of elements before the first that is above `value`. The list must not decrease.
  int upper_bound(Index value) const {
    return count_while([value](Index x) { return x <= value; });
  }
  /// The number of elements before the first that is `value` or more. The list must not decrease.
  int lower_bound(Index value) const {
    return count_while([value](Index x) { return x < value; });
  }

 private:
  friend class IntView;
  void set(detail::IntPointer data, std::size_t size, Index stride) {
    HEED_CHECK(size <= static_cast<std::size_t>(std::numeric_limits<int>::max()), ShapeError, "heed::IntSpan: ", size,
               " integers are more than 2147483647; split the list");
    data_ = data, size_ = static_cast<int>(size), stride_ = stride;
  }
  template <class F>
  int count_while(F&& f) const {
    int first = 0;
    for (int n = size_; n > 0;) {
      const int middle = n / 2;
      if (f((*this)[first + middle]))
        first += middle + 1, n -= middle + 1;
      else
        n = middle;
    }
    return first;
  }

  [[no_unique_address]] detail::IntPointer data_;  // Its padding holds the size.
  int size_ = 0;
  Index stride_ = 1;
};

/// Borrowed integers of any type, one for each token of a batch: a tensor or view (B, L) of any strides, an Eigen
/// matrix (B, L), or a list for one sequence. Owning temporaries do not compile.
class IntView {
 public:
  /// No numbers.
  IntView() = default;
  /// Refers to a tensor, view or Eigen matrix, which must outlive it.
  template <class C>
  requires(detail::IntegerMatrix<C> && detail::outlives_v<C>)
  IntView(C&& c) {
    const auto view = view_of(c);
    data_ = detail::IntPointer(view.data());
    extents_ = view.extents(), strides_ = view.strides();
  }
  /// A list for one sequence, as (1, L).
  template <class C>
  requires std::is_constructible_v<IntSpan, C>
  IntView(C&& c) : IntView(one_row(IntSpan(std::forward<C>(c)))) {}

  /// A list as one column (B, 1).
  static IntView one_column(IntSpan list) { return IntView(list, {list.size(), 1}, {list.stride_, 0}); }

  const Extents<2>& extents() const { return extents_; }                         ///< (B, L)
  Index extent(int d) const { return extents_[static_cast<std::size_t>(d)]; }    ///< B or L
  Index stride(int d) const { return strides_[static_cast<std::size_t>(d)]; }    ///< in elements
  Index size() const { return extents_[0] * extents_[1]; }                       ///< the number of integers
  Index operator()(Index b, Index l) const { return data_[offset(b, l)]; }       ///< unchecked; as IntSpan's
  std::string text(Index b, Index l) const { return data_.text(offset(b, l)); }  ///< as it was given, for messages
  /// The same elements as (L, B).
  IntView transpose() const {
    IntView t = *this;
    std::swap(t.extents_[0], t.extents_[1]);
    std::swap(t.strides_[0], t.strides_[1]);
    return t;
  }

 private:
  IntView(const IntSpan& list, const Extents<2>& extents, const Extents<2>& strides)
      : data_(list.data_), extents_(extents), strides_(strides) {}
  static IntView one_row(const IntSpan& list) { return IntView(list, {1, list.size()}, {0, list.stride_}); }
  Index offset(Index b, Index l) const { return b * strides_[0] + l * strides_[1]; }

  detail::IntPointer data_;
  Extents<2> extents_{}, strides_{};
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
