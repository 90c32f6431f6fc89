// SPDX-License-Identifier: MIT
// Layers started from one seed each would be equal: they draw from a Random that they share.
// expect: cannot bind|no matching|expects an lvalue|could not convert|cannot convert|no known conversion

#include <heed/nn/linear.hpp>

void start(heed::Linear<float>& layer) {
#ifdef MUST_NOT_COMPILE
  layer.initialize(1);
#else
  heed::Random random(1);
  layer.initialize(random);
#endif
}
