// SPDX-License-Identifier: MIT
// The floating-point state that tasks run with, and executors that break their contract.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/parallel.hpp>

#include "common/float_modes.hpp"
#include "common/message_of.hpp"

namespace {

using heed::EnvironmentError;
using heed::Executor;
using heed::ExecutorAdapter;
using heed::Task;
using heed::ThreadPool;
using heed::detail::FloatState;
using heed::detail::parallel_for_each;
using heed_test::has_all;

constexpr std::array kRoundings = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};

/// Two tasks at the same time, in two threads: each must have the caller's state.
void expect_tasks_to_have_my_state(Executor& executor) {
  const FloatState mine = FloatState::current();
  std::atomic<int> met{0}, same{0};
  parallel_for_each(&executor, 2, [&](heed::Index, int) {
    ++met;
    while (met.load() < 2) std::this_thread::yield();
    same += FloatState::current() == mine;
  });
  EXPECT_EQ(same, 2);
}

void expect_every_state_to_reach_tasks(Executor& executor) {
  for (const bool flush : {true, false}) {
    for (const int rounding : kRoundings) {
      SCOPED_TRACE(testing::Message() << "flush " << flush << ", rounding " << rounding);
      const heed_test::FloatMode mode(flush, rounding);
      expect_tasks_to_have_my_state(executor);
    }
  }
  expect_tasks_to_have_my_state(executor);
}

/// A loop with two threads of its own, each with the state that it was born with.
void run_in_two_threads(int n, Task task) {
  std::array<FloatState, 2> before, after;
  std::vector<std::thread> threads;
  for (int worker = 0; worker < 2; ++worker) {
    threads.emplace_back([=, &before, &after] {
      before[static_cast<std::size_t>(worker)] = FloatState::current();
      for (int i = worker; i < n; i += 2) task(i, worker);
      after[static_cast<std::size_t>(worker)] = FloatState::current();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(before[0], after[0]);
  EXPECT_EQ(before[1], after[1]);
}

TEST(FloatState, F17_IsTheCallersInThreadsOfAPool) {
  ThreadPool pool(2);
  expect_every_state_to_reach_tasks(pool);
}

TEST(FloatState, F17_IsTheCallersInThreadsOfTheProgram) {
  ExecutorAdapter executor(2, run_in_two_threads);
  expect_every_state_to_reach_tasks(executor);
}

TEST(FloatState, IsGivenBack) {
  const FloatState before = FloatState::current();
  {
    const heed_test::FloatMode mode(true, FE_UPWARD);
    const FloatState changed = FloatState::current();
    EXPECT_NE(changed, before);
    {
      const heed::detail::FloatStateScope plain{before};
      EXPECT_EQ(FloatState::current(), before);
    }
    EXPECT_EQ(FloatState::current(), changed);
  }
  EXPECT_EQ(FloatState::current(), before);
}

/// The message of the call's EnvironmentError; `loop` is the program's.
template <class Loop>
std::string breach_of(int concurrency, int n, Loop loop) {
  ExecutorAdapter executor(concurrency, loop);
  return heed_test::message_of<EnvironmentError>([&] { parallel_for_each(&executor, n, [](heed::Index, int) {}); });
}

TEST(Executor, RunningATaskTwiceIsFound) {
  const std::string twice = breach_of(1, 4, [](int n, Task task) {
    for (int i = 0; i < n; ++i) task(i, 0);
    task(2, 0);
  });
  EXPECT_TRUE(has_all(twice, {"ran a task twice"}));
  const std::string instead = breach_of(1, 4, [](int, Task task) {
    for (const int i : {0, 1, 1, 3}) task(i, 0);
  });
  EXPECT_TRUE(has_all(instead, {"ran a task twice"}));
}

TEST(Executor, LeavingATaskOutIsFound) {
  EXPECT_TRUE(has_all(breach_of(1, 4,
                                [](int n, Task task) {
                                  for (int i = 1; i < n; ++i) task(i, 0);
                                }),
                      {"ran 3 of 4 tasks"}));
  EXPECT_TRUE(has_all(breach_of(1, 4, [](int, Task) {}), {"ran 0 of 4 tasks"}));
}

TEST(Executor, TasksThatDoNotExistAreFoundAndNotRun) {
  int highest = 0;
  ExecutorAdapter executor(1, [](int n, Task task) {
    for (int i = 0; i <= n; ++i) task(i, 0);
  });
  const std::string message = heed_test::message_of<EnvironmentError>([&] {
    parallel_for_each(&executor, 4, [&](heed::Index i, int) { highest = std::max(highest, static_cast<int>(i)); });
  });
  EXPECT_TRUE(has_all(message, {"ran task 4 of 4"}));
  EXPECT_EQ(highest, 3);
}

TEST(Executor, WorkersThatDoNotExistAreFound) {
  for (const int worker : {-1, 2, 1000}) {
    const std::string message = breach_of(2, 3, [=](int n, Task task) {
      for (int i = 0; i < n; ++i) task(i, i == 1 ? worker : 0);
    });
    EXPECT_TRUE(has_all(message, {"in worker " + std::to_string(worker) + ", but concurrency() is 2"}));
  }
  class NoWorkers final : public Executor {
   public:
    int concurrency() const override { return 0; }
    void parallel_for(int n, Task task) override {
      for (int i = 0; i < n; ++i) task(i, 0);
    }
  };
  NoWorkers none;
  EXPECT_THROW(parallel_for_each(&none, 2, [](heed::Index, int) {}), EnvironmentError);
}

TEST(Executor, OneWorkerForTwoTasksAtTheSameTimeIsFound) {
  std::atomic<int> met{0};
  ExecutorAdapter executor(2, [&](int, Task task) {
    std::thread other([&] { task(0, 0); });
    while (met.load() == 0) std::this_thread::yield();
    task(1, 0);
    ++met;
    other.join();
  });
  const std::string message = heed_test::message_of<EnvironmentError>([&] {
    parallel_for_each(&executor, 2, [&](heed::Index, int) {
      ++met;
      while (met.load() < 2) std::this_thread::yield();
    });
  });
  EXPECT_TRUE(has_all(message, {"two tasks at the same time in worker 0"}));
}

TEST(Executor, ReturningBeforeItsTasksIsFoundAndTheyEnd) {
  std::thread late;
  ExecutorAdapter executor(1, [&](int n, Task task) {
    late = std::thread([=] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      for (int i = 0; i < n; ++i) task(i, 0);
    });
  });
  std::vector<int> runs(8);
  const std::string message = heed_test::message_of<EnvironmentError>(
      [&] { parallel_for_each(&executor, 8, [&](heed::Index i, int) { ++runs[static_cast<std::size_t>(i)]; }); });
  late.join();
  EXPECT_TRUE(has_all(message, {"returned before its tasks had ended"}));
  EXPECT_EQ(runs, std::vector<int>(8, 1));
}

TEST(Executor, AnExceptionWaitsForTasksThatRun) {
  std::thread other;
  std::atomic<bool> has_begun{false}, has_ended{false};
  ExecutorAdapter executor(2, [&](int, Task task) {
    other = std::thread([=] { task(1, 1); });
    while (!has_begun.load()) std::this_thread::yield();
    task(0, 0);
  });
  EXPECT_THROW(parallel_for_each(&executor, 2,
                                 [&](heed::Index i, int) {
                                   if (i == 0) throw heed::ValueError("stop");
                                   has_begun = true;
                                   std::this_thread::sleep_for(std::chrono::milliseconds(20));
                                   has_ended = true;
                                 }),
               heed::ValueError);
  EXPECT_TRUE(has_ended);
  other.join();
}

}  // namespace
