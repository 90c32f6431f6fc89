// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Schedule: the learning rate as a function of the training step.

#include <algorithm>
#include <cmath>

#include <heed/core/config.hpp>
#include <heed/core/error.hpp>

HEED_NAMESPACE_BEGIN

/// The course of the learning rate after the warm-up.
enum class Decay {
  Constant,          ///< stays at max_lr
  Cosine,            ///< follows half a cosine from max_lr to min_lr at `steps` (Loshchilov, Hutter: "SGDR", 2017)
  InverseSquareRoot  ///< max_lr·√(warmup_steps/step), at least min_lr (Vaswani et al., 2017, section 5.3)
};

/// Options of a Schedule.
struct ScheduleOptions {
  double max_lr;                  ///< the largest learning rate
  Index warmup_steps = 0;         ///< steps of the linear rise from max_lr/warmup_steps to max_lr
  Decay decay = Decay::Constant;  ///< the course after the warm-up
  Index steps = 0;                ///< steps of the whole training; the end of Cosine
  double min_lr = 0;              ///< lower limit after the warm-up
};

/// The learning rate of each step, counted from 0: optimizer.set_learning_rate(schedule(step)).
class Schedule {
 public:
  /// Throws ValueError unless 0 <= min_lr <= max_lr, both finite, warmup_steps >= 0, and, for Cosine,
  /// steps > warmup_steps.
  explicit Schedule(const ScheduleOptions& options) : options_(options) {
    const ScheduleOptions& o = options;
    HEED_CHECK(std::isfinite(o.max_lr) && o.min_lr >= 0 && o.min_lr <= o.max_lr, ValueError,
               "heed::Schedule: max_lr = ", o.max_lr, " and min_lr = ", o.min_lr,
               " must be finite with 0 <= min_lr <= max_lr");
    HEED_CHECK(o.warmup_steps >= 0, ValueError, "heed::Schedule: warmup_steps = ", o.warmup_steps,
               " must be non-negative");
    HEED_CHECK(o.decay != Decay::Cosine || o.steps > o.warmup_steps, ValueError, "heed::Schedule: steps = ", o.steps,
               " must exceed warmup_steps = ", o.warmup_steps, " with Decay::Cosine");
  }

  /// The options it was made with.
  const ScheduleOptions& options() const { return options_; }

  /// The learning rate of a step. Throws ValueError if the step is negative.
  double operator()(Index step) const {
    HEED_CHECK(step >= 0, ValueError, "heed::Schedule: step = ", step, " must be non-negative");
    const auto [max_lr, warmup, decay, steps, min_lr] = options_;
    const double now = static_cast<double>(step), rise = static_cast<double>(warmup);
    if (step < warmup) return max_lr * (now + 1) / rise;
    switch (decay) {
      case Decay::Cosine: {
        constexpr double pi = 3.14159265358979323846;
        const double done = std::min(1.0, (now - rise) / (static_cast<double>(steps) - rise));
        return min_lr + (max_lr - min_lr) * 0.5 * (1 + std::cos(pi * done));
      }
      case Decay::InverseSquareRoot:
        return std::max(min_lr, max_lr * std::sqrt(std::max(1.0, rise) / (now + 1)));
      case Decay::Constant:
        break;
    }
    return max_lr;
  }

 private:
  ScheduleOptions options_;
};

HEED_NAMESPACE_END
