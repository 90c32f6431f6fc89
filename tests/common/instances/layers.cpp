// SPDX-License-Identifier: MIT
#include "common/layer_instances.hpp"

namespace heed {

HEED_TEST_LAYERS(template, float);
HEED_TEST_LAYERS(template, double);

}  // namespace heed
