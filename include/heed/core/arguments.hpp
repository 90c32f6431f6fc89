// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The boundary between what users pass (tensors, views, plain Eigen) and the cores, which work on views of one rank.

#include <ranges>
#include <span>

#include <heed/core/workspace.hpp>

HEED_NAMESPACE_BEGIN

/// A std::span that refers to lists with a name only: a temporary std::vector does not compile, since what keeps the
/// span would outlive it.
template <class T>
class BorrowedSpan : public std::span<const T> {
 public:
  BorrowedSpan() = default;
  /// Refers to a std::vector, std::array, std::span or C array of T, which must outlive it.
  template <class R>
  requires(std::is_constructible_v<std::span<const T>, R> &&
           (std::is_lvalue_reference_v<R> || std::ranges::enable_borrowed_range<std::remove_cvref_t<R>>))
  BorrowedSpan(R&& list) : std::span<const T>(list) {}
};

namespace detail {

template <int Rank, class T, int From>
constexpr TensorView<T, Rank> with_rank(const TensorView<T, From>& v) {
  static_assert(From <= Rank, "heed: this argument has more dimensions than the function takes");
  if constexpr (From == Rank)
    return v;
  else
    return with_rank<Rank>(v.unsqueeze());
}

/// An argument as a view of rank Rank, leading extents 1. Memory is read where it lies, by its strides; an Eigen
/// expression without memory is evaluated once into the workspace and lives as long as the caller's Frame.
template <int Rank, TensorLike X>
TensorView<const scalar_of_t<X>, Rank> read_as(const X& x, [[maybe_unused]] Workspace& workspace) {
  using T = scalar_of_t<X>;
  if constexpr (AnyTensor<X> || EigenDirect<X>) {
    return with_rank<Rank>(TensorView<const T, rank_of_v<X>>(view_of(x)));
  } else {
    using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    T* memory = workspace.take<T>(x.rows() * x.cols());
    Eigen::Map<Matrix> evaluated(memory, x.rows(), x.cols());
    evaluated = x.derived().matrix();
    return with_rank<Rank>(TensorView<const T, 2>(memory, {x.rows(), x.cols()}));
  }
}

/// An output argument as a view of rank Rank.
template <int Rank, TensorLike Y>
auto write_as(Y&& y) {
  static_assert(AnyTensor<Y> || EigenDirect<Y>,
                "heed: an output must have memory: a Tensor, a TensorView, an Eigen matrix, block or map");
  return with_rank<Rank>(view_of(y));
}

/// What a convenience call returns for an input X: plain Eigen for plain Eigen, a Tensor of the same rank otherwise.
template <TensorLike X, class T>
using result_t = std::conditional_t<EigenDense<X>, Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>,
                                    Tensor<T, rank_of_v<X>>>;

/// A result of the given extents; leading extents beyond the rank of X (all 1) are dropped.
template <TensorLike X, class T, int Rank>
result_t<X, T> make_result(const Extents<Rank>& extents) {
  if constexpr (EigenDense<X>) {
    return result_t<X, T>(extents[Rank - 2], extents[Rank - 1]);
  } else {
    Extents<rank_of_v<X>> trailing;
    std::copy(extents.end() - rank_of_v<X>, extents.end(), trailing.begin());
    return Tensor<T, rank_of_v<X>>(trailing);
  }
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
