// SPDX-License-Identifier: MIT
// The training of layers that attend, all of which take a mask.
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <heed/compiled/layers.hpp>
#include <heed/nn/multi_head_attention.hpp>
#include <heed/nn/self_attention.hpp>
#include <heed/nn/transformer.hpp>

#include "nn/backward_checks.hpp"
#include "nn/masked.hpp"

namespace {

using heed::Activation;
using heed::MultiHeadAttention;
using heed::SelfAttention;
using namespace backward_checks;
using heed_test::Golden;

TEST(SelfAttentionBackward, KeepsThePromisesOfABackward) {
  auto plain =
      masked<double>(SelfAttention<double>({.embed_dim = 5, .head_dim = 4, .value_head_dim = 7}), heed::NoMask{});
  expect_backward(plain, {2, 4, 5});
  auto projected =
      masked<double>(SelfAttention<double>({.embed_dim = 6, .out_dim = 3, .bias = true, .scale = 0.7}), heed::Causal{});
  expect_backward(projected, {2, 5, 6});
  expect_same_backward_for_any_strides<double>(projected, {2, 5, 6});
}

TEST(MultiHeadAttentionBackward, KeepsThePromisesOfABackward) {
  auto plain = masked<double>(MultiHeadAttention<double>({.embed_dim = 6, .num_heads = 2}), heed::NoMask{});
  expect_backward(plain, {2, 4, 6});
  expect_same_backward_for_any_strides<double>(plain, {2, 5, 6});
  // Grouped heads, Dk ≠ Dv, turned positions.
  auto grouped = masked<double>(MultiHeadAttention<double>({.embed_dim = 8,
                                                            .num_heads = 4,
                                                            .num_kv_heads = 2,
                                                            .head_dim = 4,
                                                            .value_head_dim = 3,
                                                            .bias = false,
                                                            .rotary = {.length = 9}}),
                                heed::Causal{});
  expect_backward(grouped, {2, 5, 8});
}

// A query that sees nothing passes no gradient on, and padded keys get none.
TEST(MultiHeadAttentionBackward, PaddedSamples) {
  const std::vector<int> lengths{3, 0, 5};
  auto layer = masked<double>(MultiHeadAttention<double>({.embed_dim = 6, .num_heads = 2}), heed::Padding(lengths));
  expect_exact_gradients(layer, {3, 5, 6});
}

/// Gradients of every input and parameter of a golden, for the layer's own forward and backward.
template <class T, class Layer>
void expect_golden_parameters(const Golden& golden, Layer& layer, double tolerance) {
  layer.visit("", [&](std::string_view name, heed::Parameter<T>& parameter) {
    const std::string stored = "grad.param." + std::string(name);
    EXPECT_TRUE(parameter.rank() == 1 ? golden.agrees(stored, parameter.grad(), tolerance)
                                      : golden.agrees(stored, parameter.grad_matrix(), tolerance));
  });
}

template <class T, class Mask>
void expect_golden_self_attention(const std::string& name, const heed::MultiHeadAttentionOptions& options,
                                  const Mask& mask) {
  SCOPED_TRACE(name);
  const Golden golden(name);
  MultiHeadAttention<T> layer(options);
  golden.load_into(layer);
  auto adapted = Masked<T, MultiHeadAttention<T>, Mask>{std::move(layer), mask};
  const double tolerance = 4 * heed_test::kGoldenTolerance<T>;
  Context context;
  const auto found = gradients<T>(adapted, golden.tensor<T, 3>("in.x"), golden.tensor<T, 3>("dout.y"), context);
  EXPECT_TRUE(golden.agrees("out.y", found.y.view(), tolerance));
  EXPECT_TRUE(golden.agrees("grad.in.x", found.dx.view(), tolerance));
  expect_golden_parameters<T>(golden, adapted.layer, tolerance);
}

TEST(MultiHeadAttentionBackward, SelfAttentionFromPyTorch) {
  const std::vector<int> lengths{7, 4, 2}, causal_lengths{4, 6, 1};
  const auto check = [&]<class T>(T) {
    expect_golden_self_attention<T>("mha_self", {.embed_dim = 24, .num_heads = 3}, heed::NoMask{});
    expect_golden_self_attention<T>("mha_self_no_bias", {.embed_dim = 16, .num_heads = 2, .bias = false},
                                    heed::NoMask{});
    expect_golden_self_attention<T>("mha_self_causal", {.embed_dim = 16, .num_heads = 4}, heed::Causal{});
    expect_golden_self_attention<T>("mha_self_padding", {.embed_dim = 16, .num_heads = 2}, heed::Padding(lengths));
    expect_golden_self_attention<T>("mha_self_causal_padding", {.embed_dim = 16, .num_heads = 4},
                                    heed::Causal{} & heed::Padding(causal_lengths));
  };
  check(double{});
  check(float{});
}

template <class Mask>
void expect_golden_cross_attention(const std::string& name, const heed::MultiHeadAttentionOptions& options,
                                   const Mask& mask) {
  SCOPED_TRACE(name);
  const Golden golden(name);
  MultiHeadAttention<double> layer(options);
  golden.load_into(layer);
  const auto query = golden.tensor<double, 3>("in.query"), key = golden.tensor<double, 3>("in.key");
  const auto value = golden.tensor<double, 3>("in.value"), dy = golden.tensor<double, 3>("dout.y");
  Tensor<double, 3> y(dy.extents()), dquery(query.extents()), dkey(key.extents()), dvalue(value.extents());
  Context context;
  MultiHeadAttention<double>::Cache cache;
  layer.forward(query, key, value, mask, y, cache, context);
  layer.backward(dy, dquery, dkey, dvalue, cache, context);
  const double tolerance = 4e-13;
  EXPECT_TRUE(golden.agrees("out.y", y.view(), tolerance));
  EXPECT_TRUE(golden.agrees("grad.in.query", dquery.view(), tolerance));
  EXPECT_TRUE(golden.agrees("grad.in.key", dkey.view(), tolerance));
  EXPECT_TRUE(golden.agrees("grad.in.value", dvalue.view(), tolerance));
  expect_golden_parameters<double>(golden, layer, tolerance);
}

TEST(MultiHeadAttentionBackward, CrossAttentionFromPyTorch) {
  const std::vector<int> lengths{6, 3, 5};
  expect_golden_cross_attention("mha_cross", {.embed_dim = 16, .num_heads = 2}, heed::NoMask{});
  expect_golden_cross_attention("mha_cross_kdim_vdim",
                                {.embed_dim = 24, .num_heads = 4, .key_dim = 20, .value_dim = 12}, heed::NoMask{});
  expect_golden_cross_attention("mha_cross_kdim_vdim_no_bias_padding",
                                {.embed_dim = 16, .num_heads = 2, .key_dim = 10, .value_dim = 18, .bias = false},
                                heed::Padding(lengths));
}

// Keys and values from one view have one gradient, the sum of both.
TEST(MultiHeadAttentionBackward, OneViewHasOneGradient) {
  MultiHeadAttention<double> layer({.embed_dim = 6, .num_heads = 2});
  fill_parameters<double>(layer, 3);
  const auto query = random_tensor<double, 3>({2, 3, 6}), memory = random_tensor<double, 3>({2, 5, 6}, 2);
  const auto memory_too = memory;
  const auto dy = random_tensor<double, 3>({2, 3, 6}, 4), residual = random_tensor<double, 3>({2, 5, 6}, 5);
  Context context;
  MultiHeadAttention<double>::Cache cache;
  Tensor<double, 3> y(2, 3, 6), dquery(2, 3, 6), dkey(2, 5, 6), dvalue(2, 5, 6), dmemory(2, 5, 6);
  layer.forward(query, memory, memory_too, heed::NoMask{}, y, cache, context);
  layer.backward(dy, dquery, dkey, dvalue, cache, context);
  layer.forward(query, memory, memory, heed::NoMask{}, y, cache, context);
  EXPECT_THROW(layer.backward(dy, dquery, dmemory, dvalue, cache, context), heed::ValueError);
  layer.backward(dy, heed::kNotWanted, dmemory, heed::kNotWanted, cache, context);
  for (Index i = 0; i < dmemory.size(); ++i) {
    EXPECT_NEAR(dmemory.data()[i], dkey.data()[i] + dvalue.data()[i], 1e-13);
  }
  Tensor<double, 3> with_residual(2, 5, 6);
  layer.run_backward(dy, {{{}, {with_residual, residual}, {}}}, cache, context);
  for (Index i = 0; i < dmemory.size(); ++i) {
    EXPECT_NEAR(with_residual.data()[i], dmemory.data()[i] + residual.data()[i], 1e-13);
  }
}

// The weights that a forward dropped are dropped again in its backward.
TEST(MultiHeadAttentionBackward, ReplaysDropout) {
  auto layer =
      masked<double>(MultiHeadAttention<double>({.embed_dim = 6, .num_heads = 2, .dropout = 0.3}), heed::Causal{});
  auto x = random_tensor<double, 3>({2, 6, 6});
  const auto dy = random_tensor<double, 3>({2, 6, 6}, 2);
  Context context;
  context.training = true;
  context.seed = 5;
  Tensor<double, 3> y(x.extents()), dx(x.extents());
  MultiHeadAttention<double>::Cache cache;
  layer.forward(x.view(), y.view(), cache, context);
  context.next_stream();
  layer.backward(dy.view(), dx.view(), cache, context);
  const std::uint64_t stream = context.next_stream();
  EXPECT_EQ(stream, 2u) << "a backward draws no stream";
  const auto loss = [&] {
    context.restart_streams();
    layer.forward(x.view(), y.view(), context);
    return dot(y, dy);
  };
  const auto report = heed::gradcheck(loss, ParameterList<double>(layer), {{"x", flat(x), flat(dx)}});
  EXPECT_TRUE(report.passed) << report.text();
}

}  // namespace
