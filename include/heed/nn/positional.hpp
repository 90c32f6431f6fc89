// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Positional encodings added to the input: SinusoidalPositions and LearnedPositions; and Positions, the places of the
/// tokens of a call. RotaryEmbedding, which turns queries and keys instead, is in nn/rotary.hpp.

#include <heed/mask/concept.hpp>
#include <heed/nn/layer.hpp>
#include <heed/nn/rows.hpp>

HEED_NAMESPACE_BEGIN

/// The position of token l of sample b; by default l. Lists are borrowed and must live through the call.
class Positions {
 public:
  Positions() = default;
  /// start + l: the sequence continues after `start` tokens.
  explicit Positions(Index start) : start_(start) {}
  /// first[b] + l: sequences after different numbers of tokens.
  static Positions from(IntSpan first) { return {Kind::PerSample, IntView::one_column(first)}; }
  /// The same for samples padded on the left: first[b] is negative by the tokens of padding, which have position 0.
  static Positions padded_left(IntSpan first) { return {Kind::PaddedLeft, IntView::one_column(first)}; }
  /// positions(b, l), integers of any type of shape (B, L); or positions[l], the same in every sample.
  static Positions at(IntView positions) { return {Kind::PerToken, positions}; }

  /// The position of token l of sample b; unchecked.
  Index operator()(Index b, Index l) const {
    switch (kind_) {
      case Kind::PerSample:
        return list_(b, 0) + l;
      case Kind::PaddedLeft:
        return std::max<Index>(0, list_(b, 0) + l);
      case Kind::PerToken:
        return list_(b, l);
      case Kind::Start:
        break;
    }
    return start_ + l;
  }

  /// Throws ShapeError unless there is a position for every token of (B, L); `name` is the layer's.
  void check(std::string_view name, Index batch, Index length) const {
    if (kind_ == Kind::PerSample || kind_ == Kind::PaddedLeft) {
      HEED_CHECK(list_.extent(0) == batch, ShapeError, name, ": ", list_.extent(0), " first positions but B = ", batch,
                 "; give one for each sample");
    } else if (kind_ == Kind::PerToken) {
      HEED_CHECK((list_.extent(0) == batch || list_.stride(0) == 0) && list_.extent(1) == length, ShapeError, name,
                 ": positions ", list_.extents(), " but x has B = ", batch, " and L = ", length,
                 "; give one for each token");
    }
    constexpr Index most = std::numeric_limits<int>::max();
    for (Index b = 0; b < list_.extent(0); ++b) {
      for (Index l = 0; l < list_.extent(1); ++l) {
        HEED_CHECK(list_(b, l) <= most && list_(b, l) >= -most, ValueError, name, ": position ", list_.text(b, l),
                   " (entry ", l, " of row ", b, ") is beyond ±2147483647");
      }
    }
  }

 private:
  enum class Kind { Start, PerSample, PaddedLeft, PerToken };
  Positions(Kind kind, IntView list) : kind_(kind), list_(list) {}

  Kind kind_ = Kind::Start;
  Index start_ = 0;
  IntView list_;
};

namespace detail {

/// Base of SinusoidalPositions and LearnedPositions: y = input_scale·x + scale·encoding(position).
/// Derived has options() with embed_dim, scale and input_scale; check_range(positions, B, L); encoding(position), a
/// function of (i, n) that gives elements i, ..., i + n - 1 of that position's row; and
/// backward_table(dy, positions, context), which adds to the gradient of the rows.
template <class Derived, class T>
class AddedPositions : public Layer<Derived> {
 public:
  using Scalar = T;
  static constexpr bool kInPlace = true;
  using Layer<Derived>::operator();
  using Layer<Derived>::forward;

  /// y = layer(x, positions).
  template <TensorLike X>
  auto operator()(const X& x, const Positions& positions, Context& context) const {
    check_elements<T, X>();
    return apply<T>(
        self().options().embed_dim, context,
        [&](const auto& in, const auto& out) { forward(in, positions, out, context); }, x);
  }
  template <TensorLike X>
  auto operator()(const X& x, const Positions& positions) const {
    Context context;
    return (*this)(x, positions, context);
  }

  Index input_width(Index) const { return self().options().embed_dim; }
  Index output_width(Index) const { return self().options().embed_dim; }

  /// Memory of a forward that backward() needs: its extents, and the positions, whose lists are borrowed. Nothing of x
  /// is kept: y may be x.
  struct Cache {
    Extents<3> extents{};
    Positions positions{};
  };

  /// x and y (B, L, E); y may be x. Throws ShapeError when x, y or the positions don't fit, ValueError when x and y
  /// overlap without being the same, and for positions that the layer does not have.
  template <TensorLike X, TensorLike Y>
  void forward(const X& x, const Positions& positions, Y&& y, Context& context) const {
    checked(x, positions, y, nullptr, context);
  }
  /// forward() that a backward() can follow.
  template <TensorLike X, TensorLike Y>
  void forward(const X& x, const Positions& positions, Y&& y, Cache& cache, Context& context) const {
    checked(x, positions, y, &cache, context);
  }

  /// The layer at positions 0, 1, ..., without checks of x and y, for layers made of it.
  void run(const TensorView<const T, 3>& x, const TensorView<T, 3>& y, Cache* cache, Context& context) const {
    run(x, Positions(), y, cache, context);
  }
  void run(const TensorView<const T, 3>& x, const Positions& positions, const TensorView<T, 3>& y, Cache* cache,
           Context& context) const {
    using V = Vec<accumulate_t<T>>;
    const auto& options = self().options();
    positions.check(self().name(), x.extent(0), x.extent(1));
    self().check_range(positions, x.extent(0), x.extent(1));
    const V scale = static_cast<accumulate_t<T>>(options.scale);
    const V input_scale = static_cast<accumulate_t<T>>(options.input_scale);
    transform_rows(x, y, context, [&](Index b, Index l, const T* from, T* to) {
      const auto encoding = self().encoding(positions(b, l));
      for (Index i = 0; i < options.embed_dim; i += V::size) {
        const Index lanes = std::min<Index>(V::size, options.embed_dim - i);
        const V v = load_lanes(from + i, lanes) * input_scale;
        store_lanes<T>(fma(scale, encoding(i, lanes), v), to + i, lanes);
      }
    });
    if (cache) *cache = {x.extents(), positions};
    context.observe(y);
  }
  /// dx = input_scale·dy, and the gradient of the table that was added, if it is learned. dx may be dy.
  void run_backward(const TensorView<const T, 3>& dy, const TensorView<T, 3>& dx, const Cache& cache,
                    Context& context) {
    static_cast<Derived&>(*this).backward_table(dy, cache.positions, context);
    if (!dx.data()) return;
    using V = Vec<accumulate_t<T>>;
    const Index width = self().options().embed_dim;
    const V input_scale = static_cast<accumulate_t<T>>(self().options().input_scale);
    transform_rows(dy, dx, context, [&](Index, Index, const T* from, T* to) {
      for (Index i = 0; i < width; i += V::size) {
        store_lanes<T>(load_lanes(from + i, width - i) * input_scale, to + i, width - i);
      }
    });
  }

 private:
  const Derived& self() const { return static_cast<const Derived&>(*this); }

  template <class X, class Y>
  void checked(const X& x, const Positions& positions, Y&& y, Cache* cache, Context& context) const {
    check_elements<T, X>();
    const Workspace::Frame frame(context.workspace());
    const auto in = read_as<3>(x, context.workspace());
    const auto out = write_as<3>(y);
    const Index width = self().options().embed_dim;
    check_layer_shapes(self().name(), in, out, width, width, InPlace::Allowed);
    run(in, positions, out, cache, context);
  }
};

}  // namespace detail

/// The columns of sines and cosines in the row of a position.
enum class SinusoidalLayout {
  Interleaved,  ///< column 2i holds sin, 2i + 1 cos (Vaswani et al. 2017)
  Halves        ///< all sines, then all cosines (tensor2tensor, Whisper)
};
/// The frequencies, falling from 1.
enum class SinusoidalSpacing {
  Standard,  ///< frequency i is base^(-2i/E) (Vaswani et al. 2017)
  Endpoint   ///< the last frequency is exactly 1/base (tensor2tensor, Whisper)
};

/// Options of SinusoidalPositions.
struct SinusoidalPositionsOptions {
  Index embed_dim = 0;                                      ///< E
  double base = 10000;                                      ///< the ratio of the longest wave to the shortest
  SinusoidalLayout layout = SinusoidalLayout::Interleaved;  ///< order of sines and cosines
  SinusoidalSpacing spacing = SinusoidalSpacing::Standard;  ///< of the wavelengths
  double first = 0;                                         ///< the number that position 0 counts as
  double step = 1;                                          ///< from one position to the next
  double scale = 1;                                         ///< y = input_scale·x + scale·PE
  double input_scale = 1;                                   ///< Vaswani et al. take √E
  Index length = 1024;  ///< rows formed at construction; other positions are formed in each call, which is slower
};

/// y = input_scale·x + scale·PE(first + step·position), x and y (B, L, E), where
///   PE(p)[2i] = sin(p·base^(-2i/E)),  PE(p)[2i + 1] = cos(p·base^(-2i/E))
/// (Vaswani et al.: "Attention is all you need", 2017, section 3.5). An odd width has one sine more than cosines.
/// Formed in double, stored in accumulate_t<T>. No parameters.
template <class T>
class SinusoidalPositions : public detail::AddedPositions<SinusoidalPositions<T>, T> {
  using A = accumulate_t<T>;

 public:
  using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;  ///< plain Eigen results

  /// Throws ShapeError for embed_dim < 1 or length < 0, ValueError for a base that is not above 0.
  explicit SinusoidalPositions(const SinusoidalPositionsOptions& options) : options_(options) {
    HEED_CHECK(options.embed_dim >= 1 && options.length >= 0, ShapeError, name(), ": embed_dim = ", options.embed_dim,
               " must be at least 1 and length = ", options.length, " at least 0");
    HEED_CHECK(options.base > 0, ValueError, name(), ": base = ", options.base, " must be above 0");
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

  const SinusoidalPositionsOptions& options() const { return options_; }            ///< as constructed
  static constexpr std::string_view name() { return "heed::SinusoidalPositions"; }  ///< the layer in error texts

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

/// Options of LearnedPositions.
struct LearnedPositionsOptions {
  Index length = 0;        ///< the number of positions
  Index embed_dim = 0;     ///< E
  int offset = 0;          ///< added to each position: position p reads row p + offset (OPT: 2)
  double scale = 1;        ///< y = input_scale·x + scale·weight
  double input_scale = 1;  ///< of x
};

/// y = input_scale·x + scale·weight[position + offset]; x and y (B, L, E), weight (length, E). Load weights or call
/// initialize() before the first use. A position without a row throws ValueError.
template <class T>
class LearnedPositions : public detail::AddedPositions<LearnedPositions<T>, T> {
 public:
  /// Throws ShapeError for a length or width below 1.
  explicit LearnedPositions(const LearnedPositionsOptions& options) : options_(options) {
    HEED_CHECK(options.length >= 1 && options.embed_dim >= 1, ShapeError, name(), ": length = ", options.length,
               " and embed_dim = ", options.embed_dim, " must be at least 1");
    weight = Parameter<T>(options.length, options.embed_dim);
  }

  Parameter<T> weight;  ///< (length, E)

  /// The list of members, for Module.
  static void members(auto&& f) { f("weight", &LearnedPositions::weight); }
  static constexpr std::string_view name() { return "heed::LearnedPositions"; }  ///< the layer in error texts
  const LearnedPositionsOptions& options() const { return options_; }            ///< as constructed

  /// Normal numbers.
  void initialize(Random& random, std::string_view name = "", double stddev = 0.02) {
    init::normal(weight, random(detail::join(name, "weight")), stddev);
  }

 private:
  friend class detail::AddedPositions<LearnedPositions<T>, T>;

  auto encoding(Index position) const {
    const T* row = weight.matrix()[position + options_.offset].data();
    return [row](Index i, Index lanes) HEED_ALWAYS_INLINE_LAMBDA { return detail::load_lanes(row + i, lanes); };
  }
  void check_range(const Positions& positions, Index batch, Index length) const {
    for (Index b = 0; b < batch; ++b) {
      for (Index l = 0; l < length; ++l) {
        const Index row = positions(b, l) + options_.offset;
        HEED_CHECK(row >= 0 && row < options_.length, ValueError, name(), ": token ", l, " of sample ", b,
                   " has position ", positions(b, l), ", row ", row, " with the offset, but there are only ",
                   options_.length, " rows; shorten the sequence or make the table longer");
      }
    }
  }

  void backward_table(const TensorView<const T, 3>& dy, const Positions& positions, Context& context) {
    detail::scatter_add<T>(dy, static_cast<accumulate_t<T>>(options_.scale), weight.grad_matrix(), context,
                           [&](Index b, Index l) { return positions(b, l) + options_.offset; });
  }

  LearnedPositionsOptions options_;
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
