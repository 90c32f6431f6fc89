// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <heed/attention/attention.hpp>
#include <heed/attention/linear/linear.hpp>
#include <heed/compiled/layers.hpp>
#include <heed/mask/sparse.hpp>
#include <heed/nn/kv_cache.hpp>
#include <heed/nn/positional.hpp>
#include <heed/nn/self_attention.hpp>
#include <heed/nn/transformer.hpp>

#include "common/allocation_counter.hpp"
#include "common/message_of.hpp"
#include "common/random_inputs.hpp"
#include "nn/layer_checks.hpp"

namespace {

using heed::AnyAttention;
using heed::Causal;
using heed::Context;
using heed::Encoder;
using heed::GlobalTokens;
using heed::Index;
using heed::KvCache;
using heed::KvStep;
using heed::PaddingSide;
using heed::Tensor;
using heed::Window;
using namespace layer_checks;
using heed_test::message_of;

static_assert(std::is_move_constructible_v<KvCache<float>> && !std::is_copy_constructible_v<KvCache<float>>);

template <class T>
class KvCaches : public testing::Test {};
using KvElements = testing::Types<float, double>;
TYPED_TEST_SUITE(KvCaches, KvElements);

// Random weights give scores in the tens, which multiply the rounding of float.
template <class T>
constexpr double kRounding = std::is_same_v<T, double> ? 1e-12 : 3e-4;

constexpr Index kWidth = 16;

/// Two blocks like those of Llama.
template <class T>
Encoder<T> llama(const heed::RotaryEmbeddingOptions& rotary = {}) {
  Encoder<T> encoder({.num_layers = 2,
                      .layer = {.embed_dim = kWidth,
                                .num_heads = 4,
                                .norm_placement = heed::NormPlacement::Pre,
                                .activation = heed::Activation::SiLU,
                                .gated = true,
                                .bias = false,
                                .num_kv_heads = 2,
                                .rotary = rotary,
                                .norm = heed::NormKind::RMS},
                      .final_norm = true});
  fill_parameters<T>(encoder, 7);
  return encoder;
}

/// The sequences of a batch, one after another, of these lengths.
template <class T>
std::vector<Tensor<T, 3>> sequences(const std::vector<int>& lengths, std::uint64_t seed = 11) {
  std::vector<Tensor<T, 3>> all;
  for (const int length : lengths) all.push_back(random_tensor<T, 3>({1, length, kWidth}, ++seed));
  return all;
}

/// Rows first[b], ..., first[b] + counts[b] - 1 of each sequence as one batch; NaN where there is padding.
template <class T>
Tensor<T, 3> batch_of(const std::vector<Tensor<T, 3>>& all, const std::vector<int>& first,
                      const std::vector<int>& counts, PaddingSide side) {
  const Index rows = *std::max_element(counts.begin(), counts.end());
  Tensor<T, 3> x(static_cast<Index>(all.size()), rows, kWidth);
  std::fill_n(x.data(), x.size(), std::numeric_limits<T>::quiet_NaN());
  for (std::size_t b = 0; b < all.size(); ++b) {
    const Index pad = side == PaddingSide::Left ? rows - counts[b] : 0;
    for (Index l = 0; l < counts[b]; ++l) {
      for (Index e = 0; e < kWidth; ++e) x(static_cast<Index>(b), pad + l, e) = all[b](0, first[b] + l, e);
    }
  }
  return x;
}

/// Gives the sequences to a layer in calls of the given counts, and collects what it computes.
template <class T, class Layer>
std::vector<Tensor<T, 3>> in_calls(const Layer& layer, const AnyAttention<T>& attention,
                                   const std::vector<Tensor<T, 3>>& all, heed::AnyKvCache<T>& kv,
                                   const std::vector<std::vector<int>>& calls, Context& context,
                                   PaddingSide side = PaddingSide::Right) {
  std::vector<Tensor<T, 3>> results;
  for (const auto& x : all) results.emplace_back(1, x.extent(1), kWidth);
  std::vector<int> done(all.size(), 0);
  for (const std::vector<int>& counts : calls) {
    const Tensor<T, 3> x = batch_of(all, done, counts, side);
    Tensor<T, 3> y(x.extent(0), x.extent(1), kWidth);
    layer.forward(x, attention, y, kv.step(counts, side), context);
    for (std::size_t b = 0; b < all.size(); ++b) {
      const Index pad = side == PaddingSide::Left ? x.extent(1) - counts[b] : 0;
      for (Index l = 0; l < counts[b]; ++l, ++done[b]) {
        for (Index e = 0; e < kWidth; ++e) results[b](0, done[b], e) = y(static_cast<Index>(b), pad + l, e);
      }
    }
  }
  for (std::size_t b = 0; b < all.size(); ++b) {
    EXPECT_EQ(done[b], all[b].extent(1));
    EXPECT_EQ(kv.length(static_cast<Index>(b)), all[b].extent(1));
  }
  return results;
}

/// Cuts lengths into calls of random counts, 0 among them.
std::vector<std::vector<int>> random_calls(std::vector<int> lengths, int most, heed_test::Random& random) {
  std::vector<std::vector<int>> calls;
  while (std::any_of(lengths.begin(), lengths.end(), [](int n) { return n > 0; })) {
    std::vector<int> counts;
    for (int& left : lengths) {
      counts.push_back(std::min(left, random.integer(0, most)));
      left -= counts.back();
    }
    calls.push_back(counts);
  }
  return calls;
}

/// Attention that depends on positions in every possible way.
template <class T>
std::vector<AnyAttention<T>> positional_attentions() {
  static const std::vector<double> sinks{0.5, -1, 2, 0};
  return {Causal{},
          heed::Attention(Causal{}, heed::Alibi(4)),
          heed::Attention(Causal{} & Window(5, 0), heed::SoftCap(3)),
          Window(4, 0) | (GlobalTokens(2) & Causal{}),
          heed::Strided(3, 2) & Causal{},
          heed::mask([](int q, int k) { return k <= q && (q + k) % 3 != 1; }),
          heed::Attention(Causal{}, heed::AttentionOptions{.scale = 0.3, .sinks = sinks})};
}

TYPED_TEST(KvCaches, PromptPiecesAndSingleStepsAgree) {
  using T = TypeParam;
  heed_test::Random random(5);
  const Encoder<T> encoder = llama<T>({.length = 8});
  const std::vector<int> lengths{23, 9, 31};
  const auto all = sequences<T>(lengths);
  Context context;
  int number = 0;
  for (const AnyAttention<T>& attention : positional_attentions<T>()) {
    for (const int most : {1, 4, 31}) {
      KvCache<T> kv(encoder, {.batch = 3, .capacity = 31});
      const auto results = in_calls<T>(encoder, attention, all, kv, random_calls(lengths, most, random), context);
      for (std::size_t b = 0; b < all.size(); ++b) {
        Tensor<T, 3> whole(1, all[b].extent(1), kWidth);
        encoder.forward(all[b], attention, whole, context);
        EXPECT_LE(max_error(results[b], whole), kRounding<T>) << "attention " << number << ", at most " << most;
      }
    }
    ++number;
  }
}

TYPED_TEST(KvCaches, ASampleHasTheSameBitsAloneAndWithPaddingOnEitherSide) {
  using T = TypeParam;
  const Encoder<T> encoder = llama<T>();
  const std::vector<int> lengths{12, 5, 19, 12};
  const auto all = sequences<T>(lengths);
  const std::vector<std::vector<int>> calls{{7, 2, 15, 7}, {1, 1, 1, 1}, {0, 1, 2, 0}, {4, 1, 1, 4}};
  Context context;
  for (const AnyAttention<T>& attention : positional_attentions<T>()) {
    KvCache<T> right(encoder, {.batch = 4, .capacity = 20}), left(encoder, {.batch = 4, .capacity = 20});
    const auto padded = in_calls<T>(encoder, attention, all, right, calls, context);
    const auto padded_left = in_calls<T>(encoder, attention, all, left, calls, context, PaddingSide::Left);
    for (std::size_t b = 0; b < all.size(); ++b) {
      KvCache<T> kv(encoder, {.capacity = 20});
      std::vector<std::vector<int>> own;
      for (const auto& counts : calls) {
        if (counts[b] > 0) own.push_back({counts[b]});
      }
      const auto alone = in_calls<T>(encoder, attention, {all[b]}, kv, own, context);
      EXPECT_TRUE(bits_equal(alone[0], padded[b])) << b;
      EXPECT_TRUE(bits_equal(alone[0], padded_left[b])) << b;
    }
  }
}

/// A layer that attends with q, k and v as they stand side by side in x, and puts the result into the first columns of
/// y.
heed::MultiHeadAttention<double> identity_layer(Index head_dim, Index value_head_dim, bool rotary) {
  const Index width = 2 * head_dim + value_head_dim;
  heed::MultiHeadAttention<double> layer({.embed_dim = width,
                                          .num_heads = 1,
                                          .head_dim = head_dim,
                                          .value_head_dim = value_head_dim,
                                          .bias = false,
                                          .rotary = {.enabled = rotary}});
  layer.in_proj_weight = Eigen::MatrixXd::Identity(width, width);
  layer.out_proj.weight = Eigen::MatrixXd::Identity(width, value_head_dim);
  return layer;
}

// Case C21: a prompt in one call, in pieces and in single steps, by hand and with rotary positions.
TEST(KvCaches, C21_AnyCutOfAPromptGivesTheSame) {
  const std::vector<std::vector<int>> cuts{{4}, {1, 3}, {2, 2}, {3, 1}, {1, 1, 1, 1}};
  const auto check = [&](const heed::MultiHeadAttention<double>& layer, const Eigen::MatrixXd& x,
                         const Eigen::MatrixXd& expected) {
    for (const std::vector<int>& cut : cuts) {
      KvCache<double> kv(layer, {.capacity = 4});
      Eigen::MatrixXd y(4, x.cols());
      Index done = 0;
      for (const int n : cut) {
        y.middleRows(done, n) = layer(x.middleRows(done, n), Causal{}, kv);
        done += n;
      }
      EXPECT_LE((y.leftCols(expected.cols()) - expected).cwiseAbs().maxCoeff(), 1e-12) << cut.size() << " pieces";
    }
  };
  Eigen::MatrixXd x = Eigen::MatrixXd::Zero(4, 3);
  x.col(2) << 4, 8, 30, 2;
  check(identity_layer(1, 1, false), x, Eigen::Vector4d(4, 6, 14, 11));

  Eigen::MatrixXd turned(4, 10), expected(4, 2);
  turned << 0.0, 0.3, -0.27, -0.89, -1.34, -0.46, -1.9, -1.29, -0.98, -0.81,  //
      -0.45, -0.99, 0.06, 1.34, -1.84, -0.24, -1.27, 0.27, 1.06, -0.81,       //
      -0.49, -0.62, 0.49, 0.36, 0.16, -0.19, -2.52, -0.54, -0.03, 0.88,       //
      0.11, -0.93, -0.03, 0.7, -0.05, 0.11, -1.53, -0.48, -0.58, -0.11;
  expected << -0.98, -0.81,                      //
      0.4174857156644668, -0.81,                 //
      0.09677587154425075, -0.6351885607531864,  //
      -0.022015790618895165, -0.2673842729447241;
  check(identity_layer(4, 2, true), turned, expected);
}

// The lists of masks have an entry for each sample, also where samples of different lengths run one by one.
TEST(KvCaches, MasksOfSamplesKeepTheirSample) {
  const Encoder<double> encoder = llama<double>();
  const std::vector<int> lengths{6, 9}, hidden{2, 3}, none{100, 100};
  const auto all = sequences<double>(lengths);
  Context context;
  const auto mask =
      heed::mask([&](int b, int, int q, int k) { return k <= q && (k == q || k != hidden[b ? 1u : 0u]); });
  KvCache<double> kv(encoder, {.batch = 2, .capacity = 9});
  const auto results = in_calls<double>(encoder, mask, all, kv, {{4, 6}, {2, 1}, {0, 2}}, context);
  for (std::size_t b = 0; b < 2; ++b) {
    Tensor<double, 3> whole(1, lengths[b], kWidth);
    const int key = hidden[b];
    encoder.forward(all[b], heed::mask([key](int q, int k) { return k <= q && (k == q || k != key); }), whole, context);
    EXPECT_LE(max_error(results[b], whole), 1e-13);
  }
  const std::vector<int> begin{1, 0}, end{9, 9};
  KvCache<double> padded(encoder, {.batch = 2, .capacity = 9});
  const auto seen =
      in_calls<double>(encoder, Causal{} & heed::Padding(begin, end), all, padded, {{5, 9}, {1, 0}}, context);
  Tensor<double, 3> whole(1, 6, kWidth);
  encoder.forward(all[0], Causal{} & heed::mask([](int, int k) { return k >= 1; }), whole, context);
  EXPECT_LE(max_error(seen[0], whole), 1e-13);
}

/// Rows of x after they were stored in 8 bits: 32 numbers share a factor, the largest of them is 127.
Tensor<float, 3> in_eight_bits(const Tensor<float, 3>& x) {
  Tensor<float, 3> y(x.extents());
  for (Index l = 0; l < x.extent(1); ++l) {
    for (Index d = 0; d < x.extent(2); ++d) {
      float most = 0;
      for (Index i = d / 32 * 32; i < std::min(d / 32 * 32 + 32, x.extent(2)); ++i) {
        most = std::max(most, std::abs(x(0, l, i)));
      }
      y(0, l, d) = std::nearbyint(x(0, l, d) * (1 / (most / 127))) * (most / 127);
    }
  }
  return y;
}
template <class S>
Tensor<S, 3> stored_as(const Tensor<float, 3>& x) {
  Tensor<S, 3> y(x.extents());
  std::transform(x.data(), x.data() + x.size(), y.data(), [](float number) { return static_cast<S>(number); });
  return y;
}

// Attention to what a cache stores in fewer bits is attention to the rounded keys and values.
TEST(KvCaches, KeysAndValuesInFewerBits) {
  heed::SelfAttention<float> layer({.embed_dim = kWidth, .head_dim = 40, .value_head_dim = kWidth});
  fill_parameters<float>(layer, 1);
  const auto x = random_tensor<float, 3>({1, 21, kWidth});
  const Tensor<float, 3> q = layer.q_proj(x), k = layer.k_proj(x), v = layer.v_proj(x);
  Context context;
  const auto in_cache = [&](heed::AnyKvCache<float>& kv) {
    Tensor<float, 3> y(1, 21, kWidth);
    layer.forward(x.view().slice(1, 0, 16), Causal{}, y.view().slice(1, 0, 16), kv, context);
    for (Index l = 16; l < 21; ++l) {
      layer.forward(x.view().slice(1, l, 1), Causal{}, y.view().slice(1, l, 1), kv, context);
    }
    return y;
  };
  KvCache<float> full(layer, {.capacity = 21});
  KvCache<float, heed::half> half(layer, {.capacity = 21});
  KvCache<float, heed::bfloat16> bfloat16(layer, {.capacity = 21});
  KvCache<float, std::int8_t> eight(layer, {.capacity = 21});
  const auto expected = [&](const auto& keys, const auto& values) {
    return heed::attention(q, keys, values, Causal{});
  };
  const Tensor<float, 3> exact = expected(k, v);
  EXPECT_LE(max_error(in_cache(full), exact), 2e-5);
  EXPECT_LE(max_error(in_cache(half), expected(stored_as<heed::half>(k), stored_as<heed::half>(v))), 2e-5);
  EXPECT_LE(max_error(in_cache(bfloat16), expected(stored_as<heed::bfloat16>(k), stored_as<heed::bfloat16>(v))), 2e-5);
  EXPECT_LE(max_error(in_cache(eight), expected(in_eight_bits(k), in_eight_bits(v))), 2e-5);
  eight.clear();
  EXPECT_GT(max_error(in_cache(eight), exact), 1e-4) << "nothing was rounded";
  EXPECT_EQ(full.bytes(), 21u * (40 + 16) * 4);
  EXPECT_EQ(half.bytes(), 21u * (40 + 16) * 2);
  EXPECT_EQ(eight.bytes(), 21u * ((40 + 16) + (2 + 1) * 4)) << "a factor for 32 numbers, or the rest of a row";
}

// A visible number that is not finite shows, although a block of 8 bits can't hold it.
TEST(KvCaches, VisibleNumbersThatAreNotFiniteShow) {
  heed::SelfAttention<float> layer({.embed_dim = 4});
  fill_parameters<float>(layer, 1);
  KvCache<float, std::int8_t> kv(layer, {.capacity = 3});
  Tensor<float, 3> x = random_tensor<float, 3>({1, 3, 4}), y(1, 3, 4);
  x(0, 2, 1) = std::numeric_limits<float>::infinity();
  Context context;
  layer.forward(x, Causal{}, y, kv, context);
  EXPECT_TRUE(std::isfinite(y(0, 1, 0)));
  EXPECT_FALSE(std::isfinite(y(0, 2, 0)));
}

// Speculative decoding: tokens that were tried and taken back leave no trace, whatever they held.
TYPED_TEST(KvCaches, TokensTakenBackLeaveNoTrace) {
  using T = TypeParam;
  const Encoder<T> encoder = llama<T>();
  const auto all = sequences<T>({14, 14});
  Context context;
  KvCache<T> kv(encoder, {.batch = 2, .capacity = 16}), straight(encoder, {.batch = 2, .capacity = 16});
  const auto expected = in_calls<T>(encoder, Causal{}, all, straight, {{6, 9}, {1, 1}, {7, 4}}, context);

  Tensor<T, 3> poison(2, 4, kWidth), y(2, 4, kWidth);
  std::fill_n(poison.data(), poison.size(), std::numeric_limits<T>::quiet_NaN());
  encoder.forward(poison, Causal{}, y, kv, context);
  kv.rewind(4);
  std::vector<Tensor<T, 3>> results;
  for (const auto& x : all) results.emplace_back(1, x.extent(1), kWidth);
  std::vector<int> done{0, 0};
  for (const std::vector<int>& counts : {std::vector<int>{6, 9}, {1, 1}, {7, 4}}) {
    const Tensor<T, 3> x = batch_of(all, done, counts, PaddingSide::Right);
    Tensor<T, 3> out(x.extents());
    encoder.forward(x, Causal{}, out, kv.step(counts), context);
    for (std::size_t b = 0; b < 2; ++b) {
      for (Index l = 0; l < counts[b]; ++l, ++done[b]) {
        for (Index e = 0; e < kWidth; ++e) results[b](0, done[b], e) = out(static_cast<Index>(b), l, e);
      }
    }
    if (kv.length(0) + 2 > 16) continue;
    encoder.forward(poison.view().slice(1, 0, 2), Causal{}, y.view().slice(1, 0, 2), kv, context);
    kv.truncate(0, done[0]);
    kv.truncate(1, done[1]);
  }
  for (std::size_t b = 0; b < 2; ++b) EXPECT_TRUE(bits_equal(results[b], expected[b]));
}

TEST(KvCaches, PrefixesAreShared) {
  const Encoder<float> encoder = llama<float>();
  const auto all = sequences<float>({9, 9});
  Context context;
  KvCache<float> kv(encoder, {.batch = 3, .capacity = 12}), alone(encoder, {.capacity = 12});
  const std::vector<int> prompt{6, 0, 0};
  const Tensor<float, 3> x = batch_of<float>({all[0], all[0], all[0]}, {0, 0, 0}, prompt, PaddingSide::Right);
  Tensor<float, 3> y(x.extents());
  encoder.forward(x, Causal{}, y, kv.step(prompt), context);
  kv.copy_prefix(0, 1, 6);
  kv.copy_prefix(0, 2, 4);
  EXPECT_EQ(kv.lengths(), (std::vector<int>{6, 6, 4}));
  // Sample 2 goes on with the other sequence.
  const std::vector<int> next{1, 1, 3};
  Tensor<float, 3> more(3, 3, kWidth);
  std::fill_n(more.data(), more.size(), 0.f);
  for (Index e = 0; e < kWidth; ++e) {
    more(0, 0, e) = more(1, 0, e) = all[0](0, 6, e);
    for (Index l = 0; l < 3; ++l) more(2, l, e) = all[1](0, l, e);
  }
  Tensor<float, 3> out(more.extents());
  encoder.forward(more, Causal{}, out, kv.step(next), context);
  EXPECT_TRUE(bits_equal(out.view()[0].slice(0, 0, 1).unsqueeze(), out.view()[1].slice(0, 0, 1).unsqueeze()));

  Tensor<float, 3> whole(1, 7, kWidth), result(1, 7, kWidth);
  for (Index l = 0; l < 7; ++l) {
    for (Index e = 0; e < kWidth; ++e) whole(0, l, e) = l < 4 ? all[0](0, l, e) : all[1](0, l - 4, e);
  }
  encoder.forward(whole, Causal{}, result, context);
  EXPECT_LE(max_error(out.view().slice(0, 2, 1), result.view().slice(1, 4, 3)), kRounding<float>);
  kv.clear(2);
  EXPECT_EQ(kv.lengths(), (std::vector<int>{7, 7, 0}));
  kv.clear();
  EXPECT_EQ(kv.lengths(), (std::vector<int>{0, 0, 0}));
}

// A window that moves over a long sequence sees what a mask on the whole sequence shows, however the calls cut it.
TYPED_TEST(KvCaches, AWindowSeesTheRecentTokensAndTheSinks) {
  using T = TypeParam;
  const Encoder<T> encoder = llama<T>({.length = 50});
  const std::vector<int> lengths{150, 91};
  const auto all = sequences<T>(lengths);
  heed_test::Random random(6);
  Context context;
  for (const int window : {1, 7, 40}) {
    for (const int sinks : {0, 3}) {
      std::vector<Tensor<T, 3>> expected;
      for (const auto& x : all) {
        const auto mask = heed::mask([=](int q, int k) { return k <= q && (k < sinks || q - k < window); });
        encoder.forward(x, mask, expected.emplace_back(1, x.extent(1), kWidth), context);
      }
      for (const int most : {1, 9, 150}) {
        KvCache<T> kv(encoder, {.batch = 2, .window = window, .sinks = sinks});
        const auto results = in_calls<T>(encoder, Causal{}, all, kv, random_calls(lengths, most, random), context);
        for (std::size_t b = 0; b < 2; ++b) {
          EXPECT_LE(max_error(results[b], expected[b]), kRounding<T>) << window << ' ' << sinks << ' ' << most;
        }
        EXPECT_THROW(kv.rewind(1), heed::ValueError);
        EXPECT_EQ(kv.length(0), 150);
      }
    }
  }
}

// ALiBi counts distances, which are the same in a window that moves.
TEST(KvCaches, ModifiersKeepTheirDistancesInAWindow) {
  const Encoder<double> encoder = llama<double>();
  const auto all = sequences<double>({120});
  Context context;
  KvCache<double> kv(encoder, {.window = 20});
  const std::vector<std::vector<int>> calls{{50}, {1}, {1}, {40}, {28}};
  const auto results = in_calls<double>(encoder, heed::Attention(Causal{}, heed::Alibi(4)), all, kv, calls, context);
  Tensor<double, 3> whole(1, 120, kWidth);
  encoder.forward(all[0], heed::Attention(Causal{} & Window(19, 0), heed::Alibi(4)), whole, context);
  EXPECT_LE(max_error(results[0], whole), 1e-13);
}

TYPED_TEST(KvCaches, ADecoderProjectsItsMemoryOnce) {
  using T = TypeParam;
  for (const heed::NormPlacement placement : {heed::NormPlacement::Pre, heed::NormPlacement::Post}) {
    heed::Decoder<T> decoder({.num_layers = 2,
                              .layer = {.embed_dim = kWidth,
                                        .num_heads = 4,
                                        .norm_placement = placement,
                                        .num_kv_heads = 2,
                                        .rotary = {},
                                        .memory_dim = 10},
                              .final_norm = true});
    fill_parameters<T>(decoder, 3);
    Context context;
    const auto x = random_tensor<T, 3>({2, 9, kWidth}, 1), memory = random_tensor<T, 3>({2, 6, 10}, 2);
    const std::vector<int> memory_lengths{6, 4};
    const heed::DecoderAttention<T> attention{Causal{}, heed::Padding(memory_lengths)};
    Tensor<T, 3> expected(2, 9, kWidth), y(2, 9, kWidth);
    decoder.forward(x, memory, attention, expected, context);

    heed::DecoderKvCache<T> kv(decoder, {.batch = 2, .capacity = 9}, 6);
    decoder.remember(memory, kv.memory, context);
    EXPECT_EQ(kv.memory.length(1), 6);
    Index done = 0;
    for (const Index n : {4, 1, 1, 3}) {
      decoder.forward(x.view().slice(1, done, n), attention, y.view().slice(1, done, n), kv.step(), context);
      done += n;
    }
    EXPECT_EQ(kv.self.length(), 9);
    EXPECT_LE(max_error(y, expected), kRounding<T>);
    EXPECT_THROW(decoder.remember(memory, kv.memory, context), heed::ValueError);
    EXPECT_THROW(
        decoder.forward(x.view().slice(1, 0, 1), attention, y.view().slice(1, 0, 1), heed::DecoderKvStep<T>{}, context),
        heed::ValueError);
  }
}

TEST(KvCaches, OfSingleLayersAndOfAModelOfTwoStacks) {
  Context context;
  const auto x = random_tensor<double, 3>({2, 8, kWidth});
  Tensor<double, 3> expected(x.extents()), y(x.extents());
  const auto in_steps = [&](const auto& forward, heed::AnyKvCache<double>& kv) {
    for (Index l = 0; l < 8; ++l) forward(x.view().slice(1, l, 1), y.view().slice(1, l, 1), kv.step());
  };
  heed::MultiHeadAttention<double> mha(
      {.embed_dim = kWidth, .num_heads = 4, .rotary = {}, .qk_norm = heed::NormOptions{}});
  fill_parameters<double>(mha, 1);
  mha.forward(x, Causal{}, expected, context);
  KvCache<double> kv(mha, {.batch = 2, .capacity = 8});
  in_steps([&](const auto& in, const auto& out,
               const KvStep<double>& step) { mha.forward(in, Causal{}, out, step, context); },
           kv);
  EXPECT_LE(max_error(y, expected), 1e-13);

  heed::SelfAttention<double> self({.embed_dim = kWidth, .head_dim = 6, .value_head_dim = 10, .out_dim = kWidth});
  fill_parameters<double>(self, 2);
  self.forward(x, Causal{}, expected, context);
  KvCache<double> of_self(self, {.batch = 2, .capacity = 8});
  in_steps([&](const auto& in, const auto& out,
               const KvStep<double>& step) { self.forward(in, Causal{}, out, step, context); },
           of_self);
  EXPECT_LE(max_error(y, expected), 1e-13);

  const Encoder<double> first = llama<double>(), second = llama<double>();
  Tensor<double, 3> middle(x.extents());
  first.forward(x, Causal{}, middle, context);
  second.forward(middle, Causal{}, expected, context);
  heed::KvShape shape = first.kv_shape();
  shape.num_layers += second.size();
  KvCache<double> both(shape, {.batch = 2, .capacity = 8});
  in_steps(
      [&](const auto& in, const auto& out, const KvStep<double>& step) {
        first.forward(in, Causal{}, out, step, context);
        second.forward(out, Causal{}, out, step.layer(first.size()), context);
      },
      both);
  EXPECT_LE(max_error(y, expected), 1e-13);
  EXPECT_EQ(both.length(), 8);
}

// Tables of positions go on from the length, and padding on the left has no position of its own.
TEST(KvCaches, PositionsGoOn) {
  const Encoder<double> encoder = llama<double>(heed::kNoRotary);
  KvCache<double> kv(encoder, {.batch = 2, .capacity = 12});
  heed::LearnedPositions<double> learned({.length = 12, .embed_dim = kWidth});
  fill_parameters<double>(learned, 4);
  Context context;
  const auto all = sequences<double>({9, 7});
  std::vector<int> done{0, 0};
  for (const std::vector<int>& counts : {std::vector<int>{5, 2}, {3, 1}, {1, 4}}) {
    for (const PaddingSide side : {PaddingSide::Right, PaddingSide::Left}) {
      const Tensor<double, 3> x = batch_of(all, done, counts, side);
      Tensor<double, 3> y(x.extents());
      const KvStep<double> step = kv.step(counts, side);
      learned.forward(x, step.positions(x.extent(1)), y, context);
      for (Index b = 0; b < 2; ++b) {
        const std::size_t at = static_cast<std::size_t>(b);
        const Index pad = side == PaddingSide::Left ? x.extent(1) - counts[at] : 0;
        for (Index l = 0; l < counts[at]; ++l) {
          EXPECT_EQ(y(b, pad + l, 3), x(b, pad + l, 3) + learned.weight.matrix()(done[at] + l, 3));
        }
      }
      if (side == PaddingSide::Right) continue;
      encoder.forward(y, Causal{}, y, step, context);
      for (std::size_t b = 0; b < 2; ++b) done[b] += counts[b];
    }
  }
}

class WeightSums : public heed::Observer {
 public:
  void output(std::string_view, const heed::ObservedTensor&) override {}
  bool wants_weights(std::string_view) override { return true; }
  void weights(std::string_view, const heed::ObservedTensor& w) override {
    keys.push_back(w.extent(3));
    for (Index q = 0; q < w.extent(2); ++q) {
      double sum = 0;
      for (Index k = 0; k < w.extent(3); ++k) sum += w(0, 0, q, k);
      EXPECT_NEAR(sum, 1, 1e-6);
    }
  }
  void mask(std::string_view, const heed::Extents<4>& extents, heed::ObservedMask visible) override {
    for (int q = 0; q < extents[2]; ++q) {
      const int position = static_cast<int>(extents[3] - extents[2]) + q;
      for (int k = 0; k < extents[3]; ++k) EXPECT_EQ(visible(0, 0, q, k), k <= position);
    }
  }
  std::vector<Index> keys;
};

TEST(KvCaches, ObserversAreShownTheWeightsOfAllKeys) {
  const Encoder<float> encoder = llama<float>();
  const auto x = random_tensor<float, 3>({1, 7, kWidth});
  WeightSums sums;
  Context context;
  context.observer = &sums;
  KvCache<float> kv(encoder, {.capacity = 7});
  Tensor<float, 3> y(x.extents());
  encoder.forward(x.view().slice(1, 0, 5), Causal{}, y.view().slice(1, 0, 5), kv, context);
  encoder.forward(x.view().slice(1, 5, 1), Causal{}, y.view().slice(1, 5, 1), kv, context);
  EXPECT_EQ(sums.keys, (std::vector<Index>{5, 5, 6, 6}));
}

TEST(KvCaches, WarmStepsAllocateNothing) {
  if (!heed_test::counts_allocations()) GTEST_SKIP() << "allocations are not counted on this platform";
  const Encoder<float> encoder = llama<float>();
  const auto x = random_tensor<float, 3>({2, 1, kWidth});
  Tensor<float, 3> y(x.extents());
  Context context;
  KvCache<float> kv(encoder, {.batch = 2, .capacity = 700});
  KvCache<float, heed::half> window(encoder, {.batch = 2, .window = 16, .sinks = 2});
  const std::vector<int> counts{1, 0};
  const auto steps = [&](int n) {
    for (int i = 0; i < n; ++i) {
      encoder.forward(x, Causal{}, y, kv, context);
      encoder.forward(x, Causal{}, y, kv.step(counts), context);
      encoder.forward(x, Causal{}, y, window, context);
    }
  };
  steps(300);
  kv.rewind(100);
  EXPECT_EQ(heed_test::allocations_of([&] { steps(50); }), 0);
}

TEST(KvCaches, MistakesAreNamed) {
  const Encoder<float> encoder = llama<float>();
  Context context;
  const auto x = random_tensor<float, 3>({2, 5, kWidth});
  Tensor<float, 3> y(x.extents());
  KvCache<float> kv(encoder, {.batch = 2, .capacity = 8});
  const auto call = [&](heed::AnyKvCache<float>& cache) { encoder.forward(x, Causal{}, y, cache, context); };
  call(kv);
  EXPECT_EQ(message_of<heed::ValueError>([&] { call(kv); }),
            "heed::MultiHeadAttention: sample 0 has 5 tokens and 5 more are added, but the KvCache holds 8; make its "
            "capacity larger, truncate() it, or give it a window");
  EXPECT_EQ(kv.lengths(), (std::vector<int>{5, 5}));
  const std::vector<int> counts{3, 4}, too_many{6, 0}, three{1, 1, 1};
  EXPECT_NE(message_of<heed::ValueError>([&] {
              encoder.forward(x, Causal{}, y, kv.step(counts), context);
            }).find("sample 1 has 5 tokens and 4 more"),
            std::string::npos);
  EXPECT_NE(message_of<heed::ValueError>([&] {
              encoder.forward(x, Causal{}, y, kv.step(too_many), context);
            }).find("sample 0 has count = 6 but x has 5 rows"),
            std::string::npos);
  EXPECT_NE(message_of<heed::ShapeError>([&] { kv.step(three); }).find("3 counts but the cache has B = 2"),
            std::string::npos);
  EXPECT_NE(message_of<heed::ShapeError>([&] {
              encoder.forward(x.view().slice(0, 0, 1), Causal{}, y.view().slice(0, 0, 1), kv, context);
            }).find("x has B = 1 but the KvCache has B = 2"),
            std::string::npos);
  // A cache of another model.
  KvCache<float> other(heed::KvShape{.num_layers = 2, .num_kv_heads = 2, .head_dim = 8, .value_head_dim = 4},
                       {.batch = 2, .capacity = 8});
  EXPECT_NE(message_of<heed::ShapeError>([&] { call(other); }).find("the KvCache has head_dim = 8 but the layer has 4"),
            std::string::npos);
  KvCache<float> of_one(encoder.layers[0], {.batch = 2, .capacity = 8});
  EXPECT_NE(message_of<heed::ShapeError>([&] { call(of_one); }).find("layer 1 of a KvCache for 1 layers"),
            std::string::npos);
  // The call above stopped between two layers; a cache of two layers that only one layer uses stops at its second call.
  KvCache<float> unfinished(encoder, {.batch = 2, .capacity = 8});
  encoder.layers[0].forward(x, Causal{}, y, unfinished, context);
  EXPECT_NE(message_of<heed::ValueError>([&] { call(unfinished); }).find("a KvCache whose next layer is 1"),
            std::string::npos);
  EXPECT_EQ(unfinished.length(), 0);
  unfinished.rewind(0);
  call(unfinished);
  EXPECT_EQ(unfinished.length(), 5);
  // Alignments are those of calls without a cache.
  const std::vector<int> first{5, 5};
  kv.clear();
  EXPECT_NE(message_of<heed::ValueError>([&] {
              encoder.forward(x, Causal::from(first), y, kv, context);
            }).find("in a layer with a KvCache positions go on from its length; give heed::Causal without"),
            std::string::npos);
  kv.clear();
  EXPECT_NE(message_of<heed::ValueError>([&] {
              encoder.forward(x, heed::LinearAttention(), y, kv, context);
            }).find("only softmax attention"),
            std::string::npos);
  kv.clear();
  EXPECT_THROW(kv.truncate(0, 1), heed::ValueError);
  EXPECT_THROW(kv.truncate(2, 0), heed::ShapeError);
  EXPECT_THROW(kv.copy_prefix(0, 1, 1), heed::ValueError);
  EXPECT_THROW(kv.rewind(1), heed::ValueError);
  EXPECT_THROW(KvCache<float>(encoder, {.batch = 2}), heed::ShapeError);
  EXPECT_THROW(KvCache<float>(encoder, {.capacity = 4, .window = 4}), heed::ShapeError);
  EXPECT_THROW(KvCache<float>(encoder, {.capacity = 4, .sinks = 1}), heed::ShapeError);
  EXPECT_THROW(KvCache<float>(encoder, {.batch = -1, .capacity = 4}), heed::ShapeError);
  // Cross-attention with rotary positions of its queries.
  heed::MultiHeadAttention<float> turned({.embed_dim = kWidth, .num_heads = 4, .rotary = {}});
  fill_parameters<float>(turned, 1);
  KvCache<float> stored(turned, {.batch = 2, .capacity = 8});
  turned.append(x, x, stored, context);
  EXPECT_NE(message_of<heed::ValueError>([&] {
              turned.forward(x, Causal{}, y, stored.stored(), context);
            }).find("the queries of stored() have no positions"),
            std::string::npos);
}

TEST(KvCaches, NothingToAddIsACall) {
  const Encoder<float> encoder = llama<float>();
  Context context;
  KvCache<float> kv(encoder, {.batch = 2, .capacity = 3});
  Tensor<float, 3> none(2, 0, kWidth);
  encoder.forward(none, Causal{}, none, kv, context);
  const std::vector<int> counts{0, 0};
  const auto x = random_tensor<float, 3>({2, 2, kWidth});
  const Tensor<float, 3> y = encoder(x, Causal{}, kv.step(counts), context);
  EXPECT_EQ(kv.lengths(), counts);
  KvCache<float> empty(encoder, {.batch = 0, .capacity = 3});
  Tensor<float, 3> no_samples(0, 2, kWidth);
  encoder.forward(no_samples, Causal{}, no_samples, empty, context);
}

}  // namespace
