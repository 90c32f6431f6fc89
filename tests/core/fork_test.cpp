// SPDX-License-Identifier: MIT
// F21: pools in processes that fork() made.

#include <gtest/gtest.h>

#if defined(__unix__) && !defined(__EMSCRIPTEN__)

#include <atomic>
#include <memory>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <heed/core/parallel.hpp>

namespace {

using heed::ThreadPool;

/// Runs f in a child process: true if it returns true within ten seconds.
template <class F>
bool holds_in_child(F&& f) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    bool is_right = false;
    try {
      is_right = f();
    } catch (...) {}
    _exit(is_right ? 0 : 1);
  }
  int status = -1;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// Every task runs once, and two threads work at the same time.
bool works(ThreadPool& pool) {
  std::atomic<int> met{0}, sum{0};
  pool.parallel_for(2, [&](int, int) {
    ++met;
    while (met.load() < 2) std::this_thread::yield();
  });
  for (int call = 0; call < 20; ++call) pool.parallel_for(10, [&](int i, int) { sum += i; });
  return sum == 20 * 45;
}

TEST(Fork, F21_APoolThatWasUsedWorksInTheChild) {
  ThreadPool pool(2);
  ASSERT_TRUE(works(pool));
  EXPECT_TRUE(holds_in_child([&] { return works(pool) && works(pool); }));
  EXPECT_TRUE(works(pool));
}

TEST(Fork, F21_InGrandchildrenToo) {
  ThreadPool pool(2);
  EXPECT_TRUE(
      holds_in_child([&] { return works(pool) && holds_in_child([&] { return works(pool); }) && works(pool); }));
  EXPECT_TRUE(holds_in_child([&] { return holds_in_child([&] { return works(pool); }); }));
}

TEST(Fork, F21_AnInheritedPoolIsDestroyedInTheChild) {
  auto used = std::make_unique<ThreadPool>(3), unused = std::make_unique<ThreadPool>(3);
  EXPECT_TRUE(holds_in_child([&] {
    const bool is_right = used->concurrency() == 3;
    used->parallel_for(4, [](int, int) {});
    used.reset();
    unused.reset();
    return is_right;
  }));
}

TEST(Fork, F21_APoolThatAnotherThreadUsedWorksInTheChild) {
  ThreadPool pool(2);
  std::atomic<bool> runs{false}, may_end{false};
  std::thread other([&] {
    pool.parallel_for(2, [&](int, int) {
      runs = true;
      while (!may_end.load()) std::this_thread::yield();
    });
  });
  while (!runs.load()) std::this_thread::yield();
  EXPECT_TRUE(holds_in_child([&] { return works(pool); }));
  may_end = true;
  other.join();
}

TEST(Fork, F21_InsideATaskItThrowsInTheChild) {
  ThreadPool pool(2);
  std::atomic<int> met{0};
  pid_t child = -1;
  const pid_t parent = getpid();
  try {
    pool.parallel_for(2, [&](int, int worker) {
      ++met;
      while (met.load() < 2) std::this_thread::yield();
      if (worker == 0) child = fork();
      if (child == 0) alarm(10);
    });
  } catch (const heed::EnvironmentError&) {
    if (getpid() != parent) _exit(0);
  }
  if (getpid() != parent) _exit(1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(Fork, F21_PoolsMadeInTheChildWork) {
  EXPECT_TRUE(holds_in_child([] {
    ThreadPool pool(2);
    return works(pool);
  }));
}

}  // namespace

#endif
