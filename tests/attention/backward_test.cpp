// SPDX-License-Identifier: MIT
// Gradients of attention: the reference path against central differences and PyTorch, the blocked path against the
// reference under the error budget, and what hidden rows may hold.
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <heed/attention/attention.hpp>
#include <heed/compiled/attention.hpp>
#include <heed/core/parallel.hpp>

#include "common/allocation_counter.hpp"
#include "common/attention_cases.hpp"
#include "common/error_budget.hpp"
#include "common/message_of.hpp"
#include "common/views.hpp"

namespace heed_test {
namespace {

template <class T>
struct Gradients {
  heed::Tensor<T, 4> dq, dk, dv;
  std::vector<double> dsinks;
};

/// One call with everything that it takes.
template <class T>
struct Problem {
  heed::Tensor<T, 4> q, k, v, dout;
  heed::AttentionOptions options;

  Problem(const heed::AttentionShape& s, std::uint64_t seed, double stddev = 1) : Problem(s, Random(seed), stddev) {}

  heed::AttentionShape shape() const {
    const auto i = [](Index n) { return static_cast<int>(n); };
    return {i(q.extent(0)), i(q.extent(1)), i(k.extent(1)), i(q.extent(2)),
            i(k.extent(2)), i(q.extent(3)), i(v.extent(3))};
  }

  template <class M, class F>
  heed::Tensor<T, 4> output(const M& mask, const F& modifier, heed::Context& context) const {
    return heed::attention(q, k, v, mask, modifier, options, context);
  }
  template <class M, class F>
  Gradients<T> gradients(const M& mask, const F& modifier, heed::Context& context) const {
    heed::Tensor<T, 4> out(dout.extents());
    heed::AttentionCache<T> cache;
    Gradients<T> g{heed::Tensor<T, 4>(q.extents()), heed::Tensor<T, 4>(k.extents()), heed::Tensor<T, 4>(v.extents()),
                   std::vector<double>(options.sinks.size())};
    heed::attention_into(out, q, k, v, mask, modifier, options, cache, context);
    heed::attention_backward_into(heed::AttentionGradients<T>{g.dq.view(), g.dk.view(), g.dv.view(), g.dsinks}, dout,
                                  cache, context);
    return g;
  }
  template <class M, class F>
  Gradients<T> gradients(const M& mask, const F& modifier, heed::Path path) const {
    heed::Context context;
    context.path = path;
    return gradients(mask, modifier, context);
  }
  Gradients<T> gradients(const AttentionCase& c, heed::Path path) const {
    return c.mask.with_mask([&](const auto& mask) {
      return c.modifier ? gradients(mask, *c.modifier, path) : gradients(mask, heed::NoModifier{}, path);
    });
  }

 private:
  Problem(const heed::AttentionShape& s, Random random, double stddev)
      : q(normal_tensor<T, 4>({s.B, s.H, s.Lq, s.Dk}, random, stddev)),
        k(normal_tensor<T, 4>({s.B, s.G, s.Lk, s.Dk}, random, stddev)),
        v(normal_tensor<T, 4>({s.B, s.G, s.Lk, s.Dv}, random)),
        dout(normal_tensor<T, 4>({s.B, s.H, s.Lq, s.Dv}, random)) {}
};

template <class T>
void expect_same_bits(const Gradients<T>& a, const Gradients<T>& b) {
  EXPECT_TRUE(same_bits(a.dq, b.dq)) << "dq";
  EXPECT_TRUE(same_bits(a.dk, b.dk)) << "dk";
  EXPECT_TRUE(same_bits(a.dv, b.dv)) << "dv";
  EXPECT_EQ(a.dsinks, b.dsinks);
}

/// Central differences of sum(dout ∘ attention) by every number of `x`, which is an input of the problem.
template <class M, class F>
void expect_central_differences(Problem<double>& p, heed::Tensor<double, 4>& x, const heed::Tensor<double, 4>& gradient,
                                const M& mask, const F& modifier, const heed::Context& like, const char* name) {
  constexpr double h = 1e-5;
  const auto loss = [&] {
    heed::Context context;
    context.path = heed::Path::Reference;
    context.training = like.training;
    context.seed = like.seed;
    const auto y = p.output(mask, modifier, context);
    double sum = 0;
    for (Index i = 0; i < y.size(); ++i) sum += y.data()[i] * p.dout.data()[i];
    return sum;
  };
  double largest = 0, worst = 0;
  for (Index i = 0; i < x.size(); ++i) {
    const double kept = x.data()[i];
    x.data()[i] = kept + h;
    const double above = loss();
    x.data()[i] = kept - h;
    const double below = loss();
    x.data()[i] = kept;
    largest = std::max(largest, std::abs(gradient.data()[i]));
    worst = std::max(worst, std::abs((above - below) / (2 * h) - gradient.data()[i]));
  }
  EXPECT_LE(worst, 1e-6 * largest) << name;
}

template <class M, class F>
void check_differences(Problem<double> p, const M& mask, const F& modifier, double dropout = 0) {
  p.options.dropout = dropout;
  for (const heed::Path path : {heed::Path::Reference, heed::Path::Automatic}) {
    SCOPED_TRACE(path == heed::Path::Reference ? "reference" : "automatic");
    heed::Context context;
    context.path = path;
    context.training = dropout > 0;
    context.seed = 17;
    const auto g = p.gradients(mask, modifier, context);
    expect_central_differences(p, p.q, g.dq, mask, modifier, context, "dq");
    expect_central_differences(p, p.k, g.dk, mask, modifier, context, "dk");
    expect_central_differences(p, p.v, g.dv, mask, modifier, context, "dv");
  }
}

constexpr heed::AttentionShape kSmall{.B = 2, .H = 4, .G = 2, .Lq = 5, .Lk = 7, .Dk = 3, .Dv = 4};
const auto kMask = heed::mask([](int b, int, int q, int k) { return q != 2 && (q + k + b) % 3 != 0; });

TEST(AttentionBackward, AgreesWithCentralDifferences) {
  check_differences(Problem<double>(kSmall, 1), heed::NoMask(), heed::NoModifier());
  check_differences(Problem<double>(kSmall, 2), kMask, heed::NoModifier());
  check_differences(Problem<double>(kSmall, 3), heed::Causal::bottom_right(), heed::NoModifier(), 0.4);
  Problem<double> scaled(kSmall, 4);
  scaled.options.scale = -0.8;
  check_differences(scaled, kMask, heed::NoModifier());
}

TEST(AttentionBackward, AgreesWithCentralDifferencesThroughModifiers) {
  Random random(5);
  const auto bias = normal_tensor<double, 4>({1, 4, 5, 7}, random);
  const auto table = normal_tensor<double, 2>({4, 5}, random);
  check_differences(Problem<double>(kSmall, 6), kMask, heed::SoftCap(1.5));
  check_differences(Problem<double>(kSmall, 7), kMask, then(heed::SoftCap(1.5), heed::Alibi::bottom_right(4)));
  check_differences(Problem<double>(kSmall, 8), kMask, then(heed::Bias(bias), heed::SoftCap(2)));
  check_differences(Problem<double>(kSmall, 9), kMask, heed::RelativeBias(table, heed::Alignment::bottom_right()));
  // Without a derivative of its own: dual numbers, on the reference path.
  const auto fading = heed::modifier([](auto score, const auto& at) {
    using std::abs;
    using std::exp;
    using std::max;
    using std::tanh;
    return max(tanh(score), score * 0.25) * exp(-0.1 * abs(at.query - at.key)) / (1 + 0.5 * abs(score));
  });
  check_differences(Problem<double>(kSmall, 10), kMask, fading);
}

TEST(AttentionBackward, GivesTheGradientsOfBiasesAndSinks) {
  Random random(11);
  auto bias = normal_tensor<double, 4>({1, 4, 5, 7}, random);
  auto table = normal_tensor<double, 2>({4, 5}, random);
  std::vector<double> sinks{0.5, -1, 2, -std::numeric_limits<double>::infinity()};
  Problem<double> p(kSmall, 12);
  p.options.sinks = sinks;
  const auto loss = [&] {
    heed::Context context;
    const auto y =
        p.output(kMask, then(heed::Bias(bias), heed::RelativeBias(table, heed::Alignment::bottom_right())), context);
    double sum = 0;
    for (Index i = 0; i < y.size(); ++i) sum += y.data()[i] * p.dout.data()[i];
    return sum;
  };
  const auto difference = [&](double& x) {
    const double kept = x, h = 1e-5;
    x = kept + h;
    const double above = loss();
    x = kept - h;
    const double below = loss();
    x = kept;
    return (above - below) / (2 * h);
  };
  for (const heed::Path path : {heed::Path::Reference, heed::Path::Blocked}) {
    SCOPED_TRACE(static_cast<int>(path));
    heed::Tensor<double, 4> dbias(bias.extents());
    heed::Tensor<double, 2> dtable(table.extents());
    const auto modifier = then(heed::Bias(bias).with_gradient(dbias.view()),
                               heed::RelativeBias(table, heed::Alignment::bottom_right()).with_gradient(dtable.view()));
    const auto g = p.gradients(kMask, modifier, path);
    for (Index i = 0; i < bias.size(); ++i)
      EXPECT_NEAR(dbias.data()[i], difference(bias.data()[i]), 1e-8) << "bias " << i;
    for (Index i = 0; i < table.size(); ++i)
      EXPECT_NEAR(dtable.data()[i], difference(table.data()[i]), 1e-8) << "table " << i;
    for (std::size_t h = 0; h < 3; ++h) EXPECT_NEAR(g.dsinks[h], difference(sinks[h]), 1e-8) << "sink " << h;
    EXPECT_EQ(g.dsinks[3], 0);
  }
}

/// Blocked within three times the error of the naive path in T.
template <class T, class E>
void check_budget(const AttentionCase& c, std::uint64_t seed) {
  SCOPED_TRACE(c.name);
  Problem<T> p(c.shape, seed, c.stddev);
  Problem<E> exact(c.shape, seed, c.stddev);
  exact.q = cast<E>(p.q.view()), exact.k = cast<E>(p.k.view()), exact.v = cast<E>(p.v.view());
  exact.dout = cast<E>(p.dout.view());
  p.options.scale = exact.options.scale = c.scale;
  p.options.sinks = exact.options.sinks = c.sinks;
  const auto fast = p.gradients(c, heed::Path::Blocked), naive = p.gradients(c, heed::Path::Reference);
  const auto truth = exact.gradients(c, heed::Path::Reference);
  EXPECT_TRUE(within_budget(fast.dq, naive.dq, truth.dq, 3)) << "dq";
  EXPECT_TRUE(within_budget(fast.dk, naive.dk, truth.dk, 3)) << "dk";
  EXPECT_TRUE(within_budget(fast.dv, naive.dv, truth.dv, 3)) << "dv";
  for (std::size_t h = 0; h < truth.dsinks.size(); ++h) {
    EXPECT_NEAR(fast.dsinks[h], truth.dsinks[h], 200 * epsilon<T>() * (1 + std::abs(truth.dsinks[h]))) << "sink " << h;
  }
}
template <class T, class E>
void check_all_gradient_budgets() {
  const std::size_t step = effort(3) < 3 ? 6 : 1;
  const auto cases = attention_cases();
  for (std::size_t i = 0; i < cases.size(); i += step) check_budget<T, E>(cases[i], 3000 + i);
}
TEST(AttentionBackwardBudget, HoldsInFloat) { check_all_gradient_budgets<float, double>(); }
TEST(AttentionBackwardBudget, HoldsInDouble) { check_all_gradient_budgets<double, long double>(); }
TEST(AttentionBackwardBudget, HoldsForLongSequences) {
  const heed::AttentionShape s{.B = 1, .H = 2, .G = 1, .Lq = effort(2048), .Lk = effort(2048), .Dk = 32, .Dv = 24};
  const std::vector<int> length{s.Lk * 6 / 7};
  const MaskCase masks[] = {
      {"causal", heed::Causal(), {}}, {"window", heed::Window(200, 100), {}}, {"padding", heed::Padding(length), {}}};
  for (const MaskCase& mask : masks) check_budget<float, double>({"long " + mask.text(), s, mask}, 4000);
}

TEST(AttentionBackward, WhatIsHiddenHasNoEffectAndGetsNone) {
  const heed::AttentionShape s{.B = 1, .H = 2, .G = 1, .Lq = 90, .Lk = 110, .Dk = 12, .Dv = 10};
  // Query 5 sees nothing, nobody sees key 40, key 50 is seen by some.
  const auto sees = [](int q, int k) { return q != 5 && k != 40 && (k != 50 || q % 2 == 0); };
  const auto mask = heed::mask(sees);
  heed::Tensor<double, 2> bias(90, 110);
  for (int i = 0; i < 90; ++i) {
    for (int j = 0; j < 110; ++j) bias(i, j) = sees(i, j) ? 0 : -std::numeric_limits<double>::infinity();
  }
  for (const heed::Path path : {heed::Path::Reference, heed::Path::Blocked}) {
    SCOPED_TRACE(static_cast<int>(path));
    const Problem<double> clean(s, 20);
    const auto check = [&](const auto& m, const auto& modifier) {
      const auto expected = clean.gradients(m, modifier, path);
      Problem<double> p = clean;
      Random random(21);
      for (Index h = 0; h < 2; ++h) {
        for_each_element(p.q.view()[0][h][5], [&](double& x) { x = poison<double>(random); });
        for_each_element(p.dout.view()[0][h][5], [&](double& x) { x = poison<double>(random); });
      }
      for_each_element(p.k.view()[0][0][40], [&](double& x) { x = poison<double>(random); });
      for_each_element(p.v.view()[0][0][40], [&](double& x) { x = poison<double>(random); });
      const auto poisoned = p.gradients(m, modifier, path);
      expect_same_bits(poisoned, expected);
      for (Index d = 0; d < s.Dk; ++d) {
        EXPECT_EQ(poisoned.dq(0, 1, 5, d), 0);
        EXPECT_EQ(poisoned.dk(0, 0, 40, d), 0);
      }
      for (Index d = 0; d < s.Dv; ++d) EXPECT_EQ(poisoned.dv(0, 0, 40, d), 0);

      // A visible NaN shows: in dq of the queries that see its key and nowhere else.
      p = clean;
      p.k(0, 0, 50, 3) = std::nan("");
      const auto shown = p.gradients(m, modifier, path);
      for (Index q = 0; q < s.Lq; ++q) {
        const bool expected_nan = q != 5 && q % 2 == 0;
        EXPECT_EQ(std::isnan(shown.dq(0, 0, q, 0)), expected_nan) << q;
        if (!expected_nan) {
          EXPECT_EQ(shown.dq(0, 0, q, 0), expected.dq(0, 0, q, 0)) << q;
        }
      }
    };
    check(mask, heed::NoModifier());
    check(heed::NoMask(), heed::Bias(bias));
  }
}

TEST(AttentionBackward, ASinkGetsNothingFromAQueryThatSeesNoKey) {
  const std::vector<int> queries{3}, keys{7};
  const std::vector<double> sinks{0.5, -1};
  Problem<double> p({.B = 1, .H = 2, .G = 1, .Lq = 5, .Lk = 7, .Dk = 3, .Dv = 4}, 25);
  p.options.sinks = sinks;
  heed::Tensor<double, 2> bias(5, 7);
  for (int i = 3; i < 5; ++i) {
    for (int j = 0; j < 7; ++j) bias(i, j) = -std::numeric_limits<double>::infinity();
  }
  for (const heed::Path path : {heed::Path::Reference, heed::Path::Blocked}) {
    SCOPED_TRACE(static_cast<int>(path));
    const auto check = [&](const auto& mask, const auto& modifier) {
      const auto expected = p.gradients(mask, modifier, path);
      Problem<double> poisoned = p;
      poisoned.dout(0, 0, 3, 1) = std::nan("");
      poisoned.dout(0, 1, 4, 2) = std::numeric_limits<double>::infinity();
      expect_same_bits(poisoned.gradients(mask, modifier, path), expected);
      poisoned.dout(0, 1, 2, 0) = std::nan("");
      const auto shown = poisoned.gradients(mask, modifier, path);
      EXPECT_EQ(shown.dsinks[0], expected.dsinks[0]);
      EXPECT_TRUE(std::isnan(shown.dsinks[1])) << "a query that sees keys";
    };
    check(heed::Padding::queries_and_keys(queries, keys), heed::NoModifier());
    check(heed::NoMask(), heed::Bias(bias));
  }
}

TEST(AttentionBackward, SameBitsFromAnyMemory) {
  const heed::AttentionShape s{.B = 2, .H = 4, .G = 2, .Lq = 70, .Lk = 131, .Dk = 20, .Dv = 12};
  const Problem<float> p(s, 30);
  const auto expected = p.gradients(heed::Causal::bottom_right(), heed::NoModifier(), heed::Path::Blocked);
  Random random(31);
  for (int i = 0; i < 5; ++i) {
    const Spaced<float, 4> q(p.q.view(), random), k(p.k.view(), random), v(p.v.view(), random),
        dout(p.dout.view(), random);
    const Spaced<float, 4> out(p.dout.extents(), random), dq(p.q.extents(), random), dk(p.k.extents(), random),
        dv(p.v.extents(), random);
    heed::Context context;
    heed::AttentionCache<float> cache;
    heed::attention_into(out.view(), q.view(), k.view(), v.view(), heed::Causal::bottom_right(), cache, context);
    heed::attention_backward_into(heed::AttentionGradients<float>{dq.view(), dk.view(), dv.view()}, dout.view(), cache,
                                  context);
    EXPECT_TRUE(same_bits(dq.view(), expected.dq.view()));
    EXPECT_TRUE(same_bits(dk.view(), expected.dk.view()));
    EXPECT_TRUE(same_bits(dv.view(), expected.dv.view()));
    EXPECT_TRUE(dq.gaps_are_untouched() && dk.gaps_are_untouched() && dv.gaps_are_untouched());
  }
}

TEST(AttentionBackward, WritesOnlyWhatIsWanted) {
  const Problem<double> p(kSmall, 40);
  const auto all = p.gradients(kMask, heed::NoModifier(), heed::Path::Blocked);
  for (const heed::Path path : {heed::Path::Reference, heed::Path::Blocked}) {
    heed::Context context;
    context.path = path;
    heed::AttentionCache<double> cache;
    heed::Tensor<double, 4> out(p.dout.extents()), dv(p.v.extents());
    heed::attention_into(out, p.q, p.k, p.v, kMask, cache, context);
    heed::attention_backward_into(heed::AttentionGradients<double>{{}, {}, dv.view()}, p.dout, cache, context);
    EXPECT_LE((deviation<double, double, 4>(std::as_const(dv).view(), all.dv.view()).error), 1e-14);
  }
}

TEST(AttentionBackward, EmptyExtentsAreLegal) {
  for (heed::AttentionShape s : {heed::AttentionShape{0, 2, 1, 3, 4, 2, 2},
                                 {2, 2, 1, 0, 4, 2, 2},
                                 {2, 2, 1, 3, 0, 2, 2},
                                 {2, 2, 1, 3, 4, 2, 0},
                                 {0, 0, 0, 0, 0, 2, 0}}) {
    for (const heed::Path path : {heed::Path::Reference, heed::Path::Blocked}) {
      const auto g = Problem<float>(s, 50).gradients(heed::NoMask(), heed::NoModifier(), path);
      for (const auto* x : {&g.dq, &g.dk, &g.dv}) {
        for (Index i = 0; i < x->size(); ++i) EXPECT_EQ(x->data()[i], 0.f);
      }
    }
  }
}

TEST(AttentionBackward, TakesLittleMemoryAndAllocatesNothingOnceWarm) {
  const heed::AttentionShape s{.B = 1, .H = 1, .G = 1, .Lq = 8192, .Lk = 8192, .Dk = 64, .Dv = 64};
  const Problem<float> p(s, 60);
  heed::Context context;
  heed::AttentionCache<float> cache;
  heed::Tensor<float, 4> out(p.dout.extents()), dq(p.q.extents()), dk(p.k.extents()), dv(p.v.extents());
  // The window keeps the test short; what is taken depends on shapes alone.
  const auto step = [&] {
    heed::attention_into(out, p.q, p.k, p.v, heed::Window(8, 8), cache, context);
    heed::attention_backward_into(heed::AttentionGradients<float>{dq.view(), dk.view(), dv.view()}, p.dout, cache,
                                  context);
  };
  step();
  EXPECT_LE(context.workspace().capacity() + 2 * 8192 * sizeof(float), std::size_t{24} << 20);
  if (counts_allocations()) {
    EXPECT_EQ(allocations_of(step), 0);
  }
}

TEST(AttentionBackward, ErrorsSayWhatIsWrong) {
  const Problem<float> p(kSmall, 70);
  heed::Context context;
  heed::AttentionCache<float> cache;
  heed::Tensor<float, 4> out(p.dout.extents()), dq(p.q.extents());
  heed::attention_into(out, p.q, p.k, p.v, cache, context);
  const auto backward = [&](const heed::AttentionGradients<float>& to, const heed::Tensor<float, 4>& dout) {
    heed::attention_backward_into(to, dout, cache, context);
  };
  EXPECT_TRUE(has_all(message_of<heed::ShapeError>([&] { backward({dq.view(), {}, {}}, p.q); }),
                      {"dout", "(2, 4, 5, 3)", "(2, 4, 5, 4)"}));
  EXPECT_TRUE(
      has_all(message_of<heed::ShapeError>([&] { backward({out.view(), {}, {}}, p.dout); }), {"dq", "(2, 4, 5, 3)"}));
  EXPECT_TRUE(has_all(message_of<heed::ValueError>([&] {
                        heed::AttentionCache<float> other;
                        heed::attention_backward_into({dq, {}, {}}, p.dout, other, context);
                      }),
                      {"no forward has filled the cache", "attention_into"}));
  heed::Tensor<float, 4> q = p.q;
  heed::attention_into(out, q, p.k, p.v, cache, context);
  EXPECT_TRUE(has_all(message_of<heed::ValueError>([&] { backward({q, {}, {}}, p.dout); }), {"dq overlaps q"}));
  context.path = heed::Path::Blocked;
  const auto no_derivative = heed::modifier([](auto score, const auto&) { return score; });
  heed::attention_into(out, p.q, p.k, p.v, no_derivative, cache, context);
  EXPECT_TRUE(has_all(message_of<heed::ValueError>([&] {
                        heed::attention_backward_into(heed::AttentionGradients<float>{dq.view(), {}, {}}, p.dout, cache,
                                                      context);
                      }),
                      {"derivative"}));
  heed::AttentionOptions dropping;
  dropping.dropout = 0.5;
  context.training = true;
  EXPECT_THROW(heed::attention_backward(p.dout, p.q, p.k, p.v, dropping, context), heed::ValueError);
}

}  // namespace
}  // namespace heed_test
