// SPDX-License-Identifier: MIT
#include "common/recurrent_instances.hpp"

namespace heed {

HEED_TEST_RECURRENT(template, float);
HEED_TEST_RECURRENT(template, double);

}  // namespace heed
