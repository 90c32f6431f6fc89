// SPDX-License-Identifier: MIT
// F17: a caller that flushes subnormals, or rounds otherwise, gets the same bits from a pool as without one.

#include <gtest/gtest.h>

#include <heed/attention/attention.hpp>
#include <heed/compiled/attention.hpp>

#include "common/float_modes.hpp"
#include "common/random_inputs.hpp"
#include "common/views.hpp"

namespace heed_test {
namespace {

TEST(FloatState, F17_ChangesNoBitBetweenThreads) {
  heed::ThreadPool pool(2);
  heed::Context serial, threads(pool);
  Random random(17);
  const auto q = normal_tensor<float, 4>({1, 8, 256, 64}, random), k = normal_tensor<float, 4>({1, 8, 256, 64}, random);
  auto v = normal_tensor<float, 4>({1, 8, 256, 64}, random);
  for_each_element(v.view(), [](float& x) { x *= 1e-39f; });

  const auto kept = heed::attention(q, k, v, serial);
  for (const bool flush : {true, false}) {
    for (const int rounding : {FE_TONEAREST, FE_UPWARD, FE_TOWARDZERO}) {
      SCOPED_TRACE(testing::Message() << "flush " << flush << ", rounding " << rounding);
      const FloatMode mode(flush, rounding);
      const auto alone = heed::attention(q, k, v, serial);
#if defined(__SSE__) || defined(__aarch64__)
      EXPECT_EQ(same_bits(alone, kept), !flush && rounding == FE_TONEAREST) << "the mode has no effect";
#endif
      for (int run = 0; run < 20; ++run) {
        ASSERT_TRUE(same_bits(heed::attention(q, k, v, threads), alone)) << "run " << run;
      }
    }
  }
}

}  // namespace
}  // namespace heed_test
