// SPDX-License-Identifier: MIT
// SmolLM2-135M-Instruct against transformers: logits, greedy tokens, and what must not change them.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/context.hpp>
#include <heed/core/parallel.hpp>
#include <heed/io/gguf.hpp>
#include <heed/nn/kv_cache.hpp>

#include "common/allocation_counter.hpp"
#include "generate/llama.hpp"
#include "generate/sampling.hpp"
#include "generate/session.hpp"
#include "smollm2_files.hpp"

namespace generate {
namespace {

using heed::Index;
using heed::Tensor;
using heed::TensorView;

class SmolLm2 : public testing::Test {
 protected:
  void SetUp() override { HEED_SKIP_WITHOUT_SMOLLM2(); }

  static const Llama& model(Weights weights) {
    static const heed::Gguf file = heed::Gguf::open(smollm2_file().string());
    static const Llama in_blocks(file, Weights::Quantized), as_floats(file, Weights::Float);
    return weights == Weights::Float ? as_floats : in_blocks;
  }
  static std::vector<int> greedy(Session& session, int count, heed::Context& context) {
    std::vector<Sampler> sampler{Sampler({})};
    std::vector<int> ids;
    const auto ends = write_on(
        session, sampler, 2, count, context, [&](std::size_t, int id) { ids.push_back(id); }, [] { return false; });
    if (ends[0] == End::Token) ids.push_back(2);
    return ids;
  }
};

TEST_F(SmolLm2, LogitsAndGreedyTokensAreThoseOfTransformers) {
  const auto golden = smollm2_golden("golden.json");
  const auto check = [&](Weights weights, int threads) {
    heed::ThreadPool pool(threads);
    heed::Context context(pool);
    for (const auto& entry : golden.at("cases")) {
      Session session(model(weights), 1, 100, 0);
      session.add({entry.at("ids").get<std::vector<int>>()}, context);
      const TensorView<const float, 1> logits = session.logits(0);
      for (const auto& [id, logit] : entry.at("last_logits_top16").get<std::vector<std::pair<int, double>>>()) {
        EXPECT_NEAR(logits(id), logit, 1e-3) << entry.at("name") << ", token " << id;
      }
      auto expected = entry.at("greedy_ids").get<std::vector<int>>();
#if defined(HEED_TEST_SANITIZED)
      expected.resize(5);
#endif
      EXPECT_EQ(greedy(session, static_cast<int>(expected.size()), context), expected) << entry.at("name");
    }
  };
  check(Weights::Float, 1);
  check(Weights::Quantized, 2);
}

// The bits are those of the weights as numbers, so few bits cost nothing but what the file has lost already.
TEST_F(SmolLm2, WeightsInBlocksChangeNoBit) {
  heed::Context context;
  Session blocks(model(Weights::Quantized), 1, 20, 0), floats(model(Weights::Float), 1, 20, 0);
  for (const std::vector<int>& ids : {std::vector<int>{504, 3575, 282, 4649, 314}, {7042}, {30, 198, 198}}) {
    blocks.add({ids}, context);
    floats.add({ids}, context);
    for (Index i = 0; i < 49152; ++i) ASSERT_EQ(blocks.logits(0)(i), floats.logits(0)(i)) << i;
  }
}

TEST_F(SmolLm2, PromptsSideBySideAreAsAlone) {
  heed::Context context;
  const std::vector<std::vector<int>> prompts{
      {504, 3575, 282, 4649, 314}, {6403, 1980}, {1604, 3987, 46477, 24, 94, 727}};
  Session together(model(Weights::Quantized), 3, 30, 0);
  together.add(prompts, context);
  std::vector<Sampler> samplers(3, Sampler({}));
  std::vector<std::vector<int>> written(3);
  write_on(
      together, samplers, 2, 8, context, [&](std::size_t text, int id) { written[text].push_back(id); },
      [] { return false; });
  for (std::size_t i = 0; i < 3; ++i) {
    Session alone(model(Weights::Quantized), 1, 30, 0);
    alone.add({prompts[i]}, context);
    EXPECT_EQ(greedy(alone, 8, context), written[i]);
    for (Index v = 0; v < 49152; ++v) {
      ASSERT_EQ(alone.logits(0)(v), together.logits(static_cast<Index>(i))(v)) << "prompt " << i << ", token " << v;
    }
  }
}

TEST_F(SmolLm2, AWindowGoesOnWithoutEnd) {
  heed::Context context;
  Session session(model(Weights::Quantized), 1, 0, 12);
  session.add({{504, 3575, 282, 4649, 314}}, context);
  const std::vector<int> ids = greedy(session, 40, context);
  EXPECT_EQ(ids[0], 7042);
  EXPECT_TRUE(std::isfinite(session.logits(0)(0)));
}

TEST_F(SmolLm2, WarmStepsAllocateNothing) {
  if (!heed_test::counts_allocations()) GTEST_SKIP() << "allocations are not counted on this platform";
  const Llama& llama = model(Weights::Quantized);
  heed::Context context;
  heed::KvCache<float> kv(llama, {.capacity = 40});
  Tensor<int, 2> ids(1, 1);
  ids(0, 0) = 100;
  Tensor<float, 2> logits(1, 49152);
  const auto step = [&] { llama.step(ids.view(), kv, logits.view(), context); };
  for (int i = 0; i < 20; ++i) step();
  EXPECT_EQ(heed_test::allocations_of([&] {
              for (int i = 0; i < 10; ++i) step();
            }),
            0);
}

}  // namespace
}  // namespace generate
