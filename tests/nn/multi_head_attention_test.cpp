// SPDX-License-Identifier: MIT
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/compiled/layers.hpp>
#include <heed/mask/basic.hpp>
#include <heed/mask/bool_mask.hpp>
#include <heed/nn/multi_head_attention.hpp>

#include "common/allocation_counter.hpp"
#include "common/golden.hpp"
#include "nn/layer_checks.hpp"

namespace {

using heed::BoolMask;
using heed::Causal;
using heed::DocumentMask;
using heed::Index;
using heed::mean_over_heads;
using heed::MultiHeadAttention;
using heed::MultiHeadAttentionOptions;
using heed::NoMask;
using heed::Padding;
using heed::Tensor;
using heed::TensorView;
using heed_test::Golden;
using heed_test::kGoldenTolerance;
using namespace layer_checks;

template <class T>
class MultiHeadAttentionOf : public testing::Test {};
using MultiHeadAttentionElements = testing::Types<float, double>;
TYPED_TEST_SUITE(MultiHeadAttentionOf, MultiHeadAttentionElements);

template <class T>
MultiHeadAttention<T> random_mha(const MultiHeadAttentionOptions& options) {
  MultiHeadAttention<T> mha(options);
  initialize(mha, 1);
  // Biases that are not zero, so that a forgotten one shows.
  if (options.bias) {
    for (heed::Parameter<T>* bias : {&mha.in_proj_bias, &mha.out_proj.bias}) {
      const auto values = random_tensor<T, 1>({bias->size()}, 3);
      copy(values.view(), bias->mutable_value());
    }
  }
  return mha;
}

template <class T>
constexpr double kHeadsRounding = sizeof(T) == 8 ? 1e-13 : 1e-5;

// ---- values from PyTorch -------------------------------------------------------------------------------------------

/// Output, weights and mean weights, raw and packed, with and without asking for weights.
template <class T, class MaskType>
void expect_self_golden(const std::string& name, const MultiHeadAttentionOptions& options, const MaskType& mask) {
  SCOPED_TRACE(name);
  const Golden golden(name);
  MultiHeadAttention<T> mha(options);
  golden.load_into(mha);
  const Tensor<T, 3> x = golden.tensor<T, 3>("in.x");
  for (int packed = 0; packed < 2; ++packed) {
    const auto [y, weights] = mha.with_weights(x, mask);
    EXPECT_TRUE(golden.agrees("out.y", y.view(), kGoldenTolerance<T>));
    EXPECT_TRUE(golden.agrees("out.weights", weights.view(), kGoldenTolerance<T>));
    EXPECT_TRUE(golden.agrees("out.weights_mean", mean_over_heads(weights), kGoldenTolerance<T>));
    EXPECT_TRUE(bits_equal(y.view(), mha(x, mask)));
    mha.pack();
  }
}

template <class T, class MaskType>
void expect_cross_golden(const std::string& name, const MultiHeadAttentionOptions& options, const MaskType& mask) {
  SCOPED_TRACE(name);
  const Golden golden(name);
  MultiHeadAttention<T> mha(options);
  golden.load_into(mha);
  const Tensor<T, 3> query = golden.tensor<T, 3>("in.query"), key = golden.tensor<T, 3>("in.key"),
                     value = golden.tensor<T, 3>("in.value");
  for (int packed = 0; packed < 2; ++packed) {
    const auto [y, weights] = mha.with_weights(query, key, value, mask);
    EXPECT_TRUE(golden.agrees("out.y", y.view(), kGoldenTolerance<T>));
    EXPECT_TRUE(golden.agrees("out.weights", weights.view(), kGoldenTolerance<T>));
    EXPECT_TRUE(golden.agrees("out.weights_mean", mean_over_heads(weights), kGoldenTolerance<T>));
    EXPECT_TRUE(bits_equal(y.view(), mha(query, key, value, mask)));
    mha.pack();
  }
}

TYPED_TEST(MultiHeadAttentionOf, SelfAttentionAsInPyTorch) {
  using T = TypeParam;
  expect_self_golden<T>("mha_self", {.embed_dim = 24, .num_heads = 3}, NoMask{});
  expect_self_golden<T>("mha_self_no_bias", {.embed_dim = 16, .num_heads = 2, .bias = false}, NoMask{});
  expect_self_golden<T>("mha_self_causal", {.embed_dim = 16, .num_heads = 4}, Causal{});
  const std::vector<int> padded = Golden("mha_self_padding").integers("in.lengths");
  expect_self_golden<T>("mha_self_padding", {.embed_dim = 16, .num_heads = 2}, Padding(padded));
  const std::vector<int> both = Golden("mha_self_causal_padding").integers("in.lengths");
  expect_self_golden<T>("mha_self_causal_padding", {.embed_dim = 16, .num_heads = 4}, Causal{} & Padding(both));
}

TYPED_TEST(MultiHeadAttentionOf, CrossAttentionAsInPyTorch) {
  using T = TypeParam;
  expect_cross_golden<T>("mha_cross", {.embed_dim = 16, .num_heads = 2}, NoMask{});
  expect_cross_golden<T>("mha_cross_kdim_vdim", {.embed_dim = 24, .num_heads = 4, .key_dim = 20, .value_dim = 12},
                         NoMask{});
  const std::string padded = "mha_cross_kdim_vdim_no_bias_padding";
  const std::vector<int> lengths = Golden(padded).integers("in.lengths");
  expect_cross_golden<T>(padded, {.embed_dim = 16, .num_heads = 2, .key_dim = 10, .value_dim = 18, .bias = false},
                         Padding(lengths));
}

// ---- parameters ----------------------------------------------------------------------------------------------------

std::string parameters_of(const MultiHeadAttentionOptions& options) {
  std::string text;
  MultiHeadAttention<float>(options).visit("a", [&](std::string_view name, const auto& parameter) {
    text += std::string(name) + " " + std::to_string(parameter.extents()[0]) + "x" +
            std::to_string(parameter.extents()[1]) + " ";
  });
  return text;
}

TEST(MultiHeadAttention, NamesAndShapesAsInPyTorch) {
  EXPECT_EQ(parameters_of({.embed_dim = 12, .num_heads = 3}),
            "a.in_proj_weight 36x12 a.in_proj_bias 36x1 a.out_proj.weight 12x12 a.out_proj.bias 12x1 ");
  EXPECT_EQ(parameters_of({.embed_dim = 12, .num_heads = 3, .bias = false}),
            "a.in_proj_weight 36x12 a.out_proj.weight 12x12 ");
  EXPECT_EQ(parameters_of({.embed_dim = 12, .num_heads = 3, .key_dim = 7, .value_dim = 5}),
            "a.q_proj_weight 12x12 a.k_proj_weight 12x7 a.v_proj_weight 12x5 a.in_proj_bias 36x1 "
            "a.out_proj.weight 12x12 a.out_proj.bias 12x1 ");
  EXPECT_EQ(parameters_of({.embed_dim = 12, .num_heads = 3, .key_dim = 7, .bias = false}),
            "a.q_proj_weight 12x12 a.k_proj_weight 12x7 a.v_proj_weight 12x7 a.out_proj.weight 12x12 ");
  // H·Dk + G·Dk + G·Dv rows.
  EXPECT_EQ(parameters_of({.embed_dim = 12, .num_heads = 6, .num_kv_heads = 2, .head_dim = 5, .value_head_dim = 3}),
            "a.in_proj_weight 46x12 a.in_proj_bias 46x1 a.out_proj.weight 12x18 a.out_proj.bias 12x1 ");
}

TEST(MultiHeadAttention, ParameterCounts) {
  const Index E = 512;
  EXPECT_EQ(heed::parameter_count(MultiHeadAttention<float>({.embed_dim = E, .num_heads = 8, .bias = false})),
            4 * E * E);
  EXPECT_EQ(heed::parameter_count(MultiHeadAttention<float>({.embed_dim = E, .num_heads = 8})), 4 * E * E + 4 * E);
  // One key and value head: two projections of a head's width.
  EXPECT_EQ(heed::parameter_count(
                MultiHeadAttention<float>({.embed_dim = E, .num_heads = 8, .num_kv_heads = 1, .bias = false})),
            2 * E * E + 2 * E * 64);
}

TEST(MultiHeadAttention, OptionsAreFilledIn) {
  const MultiHeadAttention<float> mha({.embed_dim = 24, .num_heads = 4, .key_dim = 10, .rotary = {}});
  EXPECT_EQ(mha.options().num_kv_heads, 4);
  EXPECT_EQ(mha.options().head_dim, 6);
  EXPECT_EQ(mha.options().value_head_dim, 6);
  EXPECT_EQ(mha.options().value_dim, 10);
  EXPECT_EQ(mha.options().rotary.head_dim, 6);
}

// ---- what the result depends on, and what not ----------------------------------------------------------------------

TYPED_TEST(MultiHeadAttentionOf, SameForAnyArgument) {
  using T = TypeParam;
  auto mha = random_mha<T>({.embed_dim = 12, .num_heads = 3});
  for (int packed = 0; packed < 2; ++packed) {
    expect_same_for_any_argument<T>(mha, 6, 12);
    EXPECT_EQ(mha(Tensor<T, 3>(0, 3, 12)).extents(), (heed::Extents<3>{0, 3, 12}));
    EXPECT_EQ(mha(Tensor<T, 3>(2, 0, 12)).extents(), (heed::Extents<3>{2, 0, 12}));
    mha.pack();
  }
}

TYPED_TEST(MultiHeadAttentionOf, CrossAttentionTakesPlainEigen) {
  using T = TypeParam;
  using Rows = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Columns = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;
  const auto mha = random_mha<T>({.embed_dim = 12, .num_heads = 3, .key_dim = 5, .value_dim = 7});
  const auto query = random_tensor<T, 3>({1, 4, 12}, 1), key = random_tensor<T, 3>({1, 6, 5}, 2),
             value = random_tensor<T, 3>({1, 6, 7}, 3);
  const auto expected = mha.with_weights(query, key, value, Causal::top_left());
  const Columns q = query.matrix(0);
  const Rows k = key.matrix(0), v = value.matrix(0);
  const auto same = mha.with_weights(q, k + T(0) * k, v.topRows(6), Causal::top_left());
  static_assert(heed::EigenDense<decltype(same.out)>);
  EXPECT_TRUE(bits_equal(expected.out.view()[0], heed::view_of(same.out)));
  EXPECT_TRUE(bits_equal(expected.weights.view(), same.weights.view()));
  EXPECT_TRUE(bits_equal(expected.out.view()[0], mha(q, key, v, Causal::top_left())));
  // One head as a matrix.
  EXPECT_EQ(same.weights.matrix(0, 2)(3, 1), expected.weights(0, 2, 3, 1));
}

TYPED_TEST(MultiHeadAttentionOf, SameForAnyStrides) {
  using T = TypeParam;
  const auto mha = random_mha<T>({.embed_dim = 8, .num_heads = 2, .key_dim = 6});
  const auto x = random_tensor<T, 3>({2, 4, 8}), memory = random_tensor<T, 3>({2, 5, 6}, 2);
  const Tensor<T, 3> expected = mha(x, memory, memory);
  heed::Context context;
  for (const auto& order : {std::array<int, 3>{0, 1, 2}, {0, 2, 1}, {2, 1, 0}, {1, 0, 2}}) {
    Spaced<T, 3> from(x.extents(), order, 2, 1), source(memory.extents(), order, 1, 3),
        to(expected.extents(), order, 3, 2);
    copy(x.view(), from.view());
    copy(memory.view(), source.view());
    mha.forward(from.view(), source.view(), source.view(), NoMask{}, to.view(), context);
    EXPECT_TRUE(bits_equal(expected.view(), to.view()));
    EXPECT_EQ(to.written(), static_cast<std::size_t>(expected.size()));
  }
}

// One product for the three projections or several, weights packed or not, packed jointly or separately.
TYPED_TEST(MultiHeadAttentionOf, SameBitsForAnyProduct) {
  using T = TypeParam;
  for (const Index G : {4, 2, 1}) {
    SCOPED_TRACE(G);
    auto mha = random_mha<T>({.embed_dim = 20, .num_heads = 4, .num_kv_heads = G, .value_head_dim = 3});
    const auto x = random_tensor<T, 3>({2, 7, 20});
    const Tensor<T, 3> copied = x;
    const Tensor<T, 3> expected = mha(x, Causal{});
    const auto check = [&](const char* what) {
      EXPECT_TRUE(bits_equal(expected.view(), mha(x, Causal{}))) << what;
      EXPECT_TRUE(bits_equal(expected.view(), mha(x, copied, copied, Causal{}))) << what;
      EXPECT_TRUE(bits_equal(expected.view(), mha(x, x, copied, Causal{}))) << what;
      EXPECT_TRUE(bits_equal(expected.view(), mha(x, copied, x, Causal{}))) << what;
    };
    check("raw");
    mha.pack();
    check("packed");
    mha.pack({.release = true});
    check("released");
  }
}

TYPED_TEST(MultiHeadAttentionOf, MutableAccessDropsThePack) {
  using T = TypeParam;
  const auto x = random_tensor<T, 3>({1, 3, 8}), memory = random_tensor<T, 3>({1, 3, 6}, 2);
  for (const Index key_model : {8, 6}) {
    auto mha = random_mha<T>({.embed_dim = 8, .num_heads = 2, .key_dim = key_model});
    const auto call = [&](const MultiHeadAttention<T>& layer) {
      return key_model == 8 ? layer(x) : layer(x, memory, memory);
    };
    mha.pack();
    Tensor<T, 3> before = call(mha);
    mha.visit("", [&](std::string_view name, heed::Parameter<T>& parameter) {
      parameter.mutable_value()(parameter.size() - 1) += T(1);
      auto raw = mha;
      raw.visit("", [](std::string_view, heed::Parameter<T>& any) { any.mutable_value(); });
      const Tensor<T, 3> after = call(mha);
      EXPECT_FALSE(bits_equal(before.view(), after.view())) << name;
      EXPECT_TRUE(bits_equal(call(raw), after.view())) << name;
      before = after;
    });
  }
}

TYPED_TEST(MultiHeadAttentionOf, RawWeightsMayGoAfterPacking) {
  using T = TypeParam;
  auto mha = random_mha<T>({.embed_dim = 8, .num_heads = 2});
  const auto x = random_tensor<T, 3>({1, 3, 8});
  const Tensor<T, 3> expected = mha(x), other = x;
  mha.pack({.release = true});
  EXPECT_TRUE(mha.in_proj_weight.released() && mha.out_proj.weight.released());
  EXPECT_FALSE(mha.in_proj_bias.released());
  EXPECT_TRUE(bits_equal(expected.view(), mha(x)));
  EXPECT_TRUE(bits_equal(expected.view(), mha(x, other, other)));

  auto cross = random_mha<T>({.embed_dim = 8, .num_heads = 2, .key_dim = 5});
  const auto memory = random_tensor<T, 3>({1, 4, 5});
  const Tensor<T, 3> expected_cross = cross(x, memory, memory);
  cross.pack({.release = true});
  EXPECT_TRUE(cross.q_proj_weight.released() && cross.k_proj_weight.released() && cross.v_proj_weight.released());
  EXPECT_TRUE(bits_equal(expected_cross.view(), cross(x, memory, memory)));
}

// ---- heads ---------------------------------------------------------------------------------------------------------

// G key heads are H key heads of which H/G neighbors are equal.
TYPED_TEST(MultiHeadAttentionOf, GroupedHeadsReadTheirKeyHead) {
  using T = TypeParam;
  const Index E = 12, H = 6, D = 5;
  for (const Index G : {3, 2, 1}) {
    SCOPED_TRACE(G);
    const auto grouped = random_mha<T>({.embed_dim = E, .num_heads = H, .num_kv_heads = G, .head_dim = D});
    MultiHeadAttention<T> full({.embed_dim = E, .num_heads = H, .head_dim = D});
    copy(grouped.out_proj.weight.value(), full.out_proj.weight.mutable_value());
    copy(grouped.out_proj.bias.value(), full.out_proj.bias.mutable_value());
    const auto from = grouped.in_proj_weight.matrix();
    const auto to = full.in_proj_weight.mutable_matrix();
    const auto to_bias = full.in_proj_bias.mutable_value();
    const auto row = [&](Index source, Index target) {
      copy(from[source], to[target]);
      to_bias(target) = grouped.in_proj_bias.value()(source);
    };
    for (Index h = 0; h < H; ++h) {
      for (Index d = 0; d < D; ++d) {
        const Index g = h / (H / G);
        row(h * D + d, h * D + d);
        row((H + g) * D + d, (H + h) * D + d);
        row((H + G + g) * D + d, (2 * H + h) * D + d);
      }
    }
    const auto x = random_tensor<T, 3>({2, 7, E});
    const auto expected = full.with_weights(x, Causal{}), actual = grouped.with_weights(x, Causal{});
    EXPECT_LE(max_error(expected.out.view(), actual.out.view()), kHeadsRounding<T>);
    EXPECT_LE(max_error(expected.weights.view(), actual.weights.view()), kHeadsRounding<T>);
  }
}

TYPED_TEST(MultiHeadAttentionOf, IsAttentionBetweenTwoProjections) {
  using T = TypeParam;
  const Index E = 10, H = 4, G = 2, Dk = 6, Dv = 3, B = 2, Lq = 5, Lk = 7;
  const auto mha = random_mha<T>({.embed_dim = E,
                                  .num_heads = H,
                                  .num_kv_heads = G,
                                  .head_dim = Dk,
                                  .value_head_dim = Dv,
                                  .key_dim = 8,
                                  .value_dim = 9,
                                  .scale = 0.2,
                                  .rotary = {.head_dim = Dk, .rotary_dim = 4}});
  const auto query = random_tensor<T, 3>({B, Lq, E}), key = random_tensor<T, 3>({B, Lk, 8}, 2),
             value = random_tensor<T, 3>({B, Lk, 9}, 3);
  // Each projection written out, head by head.
  const auto project = [&](const Tensor<T, 3>& x, const heed::Parameter<T>& weight, Index first_bias, Index heads,
                           Index width) {
    Tensor<T, 4> result(B, heads, x.extent(1), width);
    for (Index b = 0; b < B; ++b) {
      for (Index l = 0; l < x.extent(1); ++l) {
        for (Index r = 0; r < heads * width; ++r) {
          double sum = static_cast<double>(mha.in_proj_bias.value()(first_bias + r));
          for (Index e = 0; e < x.extent(2); ++e) {
            sum += static_cast<double>(x(b, l, e)) * static_cast<double>(weight.matrix()(r, e));
          }
          result(b, r / width, l, r % width) = static_cast<T>(sum);
        }
      }
    }
    return result;
  };
  const heed::RotaryEmbedding<T> rotary({.head_dim = Dk, .rotary_dim = 4});
  const auto attended = heed::attention_with_weights(
      rotary(project(query, mha.q_proj_weight, 0, H, Dk)), rotary(project(key, mha.k_proj_weight, H * Dk, G, Dk)),
      project(value, mha.v_proj_weight, H * Dk + G * Dk, G, Dv), Causal::bottom_right(), heed::Scale{0.2});
  Tensor<T, 3> joined(B, Lq, H * Dv);
  for (Index b = 0; b < B; ++b) {
    for (Index l = 0; l < Lq; ++l) {
      for (Index h = 0; h < H; ++h) copy(attended.out.view()[b][h][l], joined.view()[b][l].slice(0, h * Dv, Dv));
    }
  }
  const auto actual = mha.with_weights(query, key, value, Causal::bottom_right());
  EXPECT_LE(max_error(mha.out_proj(joined), actual.out.view()), kHeadsRounding<T>);
  EXPECT_LE(max_error(attended.weights.view(), actual.weights.view()), kHeadsRounding<T>);
}

TYPED_TEST(MultiHeadAttentionOf, MeanOverHeads) {
  using T = TypeParam;
  Tensor<T, 4> weights(1, 2, 1, 3);
  for (Index i = 0; i < 6; ++i) weights.data()[i] = static_cast<T>(i);
  const Tensor<T, 3> mean = mean_over_heads(weights);
  EXPECT_EQ(mean.extents(), (heed::Extents<3>{1, 1, 3}));
  for (Index k = 0; k < 3; ++k) EXPECT_EQ(mean(0, 0, k), static_cast<T>(static_cast<double>(k) + 1.5));
}

// ---- masks ---------------------------------------------------------------------------------------------------------

TYPED_TEST(MultiHeadAttentionOf, EqualMasksGiveEqualResults) {
  using T = TypeParam;
  const auto mha = random_mha<T>({.embed_dim = 12, .num_heads = 3});
  const auto x = random_tensor<T, 3>({2, 6, 12});
  const std::vector<int> lengths{6, 3};
  Tensor<bool, 4> keep(2, 1, 6, 6), ignore(2, 1, 6, 6);
  for (Index b = 0; b < 2; ++b) {
    for (Index q = 0; q < 6; ++q) {
      for (Index k = 0; k < 6; ++k) {
        keep(b, 0, q, k) = k <= q && k < lengths[static_cast<std::size_t>(b)];
        ignore(b, 0, q, k) = !keep(b, 0, q, k);
      }
    }
  }
  const auto expected = mha.with_weights(x, Causal{} & Padding(lengths));
  const auto check = [&](const auto& mask) {
    const auto actual = mha.with_weights(x, mask);
    EXPECT_LE(max_error(expected.out.view(), actual.out.view()), kHeadsRounding<T>);
    EXPECT_LE(max_error(expected.weights.view(), actual.weights.view()), kHeadsRounding<T>);
  };
  check(BoolMask::keep(keep));
  check(BoolMask::ignore(ignore));
  check(!BoolMask::ignore(keep) & Causal::bottom_right());
  check(heed::mask([&](int b, int, int q, int k) { return k <= q && k < lengths[static_cast<std::size_t>(b)]; }));
  for (Index q = 0; q < 6; ++q) {
    for (Index k = q + 1; k < 6; ++k) EXPECT_EQ(expected.weights(0, 1, q, k), T(0));
  }
}

// A sample is the same alone, in a padded batch, and packed with others into one sequence.
TYPED_TEST(MultiHeadAttentionOf, AloneOrPaddedOrPacked) {
  using T = TypeParam;
  const auto mha = random_mha<T>({.embed_dim = 16, .num_heads = 4, .rotary = {.head_dim = 4}});
  const std::vector<int> lengths{5, 1, 9, 3}, offsets{0, 5, 6, 15, 18};
  Tensor<T, 3> padded(4, 9, 16), packed(1, 18, 16);
  const auto all = random_tensor<T, 3>({4, 9, 16});
  for (Index i = 0; i < padded.size(); ++i) padded.data()[i] = std::numeric_limits<T>::quiet_NaN();
  for (Index b = 0; b < 4; ++b) {
    const Index length = lengths[static_cast<std::size_t>(b)], first = offsets[static_cast<std::size_t>(b)];
    copy(all.view()[b].slice(0, 0, length), padded.view()[b].slice(0, 0, length));
    copy(all.view()[b].slice(0, 0, length), packed.view()[0].slice(0, first, length));
  }
  const Tensor<T, 3> in_batch = mha(padded, Padding(lengths));
  const Tensor<T, 3> in_sequence = mha(packed, DocumentMask(offsets));
  for (Index b = 0; b < 4; ++b) {
    SCOPED_TRACE(b);
    const Index length = lengths[static_cast<std::size_t>(b)], first = offsets[static_cast<std::size_t>(b)];
    const TensorView<const T, 2> alone_x = all.view()[b].slice(0, 0, length);
    const Tensor<T, 2> alone = mha(alone_x);
    const auto from_batch = in_batch.view()[b].slice(0, 0, length);
    const auto from_sequence = in_sequence.view()[0].slice(0, first, length);
    EXPECT_LE(max_error(alone.view(), from_batch), kHeadsRounding<T>);
    EXPECT_LE(max_error(alone.view(), from_sequence), kHeadsRounding<T>);
    // Padded rows were NaN; as queries they stay in themselves.
    for (Index l = length; l < 9; ++l) EXPECT_TRUE(std::isnan(in_batch(b, l, 0)));
  }
}

TYPED_TEST(MultiHeadAttentionOf, QueryWithoutKeysGivesTheBias) {
  using T = TypeParam;
  const auto mha = random_mha<T>({.embed_dim = 8, .num_heads = 2});
  const auto x = random_tensor<T, 3>({2, 4, 8});
  const std::vector<int> lengths{4, 0};
  const auto [y, weights] = mha.with_weights(x, Padding(lengths));
  for (Index l = 0; l < 4; ++l) {
    EXPECT_TRUE(bits_equal(mha.out_proj.bias.value(), y.view()[1][l]));
    for (Index k = 0; k < 4; ++k) EXPECT_EQ(weights(1, 1, l, k), T(0));
  }
  // No keys at all.
  const Tensor<T, 3> none(2, 0, 8), without = mha(x, none, none);
  EXPECT_TRUE(bits_equal(mha.out_proj.bias.value(), without.view()[0][3]));
}

// ---- the protocol --------------------------------------------------------------------------------------------------

TYPED_TEST(MultiHeadAttentionOf, AllocatesNothingOnceWarm) {
  using T = TypeParam;
  if (!heed_test::counts_allocations()) GTEST_SKIP() << "allocations are not counted on this platform";
  auto mha = random_mha<T>({.embed_dim = 32, .num_heads = 4, .num_kv_heads = 2, .rotary = {.head_dim = 8}});
  const auto x = random_tensor<T, 3>({2, 40, 32}), memory = random_tensor<T, 3>({2, 25, 32});
  const std::vector<int> lengths{40, 7};
  Tensor<T, 3> y(2, 40, 32);
  Tensor<T, 4> weights(2, 4, 40, 25);
  heed::Context context;
  const auto run = [&] {
    mha.forward(x, Causal{} & Padding(lengths), y, context);
    mha.forward(x, memory, memory, NoMask{}, y, context);
    mha.run({x, memory, memory}, NoMask{}, x, y, {}, nullptr, context);
    mha.forward_with_weights({x, memory, memory}, NoMask{}, y, weights, context);
  };
  for (int packed = 0; packed < 2; ++packed) {
    run();
    EXPECT_EQ(heed_test::allocations_of(run), 0);
    mha.pack();
  }
}

TYPED_TEST(MultiHeadAttentionOf, ShowsOutputsAndWeights) {
  using T = TypeParam;
  const auto mha = random_mha<T>({.embed_dim = 8, .num_heads = 2});
  const auto x = random_tensor<T, 3>({2, 5, 8}), residual = random_tensor<T, 3>({2, 5, 8}, 9);
  const auto [y, weights] = mha.with_weights(x, Causal{});
  WeightRecorder recorder;
  heed::Context context;
  Tensor<T, 3> plain_sum(2, 5, 8), sum(2, 5, 8);
  mha.run({x, x, x}, Causal{}, residual, plain_sum, {}, nullptr, context);
  context.observer = &recorder;
  recorder.wanted = "self_attn";
  const heed::Context::Scope scope(context, "self_attn");
  EXPECT_TRUE(bits_equal(y.view(), mha(x, Causal{}, context)));
  EXPECT_EQ(recorder.names, (std::vector<std::string>{"self_attn.out_proj", "self_attn"}));
  EXPECT_EQ(recorder.first, static_cast<double>(y(0, 0, 0)));
  EXPECT_EQ(recorder.shown, std::vector<std::string>{"self_attn"});
  EXPECT_EQ(recorder.extents, (std::vector<Index>{2, 2, 5, 5}));
  EXPECT_EQ(recorder.last, static_cast<double>(weights(1, 1, 2, 1)));

  // With a residual, what is shown is still the layer's own output.
  recorder.first = 0;
  mha.run({x, x, x}, Causal{}, residual, sum, {}, nullptr, context);
  EXPECT_EQ(recorder.first, static_cast<double>(y(0, 0, 0)));
  EXPECT_TRUE(bits_equal(plain_sum.view(), sum.view()));
  for (Index i = 0; i < y.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(sum.data()[i]), static_cast<double>(y.data()[i] + residual.data()[i]), 1e-6);
  }
}

TEST(MultiHeadAttention, DropoutOnlyWhileTraining) {
  const auto mha = random_mha<float>({.embed_dim = 8, .num_heads = 2, .dropout = 0.5});
  const auto plain = random_mha<float>({.embed_dim = 8, .num_heads = 2});
  const auto x = random_tensor<float, 3>({1, 20, 8});
  heed::Context context;
  const auto expected = plain.with_weights(x);
  EXPECT_TRUE(bits_equal(expected.out.view(), mha(x, context)));
  context.training = true;
  const auto first = mha.with_weights(x, NoMask{}, context);
  EXPECT_FALSE(bits_equal(expected.out.view(), first.out.view()));
  EXPECT_TRUE(bits_equal(expected.weights.view(), first.weights.view()));
  EXPECT_FALSE(bits_equal(first.out.view(), mha(x, context)));
  context.restart_streams();
  EXPECT_TRUE(bits_equal(first.out.view(), mha(x, context)));
}

TEST(MultiHeadAttention, StartsWithinXaviersBounds) {
  // Each projection by its own widths, also when they share one weight.
  MultiHeadAttention<float> mha({.embed_dim = 32, .num_heads = 8, .num_kv_heads = 1});
  initialize(mha, 4, "a");
  const auto weight = mha.in_proj_weight.matrix();
  const auto expect_bound = [](const TensorView<const float, 2>& w, double fans, const char* name) {
    double size = 0;
    for (Index r = 0; r < w.extent(0); ++r) {
      for (Index c = 0; c < w.extent(1); ++c) size = std::max(size, std::abs(static_cast<double>(w(r, c))));
    }
    EXPECT_LE(size, std::sqrt(6 / fans)) << name;
    EXPECT_GT(size, 0.9 * std::sqrt(6 / fans)) << name;
  };
  expect_bound(weight.slice(0, 0, 32), 64, "query");
  expect_bound(weight.slice(0, 32, 4), 36, "key");
  expect_bound(weight.slice(0, 36, 4), 36, "value");
  expect_bound(mha.out_proj.weight.matrix(), 64, "out");
  for (Index i = 0; i < 40; ++i) EXPECT_EQ(mha.in_proj_bias.value()(i), 0.f);

  MultiHeadAttention<float> again({.embed_dim = 32, .num_heads = 8, .num_kv_heads = 1}), other = again;
  initialize(again, 4, "a");
  initialize(other, 4, "b");
  EXPECT_TRUE(bits_equal(mha.in_proj_weight.value(), again.in_proj_weight.value()));
  EXPECT_FALSE(bits_equal(mha.in_proj_weight.value(), other.in_proj_weight.value()));
}

TEST(MultiHeadAttention, ErrorsSayWhatIsWrong) {
  const MultiHeadAttention<float> mha({.embed_dim = 8, .num_heads = 2, .key_dim = 5, .value_dim = 6});
  const Tensor<float, 3> query(2, 4, 8), key(2, 7, 5), value(2, 7, 6);
  const auto shape_error = [&](const Tensor<float, 3>& q, const Tensor<float, 3>& k, const Tensor<float, 3>& v) {
    return message_of<heed::ShapeError>([&] { mha(q, k, v); });
  };
  EXPECT_EQ(shape_error(Tensor<float, 3>(2, 4, 9), key, value),
            "heed::MultiHeadAttention: query (2, 4, 9) has width 9 but the layer takes 8");
  EXPECT_EQ(shape_error(query, Tensor<float, 3>(2, 7, 8), value),
            "heed::MultiHeadAttention: key (2, 7, 8) has width 8 but the layer takes 5");
  EXPECT_EQ(shape_error(query, key, Tensor<float, 3>(2, 7, 5)),
            "heed::MultiHeadAttention: value (2, 7, 5) has width 5 but the layer takes 6");
  EXPECT_EQ(shape_error(query, Tensor<float, 3>(3, 7, 5), value),
            "heed::MultiHeadAttention: key (3, 7, 5) has B = 3 but query (2, 4, 8) has B = 2");
  EXPECT_EQ(shape_error(query, key, Tensor<float, 3>(2, 3, 6)),
            "heed::MultiHeadAttention: value (2, 3, 6) has Lk = 3 but key (2, 7, 5) has Lk = 7; each key needs one "
            "value");
  heed::Context context;
  Tensor<float, 3> x(2, 4, 8), y(2, 5, 8);
  EXPECT_EQ(message_of<heed::ShapeError>([&] { mha.forward(x, key, value, NoMask{}, y, context); }),
            "heed::MultiHeadAttention: y (2, 5, 8) does not fit query (2, 4, 8); make it (2, 4, 8)");
  EXPECT_EQ(message_of<heed::ValueError>([&] { mha.forward(x, key, value, NoMask{}, x, context); }),
            "heed::MultiHeadAttention: y shares memory with query; it needs separate memory");
  Tensor<float, 3> fits(2, 4, 8);
  Tensor<float, 4> weights(2, 2, 4, 4);
  EXPECT_EQ(message_of<heed::ShapeError>(
                [&] { mha.forward_with_weights({x, key, value}, NoMask{}, fits, weights, context); }),
            "heed::MultiHeadAttention: weights (2, 2, 4, 4) do not fit the call; make them (2, 2, 4, 7)");
  EXPECT_THROW(mha(query, key, value, Causal{}), heed::ValueError);
}

TEST(MultiHeadAttention, OptionErrorsSayWhatIsWrong) {
  const auto shape_error = [](const MultiHeadAttentionOptions& options) {
    return message_of<heed::ShapeError>([&] { MultiHeadAttention<float> mha(options); });
  };
  EXPECT_EQ(shape_error({.embed_dim = 8, .num_heads = 0}),
            "heed::MultiHeadAttention: embed_dim = 8 and num_heads = 0 must be at least 1");
  EXPECT_EQ(shape_error({.embed_dim = 10, .num_heads = 4}),
            "heed::MultiHeadAttention: embed_dim = 10 is not a multiple of num_heads = 4; give head_dim");
  EXPECT_EQ(shape_error({.embed_dim = 8, .num_heads = 4, .num_kv_heads = 3}),
            "heed::MultiHeadAttention: num_heads = 4 but num_kv_heads = 3; num_heads must be a multiple: query "
            "head h reads key head h / (num_heads/num_kv_heads)");
  EXPECT_EQ(
      shape_error({.embed_dim = 8, .num_heads = 2, .rotary = {.head_dim = 8}}),
      "heed::MultiHeadAttention: rotary.head_dim = 8 but head_dim = 4; leave it 0, or give rotary.rotary_dim to turn a "
      "part of each head");
  EXPECT_NE(shape_error({.embed_dim = 8, .num_heads = 2, .head_dim = -1}).find("head_dim = -1"), std::string::npos);
  EXPECT_EQ(
      message_of<heed::ValueError>([] { MultiHeadAttention<float>({.embed_dim = 8, .num_heads = 2, .dropout = -1}); }),
      "heed::MultiHeadAttention: dropout = -1 must be a probability between 0 and 1");
}

}  // namespace
