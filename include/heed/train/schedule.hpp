// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Learning rates over the steps of a training.

#include <algorithm>
#include <cmath>

#include <heed/core/config.hpp>
#include <heed/core/error.hpp>

HEED_NAMESPACE_BEGIN

/// How the learning rate goes on after the warm-up.
enum class Decay {
  Constant,  ///< peak
  Cosine,    ///< from peak down to floor over half a cosine, floor after `steps` (Loshchilov, Hutter: "SGDR", 2017)
  InverseSquareRoot  ///< peak·√(warmup/step), not below floor (Vaswani et al., 2017, section 5.3)
};

struct ScheduleOptions {
  double max_lr;           ///< the largest learning rate
  Index warmup_steps = 0;  ///< steps over which it rises linearly from peak/warmup to peak
  Decay decay = Decay::Constant;
  Index steps = 0;    ///< of the whole training: where Cosine ends
  double min_lr = 0;  ///< what it does not fall below after the warm-up
};

/// The learning rate of each step, counted from 0: optimizer.set_learning_rate(schedule(step)).
class Schedule {
 public:
  /// Throws ValueError unless 0 <= floor <= peak, both finite, warmup >= 0, and, for Cosine, steps > warmup.
  explicit Schedule(const ScheduleOptions& options) : options_(options) {
    const ScheduleOptions& o = options;
    HEED_CHECK(std::isfinite(o.max_lr) && o.min_lr >= 0 && o.min_lr <= o.max_lr, ValueError,
               "heed::Schedule: peak = ", o.max_lr, " and floor = ", o.min_lr,
               " must be finite with 0 <= floor <= peak");
    HEED_CHECK(o.warmup_steps >= 0, ValueError, "heed::Schedule: warmup = ", o.warmup_steps, " is negative");
    HEED_CHECK(o.decay != Decay::Cosine || o.steps > o.warmup_steps, ValueError, "heed::Schedule: steps = ", o.steps,
               " must be above warmup = ", o.warmup_steps, " for the cosine to have room");
  }

  const ScheduleOptions& options() const { return options_; }

  /// Throws ValueError for a negative step.
  double operator()(Index step) const {
    HEED_CHECK(step >= 0, ValueError, "heed::Schedule: step = ", step, " is negative");
    const auto [peak, warmup, decay, steps, floor] = options_;
    const double now = static_cast<double>(step), rise = static_cast<double>(warmup);
    if (step < warmup) return peak * (now + 1) / rise;
    switch (decay) {
      case Decay::Cosine: {
        constexpr double pi = 3.14159265358979323846;
        const double done = std::min(1.0, (now - rise) / (static_cast<double>(steps) - rise));
        return floor + (peak - floor) * 0.5 * (1 + std::cos(pi * done));
      }
      case Decay::InverseSquareRoot:
        return std::max(floor, peak * std::sqrt(std::max(1.0, rise) / (now + 1)));
      case Decay::Constant:
        break;
    }
    return peak;
  }

 private:
  ScheduleOptions options_;
};

HEED_NAMESPACE_END
