// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// What the processor can do at best, measured in the process that measures the kernels: the figures they are held
/// against.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include <benchmark/benchmark.h>

#include <heed/core/simd.hpp>

namespace heed_bench {

inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Floating-point operations per second of fused multiply-adds on registers: the best of many short slices.
template <class T>
double fma_peak() {
  using V = heed::Vec<T>;
  constexpr int chains = 12, steps = 20'000, slices = 500;
  double best = 0;
  for (int slice = 0; slice < slices; ++slice) {
    V sum[chains], factor(T(0.999)), summand(T(0.001));
    heed::detail::unroll<chains>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { sum[i] = V(T(1 + i)); });
    benchmark::DoNotOptimize(factor);
    benchmark::DoNotOptimize(summand);
    const double start = seconds();
    for (int step = 0; step < steps; ++step) {
      heed::detail::unroll<chains>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { sum[i] = fma(sum[i], factor, summand); });
    }
    V total = sum[0];
    heed::detail::unroll<chains - 1>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { total = total + sum[i + 1]; });
    benchmark::DoNotOptimize(total);
    best = std::max(best, 2. * chains * V::size * steps / (seconds() - start));
  }
  return best;
}

/// Bytes per second of adding up 256 MiB in order, as eight streams: the best of several passes.
inline double read_bandwidth() {
  using V = heed::Vec<float>;
  constexpr int streams = 8;
  const std::vector<float> memory(std::size_t{64} << 20, 1.f);
  const std::size_t part = memory.size() / streams;
  double best = 0;
  for (int pass = 0; pass < 10; ++pass) {
    V sum[streams];
    heed::detail::unroll<streams>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { sum[i] = V(0.f); });
    const double start = seconds();
    for (std::size_t at = 0; at < part; at += V::size) {
      heed::detail::unroll<streams>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
        sum[i] = sum[i] + V::load(memory.data() + static_cast<std::size_t>(i) * part + at);
      });
    }
    heed::detail::unroll<streams - 1>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { sum[0] = sum[0] + sum[i + 1]; });
    benchmark::DoNotOptimize(sum[0]);
    best = std::max(best, static_cast<double>(memory.size() * sizeof(float)) / (seconds() - start));
  }
  return best;
}

}  // namespace heed_bench
