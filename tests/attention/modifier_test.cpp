// SPDX-License-Identifier: MIT
// The library's score modifiers through the one entry: every path against their formulas, in blocks of queries and in
// single steps against a cache.
#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include <gtest/gtest.h>

#include <heed/attention/attention.hpp>
#include <heed/compiled/attention.hpp>

#include "common/any_mask.hpp"
#include "common/attention_oracle.hpp"
#include "common/error_budget.hpp"
#include "common/special_values.hpp"
#include "common/views.hpp"

namespace heed_test {
namespace {

/// What a modifier does to a score, by definition.
using Formula = std::function<double(double score, int b, int h, int q, int k)>;

/// Blocks and their tails, grouped heads; few queries against a long cache.
const heed::AttentionShape kShapes[] = {{2, 4, 2, 70, 131, 12, 10}, {2, 4, 2, 1, 600, 16, 12}, {1, 4, 4, 3, 530, 8, 8}};

template <class T>
class ModifiedAttention {
 public:
  explicit ModifiedAttention(const heed::AttentionShape& s)
      : shape_(s),
        random_(91),
        q_(normal_tensor<T, 4>({s.B, s.H, s.Lq, s.Dk}, random_)),
        k_(normal_tensor<T, 4>({s.B, s.G, s.Lk, s.Dk}, random_)),
        v_(normal_tensor<T, 4>({s.B, s.G, s.Lk, s.Dv}, random_)) {}

  const heed::AttentionShape& shape() const { return shape_; }
  Random& random() { return random_; }

  /// Both paths, with an exact mask and one of pairs.
  template <class M>
  void check(const char* name, const M& modifier, const Formula& formula) {
    SCOPED_TRACE(name);
    check(AnyMask<true>(heed::Window::bottom_right(500, 7)), modifier, formula);
    check(AnyMask<false>(heed::mask([](int q, int k) { return (q + k) % 5 != 1; })), modifier, formula);
  }

 private:
  template <class M>
  void check(const heed::AnyMask& mask, const M& modifier, const Formula& formula) {
    const auto bound = heed::bind(mask, shape_);
    const auto visible = [&](int b, int h, int q, int k) {
      return heed::is_visible(bound, b, h, q, k) && formula(0, b, h, q, k) != -kInf<double>;
    };
    const auto exact =
        attention_oracle<double, T, T>(q_.view(), k_.view(), v_.view(), 1 / std::sqrt(static_cast<double>(shape_.Dk)),
                                       {}, visible, formula, [](int, int, int, int) { return 1.0; });
    for (const heed::Path path : {heed::Path::Reference, heed::Path::Blocked}) {
      heed::Context context;
      context.path = path;
      const auto result = heed::attention_with_weights(q_, k_, v_, mask, modifier, context);
      const auto out = deviation<T, double, 4>(result.out.view(), std::as_const(exact.out).view());
      const auto weights = deviation<T, double, 4>(result.weights.view(), std::as_const(exact.weights).view());
      // A weight errs by as much as its score, whose size is some ten.
      EXPECT_LE(out.error, 60 * epsilon<T>() * out.magnitude) << static_cast<int>(path);
      EXPECT_LE(weights.error, 60 * epsilon<T>()) << static_cast<int>(path);
    }
  }

  heed::AttentionShape shape_;
  Random random_;
  heed::Tensor<T, 4> q_, k_, v_;
};

/// A table with some pairs hidden, of extents that fit the shape or are 1.
template <class T>
heed::Tensor<T, 4> random_bias(const heed::Extents<4>& extents, Random& random) {
  auto bias = normal_tensor<T, 4>(extents, random);
  for_each_element(bias.view(), [&](T& x) {
    if (random.chance(0.1)) x = static_cast<T>(-kInf<double>);
  });
  return bias;
}

template <class T>
class AttentionModifierOf : public ::testing::Test {};
using ModifierScalars = ::testing::Types<float, double>;
TYPED_TEST_SUITE(AttentionModifierOf, ModifierScalars);

TYPED_TEST(AttentionModifierOf, FormulasHoldOnEveryPath) {
  for (const auto& s : kShapes) {
    SCOPED_TRACE(::testing::Message() << "Lq = " << s.Lq);
    ModifiedAttention<TypeParam> attention(s);
    const auto cap = [](double x) { return 2 * std::tanh(x / 2); };
    const auto fall = [&](double x, int h, int q, int k) {
      return x - heed::Alibi::slope(4, h) * std::abs(q + s.Lk - s.Lq - k);
    };
    attention.check("soft cap", heed::SoftCap(2), [&](double x, int, int, int, int) { return cap(x); });
    attention.check("alibi", heed::Alibi::bottom_right(4),
                    [&](double x, int, int h, int q, int k) { return fall(x, h, q, k); });
    attention.check("alibi after the cap", then(heed::SoftCap(2), heed::Alibi::bottom_right(4)),
                    [&](double x, int, int h, int q, int k) { return fall(cap(x), h, q, k); });
    const auto table = normal_tensor<double, 2>({4, 9}, attention.random());
    attention.check(
        "relative bias", heed::RelativeBias(table, heed::Alignment::bottom_right()),
        [&](double x, int, int h, int q, int k) { return x + table(h, std::clamp(k - q - s.Lk + s.Lq, -4, 4) + 4); });
  }
}

TYPED_TEST(AttentionModifierOf, BiasesOfAllKindsHoldOnEveryPath) {
  using T = TypeParam;
  for (const auto& s : kShapes) {
    SCOPED_TRACE(::testing::Message() << "Lq = " << s.Lq);
    ModifiedAttention<T> attention(s);
    const heed::Extents<4> extents[] = {{s.B, s.H, s.Lq, s.Lk}, {1, s.H, 1, s.Lk}, {s.B, 1, s.Lq, 1}, {1, 1, 1, 1}};
    for (const auto& e : extents) {
      const auto bias = random_bias<T>(e, attention.random());
      const auto read = [&](int b, int h, int q, int k) {
        return static_cast<double>(bias(e[0] > 1 ? b : 0, e[1] > 1 ? h : 0, e[2] > 1 ? q : 0, e[3] > 1 ? k : 0));
      };
      attention.check("bias", heed::Bias(bias),
                      [&](double x, int b, int h, int q, int k) { return x + read(b, h, q, k); });
      // What the bias hides, the cap leaves hidden.
      attention.check("cap after bias", then(heed::Bias(bias), heed::SoftCap(2)),
                      [&](double x, int b, int h, int q, int k) {
                        const double sum = x + read(b, h, q, k);
                        return std::isinf(sum) ? sum : 2 * std::tanh(sum / 2);
                      });
      const Spaced<T, 4> spaced(bias.view(), attention.random());
      attention.check("bias with strides after cap", then(heed::SoftCap(2), heed::Bias(spaced.view())),
                      [&](double x, int b, int h, int q, int k) { return 2 * std::tanh(x / 2) + read(b, h, q, k); });
    }
    const auto narrow = random_bias<heed::half>({1, 1, s.Lq, s.Lk}, attention.random());
    attention.check("bias in half", heed::Bias(narrow),
                    [&](double x, int, int, int q, int k) { return x + static_cast<double>(narrow(0, 0, q, k)); });
  }
}

TEST(AttentionModifier, ABiasHidesAsAMaskDoes) {
  Random random(92);
  auto q = normal_tensor<float, 4>({1, 2, 40, 8}, random);
  auto k = normal_tensor<float, 4>({1, 2, 70, 8}, random);
  auto v = normal_tensor<float, 4>({1, 2, 70, 8}, random);
  heed::Tensor<float, 2> bias(40, 70);
  for (Index i = 0; i < 40; ++i) {
    for (Index j = 0; j < 70; ++j) bias(i, j) = j % 3 == 0 || i == 7 ? -kInf<float> : 0.f;
  }
  for (const heed::Path path : {heed::Path::Reference, heed::Path::Blocked}) {
    heed::Context context;
    context.path = path;
    const auto run = [&](Index queries) {
      const auto first = std::as_const(q).view().slice(2, 0, queries);
      return heed::attention(first, k, v, heed::Bias(std::as_const(bias).view().slice(0, 0, queries)), context);
    };
    const auto blocks = run(40), steps = run(3);
    const auto clean_k = k, clean_v = v;
    for (Index j = 0; j < 70; j += 3) {
      for (Index h = 0; h < 2; ++h) {
        for_each_element(k.view()[0][h][j], [&](float& x) { x = poison<float>(random); });
        for_each_element(v.view()[0][h][j], [&](float& x) { x = poison<float>(random); });
      }
    }
    EXPECT_TRUE(same_bits(run(40), blocks)) << "hidden rows show";
    EXPECT_TRUE(same_bits(run(3), steps)) << "hidden rows show in single steps";
    for (Index d = 0; d < 8; ++d) EXPECT_EQ(blocks(0, 1, 7, d), 0.f) << "a query that sees nothing";
    k = clean_k, v = clean_v;
  }
}

}  // namespace
}  // namespace heed_test
