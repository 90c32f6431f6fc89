// SPDX-License-Identifier: MIT
// Layers with products compute in float or double; 16-bit types are for storage.
// expect: LayerScalar

#include <heed/nn/linear.hpp>

#ifdef MUST_NOT_COMPILE
using Element = heed::half;
#else
using Element = float;
#endif

heed::Linear<Element> make() { return heed::Linear<Element>(8, 16); }
