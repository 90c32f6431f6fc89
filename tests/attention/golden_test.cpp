// SPDX-License-Identifier: MIT
// Output, weights and log-sum-exp against PyTorch's scaled_dot_product_attention in double: see tests/golden/README.md.
#include "common/golden.hpp"

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <heed/attention/attention.hpp>
#include <heed/compiled/attention.hpp>
#include <heed/mask/bool_mask.hpp>

#include "common/any_mask.hpp"
#include "common/any_modifier.hpp"
#include "common/error_budget.hpp"
#include "common/views.hpp"

namespace heed_test {
namespace {

class GoldenAttention : public ::testing::TestWithParam<const char*> {};

/// Everything that PyTorch returned, by one path and in one pair of types. Inputs are exact in all of them.
template <class T, class S>
void check(const std::string& name, heed::Path path, double tolerance) {
  const Golden golden(name);
  const heed::SafeTensors& file = golden.file();
  const auto torch_options = nlohmann::json::parse(file.metadata().at("options"));
  const auto q = golden.tensor<T, 4>("in.q");
  const auto k = golden.tensor<S, 4>("in.k"), v = golden.tensor<S, 4>("in.v");
  const auto y = golden.tensor<double, 4>("out.y"), weights = golden.tensor<double, 4>("out.weights");
  const auto lse = golden.tensor<double, 3>("out.lse");

  heed::Context context;
  context.path = path;
  heed::AttentionOptions options;
  if (!torch_options.at("scale").is_null()) options.scale = torch_options.at("scale").get<double>();
  const auto run = [&](const auto& mask, const auto& modifier) {
    const auto result = heed::attention_with_weights(q, k, v, mask, modifier, options, context);
    const auto of_out = deviation<T, double, 4>(result.out.view(), y.view());
    EXPECT_LE(of_out.error, tolerance * of_out.magnitude);
    EXPECT_LE((deviation<T, double, 4>(result.weights.view(), weights.view()).error), tolerance);

    const auto statistics = heed::attention_with_statistics(q, k, v, mask, modifier, options, context);
    EXPECT_TRUE(same_bits(statistics.out, result.out));
    auto sum = cast<double>(statistics.sum.view());
    for (Index i = 0; i < sum.size(); ++i) {
      sum.data()[i] = std::log(sum.data()[i]) + static_cast<double>(statistics.maximum.data()[i]);
    }
    const auto of_lse = deviation<double, double, 3>(std::as_const(sum).view(), lse.view());
    EXPECT_LE(of_lse.error, 4 * epsilon<heed::accumulate_t<T>>() * (1 + of_lse.magnitude));
  };

  heed::Tensor<std::uint8_t, 4> keep(1, 1, 1, 1);
  keep(0, 0, 0, 0) = 1;
  if (file.contains("keep")) keep = file.read_integers<std::uint8_t, 4>("keep");
  const auto mask = heed::BoolMask::keep(keep);
  if (file.contains("in.bias")) {
    // The same bias for every sample.
    const auto bias = file.read<double, 4>("in.bias");
    auto strides = bias.view().strides();
    strides[0] = 0;
    const heed::TensorView<const double, 4> shared(bias.data(), {q.extent(0), q.extent(1), q.extent(2), k.extent(2)},
                                                   strides);
    run(AnyMask<false>(mask), AnyModifier::table(shared));
  } else if (torch_options.at("is_causal").get<bool>()) {
    run(AnyMask<true>(heed::Causal{}), heed::NoModifier{});
  } else {
    run(AnyMask<false>(mask), heed::NoModifier{});
  }
}

/// The gradients that PyTorch returned.
template <class T>
void check_gradients(const std::string& name, heed::Path path, double tolerance) {
  const Golden golden(name);
  const auto torch_options = nlohmann::json::parse(golden.file().metadata().at("options"));
  const auto q = golden.tensor<T, 4>("in.q"), k = golden.tensor<T, 4>("in.k"), v = golden.tensor<T, 4>("in.v");
  const auto dout = golden.tensor<T, 4>("dout.y");
  heed::Context context;
  context.path = path;
  heed::AttentionOptions options;
  if (!torch_options.at("scale").is_null()) options.scale = torch_options.at("scale").get<double>();
  const auto expect = [&](const auto& gradient, const char* key) {
    const auto expected = golden.tensor<double, 4>(key);
    const auto d = deviation<T, double, 4>(std::as_const(gradient).view(), expected.view());
    EXPECT_LE(d.error, tolerance * d.magnitude) << key;
  };
  const auto run = [&](const auto& mask, const auto& modifier) {
    const auto [dq, dk, dv] = heed::attention_backward(dout, q, k, v, mask, modifier, options, context);
    expect(dq, "grad.in.q");
    expect(dk, "grad.in.k");
    expect(dv, "grad.in.v");
  };
  heed::Tensor<std::uint8_t, 4> keep(1, 1, 1, 1);
  keep(0, 0, 0, 0) = 1;
  if (golden.file().contains("keep")) keep = golden.file().read_integers<std::uint8_t, 4>("keep");
  if (golden.file().contains("in.bias")) {
    const auto bias = golden.tensor<T, 4>("in.bias");
    heed::Tensor<T, 4> dbias(bias.extents());
    run(AnyMask<false>(heed::BoolMask::keep(keep)), heed::Bias(bias).with_gradient(dbias.view()));
    expect(dbias, "grad.in.bias");
  } else if (torch_options.at("is_causal").get<bool>()) {
    run(AnyMask<true>(heed::Causal{}), heed::NoModifier{});
  } else {
    run(AnyMask<false>(heed::BoolMask::keep(keep)), heed::NoModifier{});
  }
}

TEST_P(GoldenAttention, GradientsAgreeWithPyTorch) {
  for (const heed::Path path : {heed::Path::Reference, heed::Path::Blocked}) {
    SCOPED_TRACE(path == heed::Path::Blocked ? "blocked" : "reference");
    check_gradients<double>(GetParam(), path, 1e-13);
    // Scores of several hundred are rounded to 3e-5, and weights with them.
    check_gradients<float>(GetParam(), path, std::string(GetParam()) == "sdpa_large_scores" ? 3e-5 : 3e-6);
  }
}

TEST_P(GoldenAttention, AgreesWithPyTorch) {
  for (const heed::Path path : {heed::Path::Reference, heed::Path::Blocked}) {
    SCOPED_TRACE(path == heed::Path::Blocked ? "blocked" : "reference");
    check<double, double>(GetParam(), path, 1e-13);
    check<float, float>(GetParam(), path, 2e-6);
    check<heed::half, heed::half>(GetParam(), path, 2 * epsilon<heed::half>());
    check<heed::bfloat16, heed::bfloat16>(GetParam(), path, 2 * epsilon<heed::bfloat16>());
    check<float, heed::bfloat16>(GetParam(), path, 2e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Attention, GoldenAttention,
                         ::testing::Values("sdpa", "sdpa_scale", "sdpa_causal", "sdpa_gqa", "sdpa_gqa_causal",
                                           "sdpa_mqa_causal", "sdpa_mask_shared_by_heads", "sdpa_mask_shared_by_batch",
                                           "sdpa_gqa_mask_per_head", "sdpa_empty_rows", "sdpa_large_scores",
                                           "sdpa_bias"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace heed_test
