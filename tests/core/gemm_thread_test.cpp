// SPDX-License-Identifier: MIT
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/gemm.hpp>
#include <heed/core/parallel.hpp>

#include "common/allocation_counter.hpp"
#include "common/gemm_cases.hpp"
#include "common/random_inputs.hpp"
#include "common/shuffled_executor.hpp"
#include "common/views.hpp"

namespace {

using heed::Activation;
using heed::Context;
using heed::Index;
using heed_test::EpilogueCase;
using heed_test::GemmCase;
using heed_test::Random;
using heed_test::same_bits;

template <class T>
class GemmThreadTest : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(GemmThreadTest, Scalars);

/// Shapes that are cut by rows, by columns and by both, with one and several blocks of depth.
template <class T>
std::vector<GemmCase<T>> cases() {
  Random random(1);
  std::vector<GemmCase<T>> all;
  for (const auto& [m, n, k] : std::vector<std::array<Index, 3>>{{1, 700, 300},
                                                                 {2, 130, 900},
                                                                 {5, 400, 1700},
                                                                 {33, 210, 100},
                                                                 {100, 50, 800},
                                                                 {210, 90, 30},
                                                                 {400, 70, 90}}) {
    all.emplace_back(m, n, k, EpilogueCase::random(random), random);
  }
  return all;
}

TYPED_TEST(GemmThreadTest, AnyNumberOfThreadsGivesTheSameBits) {
  using T = TypeParam;
  for (const int threads : {2, 3, 7}) {
    heed::ThreadPool pool(threads);
    Context serial, parallel(pool);
    for (const GemmCase<T>& p : cases<T>()) {
      SCOPED_TRACE(p.text() + " threads " + std::to_string(threads));
      const heed::Tensor<T, 2> expected = p.packed(serial);
      EXPECT_TRUE(same_bits(p.packed(parallel), expected));
      EXPECT_TRUE(same_bits(p.unpacked(parallel), expected));
    }
  }
}

TYPED_TEST(GemmThreadTest, AnyOrderOfPiecesGivesTheSameBits) {
  using T = TypeParam;
  for (const int concurrency : {2, 5, 40}) {
    heed_test::ShuffledExecutor shuffled(concurrency, 2);
    Context serial, parallel(shuffled);
    for (const GemmCase<T>& p : cases<T>()) {
      SCOPED_TRACE(p.text() + " concurrency " + std::to_string(concurrency));
      const heed::Tensor<T, 2> expected = p.packed(serial);
      EXPECT_TRUE(same_bits(p.packed(parallel), expected));
      EXPECT_TRUE(same_bits(p.unpacked(parallel), expected));
    }
  }
}

TYPED_TEST(GemmThreadTest, AWarmContextAllocatesNothing) {
  if (!heed_test::counts_allocations()) GTEST_SKIP() << "allocations can't be counted on this platform";
  using T = TypeParam;
  heed::ThreadPool pool(3);
  Context context(pool);
  for (const GemmCase<T>& p : cases<T>()) {
    const auto packed = heed::PackedMatrix<T>::pack(p.b);
    heed::Tensor<T, 2> c = p.former;
    const auto run = [&] {
      heed::gemm<T>(p.a, packed, c.view(), p.options(), context);
      heed::gemm<T>(p.a, p.b, c.view(), p.options(), context);
    };
    run();
    EXPECT_EQ(heed_test::allocations_of(run), 0) << p.text();
  }
}

}  // namespace
