// SPDX-License-Identifier: MIT
// What counts as a score modifier, and what it is told about each score.
#include <type_traits>

#include <gtest/gtest.h>

#include <heed/core/simd.hpp>
#include <heed/mask/basic.hpp>
#include <heed/mask/modifier.hpp>

namespace {

struct Twice : heed::ModifierBase {
  template <class V>
  V operator()(V score, const heed::ScorePlace<V>&) const {
    return score + score;
  }
};

TEST(ModifierConcept, MasksAndModifiersDontMix) {
  static_assert(heed::Modifier<heed::NoModifier>);
  static_assert(heed::Modifier<Twice>);
  static_assert(!heed::Modifier<heed::Causal>);
  static_assert(!heed::Mask<Twice>);
  static_assert(!heed::Modifier<decltype([](float s) { return s; })>);
}

TEST(NoModifier, LeavesScoresAlone) {
  EXPECT_EQ(heed::NoModifier{}(1.5f, heed::ScorePlace<float>{}), 1.5f);
  EXPECT_EQ(heed::NoModifier{}(-2.0L, heed::ScorePlace<long double>{}), -2.0L);
  using V = heed::Vec<float>;
  float lanes[V::size];
  heed::NoModifier{}(V(3.0f), heed::ScorePlace<V>{}).store(lanes);
  for (const float lane : lanes) EXPECT_EQ(lane, 3.0f);
}

}  // namespace
