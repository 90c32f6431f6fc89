// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Where a token stands. SinusoidalPositions and LearnedPositions positions are added to x; RotaryEmbedding turns
/// queries and keys.

#include <algorithm>
#include <cmath>
#include <string_view>
#include <type_traits>

#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/core/random.hpp>
#include <heed/core/scalar.hpp>
#include <heed/core/simd.hpp>
#include <heed/core/tensor.hpp>
#include <heed/nn/backward.hpp>
#include <heed/nn/init.hpp>
#include <heed/nn/layer.hpp>
#include <heed/nn/parameter.hpp>
#include <heed/nn/positions.hpp>
#include <heed/nn/rotary.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// What SinusoidalPositions and Learned share: the calls, and y = input_scale·x + scale·encoding(position).
/// Layer gives options() with width, scale and input_scale, check_range(positions, B, L), and encoding(position): a
/// function of (i, n) that gives elements i, ..., i + n - 1 of that position's row; and
/// backward_table(dy, positions, context), which adds to the gradient of the rows.
template <class Layer, class T>
class AddedPositions : public UnaryLayer<Layer> {
 public:
  using UnaryLayer<Layer>::operator();
  template <TensorLike X>
  auto operator()(const X& x, const Positions& positions, Context& context) const {
    return apply<T>(
        layer().options().embed_dim, context,
        [&](TensorView<const T, 3> in, TensorView<T, 3> out) { forward(in, positions, out, context); }, x);
  }
  template <TensorLike X>
  auto operator()(const X& x, const Positions& positions) const {
    Context context;
    return (*this)(x, positions, context);
  }

  Index output_width(Index) const { return layer().options().embed_dim; }

  /// x and y (B, L, E); y may be x. Throws ShapeError when x, y or the positions don't fit, ValueError when x and y
  /// overlap without being the same, and for positions that the layer does not have.
  void forward(TensorView<const T, 3> x, const Positions& positions, TensorView<T, 3> y, Context& context) const {
    using V = Vec<accumulate_t<T>>;
    const auto& options = layer().options();
    check_layer_shapes(Layer::kName, x, y, options.embed_dim, options.embed_dim, InPlace::Allowed);
    positions.check(Layer::kName, x.extent(0), x.extent(1));
    layer().check_range(positions, x.extent(0), x.extent(1));
    const V scale = static_cast<accumulate_t<T>>(options.scale);
    const V input_scale = static_cast<accumulate_t<T>>(options.input_scale);
    transform_rows(x, y, context, [&](Index b, Index l, const T* from, T* to) {
      const auto encoding = layer().encoding(positions(b, l));
      for (Index i = 0; i < options.embed_dim; i += V::size) {
        const Index lanes = std::min<Index>(V::size, options.embed_dim - i);
        const V v = load_lanes(from + i, lanes) * input_scale;
        store_lanes<T>(fma(scale, encoding(i, lanes), v), to + i, lanes);
      }
    });
    context.observe(y);
  }
  void forward(TensorView<const T, 3> x, TensorView<T, 3> y, Context& context) const {
    forward(x, Positions(), y, context);
  }

  /// What backward() needs of a forward: its extents, and the positions, whose lists are borrowed.
  struct Cache {
    Extents<3> extents{};
    Positions positions{};
  };
  /// forward() that a backward() can follow. Nothing of x is kept: y may be x.
  void forward(TensorView<const T, 3> x, const Positions& positions, TensorView<T, 3> y, Cache& cache,
               Context& context) const {
    forward(x, positions, y, context);
    cache = {x.extents(), positions};
  }
  void forward(TensorView<const T, 3> x, TensorView<T, 3> y, Cache& cache, Context& context) const {
    forward(x, Positions(), y, cache, context);
  }
  /// dx = input_scale·dy, and the gradient of the table that was added, if it is learned. dx may be dy, and without
  /// data it is not computed. Throws ShapeError when dy or dx don't fit the forward, ValueError when they overlap
  /// without being the same.
  void backward(TensorView<const T, 3> dy, TensorView<T, 3> dx, const Cache& cache, Context& context) {
    HEED_CHECK(dy.extents() == cache.extents, ShapeError, Layer::kName, ": dy ", dy.extents(), " does not fit the y ",
               cache.extents, " of the forward with this cache");
    static_cast<Layer&>(*this).backward_table(dy, cache.positions, context);
    if (!dx.data()) return;
    using V = Vec<accumulate_t<T>>;
    const Index width = layer().options().embed_dim;
    check_layer_shapes(Layer::kName, dy, dx, width, width, InPlace::Allowed);
    const V input_scale = static_cast<accumulate_t<T>>(layer().options().input_scale);
    transform_rows(dy, dx, context, [&](Index, Index, const T* from, T* to) {
      for (Index i = 0; i < width; i += V::size) {
        store_lanes<T>(load_lanes(from + i, width - i) * input_scale, to + i, width - i);
      }
    });
  }

 private:
  const Layer& layer() const { return static_cast<const Layer&>(*this); }
};

}  // namespace detail

/// Where sines and cosines stand in the row of a position.
enum class SinusoidalLayout {
  Interleaved,  ///< column 2i holds sin, 2i + 1 cos (Vaswani et al. 2017)
  Halves        ///< all sines, then all cosines (tensor2tensor, Whisper)
};
/// How the frequencies fall from 1 on.
enum class SinusoidalSpacing {
  Standard,  ///< frequency i is base^(-2i/E) (Vaswani et al. 2017)
  Endpoint   ///< the last frequency is exactly 1/base (tensor2tensor, Whisper)
};

struct SinusoidalPositionsOptions {
  Index embed_dim;      ///< E
  double base = 10000;  ///< the ratio of the longest wave to the shortest
  SinusoidalLayout layout = SinusoidalLayout::Interleaved;
  SinusoidalSpacing spacing = SinusoidalSpacing::Standard;
  double first = 0;        ///< where position 0 stands
  double step = 1;         ///< from one position to the next
  double scale = 1;        ///< y = input_scale·x + scale·PE
  double input_scale = 1;  ///< Vaswani et al. take √E
  Index length = 1024;  ///< rows formed at construction; any other position is formed when it is met, which is slower
};

/// y = input_scale·x + scale·PE(first + step·position), x and y (B, L, E), where
///   PE(p)[2i] = sin(p·base^(-2i/E)),  PE(p)[2i + 1] = cos(p·base^(-2i/E))
/// (Vaswani et al.: "Attention is all you need", 2017, section 3.5). An odd width has one sine more than cosines.
/// Formed in double, stored in accumulate_t<T>. No parameters.
template <class T>
class SinusoidalPositions : public detail::AddedPositions<SinusoidalPositions<T>, T> {
  using A = accumulate_t<T>;

 public:
  using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

  /// Throws ShapeError for width < 1 or length < 0, ValueError for a base that is not above 0.
  explicit SinusoidalPositions(const SinusoidalPositionsOptions& options) : options_(options) {
    HEED_CHECK(options.embed_dim >= 1 && options.length >= 0, ShapeError, kName, ": embed_dim = ", options.embed_dim,
               " must be at least 1 and length = ", options.length, " at least 0");
    HEED_CHECK(options.base > 0, ValueError, kName, ": base = ", options.base, " must be above 0");
    const Index pairs = (options.embed_dim + 1) / 2;
    frequencies_ = Tensor<double, 1>(pairs);
    const double spread = options.spacing == SinusoidalSpacing::Endpoint
                              ? static_cast<double>(std::max<Index>(1, pairs - 1))
                              : static_cast<double>(options.embed_dim) / 2;
    for (Index i = 0; i < pairs; ++i) frequencies_(i) = std::pow(options.base, -static_cast<double>(i) / spread);
    table_ = Tensor<A, 2>(options.length, options.embed_dim);
    for (Index p = 0; p < options.length; ++p) {
      for (Index e = 0; e < options.embed_dim; ++e) table_(p, e) = value(p, e);
    }
  }

  const SinusoidalPositionsOptions& options() const { return options_; }
  template <class F>
  void visit(std::string_view, F&&) const {}

  /// The rows that are added at positions start, ..., start + length - 1, before `scale`.
  Matrix table(Index length, Index start = 0) const {
    Matrix rows(length, options_.embed_dim);
    for (Index p = 0; p < length; ++p) {
      for (Index e = 0; e < options_.embed_dim; ++e) rows(p, e) = static_cast<T>(value(start + p, e));
    }
    return rows;
  }

 private:
  friend class detail::AddedPositions<SinusoidalPositions<T>, T>;
  static constexpr std::string_view kName = "heed::Sinusoidal";

  A value(Index position, Index e) const {
    const Index pairs = frequencies_.size();
    const bool halves = options_.layout == SinusoidalLayout::Halves;
    const bool is_sine = halves ? e < pairs : e % 2 == 0;
    const Index i = halves ? (is_sine ? e : e - pairs) : e / 2;
    const double angle = (options_.first + options_.step * static_cast<double>(position)) * frequencies_(i);
    return static_cast<A>(is_sine ? std::sin(angle) : std::cos(angle));
  }
  auto encoding(Index position) const {
    const A* row = position >= 0 && position < options_.length ? &table_(position, 0) : nullptr;
    return [this, row, position](Index i, Index lanes) HEED_ALWAYS_INLINE_LAMBDA {
      if (row) return detail::load_lanes(row + i, lanes);
      A formed[Vec<A>::size] = {};
      for (Index j = 0; j < lanes; ++j) formed[j] = value(position, i + j);
      return Vec<A>::load(formed);
    };
  }
  void check_range(const Positions&, Index, Index) const {}
  void backward_table(const TensorView<const T, 3>&, const Positions&, Context&) {}

  SinusoidalPositionsOptions options_;
  Tensor<double, 1> frequencies_;
  Tensor<A, 2> table_;
};

struct LearnedPositionsOptions {
  Index length;            ///< how many positions there are
  Index embed_dim;         ///< E
  int offset = 0;          ///< added to each position: position p reads row p + offset (OPT: 2)
  double scale = 1;        ///< y = input_scale·x + scale·weight
  double input_scale = 1;  ///< of x
};

/// y = input_scale·x + scale·weight[position + offset]; x and y (B, L, E), weight (length, E).
/// Starts with zeros: load weights or call initialize(). A position without a row throws ValueError.
template <class T>
class LearnedPositions : public detail::AddedPositions<LearnedPositions<T>, T> {
 public:
  /// Throws ShapeError for a length or width below 1.
  explicit LearnedPositions(const LearnedPositionsOptions& options) : options_(options) {
    HEED_CHECK(options.length >= 1 && options.embed_dim >= 1, ShapeError, kName, ": length = ", options.length,
               " and embed_dim = ", options.embed_dim, " must be at least 1");
    weight_ = Parameter<T>(options.length, options.embed_dim);
  }

  const LearnedPositionsOptions& options() const { return options_; }
  Parameter<T>& weight() { return weight_; }
  const Parameter<T>& weight() const { return weight_; }

  template <class F>
  void visit(std::string_view prefix, F&& f) {
    detail::visit_parameter(prefix, "weight", weight_, f);
  }
  template <class F>
  void visit(std::string_view prefix, F&& f) const {
    detail::visit_parameter(prefix, "weight", weight_, f);
  }

  /// Normal numbers.
  void initialize(const Philox& random, double stddev = 0.02) { init::normal(weight_, random, stddev); }

 private:
  friend class detail::AddedPositions<LearnedPositions<T>, T>;
  static constexpr std::string_view kName = "heed::Learned";

  auto encoding(Index position) const {
    const T* row = weight_.matrix()[position + options_.offset].data();
    return [row](Index i, Index lanes) HEED_ALWAYS_INLINE_LAMBDA { return detail::load_lanes(row + i, lanes); };
  }
  void check_range(const Positions& positions, Index batch, Index length) const {
    for (Index b = 0; b < batch; ++b) {
      for (Index l = 0; l < length; ++l) {
        const Index row = positions(b, l) + options_.offset;
        HEED_CHECK(row >= 0 && row < options_.length, ValueError, kName, ": token ", l, " of sample ", b,
                   " has position ", positions(b, l), ", row ", row, " with the offset, but there are only ",
                   options_.length, " rows; shorten the sequence or make the table longer");
      }
    }
  }

  void backward_table(const TensorView<const T, 3>& dy, const Positions& positions, Context& context) {
    detail::scatter_add<T>(dy, static_cast<accumulate_t<T>>(options_.scale), weight_.grad_matrix(), context,
                           [&](Index b, Index l) { return positions(b, l) + options_.offset; });
  }

  LearnedPositionsOptions options_;
  Parameter<T> weight_;
};

HEED_NAMESPACE_END
