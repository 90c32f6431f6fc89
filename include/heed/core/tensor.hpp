// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// TensorView borrows memory and has a stride per dimension; Tensor owns memory; plain Eigen objects turn into views.

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <utility>

#include <heed/core/error.hpp>

HEED_NAMESPACE_BEGIN

/// An extent, or a stride, for each dimension.
template <int Rank>
using Extents = std::array<Index, static_cast<std::size_t>(Rank)>;

namespace detail {

template <int Rank>
constexpr Extents<Rank> row_major_strides(const Extents<Rank>& extents) {
  Extents<Rank> strides{};
  Index step = 1;
  for (std::size_t d = strides.size(); d-- > 0;) {
    strides[d] = step;
    step *= extents[d];
  }
  return strides;
}

/// The number of elements; throws when an extent is negative or does not fit int, or when the product overflows.
template <int Rank>
Index checked_size(const Extents<Rank>& extents) {
  Index size = 1;
  for (const Index e : extents) {
    HEED_CHECK(e >= 0 && e <= std::numeric_limits<int>::max(), ShapeError, "heed::Tensor: extents ", extents,
               " must lie between 0 and 2147483647; give a longer dimension as two");
    HEED_CHECK(e == 0 || size <= std::numeric_limits<Index>::max() / 16 / e, ShapeError, "heed::Tensor: extents ",
               extents, " ask for more elements than memory can address; use smaller ones");
    size *= e;
  }
  return size;
}

}  // namespace detail

/// A borrowed array of rank Rank with one stride (in elements) per dimension. Cheap to copy; the memory must outlive
/// it. Strides may be anything, also 0 (broadcast) and, for reading, negative.
template <class T, int Rank>
class TensorView {
  static_assert(Rank >= 1);

 public:
  using value_type = std::remove_const_t<T>;  ///< type of an element
  static constexpr int rank = Rank;           ///< number of dimensions

  /// An empty view: every extent 0.
  constexpr TensorView() = default;
  /// Element (i, j, ...) is data[i·strides[0] + j·strides[1] + ...].
  constexpr TensorView(T* data, const Extents<Rank>& extents, const Extents<Rank>& strides)
      : data_(data), extents_(extents), strides_(strides) {}
  /// Row-major memory without gaps.
  constexpr TensorView(T* data, const Extents<Rank>& extents)
      : TensorView(data, extents, detail::row_major_strides<Rank>(extents)) {}
  /// A view of T reads as a view of const T.
  template <class U>
  requires(std::is_const_v<T> && std::is_same_v<U, value_type>)
  constexpr TensorView(const TensorView<U, Rank>& other) : TensorView(other.data(), other.extents(), other.strides()) {}

  constexpr T* data() const { return data_; }                                            ///< the first element
  constexpr const Extents<Rank>& extents() const { return extents_; }                    ///< all sizes
  constexpr const Extents<Rank>& strides() const { return strides_; }                    ///< in elements
  constexpr Index extent(int d) const { return extents_[static_cast<std::size_t>(d)]; }  ///< size of dimension d
  /// From one index of dimension d to the next, in elements.
  constexpr Index stride(int d) const { return strides_[static_cast<std::size_t>(d)]; }
  /// The number of elements. A broadcast view, whose elements share memory, may have more than Index can count: then
  /// the largest Index.
  constexpr Index size() const {
    if (empty()) return 0;
    Index n = 1;
    for (const Index e : extents_) {
      if (__builtin_mul_overflow(n, e, &n)) return std::numeric_limits<Index>::max();
    }
    return n;
  }
  /// True when an extent is 0.
  constexpr bool empty() const { return std::find(extents_.begin(), extents_.end(), Index{0}) != extents_.end(); }

  /// The element at (i, j, ...); unchecked.
  template <std::convertible_to<Index>... I>
  requires(sizeof...(I) == static_cast<std::size_t>(Rank))
  constexpr T& operator()(I... i) const {
    return data_[offset(static_cast<Index>(i)...)];
  }

  /// The view of rank Rank - 1 at position i of the first dimension; unchecked.
  constexpr TensorView<T, Rank - 1> operator[](Index i) const
  requires(Rank > 1)
  {
    Extents<Rank - 1> extents{}, strides{};
    std::copy(extents_.begin() + 1, extents_.end(), extents.begin());
    std::copy(strides_.begin() + 1, strides_.end(), strides.begin());
    return {data_ + i * strides_[0], extents, strides};
  }

  /// `count` positions of dimension d from `first` on. Throws ShapeError when they are not all there.
  constexpr TensorView slice(int d, Index first, Index count) const {
    HEED_CHECK(d >= 0 && d < Rank && first >= 0 && count >= 0 && first <= extent(d) - count, ShapeError,
               "heed::TensorView::slice: ", count, " positions from ", first, " on, of dimension ", d,
               ", don't lie within extents ", extents_);
    TensorView part = *this;
    part.extents_[static_cast<std::size_t>(d)] = count;
    part.data_ += first * stride(d);
    return part;
  }

  /// The same elements with dimensions a and b exchanged.
  constexpr TensorView transpose(int a, int b) const {
    TensorView t = *this;
    std::swap(t.extents_[static_cast<std::size_t>(a)], t.extents_[static_cast<std::size_t>(b)]);
    std::swap(t.strides_[static_cast<std::size_t>(a)], t.strides_[static_cast<std::size_t>(b)]);
    return t;
  }

  /// The same elements with a leading dimension of extent 1: (L, E) -> (1, L, E).
  constexpr TensorView<T, Rank + 1> unsqueeze() const {
    Extents<Rank + 1> extents{}, strides{};
    extents[0] = 1;
    strides[0] = extents_[0] * strides_[0];
    std::copy(extents_.begin(), extents_.end(), extents.begin() + 1);
    std::copy(strides_.begin(), strides_.end(), strides.begin() + 1);
    return {data_, extents, strides};
  }

  /// Whether the last dimension's elements lie next to each other.
  constexpr bool has_dense_rows() const { return stride(Rank - 1) == 1 || extent(Rank - 1) <= 1; }
  /// Whether the elements lie in row-major order without gaps.
  constexpr bool is_contiguous() const {
    Index step = 1;
    for (int d = Rank; d-- > 0;) {
      if (extent(d) != 1 && stride(d) != step) return false;
      step *= extent(d);
    }
    return true;
  }

  /// The matrix of Eigen with the order of a tensor without gaps.
  using Matrix = Eigen::Matrix<value_type, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  /// What matrix() returns.
  using Map = Eigen::Map<std::conditional_t<std::is_const_v<T>, const Matrix, Matrix>, Eigen::Unaligned,
                         Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;
  /// The last two dimensions as an Eigen map, at the given positions of the leading ones: view.matrix(b, h).
  template <std::convertible_to<Index>... I>
  requires(Rank >= 2 && sizeof...(I) + 2 == static_cast<std::size_t>(Rank))
  Map matrix(I... i) const {
    return Map(data_ + offset(static_cast<Index>(i)..., Index{0}, Index{0}), extent(Rank - 2), extent(Rank - 1),
               Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(stride(Rank - 2), stride(Rank - 1)));
  }

 private:
  template <class... I>
  constexpr Index offset(I... i) const {
    Index at = 0;
    std::size_t d = 0;
    ((at += i * strides_[d++]), ...);
    return at;
  }

  T* data_ = nullptr;
  Extents<Rank> extents_{};
  Extents<Rank> strides_{};
};

/// The type of kNotWanted.
struct NotWanted {
  /// An empty view.
  template <class T, int Rank>
  constexpr operator TensorView<T, Rank>() const {
    return {};
  }
};
/// In the place of an output that the caller does not need: layer.backward(dy, heed::kNotWanted, cache, context).
/// It converts to an empty view of any type and rank.
inline constexpr NotWanted kNotWanted{};

/// Owns a row-major array without gaps, aligned to 64 bytes, zero at first. T must be trivially copyable.
template <class T, int Rank>
class Tensor {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  using value_type = T;              ///< type of an element
  static constexpr int rank = Rank;  ///< number of dimensions

  Tensor() = default;
  /// Tensor<float, 3> x(B, L, E). Throws ShapeError for a negative extent or one beyond int.
  template <std::integral... I>
  requires(sizeof...(I) == static_cast<std::size_t>(Rank))
  explicit Tensor(I... extents) : Tensor(Extents<Rank>{static_cast<Index>(extents)...}) {}
  /// @overload
  explicit Tensor(const Extents<Rank>& extents)
      : extents_(extents), size_(detail::checked_size<Rank>(extents)), data_(allocate(size_)) {
    std::uninitialized_fill_n(data_.get(), size_, T(0));
  }
  /// Copies the elements.
  Tensor(const Tensor& other) : extents_(other.extents_), size_(other.size_), data_(allocate(size_)) {
    std::uninitialized_copy_n(other.data_.get(), size_, data_.get());
  }
  /// Takes the memory; `other` is then empty.
  Tensor(Tensor&& other) noexcept
      : extents_(std::exchange(other.extents_, {})),
        size_(std::exchange(other.size_, 0)),
        data_(std::move(other.data_)) {}
  /// Takes the other's memory, or a copy of it.
  Tensor& operator=(Tensor other) noexcept {
    std::swap(extents_, other.extents_);
    std::swap(size_, other.size_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~Tensor() = default;

  T* data() { return data_.get(); }                                            ///< the first element
  const T* data() const { return data_.get(); }                                ///< the first element
  const Extents<Rank>& extents() const { return extents_; }                    ///< all sizes
  Index extent(int d) const { return extents_[static_cast<std::size_t>(d)]; }  ///< size of dimension d
  Index size() const { return size_; }                                         ///< number of elements
  /// True when an extent is 0.
  bool empty() const { return size_ == 0; }

  /// All of it as a view, which ends with the tensor. A temporary tensor has none: give it a name first.
  TensorView<T, Rank> view() & { return {data(), extents_}; }
  TensorView<const T, Rank> view() const& { return {data(), extents_}; }  ///< for reading
  TensorView<T, Rank> view() && = delete;
  TensorView<const T, Rank> view() const&& = delete;
  /// As view().
  operator TensorView<T, Rank>() & { return view(); }
  operator TensorView<const T, Rank>() const& { return view(); }  ///< for reading
  operator TensorView<T, Rank>() && = delete;
  operator TensorView<const T, Rank>() const&& = delete;

  /// The element at (i, j, ...); unchecked.
  template <std::convertible_to<Index>... I>
  requires(sizeof...(I) == static_cast<std::size_t>(Rank))
  T& operator()(I... i) & {
    return view()(i...);
  }
  /// @overload
  template <std::convertible_to<Index>... I>
  requires(sizeof...(I) == static_cast<std::size_t>(Rank))
  const T& operator()(I... i) const& {
    return view()(i...);
  }
  /// Of a temporary, by value.
  template <std::convertible_to<Index>... I>
  requires(sizeof...(I) == static_cast<std::size_t>(Rank))
  T operator()(I... i) const&& {
    return view()(i...);
  }
  /// As TensorView::matrix(); ends with the tensor.
  template <std::convertible_to<Index>... I>
  auto matrix(I... i) & {
    return view().matrix(i...);
  }
  /// @overload
  template <std::convertible_to<Index>... I>
  auto matrix(I... i) const& {
    return view().matrix(i...);
  }
  template <std::convertible_to<Index>... I>
  void matrix(I... i) && = delete;
  template <std::convertible_to<Index>... I>
  void matrix(I... i) const&& = delete;

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(T* p) const { ::operator delete(p, kAlignment); }
  };
  using Memory = std::unique_ptr<T, Free>;
  static Memory allocate(Index n) {
    if (n == 0) return {};
    return Memory(static_cast<T*>(::operator new(static_cast<std::size_t>(n) * sizeof(T), kAlignment)));
  }

  Extents<Rank> extents_{};
  Index size_ = 0;
  Memory data_;
};

namespace detail {

template <class A>
struct tensor_traits {
  static constexpr bool is_tensor = false;
};
template <class T, int Rank>
struct tensor_traits<Tensor<T, Rank>> {
  static constexpr bool is_tensor = true;
  using value_type = T;
  static constexpr int rank = Rank;
};
template <class T, int Rank>
struct tensor_traits<TensorView<T, Rank>> {
  static constexpr bool is_tensor = true;
  using value_type = std::remove_const_t<T>;
  static constexpr int rank = Rank;
};

template <class A>
inline constexpr bool is_view_v = false;
template <class T, int Rank>
inline constexpr bool is_view_v<TensorView<T, Rank>> = true;

// A segment of an Eigen vector derives from the base of another type, Block, so the argument of the base is deduced.
template <class D>
void eigen_dense(const Eigen::DenseBase<D>&);
template <class D>
void eigen_owner(const Eigen::PlainObjectBase<D>&);

}  // namespace detail

/// Tensor or TensorView, const or not.
template <class A>
concept AnyTensor = detail::tensor_traits<std::remove_cvref_t<A>>::is_tensor;

/// Any Eigen matrix, array, block, map, product or other expression.
template <class A>
concept EigenDense = requires(const std::remove_cvref_t<A>& a) { detail::eigen_dense(a); };

/// An Eigen object with memory of its own or borrowed, whose coefficients can be read by strides.
template <class A>
concept EigenDirect = EigenDense<A> && (std::remove_cvref_t<A>::Flags & Eigen::DirectAccessBit) != 0;

/// What every public function takes: a tensor, a view, or a plain Eigen matrix of shape (L, E) as one sequence.
template <class A>
concept TensorLike = AnyTensor<A> || EigenDense<A>;

namespace detail {

/// An Eigen matrix or array, which owns its memory.
template <class A>
concept EigenOwner = requires(const std::remove_cvref_t<A>& a) { eigen_owner(a); };

/// False for a temporary that owns its memory: nothing may keep a view of it.
template <class A>
inline constexpr bool outlives_v =
    std::is_lvalue_reference_v<A> || is_view_v<std::remove_cvref_t<A>> || (EigenDense<A> && !EigenOwner<A>);

template <class A>
struct scalar_of {
  using type = typename std::remove_cvref_t<A>::Scalar;
};
template <AnyTensor A>
struct scalar_of<A> {
  using type = typename tensor_traits<std::remove_cvref_t<A>>::value_type;
};

}  // namespace detail

/// The element type of a TensorLike, without const.
template <TensorLike A>
using scalar_of_t = typename detail::scalar_of<A>::type;

/// The rank of a TensorLike; a plain Eigen matrix has rank 2.
template <TensorLike A>
inline constexpr int rank_of_v = [] {
  if constexpr (AnyTensor<A>)
    return detail::tensor_traits<std::remove_cvref_t<A>>::rank;
  else
    return 2;
}();

/// A view of a tensor or of an Eigen object that has memory; it ends with that memory. A temporary tensor or matrix has
/// no view, but is a fine argument of functions that take any TensorLike.
template <class T, int Rank>
constexpr TensorView<T, Rank> view_of(const TensorView<T, Rank>& v) {
  return v;
}
/// @overload
template <class T, int Rank>
TensorView<const T, Rank> view_of(const Tensor<T, Rank>& t) {
  return t.view();
}
/// @overload
template <class T, int Rank>
TensorView<T, Rank> view_of(Tensor<T, Rank>& t) {
  return t.view();
}
template <class T, int Rank>
void view_of(Tensor<T, Rank>&&) = delete;
template <class T, int Rank>
void view_of(const Tensor<T, Rank>&&) = delete;
template <class D>
void view_of(Eigen::PlainObjectBase<D>&&) = delete;
template <class D>
void view_of(const Eigen::PlainObjectBase<D>&&) = delete;
/// An Eigen matrix of any storage order as (rows, columns).
template <class D>
requires EigenDirect<D>
TensorView<const typename D::Scalar, 2> view_of(const Eigen::DenseBase<D>& m) {
  const D& d = m.derived();
  const Index row = D::IsRowMajor ? d.outerStride() : d.innerStride();
  const Index column = D::IsRowMajor ? d.innerStride() : d.outerStride();
  return {d.data(), {d.rows(), d.cols()}, {row, column}};
}
/// @overload
template <class D>
requires(EigenDirect<D> && (D::Flags & Eigen::LvalueBit) != 0)
TensorView<typename D::Scalar, 2> view_of(Eigen::DenseBase<D>& m) {
  const auto read = view_of(std::as_const(m));
  return {m.derived().data(), read.extents(), read.strides()};
}

namespace detail {

/// The addresses [first, last) between which a view's elements are; an empty view has none.
template <class T, int Rank>
std::pair<std::uintptr_t, std::uintptr_t> footprint(const TensorView<T, Rank>& v) {
  if (v.empty()) return {0, 0};
  const auto first = reinterpret_cast<std::uintptr_t>(v.data());
  std::uintptr_t low = 0, high = sizeof(T);
  for (int d = 0; d < Rank; ++d) {
    const Index span = v.extent(d) > 1 ? (v.extent(d) - 1) * v.stride(d) : 0;
    (span < 0 ? low : high) += static_cast<std::uintptr_t>(span) * sizeof(T);
  }
  return {first + low, first + high};
}

/// step·x with low <= x <= high: one dimension's part of the distance between elements of two views.
struct DistanceTerm {
  Index step, low, high;
};

/// Whether terms can sum to `target`, by trying the x of the largest step that the other terms leave possible. Views of
/// one buffer leave one or two at each step. True also when more than `work` tries would be needed.
inline bool can_reach(const DistanceTerm* terms, const DistanceTerm* end, Index target, int& work) {
  if (terms == end) return target == 0;
  if (--work < 0) return true;
  const DistanceTerm& term = *terms++;
  Index low = target, high = target;
  for (const DistanceTerm* other = terms; other != end; ++other) {
    low -= other->step * other->high;
    high -= other->step * other->low;
  }
  const auto floor = [&](Index n) { return n / term.step - (n % term.step < 0); };
  const Index last = std::min(term.high, floor(high));
  for (Index x = std::max(term.low, -floor(-low)); x <= last; ++x) {
    if (can_reach(terms, end, target - term.step * x, work)) return true;
  }
  return false;
}

/// Whether two views share memory: true when they do; false for views of one buffer that interleave without sharing an
/// element, such as heads or column ranges of a fused projection. Only for pairs of strides that would take long to
/// decide may the answer be true without a common element.
template <class A, class B, int Rank>
bool may_overlap(const TensorView<A, Rank>& a, const TensorView<B, Rank>& b) {
  const auto [a_first, a_last] = footprint(a);
  const auto [b_first, b_last] = footprint(b);
  if (a_first >= b_last || b_first >= a_last) return false;

  // Elements meet where b + j·strides - a - i·strides = 0 for some indices i of a and j of b. Bytes of elements of
  // different types are one more dimension.
  std::array<DistanceTerm, 2 * static_cast<std::size_t>(Rank) + 2> terms;
  std::size_t count = 0;
  const auto add = [&](Index stride, Index size, Index sign, Index extent) {
    if (stride == 0 || extent == 1) return;
    Index step = stride * size;
    if (step < 0) step = -step, sign = -sign;
    std::size_t at = 0;
    while (at < count && terms[at].step > step) ++at;
    if (at == count || terms[at].step != step) {
      std::copy_backward(terms.begin() + at, terms.begin() + count, terms.begin() + count + 1);
      terms[at] = {step, 0, 0};
      ++count;
    }
    (sign < 0 ? terms[at].low : terms[at].high) += sign * (extent - 1);
  };
  const auto distance =
      static_cast<Index>(reinterpret_cast<std::uintptr_t>(a.data()) - reinterpret_cast<std::uintptr_t>(b.data()));
  const bool whole = sizeof(A) == sizeof(B) && distance % static_cast<Index>(sizeof(A)) == 0;
  const Index a_size = whole ? 1 : sizeof(A), b_size = whole ? 1 : sizeof(B);
  for (int d = 0; d < Rank; ++d) {
    add(a.stride(d), a_size, -1, a.extent(d));
    add(b.stride(d), b_size, 1, b.extent(d));
  }
  add(1, 1, -1, a_size);
  add(1, 1, 1, b_size);
  int work = 1000;
  return can_reach(terms.data(), terms.data() + count, whole ? distance / static_cast<Index>(sizeof(A)) : distance,
                   work);
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
