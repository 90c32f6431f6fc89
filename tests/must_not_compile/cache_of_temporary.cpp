// SPDX-License-Identifier: MIT
// A cache borrows q, k, v and out until the backward.
// expect: the cache keeps q, k, v and out for the backward pass, but one of them is a temporary

#include <heed/heed.hpp>

void attend(const heed::Tensor<float, 4>& x, heed::Tensor<float, 4>& out, heed::AttentionCache<float>& cache) {
#ifdef MUST_NOT_COMPILE
  heed::attention_into(out, heed::Tensor<float, 4>(x), x, x, cache);
#else
  heed::attention_into(out, x, x, x, cache);
#endif
}
