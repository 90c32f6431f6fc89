// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Context: what must not change an answer (executor, workspace, forced path) and the state of a run (training flag,
/// seed, dropout streams, observer).

#include <cstdint>
#include <string>
#include <string_view>

#include <heed/core/config.hpp>
#include <heed/core/parallel.hpp>
#include <heed/core/tensor.hpp>
#include <heed/core/workspace.hpp>

HEED_NAMESPACE_BEGIN

/// Which implementation of attention runs. Every path gives the same answer up to rounding; tests force one.
enum class Path { Automatic, Reference, Blocked };

/// A read-only tensor whose element type and rank are known at run time: what an observer is shown.
class ObservedTensor {
 public:
  /// Of a view of at most four dimensions.
  template <class T, int Rank>
  ObservedTensor(TensorView<const T, Rank> view) : data_(view.data()), rank_(Rank), read_(&read_as<T>) {
    static_assert(Rank <= 4);
    for (int d = 0; d < Rank; ++d) {
      extents_[static_cast<std::size_t>(d)] = view.extent(d);
      strides_[static_cast<std::size_t>(d)] = view.stride(d);
    }
  }
  int rank() const { return rank_; }
  Index extent(int d) const { return extents_[static_cast<std::size_t>(d)]; }
  /// The element at as many indices as the rank, as double.
  template <class... I>
  double operator()(I... i) const {
    Index at = 0;
    std::size_t d = 0;
    ((at += static_cast<Index>(i) * strides_[d++]), ...);
    return read_(data_, at);
  }

 private:
  template <class T>
  static double read_as(const void* data, Index at) {
    return static_cast<double>(static_cast<const T*>(data)[at]);
  }
  const void* data_;
  int rank_;
  double (*read_)(const void*, Index);
  Extents<4> extents_{}, strides_{};
};

/// Whether key k is visible to query q of head h of sample b: the mask of a call, as an observer is shown it.
using ObservedMask = FunctionRef<bool(int b, int h, int q, int k)>;

/// Sees what the layers produce. Names are the paths of the layers, "layers.0.self_attn" for instance.
/// Calls come from the thread that called the layer, in the order of the computation; views end with the call.
class Observer {
 public:
  virtual ~Observer() = default;
  /// The output of a layer, (B, L, E).
  virtual void output(std::string_view name, const ObservedTensor& value) {
    static_cast<void>(name);
    static_cast<void>(value);
  }
  /// Whether the weights of this attention layer are wanted; computing them costs L×L memory.
  virtual bool wants_weights(std::string_view name) {
    static_cast<void>(name);
    return false;
  }
  /// The mask of a layer whose weights are wanted, for (B, H, Lq, Lk); comes right before them.
  virtual void mask(std::string_view name, const Extents<4>& extents, ObservedMask visible) {
    static_cast<void>(name);
    static_cast<void>(extents);
    static_cast<void>(visible);
  }
  /// The attention weights of a layer, (B, H, Lq, Lk), before dropout.
  virtual void weights(std::string_view name, const ObservedTensor& value) {
    static_cast<void>(name);
    static_cast<void>(value);
  }
};

/// Everything a call needs besides its arguments. One thread at a time uses a Context; layers themselves are shared.
class Context {
 public:
  /// Serial.
  Context() = default;
  /// The executor must outlive the context.
  explicit Context(Executor& executor) : executor_(&executor) {}

  /// Who runs the pieces: the given executor, or the calling thread.
  Executor& executor() { return executor_ ? *executor_ : serial_; }
  /// Scratch memory of the calls.
  Workspace& workspace() { return workspace_; }

  /// Dropout runs only while training.
  bool training = false;
  /// Where all random numbers of a run come from.
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

}  // namespace detail

HEED_NAMESPACE_END
