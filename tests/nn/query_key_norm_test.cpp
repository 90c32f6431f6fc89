// SPDX-License-Identifier: MIT
// Norms of queries and keys in MultiHeadAttention and blocks: against separate layers, and gradients by differences.
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <heed/heed.hpp>

#include "common/message_of.hpp"
#include "nn/backward_checks.hpp"

namespace query_key_norm {

using namespace backward_checks;
using heed::AnyAttention;
using heed::Causal;
using heed::MultiHeadAttention;
using heed::MultiHeadAttentionOptions;
using heed::NormKind;
using heed_test::message_of;

constexpr Index kB = 2, kL = 5, kE = 8, kH = 4, kG = 2, kD = 6;

inline MultiHeadAttentionOptions options_of(NormKind kind, bool rotary) {
  return {.embed_dim = kE,
          .num_heads = kH,
          .num_kv_heads = kG,
          .head_dim = kD,
          .rotary = rotary ? heed::RotaryEmbeddingOptions{} : heed::kNoRotary,
          .qk_norm = heed::NormOptions{.eps = 1e-3, .kind = kind}};
}

/// The same from Linear, Norm, RotaryEmbedding and attention().
inline Tensor<double, 3> composed(const MultiHeadAttention<double>& mha, const Tensor<double, 3>& x,
                                  const AnyAttention<double>& attention) {
  const auto& o = mha.options();
  const Index rows = (kH + 2 * kG) * kD;
  heed::Linear<double> in_proj(kE, rows);
  in_proj.weight = mha.in_proj_weight.matrix();
  in_proj.bias = mha.in_proj_bias.value();
  const Tensor<double, 3> qkv = in_proj(x);
  const auto part = [&](Index first, Index heads, const heed::Norm<double>* norm) {
    Tensor<double, 4> to(kB, heads, kL, kD);
    for (Index b = 0; b < kB; ++b) {
      for (Index h = 0; h < heads; ++h) to.matrix(b, h) = qkv.matrix(b).middleCols((first + h) * kD, kD);
      if (norm) {
        for (Index h = 0; h < heads; ++h) to.matrix(b, h) = (*norm)(Eigen::MatrixXd(to.matrix(b, h)));
      }
    }
    if (norm && o.rotary.enabled) to = heed::RotaryEmbedding<double>(o.rotary)(to);
    return to;
  };
  const auto q = part(0, kH, &*mha.q_norm), k = part(kH, kG, &*mha.k_norm), v = part(kH + kG, kG, nullptr);
  Tensor<double, 3> joined(kB, kL, kH * kD);
  const TensorView<double, 4> heads(joined.data(), {kB, kH, kL, kD}, {kL * kH * kD, kD, kH * kD, 1});
  heed::attention_into(heads, q, k, v, attention);
  return mha.out_proj(joined);
}

TEST(QueryKeyNorm, IsThatOfSeparateLayers) {
  const auto x = random_tensor<double, 3>({kB, kL, kE}, 7);
  for (const NormKind kind : {NormKind::Layer, NormKind::RMS}) {
    for (const bool rotary : {false, true}) {
      MultiHeadAttention<double> mha(options_of(kind, rotary));
      fill_parameters<double>(mha, 3);
      const auto expected = composed(mha, x, Causal{});
      const auto y = mha(x, Causal{});
      Tensor<double, 3> kept(x.extents());
      MultiHeadAttention<double>::Cache cache;
      Context context;
      mha.forward(x, Causal{}, kept, cache, context);
      for (Index i = 0; i < y.size(); ++i) EXPECT_NEAR(y.data()[i], expected.data()[i], 1e-13);
      EXPECT_TRUE(bits_equal(kept, y));
    }
  }
}

template <class Layer>
void expect_gradients(Layer layer) {
  fill_parameters<double>(layer, 3);
  auto x = random_tensor<double, 3>({kB, kL, kE}, 7);
  const auto dy = random_tensor<double, 3>({kB, kL, kE}, 99);
  Tensor<double, 3> y(x.extents()), dx(x.extents());
  Context context;
  typename Layer::Cache cache;
  layer.forward(x, Causal{}, y, cache, context);
  layer.backward(dy, dx, cache, context);
  const auto loss = [&] {
    layer.forward(x, Causal{}, y, context);
    return dot(y, dy);
  };
  const auto report = heed::gradcheck(loss, ParameterList<double>(layer), {{"x", flat(x), flat(std::as_const(dx))}});
  EXPECT_TRUE(report.passed) << report.text();
}

TEST(QueryKeyNorm, HasGradients) {
  for (const NormKind kind : {NormKind::Layer, NormKind::RMS}) {
    for (const bool rotary : {false, true}) expect_gradients(MultiHeadAttention<double>(options_of(kind, rotary)));
    expect_gradients(heed::EncoderLayer<double>({.embed_dim = kE,
                                                 .num_heads = kH,
                                                 .ffn_dim = 6,
                                                 .norm_placement = heed::NormPlacement::Pre,
                                                 .activation = heed::Activation::GELU,
                                                 .norm = kind,
                                                 .qk_norm = heed::NormOptions{.kind = kind}}));
  }
}

TEST(QueryKeyNorm, ReadsAMemoryOfAnotherWidthAndLength) {
  auto options = options_of(NormKind::RMS, false);
  options.key_dim = 3;
  MultiHeadAttention<double> mha(options);
  fill_parameters<double>(mha, 3);
  auto x = random_tensor<double, 3>({kB, kL, kE}, 7), memory = random_tensor<double, 3>({kB, 3, 3}, 8);
  const auto dy = random_tensor<double, 3>({kB, kL, kE}, 99);
  Tensor<double, 3> y(x.extents()), dx(x.extents()), dkey(memory.extents()), dvalue(memory.extents());
  Context context;
  MultiHeadAttention<double>::Cache cache;
  mha.forward(x, memory, memory, y, cache, context);
  mha.backward(dy, dx, dkey, dvalue, cache, context);
  for (Index i = 0; i < dkey.size(); ++i) dkey.data()[i] += dvalue.data()[i];
  const auto loss = [&] {
    mha.forward(x, memory, memory, y, context);
    return dot(y, dy);
  };
  const auto report =
      heed::gradcheck(loss, ParameterList<double>(mha),
                      {{"x", flat(x), flat(std::as_const(dx))}, {"memory", flat(memory), flat(std::as_const(dkey))}});
  EXPECT_TRUE(report.passed) << report.text();
}

TEST(QueryKeyNorm, IsNamedAndOff) {
  MultiHeadAttention<double> plain({.embed_dim = kE, .num_heads = 2}), normed(options_of(NormKind::RMS, false));
  std::vector<std::string> names;
  const auto add = [&](std::string_view name, const auto&) { names.emplace_back(name); };
  plain.visit("", add);
  EXPECT_EQ(names.size(), 4U);
  names.clear();
  normed.visit("a", add);
  EXPECT_EQ(names.back(), "a.k_norm.weight");
  EXPECT_EQ(names[names.size() - 2], "a.q_norm.weight");
  auto wrong = options_of(NormKind::RMS, false);
  wrong.qk_norm->embed_dim = kH * kD;
  EXPECT_EQ(message_of<heed::ShapeError>([&] { MultiHeadAttention<double>{wrong}; }),
            "heed::MultiHeadAttention: qk_norm->embed_dim = 24 but head_dim = 6; leave it 0: each head is normalized "
            "alone");
}

}  // namespace query_key_norm
