// SPDX-License-Identifier: MIT
// Random calls in float: see common/random_attention.hpp for what must hold.
#include "common/random_attention.hpp"

namespace heed_test {
namespace {

class RandomFloat : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(RandomFloat, Holds) { check_random_attention<float, float, double>(GetParam(), 3000); }

INSTANTIATE_TEST_SUITE_P(Attention, RandomFloat, ::testing::Values(101, 102, 103, 104));

}  // namespace
}  // namespace heed_test
