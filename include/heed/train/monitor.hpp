// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Monitors training: measures its phases and finds the layer that makes a loss non-finite.

#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>

#include <heed/core/context.hpp>

HEED_NAMESPACE_BEGIN

/// A part of a training step.
enum class Phase {
  Data,      ///< reading and preparing a batch
  Forward,   ///< the forward pass and the loss
  Backward,  ///< the backward pass
  Step       ///< the optimizer
};

/// Measures the time of each phase.
///
///     timer.time(heed::Phase::Forward, [&] { model.forward(x, y, cache, context); });
///     std::puts(timer.text().c_str());
///     // data 0.1 s (1 %), forward 3.2 s (32 %), backward 6.1 s (61 %), step 0.6 s (6 %)
class TrainingTimer {
 public:
  /// Runs f, adds its time to the phase and returns its result.
  template <class F>
  decltype(auto) time(Phase phase, F&& f) {
    const Running running(seconds_[static_cast<std::size_t>(phase)]);
    return f();
  }

  /// The time of one phase, in seconds.
  double seconds(Phase phase) const { return seconds_[static_cast<std::size_t>(phase)]; }
  /// The time of all phases, in seconds.
  double total() const { return seconds_[0] + seconds_[1] + seconds_[2] + seconds_[3]; }
  /// Sets all times to 0.
  void reset() { seconds_ = {}; }

  /// The times and their shares, in one line.
  std::string text() const {
    constexpr std::string_view names[] = {"data", "forward", "backward", "step"};
    std::string line;
    for (std::size_t i = 0; i < seconds_.size(); ++i) {
      const double share = total() > 0 ? 100 * seconds_[i] / total() : 0;
      line += detail::concat(i ? ", " : "", names[i], " ", std::round(seconds_[i] * 1000) / 1000, " s (",
                             std::lround(share), " %)");
    }
    return line;
  }

 private:
  using Clock = std::chrono::steady_clock;
  class Running {
   public:
    explicit Running(double& seconds) : seconds_(seconds), start_(Clock::now()) {}
    ~Running() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    double& seconds_;
    Clock::time_point start_;
  };

  std::array<double, 4> seconds_{};
};

/// Throws ValueError if the loss is not finite. The message names the first layer whose output is not finite: `forward`
/// is repeated from the checkpoint before it, with an observer. Costs nothing while the loss is finite.
///
///     const heed::ActivationCheckpoint before(context);
///     const auto forward = [&] { model.forward(ids, logits, cache, context); };
///     forward();
///     const heed::Loss loss = heed::cross_entropy(logits, targets, dlogits, context);
///     heed::require_finite(loss.value, before, context, forward);
template <class Forward>
void require_finite(double loss, const ActivationCheckpoint& before, Context& context, Forward&& forward) {
  if (detail::is_finite(loss)) return;
  FiniteObserver observer;
  before.replay(context, [&] {
    context.observer = &observer;
    forward();
  });
  HEED_CHECK(!observer.found(), ValueError, "heed::require_finite: the loss is ", loss,
             "; the first output that is not finite is that of ", observer.place());
  HEED_CHECK(false, ValueError, "heed::require_finite: the loss is ", loss,
             " although the output of every layer is finite; check the loss and its targets");
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
