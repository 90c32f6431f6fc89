// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Normalisation of each token's vector: LayerNorm and RMSNorm.

#include <algorithm>
#include <cmath>
#include <string_view>

#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/core/scalar.hpp>
#include <heed/core/simd.hpp>
#include <heed/core/tensor.hpp>
#include <heed/nn/layer.hpp>
#include <heed/nn/parameter.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// Four sums in flight hide the latency of the addition; they are always joined in this order.
template <class A>
struct RowSum {
  Vec<A> part[4] = {A(0), A(0), A(0), A(0)};
  HEED_ALWAYS_INLINE A total() const { return sum((part[0] + part[1]) + (part[2] + part[3])); }
};

/// term(k, i, count) for lanes i, ..., i + count - 1 of a row of n, with the partial sum k they belong to.
template <class A, class Term>
HEED_ALWAYS_INLINE void over_row(Index n, Term&& term) {
  constexpr Index lanes = Vec<A>::size;
  Index i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    unroll<4>([&](auto k) HEED_ALWAYS_INLINE_LAMBDA { term(static_cast<int>(k), i + k * lanes, lanes); });
  }
  for (; i < n; i += lanes) term(0, i, n - i);
}

/// What centres and scales a row: y = ((x - mean) - residue) · inverse_deviation.
template <class A>
struct RowMoments {
  A mean, residue, inverse_deviation;
};

/// 1 / √spread. A row without spread, which epsilon did not lift, is normalised to zeros.
template <class A>
A inverse_root(A spread) {
  return spread == A(0) ? A(0) : A(1) / std::sqrt(spread);
}

/// The moments of a row of n >= 1 in two passes: the (biased) variance is taken around the mean, so that rows far from
/// zero lose nothing. The second pass also finds what rounding left out of the mean and corrects for it; without that a
/// constant row and a tiny epsilon would give noise instead of zeros.
template <class T>
HEED_ALWAYS_INLINE RowMoments<accumulate_t<T>> row_moments(const T* x, Index n, accumulate_t<T> eps) {
  using A = accumulate_t<T>;
  const A count = static_cast<A>(n);
  RowSum<A> values, first, second;
  over_row<A>(n, [&](int k, Index i, Index lanes)
                     HEED_ALWAYS_INLINE_LAMBDA { values.part[k] = values.part[k] + load_lanes(x + i, lanes); });
  const A mean = values.total() / count;
  over_row<A>(n, [&](int k, Index i, Index lanes) HEED_ALWAYS_INLINE_LAMBDA {
    const Vec<A> d = load_lanes(x + i, lanes, mean) - Vec<A>(mean);
    first.part[k] = first.part[k] + d;
    second.part[k] = fma(d, d, second.part[k]);
  });
  const A residue = first.total() / count;
  const A variance = std::max(second.total() / count - residue * residue, A(0));
  return {mean, residue, inverse_root(variance + eps)};
}

inline void check_norm(std::string_view name, Index width, double eps) {
  HEED_CHECK(width >= 1, ShapeError, name, ": width = ", width, " but at least 1 is needed");
  HEED_CHECK(eps >= 0 && std::isfinite(eps), ValueError, name, ": eps = ", eps, " must be a finite number >= 0");
}

}  // namespace detail

struct LayerNormOptions {
  Index width;         ///< E
  double eps = 1e-5;   ///< added to the variance; checkpoints differ (BERT: 1e-12)
  bool affine = true;  ///< multiply by `weight`, add `bias`
  bool bias = true;    ///< false: an affine layer without `bias`
};

/// y = (x - mean(x)) / √(variance(x) + eps) · weight + bias over the last dimension; x and y (B, L, E), weight (E),
/// bias (E). Ba, Kiros, Hinton: "Layer normalization", 2016. The variance is the biased one, summed around the mean in
/// accumulate_t<T>. Starts with weight 1 and bias 0. y may be x.
template <class T>
class LayerNorm : public detail::UnaryLayer<LayerNorm<T>> {
 public:
  /// Throws ShapeError for width < 1, ValueError for an eps that is negative or not finite.
  explicit LayerNorm(const LayerNormOptions& options) : options_(options) {
    detail::check_norm("heed::LayerNorm", options.width, options.eps);
    if (!options.affine) return;
    weight_ = Parameter<T>(options.width);
    std::fill_n(weight_.mutable_value().data(), options.width, T(1));
    if (options.bias) bias_ = Parameter<T>(options.width);
  }

  const LayerNormOptions& options() const { return options_; }
  Parameter<T>& weight() { return weight_; }
  const Parameter<T>& weight() const { return weight_; }
  Parameter<T>& bias() { return bias_; }
  const Parameter<T>& bias() const { return bias_; }
  Index output_width(Index) const { return options_.width; }

  template <class F>
  void visit(std::string_view prefix, F&& f) {
    visit_parameters(*this, prefix, f);
  }
  template <class F>
  void visit(std::string_view prefix, F&& f) const {
    visit_parameters(*this, prefix, f);
  }

  /// Throws ShapeError when x or y is not (B, L, E), ValueError when they overlap without being the same.
  void forward(TensorView<const T, 3> x, TensorView<T, 3> y, Context& context) const {
    using A = accumulate_t<T>;
    const Index width = options_.width;
    detail::check_layer_shapes("heed::LayerNorm", x, y, width, width, detail::InPlace::Allowed);
    const T* weight = weight_.exists() ? weight_.value().data() : nullptr;
    const T* bias = bias_.exists() ? bias_.value().data() : nullptr;
    const A eps = static_cast<A>(options_.eps);
    detail::transform_rows(x, y, context, [&](Index, Index, const T* from, T* to) {
      const detail::RowMoments<A> row = detail::row_moments(from, width, eps);
      const Vec<A> mean = row.mean, residue = row.residue, scale = row.inverse_deviation;
      for (Index i = 0; i < width; i += Vec<A>::size) {
        const Index lanes = width - i;
        Vec<A> v = ((detail::load_lanes(from + i, lanes) - mean) - residue) * scale;
        if (weight) v = v * detail::load_lanes(weight + i, lanes);
        if (bias) v = v + detail::load_lanes(bias + i, lanes);
        detail::store_lanes<T>(v, to + i, lanes);
      }
    });
    context.observe(y);
  }

 private:
  template <class Self, class F>
  static void visit_parameters(Self& self, std::string_view prefix, F& f) {
    detail::visit_parameter(prefix, "weight", self.weight_, f);
    detail::visit_parameter(prefix, "bias", self.bias_, f);
  }

  LayerNormOptions options_;
  Parameter<T> weight_, bias_;
};

struct RMSNormOptions {
  Index width;         ///< E
  double eps = 1e-6;   ///< added to the mean square; PyTorch's own default is the type's machine epsilon
  bool affine = true;  ///< multiply by `weight`
};

/// y = x / √(mean(x²) + eps) · weight over the last dimension; x and y (B, L, E), weight (E).
/// Zhang, Sennrich: "Root mean square layer normalization", 2019. Starts with weight 1. y may be x.
template <class T>
class RMSNorm : public detail::UnaryLayer<RMSNorm<T>> {
 public:
  /// Throws ShapeError for width < 1, ValueError for an eps that is negative or not finite.
  explicit RMSNorm(const RMSNormOptions& options) : options_(options) {
    detail::check_norm("heed::RMSNorm", options.width, options.eps);
    if (!options.affine) return;
    weight_ = Parameter<T>(options.width);
    std::fill_n(weight_.mutable_value().data(), options.width, T(1));
  }

  const RMSNormOptions& options() const { return options_; }
  Parameter<T>& weight() { return weight_; }
  const Parameter<T>& weight() const { return weight_; }
  Index output_width(Index) const { return options_.width; }

  template <class F>
  void visit(std::string_view prefix, F&& f) {
    detail::visit_parameter(prefix, "weight", weight_, f);
  }
  template <class F>
  void visit(std::string_view prefix, F&& f) const {
    detail::visit_parameter(prefix, "weight", weight_, f);
  }

  /// Throws ShapeError when x or y is not (B, L, E), ValueError when they overlap without being the same.
  void forward(TensorView<const T, 3> x, TensorView<T, 3> y, Context& context) const {
    using A = accumulate_t<T>;
    const Index width = options_.width;
    detail::check_layer_shapes("heed::RMSNorm", x, y, width, width, detail::InPlace::Allowed);
    const T* weight = weight_.exists() ? weight_.value().data() : nullptr;
    const A eps = static_cast<A>(options_.eps);
    detail::transform_rows(x, y, context, [&](Index, Index, const T* from, T* to) {
      detail::RowSum<A> squares;
      detail::over_row<A>(width, [&](int k, Index i, Index lanes) HEED_ALWAYS_INLINE_LAMBDA {
        const Vec<A> v = detail::load_lanes(from + i, lanes);
        squares.part[k] = fma(v, v, squares.part[k]);
      });
      const Vec<A> scale = detail::inverse_root(squares.total() / static_cast<A>(width) + eps);
      for (Index i = 0; i < width; i += Vec<A>::size) {
        const Index lanes = width - i;
        Vec<A> v = detail::load_lanes(from + i, lanes) * scale;
        if (weight) v = v * detail::load_lanes(weight + i, lanes);
        detail::store_lanes<T>(v, to + i, lanes);
      }
    });
    context.observe(y);
  }

 private:
  RMSNormOptions options_;
  Parameter<T> weight_;
};

HEED_NAMESPACE_END
