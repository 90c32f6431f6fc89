// SPDX-License-Identifier: MIT
// BoolMask: memory layouts, broadcasting and refused arguments.
#include <cstdint>
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include <heed/mask/bool_mask.hpp>
#include <heed/mask/concept.hpp>

#include "common/message_of.hpp"
#include "common/random_inputs.hpp"

namespace heed_test {
namespace {

using BoolColumns = Eigen::Matrix<bool, Eigen::Dynamic, Eigen::Dynamic>;
using BoolRows = Eigen::Matrix<bool, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr heed::AttentionShape kShape{.B = 2, .H = 3, .G = 1, .Lq = 4, .Lk = 5, .Dk = 1, .Dv = 1};

template <class M>
std::string picture(const M& mask, int b = 0, int h = 0) {
  return heed::to_string(mask, kShape, b, h);
}

TEST(BoolMask, ReadsAnyStorageOrder) {
  BoolColumns columns(4, 5);
  for (Index i = 0; i < 4; ++i) {
    for (Index j = 0; j < 5; ++j) columns(i, j) = (i * i + 3 * j) % 4 == 1;
  }
  const BoolRows rows = columns;
  heed::Tensor<bool, 2> tensor(4, 5);
  tensor.matrix() = columns;
  const std::string expected = picture(heed::BoolMask::keep(columns));
  EXPECT_NE(expected.find('#'), std::string::npos);
  EXPECT_EQ(picture(heed::BoolMask::keep(rows)), expected);
  EXPECT_EQ(picture(heed::BoolMask::keep(tensor)), expected);
  EXPECT_EQ(picture(heed::BoolMask::keep(tensor.view())), expected);

  BoolColumns around = BoolColumns::Constant(9, 9, true);
  around.block(2, 3, 4, 5) = columns;
  const auto block = around.block(2, 3, 4, 5);
  EXPECT_EQ(picture(heed::BoolMask::keep(block)), expected);

  // Negative strides.
  const heed::TensorView<const bool, 2> reversed(&tensor(3, 4), {4, 5}, {-5, -1});
  std::string turned = expected;
  turned.pop_back();
  EXPECT_EQ(picture(heed::BoolMask::keep(reversed)), std::string(turned.rbegin(), turned.rend()) + '\n');
}

TEST(BoolMask, IgnoreIsTheComplementOfKeep) {
  BoolRows m(4, 5);
  for (Index i = 0; i < 4; ++i) {
    for (Index j = 0; j < 5; ++j) m(i, j) = (i + j) % 3 == 0;
  }
  EXPECT_EQ(picture(heed::BoolMask::ignore(m)), picture(!heed::BoolMask::keep(m)));
}

TEST(BoolMask, AnyByteButZeroIsTrue) {
  heed::Tensor<unsigned char, 2> m(4, 5);
  m(0, 0) = 1, m(0, 1) = 2, m(0, 2) = 255;
  EXPECT_EQ(picture(heed::BoolMask::keep(m)).substr(0, 6), "###..\n");
  EXPECT_EQ(picture(heed::BoolMask::ignore(m)).substr(0, 6), "...##\n");
}

TEST(BoolMask, BroadcastsEachExtent) {
  Random random(51);
  for (int broadcast = 0; broadcast < 16; ++broadcast) {
    heed::Extents<4> e{kShape.B, kShape.H, kShape.Lq, kShape.Lk};
    for (std::size_t d = 0; d < 4; ++d) {
      if (broadcast >> d & 1) e[d] = 1;
    }
    heed::Tensor<bool, 4> m(e);
    for (Index i = 0; i < m.size(); ++i) m.data()[i] = random.chance(0.5);
    const auto mask = heed::bind(heed::BoolMask::keep(m), kShape);
    for (int b = 0; b < kShape.B; ++b) {
      for (int h = 0; h < kShape.H; ++h) {
        for (int q = 0; q < kShape.Lq; ++q) {
          for (int k = 0; k < kShape.Lk; ++k) {
            EXPECT_EQ(mask.visible(b, h, q, k), m(b % e[0], h % e[1], q % e[2], k % e[3]));
          }
        }
      }
    }
  }
}

TEST(BoolMask, RefusesOtherExtents) {
  for (const heed::Extents<4>& e :
       {heed::Extents<4>{3, 3, 4, 5}, {2, 2, 4, 5}, {2, 3, 5, 5}, {2, 3, 4, 4}, {2, 3, 4, 0}}) {
    const heed::Tensor<bool, 4> m(e);
    EXPECT_TRUE(has_all(message_of<heed::ShapeError>([&] { heed::bind(heed::BoolMask::keep(m), kShape); }),
                        {"heed::BoolMask: the mask is (", "but the call is (B, H, Lq, Lk) = (2, 3, 4, 5)",
                         "each extent must be equal or 1"}));
  }
  const heed::Tensor<bool, 2> transposed(5, 4);
  EXPECT_THROW(heed::bind(heed::BoolMask::keep(transposed), kShape), heed::ShapeError);
}

TEST(BoolMask, BorrowsViewsButNotTemporaries) {
  static_assert(
      std::is_invocable_v<decltype([](auto&& m) { return heed::BoolMask::keep(m); }), heed::TensorView<const bool, 2>>);
  const auto of_view = [] {
    static const heed::Tensor<bool, 2> m(4, 5);
    return heed::BoolMask::keep(m.view());
  };
  EXPECT_EQ(picture(of_view()), ".....\n.....\n.....\n.....\n");
}

}  // namespace
}  // namespace heed_test
