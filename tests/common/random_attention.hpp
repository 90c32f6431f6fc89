// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// One random attention call, and everything that must hold for it whatever it is. Tests draw it from seeds, the fuzzer
/// from its bytes.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/attention/attention.hpp>
#include <heed/compiled/attention.hpp>

#include "common/any_mask.hpp"
#include "common/any_modifier.hpp"
#include "common/attention_oracle.hpp"
#include "common/error_budget.hpp"
#include "common/random_inputs.hpp"
#include "common/shuffled_executor.hpp"
#include "common/views.hpp"

namespace heed_test {

/// Mostly small, often beside the borders of vectors and tiles, sometimes empty.
inline int random_length(Random& random) {
  const double u = random.uniform();
  if (u < 0.03) return 0;
  if (u < 0.80) return random.integer(1, 20);
  if (u < 0.95) return random.pick({15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 66});
  return random.pick({100, 127, 128, 129, 130, 191, 193});
}
inline int random_width(Random& random) {
  return random.chance(0.9) ? random.integer(1, 20) : random.pick({31, 32, 33, 64, 65, 96, 127, 128, 130});
}

/// With at most `work` multiplications, so that many calls run in a second.
inline heed::AttentionShape random_shape(Random& random, std::int64_t work = 30000) {
  for (;;) {
    heed::AttentionShape s;
    s.B = random.chance(0.03) ? 0 : random.integer(1, 3);
    s.G = random.integer(1, 2);
    s.H = random.chance(0.03) ? 0 : s.G * random.integer(1, 2);
    if (s.H == 0 && random.chance(0.5)) s.G = 0;
    s.Lq = random_length(random);
    s.Lk = random.chance(0.3) ? s.Lq : random_length(random);
    s.Dk = random_width(random);
    s.Dv = random.chance(0.03) ? 0 : random.chance(0.5) ? s.Dk : random_width(random);
    if (std::int64_t{s.B} * s.H * s.Lq * s.Lk * (s.Dk + s.Dv) <= work) return s;
  }
}

/// T: queries and output, S: keys and values, E: a type wide enough to judge T.
template <class T, class S, class E>
class RandomAttention {
 public:
  using A = heed::accumulate_t<T>;
  using Queries = heed::TensorView<const T, 4>;
  using Keys = heed::TensorView<const S, 4>;

  /// `random` draws what the call is, `numbers` what its tensors hold; they may be one.
  RandomAttention(const heed::AttentionShape& shape, Random& random, Random& numbers, heed::Context& context)
      : random_(random),
        numbers_(numbers),
        shape_(shape),
        mask_(random_mask(shape_, random_)),
        context_(&context),
        q_(shape_.B, shape_.H, shape_.Lq, shape_.Dk),
        k_(shape_.B, shape_.G, shape_.Lk, shape_.Dk),
        v_(shape_.B, shape_.G, shape_.Lk, shape_.Dv) {
    fill_inputs();
    choose_options();
    choose_modifier();
    truth_.emplace(shape_, [this](int b, int h, int q, int k) {
      return mask_.visible(b, h, q, k) && !(modifier_ && modifier_->hides(b, h, q, k));
    });
    context.training = false;
  }

  std::string text() const {
    const auto& s = shape_;
    const auto part = [](const char* name, int n) { return " " + std::string(name) + "=" + std::to_string(n); };
    return part("B", s.B) + part("H", s.H) + part("G", s.G) + part("Lq", s.Lq) + part("Lk", s.Lk) + part("Dk", s.Dk) +
           part("Dv", s.Dv) + " mask " + mask_.text() + " scale " +
           (options_.scale ? std::to_string(*options_.scale) : "default") + (sinks_.empty() ? "" : " sinks") +
           (modifier_ ? " modified" : "") + (is_from_heed_ ? " by heed" : "");
  }

  void check() {
    for (const heed::Path path : {heed::Path::Blocked, heed::Path::Reference}) {
      SCOPED_TRACE(path == heed::Path::Blocked ? "blocked" : "reference");
      context_->path = path;
      clean_.emplace(attend(q_.view(), k_.view(), v_.view()));
      check_values();
      check_weights();
      check_fully_hidden_rows();
      check_partly_hidden_row();
      check_poisoned_query();
      check_strides();
      check_same_pairs_otherwise_told();
      check_sample_alone();
      check_dropout();
      if (::testing::Test::HasFailure()) return;
    }
    context_->path = heed::Path::Automatic;
    check_threads();
    check_backward();
  }

  /// One of the checks, for a fuzzer, which comes back to what it found interesting.
  void check_one() {
    context_->path =
        random_.pick({heed::Path::Blocked, heed::Path::Blocked, heed::Path::Automatic, heed::Path::Reference});
    clean_.emplace(attend(q_.view(), k_.view(), v_.view()));
    constexpr void (RandomAttention::* checks[])() = {
        &RandomAttention::check_values,       &RandomAttention::check_weights,
        &RandomAttention::check_strides,      &RandomAttention::check_fully_hidden_rows,
        &RandomAttention::check_sample_alone, &RandomAttention::check_partly_hidden_row,
        &RandomAttention::check_dropout,      &RandomAttention::check_poisoned_query,
        &RandomAttention::check_threads,      &RandomAttention::check_same_pairs_otherwise_told,
        &RandomAttention::check_backward,     &RandomAttention::check_backward};
    (this->*checks[random_.integer(0, static_cast<int>(std::size(checks)) - 1)])();
  }

 private:
  using Statistics = decltype(heed::attention_with_statistics(std::declval<const heed::Tensor<T, 4>&>(),
                                                              std::declval<const heed::Tensor<S, 4>&>(),
                                                              std::declval<const heed::Tensor<S, 4>&>()));

  void fill_inputs() {
    const double stddev = random_.pick({0.1, 1.0, 1.0, 1.0, 3.0, 10.0});
    fill_normal(q_.view(), numbers_, stddev);
    fill_normal(k_.view(), numbers_, stddev);
    fill_normal(v_.view(), numbers_, random_.pick({1.0, 100.0}));
    // Ties: equal keys, or equal scores all over.
    if (random_.chance(0.1)) {
      for_each_element(k_.view(), [&](S& x) { x = S(1); });
    } else if (random_.chance(0.1)) {
      for_each_element(q_.view(), [&](T& x) { x = T(0); });
    }
  }

  void choose_options() {
    if (random_.chance(0.3)) options_.scale = random_.pick({1.0, 0.3, 0.0, -0.5, 1e-30});
    if (random_.chance(0.2)) {
      for (int h = 0; h < shape_.H; ++h) {
        sinks_.push_back(random_.chance(0.2) ? -std::numeric_limits<double>::infinity() : 5 * random_.normal());
      }
      options_.sinks = sinks_;
    }
  }

  void choose_modifier() {
    if (!random_.chance(0.4)) return;
    const double cap = random_.pick({2.0, 20.0});
    const int kind = random_.integer(0, 3);
    if (kind >= 2) {
      heed::Extents<4> extents{shape_.B, shape_.H, shape_.Lq, shape_.Lk}, strides;
      for (Index& e : extents) {
        if (random_.chance(0.2)) e = 1;
      }
      table_ = heed::Tensor<double, 4>(extents);
      for_each_element(table_.view(), [&](double& x) {
        x = numbers_.chance(0.3) ? -std::numeric_limits<double>::infinity() : std::round(numbers_.normal() * 16) / 16;
      });
      bias_ = cast<A>(table_);
      strides = table_.view().strides();
      for (std::size_t d = 0; d < 4; ++d) strides[d] = extents[d] == 1 ? 0 : strides[d];
      const heed::TensorView<const double, 4> table(table_.data(), {shape_.B, shape_.H, shape_.Lq, shape_.Lk}, strides);
      modifier_ = kind == 2 ? AnyModifier::table(table) : AnyModifier::capped_table(cap, table);
    } else {
      const double slope = random_.pick({0.0625, 0.5});
      const int reach = std::max(shape_.Lq, shape_.Lk);
      first_.assign(samples(), 0);
      distances_ = heed::Tensor<A, 2>(1, 2 * reach + 1);
      for (int i = -reach; i <= reach; ++i) distances_(0, i + reach) = static_cast<A>(-slope * std::abs(i));
      modifier_ = kind == 0 ? AnyModifier::soft_cap(cap) : AnyModifier::distance(slope);
    }
    is_from_heed_ = random_.chance(0.5);
  }

  std::size_t samples() const { return static_cast<std::size_t>(shape_.B); }
  double scale() const { return options_.scale.value_or(1 / std::sqrt(static_cast<double>(shape_.Dk))); }
  bool visible(int b, int h, int q, int k) const { return (*truth_)(b, h, q, k); }
  bool sees_something(int b, int h, int q) const { return truth_->any(b, h, q); }

  /// f(modifier) with its real type: none, one that a user wrote, or the same from heed for a call of so many samples,
  /// whose bias then adds to `dbias`.
  template <class F>
  void with_modifier(F&& f, std::size_t samples, heed::TensorView<A, 4> dbias = {}) const {
    if (!modifier_) return f(heed::NoModifier{});
    if (!is_from_heed_) return f(*modifier_);
    const auto bias = [&] {
      const heed::Bias from_table(bias_);
      return dbias.data() ? from_table.with_gradient(dbias) : from_table;
    };
    switch (modifier_->kind()) {
      case AnyModifier::Kind::SoftCap:
        return f(heed::SoftCap(modifier_->number()));
      case AnyModifier::Kind::Table:
        return f(bias());
      case AnyModifier::Kind::CappedTable:
        return f(then(heed::SoftCap(modifier_->number()), bias()));
      default:
        return f(heed::RelativeBias(distances_, heed::Alignment::from(std::span(first_).first(samples))));
    }
  }
  /// f(mask, modifier) with their real types.
  template <class F>
  void with_types(F&& f, heed::TensorView<A, 4> dbias = {}) const {
    mask_.with_mask(
        [&](const auto& mask) { with_modifier([&](const auto& modifier) { f(mask, modifier); }, samples(), dbias); });
  }

  Statistics attend(Queries q, Keys k, Keys v) {
    std::optional<Statistics> result;
    with_types([&](const auto& mask, const auto& modifier) {
      result = heed::attention_with_statistics(q, k, v, mask, modifier, options_, *context_);
    });
    return std::move(*result);
  }
  heed::Tensor<T, 4> attend_out(Queries q, Keys k, Keys v) {
    heed::Tensor<T, 4> out(q.extent(0), q.extent(1), q.extent(2), v.extent(3));
    attend_into(out.view(), q, k, v);
    return out;
  }
  void attend_into(heed::TensorView<T, 4> out, Queries q, Keys k, Keys v) {
    with_types([&](const auto& mask, const auto& modifier) {
      heed::attention_into(out, q, k, v, mask, modifier, options_, *context_);
    });
  }

  template <class Survival>
  OracleResult<E> oracle(Survival&& keep) const {
    return attention_oracle<E, T, S>(
        q_.view(), k_.view(), v_.view(), scale(), sinks_, *truth_,
        [this](E score, int b, int h, int q, int k) {
          if (!modifier_) return score;
          heed::ScoreIndex<E> at;
          at.b = b, at.h = h, at.q = q, at.k = k;
          at.query = static_cast<E>(q), at.key = static_cast<E>(k);
          return (*modifier_)(score, at);
        },
        keep);
  }

  /// The largest norm of a row of (B, heads, L, D).
  template <class X>
  static double largest_norm(const heed::Tensor<X, 4>& x) {
    double largest = 0;
    for (Index b = 0; b < x.extent(0); ++b) {
      for (Index h = 0; h < x.extent(1); ++h) {
        for (Index i = 0; i < x.extent(2); ++i) {
          double sum = 0;
          for_each_element(x.view()[b][h][i],
                           [&](const X& e) { sum += static_cast<double>(e) * static_cast<double>(e); });
          largest = std::max(largest, std::sqrt(sum));
        }
      }
    }
    return largest;
  }

  /// How wrong a score may be: its products and sums are rounded, then what the modifier does.
  double score_error() const {
    double magnitude = (shape_.Dk + 4) * largest_norm(q_) * largest_norm(k_) * std::abs(scale());
    if (modifier_) magnitude += 4 * modifier_->magnitude(shape_.Lq, shape_.Lk);
    for (const double sink : sinks_) magnitude += std::isinf(sink) ? 0 : 4 * std::abs(sink);
    return magnitude * epsilon<A>();
  }

  /// A bound on the relative error of weights, from the standard analysis of rounding. The budget against the naive
  /// path is for tensors large enough that its error is not small by chance: see attention_cases.hpp.
  double weight_error() const { return 2 * std::expm1(2 * score_error()) + (2 * shape_.Lk + 16) * epsilon<A>(); }

  double largest_value() const {
    double largest = 0;
    for_each_element(v_.view(), [&](const S& x) { largest = std::max(largest, std::abs(static_cast<double>(x))); });
    return largest;
  }

  template <class X, int Rank>
  void expect_close(const heed::Tensor<X, Rank>& computed, const heed::Tensor<E, Rank>& exact, double bound,
                    const char* what) {
    const Deviation<E> d = deviation<X, E, Rank>(computed.view(), exact.view());
    EXPECT_LE(static_cast<double>(d.error), bound + epsilon<X>() * static_cast<double>(d.magnitude)) << what;
  }

  const OracleResult<E>& exact() {
    if (!exact_) exact_.emplace(oracle([](int, int, int, int) { return 1.0; }));
    return *exact_;
  }

  void check_values() {
    expect_close(clean_->out, exact().out, weight_error() * largest_value() + 1e-30, "out");
    double largest_sum = 0;
    for_each_element(exact().sum.view(), [&](E x) { largest_sum = std::max(largest_sum, static_cast<double>(x)); });
    // A maximum that differs by d changes the sum by e^d.
    expect_close(clean_->maximum, exact().maximum, score_error(), "maximum");
    expect_close(clean_->sum, exact().sum, weight_error() * largest_sum, "sum");
    for (int b = 0; b < shape_.B; ++b) {
      for (int h = 0; h < shape_.H; ++h) {
        for (int i = 0; i < shape_.Lq; ++i) {
          if (sees_something(b, h, i)) continue;
          for (int d = 0; d < shape_.Dv; ++d) ASSERT_TRUE(equal_bits(clean_->out(b, h, i, d), T(0)));
        }
      }
    }
  }

  void check_weights() {
    heed::Tensor<T, 4> out(clean_->out.extents()), weights(shape_.B, shape_.H, shape_.Lq, shape_.Lk);
    with_types([&](const auto& mask, const auto& modifier) {
      heed::attention_with_weights_into(out, weights, q_, k_, v_, mask, modifier, options_, *context_);
    });
    EXPECT_TRUE(same_bits(out, clean_->out)) << "asking for weights changes the output";
    expect_close(weights, exact().weights, weight_error(), "weights");
    for (int b = 0; b < shape_.B; ++b) {
      for (int h = 0; h < shape_.H; ++h) {
        for (int i = 0; i < shape_.Lq; ++i) {
          double sum = 0;
          for (int j = 0; j < shape_.Lk; ++j) {
            if (!visible(b, h, i, j)) {
              ASSERT_TRUE(equal_bits(weights(b, h, i, j), T(0)));
            }
            sum += static_cast<double>(weights(b, h, i, j));
          }
          if (sinks_.empty() && sees_something(b, h, i)) {
            EXPECT_NEAR(sum, 1, (shape_.Lk + 4) * epsilon<T>());
          }
        }
      }
    }
  }

  /// Rows of K and V that no query sees may hold anything.
  void check_fully_hidden_rows() {
    heed::Tensor<S, 4> k = k_, v = v_;
    for (int b = 0; b < shape_.B; ++b) {
      for (int g = 0; g < shape_.G; ++g) {
        for (int j = 0; j < shape_.Lk; ++j) {
          if (is_seen(b, g, j)) continue;
          for_each_element(k.view()[b][g][j], [&](S& x) { x = poison<S>(numbers_); });
          for_each_element(v.view()[b][g][j], [&](S& x) { x = poison<S>(numbers_); });
        }
      }
    }
    const Statistics poisoned = attend(q_.view(), k.view(), v.view());
    EXPECT_TRUE(same_bits(poisoned.out, clean_->out)) << "a key that no query sees has an effect";
    EXPECT_TRUE(same_bits(poisoned.maximum, clean_->maximum));
    EXPECT_TRUE(same_bits(poisoned.sum, clean_->sum));
  }

  bool is_seen(int b, int g, int k) const {
    for (int h = 0; h < shape_.H; ++h) {
      if (h * shape_.G / shape_.H != g) continue;
      for (int q = 0; q < shape_.Lq; ++q) {
        if (visible(b, h, q, k)) return true;
      }
    }
    return false;
  }

  /// Poison in one row of K or V shows in exactly the queries that see it; in V, in its column alone.
  void check_partly_hidden_row() {
    if (shape_.B * shape_.G * shape_.Lk * shape_.Dv == 0) return;
    const int b = random_.integer(0, shape_.B - 1), g = random_.integer(0, shape_.G - 1);
    const int j = random_.integer(0, shape_.Lk - 1), column = random_.integer(0, shape_.Dv - 1);

    heed::Tensor<S, 4> v = v_;
    const S x = random_.pick({std::numeric_limits<S>::quiet_NaN(), std::numeric_limits<S>::infinity()});
    v(b, g, j, column) = x;
    expect_shows_where_seen(attend_out(q_.view(), k_.view(), v.view()), b, g, j, column, "value");

    heed::Tensor<S, 4> k = k_;
    for_each_element(k.view()[b][g][j], [&](S& e) { e = std::numeric_limits<S>::quiet_NaN(); });
    expect_shows_where_seen(attend_out(q_.view(), k.view(), v_.view()), b, g, j, -1, "key");

    // 0 weights for hidden pairs won't do where numbers overflow either.
    for_each_element(k.view()[b][g][j], [&](S& e) { e = std::numeric_limits<S>::max(); });
    expect_shows_where_seen(attend_out(q_.view(), k.view(), v_.view()), b, g, j, kAnything, "huge key");
  }

  static constexpr int kEveryColumn = -1, kAnything = -2;

  /// Queries that don't see key j: the clean bits. The others: not finite in `column`, or anything.
  void expect_shows_where_seen(const heed::Tensor<T, 4>& out, int b0, int g, int j, int column, const char* what) {
    for (int b = 0; b < shape_.B; ++b) {
      for (int h = 0; h < shape_.H; ++h) {
        for (int i = 0; i < shape_.Lq; ++i) {
          const bool sees = b == b0 && h * shape_.G / shape_.H == g && visible(b, h, i, j);
          if (sees && column == kAnything) continue;
          for (int d = 0; d < shape_.Dv; ++d) {
            if (sees && (column == kEveryColumn || column == d))
              ASSERT_FALSE(std::isfinite(static_cast<double>(out(b, h, i, d)))) << what << " does not show";
            else
              ASSERT_TRUE(equal_bits(out(b, h, i, d), clean_->out(b, h, i, d)))
                  << "poisoned " << what << " " << j << " shows in query " << i << " of head " << h;
          }
        }
      }
    }
  }

  /// NaN in a query shows in its own row and in no other.
  void check_poisoned_query() {
    if (shape_.B * shape_.H * shape_.Lq == 0) return;
    const int b0 = random_.integer(0, shape_.B - 1), h0 = random_.integer(0, shape_.H - 1);
    const int i0 = random_.integer(0, shape_.Lq - 1);
    heed::Tensor<T, 4> q = q_;
    for_each_element(q.view()[b0][h0][i0], [&](T& x) { x = std::numeric_limits<T>::quiet_NaN(); });
    const auto out = attend_out(q.view(), k_.view(), v_.view());
    for (int b = 0; b < shape_.B; ++b) {
      for (int h = 0; h < shape_.H; ++h) {
        for (int i = 0; i < shape_.Lq; ++i) {
          const bool poisoned = b == b0 && h == h0 && i == i0 && sees_something(b, h, i);
          for (int d = 0; d < shape_.Dv; ++d) {
            if (poisoned)
              ASSERT_TRUE(std::isnan(static_cast<double>(out(b, h, i, d))));
            else
              ASSERT_TRUE(equal_bits(out(b, h, i, d), clean_->out(b, h, i, d))) << "query " << i0 << " shows in " << i;
          }
        }
      }
    }
  }

  /// The same bits from and to memory of any layout, of which nothing else is read or written.
  void check_strides() {
    const Spaced<T, 4> q(std::as_const(q_).view(), random_);
    const Spaced<S, 4> k(std::as_const(k_).view(), random_), v(std::as_const(v_).view(), random_);
    const Spaced<T, 4> out(clean_->out.extents(), random_);
    attend_into(out.view(), q.view(), k.view(), v.view());
    EXPECT_TRUE(same_bits(out.view(), clean_->out.view())) << "strides change the output";
    EXPECT_TRUE(out.gaps_are_untouched()) << "memory beside the output is written";
  }

  /// The mask as a plain function of pairs: what it is made of must not matter.
  void check_same_pairs_otherwise_told() {
    const AnyMask<false> pairs(heed::mask([this](int b, int h, int q, int k) { return mask_.visible(b, h, q, k); }));
    heed::Tensor<T, 4> out(clean_->out.extents());
    with_modifier(
        [&](const auto& modifier) { heed::attention_into(out, q_, k_, v_, pairs, modifier, options_, *context_); },
        samples());
    EXPECT_TRUE(same_bits(out, clean_->out)) << "the same pairs from a function give other bits";
  }

  /// What else the batch holds must not matter.
  void check_sample_alone() {
    if (shape_.B == 0 || (modifier_ && modifier_->has_table())) return;
    const int b0 = random_.integer(0, shape_.B - 1);
    const AnyMask<false> mask(heed::mask([this, b0](int, int h, int q, int k) { return mask_.visible(b0, h, q, k); }));
    const auto alone = [&](const auto& x) { return std::as_const(x).view().slice(0, b0, 1); };
    heed::Tensor<T, 4> out(1, shape_.H, shape_.Lq, shape_.Dv);
    with_modifier(
        [&](const auto& modifier) {
          heed::attention_into(out, alone(q_), alone(k_), alone(v_), mask, modifier, options_, *context_);
        },
        1);
    EXPECT_TRUE(same_bits(std::as_const(out).view(), alone(clean_->out))) << "sample " << b0 << " alone differs";
  }

  void check_dropout() {
    const double p = random_.pick({0.0, 0.25, 0.9, 1.0});
    options_.dropout = p;
    EXPECT_TRUE(same_bits(attend_out(q_.view(), k_.view(), v_.view()), clean_->out)) << "dropout outside training";
    context_->training = true;
    context_->seed = numbers_.bits();
    context_->restart_streams(numbers_.bits());
    const std::uint64_t stream = context_->next_stream();
    context_->restart_streams(stream);
    const auto dropped = attend_out(q_.view(), k_.view(), v_.view());
    context_->restart_streams(stream);
    const Statistics again = attend(q_.view(), k_.view(), v_.view());
    context_->training = false;
    options_.dropout = 0;

    EXPECT_TRUE(same_bits(dropped, again.out)) << "dropout is not replayed";
    EXPECT_TRUE(same_bits(again.maximum, clean_->maximum)) << "dropout changes the softmax";
    EXPECT_TRUE(same_bits(again.sum, clean_->sum)) << "dropout changes the softmax";
    if (p == 0) {
      EXPECT_TRUE(same_bits(dropped, clean_->out));
      return;
    }
    const heed::DropoutPattern pattern(context_->seed, stream, p);
    const auto exact = oracle([&](int b, int h, int q, int k) {
      return pattern.keeps(pattern.query_word(b, h, q), pattern.key_word(k)) ? 1 / (1 - p) : 0.0;
    });
    const double growth = p < 1 ? 1 / (1 - p) : 0;
    expect_close(dropped, exact.out, growth * weight_error() * largest_value() + 1e-30, "out under dropout");
  }

  /// f() on an executor of 2 or 3 workers, which runs pieces in any order, now and then on real threads.
  template <class F>
  auto on_workers(F&& f) {
    static heed::ThreadPool pool(3);
    ShuffledExecutor shuffled(random_.integer(2, 3), numbers_.bits());
    heed::Context context(random_.chance(0.02) ? static_cast<heed::Executor&>(pool) : shuffled);
    context.path = context_->path;
    context.training = context_->training;
    context.seed = context_->seed;
    heed::Context* const serial = std::exchange(context_, &context);
    auto result = f();
    context_ = serial;
    return result;
  }

  /// The same bits with any number of workers.
  void check_threads() {
    const Statistics threaded = on_workers([&] { return attend(q_.view(), k_.view(), v_.view()); });
    const Statistics serial = attend(q_.view(), k_.view(), v_.view());
    EXPECT_TRUE(same_bits(threaded.out, serial.out)) << "workers change the output";
    EXPECT_TRUE(same_bits(threaded.maximum, serial.maximum)) << "workers change the maximum";
    EXPECT_TRUE(same_bits(threaded.sum, serial.sum)) << "workers change the sum";
  }

  template <class X>
  struct Gradients {
    heed::Tensor<X, 4> dq, dk, dv;
    std::vector<double> dsinks;
    heed::Tensor<A, 4> dbias;
  };

  template <class X>
  Gradients<X> gradients(heed::TensorView<const X, 4> q, heed::TensorView<const X, 4> k, heed::TensorView<const X, 4> v,
                         heed::TensorView<const X, 4> dout, heed::Context& context) {
    Gradients<X> g{heed::Tensor<X, 4>(q.extents()), heed::Tensor<X, 4>(k.extents()), heed::Tensor<X, 4>(v.extents()),
                   std::vector<double>(sinks_.size()), heed::Tensor<A, 4>(bias_.extents())};
    heed::Tensor<X, 4> out(dout.extents());
    heed::AttentionCache<X> cache;
    with_types(
        [&](const auto& mask, const auto& modifier) {
          heed::attention_into(out, q, k, v, mask, modifier, options_, cache, context);
        },
        g.dbias.view());
    heed::attention_backward_into(heed::AttentionGradients<X>{g.dq.view(), g.dk.view(), g.dv.view(), g.dsinks}, dout,
                                  cache, context);
    return g;
  }

  template <class X>
  static void expect_same_gradients(const Gradients<X>& a, const Gradients<X>& b, const char* what) {
    EXPECT_TRUE(same_bits(a.dq, b.dq)) << what << " changes dq";
    EXPECT_TRUE(same_bits(a.dk, b.dk)) << what << " changes dk";
    EXPECT_TRUE(same_bits(a.dv, b.dv)) << what << " changes dv";
    EXPECT_TRUE(same_bits(a.dbias, b.dbias)) << what << " changes dbias";
    for (std::size_t h = 0; h < a.dsinks.size(); ++h) {
      EXPECT_TRUE(equal_bits(a.dsinks[h], b.dsinks[h])) << what << " changes the gradient of sink " << h;
    }
  }

  /// Gradients against the reference in a wider type, and what must not change them.
  void check_backward() {
    if constexpr (std::is_same_v<T, S> && std::is_same_v<T, A>) {
      const auto dout = normal_tensor<T, 4>({shape_.B, shape_.H, shape_.Lq, shape_.Dv}, numbers_);
      options_.dropout = random_.chance(0.3) ? random_.pick({0.25, 0.9, 1.0}) : 0;
      context_->training = true;
      const auto of = [&](const auto& q, const auto& k, const auto& v, const auto& d) {
        context_->restart_streams(7);
        return gradients<T>(q, k, v, d, *context_);
      };
      const Gradients<T> clean = of(q_.view(), k_.view(), v_.view(), dout.view());
      check_gradients(clean, dout);
      check_gradients_of_hidden(clean, dout, of);
      const Gradients<T> threaded = on_workers([&] { return of(q_.view(), k_.view(), v_.view(), dout.view()); });
      expect_same_gradients(threaded, clean, "the number of workers");
      const Spaced<T, 4> q(std::as_const(q_).view(), random_), k(std::as_const(k_).view(), random_);
      const Spaced<T, 4> v(std::as_const(v_).view(), random_), d(dout.view(), random_);
      expect_same_gradients(of(q.view(), k.view(), v.view(), d.view()), clean, "memory of another layout");
      context_->training = false;
      options_.dropout = 0;
    }
  }

  /// Within bounds that follow from the error of the weights, or of the error budget.
  void check_gradients(const Gradients<T>& computed, const heed::Tensor<T, 4>& dout) {
    const auto run = [&]<class X>(X, heed::Path path) {
      heed::Context context;
      context.path = path;
      context.training = true;
      context.seed = context_->seed;
      context.restart_streams(7);
      const auto q = cast<X>(q_), k = cast<X>(k_), v = cast<X>(v_), d = cast<X>(dout);
      return gradients<X>(q.view(), k.view(), v.view(), d.view(), context);
    };
    const Gradients<E> exact = run(E{}, heed::Path::Reference);
    const double growth = options_.dropout < 1 ? 1 / (1 - options_.dropout) : 0;
    const double q = largest_norm(q_), k = largest_norm(k_), d = largest_norm(dout), factor = std::abs(scale());
    const double dweight = growth * d * largest_norm(v_), rows = double(shape_.Lq) * shape_.H / std::max(shape_.G, 1);
    // Of a score's gradient, for a weight of 1.
    const double dscore =
        2 * dweight * (4 * weight_error() + 2 * score_error() + (shape_.Lk + 4 * shape_.Dv + 32) * epsilon<A>());
    const auto expect = [&](const auto& fast, const auto& wide, double bound, const char* what) {
      const Deviation<E> deviation = heed_test::deviation<T, E, 4>(std::as_const(fast).view(), wide.view());
      bound = 4 * bound + 4 * epsilon<T>() * static_cast<double>(deviation.magnitude) + 1e-30;
      EXPECT_LE(static_cast<double>(deviation.error), bound) << what;
    };
    expect(computed.dq, exact.dq, factor * k * (dscore + 2 * dweight * (shape_.Lk + 4) * epsilon<A>()), "dq");
    expect(computed.dk, exact.dk, factor * q * rows * (dscore + 2 * dweight * (rows + 4) * epsilon<A>()), "dk");
    expect(computed.dv, exact.dv, growth * d * rows * (weight_error() + (rows + 4) * epsilon<A>()), "dv");
    const double pairs = double(shape_.B) * shape_.H * shape_.Lq * shape_.Lk;
    const auto dbias = cast<E>(exact.dbias);
    const Deviation<E> of_bias = deviation<A, E, 4>(std::as_const(computed.dbias).view(), std::as_const(dbias).view());
    EXPECT_LE(static_cast<double>(of_bias.error), pairs * (4 * dscore + 4 * pairs * dweight * epsilon<A>()) + 1e-30);
    for (std::size_t h = 0; h < sinks_.size(); ++h) {
      EXPECT_NEAR(computed.dsinks[h], exact.dsinks[h], 4 * shape_.B * shape_.Lq * dscore + 1e-30) << "sink " << h;
    }
  }

  /// Keys that no query sees get the gradient 0 and have no effect, and so do queries that see nothing.
  template <class Of>
  void check_gradients_of_hidden(const Gradients<T>& clean, const heed::Tensor<T, 4>& dout, const Of& of) {
    heed::Tensor<T, 4> q = q_, k = k_, v = v_, d = dout;
    const auto hide = [&](heed::Tensor<T, 4>& x, const heed::Tensor<T, 4>* gradient, int b, int h, int i) {
      for_each_element(x.view()[b][h][i], [&](T& e) { e = poison<T>(numbers_); });
      if (!gradient) return;
      for_each_element(gradient->view()[b][h][i],
                       [&](const T& e) { EXPECT_EQ(e, 0) << "the gradient of what is hidden"; });
    };
    for (int b = 0; b < shape_.B; ++b) {
      for (int g = 0; g < shape_.G; ++g) {
        for (int j = 0; j < shape_.Lk; ++j) {
          if (is_seen(b, g, j)) continue;
          hide(k, &clean.dk, b, g, j);
          hide(v, &clean.dv, b, g, j);
        }
      }
      for (int h = 0; h < shape_.H; ++h) {
        for (int i = 0; i < shape_.Lq; ++i) {
          if (sees_something(b, h, i)) continue;
          hide(q, &clean.dq, b, h, i);
          hide(d, nullptr, b, h, i);
        }
      }
    }
    expect_same_gradients(of(q.view(), k.view(), v.view(), d.view()), clean, "what is hidden");
  }

  Random& random_;
  Random& numbers_;
  heed::AttentionShape shape_;
  MaskCase mask_;
  heed::Context* context_;
  heed::Tensor<T, 4> q_;
  heed::Tensor<S, 4> k_, v_;
  heed::AttentionOptions options_;
  std::vector<double> sinks_;
  heed::Tensor<double, 4> table_;
  heed::Tensor<A, 4> bias_;
  heed::Tensor<A, 2> distances_;
  std::vector<int> first_;  // query 0 is at key 0, in packed sequences, too
  std::optional<AnyModifier> modifier_;
  bool is_from_heed_ = false;
  std::optional<TruthTable> truth_;
  std::optional<OracleResult<E>> exact_;
  std::optional<Statistics> clean_;
};

// In random_instances, for the tests and the fuzzer.
extern template class RandomAttention<float, float, double>;
extern template class RandomAttention<double, double, long double>;
extern template class RandomAttention<heed::half, heed::half, double>;
extern template class RandomAttention<heed::bfloat16, heed::bfloat16, double>;
extern template class RandomAttention<float, heed::half, double>;
extern template class RandomAttention<float, heed::bfloat16, double>;
extern template class RandomAttention<double, heed::half, long double>;

/// Checks `cases` random calls (see effort()); stops at the first that fails and tells its seed.
template <class T, class S, class E>
void check_random_attention(std::uint64_t seed, int cases) {
  const int count = effort(cases);
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  ::testing::Test::RecordProperty("cases", count);
  heed::Context context;
  for (int i = 0; i < count; ++i) {
    Random random(seed, i);
    const heed::AttentionShape shape = random_shape(random);
    RandomAttention<T, S, E> attention(shape, random, random, context);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", case " + std::to_string(i) + ":" + attention.text());
    attention.check();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace heed_test
