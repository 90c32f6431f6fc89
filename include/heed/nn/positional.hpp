// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Where a token stands. Sinusoidal and Learned positions are added to x; Rotary turns queries and keys.

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/core/operand.hpp>
#include <heed/core/random.hpp>
#include <heed/core/scalar.hpp>
#include <heed/core/simd.hpp>
#include <heed/core/tensor.hpp>
#include <heed/core/workspace.hpp>
#include <heed/mask/concept.hpp>
#include <heed/nn/init.hpp>
#include <heed/nn/layer.hpp>
#include <heed/nn/parameter.hpp>

HEED_NAMESPACE_BEGIN

/// The position of token l of sample b; without more said, l. Lists are borrowed and must live through the call.
class Positions {
 public:
  Positions() = default;
  /// start + l: the sequence goes on after `start` tokens.
  explicit Positions(int start) : start_(start) {}
  /// first[b] + l: sequences that differ in what came before.
  static Positions from(IntSpan first) { return {Kind::PerSample, {first.begin(), {first.size(), 1}}}; }
  /// positions[l], the same in every sample.
  static Positions at(IntSpan positions) {
    return {Kind::PerToken, {positions.begin(), {1, positions.size()}, {0, 1}}};
  }
  /// positions(b, l), of shape (B, L).
  static Positions at(TensorView<const int, 2> positions) { return {Kind::PerToken, positions}; }
  static Positions at(Tensor<int, 2>&&) = delete;

  Index operator()(Index b, Index l) const {
    switch (kind_) {
      case Kind::PerSample:
        return list_(b, 0) + l;
      case Kind::PerToken:
        return list_(b, l);
      case Kind::Start:
        break;
    }
    return start_ + l;
  }

  /// Throws ShapeError unless there is a position for every token of (B, L); `name` is the layer's.
  void check(std::string_view name, Index batch, Index length) const {
    if (kind_ == Kind::PerSample) {
      HEED_CHECK(list_.extent(0) == batch, ShapeError, name, ": ", list_.extent(0), " first positions but B = ", batch,
                 "; give one for each sample");
    } else if (kind_ == Kind::PerToken) {
      HEED_CHECK((list_.extent(0) == batch || list_.stride(0) == 0) && list_.extent(1) == length, ShapeError, name,
                 ": positions ", list_.extents(), " but x has B = ", batch, " and L = ", length,
                 "; give one for each token");
    }
  }

 private:
  enum class Kind { Start, PerSample, PerToken };
  Positions(Kind kind, TensorView<const int, 2> list) : kind_(kind), list_(list) {}

  Kind kind_ = Kind::Start;
  Index start_ = 0;
  TensorView<const int, 2> list_;
};

namespace detail {

/// What Sinusoidal and Learned share: the calls, and y = input_scale·x + scale·encoding(position).
/// Layer gives options() with width, scale and input_scale, check_range(positions, B, L), and encoding(position): a
/// function of (i, n) that gives elements i, ..., i + n - 1 of that position's row.
template <class Layer, class T>
class AddedPositions : public UnaryLayer<Layer> {
 public:
  using UnaryLayer<Layer>::operator();
  template <TensorLike X>
  auto operator()(const X& x, const Positions& positions, Context& context) const {
    return apply<T>(
        layer().options().width, context,
        [&](TensorView<const T, 3> in, TensorView<T, 3> out) { forward(in, positions, out, context); }, x);
  }
  template <TensorLike X>
  auto operator()(const X& x, const Positions& positions) const {
    Context context;
    return (*this)(x, positions, context);
  }

  Index output_width(Index) const { return layer().options().width; }

  /// x and y (B, L, E); y may be x. Throws ShapeError when x, y or the positions don't fit, ValueError when x and y
  /// overlap without being the same, and for positions that the layer does not have.
  void forward(TensorView<const T, 3> x, const Positions& positions, TensorView<T, 3> y, Context& context) const {
    using V = Vec<accumulate_t<T>>;
    const auto& options = layer().options();
    check_layer_shapes(Layer::kName, x, y, options.width, options.width, InPlace::Allowed);
    positions.check(Layer::kName, x.extent(0), x.extent(1));
    layer().check_range(positions, x.extent(0), x.extent(1));
    const V scale = static_cast<accumulate_t<T>>(options.scale);
    const V input_scale = static_cast<accumulate_t<T>>(options.input_scale);
    transform_rows(x, y, context, [&](Index b, Index l, const T* from, T* to) {
      const auto encoding = layer().encoding(positions(b, l));
      for (Index i = 0; i < options.width; i += V::size) {
        const Index lanes = std::min<Index>(V::size, options.width - i);
        const V v = load_lanes(from + i, lanes) * input_scale;
        store_lanes<T>(fma(scale, encoding(i, lanes), v), to + i, lanes);
      }
    });
    context.observe(y);
  }
  void forward(TensorView<const T, 3> x, TensorView<T, 3> y, Context& context) const {
    forward(x, Positions(), y, context);
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

struct SinusoidalOptions {
  Index width;          ///< E
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
class Sinusoidal : public detail::AddedPositions<Sinusoidal<T>, T> {
  using A = accumulate_t<T>;

 public:
  using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

  /// Throws ShapeError for width < 1 or length < 0, ValueError for a base that is not above 0.
  explicit Sinusoidal(const SinusoidalOptions& options) : options_(options) {
    HEED_CHECK(options.width >= 1 && options.length >= 0, ShapeError, kName, ": width = ", options.width,
               " must be at least 1 and length = ", options.length, " at least 0");
    HEED_CHECK(options.base > 0, ValueError, kName, ": base = ", options.base, " must be above 0");
    const Index pairs = (options.width + 1) / 2;
    frequencies_ = Tensor<double, 1>(pairs);
    const double spread = options.spacing == SinusoidalSpacing::Endpoint
                              ? static_cast<double>(std::max<Index>(1, pairs - 1))
                              : static_cast<double>(options.width) / 2;
    for (Index i = 0; i < pairs; ++i) frequencies_(i) = std::pow(options.base, -static_cast<double>(i) / spread);
    table_ = Tensor<A, 2>(options.length, options.width);
    for (Index p = 0; p < options.length; ++p) {
      for (Index e = 0; e < options.width; ++e) table_(p, e) = value(p, e);
    }
  }

  const SinusoidalOptions& options() const { return options_; }
  template <class F>
  void visit(std::string_view, F&&) const {}

  /// The rows that are added at positions start, ..., start + length - 1, before `scale`.
  Matrix table(Index length, Index start = 0) const {
    Matrix rows(length, options_.width);
    for (Index p = 0; p < length; ++p) {
      for (Index e = 0; e < options_.width; ++e) rows(p, e) = static_cast<T>(value(start + p, e));
    }
    return rows;
  }

 private:
  friend class detail::AddedPositions<Sinusoidal<T>, T>;
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

  SinusoidalOptions options_;
  Tensor<double, 1> frequencies_;
  Tensor<A, 2> table_;
};

struct LearnedOptions {
  Index length;            ///< how many positions there are
  Index width;             ///< E
  int offset = 0;          ///< added to each position: position p reads row p + offset (OPT: 2)
  double scale = 1;        ///< y = input_scale·x + scale·weight
  double input_scale = 1;  ///< of x
};

/// y = input_scale·x + scale·weight[position + offset]; x and y (B, L, E), weight (length, E).
/// Starts with zeros: load weights or call initialize(). A position without a row throws ValueError.
template <class T>
class Learned : public detail::AddedPositions<Learned<T>, T> {
 public:
  /// Throws ShapeError for a length or width below 1.
  explicit Learned(const LearnedOptions& options) : options_(options) {
    HEED_CHECK(options.length >= 1 && options.width >= 1, ShapeError, kName, ": length = ", options.length,
               " and width = ", options.width, " must be at least 1");
    weight_ = Parameter<T>(options.length, options.width);
  }

  const LearnedOptions& options() const { return options_; }
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
  void initialize(const Philox& random, double deviation = 0.02) { init::normal(weight_, random, deviation); }

 private:
  friend class detail::AddedPositions<Learned<T>, T>;
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

  LearnedOptions options_;
  Parameter<T> weight_;
};

/// Which coordinates turn together. Weights trained with one pairing give nonsense, without any error, in the other.
enum class RotaryPairing {
  HalfSplit,   ///< i and i + R/2: GPT-NeoX and what Hugging Face's Llama, Mistral, Qwen files hold
  Interleaved  ///< 2i and 2i + 1: the paper, GPT-J, Meta's own Llama files
};

struct RotaryOptions {
  Index width;                    ///< D, the width of a head
  std::optional<Index> turned{};  ///< R, the first coordinates that turn, an even number; the default is all
  double base = 10000;
  RotaryPairing pairing = RotaryPairing::HalfSplit;
  Index length = 1024;  ///< positions whose angles are formed at construction; others are formed in each call
};

namespace detail {

/// Elements 0, 2, 4, ... (first = 0) or 1, 3, 5, ... (first = 1) of two registers one after the other.
template <int First, class A, int... I>
HEED_ALWAYS_INLINE Vec<A> every_other(Vec<A> u, Vec<A> v, std::integer_sequence<int, I...>) {
  return Vec<A>::from_bits(__builtin_shufflevector(u.bits(), v.bits(), (2 * I + First)...));
}
/// The lower (Part = 0) or upper (Part = 1) register of a[0], b[0], a[1], b[1], ...
template <int Part, class A, int... I>
HEED_ALWAYS_INLINE Vec<A> alternate(Vec<A> a, Vec<A> b, std::integer_sequence<int, I...>) {
  constexpr int n = Vec<A>::size;
  return Vec<A>::from_bits(
      __builtin_shufflevector(a.bits(), b.bits(), ((Part * n + I) / 2 + (Part * n + I) % 2 * n)...));
}

/// Both coordinates of pairs i, ..., i + n - 1 of a row, and back.
template <RotaryPairing Pairing, class T>
struct RotaryPairs {
  using A = accumulate_t<T>;
  using V = Vec<A>;
  using Lanes = std::make_integer_sequence<int, V::size>;
  V a, b;

  static HEED_ALWAYS_INLINE RotaryPairs load(const T* x, Index pairs, Index i, Index n) {
    if constexpr (Pairing == RotaryPairing::HalfSplit) {
      return {load_lanes(x + i, n), load_lanes(x + pairs + i, n)};
    } else {
      const V u = load_lanes(x + 2 * i, 2 * n), v = load_lanes(x + 2 * i + V::size, 2 * n - V::size);
      return {every_other<0>(u, v, Lanes{}), every_other<1>(u, v, Lanes{})};
    }
  }
  HEED_ALWAYS_INLINE void store(T* y, Index pairs, Index i, Index n) const {
    if constexpr (Pairing == RotaryPairing::HalfSplit) {
      store_lanes<T>(a, y + i, n);
      store_lanes<T>(b, y + pairs + i, n);
    } else {
      store_lanes<T>(alternate<0>(a, b, Lanes{}), y + 2 * i, 2 * n);
      store_lanes<T>(alternate<1>(a, b, Lanes{}), y + 2 * i + V::size, 2 * n - V::size);
    }
  }
};

/// One row; `angles` holds `pairs` cosines, then `pairs` sines. `to` may be `from`.
template <RotaryPairing Pairing, class T>
void rotate_row(const T* from, T* to, Index pairs, const accumulate_t<T>* angles, accumulate_t<T> direction) {
  using V = Vec<accumulate_t<T>>;
  using Pairs = RotaryPairs<Pairing, T>;
  for (Index i = 0; i < pairs; i += V::size) {
    const Index n = std::min<Index>(V::size, pairs - i);
    const V cosine = load_lanes(angles + i, n), sine = load_lanes(angles + pairs + i, n) * V(direction);
    const Pairs x = Pairs::load(from, pairs, i, n);
    const Pairs turned{fma(x.a, cosine, -(x.b * sine)), fma(x.b, cosine, x.a * sine)};
    turned.store(to, pairs, i, n);
  }
}

}  // namespace detail

/// Rotary positions: pair i of each query and key vector turns by the angle position·base^(-2i/R), so that q·k depends
/// on the distance of their positions alone. Su et al.: "RoFormer", 2021. Angles are formed in double; coordinates from
/// R on stay as they are. No parameters.
///
/// Works on heads (B, H, L, D) inside an attention layer, on any strides and in place; it is therefore not shown to the
/// observer.
template <class T>
class Rotary {
  using A = accumulate_t<T>;

 public:
  /// Throws ShapeError unless 0 <= R <= D, R is even and length >= 0; ValueError for a base that is not above 0.
  explicit Rotary(const RotaryOptions& options) : options_(options) {
    const Index turned = options.turned.value_or(options.width);
    HEED_CHECK(options.width >= 1 && turned >= 0 && turned <= options.width && turned % 2 == 0, ShapeError,
               "heed::Rotary: turned = ", turned, " must be an even number from 0 to width = ", options.width);
    HEED_CHECK(options.length >= 0, ShapeError, "heed::Rotary: length = ", options.length, " is negative");
    HEED_CHECK(options.base > 0, ValueError, "heed::Rotary: base = ", options.base, " must be above 0");
    const Index pairs = turned / 2;
    frequencies_ = Tensor<double, 1>(pairs);
    for (Index i = 0; i < pairs; ++i) {
      frequencies_(i) = std::pow(options.base, -2.0 * static_cast<double>(i) / static_cast<double>(turned));
    }
    table_ = Tensor<A, 2>(options.length, turned);
    for (Index p = 0; p < options.length; ++p) form_angles(p, table_.view()[p].data());
  }

  const RotaryOptions& options() const { return options_; }

  /// y = rotary(x, positions): x (B, H, L, D), (H, L, D), (L, D) or a plain Eigen matrix (L, D).
  template <TensorLike X>
  auto operator()(const X& x, const Positions& positions, Context& context) const {
    static_assert(std::is_same_v<scalar_of_t<X>, T>, "heed: the elements of x are not of the layer's type; cast x");
    const Workspace::Frame frame(context.workspace());
    const auto view = detail::read_as<4>(x, context.workspace());
    auto y = detail::make_result<X, T, 4>(view.extents());
    forward(view, positions, detail::write_as<4>(y), context);
    return y;
  }
  template <TensorLike X>
  auto operator()(const X& x, Context& context) const {
    return (*this)(x, Positions(), context);
  }
  template <TensorLike X>
  auto operator()(const X& x, const Positions& positions = {}) const {
    Context context;
    return (*this)(x, positions, context);
  }

  /// Turns x (B, H, L, D) into y; y may be x. Throws ShapeError when x, y or the positions don't fit, ValueError when x
  /// and y overlap without being the same.
  void forward(TensorView<const T, 4> x, const Positions& positions, TensorView<T, 4> y, Context& context) const {
    turn(x, positions, y, A(1), context);
  }
  /// Turns back: the inverse of forward(), which is also its transpose.
  void inverse(TensorView<const T, 4> x, const Positions& positions, TensorView<T, 4> y, Context& context) const {
    turn(x, positions, y, A(-1), context);
  }

 private:
  void form_angles(Index position, A* row) const {
    const Index pairs = frequencies_.size();
    for (Index i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(position) * frequencies_(i);
      row[i] = static_cast<A>(std::cos(angle));
      row[pairs + i] = static_cast<A>(std::sin(angle));
    }
  }

  void turn(const TensorView<const T, 4>& x, const Positions& positions, const TensorView<T, 4>& y, A direction,
            Context& context) const {
    const Index width = options_.width, pairs = frequencies_.size(), length = x.extent(2);
    HEED_CHECK(x.extent(3) == width, ShapeError, "heed::Rotary: x ", x.extents(), " has width ", x.extent(3),
               " but the heads have ", width);
    HEED_CHECK(y.extents() == x.extents(), ShapeError, "heed::Rotary: y ", y.extents(), " does not fit x ",
               x.extents());
    HEED_CHECK((x.data() == y.data() && x.strides() == y.strides()) || !detail::may_overlap(x, y), ValueError,
               "heed::Rotary: y shares memory with x; give it memory of its own, or all of x to turn it in place");
    positions.check("heed::Rotary", x.extent(0), length);
    for (Index b = 0; b < x.extent(0); ++b) {
      const Workspace::Frame frame(context.workspace());
      bool all_in_table = true;
      for (Index l = 0; l < length; ++l) {
        const Index position = positions(b, l);
        all_in_table = all_in_table && position >= 0 && position < options_.length;
      }
      const auto formed = context.workspace().tensor<A, 2>({all_in_table ? 0 : length, 2 * pairs});
      for (Index l = 0; l < formed.extent(0); ++l) form_angles(positions(b, l), formed[l].data());

      detail::transform_rows(x[b], y[b], context, [&](Index, Index l, const T* from, T* to) {
        const A* angles = all_in_table ? table_.view()[positions(b, l)].data() : formed[l].data();
        if (options_.pairing == RotaryPairing::HalfSplit)
          detail::rotate_row<RotaryPairing::HalfSplit>(from, to, pairs, angles, direction);
        else
          detail::rotate_row<RotaryPairing::Interleaved>(from, to, pairs, angles, direction);
        if (to != from) std::copy(from + 2 * pairs, from + width, to + 2 * pairs);
      });
    }
  }

  RotaryOptions options_;
  Tensor<double, 1> frequencies_;
  Tensor<A, 2> table_;
};

HEED_NAMESPACE_END
