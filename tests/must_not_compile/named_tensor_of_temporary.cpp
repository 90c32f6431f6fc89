// SPDX-License-Identifier: MIT
// A named tensor borrows memory until it is written.
// expect: heed::NamedTensor borrows

#include <heed/io/safetensors.hpp>

heed::Tensor<float, 2> make();

std::size_t rank() {
#ifdef MUST_NOT_COMPILE
  const heed::NamedTensor named("weight", make());
#else
  const heed::Tensor<float, 2> weight = make();
  const heed::NamedTensor named("weight", weight);
#endif
  return named.info().shape.size();
}
