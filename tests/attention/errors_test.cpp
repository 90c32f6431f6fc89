// SPDX-License-Identifier: MIT
// Every refusal: its type, and a text that names the function, the argument, both values and the fix.
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/attention/attention.hpp>
#include <heed/compiled/attention.hpp>

#include "common/any_mask.hpp"
#include "common/message_of.hpp"

namespace heed_test {
namespace {

using Heads = heed::Tensor<float, 4>;

auto call(const Heads& q, const Heads& k, const Heads& v) {
  return [&q, &k, &v] { heed::attention(q, k, v); };
}

TEST(AttentionErrors, ShapesThatDontFit) {
  const Heads q(2, 4, 5, 64);
  struct Case {
    Heads k, v;
    std::vector<std::string> parts;
  };
  const Case cases[] = {
      {Heads(3, 2, 7, 64), Heads(2, 2, 7, 8), {"k has B = 3 but q has B = 2", "(3, 2, 7, 64)", "(2, 4, 5, 64)"}},
      {Heads(2, 2, 7, 64), Heads(1, 2, 7, 8), {"v has B = 1 but q has B = 2", "(1, 2, 7, 8)"}},
      {Heads(2, 2, 7, 48), Heads(2, 2, 7, 8), {"k has Dk = 48 but q has Dk = 64", "one width"}},
      {Heads(2, 2, 7, 64), Heads(2, 4, 7, 8), {"v has G = 4 heads but k has G = 2"}},
      {Heads(2, 2, 7, 64), Heads(2, 2, 9, 8), {"v has Lk = 9 rows but k has Lk = 7", "each key needs one value"}},
      {Heads(2, 3, 7, 64), Heads(2, 3, 7, 8), {"q has H = 4 heads but k has G = 3", "multiple of G", "h / (H/G)"}},
      {Heads(2, 8, 7, 64), Heads(2, 8, 7, 8), {"q has H = 4 heads but k has G = 8", "multiple of G"}},
      {Heads(2, 0, 7, 64), Heads(2, 0, 7, 8), {"q has H = 4 heads but k has G = 0", "multiple of G"}},
  };
  for (const Case& c : cases) {
    const std::string message = message_of<heed::ShapeError>(call(q, c.k, c.v));
    EXPECT_TRUE(has_all(message, {"heed::attention: "}));
    EXPECT_TRUE(has_all(message, c.parts));
  }
}

TEST(AttentionErrors, NoWidthMeansNoScores) {
  const Heads x(1, 1, 3, 0), v(1, 1, 3, 2);
  EXPECT_TRUE(has_all(message_of<heed::ShapeError>(call(x, x, v)), {"heed::attention: ", "Dk = 0", "at least 1"}));
}

TEST(AttentionErrors, ExtentsBeyondInt) {
  // A view that repeats one row has as many as it likes.
  const Heads q(1, 1, 1, 2);
  const heed::TensorView<const float, 4> many(q.data(), {1, 1, Index{1} << 32, 2}, {0, 0, 0, 1});
  Heads out(1, 1, 1, 2);
  heed::Context context;
  const auto attend = [&](const auto& x, const auto& k, const auto& v) { heed::attention_into(out, x, k, v, context); };
  EXPECT_TRUE(has_all(message_of<heed::ShapeError>([&] { attend(many, q, q); }), {"q is (1, 1, 4294967296, 2)"}));
  EXPECT_TRUE(has_all(message_of<heed::ShapeError>([&] { attend(q, many, many); }), {"k is (1, 1, 4294967296, 2)"}));
  EXPECT_TRUE(
      has_all(message_of<heed::ShapeError>([&] { attend(q, q, many); }), {"heed::attention: v is", "2147483647"}));
}

class AttentionOptionErrors : public ::testing::Test {
 protected:
  template <class Exception>
  std::string message() {
    return message_of<Exception>([&] { heed::attention(q, q, q, options, context); });
  }
  Heads q{1, 2, 3, 4};
  heed::AttentionOptions options;
  heed::Context context;
};

TEST_F(AttentionOptionErrors, Scale) {
  for (const double scale :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN(), 1e300}) {
    options.scale = scale;
    EXPECT_TRUE(has_all(message<heed::ValueError>(), {"heed::attention: scale = ", "finite"}));
  }
}

TEST_F(AttentionOptionErrors, Dropout) {
  for (const double p : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
    options.dropout = p;
    for (const bool training : {false, true}) {
      context.training = training;
      EXPECT_TRUE(has_all(message<heed::ValueError>(), {"heed::attention: dropout = ", "between 0 and 1"}));
    }
  }
}

TEST_F(AttentionOptionErrors, Sinks) {
  const double sinks[] = {1, 2, 3};
  options.sinks = sinks;
  EXPECT_TRUE(has_all(message<heed::ShapeError>(), {"heed::attention: 3 sinks but H = 2", "one for each query head"}));
}

TEST(AttentionErrors, BlockedPathForOtherScalars) {
  const heed::Tensor<long double, 4> x(1, 1, 2, 2);
  heed::Context context;
  context.path = heed::Path::Blocked;
  EXPECT_TRUE(has_all(message_of<heed::ValueError>([&] { heed::attention(x, x, x, context); }),
                      {"blocked path", "float and double", "Path::Automatic"}));
  context.path = heed::Path::Automatic;
  EXPECT_NO_THROW(heed::attention(x, x, x, context));
}

TEST(AttentionErrors, OutputOfAnotherShape) {
  const Heads q(1, 2, 3, 4), v(1, 2, 3, 5);
  heed::Context context;
  Heads out(1, 2, 3, 4);
  EXPECT_TRUE(has_all(message_of<heed::ShapeError>([&] { heed::attention_into(out, q, q, v, context); }),
                      {"heed::attention: out is (1, 2, 3, 4) but the call needs (1, 2, 3, 5)"}));
}

TEST(AttentionErrors, WeightsOfAnotherShape) {
  const Heads q(1, 2, 3, 4), k(1, 2, 6, 4);
  heed::Context context;
  Heads out(1, 2, 3, 4);
  for (Heads weights : {Heads(1, 2, 3, 5), Heads()}) {
    EXPECT_TRUE(has_all(
        message_of<heed::ShapeError>([&] { heed::attention_with_weights_into(out, weights, q, k, k, context); }),
        {"heed::attention: weights is (", "but the call needs (1, 2, 3, 6)"}));
  }
}

TEST(AttentionErrors, OutputsThatOverlap) {
  Heads q(1, 2, 3, 4), k(1, 2, 4, 4), v(1, 2, 4, 4), out(1, 2, 3, 4), weights(1, 2, 3, 4);
  heed::Context context;
  const auto attend = [&](const auto& to, const auto& weights_to) {
    return message_of<heed::ValueError>([&] { heed::attention_with_weights_into(to, weights_to, q, k, v, context); });
  };
  const auto in = [](Heads& x) { return x.view().slice(2, 0, 3); };
  EXPECT_TRUE(has_all(attend(in(q), weights.view()), {"heed::attention: out overlaps q", "separate memory"}));
  EXPECT_TRUE(has_all(attend(in(k), weights.view()), {"out overlaps k"}));
  EXPECT_TRUE(has_all(attend(in(v), weights.view()), {"out overlaps v"}));
  EXPECT_TRUE(has_all(attend(out.view(), in(q)), {"weights overlaps q"}));
  EXPECT_TRUE(has_all(attend(out.view(), in(k)), {"weights overlaps k"}));
  EXPECT_TRUE(has_all(attend(out.view(), in(v)), {"weights overlaps v"}));
  EXPECT_TRUE(has_all(attend(out.view(), out.view()), {"weights overlaps out"}));
}

TEST(AttentionErrors, OutputBesideInputsInOneBufferIsFine) {
  // Columns of one matrix: q, k, v and out side by side.
  heed::Tensor<float, 2> buffer(5, 16);
  const auto part = [&](Index first) { return buffer.view().slice(1, first, 4); };
  heed::Context context;
  EXPECT_NO_THROW(heed::attention_into(part(12), part(0), part(4), part(8), context));
}

TEST(AttentionErrors, MaskErrorsReachTheCaller) {
  const Heads q(1, 1, 2, 4), k(1, 1, 3, 4);
  for (const heed::Path path : {heed::Path::Reference, heed::Path::Blocked}) {
    heed::Context context;
    context.path = path;
    const std::string message =
        message_of<heed::ValueError>([&] { heed::attention(q, k, k, heed::Causal{}, context); });
    EXPECT_TRUE(has_all(
        message, {"heed::Causal: Lq = 2 but Lk = 3", "Causal::top_left", "Causal::bottom_right", "Causal::from"}));
  }
}

TEST(AttentionErrors, AFailedCallLeavesTheContextUsable) {
  const Heads q(1, 1, 3, 4), k(1, 1, 3, 5);
  heed::Context context;
  EXPECT_THROW(heed::attention(q, k, k, context), heed::ShapeError);
  EXPECT_NO_THROW(heed::attention(q, q, q, context));
}

}  // namespace
}  // namespace heed_test
