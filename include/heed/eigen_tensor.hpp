// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// view_of() for Eigen::Tensor and Eigen::TensorMap of both layouts. It needs Eigen's unsupported modules, so
/// heed/heed.hpp does not include it.

#include <unsupported/Eigen/CXX11/Tensor>

#include <heed/core/tensor.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// Element (i, j, ...) of the view is t(i, j, ...), in either layout.
template <class EigenTensor>
auto view_of_eigen_tensor(EigenTensor& t) {
  constexpr int kRank = std::remove_const_t<EigenTensor>::NumIndices;
  static_assert(kRank >= 1, "heed::view_of: a tensor of rank 0 is one number and has no view");
  using T = std::remove_pointer_t<decltype(t.data())>;
  Extents<kRank> extents{};
  for (std::size_t d = 0; d < extents.size(); ++d) extents[d] = static_cast<Index>(t.dimensions()[d]);
  if constexpr (static_cast<int>(std::remove_const_t<EigenTensor>::Layout) == static_cast<int>(Eigen::RowMajor)) {
    return TensorView<T, kRank>(t.data(), extents);
  } else {
    // The first dimension is the dense one: the strides of the reversed extents, in reverse.
    Extents<kRank> reversed = extents;
    std::reverse(reversed.begin(), reversed.end());
    Extents<kRank> strides = row_major_strides<kRank>(reversed);
    std::reverse(strides.begin(), strides.end());
    return TensorView<T, kRank>(t.data(), extents, strides);
  }
}

}  // namespace detail

/// A view of an Eigen::Tensor, row- or column-major: view(b, l, e) is tensor(b, l, e). Nothing is copied; the view ends
/// with the tensor, and a temporary tensor has none. TensorView(tensor.data(), extents) is right for row-major tensors
/// only, and Eigen's default is column-major.
template <class T, int Rank, int Options, class I>
auto view_of(Eigen::Tensor<T, Rank, Options, I>& tensor) {
  return detail::view_of_eigen_tensor(tensor);
}
/// @overload
template <class T, int Rank, int Options, class I>
auto view_of(const Eigen::Tensor<T, Rank, Options, I>& tensor) {
  return detail::view_of_eigen_tensor(tensor);
}
template <class T, int Rank, int Options, class I>
void view_of(Eigen::Tensor<T, Rank, Options, I>&&) = delete;
template <class T, int Rank, int Options, class I>
void view_of(const Eigen::Tensor<T, Rank, Options, I>&&) = delete;
/// A view of the memory that an Eigen::TensorMap refers to. A map of a const tensor gives a view for reading.
template <class Plain, int Options, template <class> class MakePointer>
auto view_of(const Eigen::TensorMap<Plain, Options, MakePointer>& map) {
  return detail::view_of_eigen_tensor(map);
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
