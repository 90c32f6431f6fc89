// SPDX-License-Identifier: MIT
#include <string>
#include <vector>

#include <Eigen/Core>
#include <gtest/gtest.h>

#include <heed/core/tensor.hpp>
#include <heed/inspect/lint.hpp>
#include <heed/mask/basic.hpp>
#include <heed/mask/bool_mask.hpp>

#include "common/message_of.hpp"

namespace {

using heed::BoolMask;
using heed::Causal;
using heed::MaskExpectation;
using heed::Padding;
using heed_test::has_all;
using heed_test::message_of;
using Bools = Eigen::Matrix<bool, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

const std::vector<int> kLengths{3, 6};

/// A call and the purpose of its mask.
struct Call {
  heed::AttentionShape shape;
  MaskExpectation expected = {};
};
const Call kCausal{{.Lq = 6, .Lk = 6}, {.causal = true}};
const Call kPadded{{.B = 2, .H = 3, .Lq = 6, .Lk = 6}, {.lengths = kLengths}};
const Call kBoth{{.B = 2, .H = 3, .Lq = 6, .Lk = 6}, {.causal = true, .lengths = kLengths}};

template <class M>
std::vector<heed::MaskFinding> lint(const M& mask, const Call& call) {
  return heed::lint(mask, call.shape, call.expected);
}

template <class M>
std::vector<std::string> names(const M& mask, const Call& call) {
  std::vector<std::string> found;
  for (const heed::MaskFinding& one : lint(mask, call)) {
    found.emplace_back(to_string(one.mistake));
    EXPECT_FALSE(one.text.empty());
    EXPECT_FALSE(one.fix.empty());
  }
  return found;
}
using Names = std::vector<std::string>;

/// NumPy's tril: element (q, k) is k <= q + diagonal.
Bools tril(int rows, int columns, int diagonal = 0) {
  Bools m(rows, columns);
  for (int q = 0; q < rows; ++q) {
    for (int k = 0; k < columns; ++k) m(q, k) = k <= q + diagonal;
  }
  return m;
}

TEST(Lint, SaysNothingOfRightMasks) {
  const Bools lower = tril(6, 6);
  const Bools upper = !lower.array();
  EXPECT_EQ(names(Causal{}, kCausal), Names{});
  EXPECT_EQ(names(BoolMask::keep(lower), kCausal), Names{});
  EXPECT_EQ(names(BoolMask::ignore(upper), kCausal), Names{});
  EXPECT_EQ(names(heed::NoMask{}, {{.Lq = 4, .Lk = 7}}), Names{});
  EXPECT_EQ(names(Padding(kLengths), kPadded), Names{});
  EXPECT_EQ(names(Padding::queries_and_keys(kLengths, kLengths), kPadded), Names{}) << "padded queries may see nothing";
  EXPECT_EQ(names(Causal{} & Padding(kLengths), kBoth), Names{});
  EXPECT_EQ(names(Causal::bottom_right(), {{.Lq = 2, .Lk = 6}, {.causal = true}}), Names{});
  EXPECT_EQ(names(Causal::from(kLengths), {{.B = 2, .Lq = 1, .Lk = 8}, {.causal = true, .first_positions = kLengths}}),
            Names{});
  EXPECT_EQ(names(Causal{} & heed::Window(2, 0), {{.Lq = 6, .Lk = 6}, {.causal = true, .may_hide_more = true}}),
            Names{});
  EXPECT_EQ(names(heed::NoMask{}, {{.B = 0, .Lq = 0, .Lk = 0}}), Names{});
}

TEST(Lint, FindsSwappedPolarity) {
  const Bools lower = tril(6, 6);
  EXPECT_EQ(names(BoolMask::ignore(lower), kCausal), Names{"polarity_swapped"});
  EXPECT_EQ(names(!Padding(kLengths), kPadded), Names{"polarity_swapped"});
  EXPECT_EQ(names(!(Causal{} & Padding(kLengths)), kBoth), Names{"polarity_swapped"});
  EXPECT_EQ(names((!Causal{}) & Padding(kLengths), kBoth), Names{"polarity_swapped"});
  EXPECT_EQ(names(Causal{} & !Padding(kLengths), kBoth), Names{"polarity_swapped"});
  const auto findings = lint(BoolMask::ignore(lower), kCausal);
  EXPECT_TRUE(has_all(findings[0].fix, {"BoolMask::keep", "BoolMask::ignore"}));
}

TEST(Lint, FindsWhatIsMissing) {
  EXPECT_EQ(names(heed::NoMask{}, kCausal), Names{"causal_missing"});
  EXPECT_EQ(names(Padding(kLengths), kBoth), Names{"causal_missing"});
  EXPECT_EQ(names(Causal{}, kBoth), Names{}) << "padding at the end is later than every real query";
  EXPECT_EQ(names(Causal::bottom_right(), {{.B = 2, .Lq = 2, .Lk = 6}, {.causal = true, .lengths = kLengths}}),
            Names{"padding_missing"});
  EXPECT_EQ(names(heed::NoMask{}, kPadded), Names{"padding_missing"});
  EXPECT_EQ(names(heed::NoMask{}, kBoth), (Names{"causal_missing", "padding_missing"}));
  EXPECT_TRUE(has_all(lint(heed::NoMask{}, kCausal)[0].text, {"all 15", "sample 0, head 0, query 0, key 1"}));
  const std::vector<int> late{4, 6};
  EXPECT_TRUE(has_all(lint(Padding(late), kPadded)[0].text, {"9 of 27", "sample 0, head 0, query 0, key 3"}));
}

TEST(Lint, FindsWrongAlignmentWithACache) {
  const Call step{{.Lq = 2, .Lk = 6}, {.causal = true}};
  EXPECT_EQ(names(Causal::top_left(), step), Names{"wrong_alignment"});
  const Bools corner = tril(2, 6);
  EXPECT_EQ(names(BoolMask::keep(corner), step), Names{"wrong_alignment"});
  EXPECT_TRUE(has_all(lint(Causal::top_left(), step)[0].text, {"top-left", "is at key 4"}));
  const std::vector<int> caches{2, 4};
  const Call ragged{{.B = 2, .Lq = 2, .Lk = 8}, {.causal = true, .first_positions = caches}};
  EXPECT_EQ(names(Causal::bottom_right(), ragged), Names{"wrong_alignment"});
  EXPECT_TRUE(has_all(message_of<heed::ValueError>([&] { lint(Causal{}, step); }), {"bottom_right"}));
}

TEST(Lint, FindsShiftedAndTransposedTriangles) {
  const Bools strict = tril(6, 6, -1), far = tril(6, 6, 1), upper = tril(6, 6).transpose();
  EXPECT_EQ(names(BoolMask::keep(strict), kCausal), Names{"own_position_hidden"});
  EXPECT_EQ(names(BoolMask::keep(far), kCausal), Names{"sees_next_position"});
  EXPECT_EQ(names(BoolMask::keep(upper), kCausal), Names{"transposed"});
}

TEST(Lint, FindsHeadsInTheWrongOrder) {
  // PyTorch's masks of (B·H, L, L): repeat() where repeat_interleave() is right.
  heed::Tensor<bool, 4> right(2, 3, 6, 6), wrong(2, 3, 6, 6);
  for (int b = 0; b < 2; ++b) {
    for (int h = 0; h < 3; ++h) {
      for (int q = 0; q < 6; ++q) {
        for (int k = 0; k < 6; ++k) {
          right(b, h, q, k) = k < kLengths[static_cast<std::size_t>(b)];
          wrong(b, h, q, k) = k < kLengths[static_cast<std::size_t>((b * 3 + h) % 2)];
        }
      }
    }
  }
  EXPECT_EQ(names(BoolMask::keep(right), kPadded), Names{});
  EXPECT_EQ(names(BoolMask::keep(wrong), kPadded), Names{"head_order"});
}

TEST(Lint, NamesSymptomsWhereNoSingleMistakeExplainsTheMask) {
  EXPECT_EQ(names(Causal{} & heed::Window(2, 0), kCausal), Names{"hides_too_much"});
  EXPECT_EQ(names(heed::Window(2, 1), kCausal), (Names{"causal_missing", "hides_too_much"}));
  EXPECT_EQ(names(heed::Window(2, 1), {{.Lq = 6, .Lk = 6}, {.causal = true, .may_hide_more = true}}),
            Names{"causal_missing"});
  const auto second = heed::mask([](int q, int k) { return q != 2 && k <= q; });
  EXPECT_EQ(names(second, kCausal), (Names{"no_visible_key", "hides_too_much"}));
  EXPECT_TRUE(has_all(lint(second, kCausal)[0].text, {"1 of 6", "query 2"}));
}

TEST(Lint, RefusesExpectationsThatContradictThemselves) {
  const Call one_length{{.B = 2, .Lq = 3, .Lk = 3}, {.lengths = {3}}};
  EXPECT_TRUE(has_all(message_of<heed::ShapeError>([&] { lint(heed::NoMask{}, one_length); }),
                      {"heed::lint", "1 lengths but B = 2"}));
  const Call too_long{{.Lq = 3, .Lk = 3}, {.lengths = {4}}};
  EXPECT_TRUE(
      has_all(message_of<heed::ValueError>([&] { lint(heed::NoMask{}, too_long); }), {"4", "between 0 and Lk = 3"}));
}

}  // namespace
