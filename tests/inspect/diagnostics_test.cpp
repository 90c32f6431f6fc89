// SPDX-License-Identifier: MIT
// Each diagnostic reports a model that was broken on purpose. model/minilm_test checks that a trained model is not
// reported.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <heed/compiled/layers.hpp>
#include <heed/inspect/diagnostics.hpp>
#include <heed/mask/any_mask.hpp>
#include <heed/mask/basic.hpp>
#include <heed/nn/self_attention.hpp>
#include <heed/nn/transformer.hpp>

#include "common/message_of.hpp"

namespace {

using heed::Diagnosis;
using heed::FindingKind;
using heed::Index;
using heed::Tensor;
using heed_test::has_all;
using Encoder = heed::Encoder<float>;

Encoder encoder(Index kv_heads = 0) {
  Encoder model(
      {.num_layers = 2,
       .layer = {
           .embed_dim = 32, .num_heads = 4, .norm_placement = heed::NormPlacement::Pre, .num_kv_heads = kv_heads}});
  heed::Random random(5);
  model.initialize(random);
  // Scores of untrained layers are small. With the size of trained ones, queries distinguish keys.
  for (Index i = 0; i < 2; ++i) {
    const auto weight = model.layers[static_cast<std::size_t>(i)].self_attn.in_proj_weight.mutable_value();
    std::transform(weight.data(), weight.data() + weight.size(), weight.data(), [](float w) { return 2 * w; });
  }
  return model;
}

/// Inputs 0.9, -0.4, ... without a pattern.
Tensor<float, 3> numbers() {
  Tensor<float, 3> x(2, 16, 32);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<float>((i * i * 37 + i * 11) % 101) / 50 - 1;
  return x;
}

/// One type for all masks, so that attention is compiled once here.
using heed::AnyMask;

template <class Model>
Diagnosis diagnose(Model& model, const AnyMask& mask = heed::NoMask{}, const Tensor<float, 3>& x = numbers(),
                   const heed::DiagnosticOptions& options = {}) {
  heed::Recorder recorder;
  heed::Context context;
  context.observer = &recorder;
  Tensor<float, 3> y(x.extents());
  model.forward(x, mask, y, context);
  return heed::diagnose(recorder, model, options);
}

/// The kinds of the findings, with blanks between them.
std::string kinds(const Diagnosis& diagnosis) {
  std::string text;
  for (const heed::Finding& finding : diagnosis.findings) {
    text += heed::detail::concat(text.empty() ? "" : " ", to_string(finding.kind));
  }
  return text;
}

/// The rows of the query projection of layer 1 times a factor.
void scale_queries(Encoder& model, float factor) {
  const auto weight = model.layers[1].self_attn.in_proj_weight.mutable_matrix();
  for (Index i = 0; i < 32; ++i) {
    for (Index j = 0; j < 32; ++j) weight(i, j) *= factor;
  }
}

TEST(Diagnostics, AreSilentOnSoundLayers) {
  Encoder model = encoder();
  for (const auto& diagnosis : {diagnose(model), diagnose(model, heed::Causal{})}) {
    EXPECT_EQ(kinds(diagnosis), "") << diagnosis.text();
    ASSERT_EQ(diagnosis.heads.size(), 8u);
    EXPECT_EQ(diagnosis.projections.size(), 2u);
    EXPECT_TRUE(diagnosis.text().starts_with("no findings\n"));
  }
}

TEST(Diagnostics, FindUniformHeads) {
  Encoder model = encoder();
  scale_queries(model, 0.01f);
  const Diagnosis diagnosis = diagnose(model);
  EXPECT_EQ(kinds(diagnosis), "nearly_uniform") << diagnosis.text();
  EXPECT_EQ(diagnosis.findings[0].layer, "layers.1.self_attn");
  EXPECT_TRUE((diagnosis.findings[0].heads == std::vector<Index>{0, 1, 2, 3}));
  EXPECT_GT(diagnosis.findings[0].value, 0.99);
}

TEST(Diagnostics, MarkSingleHeadsWithoutAFinding) {
  Encoder model = encoder();
  const auto weight = model.layers[1].self_attn.in_proj_weight.mutable_matrix();
  for (Index i = 0; i < 8; ++i) {
    for (Index j = 0; j < 32; ++j) weight(i, j) = 0;
  }
  const Diagnosis diagnosis = diagnose(model);
  EXPECT_EQ(kinds(diagnosis), "") << diagnosis.text();
  EXPECT_TRUE((diagnosis.heads[4].marks == std::vector<FindingKind>{FindingKind::NearlyUniform}));
  EXPECT_TRUE(diagnosis.heads[5].marks.empty());
  EXPECT_EQ(kinds(diagnose(model, heed::NoMask{}, numbers(), {.share_of_heads = 0.25})), "nearly_uniform");
}

TEST(Diagnostics, FindSaturatedHeads) {
  Encoder model = encoder();
  scale_queries(model, 1000);
  const Diagnosis diagnosis = diagnose(model, heed::Causal{});
  EXPECT_EQ(kinds(diagnosis), "saturated") << diagnosis.text();
}

TEST(Diagnostics, FindSinks) {
  Encoder model = encoder();
  // A bias of the queries in the direction of the first key, which is far out.
  auto bias = model.layers[0].self_attn.in_proj_bias.mutable_value();
  for (Index i = 0; i < 64; ++i) bias(i) = 3;
  auto weight = model.layers[0].self_attn.in_proj_weight.mutable_matrix();
  for (Index i = 32; i < 64; ++i) weight(i, 0) = 3;
  Tensor<float, 3> x = numbers();
  for (Index b = 0; b < 2; ++b) {
    for (Index e = 0; e < 32; ++e) x(b, 0, e) = e == 0 ? 1.0f : 0.0f;
  }
  const Diagnosis diagnosis = diagnose(model, heed::Causal{}, x);
  EXPECT_EQ(kinds(diagnosis), "attention_sink saturated") << diagnosis.text();
  EXPECT_EQ(diagnosis.findings[0].heads.size(), 4u);
}

TEST(Diagnostics, FindQueriesWithoutKeys) {
  Encoder model = encoder();
  const std::vector<int> lengths{16, 0};
  const Diagnosis diagnosis = diagnose(model, heed::Padding(lengths));
  EXPECT_EQ(kinds(diagnosis), "no_visible_key no_visible_key") << diagnosis.text();
  EXPECT_EQ(diagnosis.findings[0].value, 64) << "4 heads of 16 queries";
  EXPECT_EQ(diagnosis.heads[0].without_keys, 16);
}

TEST(Diagnostics, FindTheFirstNumberThatIsNotFinite) {
  Encoder model = encoder();
  model.layers[1].norm1.weight.mutable_value()(7) = std::numeric_limits<float>::quiet_NaN();
  const Diagnosis diagnosis = diagnose(model);
  ASSERT_FALSE(diagnosis.findings.empty());
  EXPECT_EQ(diagnosis.findings[0].kind, FindingKind::NotFinite);
  EXPECT_EQ(diagnosis.findings[0].layer, "layers.1.norm1");
  EXPECT_TRUE(has_all(diagnosis.findings[0].text, {"layers.1.norm1", "(0, 0, 7)"}));
  EXPECT_EQ(diagnosis.heads[7].not_finite, 32);
  EXPECT_EQ(diagnosis.heads[7].rows, 0);
  EXPECT_TRUE(std::isnan(diagnosis.heads[7].entropy));
}

/// Makes the `to`-th part (0 queries, 1 keys, 2 values) of the first layer's projections the `from`-th, times a factor.
void copy_projection(Encoder& model, Index from, Index to, float factor) {
  auto weight = model.layers[0].self_attn.in_proj_weight.mutable_matrix();
  for (Index i = 0; i < 32; ++i) {
    for (Index j = 0; j < 32; ++j) weight(32 * to + i, j) = factor * weight(32 * from + i, j) + 0.001f;
  }
}

TEST(Diagnostics, FindProportionalProjections) {
  const auto cosines = [](Index from, Index to) {
    Encoder model = encoder();
    copy_projection(model, from, to, -0.5f);
    const Diagnosis diagnosis = diagnose(model);
    EXPECT_EQ(kinds(diagnosis), "proportional_projections") << diagnosis.text();
    return diagnosis.projections.at(0);
  };
  EXPECT_LT(cosines(0, 1).query_key, -0.99);
  EXPECT_LT(cosines(0, 2).query_value, -0.99);
  EXPECT_LT(cosines(1, 2).key_value, -0.99);
  EXPECT_LT(std::abs(cosines(1, 2).query_key), 0.2);
}

TEST(Diagnostics, CompareSharedKeysWithTheirQueries) {
  Encoder model = encoder(2);
  // Queries of 4 heads of width 8, keys of 2: query heads 0 and 1 belong to key head 0.
  auto weight = model.layers[1].self_attn.in_proj_weight.mutable_matrix();
  for (Index i = 0; i < 32; ++i) {
    for (Index j = 0; j < 32; ++j) weight(i, j) = weight(32 + i / 16 * 8 + i % 8, j);
  }
  const Diagnosis diagnosis = diagnose(model);
  ASSERT_EQ(diagnosis.projections.size(), 2u);
  EXPECT_NEAR(diagnosis.projections[1].query_key, 1, 1e-6);
  EXPECT_LT(std::abs(diagnosis.projections[1].query_value), 0.2);
  EXPECT_EQ(kinds(diagnosis), "proportional_projections");
}

TEST(Diagnostics, CompareSeparateProjections) {
  heed::SelfAttention<float> layer({.embed_dim = 32, .head_dim = 8, .value_head_dim = 8, .out_dim = 32});
  heed::Random random(1);
  layer.initialize(random);
  EXPECT_EQ(diagnose(layer).projections.size(), 1u);
  std::copy_n(layer.q_proj.weight.value().data(), 8 * 32, layer.v_proj.weight.mutable_value().data());
  const Diagnosis diagnosis = diagnose(layer);
  EXPECT_NEAR(diagnosis.projections[0].query_value, 1, 1e-6);
  EXPECT_EQ(kinds(diagnosis), "proportional_projections");
}

TEST(Diagnostics, LeaveOutWhatHasNoChoice) {
  // Of each query only one key is visible: neither saturation nor entropy means anything.
  Encoder model = encoder();
  const Diagnosis diagnosis = diagnose(model, heed::Window(0, 0));
  EXPECT_EQ(kinds(diagnosis), "") << diagnosis.text();
  EXPECT_EQ(diagnosis.heads[0].queries, 32);
  EXPECT_EQ(diagnosis.heads[0].rows, 0);
}

TEST(Diagnostics, CountByHand) {
  heed::Recorder recorder;
  Tensor<double, 4> weights(1, 1, 3, 4);
  const double rows[] = {1, 0, 0, 0, 0.5, 0.5, 0, 0, 0.005, 0, 0.995, 0};
  std::copy(std::begin(rows), std::end(rows), weights.data());
  recorder.mask("a", weights.extents(), [](int, int, int q, int k) { return q < 2 ? k <= q : true; });
  recorder.weights("a", heed::TensorView<const double, 4>(weights.view()));
  const Diagnosis diagnosis = heed::diagnose(recorder, {.min_rows = 1});
  const heed::HeadStatistics& s = diagnosis.heads.at(0);
  EXPECT_EQ(s.rows, 2);
  const double last = -(0.005 * std::log(0.005) + 0.995 * std::log(0.995)) / std::log(4.0);
  EXPECT_NEAR(s.entropy, (1 + last) / 2, 1e-12);
  EXPECT_EQ(s.saturated, 0.5);
  EXPECT_EQ(s.first_weight, 0.005) << "the second query sees nothing but the first token and itself";
  EXPECT_EQ(kinds(heed::diagnose(recorder, {.min_rows = 1, .saturated_share = 0.5})), "saturated");
}

TEST(Diagnostics, ReportsAreTextAndJson) {
  Encoder model = encoder();
  scale_queries(model, 0);
  const Diagnosis diagnosis = diagnose(model);
  const std::string text = diagnosis.text();
  EXPECT_TRUE(
      has_all(text, {"1 finding\n", "  nearly_uniform: layers.1.self_attn: 4 of 4 heads (0, 1, 2, 3): the mean entropy",
                     "layers.0.self_attn\n  head  entropy", "     3    1.000", "  nearly_uniform\n"}));
  const auto json = nlohmann::json::parse(diagnosis.json());
  ASSERT_EQ(json.at("findings").size(), 1u);
  EXPECT_EQ(json.at("findings")[0].at("kind"), "nearly_uniform");
  EXPECT_EQ(json.at("findings")[0].at("heads").dump(), "[0,1,2,3]");
  EXPECT_EQ(json.at("findings")[0].at("text"), diagnosis.findings[0].text);
  ASSERT_EQ(json.at("heads").size(), 8u);
  EXPECT_EQ(json.at("heads")[5].at("marks").dump(), "[\"nearly_uniform\"]");
  EXPECT_NEAR(json.at("heads")[5].at("entropy").get<double>(), diagnosis.heads[5].entropy, 1e-5);
  EXPECT_EQ(json.at("projections").size(), 2u);
  EXPECT_TRUE(json.at("projections")[1].at("query_key").is_null()) << "a matrix of zeros has no direction";
  EXPECT_EQ(json.at("outputs").size(), diagnosis.outputs.size());
  EXPECT_EQ(json.at("outputs")[0].at("layer"), diagnosis.outputs[0].layer);
}

}  // namespace
