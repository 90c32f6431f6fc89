// SPDX-License-Identifier: MIT
// A gradient that is written to a temporary is lost.
// expect: could not convert|no viable conversion|no matching|cannot convert

#include <heed/attention/common/call.hpp>

heed::Tensor<float, 4> zeros();

heed::Index count() {
#ifdef MUST_NOT_COMPILE
  const heed::AttentionGradients<float> gradients{.dq = zeros()};
#else
  heed::Tensor<float, 4> dq = zeros();
  const heed::AttentionGradients<float> gradients{.dq = dq};
#endif
  return gradients.dq.size();
}
