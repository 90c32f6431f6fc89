// SPDX-License-Identifier: MIT
// Plain Eigen, tensors of other ranks, and what comes back for them.
#include <limits>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include <heed/attention/attention.hpp>
#include <heed/compiled/attention.hpp>

#include "common/views.hpp"

namespace heed_test {
namespace {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

class PlainEigen : public ::testing::Test {
 protected:
  PlainEigen() {
    Random random(21);
    const auto fill = [&](Eigen::MatrixXf& m, Index rows, Index columns) {
      m.resize(rows, columns);
      for (Index j = 0; j < columns; ++j) {
        for (Index i = 0; i < rows; ++i) m(i, j) = static_cast<float>(random.normal());
      }
    };
    fill(q, 21, 20), fill(k, 37, 20), fill(v, 37, 9);
    heed::Tensor<float, 4> Q(1, 1, 21, 20), K(1, 1, 37, 20), V(1, 1, 37, 9);
    Q.matrix(0, 0) = q, K.matrix(0, 0) = k, V.matrix(0, 0) = v;
    const auto out = heed::attention(Q, K, V);
    expected = out.matrix(0, 0);
  }

  template <class M>
  void expect_same(const M& out) const {
    ASSERT_EQ(out.rows(), expected.rows());
    ASSERT_EQ(out.cols(), expected.cols());
    for (Index i = 0; i < out.rows(); ++i) {
      for (Index j = 0; j < out.cols(); ++j) EXPECT_EQ(out(i, j), expected(i, j)) << i << ", " << j;
    }
  }

  Eigen::MatrixXf q, k, v;  // column-major
  RowMajor expected;
};

TEST_F(PlainEigen, EveryStorageOrderGivesTheSameBits) {
  const RowMajor q_rows = q, k_rows = k, v_rows = v;
  expect_same(heed::attention(q, k, v));
  expect_same(heed::attention(q_rows, k_rows, v_rows));
  expect_same(heed::attention(q, k_rows, v));
  static_assert(std::is_same_v<decltype(heed::attention(q, k, v)), RowMajor>);
}

TEST_F(PlainEigen, MapsBlocksAndExpressionsAreArguments) {
  Eigen::MatrixXf around = Eigen::MatrixXf::Constant(60, 60, std::numeric_limits<float>::quiet_NaN());
  around.block(3, 5, 37, 20) = k;
  RowMajor packed(37, 50);
  packed.setConstant(std::numeric_limits<float>::quiet_NaN());
  packed.middleCols(20, 9) = v;
  expect_same(heed::attention(q, around.block(3, 5, 37, 20), packed.middleCols(20, 9)));

  const Eigen::Map<const Eigen::MatrixXf> mapped(q.data(), 21, 20);
  const Eigen::MatrixXf k_transposed = k.transpose();
  expect_same(heed::attention(mapped, k_transposed.transpose(), v));

  const Eigen::MatrixXf half_q = q / 2, half_k = k / 2;
  expect_same(heed::attention(half_q + half_q, 2 * half_k, v.array().matrix()));
  expect_same(heed::attention(q.array(), k.array(), v.array()));
}

TEST_F(PlainEigen, StridedMapsAreReadByTheirStrides) {
  Eigen::MatrixXf wide = Eigen::MatrixXf::Constant(2 * 21, 3 * 20, std::numeric_limits<float>::quiet_NaN());
  for (Index i = 0; i < 21; ++i) {
    for (Index j = 0; j < 20; ++j) wide(2 * i, 3 * j) = q(i, j);
  }
  const Eigen::Map<const Eigen::MatrixXf, Eigen::Unaligned, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>> every_other(
      wide.data(), 21, 20, {3 * wide.outerStride(), 2});
  expect_same(heed::attention(every_other, k, v));
}

TEST_F(PlainEigen, FixedSizesAndVectors) {
  const Eigen::Matrix<float, 2, 3> small_q = Eigen::Matrix<float, 2, 3>::Ones();
  const Eigen::Matrix<float, 4, 3, Eigen::RowMajor> small_k = Eigen::Matrix<float, 4, 3>::Zero();
  const Eigen::Vector4f small_v(1, 2, 3, 6);
  const RowMajor out = heed::attention(small_q, small_k, small_v);
  ASSERT_EQ(out.rows(), 2);
  ASSERT_EQ(out.cols(), 1);
  EXPECT_EQ(out(0, 0), 3);
  EXPECT_EQ(out(1, 0), 3);
}

TEST_F(PlainEigen, OutputsMayBeBlocksOfAnyOrder) {
  heed::Context context;
  const float guard = -77;
  Eigen::MatrixXf columns = Eigen::MatrixXf::Constant(30, 15, guard);
  heed::attention_into(columns.block(4, 2, 21, 9), q, k, v, context);
  expect_same(columns.block(4, 2, 21, 9));
  RowMajor rows = RowMajor::Constant(30, 15, guard);
  heed::attention_into(rows.block(4, 2, 21, 9), q, k, v, context);
  expect_same(rows.block(4, 2, 21, 9));
  for (Index i = 0; i < 30; ++i) {
    for (Index j = 0; j < 15; ++j) {
      if (i >= 4 && i < 25 && j >= 2 && j < 11) continue;
      EXPECT_EQ(columns(i, j), guard);
      EXPECT_EQ(rows(i, j), guard);
    }
  }
}

TEST_F(PlainEigen, WeightsAndStatisticsComeAlong) {
  const auto [out, weights] = heed::attention_with_weights(q, k, v);
  static_assert(std::is_same_v<std::remove_cvref_t<decltype(weights)>, RowMajor>);
  expect_same(out);
  ASSERT_EQ(weights.rows(), 21);
  ASSERT_EQ(weights.cols(), 37);
  for (Index i = 0; i < 21; ++i) {
    float sum = 0;
    for (Index j = 0; j < 37; ++j) sum += weights(i, j);
    EXPECT_NEAR(sum, 1, 1e-5);
  }
  const auto s = heed::attention_with_statistics(q, k, v);
  expect_same(s.out);
  EXPECT_EQ(s.maximum.extents(), (heed::Extents<3>{1, 1, 21}));
}

TEST_F(PlainEigen, NarrowKeysAndValuesStandBesideFloatQueries) {
  const auto rounded = [](const Eigen::MatrixXf& m) { return m.cast<heed::bfloat16>().eval(); };
  const auto k16 = rounded(k), v16 = rounded(v);
  const RowMajor out = heed::attention(q, k16, v16);
  const Eigen::MatrixXf k32 = k16.cast<float>(), v32 = v16.cast<float>();
  expected = heed::attention(q, k32, v32);
  expect_same(out);
}

TEST(Ranks, TensorsOfRankTwoAndThreeKeepTheirRank) {
  Random random(22);
  const auto q = normal_tensor<float, 4>({1, 2, 9, 8}, random), k = normal_tensor<float, 4>({1, 2, 13, 8}, random);
  const auto v = normal_tensor<float, 4>({1, 2, 13, 5}, random);
  const heed::Tensor<float, 4> expected = heed::attention(q, k, v);

  const heed::Tensor<float, 3> three = heed::attention(q.view()[0], k.view()[0], v.view()[0]);
  EXPECT_TRUE(same_bits(three.view(), expected.view()[0]));
  for (int h = 0; h < 2; ++h) {
    const heed::Tensor<float, 2> two = heed::attention(q.view()[0][h], k.view()[0][h], v.view()[0][h]);
    EXPECT_TRUE(same_bits(std::as_const(two).view(), expected.view()[0][h]));
  }
  const auto with_weights = heed::attention_with_weights(q.view()[0], k.view()[0], v.view()[0]);
  EXPECT_EQ(with_weights.weights.extents(), (heed::Extents<3>{2, 9, 13}));
}

TEST(Ranks, SplittingHeadsIsAChangeOfStrides) {
  // Memory (B, L, H·D) read as (B, H, L, D), and written so.
  Random random(23);
  constexpr Index B = 2, L = 33, H = 3, D = 8;
  const auto q = normal_tensor<float, 4>({B, H, L, D}, random), k = normal_tensor<float, 4>({B, H, L, D}, random);
  const auto v = normal_tensor<float, 4>({B, H, L, D}, random);
  const auto expected = heed::attention(q, k, v, heed::Causal{});

  heed::Tensor<float, 3> packed(B, L, 3 * H * D), joined(B, L, H * D);
  const auto heads = [&](heed::Tensor<float, 3>& x, Index first) {
    const Index row = x.extent(2);
    return heed::TensorView<float, 4>(x.data() + first, {B, H, L, D}, {L * row, D, row, 1});
  };
  const auto copy = [&](const auto& from, const heed::TensorView<float, 4>& to) {
    for (Index b = 0; b < B; ++b) {
      for (Index h = 0; h < H; ++h) to.matrix(b, h) = from.matrix(b, h);
    }
  };
  copy(q, heads(packed, 0));
  copy(k, heads(packed, H * D));
  copy(v, heads(packed, 2 * H * D));
  heed::Context context;
  heed::attention_into(heads(joined, 0), heads(packed, 0), heads(packed, H * D), heads(packed, 2 * H * D),
                       heed::Causal{}, context);
  EXPECT_TRUE(same_bits(heads(joined, 0), std::as_const(expected).view()));
}

}  // namespace
}  // namespace heed_test
