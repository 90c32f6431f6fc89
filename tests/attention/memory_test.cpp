// SPDX-License-Identifier: MIT
// The memory that attention takes in addition to its arguments, and when (C43).
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include <heed/attention/attention.hpp>
#include <heed/compiled/attention.hpp>
#include <heed/mask/bool_mask.hpp>

#include "common/allocation_counter.hpp"
#include "common/any_modifier.hpp"
#include "common/views.hpp"

namespace heed_test {
namespace {

TEST(AttentionMemory, LongSequencesTakeLittle) {
  // The window keeps the test short; what is taken depends on shapes alone.
  constexpr Index L = 8192, D = 64;
  Random random(41);
  const auto q = normal_tensor<float, 4>({1, 1, L, D}, random);
  heed::Tensor<float, 4> out(1, 1, L, D);
  const auto taken_by = [&](heed::Context& context) {
    heed::attention_into(out, q, q, q, heed::Window(20, 20), context);
    return context.workspace().capacity();
  };
  heed::Context serial;
  EXPECT_LE(taken_by(serial), std::size_t{4} << 20);
  EXPECT_GT(serial.workspace().peak(), std::size_t{0});
  heed::ThreadPool pool(2);
  heed::Context parallel(pool);
  EXPECT_LE(taken_by(parallel), std::size_t{4} << 20);
}

TEST(AttentionMemory, WhatIsTakenDoesNotGrowWithTheLength) {
  const auto taken = [](Index keys) {
    const heed::Tensor<float, 4> q(1, 1, 300, 32), k(1, 1, keys, 32);
    heed::Tensor<float, 4> out(1, 1, 300, 32);
    heed::Context context;
    heed::attention_into(out, q, k, k, context);
    return context.workspace().peak();
  };
  EXPECT_EQ(taken(500), taken(5000));
}

/// What attention_workspace() tells is what a call takes, and reserving it is enough.
template <class T, class S>
void expect_workspace(const heed::AttentionShape& s, int threads) {
  const heed::Tensor<T, 4> q(s.B, s.H, s.Lq, s.Dk);
  const heed::Tensor<S, 4> k(s.B, s.G, s.Lk, s.Dk), v(s.B, s.G, s.Lk, s.Dv);
  heed::Tensor<T, 4> out(s.B, s.H, s.Lq, s.Dv);
  heed::ThreadPool pool(threads);
  heed::Context context(pool);
  const std::size_t told = heed::attention_workspace<T, S>(s, threads);
  context.workspace().reserve(told);
  const auto call = [&] { heed::attention_into(out, q, k, v, context); };
  if (counts_allocations() && threads == 1) {
    EXPECT_EQ(allocations_of(call), 0);
  }
  call();
  EXPECT_EQ(context.workspace().peak(), told);
}

TEST(AttentionMemory, IsKnownBeforehand) {
  for (const int threads : {1, 3}) {
    for (const int Lq : {0, 1, 2, 4, 5, 8, 9, 33, 300}) {
      const heed::AttentionShape s{.B = 2, .H = 4, .G = 2, .Lq = Lq, .Lk = 700, .Dk = 20, .Dv = 12};
      SCOPED_TRACE(::testing::Message() << "Lq = " << Lq << ", " << threads << " threads");
      expect_workspace<float, float>(s, threads);
      expect_workspace<float, heed::half>(s, threads);
      expect_workspace<double, double>(s, threads);
    }
    expect_workspace<float, float>({.B = 1, .H = 3, .G = 3, .Lq = 1, .Lk = 10, .Dk = 64, .Dv = 64}, threads);
  }
}

/// A call that has run once allocates nothing when it runs again.
template <class Call>
void expect_no_allocation(heed::Context& context, Call&& call) {
  if (!counts_allocations()) GTEST_SKIP() << "allocations are not counted on this platform";
  call(context);
  EXPECT_EQ(allocations_of([&] {
              for (int i = 0; i < 3; ++i) call(context);
            }),
            0);
}

class WarmAttention : public ::testing::Test {
 protected:
  WarmAttention() : random(42) {}
  Random random;
  heed::Tensor<float, 4> q = normal_tensor<float, 4>({2, 4, 77, 24}, random);
  heed::Tensor<float, 4> k = normal_tensor<float, 4>({2, 2, 90, 24}, random);
  heed::Tensor<float, 4> v = normal_tensor<float, 4>({2, 2, 90, 20}, random);
  heed::Tensor<float, 4> out{2, 4, 77, 20}, weights{2, 4, 77, 90};
  heed::Context context;
};

TEST_F(WarmAttention, AllocatesNothing) {
  expect_no_allocation(context, [&](heed::Context& c) { heed::attention_into(out, q, k, v, c); });
}

TEST_F(WarmAttention, AllocatesNothingOnTheReferencePath) {
  context.path = heed::Path::Reference;
  expect_no_allocation(context, [&](heed::Context& c) { heed::attention_into(out, q, k, v, c); });
}

TEST_F(WarmAttention, AllocatesNothingForWeights) {
  expect_no_allocation(context, [&](heed::Context& c) { heed::attention_with_weights_into(out, weights, q, k, v, c); });
}

TEST_F(WarmAttention, AllocatesNothingForMasksModifiersSinksAndDropout) {
  const std::vector<int> lengths{90, 13}, first{3, 8};
  heed::Tensor<bool, 2> keep(77, 90);
  for_each_element(keep.view(), [&](bool& x) { x = random.chance(0.7); });
  const std::vector<double> sinks{0, 1, 2, 3};
  heed::AttentionOptions options;
  options.sinks = sinks;
  options.dropout = 0.1;
  context.training = true;
  const auto mask = (heed::Causal::from(first) & heed::Padding(lengths)) | !heed::BoolMask::keep(keep);
  expect_no_allocation(context, [&](heed::Context& c) {
    heed::attention_into(out, q, k, v, mask, AnyModifier::soft_cap(30), options, c);
  });
}

TEST_F(WarmAttention, AllocatesNothingForStridesAndNarrowKeys) {
  const auto k16 = cast<heed::half>(k.view()), v16 = cast<heed::half>(v.view());
  const Spaced<float, 4> q_spaced(std::as_const(q).view(), random), out_spaced(out.extents(), random);
  expect_no_allocation(
      context, [&](heed::Context& c) { heed::attention_into(out_spaced.view(), q_spaced.view(), k16, v16, c); });
}

TEST_F(WarmAttention, AllocatesNothingForEigenExpressions) {
  Eigen::MatrixXf x(40, 16), y(40, 16);
  x.setOnes();
  expect_no_allocation(context, [&](heed::Context& c) { heed::attention_into(y, x + x, x, 2 * x, c); });
}

TEST_F(WarmAttention, AllocatesNothingInThreads) {
  heed::ThreadPool pool(2);
  heed::Context parallel(pool);
  expect_no_allocation(parallel,
                       [&](heed::Context& c) { heed::attention_into(out, q, k, v, heed::Causal::bottom_right(), c); });
}

TEST_F(WarmAttention, SmallerCallsFitTheMemoryOfLargerOnes) {
  if (!counts_allocations()) GTEST_SKIP() << "allocations are not counted on this platform";
  heed::attention_into(out, q, k, v, context);
  const auto part = [&](auto& x, Index rows) { return x.view().slice(2, 0, rows); };
  EXPECT_EQ(
      allocations_of([&] { heed::attention_into(part(out, 40), part(q, 40), part(k, 30), part(v, 30), context); }), 0);
}

}  // namespace
}  // namespace heed_test
