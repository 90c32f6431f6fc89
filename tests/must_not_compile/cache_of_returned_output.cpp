// SPDX-License-Identifier: MIT
// A cache borrows the output, so that the caller must own it.
// expect: a cache keeps a view of the output; call attention_into\(out, q, k, v, .*, cache\)

#include <heed/heed.hpp>

heed::Tensor<float, 4> attend(const heed::Tensor<float, 4>& x, heed::AttentionCache<float>& cache) {
#ifdef MUST_NOT_COMPILE
  return heed::attention(x, x, x, cache);
#else
  heed::Tensor<float, 4> out(x.extents());
  heed::attention_into(out, x, x, x, cache);
  return out;
#endif
}
