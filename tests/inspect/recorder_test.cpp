// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <heed/compiled/layers.hpp>
#include <heed/inspect/recorder.hpp>
#include <heed/mask/any_mask.hpp>
#include <heed/mask/basic.hpp>
#include <heed/nn/self_attention.hpp>
#include <heed/nn/transformer.hpp>

#include "common/message_of.hpp"

namespace {

using heed::Context;
using heed::Index;
using heed::Recorder;
using heed::Tensor;

Tensor<float, 3> numbers(Index B, Index L, Index E) {
  Tensor<float, 3> x(B, L, E);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<float>((i * 37 + 11) % 101) / 50 - 1;
  return x;
}

template <heed::AnyTensor X>
heed::ObservedTensor seen(const X& x) {
  return heed::TensorView<const heed::scalar_of_t<X>, heed::rank_of_v<X>>(heed::view_of(x));
}

std::vector<std::string> layers_of(const Recorder& recorder) {
  std::vector<std::string> names;
  for (const auto& one : recorder.attention()) names.push_back(one.layer);
  return names;
}

/// Weights are exactly 0 where the mask hides, and rows with a visible key sum to 1.
void expect_weights_under(const heed::RecordedAttention& one) {
  const auto& e = one.weights.extents();
  ASSERT_EQ(one.mask.extents(), e);
  for (Index b = 0; b < e[0]; ++b) {
    for (Index h = 0; h < e[1]; ++h) {
      for (Index q = 0; q < e[2]; ++q) {
        double sum = 0;
        bool any = false;
        for (Index k = 0; k < e[3]; ++k) {
          sum += one.weights(b, h, q, k);
          any = any || one.mask(b, h, q, k);
          if (!one.mask(b, h, q, k)) {
            ASSERT_EQ(one.weights(b, h, q, k), 0);
          }
        }
        ASSERT_NEAR(sum, any ? 1 : 0, 1e-6) << one.layer << ' ' << b << ' ' << h << ' ' << q;
      }
    }
  }
}

/// One type for all masks, so that attention is compiled once here.
using heed::AnyMask;
const AnyMask kCausalMask = heed::Causal{};

TEST(Recorder, SeesEveryAttentionLayerOfADecoderCrossAttentionToo) {
  heed::Decoder<float> decoder({.num_layers = 2, .layer = {.embed_dim = 16, .num_heads = 2}});
  heed::Random random(1);
  decoder.initialize(random);
  const std::vector<int> lengths{3, 5};
  const AnyMask padding = heed::Padding(lengths);
  const Tensor<float, 3> x = numbers(2, 4, 16), memory = numbers(2, 5, 16);
  Tensor<float, 3> plain(2, 4, 16), y(2, 4, 16);
  Context context;
  decoder.forward(x, memory, {kCausalMask, padding}, plain, context);

  Recorder recorder;
  context.observer = &recorder;
  decoder.forward(x, memory, {kCausalMask, padding}, y, context);
  for (Index i = 0; i < y.size(); ++i) EXPECT_NEAR(y.data()[i], plain.data()[i], 1e-5) << "looking must change nothing";
  EXPECT_EQ(layers_of(recorder), (std::vector<std::string>{"layers.0.self_attn", "layers.0.multihead_attn",
                                                           "layers.1.self_attn", "layers.1.multihead_attn"}));
  const auto& self = recorder.of("layers.1.self_attn");
  EXPECT_EQ(self.weights.extents(), (heed::Extents<4>{2, 2, 4, 4}));
  const auto& cross = recorder.of("layers.0.multihead_attn");
  EXPECT_EQ(cross.weights.extents(), (heed::Extents<4>{2, 2, 4, 5}));
  for (Index h = 0; h < 2; ++h) {
    for (Index q = 0; q < 4; ++q) {
      for (Index k = 0; k < 5; ++k) {
        if (k < 4) {
          EXPECT_EQ(self.mask(1, h, q, k), k <= q);
        }
        EXPECT_EQ(cross.mask(0, h, q, k), k < 3);
        EXPECT_EQ(cross.mask(1, h, q, k), 1);
      }
    }
  }
  for (const auto& one : recorder.attention()) expect_weights_under(one);
}

TEST(Record, RestoresTheObserver) {
  heed::SelfAttention<float> layer({.embed_dim = 16});
  heed::Random random(1);
  layer.initialize(random);
  const Tensor<float, 3> x = numbers(1, 6, 16);
  Tensor<float, 3> y(1, 6, 16);
  Context context;
  const auto forward = [&] {
    const Context::Scope scope(context, "single");
    layer.forward(x, kCausalMask, y, context);
  };
  const Recorder recorder = heed::record(context, forward);
  EXPECT_EQ(context.observer, nullptr);
  EXPECT_EQ(layers_of(recorder), std::vector<std::string>{"single"});
  EXPECT_TRUE(heed::record(context, forward, {.weights = {"other"}}).attention().empty());

  Recorder outer;
  context.observer = &outer;
  EXPECT_THROW(heed::record(context, [] { throw std::runtime_error("forward"); }), std::runtime_error);
  EXPECT_EQ(context.observer, &outer);
  EXPECT_TRUE(outer.attention().empty());
}

TEST(Recorder, SeesTrainingForwardsAndTheSingleHead) {
  heed::Encoder<float> encoder(
      {.num_layers = 1, .layer = {.embed_dim = 16, .num_heads = 4, .norm_placement = heed::NormPlacement::Pre}});
  heed::Random random(1);
  encoder.initialize(random);
  const Tensor<float, 3> x = numbers(1, 6, 16);
  Tensor<float, 3> y(1, 6, 16);
  Recorder recorder;
  Context context;
  context.observer = &recorder;
  heed::Encoder<float>::Cache cache;
  encoder.forward(x, kCausalMask, y, cache, context);
  EXPECT_EQ(layers_of(recorder), std::vector<std::string>{"layers.0.self_attn"});
  expect_weights_under(recorder.attention().front());

  heed::SelfAttention<float> layer({.embed_dim = 16});
  layer.initialize(random);
  recorder.clear();
  {
    const Context::Scope scope(context, "single");
    layer.forward(x, kCausalMask, y, context);
  }
  EXPECT_EQ(recorder.of("single").weights.extents(), (heed::Extents<4>{1, 1, 6, 6}));
  expect_weights_under(recorder.of("single"));
}

TEST(Recorder, KeepsOnlySelectedLayers) {
  Recorder recorder({.weights = {"layers.*.self_attn"}, .outputs = {"*.norm1"}});
  EXPECT_TRUE(recorder.wants_weights("layers.10.self_attn"));
  EXPECT_FALSE(recorder.wants_weights("layers.10.multihead_attn"));
  Tensor<float, 3> x = numbers(1, 2, 3);
  recorder.output("layers.0.norm1", seen(x.view()));
  recorder.output("layers.0.norm2", seen(x.view()));
  ASSERT_EQ(recorder.outputs().size(), 1u);
  EXPECT_EQ(recorder.outputs()[0].layer, "layers.0.norm1");
}

TEST(Recorder, OutputStatisticsLeaveOutWhatIsNotFinite) {
  Tensor<float, 3> x(1, 2, 3);
  const float values[] = {1, 2, std::numeric_limits<float>::quiet_NaN(), 4, 5, std::numeric_limits<float>::infinity()};
  std::copy(std::begin(values), std::end(values), x.data());
  Recorder recorder;
  const Tensor<float, 3> other = numbers(2, 2, 2);
  recorder.output("a", seen(other.view()));
  recorder.output("b", seen(x.view()));
  const heed::OutputStatistics& s = recorder.outputs().at(1);
  EXPECT_EQ(s.size, 6);
  EXPECT_EQ(s.not_finite, 2);
  EXPECT_EQ(s.smallest, 1);
  EXPECT_EQ(s.largest, 5);
  EXPECT_EQ(s.mean, 3);
  EXPECT_NEAR(s.stddev, std::sqrt(2.5), 1e-12);
  EXPECT_TRUE(recorder.finite().found());
  EXPECT_EQ(recorder.finite().layer(), "b");
  EXPECT_EQ(recorder.finite().index(), (heed::Extents<3>{0, 0, 2}));
  EXPECT_TRUE(std::isnan(recorder.finite().value()));
  recorder.clear();
  EXPECT_FALSE(recorder.finite().found());
  EXPECT_TRUE(recorder.outputs().empty());
}

TEST(Recorder, KeepsTheLatestCallAndCopiesStridedNumbers) {
  Recorder recorder;
  Tensor<float, 4> weights(2, 3, 4, 5), earlier(1, 1, 2, 2);
  for (Index i = 0; i < weights.size(); ++i) weights.data()[i] = static_cast<float>(i) / 128;
  recorder.weights("a", seen(earlier.view()));
  recorder.weights("b", seen(weights.view()));
  recorder.weights("a", seen(weights.view().transpose(2, 3)));
  EXPECT_EQ(layers_of(recorder), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(recorder.of("a").weights.extents(), (heed::Extents<4>{2, 3, 5, 4}));
  EXPECT_EQ(recorder.of("a").weights(1, 2, 4, 3), static_cast<double>(weights(1, 2, 3, 4)));
  EXPECT_EQ(recorder.of("a").mask(0, 0, 0, 0), 0) << "without a mask, keys of weight 0 count as hidden";
  EXPECT_EQ(recorder.of("a").mask(0, 0, 0, 1), 1);
}

TEST(Recorder, SaysWhichLayersItSaw) {
  Recorder recorder;
  const auto of = [&] { static_cast<void>(recorder.of("layers.0")); };
  EXPECT_NE(heed_test::message_of<heed::ValueError>(of).find("recorded: none"), std::string::npos);
  const Tensor<float, 4> weights(1, 1, 1, 1);
  recorder.weights("layers.1", seen(weights.view()));
  EXPECT_NE(heed_test::message_of<heed::ValueError>(of).find("no weights of layer \"layers.0\"; recorded: layers.1"),
            std::string::npos);
}

}  // namespace
