// SPDX-License-Identifier: MIT
#include "common/instances.hpp"

namespace heed::detail {

HEED_TEST_KERNELS(template);

}  // namespace heed::detail
