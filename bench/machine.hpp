// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// What the processor can do at best, measured in the process that measures the kernels: the figures they are held
/// against.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <vector>

#include <heed/core/parallel.hpp>
#include <heed/core/simd.hpp>

namespace heed_bench {

inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Processor time of all threads of this process: less than the wall time where somebody else had the core.
inline double cpu_seconds() {
  std::timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// For the compiler, somebody reads what `p` points to, and may change it.
inline void touch(void* p) { asm volatile("" : : "g"(p) : "memory"); }

/// Floating-point operations per second of multiply-adds on registers: one slice of about a millisecond on every
/// thread.
template <class T>
double fma_slice(heed::Executor& executor) {
  using V = heed::Vec<T>;
  // Two pipelines of latency 4 need 8 chains. Each starts from another value, or the compiler would make one of them.
  constexpr int chains = 12, steps = 200'000;
  const int threads = executor.concurrency();
  const double start = seconds();
  executor.parallel_for(threads, [](int, int) {
    V sum[chains], factor(T(0.999)), summand(T(0.001));
    heed::detail::unroll<chains>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { sum[i] = V(T(1 + i)); });
    touch(&factor);
    touch(&summand);
    const V a = factor, b = summand;
    for (int step = 0; step < steps; ++step) {
      heed::detail::unroll<chains>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { sum[i] = fma(sum[i], a, b); });
    }
    V total = sum[0];
    heed::detail::unroll<chains - 1>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { total = total + sum[i + 1]; });
    touch(&total);
  });
  return 2. * chains * V::size * steps * threads / (seconds() - start);
}

/// Bytes per second of adding up `memory` once: each thread reads a part of it as eight streams.
inline double read_slice(const std::vector<float>& memory, heed::Executor& executor) {
  using V = heed::Vec<float>;
  constexpr std::size_t streams = 8;
  const auto threads = static_cast<std::size_t>(executor.concurrency());
  const std::size_t length = memory.size() / (streams * threads * V::size) * V::size;
  const double start = seconds();
  executor.parallel_for(executor.concurrency(), [&](int thread, int) {
    const float* part = memory.data() + static_cast<std::size_t>(thread) * streams * length;
    V sum[streams];
    heed::detail::unroll<streams>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { sum[i] = V(0.f); });
    for (std::size_t at = 0; at < length; at += V::size) {
      heed::detail::unroll<streams>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA {
        sum[i] = sum[i] + V::load(part + static_cast<std::size_t>(i) * length + at);
      });
    }
    heed::detail::unroll<streams - 1>([&](auto i) HEED_ALWAYS_INLINE_LAMBDA { sum[0] = sum[0] + sum[i + 1]; });
    touch(&sum[0]);
  });
  return static_cast<double>(threads * streams * length * sizeof(float)) / (seconds() - start);
}

/// The best of many slices, on one thread.
template <class T>
double fma_peak() {
  heed::Serial serial;
  double best = 0;
  for (int slice = 0; slice < 100; ++slice) best = std::max(best, fma_slice<T>(serial));
  return best;
}
/// The same of 256 MiB, more than caches hold.
inline double read_bandwidth() {
  heed::Serial serial;
  const std::vector<float> memory(std::size_t{64} << 20, 1.f);
  double best = 0;
  for (int slice = 0; slice < 10; ++slice) best = std::max(best, read_slice(memory, serial));
  return best;
}

}  // namespace heed_bench
