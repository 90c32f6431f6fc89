// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// A score modifier chosen at run time, written as a user would write one: generic over scalars and lanes.

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include <heed/core/simd.hpp>
#include <heed/core/tensor.hpp>
#include <heed/core/vec_math.hpp>
#include <heed/mask/modifier.hpp>

#include "common/random_inputs.hpp"

namespace heed_test {

class AnyModifier : public heed::ModifierBase {
 public:
  enum class Kind { SoftCap, Distance, Table, CappedTable };

  /// s -> cap · tanh(s / cap).
  static AnyModifier soft_cap(double cap) { return {Kind::SoftCap, cap, {}}; }
  /// s -> s - slope · |q - k|.
  static AnyModifier distance(double slope) { return {Kind::Distance, slope, {}}; }
  /// s -> s + table(b, h, q, k); -inf wherever the table says so, whatever s is.
  static AnyModifier table(heed::TensorView<const double, 4> table) { return {Kind::Table, 0, table}; }

  /// s -> soft_cap(s) + table(b, h, q, k).
  static AnyModifier capped_table(double cap, heed::TensorView<const double, 4> table) {
    return {Kind::CappedTable, cap, table};
  }

  Kind kind() const { return kind_; }
  bool has_table() const { return kind_ == Kind::Table || kind_ == Kind::CappedTable; }
  /// The cap or the slope.
  double number() const { return number_; }

  template <class V>
  V operator()(V score, const heed::ScoreIndex<V>& at) const {
    using std::abs;
    using std::tanh;
    using T = lane_t<V>;
    if (has_cap()) score = V(T(number_)) * tanh(score / V(T(number_)));
    if (kind_ == Kind::SoftCap) return score;
    if (kind_ == Kind::Distance) return score - V(T(number_)) * abs(at.query - at.key);
    const V bias = read<T>(at);
    const V none = V(-std::numeric_limits<T>::infinity());
    if constexpr (std::is_floating_point_v<V>)
      return bias == none ? none : score + bias;
    else
      return select(equal(bias, none), none, score + bias);
  }

  template <class V>
  V derivative(V score, const heed::ScoreIndex<V>&) const {
    using std::tanh;
    using T = lane_t<V>;
    if (!has_cap()) return V(T(1));
    const V t = tanh(score / V(T(number_)));
    return V(T(1)) - t * t;
  }

  bool hides(int b, int h, int q, int k) const { return has_table() && std::isinf(table_(b, h, q, k)); }
  /// The largest number that is added to a score or bounds it: roundings are relative to it.
  double magnitude(int Lq, int Lk) const {
    if (kind_ == Kind::Distance) return number_ * std::max(Lq, Lk);
    double largest = has_cap() ? 8 * number_ : 0;
    if (!has_table()) return largest;
    for_each_element(table_, [&](double x) {
      if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
    });
    return largest;
  }

 private:
  bool has_cap() const { return kind_ == Kind::SoftCap || kind_ == Kind::CappedTable; }

  AnyModifier(Kind kind, double number, heed::TensorView<const double, 4> table)
      : kind_(kind), number_(number), table_(table) {}

  template <class V>
  struct Lane {
    using type = V;
  };
  template <class T>
  struct Lane<heed::Vec<T>> {
    using type = T;
  };
  template <class V>
  using lane_t = typename Lane<V>::type;

  template <class T, class V>
  V read(const heed::ScoreIndex<V>& at) const {
    if constexpr (std::is_floating_point_v<V>) {
      return static_cast<T>(table_(at.b, at.h, at.q, at.k));
    } else {
      T lanes[V::size] = {};
      for (int i = 0; i < at.lanes; ++i) {
        lanes[i] = static_cast<T>(table_(at.b, at.h, at.q + i * at.q_step, at.k + i * at.k_step));
      }
      return V::load(lanes);
    }
  }

  Kind kind_;
  double number_;
  heed::TensorView<const double, 4> table_;
};

}  // namespace heed_test
