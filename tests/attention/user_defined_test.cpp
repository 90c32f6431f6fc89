// SPDX-License-Identifier: MIT
// Masks and modifiers that a program brings along, in a namespace of its own, through the one entry and on both paths.
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <heed/attention/attention.hpp>
#include <heed/compiled/attention.hpp>

#include "common/error_budget.hpp"
#include "common/views.hpp"

namespace robots {

/// Sees the keys of its own team only.
struct SameTeam : heed::MaskBase {
  int teams;
  explicit SameTeam(int n) : teams(n) {}
  heed::KeyRange range(int, int, int) const { return heed::kAllKeys; }
  bool visible(int, int, int q, int k) const { return q % teams == k % teams; }
};

/// Scores fall with the distance, by a rate for each head, and are bounded: written once for numbers and for lanes.
struct FadingAttention : heed::ModifierBase {
  double rate, bound;
  FadingAttention(double r, double b) : rate(r), bound(b) {}

  template <class V>
  V operator()(V score, const heed::ScoreIndex<V>& at) const {
    using std::abs;
    using std::exp;
    using std::max;
    using std::min;
    const V fading = exp(heed::in_lanes<V>(-rate * (at.h + 1)) * abs(at.query - at.key));
    return max(min(score * fading, heed::in_lanes<V>(bound)), heed::in_lanes<V>(-bound));
  }
};

/// Adds a number for each key, which a program keeps in memory; -inf hides the key.
struct KeyPrior : heed::AdditiveModifier {
  const float* prior;  // (Lk)
  explicit KeyPrior(const float* numbers) : prior(numbers) {}

  template <class V>
  V operator()(V score, const heed::ScoreIndex<V>& at) const {
    const V add = heed::gather<V>(at.lanes, [&](int lane) { return prior[at.k + lane * at.k_step]; });
    return heed::hide_where(add, score + add);
  }
};

/// Notes which places it is asked about; every lane must be one that exists.
struct Witness : heed::ModifierBase {
  int* asked;  // (B, H, Lq, Lk)
  heed::AttentionShape shape;
  Witness(int* counts, const heed::AttentionShape& s) : asked(counts), shape(s) {}

  template <class V>
  V operator()(V score, const heed::ScoreIndex<V>& at) const {
    for (int i = 0; i < at.lanes; ++i) {
      const int q = at.q + i * at.q_step, k = at.k + i * at.k_step;
      ++asked[((at.b * shape.H + at.h) * shape.Lq + q) * shape.Lk + k];
    }
    return score;
  }
};

}  // namespace robots

namespace heed_test {
namespace {

class UserDefined : public ::testing::Test {
 protected:
  UserDefined() : random(71) {}
  Random random;
  heed::Tensor<float, 4> q = normal_tensor<float, 4>({2, 2, 41, 12}, random);
  heed::Tensor<float, 4> k = normal_tensor<float, 4>({2, 1, 70, 12}, random);
  heed::Tensor<float, 4> v = normal_tensor<float, 4>({2, 1, 70, 10}, random);
};

TEST_F(UserDefined, MaskAndModifierStayWithinTheBudget) {
  const auto mask = robots::SameTeam(3) & (heed::Causal::bottom_right() | !robots::SameTeam(2));
  const robots::FadingAttention modifier(0.02, 1.5);
  const auto run = [&]<class T>(T, heed::Path path) {
    heed::Context context;
    context.path = path;
    return heed::attention(cast<T>(q.view()), cast<T>(k.view()), cast<T>(v.view()), mask, modifier, context);
  };
  const auto exact = run(0.0, heed::Path::Reference);
  EXPECT_TRUE(within_budget(run(0.0f, heed::Path::Blocked), run(0.0f, heed::Path::Reference), exact));
}

TEST_F(UserDefined, AModifierChangesTheAnswer) {
  heed::Context context;
  const auto plain = heed::attention(q, k, v, robots::SameTeam(3), context);
  const auto faded = heed::attention(q, k, v, robots::SameTeam(3), robots::FadingAttention(0.02, 1.5), context);
  EXPECT_FALSE(same_bits(plain, faded));
  const auto untouched = heed::attention(q, k, v, robots::SameTeam(3), robots::FadingAttention(0, 1e9), context);
  EXPECT_LE((deviation<float, float, 4>(std::as_const(untouched).view(), std::as_const(plain).view()).error), 1e-6);
}

TEST_F(UserDefined, AModifierMayReadMemory) {
  std::vector<float> prior(70);
  heed::Tensor<float, 4> bias(1, 1, 1, 70);
  for (std::size_t i = 0; i < prior.size(); ++i) {
    prior[i] = i % 5 == 0 ? -std::numeric_limits<float>::infinity() : 0.1f * static_cast<float>(i % 7);
    bias.data()[i] = prior[i];
  }
  const auto with_prior = heed::attention(q, k, v, robots::KeyPrior(prior.data()));
  const auto with_bias = heed::attention(q, k, v, heed::Bias(bias));
  EXPECT_LE((deviation<float, float, 4>(with_prior.view(), with_bias.view()).error), 1e-6);
}

TEST_F(UserDefined, AModifierIsAskedOnceAboutEveryVisiblePairOfRealPlaces) {
  const heed::AttentionShape s{.B = 2, .H = 2, .G = 1, .Lq = 41, .Lk = 70, .Dk = 12, .Dv = 10};
  for (const heed::Path path : {heed::Path::Reference, heed::Path::Blocked}) {
    heed::Context context;
    context.path = path;
    heed::Tensor<int, 4> asked(s.B, s.H, s.Lq, s.Lk);
    const robots::Witness witness(asked.data(), s);
    const auto mask = heed::Window::top_left(9, 9);
    heed::attention(q, k, v, mask, witness, context);
    for (int b = 0; b < s.B; ++b) {
      for (int h = 0; h < s.H; ++h) {
        for (int i = 0; i < s.Lq; ++i) {
          for (int j = 0; j < s.Lk; ++j) {
            const bool visible = std::abs(i - j) <= 9;
            // A fast path may ask about hidden pairs too: lanes go together.
            EXPECT_LE(asked(b, h, i, j), 1);
            if (visible || path == heed::Path::Reference) {
              EXPECT_EQ(asked(b, h, i, j), visible ? 1 : 0) << i << ' ' << j;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace heed_test
