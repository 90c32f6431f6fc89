// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Executor: runs numbered tasks, serially (Serial), in a loop of the program's (ExecutorAdapter), or on threads
/// (ThreadPool in parallel.hpp).
///
/// Any thread may run any task; results do not depend on it. A task is given its worker, 0 <= worker < concurrency().
/// Two tasks never run in one worker at the same time, so scratch memory is kept per worker. A task runs with the
/// floating-point state of its caller (rounding, flushing of subnormals), whichever thread runs it.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <thread>
#include <utility>

#include <heed/core/error.hpp>
#include <heed/core/float_state.hpp>

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

class Executor;
namespace detail {
void run_tasks(Executor& executor, int n, Task task);
}  // namespace detail

/// Runs numbered tasks. Implementations may run them in any order and at the same time.
///
/// heed watches executors of the program's. One that runs a task twice or not at all, returns before its tasks have
/// ended, or gives one worker to two tasks at the same time, makes the call throw EnvironmentError.
class Executor {
 public:
  virtual ~Executor() = default;
  /// The number of workers: as many tasks may run at the same time.
  virtual int concurrency() const = 0;
  /// Runs task(i, worker) for i in [0, n) and returns when all have ended. An exception of a task reaches the caller;
  /// tasks that had not begun by then may be left out.
  virtual void parallel_for(int n, Task task) = 0;

 private:
  friend class Serial;
  friend class ThreadPool;
  friend void detail::run_tasks(Executor& executor, int n, Task task);
  bool is_watched_ = true;  // false for those of heed
};

/// Runs everything in the calling thread.
class Serial final : public Executor {
 public:
  Serial() { is_watched_ = false; }
  int concurrency() const override { return 1; }
  void parallel_for(int n, Task task) override {
    for (int i = 0; i < n; ++i) task(i, 0);
  }
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

/// Watches an executor of the program's during one call: finds out what it does with the tasks, for some ten
/// nanoseconds each, and gives them the floating-point state of the caller.
class TaskLedger {
 public:
  TaskLedger(int n, int workers, Task task) : task_(task), count_(n), workers_(workers) {}

  /// Runs a task, unless that would touch the memory of another one.
  void run(int i, int worker) {
    if (i < 0 || i >= count_) return note(Breach::Task, i);
    if (worker < 0 || worker >= workers_) return note(Breach::Worker, worker);
    const Running running(*this, i, worker);
    if (!running.is_alone()) return note(Breach::SharedWorker, worker);
    const FloatStateScope state(state_);
    task_(i, worker);
  }
  /// Waits for tasks that have begun.
  void wait() const {
    while (ended_.load(std::memory_order_acquire) != begun_.load(std::memory_order_relaxed)) std::this_thread::yield();
  }
  /// Throws EnvironmentError unless every task has run once. Tasks that come later would write to memory of a call that
  /// is over, so it waits for them, for a second at most.
  void settle() const {
    const bool returned_early = ended_.load(std::memory_order_acquire) < count_;
    if (returned_early) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
      while (ended_.load(std::memory_order_acquire) < count_ &&
             breach_.load(std::memory_order_relaxed) == Breach::None && std::chrono::steady_clock::now() < end) {
        std::this_thread::yield();
      }
    }
    wait();
    const int ended = ended_.load(std::memory_order_acquire), number = number_.load(std::memory_order_relaxed);
    const Breach breach = breach_.load(std::memory_order_relaxed);
    constexpr const char* rule = "; parallel_for(n, task) must call task(i, worker) once for each i below n";
    HEED_CHECK(breach != Breach::Task, EnvironmentError, kWho, " ran task ", number, " of ", count_, rule);
    HEED_CHECK(breach != Breach::Worker, EnvironmentError, kWho, " ran a task in worker ", number,
               ", but concurrency() is ", workers_, "; workers must be at least 0 and below it");
    HEED_CHECK(breach != Breach::SharedWorker, EnvironmentError, kWho, " ran two tasks at the same time in worker ",
               number, "; tasks that run at the same time need different workers");
    HEED_CHECK(ended >= count_, EnvironmentError, kWho, " ran ", ended, " of ", count_, " tasks", rule);
    HEED_CHECK(!returned_early, EnvironmentError, kWho, " returned before its tasks had ended",
               "; parallel_for(n, task) must return after them");
    std::uint64_t all = 0;
    for (int i = 0; i < count_; ++i) all += digest_of(i);
    HEED_CHECK(ended == count_ && digest_.load(std::memory_order_relaxed) == all, EnvironmentError, kWho,
               " ran a task twice", rule);
  }

 private:
  enum class Breach { None, Task, Worker, SharedWorker };
  static constexpr const char* kWho = "heed: the executor";
  /// Workers beyond it are not watched for tasks at the same time.
  static constexpr int kWatchedWorkers = 256;

  /// The sum over all tasks differs, but for a chance of 2^-64, if one is left out for another (splitmix64).
  static std::uint64_t digest_of(int i) {
    std::uint64_t x = (static_cast<std::uint64_t>(i) + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

  /// A task that runs. Counts as ended also when the task throws.
  class Running {
   public:
    Running(TaskLedger& ledger, int i, int worker) : ledger_(ledger), i_(i), worker_(worker) {
      ledger_.begun_.fetch_add(1, std::memory_order_relaxed);
      is_alone_ = worker >= kWatchedWorkers || !busy().exchange(true, std::memory_order_acquire);
    }
    ~Running() {
      if (is_alone_ && worker_ < kWatchedWorkers) busy().store(false, std::memory_order_release);
      ledger_.digest_.fetch_add(digest_of(i_), std::memory_order_relaxed);
      ledger_.ended_.fetch_add(1, std::memory_order_release);
    }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
    bool is_alone() const { return is_alone_; }

   private:
    std::atomic<bool>& busy() const { return ledger_.busy_[worker_]; }
    TaskLedger& ledger_;
    int i_, worker_;
    bool is_alone_;
  };

  void note(Breach breach, int number) {
    number_.store(number, std::memory_order_relaxed);
    breach_.store(breach, std::memory_order_release);
  }

  const Task task_;
  const int count_, workers_;
  const FloatState state_ = FloatState::current();
  std::atomic<int> begun_{0}, ended_{0};
  std::atomic<std::uint64_t> digest_{0};
  std::atomic<Breach> breach_{Breach::None};
  std::atomic<int> number_{0};
  std::atomic<bool> busy_[kWatchedWorkers] = {};
};

/// executor.parallel_for(n, task) for the calls of heed: watches executors of the program's.
inline void run_tasks(Executor& executor, int n, Task task) {
  if (!executor.is_watched_) return executor.parallel_for(n, task);
  const int workers = executor.concurrency();
  HEED_CHECK(workers >= 1, EnvironmentError, "heed: the executor's concurrency() is ", workers,
             "; it must be at least 1");
  TaskLedger ledger(n, workers, task);
  const auto watched = [&](int i, int worker) { ledger.run(i, worker); };
#if HEED_EXCEPTIONS
  try {
    executor.parallel_for(n, watched);
  } catch (...) {
    ledger.wait();
    throw;
  }
#else
  executor.parallel_for(n, watched);
#endif
  ledger.settle();
}

/// n things in `parts` parts whose sizes differ by at most one: the first of part i.
constexpr Index part_begin(Index n, Index parts, Index i) { return n * i / parts; }

/// f(first, count) over [0, n) in parts that int can count.
template <class F>
void for_int_ranges(Index n, F&& f) {
  constexpr Index most = std::numeric_limits<int>::max();
  for (Index first = 0; first < n; first += most) f(first, static_cast<int>(std::min(most, n - first)));
}

/// task(i, worker) for i in [0, n): in this thread when `executor` is null or n is 1, else on the executor. More tasks
/// than int can count go to the executor in several calls.
template <class F>
void parallel_for_each(Executor* executor, Index n, F&& task) {
  if (!executor || n == 1) {
    for (Index i = 0; i < n; ++i) task(i, 0);
    return;
  }
  for_int_ranges(n, [&](Index first, int count) {
    run_tasks(*executor, count, [&](int i, int worker) { task(first + i, worker); });
  });
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
