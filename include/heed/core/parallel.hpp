// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Executors: run numbered tasks serially (Serial), on a pool of threads (ThreadPool), or in a loop of the program's
/// (ExecutorAdapter).
///
/// Any thread may run any task; results do not depend on it. A task is given its worker, 0 <= worker < concurrency().
/// Two tasks never run in one worker at the same time, so scratch memory is kept per worker.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <heed/core/error.hpp>

HEED_NAMESPACE_BEGIN

/// A non-owning reference to something callable; the callable must outlive it.
template <class Signature>
class FunctionRef;
/// The reference for a signature.
template <class R, class... A>
class FunctionRef<R(A...)> {
 public:
  /// Refers to f; implicit, so that a lambda can be passed where one is asked for.
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef> && std::is_invocable_r_v<R, F&, A...>)
  FunctionRef(F&& f)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))), call_([](void* object, A... a) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(static_cast<A&&>(a)...);
        }) {}
  /// Calls it.
  R operator()(A... a) const { return call_(object_, static_cast<A&&>(a)...); }

 private:
  void* object_;
  R (*call_)(void*, A...);
};

/// One task: its number and the worker that it runs in.
using Task = FunctionRef<void(int i, int worker)>;

/// Runs numbered tasks. Implementations may run them in any order and at the same time.
class Executor {
 public:
  virtual ~Executor() = default;
  /// The number of workers: as many tasks may run at the same time.
  virtual int concurrency() const = 0;
  /// Runs task(i, worker) for i in [0, n) and returns when all have ended. An exception of a task reaches the caller;
  /// tasks that had not begun by then may be left out.
  virtual void parallel_for(int n, Task task) = 0;
};

/// Runs everything in the calling thread.
class Serial final : public Executor {
 public:
  int concurrency() const override { return 1; }
  void parallel_for(int n, Task task) override {
    for (int i = 0; i < n; ++i) task(i, 0);
  }
};

/// Threads that wait for work. They spin for some microseconds after a call, so that the next fork costs about a
/// microsecond, then sleep. The calling thread works too; a caller whose tasks are all taken spins for as long and then
/// sleeps until the last one ends.
///
/// One caller at a time: callers of one pool queue, also those with a single task. A parallel_for from inside a task
/// runs serially in that task's worker. Tasks may use another pool, but not in a circle: two pools whose tasks call
/// each other deadlock.
class ThreadPool final : public Executor {
 public:
  /// `threads` includes the calling thread. Throws ValueError when it is below 1, std::system_error when the system
  /// gives no more threads.
  explicit ThreadPool(int threads) : ThreadPool() {
    HEED_CHECK(threads >= 1, ValueError, "heed::ThreadPool: threads = ", threads, " but at least 1 is needed");
    threads_.reserve(static_cast<std::size_t>(threads - 1));
    for (int worker = 1; worker < threads; ++worker) threads_.emplace_back([this, worker] { serve(worker); });
    // A thread allocates when it starts. After this call it has started, and later calls allocate nothing.
    parallel_for(threads, [](int, int) {});
  }
  ~ThreadPool() override {
    stop_.store(true, std::memory_order_relaxed);
    start_.fetch_add(1, std::memory_order_release);
    start_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int concurrency() const override { return static_cast<int>(threads_.size()) + 1; }

  void parallel_for(int n, Task task) override {
    if (n <= 0) return;
    if (Place& place = current(); place.pool == this) {
      for (int i = 0; i < n; ++i) task(i, place.worker);
      return;
    }
    const std::lock_guard<std::mutex> one_caller(caller_);
    if (n == 1 || threads_.empty()) {
      const Scope scope(this, 0);
      for (int i = 0; i < n; ++i) task(i, 0);
      return;
    }
    task_ = &task;
    count_ = n;
    next_.store(0, std::memory_order_relaxed);
    running_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
    start_.fetch_add(1, std::memory_order_release);
    start_.notify_all();
    work(0);
    int running;
    for (int spin = 0; (running = running_.load(std::memory_order_acquire)) != 0; ++spin) {
      if (spin >= kSpins) running_.wait(running, std::memory_order_acquire);
    }
#if HEED_EXCEPTIONS
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
#endif
  }

 private:
  static constexpr int kSpins = 20000;

  /// The public constructor delegates to this one, so that when it throws, the destructor ends the threads begun.
  ThreadPool() = default;

  /// The pool whose task this thread is running, and the worker.
  struct Place {
    const ThreadPool* pool = nullptr;
    int worker = 0;
  };
  static Place& current() {
    static thread_local Place place;
    return place;
  }
  /// Marks this thread as running tasks of a pool.
  class Scope {
   public:
    Scope(const ThreadPool* pool, int worker) : outer_(std::exchange(current(), {pool, worker})) {}
    ~Scope() { current() = outer_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Place outer_;
  };

  void serve(int worker) {
    std::uint32_t seen = 0;
    for (;;) {
      std::uint32_t now;
      for (int spin = 0; (now = start_.load(std::memory_order_acquire)) == seen; ++spin) {
        if (spin >= kSpins) start_.wait(seen, std::memory_order_acquire);
      }
      seen = now;
      if (stop_.load(std::memory_order_relaxed)) return;
      work(worker);
      if (running_.fetch_sub(1, std::memory_order_release) == 1) running_.notify_one();
    }
  }

  void work(int worker) {
    const Scope scope(this, worker);
#if HEED_EXCEPTIONS
    try {
#endif
      for (int i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) (*task_)(i, worker);
#if HEED_EXCEPTIONS
    } catch (...) {
      next_.store(count_, std::memory_order_relaxed);
      const std::lock_guard<std::mutex> guard(failure_guard_);
      if (!failure_) failure_ = std::current_exception();
    }
#endif
  }

  std::mutex caller_;
  const Task* task_ = nullptr;
  int count_ = 0;
  alignas(64) std::atomic<std::uint32_t> start_{0};
  alignas(64) std::atomic<int> next_{0};
  alignas(64) std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
  std::mutex failure_guard_;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

/// Adapts a parallel loop that the program already has (OpenMP, TBB, a game's job system):
///
///   heed::ExecutorAdapter executor(8, [&](int n, heed::Task task) {
///     jobs.for_each(n, [&](int i) { task(i, jobs.thread()); });
///   });
///
/// The loop must run every task once and return when all are done. Workers must be below `concurrency`, and tasks that
/// run at the same time must have different ones.
template <class Loop>
class ExecutorAdapter final : public Executor {
 public:
  /// Throws ValueError when concurrency is below 1.
  ExecutorAdapter(int concurrency, Loop loop) : concurrency_(concurrency), loop_(std::move(loop)) {
    HEED_CHECK(concurrency >= 1, ValueError, "heed::ExecutorAdapter: concurrency = ", concurrency,
               " but at least 1 is needed");
  }
  int concurrency() const override { return concurrency_; }
  void parallel_for(int n, Task task) override {
    if (n > 0) loop_(n, task);
  }

 private:
  int concurrency_;
  Loop loop_;
};

namespace detail {

/// n things in `parts` parts whose sizes differ by at most one: the first of part i.
constexpr Index part_begin(Index n, Index parts, Index i) { return n * i / parts; }

/// task(i, worker) for i in [0, n): in this thread when `executor` is null or n is 1, else on the executor. More tasks
/// than int can count go to the executor in several calls.
template <class F>
void parallel_for_each(Executor* executor, Index n, F&& task) {
  if (!executor || n == 1) {
    for (Index i = 0; i < n; ++i) task(i, 0);
    return;
  }
  constexpr Index most = std::numeric_limits<int>::max();
  for (Index first = 0; first < n; first += most) {
    executor->parallel_for(static_cast<int>(std::min(most, n - first)),
                           [&](int i, int worker) { task(first + i, worker); });
  }
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
