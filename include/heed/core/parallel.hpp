// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// ThreadPool: an executor of threads that wait for work.

#include <exception>
#include <mutex>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

#include <heed/core/executor.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// Counts the calls of fork() that lie between this process and the one in which it was called first.
inline unsigned fork_count() {
#if (defined(__unix__) || defined(__APPLE__)) && !defined(__EMSCRIPTEN__)
  static std::atomic<unsigned> count{0};
  static const int registered = pthread_atfork(nullptr, nullptr, [] { count.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  return count.load(std::memory_order_relaxed);
#else
  return 0;
#endif
}

}  // namespace detail

/// Threads that wait for work. They spin for some microseconds after a call, so that the next fork costs about a
/// microsecond, then sleep. The calling thread works too; a caller whose tasks are all taken spins for as long and then
/// sleeps until the last one ends.
///
/// One caller at a time: callers of one pool queue, also those with a single task. A parallel_for from inside a task
/// runs serially in that task's worker. Tasks may use another pool, but not in a circle: two pools whose tasks call
/// each other deadlock.
///
/// fork() copies a pool without its threads. In the child, the first call starts them again; inside a task, fork() is
/// for exec() alone.
class ThreadPool final : public Executor {
 public:
  /// `threads` includes the calling thread. Throws ValueError when it is below 1, std::system_error when the system
  /// gives no more threads.
  explicit ThreadPool(int threads) : threads_(threads) {
    is_watched_ = false;
    HEED_CHECK(threads >= 1, ValueError, "heed::ThreadPool: threads = ", threads, " but at least 1 is needed");
    crew_.store(new Crew(*this), std::memory_order_release);
  }
  ~ThreadPool() override {
    // A child process can't join threads that it does not have: it leaves their memory alone.
    if (Crew* crew = crew_.load(std::memory_order_acquire); crew->is_of_this_process()) delete crew;
  }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int concurrency() const override { return threads_; }

  void parallel_for(int n, Task task) override {
    if (n <= 0) return;
    if (Place& place = current(); place.pool == this) {
      for (int i = 0; i < n; ++i) task(i, place.worker);
      return;
    }
    crew().run(n, task);
  }

 private:
  static constexpr int kSpins = 20000;

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

  /// The threads and what they share with a caller. A process that fork() made gets a new one: in its copy, threads are
  /// missing and locks may be held by them.
  class Crew {
   public:
    explicit Crew(const ThreadPool& pool) : Crew(&pool) {
      threads_.reserve(static_cast<std::size_t>(pool.threads_ - 1));
      for (int worker = 1; worker < pool.threads_; ++worker) threads_.emplace_back([this, worker] { serve(worker); });
      // A thread allocates when it starts. After this call it has started, and later calls allocate nothing.
      run(pool.threads_, [](int, int) {});
    }
    ~Crew() {
      stop_.store(true, std::memory_order_relaxed);
      start_.fetch_add(1, std::memory_order_release);
      start_.notify_all();
      for (std::thread& thread : threads_) thread.join();
    }
    Crew(const Crew&) = delete;
    Crew& operator=(const Crew&) = delete;

    bool is_of_this_process() const { return process_ == detail::fork_count(); }

    void run(int n, Task task) {
      const std::lock_guard<std::mutex> one_caller(caller_);
      if (n == 1 || threads_.empty()) {
        const Scope scope(pool_, 0);
        for (int i = 0; i < n; ++i) task(i, 0);
        return;
      }
      task_ = &task;
      count_ = n;
      state_ = detail::FloatState::current();
      next_.store(0, std::memory_order_relaxed);
      running_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
      start_.fetch_add(1, std::memory_order_release);
      start_.notify_all();
      work(0);
      HEED_CHECK(is_of_this_process(), EnvironmentError,
                 "heed::ThreadPool: fork() was called inside a task, and the process that it made has no threads to "
                 "end the other tasks; call fork() outside of tasks");
      int running;
      for (int spin = 0; (running = running_.load(std::memory_order_acquire)) != 0; ++spin) {
        if (spin >= kSpins) running_.wait(running, std::memory_order_acquire);
      }
#if HEED_EXCEPTIONS
      if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
#endif
    }

   private:
    /// The public constructor delegates to this one, so that when it throws, the destructor ends the threads begun.
    explicit Crew(const ThreadPool* pool) : pool_(pool) {}

    void serve(int worker) {
      std::uint32_t seen = 0;
      for (;;) {
        std::uint32_t now;
        for (int spin = 0; (now = start_.load(std::memory_order_acquire)) == seen; ++spin) {
          if (spin >= kSpins) start_.wait(seen, std::memory_order_acquire);
        }
        seen = now;
        if (stop_.load(std::memory_order_relaxed)) return;
        {
          const detail::FloatStateScope state(state_);
          work(worker);
        }
        if (!is_of_this_process()) return;
        if (running_.fetch_sub(1, std::memory_order_release) == 1) running_.notify_one();
      }
    }

    void work(int worker) {
      const Scope scope(pool_, worker);
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

    const ThreadPool* pool_;
    const unsigned process_ = detail::fork_count();
    std::atomic<bool> stop_{false};
    std::mutex caller_;
    // One cache line has all that a caller writes and a thread that starts reads.
    alignas(64) std::atomic<std::uint32_t> start_{0};
    int count_ = 0;
    detail::FloatState state_;
    const Task* task_ = nullptr;
    std::vector<std::thread> threads_;
    alignas(64) std::atomic<int> next_{0};
    alignas(64) std::atomic<int> running_{0};
    std::mutex failure_guard_;
    std::exception_ptr failure_;
  };

  /// This process's crew.
  Crew& crew() {
    Crew* crew = crew_.load(std::memory_order_acquire);
    if (crew->is_of_this_process()) return *crew;
    auto fresh = std::make_unique<Crew>(*this);
    if (crew_.compare_exchange_strong(crew, fresh.get(), std::memory_order_acq_rel)) return *fresh.release();
    return *crew;  // another thread was first
  }

  int threads_;
  std::atomic<Crew*> crew_{nullptr};
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
