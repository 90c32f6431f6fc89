// SPDX-License-Identifier: MIT
// Without NaN and infinity, masks leak: -ffast-math is refused unless the program accepts that.
// expect: which -ffast-math removes

#define __FAST_MATH__ 1  // as -ffast-math does
#ifndef MUST_NOT_COMPILE
#define HEED_ALLOW_FAST_MATH
#endif
#include <heed/core/config.hpp>
