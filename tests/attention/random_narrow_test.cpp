// SPDX-License-Identifier: MIT
// Random calls with everything in 16 bits: see common/random_attention.hpp for what must hold.
#include "common/random_attention.hpp"

namespace heed_test {
namespace {

TEST(RandomNarrow, HoldsInHalf) { check_random_attention<heed::half, heed::half, double>(301, 1500); }
TEST(RandomNarrow, HoldsInBfloat16) { check_random_attention<heed::bfloat16, heed::bfloat16, double>(302, 1500); }

}  // namespace
}  // namespace heed_test
