// SPDX-License-Identifier: MIT
// Layers as other projects have them (float masks, zero keys, projections without bias, fused weights), against plain
// formulas in Eigen.
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <heed/heed.hpp>

#include "nn/backward_checks.hpp"

namespace ported_layers {

using namespace backward_checks;
using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr Index kB = 2, kL = 5, kE = 8, kH = 2, kD = kE / kH;

struct Weights {
  MatrixXd q = MatrixXd::Random(kE, kE), k = MatrixXd::Random(kE, kE), v = MatrixXd::Random(kE, kE),
           out = MatrixXd::Random(kE, kE);
  VectorXd bq = VectorXd::Random(kE), bk = VectorXd::Random(kE), bv = VectorXd::Random(kE), bout = VectorXd::Random(kE);
};

inline heed::MultiHeadAttention<double> layer_of(const Weights& w) {
  heed::MultiHeadAttention<double> mha({.embed_dim = kE, .num_heads = kH});
  mha.in_proj_weight = (MatrixXd(3 * kE, kE) << w.q, w.k, w.v).finished();
  mha.in_proj_bias = (VectorXd(3 * kE) << w.bq, w.bk, w.bv).finished();
  mha.out_proj.weight = w.out;
  mha.out_proj.bias = w.bout;
  return mha;
}

/// y and the weights of one sample by the textbook; bias(h, q, k) is added to the scores, and zero_key is a further key
/// and value of zeros.
struct Reference {
  MatrixXd y;
  std::vector<MatrixXd> weights;
};
template <class Bias>
Reference reference(const Weights& w, const MatrixXd& x, bool zero_key, Bias&& bias) {
  const Index L = x.rows(), keys = L + (zero_key ? 1 : 0);
  const MatrixXd q = (x * w.q.transpose()).rowwise() + w.bq.transpose();
  MatrixXd k = MatrixXd::Zero(keys, kE), v = MatrixXd::Zero(keys, kE);
  k.topRows(L) = (x * w.k.transpose()).rowwise() + w.bk.transpose();
  v.topRows(L) = (x * w.v.transpose()).rowwise() + w.bv.transpose();
  MatrixXd joined(L, kE);
  Reference result;
  for (Index h = 0; h < kH; ++h) {
    MatrixXd s = q.middleCols(h * kD, kD) * k.middleCols(h * kD, kD).transpose() / std::sqrt(double(kD));
    for (Index i = 0; i < L; ++i) {
      for (Index j = 0; j < L; ++j) s(i, j) += bias(h, i, j);
    }
    MatrixXd p = (s.colwise() - s.rowwise().maxCoeff()).unaryExpr([](double value) { return std::exp(value); });
    p.array().colwise() /= p.rowwise().sum().array().eval();
    joined.middleCols(h * kD, kD) = p * v.middleCols(h * kD, kD);
    result.weights.push_back(p);
  }
  result.y = (joined * w.out.transpose()).rowwise() + w.bout.transpose();
  return result;
}

// F01: attn_mask of floats as (L, S), (B, H, L, S), and PyTorch's (B·H, L, S), also with -inf for hidden pairs.
TEST(PortedLayers, F01_NumbersAddedToTheScores) {
  const Weights w;
  const auto mha = layer_of(w);
  const auto x = random_tensor<double, 3>({kB, kL, kE}, 7);
  auto shared = random_tensor<double, 2>({kL, kL}, 31);
  auto each = random_tensor<double, 3>({kB * kH, kL, kL}, 32);
  for (Index i = 0; i + 1 < kL; ++i) {
    shared(i, i + 1) = -std::numeric_limits<double>::infinity();
    each(1, i, i + 1) = -std::numeric_limits<double>::infinity();
  }
  const TensorView<const double, 4> by_heads(each.data(), {kB, kH, kL, kL});
  const auto expect = [&](const auto& bias, auto&& at) {
    const auto [y, weights] = mha.with_weights(x, bias);
    for (Index b = 0; b < kB; ++b) {
      const auto expected = reference(w, x.matrix(b), false, [&](Index h, Index q, Index k) { return at(b, h, q, k); });
      EXPECT_TRUE(y.matrix(b).isApprox(expected.y, 1e-13));
      for (Index h = 0; h < kH; ++h) {
        EXPECT_TRUE(weights.matrix(b, h).isApprox(expected.weights[static_cast<std::size_t>(h)], 1e-13));
      }
    }
  };
  expect(heed::Bias(shared), [&](Index, Index, Index q, Index k) { return shared(q, k); });
  expect(heed::Bias(by_heads), [&](Index b, Index h, Index q, Index k) { return each(b * kH + h, q, k); });
}

// F13: add_zero_attn=True is a sink of 0 in every head.
TEST(PortedLayers, F13_AKeyAndAValueOfZeros) {
  const Weights w;
  const auto mha = layer_of(w);
  const auto x = random_tensor<double, 3>({kB, kL, kE}, 7);
  const std::vector<double> zeros(kH);
  const auto y = mha(x, heed::AttentionOptions{.sinks = zeros});
  for (Index b = 0; b < kB; ++b) {
    const auto expected = reference(w, x.matrix(b), true, [](Index, Index, Index) { return 0.0; });
    EXPECT_TRUE(y.matrix(b).isApprox(expected.y, 1e-13));
  }
}

// F03: Whisper's keys have no bias; zeros stand for it. A bias of keys changes nothing, one of the others does.
TEST(PortedLayers, F03_ProjectionsWithoutBias) {
  Weights w;
  const auto x = random_tensor<double, 3>({kB, kL, kE}, 7);
  const auto with = layer_of(w)(x);
  for (VectorXd* absent : {&w.bk, &w.bq, &w.bv, &w.bout}) {
    absent->setZero();
    const auto y = layer_of(w)(x);
    EXPECT_EQ(y.matrix(0).isApprox(with.matrix(0), 1e-12), absent == &w.bk);
    const auto expected = reference(w, x.matrix(1), false, [](Index, Index, Index) { return 0.0; });
    EXPECT_TRUE(y.matrix(1).isApprox(expected.y, 1e-13));
  }
}

// F05: gate_up_proj (2F, E) holds the gate first, then the other projection.
TEST(PortedLayers, F05_GateAndUpInOneMatrix) {
  constexpr Index kF = 6;
  const MatrixXd gate_up = MatrixXd::Random(2 * kF, kE), down = MatrixXd::Random(kE, kF), x = MatrixXd::Random(3, kE);
  heed::FeedForward<double> mlp(
      {.embed_dim = kE, .ffn_dim = kF, .activation = heed::Activation::SiLU, .gated = true, .bias = false});
  mlp.gate->weight = gate_up.topRows(kF);
  mlp.linear1.weight = gate_up.bottomRows(kF);
  mlp.linear2.weight = down;
  const Eigen::ArrayXXd gate = (x * gate_up.topRows(kF).transpose()).array();
  const Eigen::ArrayXXd up = (x * gate_up.bottomRows(kF).transpose()).array();
  const MatrixXd hidden = gate.unaryExpr([](double value) { return value / (1 + std::exp(-value)); }) * up;
  EXPECT_TRUE(mlp(x).isApprox(hidden * down.transpose(), 1e-13));
}

// LayerScale, a factor for each feature of a branch, folds into the branch's last product.
TEST(PortedLayers, AFactorPerFeatureFoldsIntoTheLastProduct) {
  Weights w;
  const auto x = random_tensor<double, 3>({kB, kL, kE}, 7);
  const VectorXd gamma = VectorXd::Random(kE);
  auto mha = layer_of(w);
  const auto plain = mha(x);
  mha.out_proj.weight = gamma.asDiagonal() * w.out;
  mha.out_proj.bias = gamma.cwiseProduct(w.bout);
  const auto y = mha(x);
  for (Index b = 0; b < kB; ++b) EXPECT_TRUE(y.matrix(b).isApprox(plain.matrix(b) * gamma.asDiagonal(), 1e-13));
}

// F45: nothing to attend to leaves out_proj's bias in every row, also in a decoder block, where x goes on.
TEST(PortedLayers, F45_AnEmptyMemory) {
  const Weights w;
  const auto mha = layer_of(w);
  const auto x = random_tensor<double, 3>({kB, 3, kE}, 7);
  const Tensor<double, 3> nothing(kB, 0, kE);
  const auto y = mha(x, nothing, nothing);
  for (Index b = 0; b < kB; ++b) EXPECT_EQ(y.matrix(b), w.bout.transpose().replicate(3, 1));

  heed::DecoderLayer<double> block({.embed_dim = kE, .num_heads = kH, .ffn_dim = 6});
  fill_parameters<double>(block, 3);
  const std::vector<int> none(kB);
  const auto memory = random_tensor<double, 3>({kB, 2, kE}, 8);
  const auto hidden = block(x, memory, {heed::Causal{}, heed::Padding(none)});
  const auto empty = block(x, nothing, heed::Causal{});
  for (Index b = 0; b < kB; ++b) EXPECT_TRUE(empty.matrix(b).isApprox(hidden.matrix(b), 1e-13));
}

}  // namespace ported_layers
