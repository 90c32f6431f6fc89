// SPDX-License-Identifier: MIT
// Keys and values have the queries' scalar type or a 16-bit one; nothing is converted unseen.
// expect: k and v must have q's scalar type

#include <heed/heed.hpp>

#ifdef MUST_NOT_COMPILE
using Stored = double;
#else
using Stored = heed::bfloat16;
#endif

heed::Tensor<float, 4> attend(const heed::Tensor<float, 4>& q, const heed::Tensor<Stored, 4>& kv) {
  return heed::attention(q, kv, kv);
}
