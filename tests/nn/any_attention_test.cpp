// SPDX-License-Identifier: MIT
// Attention values in layers: modifiers, scales, sinks, other kinds of attention, and how long what they hold lives.
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <heed/heed.hpp>

#include "common/allocation_counter.hpp"
#include "common/message_of.hpp"
#include "nn/backward_checks.hpp"

namespace {

using namespace backward_checks;
using heed::Alibi;
using heed::AnyAttention;
using heed::Attention;
using heed::Causal;
using heed::LinearAttention;
using heed::Scale;
using heed::Segment;
using heed::SegmentedAttention;
using heed::SoftCap;
using heed_test::message_of;

constexpr Index B = 2, L = 5, E = 8, H = 2, D = E / H, kMemory = 4;

/// The layers that take an attention value, as functions of x: a decoder reads a memory that does not change.
template <class Layer>
struct Subject {
  using Cache = typename Layer::Cache;
  Layer layer;
  Tensor<double, 3> memory = random_tensor<double, 3>({B, kMemory, E}, 21);
  bool checkpointing = false;
  static constexpr bool kReadsMemory = requires { &Layer::memory_width; };

  template <class Y>
  void forward(const Tensor<double, 3>& x, const AnyAttention<double>& attention, Y&& y, Context& context) const {
    if constexpr (kReadsMemory)
      layer.forward(x, memory, attention, y, context);
    else
      layer.forward(x, attention, y, context);
  }
  void forward(const Tensor<double, 3>& x, const AnyAttention<double>& attention, Tensor<double, 3>& y, Cache& cache,
               Context& context) const {
    if constexpr (requires { cache.checkpointing; }) cache.checkpointing = checkpointing;
    if constexpr (kReadsMemory)
      layer.forward(x, memory, attention, y, cache, context);
    else
      layer.forward(x, attention, y, cache, context);
  }
  void backward(const Tensor<double, 3>& dy, Tensor<double, 3>& dx, Cache& cache, Context& context) {
    if constexpr (kReadsMemory)
      layer.backward(dy, dx, heed::kNotWanted, cache, context);
    else
      layer.backward(dy, dx, cache, context);
  }
};

template <class Layer>
Subject<Layer> subject_of(Layer layer) {
  fill_parameters<double>(layer, 3);
  return {std::move(layer)};
}
/// f(subject) for each layer; the activation has no kinks.
template <class F>
void for_each_layer(F&& f) {
  constexpr auto kGELU = heed::Activation::GELU;
  const auto run = [&](const char* name, auto layer) {
    SCOPED_TRACE(name);
    auto subject = subject_of(std::move(layer));
    f(subject);
  };
  run("MultiHeadAttention", heed::MultiHeadAttention<double>({.embed_dim = E, .num_heads = H}));
  run("EncoderLayer", heed::EncoderLayer<double>({.embed_dim = E, .num_heads = H, .ffn_dim = 6, .activation = kGELU}));
  run("DecoderLayer", heed::DecoderLayer<double>({.embed_dim = E, .num_heads = H, .ffn_dim = 6, .activation = kGELU}));
  const heed::EncoderOptions stack{.num_layers = 2,
                                   .layer = {.embed_dim = E, .num_heads = H, .ffn_dim = 6, .activation = kGELU}};
  run("Encoder", heed::Encoder<double>(stack));
  SCOPED_TRACE("with checkpointing");
  auto replayed = subject_of(heed::Encoder<double>(stack));
  replayed.checkpointing = true;
  f(replayed);
}
/// SelfAttention has one head.
template <class F>
void for_each_layer_and_self_attention(F&& f) {
  for_each_layer([&](auto& subject) { f(subject, H); });
  SCOPED_TRACE("SelfAttention");
  auto subject = subject_of(heed::SelfAttention<double>({.embed_dim = E, .head_dim = 3, .value_head_dim = E}));
  f(subject, 1);
}

/// Central differences for x, all parameters and `tables`, whose gradients the attention adds to.
template <class Layer>
void expect_gradients(Subject<Layer>& subject, const AnyAttention<double>& attention,
                      std::vector<heed::GradcheckTensor> tables = {}) {
  auto x = random_tensor<double, 3>({B, L, E}, 7);
  const auto dy = random_tensor<double, 3>({B, L, E}, 99);
  Tensor<double, 3> y(x.extents()), dx(x.extents());
  Context context;
  typename Layer::Cache cache;
  ParameterList<double>(subject.layer).zero_grad();
  subject.forward(x, attention, y, cache, context);
  subject.backward(dy, dx, cache, context);
  tables.push_back({"x", flat(x), flat(std::as_const(dx))});
  const auto loss = [&] {
    subject.forward(x, attention, y, context);
    return dot(y, dy);
  };
  const auto report = heed::gradcheck(loss, ParameterList<double>(subject.layer), std::move(tables));
  EXPECT_TRUE(report.passed) << report.text();
}

template <class Layer>
Tensor<double, 3> output_of(const Subject<Layer>& subject, const AnyAttention<double>& attention) {
  const auto x = random_tensor<double, 3>({B, L, E}, 7);
  Tensor<double, 3> y(x.extents());
  Context context;
  subject.forward(x, attention, y, context);
  return y;
}

TEST(AttentionInLayers, MasksAndModifiers) {
  for_each_layer_and_self_attention([](auto& subject, Index heads) {
    const AnyAttention<double> attention = Attention(Causal{}, heed::then(Alibi(heads), SoftCap(2)));
    EXPECT_FALSE(bits_equal(output_of(subject, attention), output_of(subject, Causal{})));
    expect_gradients(subject, Attention(Causal{}, Alibi(heads)));
    expect_gradients(subject, SoftCap(1.5));
  });
}

TEST(AttentionInLayers, TablesReceiveGradients) {
  for_each_layer_and_self_attention([](auto& subject, Index heads) {
    auto table = random_tensor<double, 2>({heads, 5}, 31);
    Tensor<double, 2> dtable(table.extents());
    expect_gradients(subject, Attention(Causal{}, heed::RelativeBias(table).with_gradient(dtable.view())),
                     {{"RelativeBias", flat(table), flat(std::as_const(dtable))}});
    auto bias = random_tensor<double, 4>({1, heads, L, L}, 32);
    Tensor<double, 4> dbias(bias.extents());
    expect_gradients(subject, heed::Bias(bias).with_gradient(dbias.view()),
                     {{"Bias", flat(bias), flat(std::as_const(dbias))}});
  });
}

TEST(AttentionInLayers, SinksTakePart) {
  const std::vector<double> sinks{0.5, 1.5};
  for_each_layer([&](auto& subject) {
    const AnyAttention<double> attention = Attention(Causal{}, heed::AttentionOptions{.sinks = sinks});
    EXPECT_FALSE(bits_equal(output_of(subject, attention), output_of(subject, Causal{})));
    expect_gradients(subject, attention);
  });
}

TEST(AttentionInLayers, SinksReceiveGradientsFromACall) {
  const auto q = random_tensor<double, 4>({B, H, L, D}, 1), k = random_tensor<double, 4>({B, H, L, D}, 2);
  const auto dout = random_tensor<double, 4>({B, H, L, D}, 3);
  std::vector<double> sinks{0.5, 1.5}, dsinks(2);
  Tensor<double, 4> out(q.extents()), dq(q.extents());
  heed::AttentionCache<double> cache;
  Context context;
  const AnyAttention<double> attention = heed::AttentionOptions{.sinks = sinks};
  heed::attention_into(out, q, k, k, attention, cache, context);
  heed::attention_backward_into({dq, heed::kNotWanted, heed::kNotWanted, dsinks}, dout, cache, context);
  const auto loss = [&] { return dot(heed::attention(q, k, k, attention, context), dout); };
  const auto report = heed::gradcheck(loss, {{"sinks", {sinks.data(), {2}}, {dsinks.data(), {2}}}});
  EXPECT_TRUE(report.passed) << report.text();
}

TEST(AttentionInLayers, TheScaleOfACallComesBeforeTheLayers) {
  const heed::MultiHeadAttentionOptions plain{.embed_dim = E, .num_heads = H};
  auto scaled = plain;
  scaled.scale = 0.25;
  const auto of = [](const heed::MultiHeadAttentionOptions& options) {
    return subject_of(heed::MultiHeadAttention<double>(options));
  };
  EXPECT_TRUE(bits_equal(output_of(of(scaled), {}), output_of(of(plain), Scale{0.25})));
  EXPECT_TRUE(bits_equal(output_of(of(scaled), Scale{2}), output_of(of(plain), Scale{2})));
  EXPECT_FALSE(bits_equal(output_of(of(scaled), Scale{2}), output_of(of(scaled), {})));
  auto layer = of(scaled);
  expect_gradients(layer, Scale{2});
}

/// MultiHeadAttention from two products and a call of attention().
Tensor<double, 3> composed(const heed::MultiHeadAttention<double>& mha, const Tensor<double, 3>& x,
                           const AnyAttention<double>& attention) {
  heed::Linear<double> in_proj(E, 3 * E);
  copy(mha.in_proj_weight.value(), in_proj.weight.mutable_value());
  copy(mha.in_proj_bias.value(), in_proj.bias.mutable_value());
  const Tensor<double, 3> qkv = in_proj(x);
  const auto [q, k, v] = heed::split_qkv(qkv, H);
  Tensor<double, 3> joined(x.extents());
  const TensorView<double, 4> heads(joined.data(), {B, H, L, D}, {L * E, D, E, 1});
  heed::attention_into(heads, q, k, v, attention);
  return mha.out_proj(joined);
}

TEST(AttentionInLayers, OtherKindsOfAttention) {
  auto vectors = random_tensor<double, 2>({H, D}, 41);
  Tensor<double, 2> dvectors(vectors.extents());
  const auto learned = heed::LearnedPooling(vectors);
  const AnyAttention<double> kinds[] = {LinearAttention(Causal{}), LinearAttention(),
                                        SegmentedAttention(Causal{}, Segment{2}),
                                        SegmentedAttention(Causal{}, Segment{2}, learned)};
  const auto x = random_tensor<double, 3>({B, L, E}, 7);
  for (const auto& kind : kinds) {
    auto subject = subject_of(heed::MultiHeadAttention<double>({.embed_dim = E, .num_heads = H}));
    EXPECT_TRUE(bits_equal(subject.layer(x, kind), composed(subject.layer, x, kind)));
    EXPECT_FALSE(bits_equal(subject.layer(x, kind), subject.layer(x, Causal{})));
    for_each_layer([&](auto& each) { expect_gradients(each, kind); });
  }
  for_each_layer([&](auto& each) {
    std::fill_n(dvectors.data(), dvectors.size(), 0.0);
    expect_gradients(each, SegmentedAttention(Causal{}, Segment{2}, learned.with_gradient(dvectors.view())),
                     {{"pooling", flat(vectors), flat(std::as_const(dvectors))}});
  });
}

TEST(AttentionInLayers, AMaskChosenAtRunTime) {
  for_each_layer([](auto& subject) {
    for (const bool causal : {false, true}) {
      const heed::AnyMask mask = causal ? heed::AnyMask(Causal{}) : heed::NoMask{};
      EXPECT_TRUE(bits_equal(output_of(subject, mask),
                             causal ? output_of(subject, Causal{}) : output_of(subject, heed::NoMask{})));
    }
  });
}

TEST(AttentionInLayers, ABackwardNeedsNoMaskOfTheForward) {
  const auto x = random_tensor<double, 3>({B, L, E}, 7), dy = random_tensor<double, 3>({B, L, E}, 99);
  const std::vector<int> lengths{3, 5};
  for_each_layer([&](auto& subject) {
    using Cache = typename std::remove_reference_t<decltype(subject)>::Cache;
    Context context;
    Tensor<double, 3> y(x.extents()), expected(x.extents()), dx(x.extents());
    const auto mask = Causal{} & heed::Padding(lengths);
    Cache kept, freed;
    subject.forward(x, Attention(mask, Alibi(H)), y, kept, context);
    subject.backward(dy, expected, kept, context);
    {
      const auto gone = std::make_unique<AnyAttention<double>>(
          Attention(heed::AnyMask(Causal{}) & heed::AnyMask(heed::Padding(lengths)), Alibi(H)));
      subject.forward(x, *gone, y, freed, context);
    }
    subject.backward(dy, dx, freed, context);
    EXPECT_TRUE(bits_equal(dx, expected));
  });
}

TEST(AttentionInLayers, AStoredValueOwnsItsParts) {
  const auto store = [] {
    return AnyAttention<double>(Attention(Causal{} & !heed::Window::top_left(1, 0), SoftCap(2)));
  };
  std::vector<AnyAttention<double>> stored{store()};
  stored.push_back(stored[0]);
  for_each_layer([&](auto& subject) {
    const auto expected = output_of(subject, Attention(Causal{} & !heed::Window::top_left(1, 0), SoftCap(2)));
    EXPECT_TRUE(bits_equal(output_of(subject, stored[1]), expected));
  });
}

TEST(AttentionInLayers, AllocatesNothingOnceWarm) {
  if (!heed_test::counts_allocations()) GTEST_SKIP() << "allocations are not counted on this platform";
  const auto x = random_tensor<double, 3>({B, L, E}, 7), dy = random_tensor<double, 3>({B, L, E}, 99);
  const std::vector<int> lengths{3, 5};
  const auto vectors = random_tensor<double, 2>({H, D}, 41);
  for_each_layer([&](auto& subject) {
    using Cache = typename std::remove_reference_t<decltype(subject)>::Cache;
    Context context;
    Cache cache;
    Tensor<double, 3> y(x.extents()), dx(x.extents());
    const auto step = [&](const auto& value) {
      const AnyAttention<double> attention = value;
      subject.forward(x, attention, y, context);
      subject.forward(x, value, y, cache, context);
      subject.backward(dy, dx, cache, context);
    };
    const auto all = [&] {
      step(Attention(Causal{} & heed::Padding(lengths), heed::then(Alibi(H), SoftCap(3)), Scale{0.1}));
      step(heed::AnyMask(Causal{}));
      step(LinearAttention(Causal{}));
      step(SegmentedAttention(Causal{}, Segment{2}, heed::LearnedPooling(vectors)));
    };
    all();
    EXPECT_EQ(heed_test::allocations_of(all), 0);
  });
}

TEST(AttentionInLayers, LinearAttentionHasNoWeights) {
  const auto x = random_tensor<double, 3>({B, L, E}, 7);
  const auto subject = subject_of(heed::MultiHeadAttention<double>({.embed_dim = E, .num_heads = H}));
  EXPECT_EQ(message_of<heed::ValueError>([&] { subject.layer.with_weights(x, LinearAttention(Causal{})); }),
            "heed::attention: only softmax attention has weights; ask for them with an Attention value");
}

TEST(AttentionInLayers, LinearAttentionHasNoDropout) {
  const auto subject = subject_of(heed::MultiHeadAttention<double>({.embed_dim = E, .num_heads = H, .dropout = 0.5}));
  const auto x = random_tensor<double, 3>({B, L, E}, 7);
  Context context;
  subject.layer(x, LinearAttention(), context);
  context.training = true;
  EXPECT_EQ(message_of<heed::ValueError>([&] { subject.layer(x, LinearAttention(), context); }),
            "heed::attention: a layer's scale and dropout are for softmax attention; leave them out of its options for "
            "another kind");
}

/// Keeps the weights that a layer shows, and what its mask hides.
struct Viewer : heed::Observer {
  std::vector<double> weights_seen;
  std::vector<bool> visible_seen;
  bool wants_weights(std::string_view) override { return true; }
  void mask(std::string_view, const Extents<4>& e, heed::ObservedMask visible) override {
    for_each(e, [&](int b, int h, int q, int k) { visible_seen.push_back(visible(b, h, q, k)); });
  }
  void weights(std::string_view, const heed::ObservedTensor& w) override {
    for_each({w.extent(0), w.extent(1), w.extent(2), w.extent(3)},
             [&](int b, int h, int q, int k) { weights_seen.push_back(w(b, h, q, k)); });
  }
  template <class F>
  static void for_each(const Extents<4>& e, F&& f) {
    for (int b = 0; b < e[0]; ++b)
      for (int h = 0; h < e[1]; ++h)
        for (int q = 0; q < e[2]; ++q)
          for (int k = 0; k < e[3]; ++k) f(b, h, q, k);
  }
};

TEST(AttentionInLayers, ObserversSeeWeightsAndMaskWithModifiers) {
  const auto x = random_tensor<double, 3>({B, L, E}, 7);
  const auto subject = subject_of(heed::MultiHeadAttention<double>({.embed_dim = E, .num_heads = H}));
  Viewer viewer;
  Context context;
  context.observer = &viewer;
  subject.layer(x, Causal{}, Alibi(H), context);
  const auto expected = subject.layer.with_weights(x, Causal{}, Alibi(H)).weights;
  ASSERT_EQ(static_cast<Index>(viewer.weights_seen.size()), expected.size());
  for (Index i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(viewer.weights_seen[static_cast<std::size_t>(i)], expected.data()[i]);
    EXPECT_EQ(viewer.visible_seen[static_cast<std::size_t>(i)], i % L <= i / L % L);
  }
  Viewer nothing;
  context.observer = &nothing;
  subject.layer(x, LinearAttention(Causal{}), context);
  EXPECT_TRUE(nothing.weights_seen.empty() && nothing.visible_seen.empty());
}

}  // namespace
