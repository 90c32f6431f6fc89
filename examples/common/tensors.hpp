// SPDX-License-Identifier: MIT
#pragma once

#include <heed/core/tensor.hpp>

namespace examples {

// The tensor with the extents that are asked for; it is made anew, of zeros, only where they change.
template <class T, int Rank>
heed::TensorView<T, Rank> sized(heed::Tensor<T, Rank>& tensor, const heed::Extents<Rank>& extents) {
  if (tensor.extents() != extents) tensor = heed::Tensor<T, Rank>(extents);
  return tensor.view();
}

}  // namespace examples
