// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// RotaryEmbedding: turns queries and keys by their positions.

#include <numbers>

#include <heed/nn/positional.hpp>

HEED_NAMESPACE_BEGIN

/// The pairs of coordinates that turn together. Weights trained with one pairing give nonsense, without any error, in
/// the other.
enum class RotaryPairing {
  HalfSplit,   ///< i and i + R/2: GPT-NeoX, and Hugging Face's files of Llama, Mistral, Qwen
  Interleaved  ///< 2i and 2i + 1: the paper, GPT-J, Meta's own Llama files
};

/// The rule by which angles are changed for sequences longer than those of the training.
enum class RotaryScalingKind {
  None,    ///< they are not
  Linear,  ///< every frequency is divided by the factor (Chen et al.: "Extending context window …", 2023)
  Ntk,     ///< theta is multiplied by factor^(R/(R - 2)) (Peng et al.: "YaRN", 2023, section 3.1)
  Llama3   ///< low frequencies are divided by the factor, high ones stay, those between change gradually (Llama 3.1)
};

/// Options of that change, with the names of Hugging Face's rope_scaling.
struct RotaryScaling {
  RotaryScalingKind kind = RotaryScalingKind::None;  ///< the rule
  double factor = 1;                                 ///< the ratio of the new length to the old one
  double low_freq_factor = 1;     ///< Llama3: frequencies with fewer turns in original_length are low
  double high_freq_factor = 4;    ///< Llama3: frequencies with more turns in original_length are high
  double original_length = 8192;  ///< Llama3: tokens that the model was trained on
};

/// Options of RotaryEmbedding, alone and in attention layers: {.rotary = {}} turns it on with these values.
struct RotaryEmbeddingOptions {
  Index head_dim = 0;                 ///< D, the width of a head; in an attention layer 0 means the layer's
  std::optional<Index> rotary_dim{};  ///< R, the first coordinates that turn, an even number; the default is all
  double theta = 10000;               ///< the ratio of the longest wave to the shortest; Llama 3 takes 500000
  RotaryPairing pairing = RotaryPairing::HalfSplit;  ///< which coordinates turn together
  RotaryScaling scaling{};                           ///< for sequences longer than those of the training
  Index length = 1024;  ///< positions whose angles are formed at construction; others are formed in each call
  bool enabled = true;  ///< false in an attention layer: no rotary positions
};
/// The default of attention layers.
inline constexpr RotaryEmbeddingOptions kNoRotary{.enabled = false};

namespace detail {

/// The angle of pair i from one position to the next, of R coordinates that turn.
inline double rotary_frequency(const RotaryEmbeddingOptions& options, Index i, Index turned) {
  const RotaryScaling& scaling = options.scaling;
  const double width = static_cast<double>(turned);
  double theta = options.theta;
  // With a single pair, whose frequency is 1 for any theta, the exponent has no bound.
  if (scaling.kind == RotaryScalingKind::Ntk && turned > 2) theta *= std::pow(scaling.factor, width / (width - 2));
  const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / width);
  switch (scaling.kind) {
    case RotaryScalingKind::None:
    case RotaryScalingKind::Ntk:
      return frequency;
    case RotaryScalingKind::Linear:
      return frequency / scaling.factor;
    case RotaryScalingKind::Llama3:
      break;
  }
  const double turns = scaling.original_length * frequency / (2 * std::numbers::pi);
  const double high = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  const double kept = std::clamp(high, 0.0, 1.0);
  return kept * frequency + (1 - kept) * frequency / scaling.factor;
}

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

/// Rotary positions: pair i of each query and key vector turns by the angle position·theta^(-2i/R), so that q·k depends
/// on the distance of their positions alone, unless `scaling` changes the angles. Su et al.: "RoFormer", 2021. Angles
/// are formed in double; coordinates from R on stay as they are. No parameters.
///
/// Works on heads (B, H, L, D) inside an attention layer, with any strides and in place; no observer is shown it.
template <class T>
class RotaryEmbedding {
  using A = accumulate_t<T>;

 public:
  /// Throws ShapeError unless 0 <= R <= D, R is even and length >= 0; ValueError for a theta or a factor that is not
  /// above 0.
  explicit RotaryEmbedding(const RotaryEmbeddingOptions& options) : options_(options) {
    const Index turned = options.rotary_dim.value_or(options.head_dim);
    HEED_CHECK(options.head_dim >= 1 && turned >= 0 && turned <= options.head_dim && turned % 2 == 0, ShapeError,
               "heed::RotaryEmbedding: rotary_dim = ", turned,
               " must be an even number from 0 to head_dim = ", options.head_dim);
    HEED_CHECK(options.length >= 0, ShapeError, "heed::RotaryEmbedding: length = ", options.length, " is negative");
    HEED_CHECK(options.theta > 0, ValueError, "heed::RotaryEmbedding: theta = ", options.theta, " must be above 0");
    const RotaryScaling& scaling = options.scaling;
    HEED_CHECK(scaling.factor > 0 && scaling.original_length > 0, ValueError,
               "heed::RotaryEmbedding: scaling.factor = ", scaling.factor,
               " and scaling.original_length = ", scaling.original_length, " must be above 0");
    HEED_CHECK(scaling.high_freq_factor > scaling.low_freq_factor, ValueError,
               "heed::RotaryEmbedding: scaling.high_freq_factor = ", scaling.high_freq_factor,
               " must be above scaling.low_freq_factor = ", scaling.low_freq_factor);
    const Index pairs = turned / 2;
    frequencies_ = Tensor<double, 1>(pairs);
    for (Index i = 0; i < pairs; ++i) frequencies_(i) = detail::rotary_frequency(options, i, turned);
    table_ = Tensor<A, 2>(options.length, turned);
    for (Index p = 0; p < options.length; ++p) form_angles(p, table_.view()[p].data());
  }

  const RotaryEmbeddingOptions& options() const { return options_; }  ///< as constructed

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
  /// @overload
  template <TensorLike X>
  auto operator()(const X& x, Context& context) const {
    return (*this)(x, Positions(), context);
  }
  /// @overload
  template <TensorLike X>
  auto operator()(const X& x, const Positions& positions = {}) const {
    Context context;
    return (*this)(x, positions, context);
  }

  /// Turns x (B, H, L, D) into y, any shape of operator(); y may be x. Throws ShapeError when x, y or the positions
  /// don't fit, ValueError when x and y overlap without being the same.
  template <TensorLike X, TensorLike Y>
  void forward(const X& x, const Positions& positions, Y&& y, Context& context) const {
    const Workspace::Frame frame(context.workspace());
    turn(detail::read_as<4>(x, context.workspace()), positions, detail::write_as<4>(y), A(1), context);
  }
  /// Turns back: the inverse of forward(), which is also its transpose.
  template <TensorLike X, TensorLike Y>
  void inverse(const X& x, const Positions& positions, Y&& y, Context& context) const {
    const Workspace::Frame frame(context.workspace());
    turn(detail::read_as<4>(x, context.workspace()), positions, detail::write_as<4>(y), A(-1), context);
  }

  /// Memory of a forward that backward() needs: the positions, whose lists are borrowed. Nothing of x is kept: y may be
  /// x.
  struct Cache {
    Positions positions{};
  };
  /// forward() that a backward() can follow.
  template <TensorLike X, TensorLike Y>
  void forward(const X& x, const Positions& positions, Y&& y, Cache& cache, Context& context) const {
    forward(x, positions, y, context);
    cache.positions = positions;
  }
  /// dx = dy turned back; dx may be dy, or kNotWanted. Throws as forward() does.
  template <TensorLike DY, class DX>
  void backward(const DY& dy, DX&& dx, const Cache& cache, Context& context) const {
    if constexpr (!std::is_same_v<std::remove_cvref_t<DX>, NotWanted>) {
      if (detail::write_as<4>(dx).data()) inverse(dy, cache.positions, dx, context);
    }
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
    const Index width = options_.head_dim, pairs = frequencies_.size(), length = x.extent(2);
    HEED_CHECK(x.extent(3) == width, ShapeError, "heed::RotaryEmbedding: x ", x.extents(), " has width ", x.extent(3),
               " but the heads have ", width);
    HEED_CHECK(y.extents() == x.extents(), ShapeError, "heed::RotaryEmbedding: y ", y.extents(), " does not fit x ",
               x.extents());
    HEED_CHECK(
        (x.data() == y.data() && x.strides() == y.strides()) || !detail::may_overlap(x, y), ValueError,
        "heed::RotaryEmbedding: y shares memory with x; it needs separate memory, or all of x to turn it in place");
    positions.check("heed::RotaryEmbedding", x.extent(0), length);
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

  RotaryEmbeddingOptions options_;
  Tensor<double, 1> frequencies_;
  Tensor<A, 2> table_;
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
