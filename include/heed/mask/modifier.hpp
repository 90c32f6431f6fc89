// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// heed's score modifiers: SoftCap, Alibi, Bias, RelativeBias. mask/modifier_concept.hpp shows how to write one.

#include <heed/core/arguments.hpp>
#include <heed/mask/modifier_concept.hpp>

HEED_NAMESPACE_BEGIN

/// s -> cap · tanh(s / cap): keeps scores within ±cap (Gemma 2, 2024).
class SoftCap : public ModifierBase {
 public:
  /// Throws ValueError unless cap is positive and finite.
  explicit SoftCap(double cap) : cap_(cap) {
    HEED_CHECK(cap > 0 && detail::is_finite(cap), ValueError, "heed::SoftCap: cap = ", cap,
               " must be positive and finite");
  }
  /// The changed score.
  template <class V>
  V operator()(V score, const ScoreIndex<V>&) const {
    using std::tanh;
    return in_lanes<V>(cap_) * tanh(score * in_lanes<V>(1 / cap_));
  }
  /// The derivative by the score.
  template <class V>
  V derivative(V score, const ScoreIndex<V>&) const {
    using std::tanh;
    const V t = tanh(score * in_lanes<V>(1 / cap_));
    return in_lanes<V>(1) - t * t;
  }

 private:
  double cap_;
};

/// s -> s - slope(h) · |p(q) - k|: distant keys get less weight (Press, Smith, Lewis: "Train short, test long", 2022).
/// p(q) is the query's position among the keys, with the alignments of Causal. With a DocumentMask it is the position
/// in the query's sequence.
class Alibi : public AdditiveModifier {
 public:
  /// For H heads; the call must have as many, and Lq = Lk unless an alignment is named. Throws ValueError when H < 1.
  explicit Alibi(Index num_heads) : Alibi(num_heads, Alignment()) {}
  /// Query 0 has the position of key 0.
  static Alibi top_left(Index num_heads) { return Alibi(num_heads, Alignment::top_left()); }
  /// The last query has the position of the last key.
  static Alibi bottom_right(Index num_heads) { return Alibi(num_heads, Alignment::bottom_right()); }
  /// Query 0 of sample b has the position first[b].
  static Alibi from(IntSpan first, Index num_heads) { return Alibi(num_heads, Alignment::from(first)); }

  /// The slope of head h of `num_heads`: for a power of two n the series 2^(-8/n), 2^(-16/n), ...; other counts take
  /// the series of the power of two below and then every second term of the next one.
  static double slope(Index num_heads, Index h) {
    Index n = 1;
    while (2 * n <= num_heads) n *= 2;
    const double at = static_cast<double>(h), terms = static_cast<double>(n);
    return h < n ? std::exp2(-8.0 * (at + 1) / terms) : std::exp2(-4.0 * (2 * (at - terms) + 1) / terms);
  }

  /// The changed score.
  template <class V>
  V operator()(V score, const ScoreIndex<V>& at) const {
    return for_head(at.b, at.h)(score, at);
  }
  /// Throws ShapeError when the call has another number of heads.
  Alibi bind(const AttentionShape& s) const {
    HEED_CHECK(s.H == num_heads_, ShapeError, "heed::Alibi: made for ", num_heads_,
               " heads but the call has H = ", s.H);
    return Alibi(num_heads_, alignment_.bind(s, "Alibi"));
  }

  /// The modifier for one head of one sample.
  struct Head : AdditiveModifier {
    double slope;         ///< in slope · |q + shift - k|
    double shift;         ///< in slope · |q + shift - k|, where it is the same for all queries
    Alignment alignment;  ///< the position of each query
    int b;                ///< the sample
    /// Of a head and a sample.
    Head(double slope_of_head, const Alignment& bound, int sample)
        : slope(slope_of_head), shift(static_cast<double>(bound.position(sample, 0))), alignment(bound), b(sample) {}
    /// The changed score.
    template <class V>
    V operator()(V score, const ScoreIndex<V>& at) const {
      using std::abs;
      if (alignment.shifts_alike()) return score - in_lanes<V>(slope) * abs(at.query + in_lanes<V>(shift) - at.key);
      const V distance = gather<V>(at.lanes, [&](int lane) {
        return alignment.position(b, at.q + lane * at.q_step) - (at.k + lane * at.k_step);
      });
      return score - in_lanes<V>(slope) * abs(distance);
    }
  };
  /// The modifier for head h of a sample.
  Head for_head(int b, int h) const { return Head(slope(num_heads_, h), alignment_, b); }

 private:
  Alibi(Index num_heads, Alignment alignment) : num_heads_(num_heads), alignment_(alignment) {
    HEED_CHECK(num_heads >= 1, ValueError, "heed::Alibi: num_heads = ", num_heads, " must be at least 1");
  }
  Index num_heads_;
  Alignment alignment_;
};

/// s -> s + bias[b, h, q, k], from a matrix (Lq, Lk) or a tensor (B, H, Lq, Lk) where any extent may be 1 and is then
/// broadcast. -inf hides the pair. The memory is borrowed.
template <class T>
class Bias : public AdditiveModifier {
 public:
  /// The extents are checked in the call.
  template <class X>
  requires(TensorLike<std::remove_reference_t<X>> && !std::derived_from<std::remove_cvref_t<X>, ModifierBase>)
  explicit Bias(X&& bias) : view_(view(bias)) {
    static_assert(AnyTensor<X> || EigenDirect<X>,
                  "heed::Bias borrows memory: evaluate the expression into a matrix first");
    static_assert(std::is_lvalue_reference_v<X> || detail::is_view_v<std::remove_cvref_t<X>>,
                  "heed::Bias borrows memory: this temporary would be gone; give it a name");
  }

  /// The score plus its bias.
  template <class V>
  V operator()(V score, const ScoreIndex<V>& at) const {
    const T* p = &view_(at.b, at.h, at.q, at.k);
    const Index step = at.q_step * view_.stride(2) + at.k_step * view_.stride(3);
    const V bias = gather<V>(at.lanes, [&](int lane) { return p[lane * step]; });
    return hide_where(bias, score + bias);
  }
  /// The same bias, whose gradient backward adds to `gradient`, of the bias's extents, summed where it is broadcast.
  /// The backward then runs on one thread.
  Bias with_gradient(TensorView<T, 4> gradient) const {
    HEED_CHECK(gradient.extents() == view_.extents(), ShapeError, "heed::Bias: the gradient is ", gradient.extents(),
               " but the bias is ", view_.extents());
    Bias result = *this;
    result.gradient_ = gradient;
    return result;
  }
  /// Adds d to the gradient.
  template <class V>
  void accumulate(const V& d, const ScoreIndex<V>& at) const {
    detail::scatter_add(&gradient_(at.b, at.h, at.q, at.k),
                        at.q_step * gradient_.stride(2) + at.k_step * gradient_.stride(3), at.lanes, d);
  }
  bool accumulates() const { return gradient_.data() != nullptr; }  ///< true with a gradient
  /// Throws ShapeError unless each extent fits the call or is 1.
  Bias bind(const AttentionShape& s) const {
    const Extents<4> wanted{s.B, s.H, s.Lq, s.Lk};
    Extents<4> strides = view_.strides(), gradient_strides = gradient_.strides();
    for (std::size_t d = 0; d < 4; ++d) {
      HEED_CHECK(view_.extents()[d] == wanted[d] || view_.extents()[d] == 1, ShapeError, "heed::Bias: the bias is ",
                 view_.extents(), " but the call is (B, H, Lq, Lk) = ", wanted, "; each extent must be equal or 1");
      if (view_.extents()[d] == 1) strides[d] = gradient_strides[d] = 0;
    }
    Bias bound(TensorView<const T, 4>(view_.data(), view_.extents(), strides));
    bound.gradient_ = {gradient_.data(), gradient_.extents(), gradient_strides};
    return bound;
  }
  /// The bias as (B, H, Lq, Lk), with the extents that it was given.
  const TensorView<const T, 4>& view() const { return view_; }

 private:
  template <class X>
  static TensorView<const T, 4> view(X& x) {
    static_assert(rank_of_v<X> == 2 || rank_of_v<X> == 4, "heed::Bias takes (Lq, Lk) or (B, H, Lq, Lk)");
    return detail::with_rank<4>(TensorView<const T, rank_of_v<X>>(view_of(x)));
  }
  TensorView<const T, 4> view_;
  TensorView<T, 4> gradient_;
};
/// T is the element type of the matrix.
template <class X>
Bias(X&&) -> Bias<scalar_of_t<std::remove_reference_t<X>>>;

/// s -> s + table[h, clamp(k - p(q), -R, R) + R] from a table (H, 2R + 1), or (1, 2R + 1) for all heads: a bias for
/// each distance (Shaw et al., 2018; T5, 2020). p(q) is the query's position, its Alignment named unless Lq = Lk. The
/// memory is borrowed.
template <class T>
class RelativeBias : public AdditiveModifier {
 public:
  /// Throws ShapeError unless the table has an odd number of columns.
  template <class X>
  requires TensorLike<std::remove_reference_t<X>>
  explicit RelativeBias(X&& table, Alignment alignment = {}) : table_(view_of(table)), alignment_(alignment) {
    static_assert(AnyTensor<X> || EigenDirect<X>,
                  "heed::RelativeBias borrows memory: evaluate the expression into a matrix first");
    static_assert(std::is_lvalue_reference_v<X> || detail::is_view_v<std::remove_cvref_t<X>>,
                  "heed::RelativeBias borrows memory: this temporary would be gone; give it a name");
    HEED_CHECK(table_.extent(1) % 2 == 1, ShapeError, "heed::RelativeBias: the table is ", table_.extents(),
               " but needs an odd number of columns, 2R + 1 for distances from -R to R");
  }

  /// The score plus its bias.
  template <class V>
  V operator()(V score, const ScoreIndex<V>& at) const {
    const V bias = gather<V>(at.lanes, [&](int lane) { return table_(row(at), column(at, lane)); });
    return hide_where(bias, score + bias);
  }
  /// The same bias; a backward adds the gradient of the table to `gradient`. The backward then runs on one thread.
  RelativeBias with_gradient(TensorView<T, 2> gradient) const {
    HEED_CHECK(gradient.extents() == table_.extents(), ShapeError, "heed::RelativeBias: the gradient is ",
               gradient.extents(), " but the table is ", table_.extents());
    RelativeBias result = *this;
    result.gradient_ = gradient;
    return result;
  }
  /// Adds d to the gradient.
  template <class V>
  void accumulate(const V& d, const ScoreIndex<V>& at) const {
    if constexpr (is_one_lane_v<V>) {
      detail::scatter_add(&gradient_(row(at), column(at, 0)), 0, 1, d);
    } else {
      typename V::Scalar values[V::size];
      d.store(values);
      for (int i = 0; i < at.lanes; ++i) detail::scatter_add(&gradient_(row(at), column(at, i)), 0, 1, values[i]);
    }
  }
  bool accumulates() const { return gradient_.data() != nullptr; }  ///< true with a gradient
  /// Throws ShapeError unless the table has one row or H.
  RelativeBias bind(const AttentionShape& s) const {
    HEED_CHECK(table_.extent(0) == 1 || table_.extent(0) == s.H, ShapeError, "heed::RelativeBias: the table is ",
               table_.extents(), " but the call has H = ", s.H, "; give one row for each head or one for all");
    RelativeBias bound = *this;
    bound.alignment_ = alignment_.bind(s, "RelativeBias", "Alignment");
    return bound;
  }

 private:
  template <class V>
  Index row(const ScoreIndex<V>& at) const {
    return table_.extent(0) == 1 ? 0 : at.h;
  }
  /// Where the table holds the distance of a lane.
  template <class V>
  Index column(const ScoreIndex<V>& at, int lane) const {
    const Index reach = table_.extent(1) / 2;
    const Index distance = at.k + lane * at.k_step - alignment_.position(at.b, at.q + lane * at.q_step);
    return std::clamp(distance, -reach, reach) + reach;
  }

  TensorView<const T, 2> table_;
  Alignment alignment_;
  TensorView<T, 2> gradient_;
};
/// T is the element type of the matrix.
template <class X>
RelativeBias(X&&) -> RelativeBias<scalar_of_t<std::remove_reference_t<X>>>;
/// T is the element type of the matrix.
template <class X>
RelativeBias(X&&, Alignment) -> RelativeBias<scalar_of_t<std::remove_reference_t<X>>>;

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
