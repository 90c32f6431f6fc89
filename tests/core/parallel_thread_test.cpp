// SPDX-License-Identifier: MIT
#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/parallel.hpp>

#include "common/allocation_counter.hpp"
#include "common/little_memory.hpp"

#if defined(__linux__)
#include <ctime>
#endif

namespace {

using heed::Executor;
using heed::ExecutorAdapter;
using heed::Serial;
using heed::Task;
using heed::ThreadPool;

/// Runs n pieces and checks what every executor promises: each piece once, workers below the concurrency, and never two
/// pieces in one worker at a time (each worker's plain int would be a race then).
void expect_pieces_to_run_once(Executor& executor, int n) {
  std::vector<std::atomic<int>> runs(static_cast<std::size_t>(n));
  std::vector<std::atomic<bool>> busy(static_cast<std::size_t>(executor.concurrency()));
  std::vector<int> in_slot(static_cast<std::size_t>(executor.concurrency()));
  std::atomic<int> wrong{0};
  executor.parallel_for(n, [&](int i, int worker) {
    if (i < 0 || i >= n || worker < 0 || worker >= executor.concurrency() ||
        busy[static_cast<std::size_t>(worker)].exchange(true)) {
      ++wrong;
      return;
    }
    ++runs[static_cast<std::size_t>(i)];
    ++in_slot[static_cast<std::size_t>(worker)];
    busy[static_cast<std::size_t>(worker)] = false;
  });
  EXPECT_EQ(wrong, 0);
  for (int i = 0; i < n; ++i) EXPECT_EQ(runs[static_cast<std::size_t>(i)], 1) << "piece " << i;
  EXPECT_EQ(std::accumulate(in_slot.begin(), in_slot.end(), 0), n);
}

TEST(FunctionRef, CallsWhatItRefersTo) {
  int total = 0;
  auto add = [&](int x) { return total += x; };
  const heed::FunctionRef<int(int)> f = add;
  EXPECT_EQ(f(2), 2);
  EXPECT_EQ(f(3), 5);
  const auto const_twice = [](int x) { return 2 * x; };
  EXPECT_EQ(heed::FunctionRef<int(int)>(const_twice)(4), 8);
  const heed::FunctionRef<int(int)> copy = f;
  EXPECT_EQ(copy(1), 6);
  static_assert(!std::is_constructible_v<heed::FunctionRef<int(int)>, std::string>);
}

TEST(Serial, RunsPiecesInOrderInTheCallingThread) {
  Serial serial;
  EXPECT_EQ(serial.concurrency(), 1);
  std::string order;
  serial.parallel_for(5, [&](int i, int worker) { order += std::to_string(i) + std::to_string(worker) + ' '; });
  EXPECT_EQ(order, "00 10 20 30 40 ");
  serial.parallel_for(0, [&](int, int) { FAIL(); });
  EXPECT_THROW(serial.parallel_for(3, [](int, int) { throw heed::ValueError("stop"); }), heed::ValueError);
}

TEST(ThreadPool, RunsEveryPieceOnce) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.concurrency(), threads);
    for (const int n : {0, 1, 2, 3, 7, 8, 100, 1000}) {
      SCOPED_TRACE(testing::Message() << threads << " threads, " << n << " pieces");
      expect_pieces_to_run_once(pool, n);
    }
  }
}

TEST(ThreadPool, RunsManyShortCallsInARow) {
  ThreadPool pool(3);
  long total = 0;
  std::vector<long> partial(3);
  for (int call = 0; call < 500; ++call) {
    pool.parallel_for(5, [&](int i, int worker) { partial[static_cast<std::size_t>(worker)] += i; });
  }
  for (const long p : partial) total += p;
  EXPECT_EQ(total, 500 * 10);
}

TEST(ThreadPool, WakesUpAfterSleeping) {
  ThreadPool pool(2);
  for (int call = 0; call < 3; ++call) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    expect_pieces_to_run_once(pool, 10);
  }
}

TEST(ThreadPool, UsesItsThreadsAtTheSameTime) {
  ThreadPool pool(2);
  std::atomic<int> met{0};
  // Each piece waits for the other; in one thread they would wait for ever.
  pool.parallel_for(2, [&](int, int) {
    ++met;
    while (met.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(met, 2);
}

TEST(ThreadPool, WhatPiecesWroteIsVisibleToTheCaller) {
  ThreadPool pool(3);
  std::vector<int> written(1000);
  pool.parallel_for(1000, [&](int i, int) { written[static_cast<std::size_t>(i)] = i; });
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(written[static_cast<std::size_t>(i)], i);
}

TEST(ThreadPool, AnExceptionOfAnyPieceReachesTheCaller) {
  ThreadPool pool(3);
  for (int bad = 0; bad < 20; ++bad) {
    try {
      pool.parallel_for(50, [&](int i, int) {
        if (i == bad) throw heed::ValueError("piece " + std::to_string(i));
      });
      FAIL() << "piece " << bad << " was not heard";
    } catch (const heed::ValueError& e) {
      EXPECT_EQ(e.what(), "piece " + std::to_string(bad));
    }
    expect_pieces_to_run_once(pool, 20);
  }
}

TEST(ThreadPool, WhenAllPiecesThrowOneExceptionArrives) {
  ThreadPool pool(3);
  std::atomic<int> begun{0};
  EXPECT_THROW(pool.parallel_for(1000,
                                 [&](int, int) {
                                   ++begun;
                                   throw std::runtime_error("each");
                                 }),
               std::runtime_error);
  EXPECT_GE(begun, 1);
  EXPECT_LE(begun, 1000);
  expect_pieces_to_run_once(pool, 20);
}

TEST(ThreadPool, EveryPieceHasEndedWhenAnExceptionArrives) {
  ThreadPool pool(2);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> running{0};
    EXPECT_THROW(pool.parallel_for(8,
                                   [&](int i, int) {
                                     ++running;
                                     if (i != 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
                                     --running;
                                     if (i == 0) throw heed::ValueError("early");
                                   }),
                 heed::ValueError);
    EXPECT_EQ(running, 0);
  }
}

TEST(ThreadPool, NestedCallsRunSeriallyInTheirPiece) {
  ThreadPool pool(3);
  std::atomic<int> inner{0}, moved{0};
  pool.parallel_for(6, [&](int, int worker) {
    const auto thread = std::this_thread::get_id();
    pool.parallel_for(4, [&](int, int inner_slot) {
      ++inner;
      moved += inner_slot != worker || std::this_thread::get_id() != thread;
    });
  });
  EXPECT_EQ(inner, 24);
  EXPECT_EQ(moved, 0);
  EXPECT_THROW(
      pool.parallel_for(6, [&](int, int) { pool.parallel_for(2, [](int, int) { throw heed::ValueError("inner"); }); }),
      heed::ValueError);
}

TEST(ThreadPool, APoolInsideAPoolWorks) {
  ThreadPool outer(2);
  std::atomic<int> runs{0};
  outer.parallel_for(4, [&](int, int) {
    ThreadPool inner(2);
    inner.parallel_for(5, [&](int, int) { ++runs; });
  });
  EXPECT_EQ(runs, 20);
}

TEST(ThreadPool, CallersFromSeveralThreadsTakeTurns) {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  std::atomic<int> failures{0};
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int call = 0; call < 30; ++call) {
        std::atomic<int> sum{0};
        bool thrown = false;
        try {
          pool.parallel_for(10, [&](int i, int) {
            sum += i;
            if (caller == 0 && i == 9) throw heed::ValueError("mine");
          });
        } catch (const heed::ValueError&) {
          thrown = true;
        }
        // Each caller gets its own pieces and its own exceptions.
        failures += thrown != (caller == 0) || (caller != 0 && sum != 45);
      }
    });
  }
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(failures, 0);
}

TEST(ThreadPool, CallersNeverShareAWorkerAlsoForOneTask) {
  for (const int threads : {1, 3}) {
    SCOPED_TRACE(threads);
    ThreadPool pool(threads);
    std::vector<std::atomic<int>> running(static_cast<std::size_t>(threads));
    std::atomic<int> shared{0};
    const auto task = [&](int, int worker) {
      std::atomic<int>& here = running[static_cast<std::size_t>(worker)];
      if (++here > 1) ++shared;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      --here;
    };
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 3; ++caller) {
      callers.emplace_back([&, caller] {
        for (int call = 0; call < 30; ++call) pool.parallel_for(caller == 0 ? 4 : 1, task);
      });
    }
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(shared, 0);
  }
}

TEST(ThreadPool, ASingleTaskMayForkAgainAndThrow) {
  ThreadPool pool(2);
  int runs = 0;
  pool.parallel_for(
      1, [&](int, int outer) { pool.parallel_for(3, [&](int, int worker) { runs += worker == outer ? 1 : 100; }); });
  EXPECT_EQ(runs, 3);
  EXPECT_THROW(pool.parallel_for(1, [](int, int) { throw heed::ValueError("stop"); }), heed::ValueError);
  expect_pieces_to_run_once(pool, 10);
}

#if defined(__linux__)
TEST(ThreadPool, AWaitingCallerSleeps) {
  ThreadPool pool(2);
  const auto cpu_time = [] {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  std::atomic<int> met{0};
  double before = 0;
  pool.parallel_for(2, [&](int, int worker) {
    ++met;
    while (met.load() < 2) std::this_thread::yield();
    if (worker == 0)
      before = cpu_time();
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
  });
  EXPECT_LT(cpu_time() - before, 0.1);
}
#endif

TEST(ParallelForEach, CountsTasksIn64Bits) {
  const heed::Index n = (heed::Index{1} << 32) + 5;
  heed::Index next = 0;
  heed::detail::for_int_ranges(n, [&](heed::Index first, int count) {
    EXPECT_EQ(first, next);
    EXPECT_GT(count, 0);
    next += count;
  });
  EXPECT_EQ(next, n);
}

TEST(ParallelForEach, RunsInThisThreadWithoutAnExecutor) {
  std::string order;
  heed::detail::parallel_for_each(
      nullptr, 3, [&](heed::Index i, int worker) { order += std::to_string(i) + std::to_string(worker) + ' '; });
  EXPECT_EQ(order, "00 10 20 ");
  heed::detail::parallel_for_each(nullptr, 0, [](heed::Index, int) { FAIL(); });
}

TEST(ThreadPool, AllocatesNothingPerCall) {
  ASSERT_TRUE(heed_test::counts_allocations());
  ThreadPool pool(2);
  std::atomic<int> sum{0};
  const auto call = [&] { pool.parallel_for(16, [&](int i, int) { sum += i; }); };
  call();
  EXPECT_EQ(heed_test::allocations_of([&] {
              for (int i = 0; i < 50; ++i) call();
            }),
            0);
}

TEST(ThreadPool, StartsAndStopsAtAnyTime) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(1 + i % 5);
    if (i % 2) expect_pieces_to_run_once(pool, i);
  }
}

TEST(ThreadPool, NeedsAtLeastOneThread) {
  EXPECT_THROW(ThreadPool(0), heed::ValueError);
  EXPECT_THROW(ThreadPool(-3), heed::ValueError);
}

#if defined(HEED_TEST_LITTLE_MEMORY)
TEST(ThreadPool, WhenTheSystemGivesNoMoreThreadsTheCallerLearnsOfIt) {
  // Room for the stacks of a few threads, not for those of a thousand.
  const heed_test::LittleMemory little(200LL << 20);
  EXPECT_THROW(ThreadPool(1000), std::system_error);
}
#endif

TEST(ExecutorAdapter, RunsTheLoopOfTheProgram) {
  // A loop as programs have it: one thread per worker, pieces dealt round-robin.
  ExecutorAdapter executor(3, [](int n, Task piece) {
    std::vector<std::thread> threads;
    for (int worker = 0; worker < 3; ++worker) {
      threads.emplace_back([=] {
        for (int i = worker; i < n; i += 3) piece(i, worker);
      });
    }
    for (std::thread& t : threads) t.join();
  });
  EXPECT_EQ(executor.concurrency(), 3);
  for (const int n : {1, 2, 3, 50}) expect_pieces_to_run_once(executor, n);
}

TEST(ExecutorAdapter, IsNotCalledForNothing) {
  int calls = 0;
  ExecutorAdapter executor(1, [&](int n, Task piece) {
    ++calls;
    for (int i = 0; i < n; ++i) piece(i, 0);
  });
  executor.parallel_for(0, [](int, int) {});
  EXPECT_EQ(calls, 0);
  executor.parallel_for(1, [](int, int) {});
  EXPECT_EQ(calls, 1);
  EXPECT_THROW(ExecutorAdapter(0, [](int, Task) {}), heed::ValueError);
}

}  // namespace
