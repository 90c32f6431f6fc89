// SPDX-License-Identifier: MIT
// Quotients by reciprocals are not exact: -freciprocal-math is refused unless the program accepts that.
// expect: exact quotients

#define __RECIPROCAL_MATH__ 1  // as -freciprocal-math does with g++
#ifndef MUST_NOT_COMPILE
#define HEED_ALLOW_FAST_MATH
#endif
#include <heed/core/config.hpp>
