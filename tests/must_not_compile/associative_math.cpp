// SPDX-License-Identifier: MIT
// Sums in another order break exponentials: -fassociative-math is refused unless the program accepts that.
// expect: order of sums

#define __ASSOCIATIVE_MATH__ 1  // as -fassociative-math does with g++
#ifndef MUST_NOT_COMPILE
#define HEED_ALLOW_FAST_MATH
#endif
#include <heed/core/config.hpp>
