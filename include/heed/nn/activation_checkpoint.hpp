// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Activation checkpointing: the backward forms again what the forward did not keep.

#include <cstdint>

#include <heed/core/core.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

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
