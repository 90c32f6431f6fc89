// SPDX-License-Identifier: MIT
// The models and reports that the article's programs measure with.
#include "article/common/models.hpp"

#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/random.hpp>

#include "article/common/claim.hpp"
#include "common/temporary_directory.hpp"

namespace {

using article::Batch;
using article::Model;
using article::ModelOptions;
using article::Readout;

Batch some_batch(const ModelOptions& options) {
  const heed::Philox random(5, 0);
  Batch batch{heed::Tensor<int, 2>(3, 7), {7, 4, 5}, heed::Tensor<int, 2>(3, 1)};
  if (options.readout == Readout::EachToken) batch.targets = heed::Tensor<int, 2>(3, 7);
  const auto draw = [&](heed::Tensor<int, 2>& to, heed::Index below, std::uint64_t stream) {
    for (heed::Index i = 0; i < to.size(); ++i) {
      to.data()[i] =
          static_cast<int>(static_cast<double>(below) * heed::Philox(5, stream).uniform(static_cast<std::uint64_t>(i)));
    }
  };
  draw(batch.ids, options.vocab_size, 1);
  draw(batch.targets, options.classes, 2);
  return batch;
}

struct Case {
  std::string name;
  ModelOptions options;
};

std::vector<Case> cases() {
  const ModelOptions base{
      .vocab_size = 11, .classes = 5, .length = 8, .embed_dim = 8, .num_heads = 2, .embedding_std = 1};
  std::vector<Case> all;
  const auto add = [&](std::string name, auto&& change) {
    ModelOptions options = base;
    change(options);
    all.push_back({std::move(name), options});
  };
  add("default", [](ModelOptions&) {});
  add("post-norm, causal, each token, learned", [](ModelOptions& o) {
    o.norm = article::NormPlace::Post;
    o.causal = true;
    o.readout = Readout::EachToken;
    o.positions = article::Positions::Learned;
  });
  add("no projections, no scaling, ends", [](ModelOptions& o) {
    o.projections = false;
    o.scale = 1;
    o.readout = Readout::Ends;
    o.positions = article::Positions::None;
  });
  add("padding forgotten, orthogonal", [](ModelOptions& o) {
    o.mask_padding = false;
    o.pool_padding = true;
    o.init = article::Init::Orthogonal;
    o.init_std = 1;
  });
  add("BiLSTM, ends", [](ModelOptions& o) {
    o.body = article::Body::Lstm;
    o.readout = Readout::Ends;
    o.positions = article::Positions::None;
  });
  add("LSTM of one direction, first token", [](ModelOptions& o) {
    o.body = article::Body::Lstm;
    o.causal = true;
    o.readout = Readout::First;
  });
  return all;
}

// The loss along the gradient rises as its norm says.
TEST(ArticleModels, GradientsAreThoseOfTheLoss) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    Model model(c.options);
    const Batch batch = some_batch(c.options);
    heed::Context context;
    EXPECT_NEAR(model.loss_and_gradients(batch, context), model.loss(batch, context), 1e-6);
    double squares = 0;
    for (const auto& entry : model.parameters()) {
      EXPECT_TRUE(entry.parameter->has_grad()) << entry.name;
      for (heed::Index i = 0; i < entry.parameter->size(); ++i) squares += std::pow(entry.parameter->grad()(i), 2);
    }
    const double norm = std::sqrt(squares), step = 5e-3;
    const auto move = [&](double by) {
      for (const auto& entry : model.parameters()) {
        const auto value = entry.parameter->mutable_value();
        for (heed::Index i = 0; i < value.extent(0); ++i) {
          value(i) += static_cast<float>(by / norm * static_cast<double>(entry.parameter->grad()(i)));
        }
      }
      return model.loss(batch, context);
    };
    const double above = move(step), below = move(-2 * step);
    EXPECT_NEAR((above - below) / (2 * step), norm, 5e-3 * norm);
  }
}

TEST(ArticleModels, PaddingChangesNothingUnlessItIsForgotten) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Model model(c.options);
    Batch batch = some_batch(c.options);
    heed::Context context;
    const heed::Tensor<float, 3> before = model.logits(batch, context);
    batch.ids(1, 5) = (batch.ids(1, 5) + 1) % 11;
    const heed::Tensor<float, 3> after = model.logits(batch, context);
    const float difference = std::abs(after(1, 0, 0) - before(1, 0, 0));
    if (c.options.mask_padding)
      EXPECT_EQ(difference, 0);
    else
      EXPECT_GT(difference, 1e-4);
  }
}

TEST(ArticleModels, LearnAndStartFromTheirSeedAlone) {
  const ModelOptions options{.vocab_size = 6, .classes = 3, .embed_dim = 16};
  const auto sample = [](int step) {  // the class is the number of fives, 0 to 2
    Batch batch{heed::Tensor<int, 2>(12, 6), {}, heed::Tensor<int, 2>(12, 1)};
    const heed::Philox random(1, static_cast<std::uint64_t>(step));
    for (int b = 0; b < 12; ++b) {
      for (int l = 0; l < 6; ++l)
        batch.ids(b, l) = static_cast<int>(5 * random.uniform(static_cast<std::uint64_t>(6 * b + l)));
      batch.targets(b, 0) = b % 3;
      for (int l = 0; l < b % 3; ++l) batch.ids(b, 2 * l) = 5;
    }
    return batch;
  };
  Model model(options), again(options);
  heed::Context context;
  const std::vector<double> losses = article::train(model, sample, {.steps = 150}, context);
  EXPECT_EQ(losses, article::train(again, sample, {.steps = 150}, context));
  EXPECT_GT(losses.front(), 0.9);
  EXPECT_LT(article::tail_mean(losses), 0.3);
  EXPECT_GT(model.accuracy(sample(1000), context), 0.9);
}

TEST(ArticleReport, TellsWhatWasFoundAndWhetherItWasExpected) {
  const heed_test::TemporaryDirectory directory;
  const article::Claim claim{.name = "less", .claim = "1 < 2 & 3"};
  const auto run = [&](double value) {
    std::string program = "less", quick = "--quick", out = "--out", path = directory.path("pages");
    char* arguments[] = {program.data(), quick.data(), out.data(), path.data()};
    return article::run(4, arguments, claim, [&](article::Report& report) {
      EXPECT_EQ(report.pick(100, 3), 3);
      report.table("numbers", {"name", "value"}).row({"a<b", 1.5}).row({"c", 7});
      report.curves("line", {{"falls", {{1, 10}, {2, 1}}}}, "x", "y", {.y = examples::Scale::Log10});
      report.curves("another", {{"rises", {{1, 1}, {2, 2}}}}, "x", "y");
      report.expect("the value", value, article::at_least(1));
      report.verdict(article::Verdict::Partly, "half of it");
    });
  };
  testing::internal::CaptureStdout();
  EXPECT_EQ(run(2), 0);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("  name  value\n  a<b     1.5\n  c         7\n"), std::string::npos) << text;
  EXPECT_NE(text.find("as expected: the value = 2 (at least 1)\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nless: the claim held in part: half of it\n"), std::string::npos) << text;

  EXPECT_EQ(heed_test::read_text(directory.path("pages/less.svg")),
            examples::curves_svg({{"falls", {{1, 10}, {2, 1}}}}, "line", "x", "y", {.y = examples::Scale::Log10}));
  EXPECT_FALSE(heed_test::read_text(directory.path("pages/less-2.svg")).empty());
  article::write_page(directory.path("pages"), directory.path("pages/page.html"), {"more", "less"});
  const std::string page = heed_test::read_text(directory.path("pages/page.html"));
  EXPECT_NE(page.find("<td><a href=\"#less\">1 &lt; 2 &amp; 3</a></td>"), std::string::npos) << page;
  EXPECT_NE(page.find("<td>a&lt;b</td><td class=\"number\">1.5</td>"), std::string::npos) << page;
  EXPECT_NE(page.find("<svg"), std::string::npos);

  testing::internal::CaptureStdout();
  EXPECT_EQ(run(0.5), 1);
  EXPECT_NE(testing::internal::GetCapturedStdout().find("NOT EXPECTED: the value"), std::string::npos);
}

TEST(ArticleReport, FormatsSeveralNumbers) {
  EXPECT_EQ(article::format("%.1f of %g %% are %.0e", {1.25, 30, 1e-9}), "1.2 of 30 % are 1e-09");
  EXPECT_EQ(article::format("none", {}), "none");
  EXPECT_THROW(article::format("%g %g", {1}), std::logic_error);
}

TEST(ArticleReport, SkipsWhereSomethingIsMissing) {
  const heed_test::TemporaryDirectory directory;
  std::string program = "absent", out = "--out", path = directory.path("pages");
  char* arguments[] = {program.data(), out.data(), path.data()};
  testing::internal::CaptureStdout();
  const int status = article::run(3, arguments, {.name = "absent", .claim = "c"},
                                  [](article::Report&) { article::text_directory("no such text"); });
  EXPECT_EQ(status, 77);
  EXPECT_NE(testing::internal::GetCapturedStdout().find("skipped: the text 'no such text' is not there"),
            std::string::npos);
  article::write_page(directory.path("pages"), directory.path("pages/page.html"), {});
  EXPECT_NE(heed_test::read_text(directory.path("pages/page.html")).find("not measured"), std::string::npos);
}

}  // namespace
