// SPDX-License-Identifier: MIT
#include <heed/compiled/layers.hpp>

namespace heed {

HEED_COMPILED_LAYERS(template, float);
HEED_COMPILED_LAYERS(template, double);

}  // namespace heed
