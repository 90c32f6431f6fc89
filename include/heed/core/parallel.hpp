// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Who runs the pieces: the calling thread (Serial), a pool of threads (ThreadPool), or the user's own parallel_for.
///
/// Pieces are numbered; which thread runs which piece is free and never changes a result. A piece also learns its
/// worker, 0 <= worker < concurrency(): no two pieces run in one worker at the same time, so scratch memory is kept per
/// worker.

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <heed/core/config.hpp>
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

/// A piece of work: its number and the worker it runs in.
using Task = FunctionRef<void(int i, int worker)>;

/// Runs numbered pieces. Implementations may run them in any order and at the same time.
class Executor {
 public:
  virtual ~Executor() = default;
  /// How many pieces may run at the same time; workers are below it.
  virtual int concurrency() const = 0;
  /// Runs piece(i, worker) for i in [0, n) and returns when all have ended. An exception of a piece reaches the caller;
  /// pieces that had not begun by then may be left out.
  virtual void parallel_for(int n, Task piece) = 0;
};

/// Everything in the calling thread.
class Serial final : public Executor {
 public:
  int concurrency() const override { return 1; }
  void parallel_for(int n, Task piece) override {
    for (int i = 0; i < n; ++i) piece(i, 0);
  }
};

/// Threads that wait for work: they spin for a short while after a call (a fork then costs about a microsecond),
/// then sleep. The calling thread works too. One caller at a time: concurrent parallel_for calls queue.
/// A parallel_for from inside a piece runs serially in that piece. Pieces may use another pool, but not in a circle:
/// two pools whose pieces call each other wait for each other for ever.
class ThreadPool final : public Executor {
 public:
  /// `threads` counts the calling thread; throws ValueError when it is below 1, std::system_error when the system gives
  /// no more threads.
  explicit ThreadPool(int threads) : ThreadPool() {
    HEED_CHECK(threads >= 1, ValueError, "heed::ThreadPool: threads = ", threads, " but at least 1 is needed");
    workers_.reserve(static_cast<std::size_t>(threads - 1));
    for (int worker = 1; worker < threads; ++worker) workers_.emplace_back([this, worker] { serve(worker); });
    // A thread allocates when it starts; later calls shall allocate nothing.
    parallel_for(threads, [](int, int) {});
  }
  ~ThreadPool() override {
    stop_.store(true, std::memory_order_relaxed);
    start_.fetch_add(1, std::memory_order_release);
    start_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int concurrency() const override { return static_cast<int>(workers_.size()) + 1; }

  void parallel_for(int n, Task piece) override {
    if (n <= 0) return;
    if (n == 1 || workers_.empty() || inside() == this) {
      const int worker = inside() == this ? inside_worker() : 0;
      for (int i = 0; i < n; ++i) piece(i, worker);
      return;
    }
    const std::lock_guard<std::mutex> one_caller(caller_);
    piece_ = &piece;
    count_ = n;
    next_.store(0, std::memory_order_relaxed);
    running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    start_.fetch_add(1, std::memory_order_release);
    start_.notify_all();
    work(0);
    for (int spin = 0; running_.load(std::memory_order_acquire) != 0; ++spin) {
      if (spin >= kSpins) std::this_thread::yield();
    }
#if HEED_EXCEPTIONS
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
#endif
  }

 private:
  static constexpr int kSpins = 20000;

  /// The public constructor delegates to this one, so that when it throws, the destructor ends the threads begun.
  ThreadPool() = default;

  static const ThreadPool*& inside() {
    static thread_local const ThreadPool* pool = nullptr;
    return pool;
  }
  static int& inside_worker() {
    static thread_local int worker = 0;
    return worker;
  }

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
      running_.fetch_sub(1, std::memory_order_release);
    }
  }

  void work(int worker) {
    const ThreadPool* outer = std::exchange(inside(), this);
    const int outer_worker = std::exchange(inside_worker(), worker);
#if HEED_EXCEPTIONS
    try {
#endif
      for (int i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) (*piece_)(i, worker);
#if HEED_EXCEPTIONS
    } catch (...) {
      next_.store(count_, std::memory_order_relaxed);
      const std::lock_guard<std::mutex> guard(failure_guard_);
      if (!failure_) failure_ = std::current_exception();
    }
#endif
    inside() = outer;
    inside_worker() = outer_worker;
  }

  std::mutex caller_;
  const Task* piece_ = nullptr;
  int count_ = 0;
  alignas(64) std::atomic<std::uint32_t> start_{0};
  alignas(64) std::atomic<int> next_{0};
  alignas(64) std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
  std::mutex failure_guard_;
  std::exception_ptr failure_;
  std::vector<std::thread> workers_;
};

/// Adapts a parallel loop that the program already has (OpenMP, TBB, a game's job system):
///   heed::ExecutorAdapter executor(8, [&](int n, heed::Task piece) { jobs.for_each(n, [&](int i) { piece(i,
///   jobs.thread()); }); });
/// The loop must run every piece once and return when all are done; workers must lie below `concurrency`, and pieces
/// that run at the same time must have different ones.
template <class Loop>
class ExecutorAdapter final : public Executor {
 public:
  /// Throws ValueError when concurrency is below 1.
  ExecutorAdapter(int concurrency, Loop loop) : concurrency_(concurrency), loop_(std::move(loop)) {
    HEED_CHECK(concurrency >= 1, ValueError, "heed::ExecutorAdapter: concurrency = ", concurrency,
               " but at least 1 is needed");
  }
  int concurrency() const override { return concurrency_; }
  void parallel_for(int n, Task piece) override {
    if (n > 0) loop_(n, piece);
  }

 private:
  int concurrency_;
  Loop loop_;
};

HEED_NAMESPACE_END
