// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Loss functions with gradients: cross entropy and mean squared error.

#include <heed/core/integers.hpp>
#include <heed/core/simd.hpp>
#include <heed/core/vec_math.hpp>
#include <heed/nn/layer.hpp>
#include <heed/nn/rows.hpp>

HEED_NAMESPACE_BEGIN

/// Options of cross_entropy().
struct CrossEntropyOptions {
  Index ignore_index = -100;   ///< target of positions to skip
  double label_smoothing = 0;  ///< ε: the share of the target distribution that is spread over all classes
  /// Divisor of the sum over positions; by default the number of positions that are not skipped. When gradients of
  /// parts of a batch accumulate, give each part the number of the whole batch, see count_targets().
  std::optional<Index> normalizer{};
};

/// The result of cross_entropy().
struct Loss {
  double value = 0;   ///< mean over the positions that are not skipped; 0 if all are
  Index counted = 0;  ///< number of positions that are not skipped
};

namespace detail {

/// Targets as (B, L): a tensor or view of integers, or a list for logits (L, V).
template <class Targets>
IntView read_targets(const Targets& targets) {
  static_assert(std::is_constructible_v<IntView, const Targets&>,
                "heed::cross_entropy: the targets are integers: a tensor or view (B, L), or a list of L");
  return IntView(targets);
}

inline Index check_targets(const IntView& targets, Index classes, Index ignore_index) {
  Index counted = 0;
  for (Index b = 0; b < targets.extent(0); ++b) {
    for (Index l = 0; l < targets.extent(1); ++l) {
      const Index target = targets(b, l);
      if (target == ignore_index) continue;
      HEED_CHECK(target >= 0 && target < classes, ValueError, "heed::cross_entropy: target ", targets.text(b, l),
                 " at position ", l, " of sample ", b, " is not one of the V = ", classes,
                 " classes; use ignore_index = ", ignore_index, " as the target of positions to skip");
      ++counted;
    }
  }
  return counted;
}

/// Returns log Σ exp(x) - (1 - ε)·x[target] - ε·mean(x) of one row and, unless dx is null, writes its gradient times
/// `factor`, softmax(x) - (1 - ε)·[target] - ε/V. dx may be x.
template <class T>
double cross_entropy_row(const T* x, Index classes, Index target, double smoothing, T factor, T* dx) {
  using V = Vec<T>;
  const T at_target = x[target];
  V largest = -infinity<T>();
  for (Index i = 0; i < classes; i += V::size) largest = max(largest, load_lanes(x + i, classes - i, -infinity<T>()));
  const T maximum = max_lane(largest);
  V exponentials = T(0), logits = T(0);
  for (Index i = 0; i < classes; i += V::size) {
    const V shifted = load_lanes(x + i, classes - i, -infinity<T>()) - V(maximum);
    const V e = exp(shifted);
    exponentials = exponentials + e;
    if (smoothing > 0) logits = logits + (load_lanes(x + i, classes - i, maximum) - V(maximum));
    if (dx) store_lanes<T>(e, dx + i, classes - i);
  }
  const T total = sum(exponentials);
  if (dx) {
    const V scale = factor / total, share = static_cast<T>(smoothing / static_cast<double>(classes)) * -factor;
    for (Index i = 0; i < classes; i += V::size) {
      store_lanes<T>(fma(load_lanes(dx + i, classes - i), scale, share), dx + i, classes - i);
    }
    dx[target] -= static_cast<T>(1 - smoothing) * factor;
  }
  const auto above = [&](T value) { return static_cast<double>(value) - static_cast<double>(maximum); };
  double loss = std::log(static_cast<double>(total)) - (1 - smoothing) * above(at_target);
  if (smoothing > 0) loss -= smoothing * static_cast<double>(sum(logits)) / static_cast<double>(classes);
  return loss;
}

template <class T>
Loss cross_entropy(const TensorView<const T, 3>& logits, const IntView& targets, const TensorView<T, 3>& dlogits,
                   const CrossEntropyOptions& options, Context& context) {
  constexpr const char* name = "heed::cross_entropy: ";
  const Index classes = logits.extent(2), length = logits.extent(1), rows = logits.extent(0) * length;
  const double smoothing = options.label_smoothing;
  HEED_CHECK(targets.extent(0) == logits.extent(0) && targets.extent(1) == length, ShapeError, name, "targets ",
             targets.extents(), " do not match logits ", logits.extents(), "; give one for each position");
  HEED_CHECK(smoothing >= 0 && smoothing <= 1, ValueError, name, "label_smoothing = ", smoothing,
             " must be between 0 and 1");
  HEED_CHECK(!options.normalizer || *options.normalizer > 0, ValueError, name,
             "normalizer = ", options.normalizer.value_or(0), " must be positive");
  const bool in_place = dlogits.data() == logits.data() && dlogits.strides() == logits.strides();
  if (dlogits.data()) {
    HEED_CHECK(dlogits.extents() == logits.extents(), ShapeError, name, "dlogits ", dlogits.extents(),
               " do not match logits ", logits.extents());
    HEED_CHECK(in_place || !may_overlap(dlogits, logits), ValueError, name,
               "dlogits overlaps logits; use separate memory or the whole of logits");
  }
  Loss loss{0, check_targets(targets, classes, options.ignore_index)};
  const double normalizer = static_cast<double>(options.normalizer.value_or(std::max<Index>(1, loss.counted)));
  const Workspace::Frame frame(context.workspace());
  double* row_losses = context.workspace().template take<double>(rows);
  const auto blocks = RowBlocks::of(rows, classes);
  backward_rows<T>(blocks, logits, {}, dlogits, context, [&](Index, Index r, const T* x, const T*, T* dx) {
    const Index target = targets(r / length, r % length);
    row_losses[r] = 0;
    if (target != options.ignore_index) {
      row_losses[r] = cross_entropy_row(x, classes, target, smoothing, static_cast<T>(1 / normalizer), dx);
    } else if (dx) {
      std::fill_n(dx, classes, T(0));
    }
  });
  for (Index r = 0; r < rows; ++r) loss.value += row_losses[r];
  loss.value /= normalizer;
  return loss;
}

template <class T>
double mse(const TensorView<const T, 3>& y, const TensorView<const T, 3>& target, const TensorView<T, 3>& dy,
           Context& context) {
  HEED_CHECK(target.extents() == y.extents(), ShapeError, "heed::mse: target ", target.extents(), " does not match y ",
             y.extents());
  if (dy.data()) {
    HEED_CHECK(dy.extents() == y.extents(), ShapeError, "heed::mse: dy ", dy.extents(), " does not match y ",
               y.extents());
    const bool in_place = dy.data() == y.data() && dy.strides() == y.strides();
    HEED_CHECK((in_place || !may_overlap(dy, y)) && !may_overlap(dy, target), ValueError,
               "heed::mse: dy overlaps y or target; use separate memory or the whole of y");
  }
  using V = Vec<T>;
  const Index width = y.extent(2), rows = y.extent(0) * y.extent(1);
  const double count = static_cast<double>(std::max<Index>(1, y.size()));
  const V factor = static_cast<T>(2 / count);
  const Workspace::Frame frame(context.workspace());
  double* row_sums = context.workspace().template take<double>(rows);
  const auto blocks = RowBlocks::of(rows, width);
  backward_rows(blocks, y, target, dy, context, [&](Index, Index r, const T* a, const T* b, T* to) {
    V squares = T(0);
    for (Index i = 0; i < width; i += V::size) {
      const V d = load_lanes(a + i, width - i) - load_lanes(b + i, width - i);
      squares = fma(d, d, squares);
      if (to) store_lanes<T>(d * factor, to + i, width - i);
    }
    row_sums[r] = static_cast<double>(sum(squares));
  });
  double total = 0;
  for (Index r = 0; r < rows; ++r) total += row_sums[r];
  return total / count;
}

}  // namespace detail

/// The number of targets other than `ignore_index`.
template <class Targets>
Index count_targets(const Targets& targets, Index ignore_index = CrossEntropyOptions{}.ignore_index) {
  const IntView view = detail::read_targets(targets);
  Index counted = 0;
  for (Index b = 0; b < view.extent(0); ++b) {
    for (Index l = 0; l < view.extent(1); ++l) counted += view(b, l) != ignore_index;
  }
  return counted;
}

/// Cross entropy and its gradient: the mean over all positions of log Σ exp(logits) - logits[target], or with label
/// smoothing log Σ exp(logits) - (1 - ε)·logits[target] - ε·mean(logits). Szegedy et al.: "Rethinking the inception
/// architecture", 2016; equals PyTorch's cross_entropy. Positions whose target is ignore_index do not count.
///
/// logits, dlogits (B, L, V) of float or double with targets (B, L) of any integer type; or (L, V) with a list of L
/// targets. dlogits may be the logits. The sum over positions has the same bits for any number of threads.
///
/// Throws ShapeError if the shapes do not match; ValueError for a target outside [0, V), with its position, for options
/// out of range, and if dlogits partly overlaps logits.
template <TensorLike X, class Targets, TensorLike D>
Loss cross_entropy(const X& logits, const Targets& targets, D&& dlogits, const CrossEntropyOptions& options = {},
                   Context& context = detail::own_context({})) {
  const Workspace::Frame frame(context.workspace());
  return detail::cross_entropy<scalar_of_t<X>>(detail::read_as<3>(logits, context.workspace()),
                                               detail::read_targets(targets), detail::write_as<3>(dlogits), options,
                                               context);
}
/// @overload
template <TensorLike X, class Targets, TensorLike D>
Loss cross_entropy(const X& logits, const Targets& targets, D&& dlogits, Context& context) {
  return cross_entropy(logits, targets, std::forward<D>(dlogits), CrossEntropyOptions{}, context);
}
/// The loss without its gradient.
template <TensorLike X, class Targets>
Loss cross_entropy(const X& logits, const Targets& targets, const CrossEntropyOptions& options = {},
                   Context& context = detail::own_context({})) {
  return cross_entropy(logits, targets, TensorView<scalar_of_t<X>, 3>(), options, context);
}
/// @overload
template <TensorLike X, class Targets>
Loss cross_entropy(const X& logits, const Targets& targets, Context& context) {
  return cross_entropy(logits, targets, CrossEntropyOptions{}, context);
}

/// Mean squared error and its gradient: the mean over all n elements of (y - target)², and dy = 2·(y - target)/n. 0 if
/// there are no elements. y, target and dy have equal shapes (B, L, E), or fewer dimensions; dy may be y.
///
/// Throws ShapeError if the shapes differ, ValueError if dy overlaps the target, or y in part.
template <TensorLike Y, TensorLike Target, TensorLike D>
double mse(const Y& y, const Target& target, D&& dy, Context& context = detail::own_context({})) {
  const Workspace::Frame frame(context.workspace());
  return detail::mse<scalar_of_t<Y>>(detail::read_as<3>(y, context.workspace()),
                                     detail::read_as<3>(target, context.workspace()), detail::write_as<3>(dy), context);
}
/// The loss without its gradient.
template <TensorLike Y, TensorLike Target>
double mse(const Y& y, const Target& target, Context& context = detail::own_context({})) {
  return mse(y, target, TensorView<scalar_of_t<Y>, 3>(), context);
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
