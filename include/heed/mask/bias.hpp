// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Score modifiers that read numbers from memory: Bias (one number for each pair) and RelativeBias (one for each
/// distance). Both are borrowed, and both receive gradients.

#include <algorithm>
#include <concepts>
#include <type_traits>

#include <heed/core/arguments.hpp>
#include <heed/core/config.hpp>
#include <heed/core/error.hpp>
#include <heed/core/tensor.hpp>
#include <heed/mask/basic.hpp>
#include <heed/mask/concept.hpp>
#include <heed/mask/modifier.hpp>

HEED_NAMESPACE_BEGIN

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
    const Index distance = at.k - alignment_.position(at.b, at.q) + lane * (at.k_step - at.q_step);
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
