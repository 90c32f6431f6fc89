// SPDX-License-Identifier: MIT
// Score modifiers on single scores and on lanes: their formulas, what they refuse, and what they are told.
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/simd.hpp>
#include <heed/core/tensor.hpp>
#include <heed/core/vec_math.hpp>
#include <heed/mask/basic.hpp>
#include <heed/mask/modifier.hpp>

#include "common/message_of.hpp"

namespace {

using heed::Alibi;
using heed::Alignment;
using heed::AttentionShape;
using heed::Bias;
using heed::Index;
using heed::RelativeBias;
using heed::SoftCap;
using heed::Tensor;
using heed_test::message_of;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr AttentionShape kShape{.B = 2, .H = 2, .G = 1, .Lq = 5, .Lk = 9, .Dk = 4, .Dv = 4};

struct Twice : heed::ModifierBase {
  template <class V>
  V operator()(V score, const heed::ScoreIndex<V>&) const {
    return score + score;
  }
};

/// The modifier on one score, bound to a call.
template <class M>
double at(const M& modifier, double score, int b, int h, int q, int k, const AttentionShape& shape = kShape) {
  const auto bound = heed::bind(modifier, shape);
  heed::ScoreIndex<double> place;
  place.b = b, place.h = h, place.q = q, place.k = k;
  place.query = q, place.key = k;
  return bound(score, place);
}

/// Registers of queries and of keys, whole and partly filled, give what single scores give.
template <class T, class M>
void expect_lanes_like_scalars(const M& modifier, double tolerance) {
  using V = heed::Vec<T>;
  const auto bound = heed::bind(modifier, kShape);
  for (const bool along_keys : {false, true}) {
    for (int lanes = 1; lanes <= std::min(V::size, along_keys ? kShape.Lk : kShape.Lq); ++lanes) {
      heed::ScoreIndex<V> place;
      place.b = 1, place.h = 1, place.q = along_keys ? 3 : 0, place.k = along_keys ? 0 : 7;
      place.q_step = along_keys ? 0 : 1, place.k_step = along_keys ? 1 : 0;
      place.lanes = lanes;
      T query[V::size], key[V::size], score[V::size], result[V::size];
      for (int i = 0; i < V::size; ++i) {
        const int real = std::min(i, lanes - 1);
        query[i] = static_cast<T>(place.q + real * place.q_step);
        key[i] = static_cast<T>(place.k + real * place.k_step);
        score[i] = static_cast<T>(0.75 * i - 2);
      }
      place.query = V::load(query), place.key = V::load(key);
      heed::detail::for_head(bound, place.b, place.h)(V::load(score), place).store(result);
      for (int i = 0; i < lanes; ++i) {
        const double expected = at(modifier, static_cast<double>(score[i]), place.b, place.h,
                                   place.q + i * place.q_step, place.k + i * place.k_step);
        if (std::isinf(expected))
          EXPECT_EQ(static_cast<double>(result[i]), expected);
        else
          EXPECT_NEAR(static_cast<double>(result[i]), expected, tolerance) << "lane " << i << " of " << lanes;
      }
    }
  }
}
template <class M>
void expect_lanes_like_scalars(const M& modifier) {
  expect_lanes_like_scalars<float>(modifier, 1e-5);
  expect_lanes_like_scalars<double>(modifier, 1e-13);
}

TEST(ModifierConcept, MasksAndModifiersDontMix) {
  static_assert(heed::Modifier<heed::NoModifier>);
  static_assert(heed::Modifier<Twice>);
  static_assert(heed::Modifier<Bias<float>>);
  static_assert(!heed::Modifier<heed::Causal>);
  static_assert(!heed::Mask<Twice>);
  static_assert(!heed::Modifier<decltype([](float s) { return s; })>);
}

TEST(NoModifier, LeavesScoresAlone) {
  EXPECT_EQ(heed::NoModifier{}(1.5f, heed::ScoreIndex<float>{}), 1.5f);
  EXPECT_EQ(heed::NoModifier{}(-2.0L, heed::ScoreIndex<long double>{}), -2.0L);
  expect_lanes_like_scalars(heed::NoModifier{});
}

TEST(SoftCap, BoundsScoresAndHardlyChangesSmallOnes) {
  EXPECT_NEAR(at(SoftCap(5), 2, 0, 0, 0, 0), 5 * std::tanh(0.4), 1e-14);
  EXPECT_NEAR(at(SoftCap(50), 0.01, 0, 0, 0, 0), 0.01, 1e-9);
  EXPECT_EQ(at(SoftCap(5), 1e30, 0, 0, 0, 0), 5);
  EXPECT_EQ(at(SoftCap(5), -kInfinity, 0, 0, 0, 0), -5);
  EXPECT_TRUE(std::isnan(at(SoftCap(5), std::nan(""), 0, 0, 0, 0)));
  expect_lanes_like_scalars(SoftCap(1.5));
}
TEST(SoftCap, RefusesWhatIsNoBound) {
  for (const double cap : {0.0, -1.0, kInfinity, std::nan("")}) EXPECT_THROW(SoftCap{cap}, heed::ValueError) << cap;
  EXPECT_NE(message_of<heed::ValueError>([] { SoftCap(-1); }).find("cap = -1"), std::string::npos);
}

TEST(Alibi, FallsWithTheDistance) {
  // Two heads: slopes 1/16 and 1/256.
  EXPECT_EQ(at(Alibi::top_left(2), 1, 0, 0, 3, 1), 1 - 2.0 / 16);
  EXPECT_EQ(at(Alibi::top_left(2), 1, 0, 1, 3, 7), 1 - 4.0 / 256);
  EXPECT_EQ(at(Alibi::bottom_right(2), 1, 0, 0, 3, 7), 1);
  const std::vector<int> first{0, 2};
  EXPECT_EQ(at(Alibi::from(first, 2), 1, 1, 0, 3, 7), 1 - 2.0 / 16);
  expect_lanes_like_scalars(Alibi::bottom_right(2));
  expect_lanes_like_scalars(Alibi::from(first, 2));
}
TEST(Alibi, NamesWhatDoesNotFit) {
  EXPECT_THROW(Alibi(0), heed::ValueError);
  const std::string heads = message_of<heed::ShapeError>([] { heed::bind(Alibi::top_left(3), kShape); });
  EXPECT_NE(heads.find("made for 3 heads but the call has H = 2"), std::string::npos) << heads;
  const std::string alignment = message_of<heed::ValueError>([] { heed::bind(Alibi(2), kShape); });
  EXPECT_NE(alignment.find("Alibi::bottom_right"), std::string::npos) << alignment;
}

TEST(Bias, AddsWhatTheMatrixSaysBroadcastOverExtentsOfOne) {
  Tensor<float, 4> full(2, 2, 5, 9);
  for (Index i = 0; i < full.size(); ++i) full.data()[i] = static_cast<float>(i % 37) / 8;
  EXPECT_EQ(at(Bias(full), 1, 1, 0, 4, 8), 1 + static_cast<double>(full(1, 0, 4, 8)));
  expect_lanes_like_scalars(Bias(full));

  const Tensor<float, 4> heads(1, 2, 1, 1), keys(2, 1, 1, 9);
  const auto view = full.view();
  EXPECT_EQ(at(Bias(view.slice(0, 1, 1).slice(2, 2, 1)), 0, 0, 1, 4, 8), static_cast<double>(full(1, 1, 2, 8)));
  expect_lanes_like_scalars(Bias(view.slice(1, 1, 1).slice(3, 4, 1)));
  expect_lanes_like_scalars(Bias(heads));
  expect_lanes_like_scalars(Bias(keys));

  const Eigen::MatrixXd columns = Eigen::MatrixXd::Random(5, 9);  // column-major
  EXPECT_EQ(at(Bias(columns), 2, 1, 1, 3, 7), 2 + columns(3, 7));
  expect_lanes_like_scalars(Bias(columns));
}
TEST(Bias, MinusInfinityHidesWhateverTheScore) {
  Tensor<double, 2> bias(5, 9);
  bias(2, 3) = -kInfinity;
  for (const double score : {1.0, kInfinity, -kInfinity, std::nan("")}) {
    EXPECT_EQ(at(Bias(bias), score, 0, 0, 2, 3), -kInfinity) << score;
    // What is hidden stays hidden: tanh(-inf) is -1.
    EXPECT_EQ(at(then(Bias(bias), SoftCap(5)), score, 0, 0, 2, 3), -kInfinity) << score;
  }
  EXPECT_TRUE(std::isnan(at(Bias(bias), std::nan(""), 0, 0, 2, 4)));
}
TEST(Bias, NamesExtentsThatDontFit) {
  const Tensor<float, 4> bias(2, 3, 5, 9);
  const std::string text = message_of<heed::ShapeError>([&] { heed::bind(Bias(bias), kShape); });
  EXPECT_NE(text.find("(2, 3, 5, 9)"), std::string::npos) << text;
  EXPECT_NE(text.find("(2, 2, 5, 9)"), std::string::npos) << text;
}

TEST(RelativeBias, LooksUpTheDistanceWithinItsReach) {
  Tensor<double, 2> table(2, 5);  // distances -2, ..., 2
  for (Index i = 0; i < table.size(); ++i) table.data()[i] = static_cast<double>(i + 1);
  const RelativeBias bias(table, Alignment::top_left());
  EXPECT_EQ(at(bias, 0.5, 0, 0, 3, 3), 0.5 + 3);
  EXPECT_EQ(at(bias, 0.5, 0, 0, 3, 2), 0.5 + 2);
  EXPECT_EQ(at(bias, 0.5, 0, 0, 4, 0), 0.5 + 1);
  EXPECT_EQ(at(bias, 0.5, 0, 1, 0, 8), 0.5 + 10);
  EXPECT_EQ(at(RelativeBias(table, Alignment::bottom_right()), 0.5, 0, 0, 3, 7), 0.5 + 3);
  expect_lanes_like_scalars(bias);

  const Eigen::MatrixXf shared = Eigen::MatrixXf::Random(1, 7);
  EXPECT_EQ(at(RelativeBias(shared, Alignment::top_left()), 0, 0, 1, 1, 2), static_cast<double>(shared(0, 4)));
  expect_lanes_like_scalars(RelativeBias(shared, Alignment::top_left()));
}
TEST(RelativeBias, NamesWhatDoesNotFit) {
  const Tensor<float, 2> even(2, 4), three(3, 5), two(2, 5);
  EXPECT_NE(message_of<heed::ShapeError>([&] { RelativeBias{even}; }).find("(2, 4)"), std::string::npos);
  EXPECT_THROW(heed::bind(RelativeBias(three, Alignment::top_left()), kShape), heed::ShapeError);
  const std::string text = message_of<heed::ValueError>([&] { heed::bind(RelativeBias(two), kShape); });
  EXPECT_NE(text.find("Alignment::top_left"), std::string::npos) << text;
}

TEST(Then, AppliesModifiersFromLeftToRight) {
  Tensor<double, 2> bias(5, 9);
  bias(1, 1) = 8;
  EXPECT_NEAR(at(then(SoftCap(5), Bias(bias)), 2, 0, 0, 1, 1), 5 * std::tanh(0.4) + 8, 1e-14);
  EXPECT_NEAR(at(then(Bias(bias), SoftCap(5)), 2, 0, 0, 1, 1), 5 * std::tanh(2.0), 1e-14);
  EXPECT_EQ(at(then(Twice{}, Twice{}, Alibi::top_left(2)), 1, 0, 0, 3, 1), 4 - 2.0 / 16);
  EXPECT_EQ(at(then(Twice{}), 1, 0, 0, 0, 0), 2);
  expect_lanes_like_scalars(then(Bias(bias), SoftCap(3), Alibi::bottom_right(2), Twice{}));
  EXPECT_THROW(heed::bind(then(Twice{}, Alibi(2)), kShape), heed::ValueError);
}

TEST(FunctionModifier, IsWrittenOnceForNumbersAndLanes) {
  const auto fading = heed::modifier([](auto score, const auto& place) {
    using std::abs;
    return score - 0.5 * abs(place.query - place.key);
  });
  EXPECT_EQ(at(fading, 3, 0, 0, 1, 5), 1);
  expect_lanes_like_scalars(fading);
}

}  // namespace
