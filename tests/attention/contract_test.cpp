// SPDX-License-Identifier: MIT
// The numerical contract in small, on every path. What random calls find hard to hit is here.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/attention/attention.hpp>
#include <heed/compiled/attention.hpp>
#include <heed/mask/basic.hpp>
#include <heed/mask/sparse.hpp>

#include "common/any_mask.hpp"
#include "common/any_modifier.hpp"
#include "common/error_budget.hpp"
#include "common/special_values.hpp"
#include "common/views.hpp"

namespace heed_test {
namespace {

class Contract : public ::testing::TestWithParam<heed::Path> {
 protected:
  Contract() { context.path = GetParam(); }

  /// attention of (Lq) queries and (Lk) keys of width 1 with scale 1: scores are q·k.
  template <class MaskType = AnyMask<true>>
  std::vector<float> attend(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                            const MaskType& mask = heed::NoMask{}) {
    options.scale = 1;
    const auto column = [](const std::vector<float>& x) {
      return heed::TensorView<const float, 4>(x.data(), {1, 1, static_cast<Index>(x.size()), 1});
    };
    std::vector<float> out(q.size(), kNaN<float>);
    const heed::TensorView<float, 4> result(out.data(), {1, 1, static_cast<Index>(q.size()), 1});
    heed::attention_into(result, column(q), column(k), column(v), mask, options, context);
    return out;
  }
  template <class F>
  static AnyMask<false> pairs(F f) {
    return heed::mask(f);
  }

  heed::Context context;
  heed::AttentionOptions options;
};

INSTANTIATE_TEST_SUITE_P(Path, Contract, ::testing::Values(heed::Path::Reference, heed::Path::Blocked),
                         [](const auto& instance) {
                           return instance.param == heed::Path::Blocked ? "Blocked" : "Reference";
                         });

// Masks select.

TEST_P(Contract, AHiddenValueDoesNotEvenChangeTheSignOfZero) {
  // The visible values add up to a zero by way of a product that underflows from below; key 2 is seen by query 1 alone.
  heed::Tensor<float, 4> q(1, 1, 2, 1), k(1, 1, 3, 1), v(1, 1, 3, 35);
  q(0, 0, 0, 0) = 1, k(0, 0, 1, 0) = -69;
  options.scale = 1;
  const auto mask = pairs([](int i, int j) { return j != 2 || i == 1; });
  for (const float visible : {0.0f, -0.0f}) {
    for (Index d = 0; d < 35; ++d) v(0, 0, 0, d) = visible, v(0, 0, 1, d) = -1e-30f;
    heed::Tensor<float, 4> first;
    for (const float hidden : {5.0f, -5.0f, kNaN<float>, kInf<float>}) {
      for (Index d = 0; d < 35; ++d) v(0, 0, 2, d) = hidden;
      const auto out = heed::attention(q, k, v, mask, options, context);
      if (first.empty()) first = out;
      for (Index d = 0; d < 35; ++d) {
        EXPECT_EQ(out(0, 0, 0, d), 0);
        EXPECT_TRUE(equal_bits(out(0, 0, 0, d), first(0, 0, 0, d))) << hidden << " in column " << d;
      }
    }
  }
}

TEST_P(Contract, HiddenHugeScoresLeaveNoTrace) {
  const auto mask = pairs([](int, int k) { return k != 1; });
  EXPECT_EQ(attend({1}, {-1e4f, 3e38f, -1e4f}, {2, 1e30f, 4}, mask)[0], 3);
  EXPECT_EQ(attend({3e38f}, {0, 3e38f, 0}, {2, kNaN<float>, 4}, mask)[0], 3);
}

TEST_P(Contract, AVisibleNaNShowsWhereverItComesFrom) {
  EXPECT_TRUE(std::isnan(attend({kNaN<float>}, {1, 2}, {3, 4})[0]));
  EXPECT_TRUE(std::isnan(attend({1}, {1, kNaN<float>}, {3, 4})[0]));
  EXPECT_TRUE(std::isnan(attend({1}, {kNaN<float>, 1}, {3, 4})[0]));
  EXPECT_TRUE(std::isnan(attend({1}, {1, 2}, {3, kNaN<float>})[0]));
  // Even where the weight is 0: what is visible counts.
  EXPECT_TRUE(std::isnan(attend({1}, {0, 500}, {kNaN<float>, 4})[0]));
  const double sinks[] = {kNaN<double>};
  options.sinks = sinks;
  EXPECT_TRUE(std::isnan(attend({1}, {1, 2}, {3, 4})[0]));
}

TEST_P(Contract, ANaNUnderADroppedWeightShows) {
  context.training = true;
  options.dropout = 1;
  EXPECT_EQ(attend({1}, {1, 2}, {3, 4})[0], 0);
  EXPECT_TRUE(std::isnan(attend({1}, {1, 2}, {3, kNaN<float>})[0]));
  EXPECT_TRUE(std::isnan(attend({1}, {1, kNaN<float>}, {3, 4})[0]));
}

// Order: scale, modifiers, mask, softmax, sinks, dropout.

TEST_P(Contract, ModifiersComeAfterTheScaleAndBeforeTheMask) {
  heed::Tensor<float, 4> q(1, 1, 1, 1), k(1, 1, 3, 1), v(1, 1, 3, 1);
  q(0, 0, 0, 0) = 1;
  k(0, 0, 0, 0) = 4, k(0, 0, 1, 0) = 60, k(0, 0, 2, 0) = 14;
  v(0, 0, 0, 0) = 1, v(0, 0, 1, 0) = 3, v(0, 0, 2, 0) = 1000;
  options.scale = 0.5;
  const auto mask = pairs([](int, int key) { return key != 2; });
  const auto out = heed::attention(q, k, v, mask, AnyModifier::soft_cap(5), options, context);
  // Case C23: capped after the mask, tanh(-inf) = -1 would let the third key in.
  EXPECT_NEAR(out(0, 0, 0, 0), 2.9138015, 1e-6);
}

TEST_P(Contract, SinksAreNeitherScaledNorModified) {
  heed::Tensor<float, 4> q(1, 1, 1, 1), k(1, 1, 1, 1), v(1, 1, 1, 1);
  v(0, 0, 0, 0) = 1;
  options.scale = 0.25;
  const double sinks[] = {std::log(3.0)};
  options.sinks = sinks;
  const auto out =
      heed::attention(q, k, v, AnyMask<true>(heed::NoMask{}), AnyModifier::soft_cap(0.1), options, context);
  EXPECT_NEAR(out(0, 0, 0, 0), 0.25, 1e-7);
}

TEST_P(Contract, WeightsAreThoseBeforeDropout) {
  heed::Tensor<float, 4> q(1, 1, 3, 1), k(1, 1, 5, 1), v(1, 1, 5, 1);
  context.training = true;
  options.dropout = 0.5;
  const auto [out, weights] = heed::attention_with_weights(q, k, v, AnyMask<true>(heed::NoMask{}), options, context);
  for_each_element(weights.view(), [](float w) { EXPECT_NEAR(w, 0.2, 1e-7); });
}

// 16-bit types are storage.

template <class T>
void expect_sums_in_float(heed::Context& context) {
  // 5000 equal weights: in half, a sum of ones ends at 2048; in bfloat16, at 256.
  heed::Tensor<T, 4> q(1, 1, 1, 1), k(1, 1, 5000, 1), v(1, 1, 5000, 1);
  for (int j = 0; j < 5000; ++j) v(0, 0, j, 0) = T(j % 2 ? 1 : 3);
  const auto s = heed::attention_with_statistics(q, k, v, AnyMask<true>(heed::NoMask{}), context);
  EXPECT_EQ(static_cast<double>(s.out(0, 0, 0, 0)), 2);
  EXPECT_EQ(s.sum(0, 0, 0), 5000);
}
TEST_P(Contract, SumsOf16BitElementsAreFloat) {
  expect_sums_in_float<heed::half>(context);
  expect_sums_in_float<heed::bfloat16>(context);
}

TEST_P(Contract, ScoresOf16BitElementsAreFloat) {
  // 300 · 300 does not fit half, and 300 · 300 + 1 neither bfloat16.
  heed::Tensor<heed::half, 4> q(1, 1, 1, 2), k(1, 1, 2, 2), v(1, 1, 2, 1);
  q(0, 0, 0, 0) = k(0, 0, 0, 0) = k(0, 0, 1, 0) = heed::half(300);
  q(0, 0, 0, 1) = k(0, 0, 1, 1) = heed::half(1);
  v(0, 0, 1, 0) = heed::half(1);
  options.scale = 1;
  const auto out = heed::attention(q, k, v, AnyMask<true>(heed::NoMask{}), options, context);
  EXPECT_NEAR(static_cast<double>(out(0, 0, 0, 0)), 1 / (1 + std::exp(-1.0)), 1e-3);
}

TEST_P(Contract, DoubleIsDoubleThroughout) {
  heed::Tensor<double, 4> q(1, 1, 1, 1), k(1, 1, 2, 1), v(1, 1, 2, 1);
  q(0, 0, 0, 0) = 1, k(0, 0, 1, 0) = 1e-12, v(0, 0, 1, 0) = 1;
  options.scale = 1;
  const auto out = heed::attention(q, k, v, AnyMask<true>(heed::NoMask{}), options, context);
  EXPECT_NEAR(out(0, 0, 0, 0) - 0.5, 0.25e-12, 1e-15);
}

// Maximum and sum are kept apart.

TEST_P(Contract, LargeScoresKeepTheirSum) {
  // log-sum-exp as one float could not tell 2^20 + log 1 from 2^20 + log 1.05.
  heed::Tensor<float, 4> q(1, 1, 1, 1), k(1, 1, 2, 1), v(1, 1, 2, 1);
  q(0, 0, 0, 0) = 1024, k(0, 0, 0, 0) = 1024, k(0, 0, 1, 0) = 1024 - 3.0f / 1024;
  options.scale = 1;
  const auto s = heed::attention_with_statistics(q, k, v, AnyMask<true>(heed::NoMask{}), options, context);
  EXPECT_EQ(s.maximum(0, 0, 0), 0x1p20f);
  EXPECT_NEAR(s.sum(0, 0, 0), 1 + std::exp(-3.0), 1e-6);
}

// Scores at the ends of float.

TEST_P(Contract, ScoresOfAnySizeHaveASoftmax) {
  for (const float size : {1e-38f, 1e-20f, 1.0f, 1e4f, 1e9f, 1e30f, 1e38f}) {
    SCOPED_TRACE(size);
    EXPECT_EQ(attend({1}, {size, size}, {1, 5})[0], 3);
    EXPECT_EQ(attend({1}, {-size, -size}, {1, 5})[0], 3);
    EXPECT_EQ(attend({-1}, {size, size}, {1, 5})[0], 3);
  }
  EXPECT_EQ(attend({1}, {-1e38f, 1e38f}, {1, 5})[0], 5);
  EXPECT_EQ(attend({1}, {3e38f, -3e38f}, {1, 5})[0], 1);
}

TEST_P(Contract, LowScoresBelowAnyStandInForMinusInfinityCount) {
  const auto mask = pairs([](int, int k) { return k > 0; });
  for (const float low : {-1e4f, -1e9f, -1e30f, -3e38f})
    EXPECT_EQ(attend({1}, {0, low, low}, {1000, 1, 5}, mask)[0], 3);
}

TEST_P(Contract, AHopelessKeyHasTheWeightItHas) {
  // e^-80 is a normal float; e^-200 is none, so 0.
  heed::Tensor<float, 4> q(1, 1, 1, 1), k(1, 1, 3, 1), v(1, 1, 3, 1);
  q(0, 0, 0, 0) = 1, k(0, 0, 1, 0) = -80, k(0, 0, 2, 0) = -200;
  v(0, 0, 1, 0) = 1, v(0, 0, 2, 0) = 1e38f;
  options.scale = 1;
  const auto [out, weights] = heed::attention_with_weights(q, k, v, AnyMask<true>(heed::NoMask{}), options, context);
  EXPECT_NEAR(out(0, 0, 0, 0) / std::exp(-80.0f), 1, 1e-5);
  EXPECT_EQ(weights(0, 0, 0, 2), 0);
}

TEST_P(Contract, RisingAndFallingScoresRescaleAtEveryTile) {
  for (const double slope : {std::log(2.0), -std::log(2.0), 40.0, -40.0}) {
    for (const int length : {63, 64, 65, 130, 300}) {
      SCOPED_TRACE(std::to_string(slope) + " over " + std::to_string(length));
      std::vector<float> q(20, 1), k, v;
      double numerator = 0, denominator = 0;
      for (int j = 0; j < length; ++j) {
        k.push_back(static_cast<float>(slope * j));
        v.push_back(static_cast<float>(j % 13));
      }
      const double top = std::max(k.front(), k.back());
      for (int j = 0; j < length; ++j) {
        const auto i = static_cast<std::size_t>(j);
        numerator += std::exp(k[i] - top) * v[i], denominator += std::exp(k[i] - top);
      }
      for (const float y : attend(q, k, v)) EXPECT_NEAR(y, numerator / denominator, 1e-5);
    }
  }
}

// Padded = alone, prefill = chunks = single steps, up to rounding.

TEST_P(Contract, PaddedIsAloneUpToRounding) {
  Random random(11);
  const int lengths[] = {37, 5, 0, 70};
  const auto q = normal_tensor<float, 4>({4, 3, 70, 20}, random), k = normal_tensor<float, 4>({4, 3, 70, 20}, random);
  const auto v = normal_tensor<float, 4>({4, 3, 70, 12}, random);
  const auto padded =
      heed::attention(q, k, v, AnyMask<true>(heed::Padding::queries_and_keys(lengths, lengths)), options, context);
  for (int b = 0; b < 4; ++b) {
    const auto part = [&](const auto& x) { return x.view().slice(0, b, 1).slice(2, 0, lengths[b]); };
    const auto alone = heed::attention(part(q), part(k), part(v), AnyMask<true>(heed::NoMask{}), options, context);
    const auto d = deviation<float, float, 4>(alone.view(), part(padded));
    EXPECT_LE(d.error, 1e-6) << b;
  }
}

TEST_P(Contract, PrefillChunksAndStepsAgreeUpToRounding) {
  Random random(12);
  constexpr int L = 75;
  const auto q = normal_tensor<float, 4>({1, 2, L, 16}, random), k = normal_tensor<float, 4>({1, 2, L, 16}, random);
  const auto v = normal_tensor<float, 4>({1, 2, L, 16}, random);
  const auto whole = heed::attention(q, k, v, AnyMask<true>(heed::Causal{}), options, context);
  for (const int step : {1, 7, 16, 64, L}) {
    for (int first = 0; first < L; first += step) {
      const int count = std::min(step, L - first), positions[] = {first};
      const auto chunk = q.view().slice(2, first, count);
      const auto keys = k.view().slice(2, 0, first + count), values = v.view().slice(2, 0, first + count);
      for (const auto& mask :
           {AnyMask<true>(heed::Causal::from(positions)), AnyMask<true>(heed::Causal::bottom_right())}) {
        const auto out = heed::attention(chunk, keys, values, mask, options, context);
        const auto d = deviation<float, float, 4>(out.view(), whole.view().slice(2, first, count));
        EXPECT_LE(d.error, 1e-6) << step << " from " << first;
      }
    }
  }
}

// Where sums are cut depends on shapes alone.

TEST_P(Contract, WhatThePairsAreMadeOfDoesNotMatter) {
  Random random(15);
  for (const Index width : {8, 64, 200}) {
    const auto q = normal_tensor<float, 4>({1, 1, 333, width}, random);
    const auto k = normal_tensor<float, 4>({1, 1, 333, width}, random);
    const int begin[] = {70}, end[] = {290}, offsets[] = {0, 5, 100, 230, 333};
    for (const auto& mask :
         {AnyMask<true>(heed::Window(90, 20)), AnyMask<true>(heed::Padding(begin, end)),
          AnyMask<true>(heed::DocumentMask(offsets)), AnyMask<true>(heed::DocumentMask(offsets) & heed::Causal{})}) {
      const auto shape = heed::AttentionShape{.B = 1, .H = 1, .G = 1, .Lq = 333, .Lk = 333, .Dk = 1, .Dv = 1};
      const auto bound = heed::bind(mask, shape);
      const auto told = pairs([&](int b, int h, int i, int j) { return heed::is_visible(bound, b, h, i, j); });
      const auto by_ranges = heed::attention(q, k, k, mask, options, context);
      const auto by_pairs = heed::attention(q, k, k, told, options, context);
      EXPECT_TRUE(same_bits(by_ranges, by_pairs)) << width;
    }
  }
}

// Dropout.

TEST_P(Contract, EachCallDropsItsOwnPlaces) {
  Random random(13);
  const auto x = normal_tensor<float, 4>({1, 2, 30, 8}, random);
  const auto run = [&] { return heed::attention(x, x, x, AnyMask<true>(heed::NoMask{}), options, context); };
  options.dropout = 0.5;
  context.training = true;
  const auto first = run(), second = run();
  EXPECT_FALSE(same_bits(first, second));
  context.restart_streams();
  EXPECT_TRUE(same_bits(first, run()));
  EXPECT_TRUE(same_bits(second, run()));
  context.restart_streams();
  context.seed = 1;
  EXPECT_FALSE(same_bits(first, run()));
}

TEST_P(Contract, DropoutDropsAsManyAsItSays) {
  for (const double p : {0.1, 0.5, 0.9}) {
    heed::Tensor<float, 4> q(2, 4, 100, 1), k(2, 4, 100, 1), v(2, 4, 100, 1);
    for_each_element(v.view(), [](float& x) { x = 1; });
    options.dropout = p;
    context.training = true;
    // Each output is the share of the weights that is left, times 1/(1-p): its mean is 1.
    double mean = 0;
    const auto out = heed::attention(q, k, v, AnyMask<true>(heed::NoMask{}), options, context);
    for_each_element(out.view(), [&](float y) { mean += y / 800.0; });
    EXPECT_NEAR(mean, 1, 5 * std::sqrt(p / (1 - p) / 80000)) << p;
  }
}

// Empty extents.

TEST_P(Contract, EmptyExtentsAreLegal) {
  for (const heed::Extents<4> e : {heed::Extents<4>{0, 2, 3, 4}, {2, 0, 3, 4}, {2, 2, 0, 4}, {2, 2, 3, 4}}) {
    for (const Index keys : {0, 5}) {
      for (const Index width : {0, 6}) {
        const heed::Tensor<float, 4> q(e), k(e[0], e[1], keys, e[3]), v(e[0], e[1], keys, width);
        const auto s = heed::attention_with_statistics(q, k, v, AnyMask<true>(heed::NoMask{}), options, context);
        EXPECT_EQ(s.out.extents(), (heed::Extents<4>{e[0], e[1], e[2], width}));
        for_each_element(s.out.view(), [](float y) { EXPECT_EQ(y, 0); });
        for_each_element(s.maximum.view(), [&](float m) { EXPECT_EQ(m, keys ? 0 : -kInf<float>); });
        for_each_element(s.sum.view(), [&](float sum) { EXPECT_EQ(sum, static_cast<float>(keys)); });
        const auto w = heed::attention_with_weights(q, k, v, AnyMask<true>(heed::NoMask{}), options, context);
        EXPECT_EQ(w.weights.extents(), (heed::Extents<4>{e[0], e[1], e[2], keys}));
      }
    }
  }
}

// A bias of -inf hides its pair exactly as a mask does, whatever the pair holds.

TEST_P(Contract, ABiasOfMinusInfinityHidesAsAMaskDoes) {
  Random random(14);
  const auto q = normal_tensor<float, 4>({1, 2, 40, 8}, random);
  auto k = normal_tensor<float, 4>({1, 2, 70, 8}, random), v = normal_tensor<float, 4>({1, 2, 70, 9}, random);
  heed::Tensor<double, 4> bias(1, 2, 40, 70);
  for_each_element(bias.view(), [&](double& x) { x = random.chance(0.5) ? -kInf<double> : 0; });
  // Query 3 sees nothing, key 5 is seen by nobody.
  for (int j = 0; j < 70; ++j) bias(0, 1, 3, j) = -kInf<double>;
  for (int h = 0; h < 2; ++h) {
    for (int i = 0; i < 40; ++i) bias(0, h, i, 5) = -kInf<double>;
  }
  const auto by_bias = [&] {
    return heed::attention_with_statistics(q, k, v, AnyMask<true>(heed::NoMask{}),
                                           AnyModifier::table(std::as_const(bias).view()), options, context);
  };
  const auto mask = heed::mask([&](int b, int h, int i, int j) { return !std::isinf(bias(b, h, i, j)); });
  const auto expected = heed::attention_with_statistics(q, k, v, AnyMask<false>(mask), options, context);
  const auto clean = by_bias();
  EXPECT_LE((deviation<float, float, 4>(clean.out.view(), expected.out.view()).error), 1e-6);
  for (int d = 0; d < 9; ++d) EXPECT_TRUE(equal_bits(clean.out(0, 1, 3, d), 0.0f));
  EXPECT_EQ(clean.maximum(0, 1, 3), -kInf<float>);
  EXPECT_EQ(clean.sum(0, 1, 3), 0);

  for (const float poison : {kNaN<float>, kInf<float>, -kInf<float>, 3e38f}) {
    SCOPED_TRACE(poison);
    for (int h = 0; h < 2; ++h) {
      for (int d = 0; d < 8; ++d) k(0, h, 5, d) = poison;
      for (int d = 0; d < 9; ++d) v(0, h, 5, d) = poison;
    }
    EXPECT_TRUE(same_bits(by_bias().out, clean.out));
  }
}

// Sparse masks tell the kernel where they go on; what it then skips, a function that says the same makes it look at.
TEST(SparseMasks, SkippedKeysChangeNoBit) {
  constexpr int L = 1000;
  Random random(16);
  const auto q = normal_tensor<float, 4>({1, 1, L, 8}, random), k = normal_tensor<float, 4>({1, 1, L, 8}, random),
             v = normal_tensor<float, 4>({1, 1, L, 8}, random);
  const std::vector<int> positions{0, 333, 700};
  const auto expect_same = [&](const auto& sparse, const auto& function) {
    EXPECT_TRUE(same_bits(heed::attention(q, k, v, sparse), heed::attention(q, k, v, function)));
  };
  const auto is_global = [](int i) { return i == 0 || i == 333 || i == 700; };
  expect_same(heed::Window(9, 9) | heed::GlobalTokens(positions),
              heed::mask([&](int i, int j) { return std::abs(i - j) <= 9 || is_global(i) || is_global(j); }));
  expect_same(heed::Strided(260, 3) & heed::Causal{},
              heed::mask([](int i, int j) { return j <= i && (j % 260 == 0 || i - j <= 3); }));
  expect_same(heed::GlobalTokens(1) & heed::Causal{},
              heed::mask([](int i, int j) { return j <= i && (i == 0 || j == 0); }));
}

}  // namespace
}  // namespace heed_test
