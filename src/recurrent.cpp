// SPDX-License-Identifier: MIT
#include <heed/compiled/recurrent.hpp>

namespace heed {

HEED_COMPILED_RECURRENT(template, float);
HEED_COMPILED_RECURRENT(template, double);

}  // namespace heed
