// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Watching a training: where its time goes, and where a loss stops being a number.

#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>

#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/nn/activation_checkpoint.hpp>

HEED_NAMESPACE_BEGIN

/// The parts of a training step.
enum class Phase { Data, Forward, Backward, Step };

/// Adds up the time spent in each phase.
///
///   timer.time(heed::Phase::Forward, [&] { model.forward(x, y, cache, context); });
///   std::puts(timer.text().c_str());
///   // data 0.1 s (1 %), forward 3.2 s (32 %), backward 6.1 s (61 %), step 0.6 s (6 %)
class TrainingTimer {
 public:
  /// Runs f and returns what it returns.
  template <class F>
  decltype(auto) time(Phase phase, F&& f) {
    const Running running(seconds_[static_cast<std::size_t>(phase)]);
    return f();
  }

  /// Spent in one phase.
  double seconds(Phase phase) const { return seconds_[static_cast<std::size_t>(phase)]; }
  /// Seconds spent in all phases.
  double total() const { return seconds_[0] + seconds_[1] + seconds_[2] + seconds_[3]; }
  /// Starts again at 0.
  void reset() { seconds_ = {}; }

  /// One line for people.
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

/// Remembers the first output that holds a number which is not finite.
class FiniteObserver final : public Observer {
 public:
  /// Whether such an output was seen.
  bool found() const { return found_; }
  /// Which layer's output that was.
  const std::string& layer() const { return layer_; }
  /// The number itself.
  double value() const { return value_; }
  /// Where it stands in the output, (b, l, e).
  const Extents<3>& index() const { return index_; }
  /// "layers.1.linear1 (output 9 of the pass), nan at (0, 3, 17) of (2, 8, 64)".
  const std::string& place() const { return place_; }

  /// Layers show (B, L, E).
  void output(std::string_view name, const ObservedTensor& value) override {
    ++outputs_;
    if (found_ || value.rank() != 3) return;
    for (Index b = 0; b < value.extent(0); ++b) {
      for (Index l = 0; l < value.extent(1); ++l) {
        for (Index e = 0; e < value.extent(2); ++e) {
          if (std::isfinite(value(b, l, e))) continue;
          found_ = true;
          layer_ = name;
          value_ = value(b, l, e);
          index_ = {b, l, e};
          place_ = detail::concat(name.empty() ? "a layer without a name" : name, " (output ", outputs_,
                                  " of the pass), ", value_, " at ", index_, " of ",
                                  Extents<3>{value.extent(0), value.extent(1), value.extent(2)});
          return;
        }
      }
    }
  }

 private:
  bool found_ = false;
  int outputs_ = 0;
  double value_ = 0;
  Extents<3> index_{};
  std::string layer_, place_;
};

/// Throws ValueError for a loss that is not finite, naming the first layer whose output isn't: `forward` runs once
/// more, from the checkpoint taken before it, with an observer. Costs nothing while the loss is finite.
///
///   const heed::ActivationCheckpoint before(context);
///   const auto forward = [&] { model.forward(ids, logits, cache, context); };
///   forward();
///   const heed::Loss loss = heed::cross_entropy(logits, targets, dlogits, {}, context);
///   heed::require_finite(loss.value, before, context, forward);
template <class Forward>
void require_finite(double loss, const ActivationCheckpoint& before, Context& context, Forward&& forward) {
  if (std::isfinite(loss)) return;
  FiniteObserver observer;
  before.replay(context, [&] {
    context.observer = &observer;
    forward();
  });
  HEED_CHECK(!observer.found(), ValueError, "heed::require_finite: the loss is ", loss,
             "; the first output that is not finite is that of ", observer.place());
  HEED_CHECK(false, ValueError, "heed::require_finite: the loss is ", loss,
             " though every layer's output is finite; look at the loss and its targets");
}

HEED_NAMESPACE_END
