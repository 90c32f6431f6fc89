// SPDX-License-Identifier: MIT
#include <type_traits>

#include <Eigen/Core>
#include <gtest/gtest.h>

#include <heed/core/arguments.hpp>
#include <heed/core/scalar.hpp>

#include "common/allocation_counter.hpp"

namespace {

using heed::Tensor;
using heed::TensorView;
using heed::Workspace;
using heed::detail::make_result;
using heed::detail::read_as;
using heed::detail::write_as;

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

class ReadAs : public testing::Test {
 protected:
  Workspace workspace_;
  Workspace::Frame frame_{workspace_};
};

TEST_F(ReadAs, AddsLeadingExtentsOfOne) {
  Tensor<float, 2> x(3, 4);
  x(2, 1) = 5;
  const TensorView<const float, 4> v = read_as<4>(x, workspace_);
  EXPECT_EQ(v.extents(), (heed::Extents<4>{1, 1, 3, 4}));
  EXPECT_EQ(&v(0, 0, 2, 1), &x(2, 1));
  const Tensor<float, 3> y(2, 3, 4);
  const TensorView<const float, 3> batch = read_as<3>(y, workspace_);
  EXPECT_EQ(batch.extents(), (heed::Extents<3>{2, 3, 4}));
}

TEST_F(ReadAs, ReadsEigenMemoryWhereItLies) {
  const Eigen::MatrixXf m = Eigen::MatrixXf::Random(5, 6);
  const auto whole = read_as<3>(m, workspace_), block = read_as<3>(m.block(1, 2, 3, 4), workspace_),
             transposed = read_as<3>(m.transpose(), workspace_);
  EXPECT_EQ(&whole(0, 4, 5), &m(4, 5));
  EXPECT_EQ(&block(0, 2, 3), &m(3, 5));
  EXPECT_EQ(&transposed(0, 5, 4), &m(4, 5));
  EXPECT_EQ(workspace_.peak(), 0u);
}

TEST_F(ReadAs, EvaluatesAnExpressionOnceIntoTheWorkspace) {
  const Eigen::MatrixXf a = Eigen::MatrixXf::Random(5, 6), b = Eigen::MatrixXf::Random(6, 7);
  int evaluated = 0;
  const auto counting = a.unaryExpr([&](float x) {
    ++evaluated;
    return x + 1;
  });
  const auto read = read_as<2>(counting, workspace_);
  EXPECT_EQ(evaluated, 30);
  EXPECT_EQ(read(4, 5), a(4, 5) + 1);
  EXPECT_EQ(evaluated, 30);
  EXPECT_EQ(workspace_.peak(), Workspace::bytes_of<float>(30));

  const auto sum = read_as<2>(a + a, workspace_);
  EXPECT_EQ(sum(3, 2), 2 * a(3, 2));
  const auto array = read_as<2>(a.array() * a.array(), workspace_);
  EXPECT_EQ(array(3, 2), a(3, 2) * a(3, 2));
  const auto product = read_as<3>(a * b, workspace_);
  EXPECT_TRUE(product.matrix(0).isApprox(a * b));
}

TEST(ReadAsWarm, AllocatesNothingForMemoryAndCoefficientWiseExpressions) {
  const Eigen::MatrixXf a = Eigen::MatrixXf::Random(50, 60);
  Workspace workspace;
  const auto call = [&] {
    const Workspace::Frame frame(workspace);
    EXPECT_EQ(read_as<3>(a, workspace).extent(1), 50);
    EXPECT_EQ(read_as<3>(a.transpose() * 2.0f, workspace).extent(1), 60);
  };
  call();
  ASSERT_TRUE(heed_test::counts_allocations());
  EXPECT_EQ(heed_test::allocations_of(call), 0);
}

TEST(WriteAs, WritesIntoTensorsViewsAndEigen) {
  Tensor<float, 2> t(2, 3);
  write_as<4>(t)(0, 0, 1, 2) = 1;
  EXPECT_EQ(t(1, 2), 1);
  write_as<3>(t.view().transpose(0, 1))(0, 2, 0) = 2;
  EXPECT_EQ(t(0, 2), 2);

  Eigen::MatrixXf m = Eigen::MatrixXf::Zero(2, 3);
  write_as<3>(m)(0, 1, 2) = 3;
  EXPECT_EQ(m(1, 2), 3);
  write_as<3>(m.leftCols(2))(0, 1, 1) = 4;
  EXPECT_EQ(m(1, 1), 4);
  Eigen::Map<RowMajor> map(t.data(), 2, 3);
  write_as<3>(map)(0, 0, 0) = 5;
  EXPECT_EQ(t(0, 0), 5);
}

TEST(MakeResult, IsEigenForEigenAndATensorOfTheSameRankOtherwise) {
  using heed::detail::result_t;
  static_assert(std::is_same_v<result_t<Eigen::MatrixXf, float>, RowMajor>);
  static_assert(std::is_same_v<result_t<Eigen::Block<const Eigen::MatrixXf>, float>, RowMajor>);
  static_assert(std::is_same_v<result_t<TensorView<const heed::half, 3>, float>, Tensor<float, 3>>);

  const RowMajor m = make_result<Eigen::MatrixXf, float, 4>({1, 1, 3, 4});
  EXPECT_EQ(m.rows(), 3);
  EXPECT_EQ(m.cols(), 4);
  const Tensor<float, 2> t = make_result<Tensor<float, 2>, float, 4>({1, 1, 3, 4});
  EXPECT_EQ(t.extents(), (heed::Extents<2>{3, 4}));
  const Tensor<float, 4> u = make_result<Tensor<float, 4>, float, 4>({5, 2, 3, 4});
  EXPECT_EQ(u.extents(), (heed::Extents<4>{5, 2, 3, 4}));
}

}  // namespace
