// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Runs the table of attention_cases.hpp through the blocked path in one pair of element types.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

#include <heed/attention/attention.hpp>
#include <heed/compiled/attention.hpp>

#include "common/attention_cases.hpp"
#include "common/error_budget.hpp"
#include "common/views.hpp"

namespace heed_test {

template <class T, class A>
struct Answer {
  heed::Tensor<T, 4> out;
  heed::Tensor<A, 3> log_sum_exp;
};

template <class T, class S>
Answer<T, heed::accumulate_t<T>> answer(const AttentionCase& c, heed::TensorView<const T, 4> q,
                                        heed::TensorView<const S, 4> k, heed::TensorView<const S, 4> v,
                                        heed::Path path) {
  heed::Context context;
  context.path = path;
  heed::AttentionOptions options;
  options.scale = c.scale;
  options.sinks = c.sinks;
  const auto run = [&](const auto& mask, const auto& modifier) {
    auto result = heed::attention_with_statistics(q, k, v, mask, modifier, options, context);
    for (Index i = 0; i < result.sum.size(); ++i) result.maximum.data()[i] += std::log(result.sum.data()[i]);
    return Answer<T, heed::accumulate_t<T>>{std::move(result.out), std::move(result.maximum)};
  };
  return c.mask.with_mask(
      [&](const auto& mask) { return c.modifier ? run(mask, *c.modifier) : run(mask, heed::NoModifier{}); });
}

/// Blocked against naive in T, both judged by the naive path in E; then the same bits from memory of other layouts.
template <class T, class S, class E>
void check_budget(const AttentionCase& c, std::uint64_t seed) {
  SCOPED_TRACE(c.name);
  Random random(seed);
  const auto& s = c.shape;
  const auto inputs = [&]<class X>(X, int heads, int length, int width, double stddev) {
    auto x = normal_tensor<X, 4>({s.B, heads, length, width}, random, stddev);
    if (c.on_grid) {
      for_each_element(x.view(), [](X& e) { e = static_cast<X>(std::round(static_cast<double>(e) * 16) / 16); });
    }
    return x;
  };
  const auto q = inputs(T{}, s.H, s.Lq, s.Dk, c.stddev);
  const auto k = inputs(S{}, s.G, s.Lk, s.Dk, c.stddev), v = inputs(S{}, s.G, s.Lk, s.Dv, 1);

  const auto fast = answer<T, S>(c, q, k, v, heed::Path::Blocked);
  const auto naive = answer<T, S>(c, q, k, v, heed::Path::Reference);
  const auto exact_q = cast<E>(q.view()), exact_k = cast<E>(k.view()), exact_v = cast<E>(v.view());
  const auto exact = answer<E, E>(c, exact_q, exact_k, exact_v, heed::Path::Reference);
  EXPECT_TRUE(within_budget(fast.out, naive.out, exact.out)) << "output";
  EXPECT_TRUE(within_budget(fast.log_sum_exp, naive.log_sum_exp, exact.log_sum_exp)) << "log-sum-exp";

  const Spaced<T, 4> spaced_q(q.view(), random);
  const Spaced<S, 4> spaced_k(k.view(), random), spaced_v(v.view(), random);
  const auto spaced = answer<T, S>(c, spaced_q.view(), spaced_k.view(), spaced_v.view(), heed::Path::Blocked);
  EXPECT_TRUE(same_bits(spaced.out, fast.out)) << "strides change the output";
}

/// All cases; every fourth in a debug or sanitizer build, where the numbers are the same and the time is not.
template <class T, class S, class E>
void check_all_budgets() {
  const std::size_t step = effort(4) < 4 ? 4 : 1;
  const auto cases = attention_cases();
  for (std::size_t i = 0; i < cases.size(); i += step) check_budget<T, S, E>(cases[i], 1001 + i);
}

}  // namespace heed_test
