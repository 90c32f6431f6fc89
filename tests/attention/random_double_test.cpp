// SPDX-License-Identifier: MIT
// Random calls in double: see common/random_attention.hpp for what must hold.
#include "common/random_attention.hpp"

namespace heed_test {
namespace {

TEST(RandomDouble, Holds) { check_random_attention<double, double, long double>(201, 3000); }

}  // namespace
}  // namespace heed_test
