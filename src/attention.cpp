// SPDX-License-Identifier: MIT
#include <heed/compiled/attention.hpp>

namespace heed::detail {

HEED_COMPILED_ATTENTION(template);

}  // namespace heed::detail
