// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Context: the executor, workspace and observer of a call, which never affect its result, and the state of a run: the
/// training flag and the seed of dropout. ActivationCheckpoint replays a part of a run.

#include <heed/core/arithmetic.hpp>
#include <heed/core/observer.hpp>
#include <heed/core/workspace.hpp>

HEED_NAMESPACE_BEGIN

/// The implementation of attention that runs. All give the same answer up to rounding. For tests, which force one.
enum class Path { Automatic, Reference, Blocked };

/// Everything a call needs besides its arguments. One thread at a time uses a Context; threads may share layers.
class Context {
 public:
  /// Serial. Throws EnvironmentError if the program was compiled with flags that break heed's arithmetic.
  Context() { detail::check_arithmetic(); }
  /// The executor must outlive the context.
  explicit Context(Executor& executor) : Context() { executor_ = &executor; }

  /// Runs the tasks of calls: the given executor, or the calling thread.
  Executor& executor() { return executor_ ? *executor_ : serial_; }
  /// Scratch memory of the calls.
  Workspace& workspace() { return workspace_; }

  /// Dropout runs only while training.
  bool training = false;
  /// All random numbers of a run follow from it.
  std::uint64_t seed = 0;
  /// For tests: force one implementation of attention.
  Path path = Path::Automatic;
  /// Null by default.
  Observer* observer = nullptr;

  /// A new number for each call, so that two dropout layers don't drop the same places.
  std::uint64_t next_stream() { return stream_++; }
  /// Starts the streams again: with the same seed, the next run drops the same places.
  void restart_streams(std::uint64_t first = 0) { stream_ = first; }

  /// Adds a part to the path of names while it lives; free when nobody observes.
  class Scope {
   public:
    /// The path goes on with `part`.
    Scope(Context& context, std::string_view part) : context_(context), length_(context.name_.size()) {
      if (!context_.observer) return;
      if (length_ && !part.empty()) context_.name_ += '.';
      context_.name_ += part;
    }
    /// "layers" and 3 become "layers.3".
    Scope(Context& context, std::string_view part, int number) : Scope(context, part) {
      if (!context_.observer) return;
      context_.name_ += '.';
      context_.name_ += std::to_string(number);
    }
    ~Scope() { context_.name_.resize(length_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Context& context_;
    std::size_t length_;
  };
  /// The path of names; empty while nobody observes.
  std::string_view name() const { return name_; }

  /// Shows a layer's output to the observer, if there is one.
  template <class T, int Rank>
  void observe(TensorView<T, Rank> value) {
    if (observer) observer->output(name_, ObservedTensor(TensorView<const std::remove_const_t<T>, Rank>(value)));
  }

 private:
  Serial serial_;
  Executor* executor_ = nullptr;
  Workspace workspace_;
  std::uint64_t stream_ = 0;
  std::string name_;
};

namespace detail {

/// For a `Context&` that may be left out: `Context& context = detail::own_context({})`. The temporary lives until the
/// end of the call.
inline Context& own_context(Context&& context) { return context; }

/// The number that the next dropout call draws.
inline std::uint64_t next_stream_of(Context& context) {
  const std::uint64_t stream = context.next_stream();
  context.restart_streams(stream);
  return stream;
}

}  // namespace detail

/// The position of a context's dropout streams before a forward, so that it can run again and drop the same places.
/// Chen, Xu, Zhang, Guestrin: "Training deep nets with sublinear memory cost", 2016.
///
///   const heed::ActivationCheckpoint checkpoint(context);
///   layer.forward(x, y, context);  // keeps nothing but x and y
///
///   checkpoint.replay(context, [&] { layer.forward(x, y, cache, context); });  // later: forms the cache, y once more
///   layer.backward(dy, dx, cache, context);
///
/// One cache then serves all layers of a kind. The gradients have the bits of those without checkpointing, since a
/// forward has the same bits with a cache and without.
class ActivationCheckpoint {
 public:
  /// Remembers the current position of the streams.
  explicit ActivationCheckpoint(Context& context) : stream_(detail::next_stream_of(context)) {}

  /// Runs `forward` with the streams as they stood at construction; afterwards they stand where they stood before. The
  /// observer does not see what it has seen before.
  template <class Forward>
  void replay(Context& context, Forward&& forward) const {
    const Restore restore(context);
    context.restart_streams(stream_);
    context.observer = nullptr;
    forward();
  }

 private:
  class Restore {
   public:
    explicit Restore(Context& context)
        : context_(context), stream_(detail::next_stream_of(context)), observer_(context.observer) {}
    ~Restore() {
      context_.restart_streams(stream_);
      context_.observer = observer_;
    }
    Restore(const Restore&) = delete;
    Restore& operator=(const Restore&) = delete;

   private:
    Context& context_;
    std::uint64_t stream_;
    Observer* observer_;
  };

  std::uint64_t stream_;
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
