// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// GroupNorm: normalization of groups of channels over all positions of a sequence.

#include <heed/nn/init.hpp>
#include <heed/nn/layer.hpp>
#include <heed/nn/rows.hpp>

HEED_NAMESPACE_BEGIN

/// Options of GroupNorm.
struct GroupNormOptions {
  Index num_groups = 1;    ///< a divisor of num_channels; 1 normalizes a whole sequence
  Index num_channels = 0;  ///< C, the width of x
  double eps = 1e-5;       ///< added to the variance
  bool affine = true;      ///< multiply by `weight`, add `bias`
};

/// y = (x - mean) / √(variance + eps) · weight + bias, mean and (biased) variance of a group of C/num_groups
/// neighboring channels over all positions; x and y (B, L, C), weight and bias (C). PyTorch's GroupNorm of (B, C, L),
/// with heed's layout: (B, C, L) memory is the view with dimensions 1 and 2 exchanged, `view.transpose(1, 2)`. Every
/// position counts, also padding: give sequences of several lengths one by one. Wu, He: "Group normalization", 2018.
/// Starts with weight 1 and bias 0. y may be x unless a cache is filled.
template <LayerScalar T>
class GroupNorm : public Layer<GroupNorm<T>> {
  using In = TensorView<const T, 3>;
  using Out = TensorView<T, 3>;
  using A = accumulate_t<T>;

 public:
  using Scalar = T;                       ///< type of parameters and values
  static constexpr bool kInPlace = true;  ///< without a cache, y may be x; dx may be dy

  /// Throws ShapeError unless num_channels is a positive multiple of num_groups, ValueError for an eps that is negative
  /// or not finite.
  explicit GroupNorm(const GroupNormOptions& options) : options_(options) {
    HEED_CHECK(options.num_groups >= 1 && options.num_channels >= 1 && options.num_channels % options.num_groups == 0,
               ShapeError, name(), ": num_channels = ", options.num_channels,
               " must be a positive multiple of num_groups = ", options.num_groups);
    HEED_CHECK(options.eps >= 0 && detail::is_finite(options.eps), ValueError, name(), ": eps = ", options.eps,
               " must be a finite number >= 0");
    if (!options.affine) return;
    weight = Parameter<T>(options.num_channels);
    bias = Parameter<T>(options.num_channels);
    set_to_identity();
  }

  /// Memory of a forward that backward() needs: its x, borrowed, and each group's mean and inverse deviation.
  struct Cache {
    In x{};
    TensorView<A, 2> moments{};
    Buffer<A> memory{};

    /// Memory held.
    std::size_t bytes() const { return memory.bytes(); }
  };

  Parameter<T> weight;  ///< (C); does not exist without `affine`
  Parameter<T> bias;    ///< (C); does not exist without `affine`

  /// The list of members, for Module.
  static void members(auto&& f) {
    f("weight", &GroupNorm::weight);
    f("bias", &GroupNorm::bias);
  }
  static constexpr std::string_view name() { return "heed::GroupNorm"; }  ///< the layer in error texts
  const GroupNormOptions& options() const { return options_; }            ///< as constructed
  Index input_width(Index) const { return options_.num_channels; }        ///< of x
  Index output_width(Index) const { return options_.num_channels; }       ///< of y

  /// weight 1 and bias 0; draws no numbers.
  void initialize(Random&, std::string_view = "") { set_to_identity(); }

  /// The layer without checks, for layers made of it.
  void run(const In& x, const Out& y, Cache* cache, Context& context) const {
    const Index groups = options_.num_groups, count = x.extent(0) * groups;
    TensorView<A, 2> moments;
    if (cache) {
      cache->x = x;
      cache->moments = moments = cache->memory.template view<2>({2, count});
    }
    const T* w = detail::value_or_null(weight);
    const T* b = detail::value_or_null(bias);
    detail::parallel_for_rows(context, count, x.extent(1) * width(), [&](Index first, Index last, int) {
      for (Index i = first; i < last; ++i) {
        const Index sample = i / groups, group = i % groups;
        const Moments m = moments_of(x[sample], group);
        if (moments.data()) moments(0, i) = m.mean, moments(1, i) = m.scale;
        for_each(x, group, [&](Index l, Index c) {
          const A n = (static_cast<A>(x(sample, l, c)) - m.mean) * m.scale;
          y(sample, l, c) = static_cast<T>(w ? n * static_cast<A>(w[c]) + static_cast<A>(b[c]) : n);
        });
      }
    });
    context.observe(y);
  }
  /// The gradients, without checks, for layers made of it: with n the normalized x, s its inverse deviation and
  /// g = dy·weight, dx = s·(g - mean(g) - n·mean(g·n)).
  void run_backward(const In& dy, const Out& dx, const Cache& cache, Context& context) {
    const In& x = cache.x;
    const Index groups = options_.num_groups;
    detail::check_cache(name(), "groups", cache.moments.extent(1), x.extent(0) * groups);
    const T* w = detail::value_or_null(weight);
    T* dw = detail::grad_or_null(weight);
    T* db = detail::grad_or_null(bias);
    const Workspace::Frame frame(context.workspace());
    // Each channel's sums of dy·n and dy over all samples; a group's channels belong to one task.
    const auto sums = context.workspace().template tensor<A, 2>({2, options_.num_channels});
    std::fill_n(sums.data(), sums.size(), A(0));
    detail::parallel_for_rows(context, groups, x.extent(0) * x.extent(1) * width(), [&](Index begin, Index end, int) {
      for (Index group = begin; group < end; ++group) {
        for (Index sample = 0; sample < x.extent(0); ++sample) {
          const A mean = cache.moments(0, sample * groups + group), scale = cache.moments(1, sample * groups + group);
          const auto normalized = [&](Index l, Index c) { return (static_cast<A>(x(sample, l, c)) - mean) * scale; };
          const auto weighted = [&](Index l, Index c) {
            const A d = static_cast<A>(dy(sample, l, c));
            return w ? d * static_cast<A>(w[c]) : d;
          };
          A shift = 0, slope = 0;
          for_each(x, group, [&](Index l, Index c) {
            const A n = normalized(l, c), d = static_cast<A>(dy(sample, l, c));
            shift += weighted(l, c);
            slope += weighted(l, c) * n;
            sums(0, c) += d * n;
            sums(1, c) += d;
          });
          if (!dx.data()) continue;
          const A size = static_cast<A>(x.extent(1) * width());
          for_each(x, group, [&](Index l, Index c) {
            dx(sample, l, c) =
                static_cast<T>((weighted(l, c) - shift / size - normalized(l, c) * (slope / size)) * scale);
          });
        }
      }
    });
    for (Index c = 0; dw && c < options_.num_channels; ++c) {
      dw[c] += static_cast<T>(sums(0, c));
      db[c] += static_cast<T>(sums(1, c));
    }
  }

 private:
  struct Moments {
    A mean, scale;
  };

  Index width() const { return options_.num_channels / options_.num_groups; }
  void set_to_identity() {
    if (!weight.exists()) return;
    init::constant(weight, 1);
    init::zeros(bias);
  }
  /// f(l, c) for the positions and channels of a group.
  template <class X, class F>
  void for_each(const X& x, Index group, F&& f) const {
    for (Index l = 0; l < x.extent(X::rank - 2); ++l) {
      for (Index c = group * width(); c < (group + 1) * width(); ++c) f(l, c);
    }
  }
  /// In two passes, so that numbers far from zero lose nothing. A group without spread, which eps does not lift, is
  /// normalized to zeros.
  Moments moments_of(const TensorView<const T, 2>& x, Index group) const {
    const A size = static_cast<A>(x.extent(0) * width());
    A sum = 0, rest = 0, squares = 0;
    for_each(x, group, [&](Index l, Index c) { sum += static_cast<A>(x(l, c)); });
    const A mean = sum / size;
    for_each(x, group, [&](Index l, Index c) {
      const A d = static_cast<A>(x(l, c)) - mean;
      rest += d;
      squares += d * d;
    });
    const A variance = std::max(squares / size - (rest / size) * (rest / size), A(0)) + static_cast<A>(options_.eps);
    return {mean + rest / size, variance == A(0) ? A(0) : A(1) / std::sqrt(variance)};
  }

  GroupNormOptions options_;
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
