// SPDX-License-Identifier: MIT
// A mask selects pairs, a modifier changes scores: they are two arguments, not one expression.
// expect: no match for .operator&|invalid operands to binary expression

#include <heed/heed.hpp>

heed::Tensor<float, 4> attend(const heed::Tensor<float, 4>& x) {
#ifdef MUST_NOT_COMPILE
  return heed::attention(x, x, x, heed::Causal() & heed::NoModifier());
#else
  return heed::attention(x, x, x, heed::Causal(), heed::NoModifier());
#endif
}
