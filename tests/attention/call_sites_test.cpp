// SPDX-License-Identifier: MIT
// The calls that a program makes, in the form in which it writes them, against the same result by another way.
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <heed/heed.hpp>
#include <heed/inspect.hpp>

#include "common/allocation_counter.hpp"
#include "common/error_budget.hpp"
#include "common/temporary_directory.hpp"
#include "common/views.hpp"

namespace heed_test {
namespace {

using heed::Alibi;
using heed::AttentionOptions;
using heed::Causal;
using heed::Context;
using heed::Padding;
using heed::Scale;
using heed::SoftCap;
using heed::Tensor;
using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr Index B = 2, H = 4, L = 7, D = 6, E = H * D;

/// softmax(f(scale·q·kᵀ) where visible)·v, row by row as in a textbook.
template <class Visible, class Modify>
RowMajor textbook(const Eigen::MatrixXd& q, const Eigen::MatrixXd& k, const Eigen::MatrixXd& v, double scale,
                  Visible&& visible, Modify&& modify) {
  RowMajor out = RowMajor::Zero(q.rows(), v.cols());
  for (Index i = 0; i < q.rows(); ++i) {
    double sum = 0;
    for (Index j = 0; j < k.rows(); ++j) {
      if (!visible(i, j)) continue;
      const double weight = std::exp(modify(scale * q.row(i).dot(k.row(j)), i, j));
      out.row(i) += weight * v.row(j);
      sum += weight;
    }
    out.row(i) /= sum;
  }
  return out;
}
const auto everything = [](Index, Index) { return true; };
const auto earlier = [](Index i, Index j) { return j <= i; };
const auto as_it_is = [](double score, Index, Index) { return score; };

template <class X, class Y>
void expect_close(const X& x, const Y& y, double tolerance = 1e-12) {
  ASSERT_EQ(x.rows(), y.rows());
  ASSERT_EQ(x.cols(), y.cols());
  EXPECT_LE((x - y).cwiseAbs().maxCoeff(), tolerance * (1 + y.cwiseAbs().maxCoeff()));
}

/// Element by element: GCC 12 warns about Eigen's blocked product of double.
template <class X, class Y>
RowMajor product(const Eigen::MatrixBase<X>& x, const Eigen::MatrixBase<Y>& y) {
  return x.derived().lazyProduct(y.derived());
}

class CallSites : public ::testing::Test {
 protected:
  Random random{5};
  Tensor<double, 4> q = normal_tensor<double, 4>({B, H, L, D}, random);
  Tensor<double, 4> k = normal_tensor<double, 4>({B, H, L, D}, random);
  Tensor<double, 4> v = normal_tensor<double, 4>({B, H, L, D}, random);
  Tensor<double, 4> dout = normal_tensor<double, 4>({B, H, L, D}, random);
  Tensor<double, 3> x = normal_tensor<double, 3>({B, L, E}, random);
  std::vector<int> lengths{7, 4};
  const double scale = 1 / std::sqrt(static_cast<double>(D));
  Context context;

  Eigen::MatrixXd of_head(const Tensor<double, 4>& t, Index b, Index h) const { return t.matrix(b, h); }
  template <class Visible, class Modify>
  void expect_textbook(const Tensor<double, 4>& out, double factor, Visible&& visible, Modify&& modify) const {
    for (Index b = 0; b < B; ++b) {
      for (Index h = 0; h < H; ++h) {
        expect_close(of_head(out, b, h), textbook(
                                             of_head(q, b, h), of_head(k, b, h), of_head(v, b, h), factor,
                                             [&](Index i, Index j) { return visible(b, i, j); },
                                             [&](double s, Index i, Index j) { return modify(s, h, i, j); }));
      }
    }
  }
};
const auto all_of_batch = [](Index, Index, Index) { return true; };
const auto unmodified = [](double s, Index, Index, Index) { return s; };

// ---- tasks

TEST_F(CallSites, CausalOnEigen) {
  const Eigen::MatrixXd a = of_head(q, 0, 0), b = of_head(k, 0, 0), c = of_head(v, 0, 0);
  expect_close(heed::attention(a, b, c, Causal{}), textbook(a, b, c, scale, earlier, as_it_is));
}

TEST_F(CallSites, APaddedBatchInThreads) {
  heed::ThreadPool pool(2);
  Context threads(pool);
  const auto out = heed::attention(q, k, v, Padding(lengths), threads);
  expect_textbook(
      out, scale, [&](Index b, Index, Index j) { return j < lengths[static_cast<std::size_t>(b)]; }, unmodified);
}

TEST_F(CallSites, SoftCapAndScaleWithoutAMask) {
  const auto out = heed::attention(q, k, v, SoftCap(2), Scale{0.5}, context);
  expect_textbook(out, 0.5, all_of_batch, [](double s, Index, Index, Index) { return 2 * std::tanh(s / 2); });
}

TEST_F(CallSites, HeadsOfAFusedProjection) {
  const auto qkv = normal_tensor<double, 3>({B, L, 3 * E}, random);
  const auto [qs, ks, vs] = heed::split_qkv(qkv, H);
  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < H; ++h) {
      for (Index l = 0; l < L; ++l) {
        for (Index d = 0; d < D; ++d) {
          q(b, h, l, d) = qkv(b, l, h * D + d);
          k(b, h, l, d) = qkv(b, l, E + h * D + d);
          v(b, h, l, d) = qkv(b, l, 2 * E + h * D + d);
        }
      }
    }
  }
  EXPECT_TRUE(same_bits(heed::attention(qs, ks, vs, Causal{}), heed::attention(q, k, v, Causal{})));
}

TEST_F(CallSites, OneStepOfDecodingReadsAPrefixOfItsMemory) {
  const Tensor<double, 4> expected = heed::attention(q, k, v, Causal{});
  Tensor<double, 4> out(B, H, 1, D);
  for (Index n = 1; n <= L; ++n) {
    const auto query = q.view().slice(2, n - 1, 1);
    heed::attention_into(out, query, k.view().slice(2, 0, n), v.view().slice(2, 0, n), context);
    const auto row = expected.view().slice(2, n - 1, 1);
    EXPECT_LE((deviation<double, double, 4>(std::as_const(out).view(), row).error), 1e-14) << n;
  }
}

TEST_F(CallSites, ForwardAndBackward) {
  Tensor<double, 4> out(q.extents()), dq(q.extents()), dk(k.extents()), dv(v.extents());
  heed::AttentionCache<double> cache;
  heed::attention_into(out, q, k, v, Causal{}, SoftCap(3), cache, context);
  heed::attention_backward_into({dq, dk, dv}, dout, cache, context);
  const auto loss = [&] {
    const auto o = heed::attention(q, k, v, Causal{}, SoftCap(3), context);
    double sum = 0;
    for (Index i = 0; i < o.size(); ++i) sum += o.data()[i] * dout.data()[i];
    return sum;
  };
  const auto flat = [](Tensor<double, 4>& t) { return heed::TensorView<double, 1>(t.data(), {t.size()}); };
  const auto report =
      heed::gradcheck(loss, {{"q", flat(q), flat(dq)}, {"k", flat(k), flat(dk)}, {"v", flat(v), flat(dv)}});
  EXPECT_TRUE(report.passed) << report.text();
}

TEST_F(CallSites, ALayerOnEigenAllocatesNothing) {
  heed::EncoderLayer<double> block({.embed_dim = E, .num_heads = H});
  heed::Random seed(1);
  block.initialize(seed);
  const RowMajor in = x.matrix(0);
  RowMajor y(L, E);
  block.forward(in, Causal{}, y, context);
  const Tensor<double, 3> expected = block(x, Causal{}, context);
  EXPECT_TRUE(same_bits(heed::view_of(y), expected.view()[0]));
  if (counts_allocations()) {
    EXPECT_EQ(allocations_of([&] { block.forward(in, Causal{}, y, context); }), 0);
  }
}

TEST_F(CallSites, AlibiInALayer) {
  heed::MultiHeadAttention<double> mha({.embed_dim = E, .num_heads = H});
  heed::Random seed(1);
  mha.initialize(seed);
  const Tensor<double, 3> y = mha(x, Causal{}, Alibi(H));
  // Biases start as zeros.
  const Eigen::MatrixXd w_in = mha.in_proj_weight.matrix().matrix(), w_out = mha.out_proj.weight.matrix().matrix();
  for (Index b = 0; b < B; ++b) {
    const RowMajor qkv = product(x.matrix(b), w_in.transpose());
    RowMajor attended(L, E);
    for (Index h = 0; h < H; ++h) {
      const double slope = Alibi::slope(H, h);
      attended.middleCols(h * D, D) =
          textbook(qkv.middleCols(h * D, D), qkv.middleCols(E + h * D, D), qkv.middleCols(2 * E + h * D, D), scale,
                   earlier, [&](double s, Index i, Index j) { return s - slope * static_cast<double>(i - j); });
    }
    expect_close(RowMajor(y.matrix(b)), product(attended, w_out.transpose()));
  }
}

TEST_F(CallSites, AMaskChosenAtRunTime) {
  for (const bool causal : {false, true}) {
    heed::AnyMask mask = causal ? heed::AnyMask(Causal{}) : heed::NoMask{};
    const auto out = heed::attention(q, k, v, mask);
    EXPECT_TRUE(same_bits(out, causal ? heed::attention(q, k, v, Causal{}) : heed::attention(q, k, v)));
  }
}

/// A model with everything that a user writes for its parameters: one list.
struct Classifier : heed::Module<Classifier> {
  heed::Linear<double> embedding{E, E};
  heed::Encoder<double> encoder{{.num_layers = 2, .layer = {.embed_dim = E, .num_heads = H}}};
  heed::Linear<double> head{E, 3};

  static void members(auto&& f) {
    f("embedding", &Classifier::embedding);
    f("encoder", &Classifier::encoder);
    f("head", &Classifier::head);
  }
};

TEST_F(CallSites, TheParametersOfAModel) {
  const Classifier model;
  EXPECT_EQ(heed::parameter_count(model), heed::parameter_count(model.embedding) +
                                              heed::parameter_count(model.encoder) + heed::parameter_count(model.head));
  std::vector<std::string> names;
  model.visit("", [&](std::string_view name, const auto&) { names.emplace_back(name); });
  EXPECT_EQ(names.front(), "embedding.weight");
  EXPECT_EQ(names[2], "encoder.layers.0.self_attn.in_proj_weight");
  EXPECT_EQ(names.back(), "head.bias");
}

TEST_F(CallSites, AStepOfTraining) {
  const auto dy = normal_tensor<double, 3>({B, L, E}, random, 100);
  const heed::EncoderLayerOptions options{.embed_dim = E, .num_heads = H};
  heed::EncoderLayer<double> block(options), other(options);
  for (auto* one : {&block, &other}) {
    heed::Random seed(1);
    one->initialize(seed);
  }
  heed::EncoderLayer<double>::Cache cache, other_cache;
  Tensor<double, 3> y(x.extents());

  heed::SGD<double> optimizer(block, {.learning_rate = 0.1});
  block.forward(x, Causal{}, y, cache, context);
  block.backward(dy, heed::kNotWanted, cache, context);
  optimizer.step(context, {.clip = 1});

  Tensor<double, 3> dx(x.extents());
  other.forward(x, Causal{}, y, other_cache, context);
  other.backward(dy, dx, other_cache, context);
  heed::ParameterList<double> parameters(other);
  double squares = 0;
  for (const auto& [name, parameter] : parameters) {
    for (Index i = 0; i < parameter->size(); ++i) squares += parameter->grad()(i) * parameter->grad()(i);
  }
  ASSERT_GT(squares, 1);
  std::vector<double> expected;
  for (const auto& [name, parameter] : parameters) {
    for (Index i = 0; i < parameter->size(); ++i)
      expected.push_back(parameter->value()(i) - 0.1 * parameter->grad()(i) / std::sqrt(squares));
  }
  auto at = expected.begin();
  block.visit("", [&](std::string_view name, const heed::Parameter<double>& parameter) {
    for (Index i = 0; i < parameter.size(); ++i) EXPECT_NEAR(parameter.value()(i), *at++, 1e-12) << name;
  });
}

TEST_F(CallSites, WeightsFromAFileAndALookAtTheHeads) {
  const TemporaryDirectory directory;
  const std::string path = directory.path("encoder.safetensors");
  Classifier trained;
  heed::Random seed(1);
  trained.initialize(seed);
  heed::save_parameters(trained, path);

  heed::Encoder<double> encoder(trained.encoder.options());
  heed::load_parameters(encoder, path,
                        {.rules = {{.parameter = "*", .file = {"encoder.*"}}}, .ignored = {"embedding.*", "head.*"}});
  const heed::Recorder recorder = heed::record(context, [&] { encoder(x, Causal{}, context); });

  EXPECT_EQ(context.observer, nullptr);
  EXPECT_TRUE(same_bits(encoder(x, Causal{}), trained.encoder(x, Causal{})));
  const auto weights = encoder.layers[0].self_attn.with_weights(x, Causal{}).weights;
  EXPECT_TRUE(same_bits(recorder.of("layers.0.self_attn").weights, weights));
  EXPECT_THROW(heed::record(context, [&] { encoder(Tensor<double, 3>(1, 2, 3), context); }), heed::ShapeError);
  EXPECT_EQ(context.observer, nullptr);
}

// ---- parts

TEST_F(CallSites, PartsComeInAnyOrder) {
  const auto expected = heed::attention(q, k, v, heed::Attention(Causal{}, SoftCap(2), Scale{0.5}));
  EXPECT_TRUE(same_bits(expected, heed::attention(q, k, v, Causal{}, SoftCap(2), Scale{0.5}, context)));
  EXPECT_TRUE(same_bits(expected, heed::attention(q, k, v, context, Scale{0.5}, Causal{}, SoftCap(2))));
  EXPECT_TRUE(same_bits(expected, heed::attention(q, k, v, AttentionOptions{.scale = 0.5}, SoftCap(2), Causal{})));
  EXPECT_TRUE(
      same_bits(expected, heed::attention(q, k, v, context, heed::Attention(Scale{0.5}, SoftCap(2), Causal{}))));
  expect_textbook(
      expected, 0.5, [](Index, Index i, Index j) { return j <= i; },
      [](double s, Index, Index, Index) { return 2 * std::tanh(s / 2); });
}

TEST_F(CallSites, EachPartMayBeTheOnlyOne) {
  const auto plain = heed::attention(q, k, v);
  expect_textbook(plain, scale, all_of_batch, unmodified);
  EXPECT_TRUE(same_bits(plain, heed::attention(q, k, v, context)));
  EXPECT_TRUE(same_bits(plain, heed::attention(q, k, v, AttentionOptions{}, context)));
  EXPECT_TRUE(same_bits(heed::attention(q, k, v, Causal{}), heed::attention(q, k, v, Causal{}, context)));
  EXPECT_TRUE(same_bits(heed::attention(q, k, v, SoftCap(2)), heed::attention(q, k, v, heed::NoMask{}, SoftCap(2))));
}

TEST_F(CallSites, WeightsAndCachesNeedNoMask) {
  Tensor<double, 4> out(q.extents()), weights(B, H, L, L), cached(q.extents());
  heed::AttentionCache<double> cache;
  heed::attention_with_weights_into(out, weights, q, k, v, context);
  heed::attention_into(cached, q, k, v, cache, context);
  const auto expected = heed::attention_with_weights(q, k, v);
  EXPECT_TRUE(same_bits(out, expected.out));
  EXPECT_TRUE(same_bits(cached, expected.out));
  EXPECT_TRUE(same_bits(weights, expected.weights));
}

TEST_F(CallSites, GradientsOfEigenAreEigen) {
  const RowMajor a = of_head(q, 0, 0), b = of_head(k, 0, 0), c = of_head(v, 0, 0), d = of_head(dout, 0, 0);
  const auto [dq, dk, dv] = heed::attention_backward(d, a, b, c, Causal{}, Scale{0.5});
  static_assert(std::is_same_v<std::remove_const_t<decltype(dq)>, RowMajor>);
  // By the rules of the softmax: P its weights, dP = d·cᵀ, dS = P ∘ (dP - rowsum(P ∘ dP)).
  const RowMajor p = heed::attention_with_weights(a, b, c, Causal{}, Scale{0.5}).weights;
  const RowMajor dp = product(d, c.transpose());
  const RowMajor ds = p.cwiseProduct(dp.colwise() - p.cwiseProduct(dp).rowwise().sum());
  expect_close(dq, product(0.5 * ds, b));
  expect_close(dk, product(0.5 * ds.transpose(), a));
  expect_close(dv, product(p.transpose(), d));

  // Into matrices of any storage order, and blocks.
  RowMajor out(L, D), into_v(L, D);
  Eigen::MatrixXd into_q(L, D), around = Eigen::MatrixXd::Zero(L + 2, D + 3);
  heed::AttentionCache<double> cache;
  heed::attention_into(out, a, b, c, Causal{}, Scale{0.5}, cache, context);
  heed::attention_backward_into({into_q, around.block(1, 2, L, D), into_v}, d, cache, context);
  EXPECT_EQ(into_q, dq);
  EXPECT_EQ(Eigen::MatrixXd(around.block(1, 2, L, D)), dk);
  EXPECT_EQ(into_v, dv);
  EXPECT_EQ(around.row(0).norm() + around.col(1).norm() + around.col(D + 2).norm(), 0);
  heed::attention_backward_into({into_q, heed::kNotWanted, heed::kNotWanted}, d, cache, context);
  EXPECT_EQ(into_q, dq);
}

TEST_F(CallSites, ALinearLayerTakesEigenAndRank2) {
  heed::Linear<double> linear(E, 5);
  heed::Random seed(1);
  linear.initialize(seed);
  const Tensor<double, 3> expected = linear(x);
  const Eigen::MatrixXd in = x.matrix(1);
  Eigen::MatrixXd y(L, 5);
  linear.forward(in, y, context);
  RowMajor products = product(in, linear.weight.matrix().matrix().transpose());
  for (Index i = 0; i < 5; ++i) products.col(i).array() += linear.bias.value()(i);
  expect_close(y, products);
  Tensor<double, 2> rank2(L, 5);
  linear.forward(x.view()[1], rank2, context);
  EXPECT_TRUE(same_bits(rank2.view(), expected.view()[1]));
  EXPECT_TRUE(same_bits(heed::view_of(y), expected.view()[1]));
}

}  // namespace
}  // namespace heed_test
