// SPDX-License-Identifier: MIT
// Random calls with keys and values in 16 bits beside wider queries: see common/random_attention.hpp for what must
// hold.
#include "common/random_attention.hpp"

namespace heed_test {
namespace {

TEST(RandomNarrowKeys, HoldsForHalfBesideFloat) { check_random_attention<float, heed::half, double>(401, 1000); }
TEST(RandomNarrowKeys, HoldsForBfloat16BesideFloat) {
  check_random_attention<float, heed::bfloat16, double>(402, 1000);
}
TEST(RandomNarrowKeys, HoldsForHalfBesideDouble) { check_random_attention<double, heed::half, long double>(403, 300); }

}  // namespace
}  // namespace heed_test
