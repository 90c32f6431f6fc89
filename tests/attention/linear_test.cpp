// SPDX-License-Identifier: MIT
// Linear attention: both paths against the quadratic formula, gradients against central differences, the chunked path
// against the naive one under the error budget, running states, and what hidden positions may hold.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <heed/attention/linear/linear.hpp>
#include <heed/train/gradcheck.hpp>

#include "common/allocation_counter.hpp"
#include "common/error_budget.hpp"
#include "common/message_of.hpp"
#include "common/random_inputs.hpp"
#include "common/shuffled_executor.hpp"
#include "common/views.hpp"

namespace heed_test {
namespace linear_attention_tests {

using heed::FeatureMap;
using heed::Padding;
using heed::Path;
using heed::TensorView;
using heed::ValueError;

template <class T>
using Tensor4 = heed::Tensor<T, 4>;

/// The inputs of a call and the gradient of its output.
template <class T>
struct Inputs {
  Tensor4<T> q, k, v, dout;

  Inputs(const heed::AttentionShape& s, std::uint64_t seed) : Inputs(s, Random(seed)) {}
  template <class U>
  explicit Inputs(const Inputs<U>& other)
      : q(cast<T>(other.q.view())),
        k(cast<T>(other.k.view())),
        v(cast<T>(other.v.view())),
        dout(cast<T>(other.dout.view())) {}

 private:
  Inputs(const heed::AttentionShape& s, Random random)
      : q(normal_tensor<T, 4>({s.B, s.H, s.Lq, s.Dk}, random)),
        k(normal_tensor<T, 4>({s.B, s.G, s.Lk, s.Dk}, random)),
        v(normal_tensor<T, 4>({s.B, s.G, s.Lk, s.Dv}, random)),
        dout(normal_tensor<T, 4>({s.B, s.H, s.Lq, s.Dv}, random)) {}
};

/// The options of a call, for the formula too.
struct LinearOptions {
  FeatureMap feature_map = FeatureMap::EluPlusOne;
  bool causal = false;
  std::optional<Padding> padding = std::nullopt;

  heed::LinearAttention value() const {
    if (causal && padding) return heed::LinearAttention(heed::Causal{} & *padding, feature_map);
    if (causal) return heed::LinearAttention(heed::Causal{}, feature_map);
    if (padding) return heed::LinearAttention(*padding, feature_map);
    return heed::LinearAttention(feature_map);
  }
};

template <class T>
struct Answer {
  Tensor4<T> out, dq, dk, dv;
};

template <class T>
Answer<T> answer(const Inputs<T>& in, const LinearOptions& options, heed::Context& context) {
  Answer<T> a{Tensor4<T>(in.dout.extents()), Tensor4<T>(in.q.extents()), Tensor4<T>(in.k.extents()),
              Tensor4<T>(in.v.extents())};
  heed::AttentionCache<T> cache;
  heed::attention_into(a.out, in.q, in.k, in.v, options.value(), cache, context);
  heed::attention_backward_into(heed::AttentionGradients<T>{a.dq.view(), a.dk.view(), a.dv.view()}, in.dout, cache,
                                context);
  return a;
}
template <class T>
Answer<T> answer(const Inputs<T>& in, const LinearOptions& options, Path path = Path::Automatic) {
  heed::Context context;
  context.path = path;
  return answer(in, options, context);
}

void expect_same_bits(const Answer<double>& a, const Answer<double>& b) {
  EXPECT_TRUE(same_bits(a.out, b.out)) << "out";
  EXPECT_TRUE(same_bits(a.dq, b.dq)) << "dq";
  EXPECT_TRUE(same_bits(a.dk, b.dk)) << "dk";
  EXPECT_TRUE(same_bits(a.dv, b.dv)) << "dv";
}

double phi(FeatureMap map, double x) {
  if (map == FeatureMap::Relu) return std::max(x, 0.0);
  return x > 0 ? x + 1 : std::exp(x);
}

/// The quadratic form: weights phi(q)·phi(k) of the visible pairs over their sum.
Tensor4<double> formula(Inputs<double> in, const LinearOptions& options) {
  Tensor4<double> out(in.dout.extents());
  for (Tensor4<double>* x : {&in.q, &in.k}) {
    for_each_element(x->view(), [&](double& element) { element = phi(options.feature_map, element); });
  }
  const Index group = in.q.extent(1) / in.k.extent(1);
  for (int b = 0; b < out.extent(0); ++b) {
    for (Index h = 0; h < out.extent(1); ++h) {
      for (int q = 0; q < out.extent(2); ++q) {
        double denominator = 0;
        for (int k = 0; k < in.k.extent(2); ++k) {
          if ((options.causal && k > q) || (options.padding && !options.padding->range(b, 0, q).contains(k))) continue;
          double weight = 0;
          for (Index i = 0; i < in.q.extent(3); ++i) weight += in.q(b, h, q, i) * in.k(b, h / group, k, i);
          denominator += weight;
          for (Index j = 0; j < out.extent(3); ++j) out(b, h, q, j) += weight * in.v(b, h / group, k, j);
        }
        for (Index j = 0; denominator != 0 && j < out.extent(3); ++j) out(b, h, q, j) /= denominator;
      }
    }
  }
  return out;
}

template <heed::TensorLike A, heed::TensorLike B>
double largest_difference(const A& a, const B& b) {
  return deviation<double, double, 4>(heed::view_of(a), heed::view_of(b)).error;
}
TensorView<const double, 4> sample(const Tensor4<double>& x, Index b) { return x.view().slice(0, b, 1); }

/// All kinds of options on two samples of L positions.
struct Lengths {
  std::vector<int> begin, end, queries;
  explicit Lengths(int L) : begin{0, L / 3}, end{L - 1, L - 2}, queries{L - L / 4, L} {}

  std::vector<LinearOptions> options() const {
    std::vector<LinearOptions> all;
    for (const FeatureMap map : {FeatureMap::EluPlusOne, FeatureMap::Relu}) {
      for (const bool causal : {false, true}) {
        all.push_back({map, causal});
        all.push_back({map, causal, Padding(begin, end)});
        all.push_back({map, causal, Padding::queries_and_keys(queries, end)});
      }
    }
    return all;
  }
};
std::string text(const LinearOptions& options) {
  return std::string(options.feature_map == FeatureMap::Relu ? "ReLU" : "elu + 1") +
         (options.causal ? ", causal" : ", full") + (options.padding ? ", padded" : "");
}

TEST(LinearAttention, ByHand) {
  // phi(q) = 1 and phi(k) = 1, 2.
  heed::Tensor<double, 2> q(2, 1), k(2, 1), v(2, 1);
  k(1, 0) = 1;
  v(0, 0) = 2, v(1, 0) = 5;
  const auto full = heed::attention(q, k, v, heed::LinearAttention()),
             causal = heed::attention(q, k, v, heed::LinearAttention(heed::Causal{}));
  EXPECT_DOUBLE_EQ(full(0, 0), 4);
  EXPECT_DOUBLE_EQ(full(1, 0), 4);
  EXPECT_DOUBLE_EQ(causal(0, 0), 2);
  EXPECT_DOUBLE_EQ(causal(1, 0), 4);
  // phi(q) = 0, 3: the first query sees nothing. phi(k) = 0, 1.
  q(1, 0) = 3;
  const auto relu = heed::attention(q, k, v, heed::LinearAttention(FeatureMap::Relu));
  EXPECT_EQ(relu(0, 0), 0);
  EXPECT_DOUBLE_EQ(relu(1, 0), 5);
}

TEST(LinearAttention, BothPathsAreTheFormula) {
  const Inputs<double> in({2, 4, 2, 150, 150, 5, 7}, 1);  // chunks of 64: two full ones and a part
  const Lengths lengths(150);
  for (const LinearOptions& options : lengths.options()) {
    SCOPED_TRACE(text(options));
    const auto expected = formula(in, options);
    for (const Path path : {Path::Reference, Path::Automatic}) {
      heed::Context context;
      context.path = path;
      const auto out = heed::attention(in.q, in.k, in.v, options.value(), context);
      EXPECT_LE(largest_difference(out, expected), 1e-13);
    }
  }
  // Wider than 64, and other lengths of queries than of keys, over several units of 16 chunks.
  const Inputs<double> cross({1, 2, 1, 70, 2100, 66, 3}, 2);
  const auto out = heed::attention(cross.q, cross.k, cross.v, heed::LinearAttention()), expected = formula(cross, {});
  EXPECT_LE(largest_difference(out, expected), 1e-13);
}

TEST(LinearAttention, GradientsAreExact) {
  // The second shape has two chunks.
  for (const heed::AttentionShape& shape : {heed::AttentionShape{2, 4, 2, 6, 6, 3, 2}, {1, 1, 1, 70, 70, 2, 1}}) {
    const Lengths lengths(shape.Lq);
    for (const LinearOptions& options : lengths.options()) {
      if (shape.B == 1 && options.padding) continue;
      for (const Path path : {Path::Reference, Path::Automatic}) {
        SCOPED_TRACE(text(options) + (path == Path::Reference ? ", reference" : ", chunked"));
        Inputs<double> in(shape, 3);
        const Answer<double> claimed = answer(in, options, path);
        heed::Context context;
        context.path = path;
        Tensor4<double> out(in.dout.extents());
        const auto loss = [&] {
          heed::attention_into(out, in.q, in.k, in.v, options.value(), context);
          double sum = 0;
          for (Index i = 0; i < out.size(); ++i) sum += out.data()[i] * in.dout.data()[i];
          return sum;
        };
        const auto flat = [](auto& x) { return TensorView<double, 1>(x.data(), {x.size()}); };
        const auto gradient = [](const auto& x) { return TensorView<const double, 1>(x.data(), {x.size()}); };
        const auto report = heed::gradcheck(loss, {{"q", flat(in.q), gradient(claimed.dq)},
                                                   {"k", flat(in.k), gradient(claimed.dk)},
                                                   {"v", flat(in.v), gradient(claimed.dv)}});
        EXPECT_TRUE(report.passed) << report.text();
        EXPECT_LE(report.kinks, 2) << report.text();
      }
    }
  }
}

TEST(LinearAttention, GradientsThatAreNotWantedAreLeftOut) {
  const Inputs<double> in({1, 4, 2, 80, 80, 3, 5}, 4);
  for (const bool causal : {false, true}) {
    const LinearOptions options{.causal = causal};
    const Answer<double> all = answer(in, options);
    for (const Path path : {Path::Reference, Path::Automatic}) {
      const Answer<double> whole = answer(in, options, path);
      for (int wanted = 0; wanted < 3; ++wanted) {
        heed::Context context;
        context.path = path;
        heed::AttentionCache<double> cache;
        Tensor4<double> out(in.dout.extents());
        heed::attention_into(out, in.q, in.k, in.v, options.value(), cache, context);
        const Tensor4<double>& expected = wanted == 0 ? whole.dq : wanted == 1 ? whole.dk : whole.dv;
        Tensor4<double> gradient(expected.extents());
        heed::AttentionGradients<double> to;
        (wanted == 0 ? to.dq : wanted == 1 ? to.dk : to.dv) = gradient.view();
        heed::attention_backward_into(to, in.dout, cache, context);
        EXPECT_TRUE(same_bits(gradient, expected)) << wanted;
      }
    }
  }
}

TEST(LinearAttention, StaysWithinTheErrorBudget) {
  const int L = 16384 * effort(10) / 10;
  const Inputs<float> in({1, 1, 1, L, L, 16, 9}, 5);
  const Inputs<double> wide(in);
  for (const FeatureMap map : {FeatureMap::EluPlusOne, FeatureMap::Relu}) {
    for (const bool causal : {false, true}) {
      const LinearOptions options{map, causal};
      SCOPED_TRACE(text(options));
      const Answer<float> fast = answer(in, options), naive = answer(in, options, Path::Reference);
      const Answer<double> exact = answer(wide, options, Path::Reference);
      EXPECT_TRUE(within_budget(fast.out, naive.out, exact.out));
      EXPECT_TRUE(within_budget(fast.dq, naive.dq, exact.dq, 3)) << "dq";
      EXPECT_TRUE(within_budget(fast.dk, naive.dk, exact.dk, 3)) << "dk";
      EXPECT_TRUE(within_budget(fast.dv, naive.dv, exact.dv, 3)) << "dv";
    }
  }
}

TEST(LinearAttention, StepsAndChunksGiveTheFullCausalForm) {
  const Inputs<double> in({2, 4, 2, 150, 150, 5, 7}, 6);
  const LinearOptions options{.causal = true};
  const auto expected = formula(in, options);
  for (const Path path : {Path::Reference, Path::Automatic}) {
    for (const std::vector<int>& cuts : {std::vector<int>(150, 1), std::vector<int>{1, 64, 20, 65}, {150}}) {
      heed::Context context;
      context.path = path;
      heed::LinearAttentionState<double> state(2, 2, 5, 7);
      for (int round = 0; round < 2; ++round) {
        Tensor4<double> out(in.dout.extents());
        Index first = 0;
        for (const int n : cuts) {
          const auto part = [&](const Tensor4<double>& x) { return x.view().slice(2, first, n); };
          heed::attention_into(out.view().slice(2, first, n), part(in.q), part(in.k), part(in.v), options.value(),
                               state, context);
          first += n;
        }
        EXPECT_LE(largest_difference(out, expected), 1e-13);
        double sum = 0;
        for (Index i = 0; i < 150; ++i) sum += phi(options.feature_map, in.k(1, 1, i, 4)) * in.v(1, 1, i, 6);
        EXPECT_NEAR(state.values()(1, 1, 4, 6), sum, 1e-11);
        state.reset();
        EXPECT_EQ(state.keys()(0, 0, 0), 0);
      }
    }
  }
}

TEST(LinearAttention, AStateTakesUpRealPositionsOnly) {
  const Inputs<double> in({2, 1, 1, 9, 9, 2, 2}, 7);
  const std::vector<int> lengths{4, 9}, rest{5, 0};
  const LinearOptions whole{.causal = true}, first{.causal = true, .padding = Padding(lengths)};
  const auto expected = formula(in, whole);
  heed::Context context;
  heed::LinearAttentionState<double> state(2, 1, 2, 2);
  Tensor4<double> out(in.dout.extents());
  heed::attention_into(out, in.q, in.k, in.v, first.value(), state, context);
  EXPECT_LE(largest_difference(sample(out, 1), sample(expected, 1)), 1e-13);
  const auto part = [](auto& x) { return x.view().slice(2, 4, 5); };
  heed::attention_into(part(out), part(in.q), part(in.k), part(in.v),
                       heed::LinearAttention(heed::Causal{} & Padding(rest)), state, context);
  EXPECT_LE(largest_difference(sample(out, 0), sample(expected, 0)), 1e-13) << "in two calls";
  double sum = 0;
  for (Index i = 0; i < 9; ++i) sum += phi(whole.feature_map, in.k(1, 0, i, 1));
  EXPECT_NEAR(state.keys()(1, 0, 1), sum, 1e-13) << "the second call has nothing of sample 1";
}

TEST(LinearAttention, HiddenKeysHaveNoEffectWhateverTheyHold) {
  const Lengths lengths(150);
  for (const LinearOptions& options : lengths.options()) {
    if (!options.padding) continue;
    for (const Path path : {Path::Reference, Path::Automatic}) {
      SCOPED_TRACE(text(options));
      Inputs<double> in({2, 4, 2, 150, 150, 5, 7}, 8);
      const Answer<double> expected = answer(in, options, path);
      Random random(9);
      for (int b = 0; b < 2; ++b) {
        for (int i = 0; i < 150; ++i) {
          if (!options.padding->range(b, 0, 0).contains(i)) {
            for_each_element(in.k.view()[b].slice(1, i, 1), [&](double& x) { x = poison<double>(random); });
            for_each_element(in.v.view()[b].slice(1, i, 1), [&](double& x) { x = poison<double>(random); });
          }
          if (options.padding->range(b, 0, i).end == 0) {
            for_each_element(in.q.view()[b].slice(1, i, 1), [&](double& x) { x = poison<double>(random); });
            for_each_element(in.dout.view()[b].slice(1, i, 1), [&](double& x) { x = poison<double>(random); });
          }
        }
      }
      expect_same_bits(answer(in, options, path), expected);
    }
  }
}

TEST(LinearAttention, LaterPositionsHaveNoEffectAndVisibleOnesShow) {
  const LinearOptions options{.causal = true};
  constexpr int L = 150, at = 75;
  for (const Path path : {Path::Reference, Path::Automatic}) {
    for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::max()}) {
      Inputs<double> in({1, 2, 1, L, L, 3, 4}, 10);
      const Answer<double> expected = answer(in, options, path);
      const auto until = [&](const Tensor4<double>& x) { return x.view().slice(2, 0, at); };
      const auto after = [&](const Tensor4<double>& x) { return x.view().slice(2, at + 1, L - at - 1); };
      const auto changed = [&](Tensor4<double>& x) {
        double& element = x(0, 0, at, 1);
        const double kept = std::exchange(element, bad);
        Answer<double> a = answer(in, options, path);
        element = kept;
        return a;
      };
      const Answer<double> key = changed(in.k), value = changed(in.v);
      EXPECT_TRUE(same_bits(until(key.out), until(expected.out)));
      EXPECT_TRUE(same_bits(until(value.out), until(expected.out)));
      EXPECT_TRUE(same_bits(until(key.dq), until(expected.dq)));
      EXPECT_TRUE(same_bits(until(value.dq), until(expected.dq)));
      EXPECT_TRUE(same_bits(value.out.view().slice(3, 2, 2), expected.out.view().slice(3, 2, 2)));
      // Neither a query nor its gradient shows in keys after it, or in other queries.
      for (const Answer<double>& query : {changed(in.q), changed(in.dout)}) {
        EXPECT_TRUE(same_bits(after(query.dk), after(expected.dk)));
        EXPECT_TRUE(same_bits(after(query.dv), after(expected.dv)));
        EXPECT_TRUE(same_bits(until(query.dq), until(expected.dq)));
        EXPECT_TRUE(same_bits(after(query.dq), after(expected.dq)));
        EXPECT_FALSE(same_bits(query.dk, expected.dk));
      }
      for (int i = at; i < L; ++i) {
        EXPECT_TRUE(!std::isnan(bad) || std::isnan(key.out(0, 1, i, 3))) << i;
        EXPECT_NE(value.out(0, 1, i, 1), expected.out(0, 1, i, 1)) << i;
      }
    }
  }
}

TEST(LinearAttention, QueriesThatSeeNothing) {
  // ReLU of negative queries, and elu + 1 of so negative ones that nothing is left.
  for (const FeatureMap map : {FeatureMap::Relu, FeatureMap::EluPlusOne}) {
    for (const Path path : {Path::Reference, Path::Automatic}) {
      for (const bool causal : {false, true}) {
        Inputs<double> in({1, 1, 1, 80, 80, 2, 2}, 11);
        for_each_element(in.q.view(),
                         [&](double& x) { x = map == FeatureMap::Relu ? -1 : -heed::detail::infinity<double>(); });
        for_each_element(in.dout.view(), [](double& x) { x = std::numeric_limits<double>::quiet_NaN(); });
        in.v(0, 0, 70, 1) = std::numeric_limits<double>::quiet_NaN();
        const Answer<double> a = answer(in, {map, causal}, path);
        for (const auto* x : {&a.out, &a.dq, &a.dk, &a.dv}) {
          EXPECT_TRUE(same_bits(*x, Tensor4<double>(x->extents())));
        }
      }
    }
  }
}

TEST(LinearAttention, TheSameBitsForAnyExecutorAndAnyStrides) {
  Random random(12);
  for (const bool causal : {false, true}) {
    const LinearOptions options{.causal = causal};
    const Inputs<double> in({2, 4, 2, 400, 400, 20, 17}, 13);
    const Answer<double> expected = answer(in, options);
    for (const int workers : {1, 3, 16}) {
      ShuffledExecutor executor(workers, 14);
      heed::Context context(executor);
      expect_same_bits(answer(in, options, context), expected);
      expect_same_bits(answer(in, options, context), expected);
    }
    for (int i = 0; i < 4; ++i) {
      const Spaced<double, 4> q(in.q.view(), random), k(in.k.view(), random), v(in.v.view(), random),
          dout(in.dout.view(), random), out(in.dout.extents(), random), dq(in.q.extents(), random),
          dk(in.k.extents(), random), dv(in.v.extents(), random);
      heed::Context context;
      heed::AttentionCache<double> cache;
      heed::attention_into(out.view(), q.view(), k.view(), v.view(), options.value(), cache, context);
      heed::attention_backward_into(heed::AttentionGradients<double>{dq.view(), dk.view(), dv.view()}, dout.view(),
                                    cache, context);
      EXPECT_TRUE(same_bits(out.view(), expected.out.view()));
      EXPECT_TRUE(same_bits(dq.view(), expected.dq.view()));
      EXPECT_TRUE(same_bits(dk.view(), expected.dk.view()));
      EXPECT_TRUE(same_bits(dv.view(), expected.dv.view()));
      EXPECT_TRUE(out.gaps_are_untouched() && dq.gaps_are_untouched() && dk.gaps_are_untouched() &&
                  dv.gaps_are_untouched());
    }
  }
}

TEST(LinearAttention, AllocatesNothingOnceWarm) {
  if (!counts_allocations()) GTEST_SKIP() << "allocations are not counted here";
  const Inputs<float> in({1, 2, 1, 200, 200, 20, 12}, 15);
  Tensor4<float> out(in.dout.extents()), dq(in.q.extents()), dk(in.k.extents()), dv(in.v.extents());
  heed::Context context;
  heed::AttentionCache<float> cache;
  heed::LinearAttentionState<float> state(1, 1, 20, 12);
  for (const bool causal : {false, true}) {
    const auto step = [&] {
      const LinearOptions options{.causal = causal};
      heed::attention_into(out, in.q, in.k, in.v, options.value(), cache, context);
      heed::attention_backward_into(heed::AttentionGradients<float>{dq.view(), dk.view(), dv.view()}, in.dout, cache,
                                    context);
      if (causal) heed::attention_into(out, in.q, in.k, in.v, options.value(), state, context);
    };
    step();
    EXPECT_EQ(allocations_of(step), 0);
  }
}

TEST(LinearAttention, SixteenBitStorage) {
  const Inputs<float> in({1, 2, 1, 100, 100, 6, 5}, 16);
  const auto k = cast<heed::half>(in.k.view()), v = cast<heed::half>(in.v.view()), q = cast<heed::half>(in.q.view());
  const auto wide_k = cast<float>(k.view()), wide_v = cast<float>(v.view()), wide_q = cast<float>(q.view());
  const LinearOptions options{.causal = true};
  EXPECT_TRUE(
      same_bits(heed::attention(in.q, k, v, options.value()), heed::attention(in.q, wide_k, wide_v, options.value())));
  const auto wide_out = heed::attention(wide_q, wide_k, wide_v, options.value());
  EXPECT_TRUE(same_bits(heed::attention(q, k, v, options.value()), cast<heed::half>(wide_out.view())));
}

TEST(LinearAttention, EigenMatrices) {
  const Inputs<double> in({1, 1, 1, 9, 9, 4, 3}, 17);
  const Eigen::MatrixXd q = in.q.matrix(0, 0), v = in.v.matrix(0, 0);
  const auto k = in.k.matrix(0, 0);
  const Eigen::MatrixXd out = heed::attention(q, 2 * (0.5 * k), v, heed::LinearAttention());
  const auto expected = formula(in, {});
  EXPECT_LE((out - expected.matrix(0, 0)).cwiseAbs().maxCoeff(), 1e-14);
}

TEST(LinearAttention, EmptyExtents) {
  for (const Path path : {Path::Reference, Path::Automatic}) {
    for (const bool causal : {false, true}) {
      for (const heed::AttentionShape& s : {heed::AttentionShape{0, 2, 1, 3, 3, 2, 2},
                                            {1, 0, 0, 3, 3, 2, 2},
                                            {1, 2, 1, 0, 0, 2, 2},
                                            {1, 2, 1, 3, 3, 2, 0}}) {
        const Answer<double> a = answer(Inputs<double>(s, 17), {.causal = causal}, path);
        EXPECT_EQ(a.out.size(), 0);
        EXPECT_TRUE(same_bits(a.dv, Tensor4<double>(a.dv.extents())));
      }
    }
    const Answer<double> no_keys = answer(Inputs<double>({1, 2, 1, 3, 0, 2, 2}, 18), {}, path);
    EXPECT_TRUE(same_bits(no_keys.out, Tensor4<double>(1, 2, 3, 2)));
    EXPECT_TRUE(same_bits(no_keys.dq, Tensor4<double>(1, 2, 3, 2)));
    const Answer<double> no_queries = answer(Inputs<double>({1, 2, 1, 0, 3, 2, 2}, 19), {}, path);
    EXPECT_TRUE(same_bits(no_queries.dk, Tensor4<double>(1, 1, 3, 2)));
  }
}

TEST(LinearAttention, Errors) {
  const auto text_of = [](const Tensor4<double>& q, const Tensor4<double>& k, const Tensor4<double>& v,
                          const LinearOptions& options = {}) {
    return message_of<heed::Error>([&] { heed::attention(q, k, v, options.value()); });
  };
  const Tensor4<double> q(1, 2, 3, 4), k(1, 1, 5, 4), v(1, 1, 5, 6);
  EXPECT_TRUE(has_all(text_of(q, Tensor4<double>(1, 1, 5, 7), v),
                      {"heed::LinearAttention: k has Dk = 7 but q has Dk = 4", "one width"}));
  EXPECT_TRUE(has_all(text_of(q, Tensor4<double>(2, 1, 5, 4), v), {"k has B = 2 but q has B = 1", "(2, 1, 5, 4)"}));
  EXPECT_TRUE(has_all(text_of(q, k, Tensor4<double>(1, 1, 4, 6)), {"v has Lk = 4 rows but k has Lk = 5"}));
  EXPECT_TRUE(has_all(text_of(Tensor4<double>(1, 3, 3, 4), Tensor4<double>(1, 2, 5, 4), Tensor4<double>(1, 2, 5, 6)),
                      {"q has H = 3 heads but k has G = 2", "multiple"}));
  EXPECT_TRUE(has_all(text_of(q, k, v, {.causal = true}), {"causal", "Lq = 3 and Lk = 5", "LinearAttentionState"}));
  const std::vector<int> lengths{6};
  EXPECT_TRUE(has_all(text_of(q, k, v, {.padding = Padding(lengths)}), {"heed::Padding: entry 6"}));

  heed::Context context;
  Tensor4<double> out(1, 2, 3, 6);
  heed::LinearAttentionState<double> state(1, 1, 4, 5);
  EXPECT_TRUE(has_all(
      message_of<ValueError>([&] { heed::attention_into(out, q, k, v, heed::LinearAttention(), state, context); }),
      {"running state", "Causal{}"}));
  Tensor4<double> x(1, 1, 3, 4), narrow(1, 1, 3, 5), narrow_v(1, 1, 3, 5);
  const Tensor4<double> narrow_dout(1, 1, 3, 5);
  const Tensor4<double> wide(1, 1, 3, 6);
  Tensor4<double> wide_out(1, 1, 3, 6);
  EXPECT_TRUE(has_all(message_of<heed::ShapeError>([&] {
                        heed::attention_into(wide_out, x, x, wide, heed::LinearAttention(heed::Causal{}), state,
                                             context);
                      }),
                      {"the state is (1, 1, 4, 5) but the call needs (1, 1, 4, 6)"}));
  EXPECT_TRUE(
      has_all(message_of<ValueError>([&] { heed::attention_into(x, x, x, x, heed::LinearAttention(), context); }),
              {"heed::LinearAttention: out overlaps q"}));
  EXPECT_TRUE(has_all(
      message_of<heed::ShapeError>([&] { heed::attention_into(narrow, x, x, x, heed::LinearAttention(), context); }),
      {"out is (1, 1, 3, 5) but the call needs (1, 1, 3, 4)"}));
  heed::AttentionCache<double> cache;
  const auto backward = [&](const heed::AttentionGradients<double>& to, const Tensor4<double>& dout) {
    return message_of<heed::Error>([&] { heed::attention_backward_into(to, dout, cache, context); });
  };
  EXPECT_TRUE(has_all(backward({}, narrow), {"heed::attention_backward: no forward has filled the cache"}));
  heed::attention_into(narrow, x, x, narrow_v, heed::LinearAttention(), cache, context);
  EXPECT_TRUE(has_all(backward({}, x), {"dout is (1, 1, 3, 4) but the call needs (1, 1, 3, 5)"}));
  EXPECT_TRUE(
      has_all(backward({narrow_v, {}, {}}, narrow_dout), {"dq is (1, 1, 3, 5) but the call needs (1, 1, 3, 4)"}));
  EXPECT_TRUE(has_all(backward({x, {}, {}}, narrow_dout), {"dq overlaps q"}));
}

}  // namespace linear_attention_tests
}  // namespace heed_test
