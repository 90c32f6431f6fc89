// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Normalization of each token's vector: LayerNorm and RMSNorm.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string_view>

#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/core/scalar.hpp>
#include <heed/core/simd.hpp>
#include <heed/core/tensor.hpp>
#include <heed/core/workspace.hpp>
#include <heed/nn/backward.hpp>
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

/// What centers and scales a row: y = ((x - mean) - residue) · inverse_deviation.
template <class A>
struct RowMoments {
  A mean, residue, inverse_deviation;
};

/// 1 / √spread. A row without spread, which epsilon did not lift, is normalized to zeros.
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

/// What a norm's backward needs of a forward: its x, borrowed, and the moments of each row: mean, residue and inverse
/// stddev, of which RMSNorm has the last alone.
template <class T>
struct NormCache {
  TensorView<const T, 3> x{};
  Buffer<accumulate_t<T>> moments{};

  /// Memory held.
  std::size_t bytes() const { return moments.bytes(); }
};

/// With n = (x - mean)·s the normalized row, s its inverse stddev and g = dy·weight:
///   dx = residual + s·(g - mean(g) - n·mean(g·n)),  dweight += sum over rows of dy·n,  dbias += sum over rows of dy
/// and for RMSNorm, which is not Centered, the same without mean(x) and mean(g). weight, dweight and dbias may be null.
template <bool Centered, class T>
void norm_backward(NormCache<T>& cache, const TensorView<const T, 3>& dy, const TensorView<const T, 3>& residual,
                   const TensorView<T, 3>& dx, const T* weight, T* dweight, T* dbias, Context& context) {
  using A = accumulate_t<T>;
  using V = Vec<A>;
  const Index width = dy.extent(2), length = dy.extent(1), rows = dy.extent(0) * length;
  if (rows == 0) return;
  const TensorView<A, 2> moments = cache.moments.template view<2>({Centered ? 3 : 1, rows});
  const RowBlocks blocks = RowBlocks::of(rows, width);
  const Workspace::Frame frame(context.workspace());
  // Each block of rows has its own sums, of dy·n and then of dy.
  const Index sums = dbias ? 2 * width : dweight ? width : 0;
  const auto parts = context.workspace().template tensor<A, 2>({blocks.count, sums});
  std::fill_n(parts.data(), parts.size(), A(0));
  const auto residual_lanes = [&](Index r, Index i, Index lanes) {
    const TensorView<const T, 1> from = residual[r / length][r % length];
    if (residual.has_dense_rows()) return load_lanes(from.data() + i, lanes);
    A values[V::size] = {};
    for (Index k = 0; k < std::min<Index>(V::size, lanes); ++k) values[k] = static_cast<A>(from(i + k));
    return V::load(values);
  };

  backward_rows(blocks, cache.x, dy, dx, context, [&](Index block, Index r, const T* x, const T* g, T* to) {
    const V mean = Centered ? moments(0, r) : A(0), residue = Centered ? moments(1, r) : A(0);
    const V scale = moments(Centered ? 2 : 0, r);
    const auto normalized = [&](Index i, Index lanes) HEED_ALWAYS_INLINE_LAMBDA {
      const V v = load_lanes(x + i, lanes, Centered ? moments(0, r) : A(0));
      return Centered ? ((v - mean) - residue) * scale : v * scale;
    };
    A* dw = dweight ? parts[block].data() : nullptr;
    A* db = dbias ? dw + width : nullptr;
    RowSum<A> first, second;
    over_row<A>(width, [&](int k, Index i, Index lanes) HEED_ALWAYS_INLINE_LAMBDA {
      const V n = normalized(i, lanes), d = load_lanes(g + i, lanes);
      const V weighted = weight ? d * load_lanes(weight + i, lanes) : d;
      if (Centered) first.part[k] = first.part[k] + weighted;
      second.part[k] = fma(weighted, n, second.part[k]);
      if (dw) store_lanes<A>(fma(d, n, load_lanes(dw + i, lanes)), dw + i, lanes);
      if (db) store_lanes<A>(d + load_lanes(db + i, lanes), db + i, lanes);
    });
    if (!to) return;
    const A count = static_cast<A>(width);
    const V shift = Centered ? first.total() / count : A(0), slope = second.total() / count;
    for (Index i = 0; i < width; i += V::size) {
      const Index lanes = width - i;
      const V d = load_lanes(g + i, lanes);
      V v = weight ? d * load_lanes(weight + i, lanes) : d;
      if (Centered) v = v - shift;
      v = fma(-normalized(i, lanes), slope, v) * scale;
      if (residual.data()) v = v + residual_lanes(r, i, lanes);
      store_lanes<T>(v, to + i, lanes);
    }
  });
  if (dweight) add_row_sums<T, A>(parts.slice(1, 0, width), dweight, context);
  if (dbias) add_row_sums<T, A>(parts.slice(1, width, width), dbias, context);
}

/// The numbers of a parameter; null for one that does not exist.
template <class T>
const T* value_or_null(const Parameter<T>& parameter) {
  return parameter.exists() ? parameter.value().data() : nullptr;
}
template <class T>
T* grad_or_null(Parameter<T>& parameter) {
  return parameter.exists() ? parameter.grad().data() : nullptr;
}

inline void check_norm(std::string_view name, Index width, double eps) {
  HEED_CHECK(width >= 1, ShapeError, name, ": embed_dim = ", width, " but at least 1 is needed");
  HEED_CHECK(eps >= 0 && std::isfinite(eps), ValueError, name, ": eps = ", eps, " must be a finite number >= 0");
}

}  // namespace detail

struct LayerNormOptions {
  Index embed_dim;     ///< E
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
    detail::check_norm("heed::LayerNorm", options.embed_dim, options.eps);
    if (!options.affine) return;
    weight_ = Parameter<T>(options.embed_dim);
    std::fill_n(weight_.mutable_value().data(), options.embed_dim, T(1));
    if (options.bias) bias_ = Parameter<T>(options.embed_dim);
  }

  using Cache = detail::NormCache<T>;

  const LayerNormOptions& options() const { return options_; }
  Parameter<T>& weight() { return weight_; }
  const Parameter<T>& weight() const { return weight_; }
  Parameter<T>& bias() { return bias_; }
  const Parameter<T>& bias() const { return bias_; }
  Index output_width(Index) const { return options_.embed_dim; }

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
    detail::check_layer_shapes(kName, x, y, options_.embed_dim, options_.embed_dim, detail::InPlace::Allowed);
    run(x, y, {}, context);
  }
  /// forward() that a backward() can follow; x must live, unchanged, until then, so y can't be x.
  void forward(TensorView<const T, 3> x, TensorView<T, 3> y, Cache& cache, Context& context) const {
    detail::check_layer_shapes(kName, x, y, options_.embed_dim, options_.embed_dim);
    cache.x = x;
    run(x, y, cache.moments.template view<2>({3, x.extent(0) * x.extent(1)}), context);
  }

  /// Adds to the gradients of weight and bias and writes dx, which may be dy; a dx without data is not computed.
  /// Throws ShapeError when dy or dx don't fit the forward, ValueError when dx overlaps x, or dy without being it.
  void backward(TensorView<const T, 3> dy, TensorView<T, 3> dx, Cache& cache, Context& context) {
    backward_residual(dy, {}, dx, cache, context);
  }
  /// The same with the residual added to dx, in one pass; the residual may be dx.
  void backward_residual(TensorView<const T, 3> dy, TensorView<const T, 3> residual, TensorView<T, 3> dx, Cache& cache,
                         Context& context) {
    detail::check_backward(kName, cache.x, cache.x.extents(), dy, dx, detail::InPlace::Allowed);
    detail::check_backward_residual(kName, residual, dx);
    detail::norm_backward<true>(cache, dy, residual, dx, detail::value_or_null(weight_), detail::grad_or_null(weight_),
                                detail::grad_or_null(bias_), context);
  }

 private:
  static constexpr std::string_view kName = "heed::LayerNorm";

  /// Keeps the moments of each row, (3, B·L), unless the view is empty.
  void run(const TensorView<const T, 3>& x, const TensorView<T, 3>& y, const TensorView<accumulate_t<T>, 2>& moments,
           Context& context) const {
    using A = accumulate_t<T>;
    const Index width = options_.embed_dim;
    const T* weight = detail::value_or_null(weight_);
    const T* bias = detail::value_or_null(bias_);
    const A eps = static_cast<A>(options_.eps);
    detail::transform_rows(x, y, context, [&](Index b, Index l, const T* from, T* to) {
      const detail::RowMoments<A> row = detail::row_moments(from, width, eps);
      if (!moments.empty()) {
        const Index r = b * x.extent(1) + l;
        moments(0, r) = row.mean;
        moments(1, r) = row.residue;
        moments(2, r) = row.inverse_deviation;
      }
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

  template <class Self, class F>
  static void visit_parameters(Self& self, std::string_view prefix, F& f) {
    detail::visit_parameter(prefix, "weight", self.weight_, f);
    detail::visit_parameter(prefix, "bias", self.bias_, f);
  }

  LayerNormOptions options_;
  Parameter<T> weight_, bias_;
};

struct RMSNormOptions {
  Index embed_dim;     ///< E
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
    detail::check_norm("heed::RMSNorm", options.embed_dim, options.eps);
    if (!options.affine) return;
    weight_ = Parameter<T>(options.embed_dim);
    std::fill_n(weight_.mutable_value().data(), options.embed_dim, T(1));
  }

  using Cache = detail::NormCache<T>;

  const RMSNormOptions& options() const { return options_; }
  Parameter<T>& weight() { return weight_; }
  const Parameter<T>& weight() const { return weight_; }
  Index output_width(Index) const { return options_.embed_dim; }

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
    detail::check_layer_shapes(kName, x, y, options_.embed_dim, options_.embed_dim, detail::InPlace::Allowed);
    run(x, y, {}, context);
  }
  /// forward() that a backward() can follow; x must live, unchanged, until then, so y can't be x.
  void forward(TensorView<const T, 3> x, TensorView<T, 3> y, Cache& cache, Context& context) const {
    detail::check_layer_shapes(kName, x, y, options_.embed_dim, options_.embed_dim);
    cache.x = x;
    run(x, y, cache.moments.template view<2>({1, x.extent(0) * x.extent(1)}), context);
  }

  /// As LayerNorm::backward().
  void backward(TensorView<const T, 3> dy, TensorView<T, 3> dx, Cache& cache, Context& context) {
    backward_residual(dy, {}, dx, cache, context);
  }
  /// The same with the residual added to dx, in one pass; the residual may be dx.
  void backward_residual(TensorView<const T, 3> dy, TensorView<const T, 3> residual, TensorView<T, 3> dx, Cache& cache,
                         Context& context) {
    detail::check_backward(kName, cache.x, cache.x.extents(), dy, dx, detail::InPlace::Allowed);
    detail::check_backward_residual(kName, residual, dx);
    detail::norm_backward<false>(cache, dy, residual, dx, detail::value_or_null(weight_), detail::grad_or_null(weight_),
                                 static_cast<T*>(nullptr), context);
  }

 private:
  static constexpr std::string_view kName = "heed::RMSNorm";

  /// Keeps the inverse stddev of each row, (1, B·L), unless the view is empty.
  void run(const TensorView<const T, 3>& x, const TensorView<T, 3>& y, const TensorView<accumulate_t<T>, 2>& moments,
           Context& context) const {
    using A = accumulate_t<T>;
    const Index width = options_.embed_dim;
    const T* weight = detail::value_or_null(weight_);
    const A eps = static_cast<A>(options_.eps);
    detail::transform_rows(x, y, context, [&](Index b, Index l, const T* from, T* to) {
      detail::RowSum<A> squares;
      detail::over_row<A>(width, [&](int k, Index i, Index lanes) HEED_ALWAYS_INLINE_LAMBDA {
        const Vec<A> v = detail::load_lanes(from + i, lanes);
        squares.part[k] = fma(v, v, squares.part[k]);
      });
      const A inverse_deviation = detail::inverse_root(squares.total() / static_cast<A>(width) + eps);
      if (!moments.empty()) moments(0, b * x.extent(1) + l) = inverse_deviation;
      const Vec<A> scale = inverse_deviation;
      for (Index i = 0; i < width; i += Vec<A>::size) {
        const Index lanes = width - i;
        Vec<A> v = detail::load_lanes(from + i, lanes) * scale;
        if (weight) v = v * detail::load_lanes(weight + i, lanes);
        detail::store_lanes<T>(v, to + i, lanes);
      }
    });
    context.observe(y);
  }

  RMSNormOptions options_;
  Parameter<T> weight_;
};

HEED_NAMESPACE_END
