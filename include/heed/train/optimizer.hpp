// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Optimizers: SGD, Adam and AdamW, as PyTorch defines them. Schedule: the learning rate as a function of the step.
///
///     heed::AdamW<float> optimizer(model, {.learning_rate = 3e-4});
///     for (...) {
///       optimizer.zero_grad();
///       ... forward, loss, backward ...
///       optimizer.set_learning_rate(schedule(step));
///       optimizer.step(context, {.clip = 1});
///     }

#include <functional>

#include <heed/train/parameter_list.hpp>

HEED_NAMESPACE_BEGIN

/// Parameters that one optimizer treats in another way. Every group that holds a parameter applies, in the order of the
/// list: factors of the learning rate multiply, and the last weight decay counts.
///
///     heed::AdamW<float> optimizer(model, {.learning_rate = 3e-4, .weight_decay = 0.1, .groups = {
///         {.holds = heed::biases_and_norms, .weight_decay = 0},
///         {.holds = heed::within("head"), .rate = 10}}});
struct ParameterGroup {
  /// True for the parameters of the group, by name and rank (1 for a vector, 2 for a matrix).
  std::function<bool(std::string_view name, int rank)> holds;
  double rate = 1;                       ///< factor of the learning rate; 0 keeps the parameters as they are
  std::optional<double> weight_decay{};  ///< in the place of the optimizer's
};

/// The vectors of a model: its biases and the weights of its norms, which decay would only pull towards 0.
inline bool biases_and_norms(std::string_view, int rank) { return rank == 1; }

/// The parameters of a layer or of any part of a model: "head" holds "head.weight" and "head.bias", and not "headers".
inline auto within(std::string part) {
  return [part = std::move(part)](std::string_view name, int) {
    return name.starts_with(part) && (name.size() == part.size() || part.empty() || name[part.size()] == '.');
  };
}

/// Options of a single optimizer step.
struct StepOptions {
  double clip = 0;  ///< limit of the global gradient norm, applied before the step as by clip_grad_norm(); 0: none
};

namespace detail {

/// √x of each lane, correctly rounded even if Eigen's packets are not.
template <class T>
HEED_ALWAYS_INLINE Vec<T> square_root(Vec<T> x) {
  T lanes[Vec<T>::size];
  x.store(lanes);
  for (T& lane : lanes) lane = std::sqrt(lane);
  return Vec<T>::load(lanes);
}

/// Base of all optimizers. Derived defines kName, kStates (names of the tensors kept for each parameter) and rule(): a
/// function of (value, gradient, state...) on lanes that updates the value and the states, made for one Update.
///
/// The parameters are borrowed, see ParameterList. Parameters without a gradient do not change: none that no backward
/// has reached since zero_grad(), neither by decay nor by momentum, and such a step does not count for them. The state
/// is allocated at construction and starts as zeros.
template <class Derived, class T>
class Optimizer {
 public:
  /// The parameters that step() updates.
  const ParameterList<T>& parameters() const { return parameters_; }
  /// Sets all gradients to zero.
  void zero_grad() { parameters_.zero_grad(); }

  /// The learning rate of the next step.
  double learning_rate() const { return learning_rate_; }
  /// Throws ValueError unless it is finite and >= 0.
  void set_learning_rate(double learning_rate) {
    check_learning_rate(learning_rate);
    learning_rate_ = learning_rate;
  }

  /// The number of steps made.
  Index steps() const { return steps_; }
  /// Sets the number of steps made, for resuming. Throws ValueError if it is negative.
  void set_steps(Index steps) {
    HEED_CHECK(steps >= 0, ValueError, Derived::kName, ": steps = ", steps, " must be non-negative");
    steps_ = steps;
    for (Each& each : each_) each.skipped = 0;
  }
  /// The number of steps in which parameter i had no gradient.
  Index skipped_steps(Index i) const { return each_[static_cast<std::size_t>(i)].skipped; }
  /// Sets that number, for resuming, after set_steps(). Throws ValueError if it is negative or above steps().
  void set_skipped_steps(Index i, Index skipped) {
    HEED_CHECK(skipped >= 0 && skipped <= steps_, ValueError, Derived::kName, ": ", skipped, " skipped steps of ",
               parameters_[i].name, " must be between 0 and the ", steps_, " steps made");
    each_[static_cast<std::size_t>(i)].skipped = skipped;
  }

  /// Updates every parameter by its gradient. Packed copies of weights are dropped. Throws ValueError if a parameter
  /// was released or options.clip is negative, and as clip_grad_norm() does.
  void step(Context& context = own_context({}), const StepOptions& options = {}) {
    if (options.clip != 0) clip_grad_norm(parameters_, options.clip, context);
    ++steps_;
    for (Index i = 0; i < parameters_.size(); ++i) {
      Parameter<T>& parameter = *parameters_[i].parameter;
      Each& each = each_[static_cast<std::size_t>(i)];
      if (!parameter.has_grad() || each.rate == 0) {
        ++each.skipped;
        continue;
      }
      const auto rule = static_cast<const Derived&>(*this).rule(
          Update{learning_rate_ * each.rate, each.weight_decay, static_cast<double>(steps_ - each.skipped)});
      const Index size = parameter.size();
      T* value = parameter.mutable_value().data();
      const T* grad = std::as_const(parameter).grad().data();
      T* states[2] = {};
      for (std::size_t k = 0; k < states_.size(); ++k) {
        states[k] = states_[k][static_cast<std::size_t>(i)].mutable_value().data();
      }
      parallel_for_elements(context, size, [&](Index begin, Index end) {
        for (Index j = begin; j < end; j += Vec<T>::size) {
          const Index lanes = end - j;
          Vec<T> v = load_lanes(value + j, lanes), s[2] = {};
          for (std::size_t k = 0; k < 2; ++k) {
            if (states[k]) s[k] = load_lanes(states[k] + j, lanes);
          }
          rule(v, load_lanes(grad + j, lanes), s[0], s[1]);
          store_lanes<T>(v, value + j, lanes);
          for (std::size_t k = 0; k < 2; ++k) {
            if (states[k]) store_lanes<T>(s[k], states[k] + j, lanes);
          }
        }
      });
    }
  }
  /// Calls f(name, state) for every state tensor, as "exp_avg.head.weight", for saving and loading.
  template <class F>
  void visit(std::string_view prefix, F&& f) {
    visit_states(*this, prefix, f);
  }
  /// @overload
  template <class F>
  void visit(std::string_view prefix, F&& f) const {
    visit_states(*this, prefix, f);
  }

 protected:
  /// One step of one parameter.
  struct Update {
    double learning_rate, weight_decay;
    double step;  // counted from 1, without the skipped ones
  };

  Optimizer(ParameterList<T> parameters, double learning_rate, double weight_decay,
            const std::vector<ParameterGroup>& groups, bool keeps_states)
      : parameters_(std::move(parameters)), learning_rate_(learning_rate) {
    check_learning_rate(learning_rate);
    check_factor(weight_decay, "weight_decay");
    each_.assign(static_cast<std::size_t>(parameters_.size()), Each{1, weight_decay});
    for (std::size_t g = 0; g < groups.size(); ++g) apply(groups[g], g);
    if (!keeps_states) return;
    states_.resize(std::size(Derived::kStates));
    for (std::vector<Parameter<T>>& state : states_) {
      for (const auto& entry : parameters_) {
        const Parameter<T>& p = *entry.parameter;
        state.push_back(p.rank() == 1 ? Parameter<T>(p.size()) : Parameter<T>(p.extents()[0], p.extents()[1]));
        state.back().mutable_value();  // Zeros are its initial value, not missing ones.
      }
    }
  }

 private:
  /// The treatment of one parameter.
  struct Each {
    double rate, weight_decay;
    Index skipped = 0;
  };

  static void check_factor(double value, const char* name) {
    HEED_CHECK(value >= 0 && detail::is_finite(value), ValueError, Derived::kName, ": ", name, " = ", value,
               " must be finite and >= 0");
  }
  static void check_learning_rate(double learning_rate) { check_factor(learning_rate, "learning_rate"); }

  void apply(const ParameterGroup& group, std::size_t number) {
    HEED_CHECK(group.holds, ValueError, Derived::kName, ": group ", number,
               " has no function `holds`; give one, such as heed::biases_and_norms");
    check_factor(group.rate, "the rate of a group");
    check_factor(group.weight_decay.value_or(0), "the weight_decay of a group");
    bool holds_any = false;
    for (Index i = 0; i < parameters_.size(); ++i) {
      if (!group.holds(parameters_[i].name, parameters_[i].parameter->rank())) continue;
      holds_any = true;
      Each& each = each_[static_cast<std::size_t>(i)];
      each.rate *= group.rate;
      if (group.weight_decay) each.weight_decay = *group.weight_decay;
    }
    HEED_CHECK(holds_any, ValueError, Derived::kName, ": group ", number, " holds none of the ", parameters_.size(),
               " parameters; compare its names with those of visit()");
  }

  template <class Self, class F>
  static void visit_states(Self& self, std::string_view prefix, F& f) {
    for (std::size_t k = 0; k < self.states_.size(); ++k) {
      for (Index i = 0; i < self.parameters_.size(); ++i) {
        const std::string name = join(join(prefix, Derived::kStates[k]), self.parameters_[i].name);
        f(std::string_view(name), self.states_[k][static_cast<std::size_t>(i)]);
      }
    }
  }

  ParameterList<T> parameters_;
  std::vector<Each> each_;
  std::vector<std::vector<Parameter<T>>> states_;
  double learning_rate_;
  Index steps_ = 0;
};

}  // namespace detail

/// Options of SGD.
struct SGDOptions {
  double learning_rate;                  ///< used until set_learning_rate()
  double momentum = 0;                   ///< μ
  bool nesterov = false;                 ///< Nesterov's momentum
  double weight_decay = 0;               ///< λ, added to the gradient as λ·value
  std::vector<ParameterGroup> groups{};  ///< parameters with another rate or decay
};

/// g = grad + λ·value;  b = μ·b + g;  value -= learning_rate · (nesterov ? g + μ·b : b)
/// Sutskever et al.: "On the importance of initialization and momentum in deep learning", 2013.
template <class T>
class SGD : public detail::Optimizer<SGD<T>, T> {
  using Base = detail::Optimizer<SGD<T>, T>;

 public:
  /// Throws ValueError if the learning rate, momentum or weight decay is negative or not finite, and for nesterov
  /// without momentum.
  SGD(ParameterList<T> parameters, const SGDOptions& options)
      : Base(std::move(parameters), options.learning_rate, options.weight_decay, options.groups, options.momentum != 0),
        options_(options) {
    HEED_CHECK(options.momentum >= 0 && detail::is_finite(options.momentum), ValueError, kName,
               ": momentum = ", options.momentum, " must be finite and >= 0");
    HEED_CHECK(!options.nesterov || options.momentum > 0, ValueError, kName,
               ": nesterov = true needs a momentum above 0");
  }
  /// @overload
  template <class Model>
  SGD(Model& model, const SGDOptions& options) : SGD(ParameterList<T>(model), options) {}

  /// The options it was made with.
  const SGDOptions& options() const { return options_; }

 private:
  friend Base;
  static constexpr std::string_view kName = "heed::SGD";
  static constexpr std::string_view kStates[] = {"momentum_buffer"};

  auto rule(const typename Base::Update& update) const {
    using V = Vec<T>;
    const V rate = static_cast<T>(-update.learning_rate), decay = static_cast<T>(update.weight_decay);
    const V momentum = static_cast<T>(options_.momentum);
    const bool has_momentum = options_.momentum != 0, nesterov = options_.nesterov;
    return [=](V& value, V grad, V& buffer, V&) HEED_ALWAYS_INLINE_LAMBDA {
      V g = fma(decay, value, grad);
      if (has_momentum) {
        buffer = fma(momentum, buffer, g);
        g = nesterov ? fma(momentum, buffer, g) : buffer;
      }
      value = fma(rate, g, value);
    };
  }

  SGDOptions options_;
};

/// Options of Adam.
struct AdamOptions {
  double learning_rate = 1e-3;           ///< used until set_learning_rate()
  double beta1 = 0.9;                    ///< decay of the running mean of gradients
  double beta2 = 0.999;                  ///< decay of the running mean of squared gradients
  double eps = 1e-8;                     ///< added to the root of the mean square
  double weight_decay = 0;               ///< λ, added to the gradient as λ·value
  std::vector<ParameterGroup> groups{};  ///< parameters with another rate or decay
};

namespace detail {

/// m = β1·m + (1 - β1)·g,  v = β2·v + (1 - β2)·g²,
/// value -= learning_rate · m/(1 - β1^t) / (√(v/(1 - β2^t)) + eps), where t counts steps from 1.
/// Kingma, Ba: "Adam: a method for stochastic optimization", 2015.
template <class Derived, class T>
class AdamBase : public Optimizer<Derived, T> {
 public:
  /// The options it was made with.
  const AdamOptions& options() const { return options_; }

 protected:
  static constexpr std::string_view kStates[] = {"exp_avg", "exp_avg_sq"};

  AdamBase(ParameterList<T> parameters, const AdamOptions& options)
      : Optimizer<Derived, T>(std::move(parameters), options.learning_rate, options.weight_decay, options.groups, true),
        options_(options) {
    HEED_CHECK(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1, ValueError,
               Derived::kName, ": beta1 = ", options.beta1, " and beta2 = ", options.beta2, " must be in [0, 1)");
    HEED_CHECK(options.eps >= 0 && detail::is_finite(options.eps), ValueError, Derived::kName, ": eps = ", options.eps,
               " must be finite and >= 0");
  }

  /// The rule of Adam after `decayed`, which applies weight decay to (value, gradient).
  template <class Decay>
  auto adam_rule(const typename Optimizer<Derived, T>::Update& update, Decay decayed) const {
    using V = Vec<T>;
    const double t = update.step;
    const double rate = update.learning_rate / (1 - std::pow(options_.beta1, t));
    const V step = static_cast<T>(-rate), eps = static_cast<T>(options_.eps);
    const V root = static_cast<T>(1 / std::sqrt(1 - std::pow(options_.beta2, t)));
    const V slow1 = static_cast<T>(options_.beta1), fast1 = static_cast<T>(1 - options_.beta1);
    const V slow2 = static_cast<T>(options_.beta2), fast2 = static_cast<T>(1 - options_.beta2);
    return [=](V& value, V grad, V& mean, V& square) HEED_ALWAYS_INLINE_LAMBDA {
      decayed(value, grad);
      mean = fma(slow1, mean, fast1 * grad);
      square = fma(slow2, square, fast2 * grad * grad);
      value = fma(step, mean / fma(square_root(square), root, eps), value);
    };
  }

 private:
  AdamOptions options_;
};

}  // namespace detail

/// Adam with L2 regularization: λ·value is added to the gradient.
template <class T>
class Adam : public detail::AdamBase<Adam<T>, T> {
  using Base = detail::AdamBase<Adam<T>, T>;
  using Stepper = detail::Optimizer<Adam<T>, T>;

 public:
  /// Throws ValueError if an option is negative or not finite, or a β is 1 or more.
  Adam(ParameterList<T> parameters, const AdamOptions& options) : Base(std::move(parameters), options) {}
  /// @overload
  template <class Model>
  Adam(Model& model, const AdamOptions& options) : Adam(ParameterList<T>(model), options) {}

 private:
  friend Base;
  friend Stepper;
  static constexpr std::string_view kName = "heed::Adam";

  auto rule(const typename Stepper::Update& update) const {
    const Vec<T> decay = static_cast<T>(update.weight_decay);
    return this->adam_rule(
        update, [=](Vec<T>& value, Vec<T>& grad) HEED_ALWAYS_INLINE_LAMBDA { grad = fma(decay, value, grad); });
  }
};

/// Options of AdamW.
struct AdamWOptions {
  double learning_rate = 1e-3;           ///< used until set_learning_rate()
  double beta1 = 0.9;                    ///< decay of the running mean of gradients
  double beta2 = 0.999;                  ///< decay of the running mean of squared gradients
  double eps = 1e-8;                     ///< added to the root of the mean square
  double weight_decay = 0.01;            ///< λ, applied to the value before each step
  std::vector<ParameterGroup> groups{};  ///< parameters with another rate or decay
};

/// Adam with decoupled weight decay: before the step, the value is multiplied by 1 - learning_rate·λ.
/// Loshchilov, Hutter: "Decoupled weight decay regularization", 2019.
template <class T>
class AdamW : public detail::AdamBase<AdamW<T>, T> {
  using Base = detail::AdamBase<AdamW<T>, T>;
  using Stepper = detail::Optimizer<AdamW<T>, T>;

 public:
  /// Throws as Adam's constructor does.
  AdamW(ParameterList<T> parameters, const AdamWOptions& options)
      : Base(std::move(parameters),
             {options.learning_rate, options.beta1, options.beta2, options.eps, options.weight_decay, options.groups}) {
  }
  /// @overload
  template <class Model>
  AdamW(Model& model, const AdamWOptions& options) : AdamW(ParameterList<T>(model), options) {}

 private:
  friend Base;
  friend Stepper;
  static constexpr std::string_view kName = "heed::AdamW";

  auto rule(const typename Stepper::Update& update) const {
    const Vec<T> keep = static_cast<T>(1 - update.learning_rate * update.weight_decay);
    return this->adam_rule(update, [=](Vec<T>& value, Vec<T>&) HEED_ALWAYS_INLINE_LAMBDA { value = keep * value; });
  }
};

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
    HEED_CHECK(detail::is_finite(o.max_lr) && o.min_lr >= 0 && o.min_lr <= o.max_lr, ValueError,
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

#include <heed/core/restore_macros.hpp>
