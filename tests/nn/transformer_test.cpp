// SPDX-License-Identifier: MIT
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/compiled/layers.hpp>
#include <heed/mask/basic.hpp>
#include <heed/nn/transformer.hpp>

#include "common/allocation_counter.hpp"
#include "common/golden.hpp"
#include "nn/layer_checks.hpp"

namespace {

using heed::Activation;
using heed::Causal;
using heed::Decoder;
using heed::DecoderLayer;
using heed::DecoderLayerOptions;
using heed::DocumentMask;
using heed::Encoder;
using heed::EncoderLayer;
using heed::EncoderLayerOptions;
using heed::Index;
using heed::NoMask;
using heed::NormPlacement;
using heed::Padding;
using heed::Tensor;
using heed::TensorView;
using heed_test::Golden;
using heed_test::kGoldenTolerance;
using namespace layer_checks;

template <class T>
class TransformerOf : public testing::Test {};
using TransformerElements = testing::Types<float, double>;
TYPED_TEST_SUITE(TransformerOf, TransformerElements);

template <class T>
constexpr double kBlockRounding = sizeof(T) == 8 ? 1e-13 : 2e-5;

/// Keeps a copy of everything that is shown.
class Copies : public heed::Observer {
 public:
  void output(std::string_view name, const heed::ObservedTensor& value) override {
    order.emplace_back(name);
    Tensor<double, 3> copy(value.extent(0), value.extent(1), value.extent(2));
    for (Index b = 0; b < copy.extent(0); ++b) {
      for (Index l = 0; l < copy.extent(1); ++l) {
        for (Index e = 0; e < copy.extent(2); ++e) copy(b, l, e) = value(b, l, e);
      }
    }
    outputs[std::string(name)] = copy;
  }
  bool wants_weights(std::string_view) override { return true; }
  void weights(std::string_view name, const heed::ObservedTensor& value) override {
    Tensor<double, 4> copy(value.extent(0), value.extent(1), value.extent(2), value.extent(3));
    for (Index b = 0; b < copy.extent(0); ++b) {
      for (Index h = 0; h < copy.extent(1); ++h) {
        for (Index q = 0; q < copy.extent(2); ++q) {
          for (Index k = 0; k < copy.extent(3); ++k) copy(b, h, q, k) = value(b, h, q, k);
        }
      }
    }
    attention[std::string(name)] = copy;
  }
  std::vector<std::string> order;
  std::map<std::string, Tensor<double, 3>> outputs;
  std::map<std::string, Tensor<double, 4>> attention;
};

// ---- values from PyTorch -------------------------------------------------------------------------------------------

/// The output, raw and packed and while observed; and of what an observer sees, everything that the file has.
template <class T, class Layer, class Call>
void expect_golden(const Golden& golden, Layer& layer, Call&& call) {
  golden.load_into(layer);
  heed::Context context;
  const Tensor<T, 3> y = call(context);
  EXPECT_TRUE(golden.agrees("out.y", y.view(), kGoldenTolerance<T>));
  layer.pack();
  EXPECT_TRUE(bits_equal(y.view(), call(context)));

  Copies copies;
  context.observer = &copies;
  EXPECT_TRUE(bits_equal(y.view(), call(context)));
  int compared = 0;
  for (const auto& [name, value] : copies.outputs) {
    if (name.empty() || !golden.contains("out." + name)) continue;
    EXPECT_TRUE(golden.agrees("out." + name, value.view(), kGoldenTolerance<T>));
    ++compared;
  }
  for (const auto& [name, value] : copies.attention) {
    EXPECT_TRUE(golden.agrees("out." + name + ".weights", value.view(), kGoldenTolerance<T>));
    ++compared;
  }
  int in_file = 0;
  for (const std::string& name : golden.file().names()) in_file += name.starts_with("out.") && name != "out.y";
  EXPECT_EQ(compared, in_file) << "the observer did not see all that the file has";
}

template <class T>
void expect_encoder_layer(const std::string& name, const EncoderLayerOptions& options) {
  SCOPED_TRACE(name);
  const Golden golden(name);
  EncoderLayer<T> layer(options);
  const Tensor<T, 3> x = golden.tensor<T, 3>("in.x");
  if (golden.contains("in.lengths")) {
    const std::vector<int> lengths = golden.integers("in.lengths");
    expect_golden<T>(golden, layer, [&](heed::Context& context) { return layer(x, Padding(lengths), context); });
  } else {
    expect_golden<T>(golden, layer, [&](heed::Context& context) { return layer(x, context); });
  }
}

TYPED_TEST(TransformerOf, EncoderLayerAsInPyTorch) {
  using T = TypeParam;
  expect_encoder_layer<T>("encoder_layer_post_norm_relu", {.embed_dim = 16, .num_heads = 4, .ffn_dim = 24});
  expect_encoder_layer<T>(
      "encoder_layer_post_norm_gelu_padding",
      {.embed_dim = 16, .num_heads = 2, .ffn_dim = 20, .activation = Activation::GELU, .eps = 1e-3});
  expect_encoder_layer<T>("encoder_layer_pre_norm_relu_padding",
                          {.embed_dim = 16, .num_heads = 4, .ffn_dim = 20, .norm_placement = NormPlacement::Pre});
  expect_encoder_layer<T>("encoder_layer_pre_norm_gelu", {.embed_dim = 16,
                                                          .num_heads = 2,
                                                          .ffn_dim = 24,
                                                          .norm_placement = NormPlacement::Pre,
                                                          .activation = Activation::GELU,
                                                          .eps = 1e-3});
}

template <class T>
void expect_encoder(const std::string& name, const heed::EncoderOptions& options) {
  SCOPED_TRACE(name);
  const Golden golden(name);
  Encoder<T> encoder(options);
  const Tensor<T, 3> x = golden.tensor<T, 3>("in.x");
  const std::vector<int> lengths = golden.integers("in.lengths");
  expect_golden<T>(golden, encoder, [&](heed::Context& context) { return encoder(x, Padding(lengths), context); });
}

TYPED_TEST(TransformerOf, EncoderAsInPyTorch) {
  using T = TypeParam;
  expect_encoder<T>("encoder_pre_norm", {.num_layers = 2,
                                         .layer = {.embed_dim = 16,
                                                   .num_heads = 2,
                                                   .ffn_dim = 20,
                                                   .norm_placement = NormPlacement::Pre,
                                                   .activation = Activation::GELU,
                                                   .eps = 1e-4},
                                         .final_norm = true,
                                         .norm_eps = 1e-3});
  expect_encoder<T>("encoder_post_norm_no_final_norm",
                    {.num_layers = 2, .layer = {.embed_dim = 16, .num_heads = 4, .ffn_dim = 20, .eps = 1e-4}});
}

template <class T, class Layer, class Options>
void expect_decoder(const std::string& name, const Options& options) {
  SCOPED_TRACE(name);
  const Golden golden(name);
  Layer layer(options);
  const Tensor<T, 3> target = golden.tensor<T, 3>("in.tgt"), memory = golden.tensor<T, 3>("in.memory");
  const std::vector<int> lengths = golden.integers("in.memory_lengths");
  expect_golden<T>(golden, layer, [&](heed::Context& context) {
    return layer(target, memory, {Causal{}, Padding(lengths)}, context);
  });
}

TYPED_TEST(TransformerOf, DecoderAsInPyTorch) {
  using T = TypeParam;
  expect_decoder<T, DecoderLayer<T>>("decoder_layer_post_norm_relu",
                                     DecoderLayerOptions{.embed_dim = 16, .num_heads = 4, .ffn_dim = 24});
  expect_decoder<T, DecoderLayer<T>>("decoder_layer_pre_norm_gelu",
                                     DecoderLayerOptions{.embed_dim = 16,
                                                         .num_heads = 2,
                                                         .ffn_dim = 20,
                                                         .norm_placement = NormPlacement::Pre,
                                                         .activation = Activation::GELU,
                                                         .eps = 1e-3});
  expect_decoder<T, Decoder<T>>("decoder_pre_norm", heed::DecoderOptions{.num_layers = 2,
                                                                         .layer = {.embed_dim = 16,
                                                                                   .num_heads = 2,
                                                                                   .ffn_dim = 20,
                                                                                   .norm_placement = NormPlacement::Pre,
                                                                                   .activation = Activation::GELU,
                                                                                   .eps = 1e-4},
                                                                         .final_norm = true,
                                                                         .norm_eps = 1e-3});
}

// ---- parameters ----------------------------------------------------------------------------------------------------

template <class Layer>
std::string names_of(const Layer& layer) {
  std::string text;
  layer.visit("a", [&](std::string_view name, const auto&) { text += std::string(name) + " "; });
  return text;
}

TEST(Transformer, NamesAsInPyTorch) {
  const std::string attention =
      "in_proj_weight a.self_attn.in_proj_bias a.self_attn.out_proj.weight "
      "a.self_attn.out_proj.bias ";
  EXPECT_EQ(names_of(EncoderLayer<float>({.embed_dim = 4, .num_heads = 2})),
            "a.self_attn." + attention +
                "a.linear1.weight a.linear1.bias a.linear2.weight a.linear2.bias "
                "a.norm1.weight a.norm1.bias a.norm2.weight a.norm2.bias ");
  EXPECT_EQ(names_of(DecoderLayer<float>({.embed_dim = 4, .num_heads = 2, .gated = true, .bias = false})),
            "a.self_attn.in_proj_weight a.self_attn.out_proj.weight "
            "a.multihead_attn.in_proj_weight a.multihead_attn.out_proj.weight "
            "a.linear1.weight a.linear2.weight a.gate.weight a.norm1.weight a.norm2.weight a.norm3.weight ");
  const Encoder<float> encoder(
      {.num_layers = 2, .layer = {.embed_dim = 4, .num_heads = 2, .bias = false}, .final_norm = true});
  EXPECT_EQ(names_of(encoder),
            "a.layers.0.self_attn.in_proj_weight a.layers.0.self_attn.out_proj.weight "
            "a.layers.0.linear1.weight a.layers.0.linear2.weight a.layers.0.norm1.weight a.layers.0.norm2.weight "
            "a.layers.1.self_attn.in_proj_weight a.layers.1.self_attn.out_proj.weight "
            "a.layers.1.linear1.weight a.layers.1.linear2.weight a.layers.1.norm1.weight a.layers.1.norm2.weight "
            "a.norm.weight ");
}

TEST(Transformer, ParameterCounts) {
  // MiniLM's six blocks: 4·E² + 2·E·F weights, 3·E + E + F + E biases, two norms.
  const Index E = 384, F = 1536;
  const Encoder<float> encoder({.num_layers = 6, .layer = {.embed_dim = E, .num_heads = 12}});
  EXPECT_EQ(heed::parameter_count(encoder), 6 * (4 * E * E + 2 * E * F + 5 * E + F + 4 * E));
  EXPECT_EQ(encoder.size(), 6);
  EXPECT_FALSE(encoder.norm);
}

TEST(Transformer, StartsEveryBlockApartAndAlike) {
  const heed::DecoderOptions options{.num_layers = 2, .layer = {.embed_dim = 8, .num_heads = 2}, .final_norm = true};
  Decoder<float> decoder(options), again(options);
  fill_parameters<float>(decoder, 7);
  initialize(decoder, 5, "decoder");
  initialize(again, 5, "decoder");
  std::map<std::string, Tensor<float, 1>> values;
  decoder.visit("", [&](std::string_view name, const heed::Parameter<float>& parameter) {
    Tensor<float, 1> copied(parameter.size());
    copy(parameter.value(), copied.view());
    values[std::string(name)] = copied;
  });
  again.visit("", [&](std::string_view name, const heed::Parameter<float>& parameter) {
    EXPECT_TRUE(bits_equal(values[std::string(name)].view(), parameter.value())) << name;
  });
  for (const char* name : {"self_attn.in_proj_weight", "multihead_attn.in_proj_weight", "linear1.weight"}) {
    EXPECT_FALSE(
        bits_equal(values["layers.0." + std::string(name)].view(), values["layers.1." + std::string(name)].view()))
        << name;
  }
  EXPECT_FALSE(bits_equal(values["layers.0.self_attn.in_proj_weight"].view(),
                          values["layers.0.multihead_attn.in_proj_weight"].view()));
  for (const char* name : {"layers.1.norm3.weight", "norm.weight"}) EXPECT_EQ(values[name](3), 1.f) << name;
  for (const char* name : {"layers.1.norm2.bias", "norm.bias"}) EXPECT_EQ(values[name](3), 0.f) << name;
}

// ---- what the result depends on, and what not ----------------------------------------------------------------------

template <class T>
Encoder<T> random_encoder(const heed::EncoderOptions& options) {
  Encoder<T> encoder(options);
  initialize(encoder, 11);
  return encoder;
}

TYPED_TEST(TransformerOf, SameForAnyArgumentAndStrides) {
  using T = TypeParam;
  for (const NormPlacement norm : {NormPlacement::Pre, NormPlacement::Post}) {
    const Encoder<T> encoder = random_encoder<T>({.num_layers = 3,
                                                  .layer = {.embed_dim = 8, .num_heads = 2, .norm_placement = norm},
                                                  .final_norm = norm == NormPlacement::Pre});
    expect_same_for_any_argument<T>(encoder, 5, 8);
    EXPECT_EQ((encoder(Tensor<T, 3>(0, 3, 8)).size()), 0);
    EXPECT_EQ((encoder(Tensor<T, 3>(2, 0, 8)).size()), 0);
    const auto x = random_tensor<T, 3>({2, 4, 8});
    const Tensor<T, 3> expected = encoder(x, Causal{});
    heed::Context context;
    for (const auto& order : {std::array<int, 3>{0, 1, 2}, {0, 2, 1}, {2, 1, 0}, {1, 0, 2}}) {
      Spaced<T, 3> from(x.extents(), order, 2, 1), to(expected.extents(), order, 3, 2);
      copy(x.view(), from.view());
      encoder.forward(from.view(), Causal{}, to.view(), context);
      EXPECT_TRUE(bits_equal(expected.view(), to.view()));
      EXPECT_EQ(to.written(), static_cast<std::size_t>(expected.size()));
    }
  }
}

TYPED_TEST(TransformerOf, DecoderTakesPlainEigen) {
  using T = TypeParam;
  Decoder<T> decoder({.num_layers = 2, .layer = {.embed_dim = 8, .num_heads = 2, .memory_dim = 5}});
  initialize(decoder, 3);
  const auto x = random_tensor<T, 3>({1, 4, 8}), memory = random_tensor<T, 3>({1, 6, 5}, 2);
  const Tensor<T, 3> expected = decoder(x, memory, {Causal{}, NoMask{}});
  const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic> x_matrix = x.matrix(0), memory_matrix = memory.matrix(0);
  const auto y = decoder(x_matrix, memory_matrix + T(0) * memory_matrix, Causal{});
  static_assert(heed::EigenDense<decltype(y)>);
  EXPECT_TRUE(bits_equal(expected.view()[0], heed::view_of(y)));
  EXPECT_EQ((decoder(Tensor<T, 3>(2, 0, 8), Tensor<T, 3>(2, 3, 5), Causal{}).size()), 0);
}

// A sample is the same alone, in a padded batch, and packed with others into one sequence.
TYPED_TEST(TransformerOf, AloneOrPaddedOrPacked) {
  using T = TypeParam;
  for (const NormPlacement norm : {NormPlacement::Pre, NormPlacement::Post}) {
    const Encoder<T> encoder = random_encoder<T>({.num_layers = 2,
                                                  .layer = {.embed_dim = 16,
                                                            .num_heads = 4,
                                                            .norm_placement = norm,
                                                            .activation = Activation::GELU,
                                                            .rotary = {.head_dim = 4}},
                                                  .final_norm = norm == NormPlacement::Pre});
    const std::vector<int> lengths{5, 1, 9, 3}, offsets{0, 5, 6, 15, 18};
    const auto all = random_tensor<T, 3>({4, 9, 16});
    Tensor<T, 3> padded(4, 9, 16), packed(1, 18, 16);
    for (Index i = 0; i < padded.size(); ++i) padded.data()[i] = std::numeric_limits<T>::quiet_NaN();
    for (Index b = 0; b < 4; ++b) {
      const Index length = lengths[static_cast<std::size_t>(b)], first = offsets[static_cast<std::size_t>(b)];
      copy(all.view()[b].slice(0, 0, length), padded.view()[b].slice(0, 0, length));
      copy(all.view()[b].slice(0, 0, length), packed.view()[0].slice(0, first, length));
    }
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(testing::Message() << "causal " << causal);
      const auto run = [&](const auto& x, const auto& mask) {
        return causal ? encoder(x, mask & Causal{}) : encoder(x, mask);
      };
      const Tensor<T, 3> in_batch = run(padded, Padding(lengths)), in_sequence = run(packed, DocumentMask(offsets));
      for (Index b = 0; b < 4; ++b) {
        SCOPED_TRACE(b);
        const Index length = lengths[static_cast<std::size_t>(b)], first = offsets[static_cast<std::size_t>(b)];
        const TensorView<const T, 2> alone_x = all.view()[b].slice(0, 0, length);
        const Tensor<T, 2> alone = run(alone_x, NoMask{});
        EXPECT_LE(max_error(alone.view(), in_batch.view()[b].slice(0, 0, length)), kBlockRounding<T>);
        EXPECT_LE(max_error(alone.view(), in_sequence.view()[0].slice(0, first, length)), kBlockRounding<T>);
      }
    }
  }
}

// What the other samples of a batch hold changes no bit.
TYPED_TEST(TransformerOf, SamplesDontMix) {
  using T = TypeParam;
  Decoder<T> decoder({.num_layers = 2, .layer = {.embed_dim = 8, .num_heads = 2}});
  initialize(decoder, 3);
  auto x = random_tensor<T, 3>({3, 7, 8}), memory = random_tensor<T, 3>({3, 5, 8}, 2);
  const Tensor<T, 3> clean = decoder(x, memory, Causal{});
  for (Index e = 0; e < 8; ++e) {
    x(0, 6, e) = std::numeric_limits<T>::quiet_NaN();
    memory(2, 1, e) = std::numeric_limits<T>::infinity();
  }
  const Tensor<T, 3> poisoned = decoder(x, memory, Causal{});
  EXPECT_TRUE(bits_equal(clean.view()[1], poisoned.view()[1]));
  // Causal: what comes later does not show.
  EXPECT_TRUE(bits_equal(clean.view()[0].slice(0, 0, 6), poisoned.view()[0].slice(0, 0, 6)));
  EXPECT_TRUE(std::isnan(poisoned(0, 6, 0)));
  EXPECT_FALSE(std::isfinite(poisoned(2, 0, 0)));
}

TYPED_TEST(TransformerOf, PackedGivesTheSameBits) {
  using T = TypeParam;
  Encoder<T> encoder = random_encoder<T>(
      {.num_layers = 2,
       .layer = {.embed_dim = 12, .num_heads = 4, .activation = Activation::SiLU, .gated = true, .num_kv_heads = 2}});
  const auto x = random_tensor<T, 3>({2, 5, 12});
  const Tensor<T, 3> expected = encoder(x);
  encoder.pack({.release = true});
  EXPECT_TRUE(bits_equal(expected.view(), encoder(x)));
  EXPECT_TRUE(encoder.layers[1].self_attn.in_proj_weight.released());
  EXPECT_TRUE(encoder.layers[1].feed_forward.linear2.weight.released());

  Decoder<T> decoder({.num_layers = 2, .layer = {.embed_dim = 12, .num_heads = 4}});
  initialize(decoder, 3);
  const auto memory = random_tensor<T, 3>({2, 6, 12}, 2);
  const Tensor<T, 3> expected_decoded = decoder(x, memory, Causal{});
  decoder.pack({.release = true});
  EXPECT_TRUE(bits_equal(expected_decoded.view(), decoder(x, memory, Causal{})));
  EXPECT_TRUE(decoder.layers[0].multihead_attn.in_proj_weight.released());
}

TYPED_TEST(TransformerOf, AStackIsItsLayersInTurn) {
  using T = TypeParam;
  for (const Index layers : {0, 1, 2, 3, 4}) {
    for (const bool final_norm : {false, true}) {
      SCOPED_TRACE(testing::Message() << layers << " layers, final norm " << final_norm);
      const Encoder<T> encoder = random_encoder<T>(
          {.num_layers = layers, .layer = {.embed_dim = 8, .num_heads = 2}, .final_norm = final_norm});
      const auto x = random_tensor<T, 3>({2, 4, 8});
      Tensor<T, 3> expected = x;
      for (Index i = 0; i < layers; ++i) expected = encoder.layers[static_cast<std::size_t>(i)](expected, Causal{});
      if (final_norm) expected = (*encoder.norm)(expected);
      EXPECT_TRUE(bits_equal(expected.view(), encoder(x, Causal{})));
    }
  }
}

// ---- the protocol --------------------------------------------------------------------------------------------------

TYPED_TEST(TransformerOf, ShowsEveryLayerInOrder) {
  using T = TypeParam;
  const auto x = random_tensor<T, 3>({1, 3, 4});
  Copies copies;
  heed::Context context;
  context.observer = &copies;
  const Encoder<T> encoder =
      random_encoder<T>({.num_layers = 1,
                         .layer = {.embed_dim = 4, .num_heads = 2, .norm_placement = NormPlacement::Pre},
                         .final_norm = true});
  const Tensor<T, 3> y = [&] {
    const heed::Context::Scope scope(context, "encoder");
    return encoder(x, context);
  }();
  const std::string block = "encoder.layers.0";
  EXPECT_EQ(copies.order, (std::vector<std::string>{block + ".norm1", block + ".self_attn.out_proj",
                                                    block + ".self_attn", block + ".norm2", block + ".linear1",
                                                    block + ".linear2", block, "encoder.norm", "encoder"}));
  EXPECT_TRUE(copies.attention.contains(block + ".self_attn"));
  EXPECT_EQ(copies.outputs["encoder"](0, 2, 3), static_cast<double>(y(0, 2, 3)));

  copies.order.clear();
  Decoder<T> decoder({.num_layers = 1, .layer = {.embed_dim = 4, .num_heads = 2}});
  initialize(decoder, 1);
  decoder(x, x, {Causal{}, NoMask{}}, context);
  EXPECT_EQ(copies.order,
            (std::vector<std::string>{"layers.0.self_attn.out_proj", "layers.0.self_attn", "layers.0.norm1",
                                      "layers.0.multihead_attn.out_proj", "layers.0.multihead_attn", "layers.0.norm2",
                                      "layers.0.linear1", "layers.0.linear2", "layers.0.norm3", "layers.0", ""}));
}

TYPED_TEST(TransformerOf, AllocatesNothingOnceWarm) {
  using T = TypeParam;
  if (!heed_test::counts_allocations()) GTEST_SKIP() << "allocations are not counted on this platform";
  const auto x = random_tensor<T, 3>({2, 20, 16}), memory = random_tensor<T, 3>({2, 9, 16}, 2);
  const std::vector<int> lengths{20, 4};
  Tensor<T, 3> y(2, 20, 16);
  for (const NormPlacement norm : {NormPlacement::Pre, NormPlacement::Post}) {
    Encoder<T> encoder = random_encoder<T>(
        {.num_layers = 3, .layer = {.embed_dim = 16, .num_heads = 4, .norm_placement = norm}, .final_norm = true});
    Decoder<T> decoder({.num_layers = 2, .layer = {.embed_dim = 16, .num_heads = 4, .norm_placement = norm}});
    initialize(decoder, 1);
    heed::Context context;
    const auto run = [&] {
      encoder.forward(x, Padding(lengths), y, context);
      decoder.forward(x, memory, {Causal{}, NoMask{}}, y, context);
    };
    for (int packed = 0; packed < 2; ++packed) {
      run();
      EXPECT_EQ(heed_test::allocations_of(run), 0);
      encoder.pack();
      decoder.pack();
    }
  }
}

TEST(Transformer, ErrorsSayWhatIsWrong) {
  const Encoder<float> encoder({.num_layers = 2, .layer = {.embed_dim = 8, .num_heads = 2}});
  EXPECT_EQ(message_of<heed::ShapeError>([&] { encoder(Tensor<float, 3>(2, 5, 7)); }),
            "heed::Encoder: x (2, 5, 7) has width 7 but the layer takes 8");
  EXPECT_EQ(message_of<heed::ShapeError>([&] { encoder.layers[0](Tensor<float, 3>(2, 5, 7)); }),
            "heed::EncoderLayer: x (2, 5, 7) has width 7 but the layer takes 8");
  heed::Context context;
  Tensor<float, 3> x(2, 5, 8);
  const auto first = x.view().slice(1, 0, 4), shifted = x.view().slice(1, 1, 4);
  EXPECT_EQ(message_of<heed::ValueError>([&] { encoder.forward(first, NoMask{}, shifted, context); }),
            "heed::Encoder: y shares memory with x; it needs separate memory");
  EXPECT_EQ(message_of<heed::ShapeError>(
                [] { Encoder<float>({.num_layers = -1, .layer = {.embed_dim = 8, .num_heads = 2}}); }),
            "heed::Encoder: num_layers = -1 is negative");

  const DecoderLayer<float> decoder({.embed_dim = 8, .num_heads = 2, .memory_dim = 6});
  EXPECT_EQ(message_of<heed::ShapeError>([&] { decoder(x, Tensor<float, 3>(2, 5, 8), Causal{}); }),
            "heed::DecoderLayer: memory (2, 5, 8) has width 8 but the layer takes 6");
  EXPECT_EQ(message_of<heed::ShapeError>([&] { decoder(x, Tensor<float, 3>(1, 5, 6), Causal{}); }),
            "heed::DecoderLayer: memory (1, 5, 6) has B = 1 but x (2, 5, 8) has B = 2; each sample needs a memory");
  const DecoderLayer<float> same({.embed_dim = 8, .num_heads = 2});
  Tensor<float, 3> memory(2, 5, 8);
  EXPECT_EQ(message_of<heed::ValueError>([&] { same.forward(x, memory, Causal{}, memory, context); }),
            "heed::DecoderLayer: y overlaps the memory; it needs separate memory");
  EXPECT_THROW(EncoderLayer<float>({.embed_dim = 8, .num_heads = 3}), heed::ShapeError);
  EXPECT_THROW(EncoderLayer<float>({.embed_dim = 8, .num_heads = 2, .eps = -1}), heed::ValueError);
}

}  // namespace
