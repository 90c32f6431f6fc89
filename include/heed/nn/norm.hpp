// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Normalization of each token's vector: LayerNorm and RMSNorm.

#include <heed/nn/layer.hpp>
#include <heed/nn/rows.hpp>

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

/// The numbers that center and scale a row: y = ((x - mean) - residue) · inverse_deviation.
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
/// zero lose nothing. The second pass also finds the rounding error of the mean and corrects for it; without that a
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

/// The same for RMSNorm: 1 / √(mean(x²) + eps) alone.
template <class T>
HEED_ALWAYS_INLINE RowMoments<accumulate_t<T>> row_scale(const T* x, Index n, accumulate_t<T> eps) {
  using A = accumulate_t<T>;
  RowSum<A> squares;
  over_row<A>(n, [&](int k, Index i, Index lanes) HEED_ALWAYS_INLINE_LAMBDA {
    const Vec<A> v = load_lanes(x + i, lanes);
    squares.part[k] = fma(v, v, squares.part[k]);
  });
  return {A(0), A(0), inverse_root(squares.total() / static_cast<A>(n) + eps)};
}

/// With n = (x - mean)·s the normalized row, s its inverse stddev and g = dy·weight:
///   dx = residual + s·(g - mean(g) - n·mean(g·n)),  dweight += sum over rows of dy·n,  dbias += sum over rows of dy
/// and for RMSNorm, which is not Centered, the same without mean(x) and mean(g). weight, dweight and dbias may be null.
template <bool Centered, class T>
void norm_backward(const TensorView<const T, 3>& x_view, const TensorView<const accumulate_t<T>, 2>& moments,
                   const TensorView<const T, 3>& dy, const TensorView<const T, 3>& residual, const TensorView<T, 3>& dx,
                   const T* weight, T* dweight, T* dbias, Context& context) {
  using A = accumulate_t<T>;
  using V = Vec<A>;
  const Index width = dy.extent(2), length = dy.extent(1), rows = dy.extent(0) * length;
  if (rows == 0) return;
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

  backward_rows(blocks, x_view, dy, dx, context, [&](Index block, Index r, const T* x, const T* g, T* to) {
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

}  // namespace detail

/// The two normalizations of a token's vector.
enum class NormKind {
  Layer,  ///< LayerNorm: centers and scales
  RMS     ///< RMSNorm: scales alone, and has no bias
};

/// Options of Norm.
struct NormOptions {
  Index embed_dim = 0;              ///< E
  double eps = 1e-5;                ///< added to the variance, or to the mean square; checkpoints differ (BERT: 1e-12)
  bool affine = true;               ///< multiply by `weight`, add `bias`
  bool bias = true;                 ///< false: an affine LayerNorm without `bias`
  NormKind kind = NormKind::Layer;  ///< LayerNorm or RMSNorm
};
/// Options of LayerNorm.
struct LayerNormOptions {
  Index embed_dim = 0;  ///< E
  double eps = 1e-5;    ///< added to the variance; checkpoints differ (BERT: 1e-12)
  bool affine = true;   ///< multiply by `weight`, add `bias`
  bool bias = true;     ///< false: an affine layer without `bias`
};
/// Options of RMSNorm.
struct RMSNormOptions {
  Index embed_dim = 0;  ///< E
  double eps = 1e-6;    ///< added to the mean square; PyTorch's default is the type's machine epsilon
  bool affine = true;   ///< multiply by `weight`
};

/// LayerNorm or RMSNorm, as the options say; x and y (B, L, E), weight and bias (E). Starts with weight 1 and bias 0.
/// y may be x unless a cache is filled.
template <class T>
class Norm : public Layer<Norm<T>> {
 public:
  using Scalar = T;                       ///< type of parameters and values
  static constexpr bool kInPlace = true;  ///< without a cache, y may be x

  /// Throws ShapeError for a width below 1, ValueError for an eps that is negative or not finite.
  explicit Norm(const NormOptions& options) : options_(options) {
    HEED_CHECK(options.embed_dim >= 1, ShapeError, name(), ": embed_dim = ", options.embed_dim,
               " but at least 1 is needed");
    HEED_CHECK(options.eps >= 0 && detail::is_finite(options.eps), ValueError, name(), ": eps = ", options.eps,
               " must be a finite number >= 0");
    if (!options.affine) return;
    weight = Parameter<T>(options.embed_dim);
    if (options.bias && is_centered()) bias = Parameter<T>(options.embed_dim);
    set_to_identity();
  }

  /// Memory of a forward that backward() needs: its x, borrowed, and the moments of each row: mean, residue and inverse
  /// deviation, of which RMSNorm has the last alone.
  struct Cache {
    TensorView<const T, 3> x{};
    TensorView<accumulate_t<T>, 2> moments{};
    Buffer<accumulate_t<T>> memory{};

    /// Memory held.
    std::size_t bytes() const { return memory.bytes(); }
  };

  Parameter<T> weight;  ///< (E); does not exist without `affine`
  Parameter<T> bias;    ///< (E); does not exist in an RMSNorm or without `bias`

  /// The list of members, for Module.
  static void members(auto&& f) {
    f("weight", &Norm::weight);
    f("bias", &Norm::bias);
  }
  /// The layer in error texts.
  std::string_view name() const { return is_centered() ? "heed::LayerNorm" : "heed::RMSNorm"; }
  const NormOptions& options() const { return options_; }         ///< as constructed
  Index input_width(Index) const { return options_.embed_dim; }   ///< of x
  Index output_width(Index) const { return options_.embed_dim; }  ///< of y

  /// weight 1 and bias 0; draws no numbers.
  void initialize(Random&, std::string_view = "") { set_to_identity(); }

  /// The layer without checks, for layers made of it.
  void run(const TensorView<const T, 3>& x, const TensorView<T, 3>& y, Cache* cache, Context& context) const {
    TensorView<accumulate_t<T>, 2> moments;
    if (cache) {
      cache->x = x;
      cache->moments = moments = cache->memory.template view<2>({is_centered() ? 3 : 1, x.extent(0) * x.extent(1)});
    }
    if (is_centered())
      normalize<true>(x, y, moments, context);
    else
      normalize<false>(x, y, moments, context);
    context.observe(y);
  }
  /// The gradients, and dx + residual in one pass; the residual may be dx.
  void run_backward(const TensorView<const T, 3>& dy, const TensorView<T, 3>& dx, const Cache& cache,
                    Context& context) {
    run_backward(dy, {}, dx, cache, context);
  }
  /// The gradients, without checks, for layers made of it.
  void run_backward(const TensorView<const T, 3>& dy, const TensorView<const T, 3>& residual,
                    const TensorView<T, 3>& dx, const Cache& cache, Context& context) {
    detail::check_cache(name(), "rows of moments", cache.moments.extent(0), Index{is_centered() ? 3 : 1});
    const auto backward = is_centered() ? &detail::norm_backward<true, T> : &detail::norm_backward<false, T>;
    backward(cache.x, cache.moments, dy, residual, dx, detail::value_or_null(weight), detail::grad_or_null(weight),
             detail::grad_or_null(bias), context);
  }

 private:
  bool is_centered() const { return options_.kind == NormKind::Layer; }
  void set_to_identity() {
    if (weight.exists()) init::constant(weight, 1);
    if (bias.exists()) init::zeros(bias);
  }

  /// Keeps the moments of each row unless the view has no memory.
  template <bool Centered>
  void normalize(const TensorView<const T, 3>& x, const TensorView<T, 3>& y,
                 const TensorView<accumulate_t<T>, 2>& moments, Context& context) const {
    using A = accumulate_t<T>;
    const Index width = options_.embed_dim;
    const T* w = detail::value_or_null(weight);
    const T* b = detail::value_or_null(bias);
    const A eps = static_cast<A>(options_.eps);
    detail::transform_rows(x, y, context, [&](Index sample, Index l, const T* from, T* to) {
      const auto row = Centered ? detail::row_moments(from, width, eps) : detail::row_scale(from, width, eps);
      if (moments.data()) {
        const Index r = sample * x.extent(1) + l;
        if (Centered) moments(0, r) = row.mean;
        if (Centered) moments(1, r) = row.residue;
        moments(Centered ? 2 : 0, r) = row.inverse_deviation;
      }
      const Vec<A> mean = row.mean, residue = row.residue, scale = row.inverse_deviation;
      for (Index i = 0; i < width; i += Vec<A>::size) {
        const Index lanes = width - i;
        Vec<A> v = detail::load_lanes(from + i, lanes);
        v = Centered ? ((v - mean) - residue) * scale : v * scale;
        if (w) v = v * detail::load_lanes(w + i, lanes);
        if (b) v = v + detail::load_lanes(b + i, lanes);
        detail::store_lanes<T>(v, to + i, lanes);
      }
    });
  }

  NormOptions options_;
};

/// y = (x - mean(x)) / √(variance(x) + eps) · weight + bias over the last dimension. Ba, Kiros, Hinton: "Layer
/// normalization", 2016. The variance is the biased one, summed around the mean in accumulate_t<T>. See Norm.
template <class T>
struct LayerNorm : Norm<T> {
  /// Throws as Norm.
  explicit LayerNorm(const LayerNormOptions& o) : Norm<T>({o.embed_dim, o.eps, o.affine, o.bias, NormKind::Layer}) {}
};

/// y = x / √(mean(x²) + eps) · weight over the last dimension. Zhang, Sennrich: "Root mean square layer normalization",
/// 2019. See Norm.
template <class T>
struct RMSNorm : Norm<T> {
  /// Throws as Norm.
  explicit RMSNorm(const RMSNormOptions& o) : Norm<T>({o.embed_dim, o.eps, o.affine, false, NormKind::RMS}) {}
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
