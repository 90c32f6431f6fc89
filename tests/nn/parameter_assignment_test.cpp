// SPDX-License-Identifier: MIT
// layer.weight = W: every form of Eigen and tensors, what does not fit, and packed copies.
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <heed/heed.hpp>

#include "common/message_of.hpp"

namespace parameter_assignment {

using heed::Index;
using heed::Linear;
using heed::Parameter;
using heed_test::message_of;

constexpr Index kOut = 3, kIn = 4;

inline Eigen::MatrixXd weights() {
  Eigen::MatrixXd w(kOut, kIn);
  for (Index i = 0; i < kOut; ++i) {
    for (Index j = 0; j < kIn; ++j) w(i, j) = static_cast<double>(10 * i + j);
  }
  return w;
}
inline void expect_weights(const Parameter<double>& parameter) { EXPECT_EQ(parameter.matrix().matrix(), weights()); }

TEST(ParameterAssignment, TakesEigenOfAnyStorageOrderAndTensors) {
  const Eigen::MatrixXd w = weights();
  Parameter<double> weight(kOut, kIn);
  const auto expect_taken = [&](const auto& numbers) {
    weight = numbers;
    expect_weights(weight);
    heed::init::zeros(weight);
  };
  expect_taken(w);
  const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> by_rows = w;
  expect_taken(by_rows);
  expect_taken(Eigen::Matrix<double, kOut, kIn>(w));
  expect_taken(Eigen::ArrayXXd(w));
  Eigen::MatrixXd larger = Eigen::MatrixXd::Random(kOut + 2, kIn + 3);
  larger.block(1, 2, kOut, kIn) = w;
  expect_taken(larger.block(1, 2, kOut, kIn));
  expect_taken(Eigen::Map<const Eigen::MatrixXd, 0, Eigen::OuterStride<>>(&larger(1, 2), kOut, kIn,
                                                                          Eigen::OuterStride<>(kOut + 2)));
  expect_taken(Eigen::Ref<const Eigen::MatrixXd>(w));
  const Eigen::MatrixXd in_out = w.transpose();
  expect_taken(in_out.transpose());
  expect_taken(2 * w - w);
  expect_taken(w.cast<float>().cast<double>());
  expect_taken(heed::view_of(w));
  heed::Tensor<double, 2> tensor(kOut, kIn);
  tensor.matrix() = w;
  expect_taken(tensor);
  expect_taken(std::as_const(tensor).view());
}

TEST(ParameterAssignment, TakesVectorsForVectors) {
  const Eigen::VectorXd b = Eigen::VectorXd::LinSpaced(kOut, 1, 3);
  Parameter<double> bias(kOut);
  const auto expect_taken = [&](const auto& numbers) {
    bias = numbers;
    for (Index i = 0; i < kOut; ++i) EXPECT_EQ(bias.value()(i), b(i));
    heed::init::zeros(bias);
  };
  expect_taken(b);
  expect_taken(Eigen::RowVectorXd(b.transpose()));
  expect_taken(Eigen::Vector3d(b));
  const Eigen::MatrixXd column = b;
  expect_taken(column);
  Eigen::VectorXd spread(2 * kOut);
  spread.setRandom();
  Eigen::Map<Eigen::VectorXd, 0, Eigen::InnerStride<2>> second(spread.data(), kOut);
  second = b;
  expect_taken(second);
  expect_taken(spread(Eigen::seqN(0, kOut, 2)));
  heed::Tensor<double, 1> tensor(kOut);
  std::copy_n(b.data(), kOut, tensor.data());
  expect_taken(tensor);
}

TEST(ParameterAssignment, RefusesOtherShapesAndSaysWhetherTheTransposeFits) {
  Parameter<double> weight(kOut, kIn), bias(kOut), none;
  weight = weights();
  EXPECT_EQ(
      message_of<heed::ShapeError>([&] { weight = weights().transpose(); }),
      "heed::Parameter: the weight is (3, 4) but the matrix is (4, 3); its transpose fits: weights are (out, in), "
      "assign W.transpose()");
  EXPECT_EQ(message_of<heed::ShapeError>([&] { weight = Eigen::MatrixXd(2, 4); }),
            "heed::Parameter: the weight is (3, 4) but the matrix is (2, 4); weights are (out, in): give a matrix of "
            "that shape");
  EXPECT_THROW(weight = Eigen::VectorXd(kOut * kIn), heed::ShapeError);
  EXPECT_EQ(message_of<heed::ShapeError>([&] { bias = Eigen::VectorXd(4); }),
            "heed::Parameter: a vector of 3 numbers can't take a matrix (4, 1); give 3 numbers");
  EXPECT_THROW(bias = Eigen::MatrixXd(kOut, 2), heed::ShapeError);
  EXPECT_THROW(none = Eigen::VectorXd(kOut), heed::ValueError);
  expect_weights(weight);
}

TEST(ParameterAssignment, MayReadTheParameterItWrites) {
  Parameter<double> weight(2, 2);
  weight = (Eigen::Matrix2d() << 1, 2, 3, 4).finished();
  weight = weight.matrix().matrix().transpose();
  EXPECT_EQ(weight.matrix().matrix(), (Eigen::Matrix2d() << 1, 3, 2, 4).finished());
  weight = weight.matrix().transpose(0, 1);
  EXPECT_EQ(weight.matrix().matrix(), (Eigen::Matrix2d() << 1, 2, 3, 4).finished());
}

TEST(ParameterAssignment, DropsPackedCopiesAlsoOfReleasedWeights) {
  const Eigen::MatrixXd w = weights(), x = Eigen::MatrixXd::Random(5, kIn);
  for (const bool release : {false, true}) {
    Linear<double> linear({.in_features = kIn, .out_features = kOut});
    linear.weight = Eigen::MatrixXd::Zero(kOut, kIn);
    linear.bias = Eigen::VectorXd::Ones(kOut);
    linear.pack({.release = release});
    linear.weight = w;
    EXPECT_TRUE(linear(x).isApprox(x * w.transpose() + Eigen::MatrixXd::Ones(5, kOut)));
    EXPECT_FALSE(linear.weight.released());
  }
}

TEST(ParameterAssignment, ReachesTheParametersOfWholeBlocks) {
  heed::EncoderLayer<float> block({.embed_dim = 8, .num_heads = 2, .ffn_dim = 6});
  const Eigen::MatrixXf joint = Eigen::MatrixXf::Random(24, 8);
  block.self_attn.in_proj_weight = joint;
  block.norm1.weight = Eigen::VectorXf::Constant(8, 2);
  EXPECT_EQ(block.self_attn.in_proj_weight.matrix().matrix(), joint);
  EXPECT_EQ(block.norm1.weight.value()(7), 2);
  EXPECT_THROW(block.feed_forward.linear1.weight = joint, heed::ShapeError);
}

}  // namespace parameter_assignment
