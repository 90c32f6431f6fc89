// SPDX-License-Identifier: MIT
// Segmented attention: both ways of computing it against its formula, gradients against central differences, the error
// budget, and what hidden positions may hold.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <heed/attention/segmented/segmented.hpp>
#include <heed/compiled/attention.hpp>
#include <heed/train/gradcheck.hpp>

#include "common/allocation_counter.hpp"
#include "common/error_budget.hpp"
#include "common/message_of.hpp"
#include "common/random_inputs.hpp"
#include "common/shuffled_executor.hpp"
#include "common/views.hpp"

namespace heed_test {
namespace segmented_attention_tests {

using heed::Padding;
using heed::Path;
using heed::TensorView;

template <class T>
using Tensor4 = heed::Tensor<T, 4>;

/// The inputs of a call, pooling vectors among them, and the gradient of its output.
template <class T>
struct Inputs {
  Tensor4<T> q, k, v, dout;
  heed::Tensor<T, 2> pooling;

  Inputs(const heed::AttentionShape& s, std::uint64_t seed) : Inputs(s, Random(seed)) {}
  template <class U>
  explicit Inputs(const Inputs<U>& other)
      : q(cast<T>(other.q.view())),
        k(cast<T>(other.k.view())),
        v(cast<T>(other.v.view())),
        dout(cast<T>(other.dout.view())),
        pooling(cast<T>(other.pooling.view())) {}

 private:
  Inputs(const heed::AttentionShape& s, Random random)
      : q(normal_tensor<T, 4>({s.B, s.H, s.Lq, s.Dk}, random)),
        k(normal_tensor<T, 4>({s.B, s.G, s.Lk, s.Dk}, random)),
        v(normal_tensor<T, 4>({s.B, s.G, s.Lk, s.Dv}, random)),
        dout(normal_tensor<T, 4>({s.B, s.H, s.Lq, s.Dv}, random)),
        pooling(normal_tensor<T, 2>({s.G, s.Dk}, random)) {}
};

/// Options as data, for inputs of any type.
struct Kind {
  int segment;
  bool causal = false, learned = false;
  std::optional<Padding> padding = std::nullopt;
  std::optional<double> scale = std::nullopt;

  template <class T>
  heed::AnyAttention<T> value(const Inputs<T>& in, heed::TensorView<T, 2> dpooling = {}) const {
    if (causal && padding) return with_mask(heed::Causal{} & *padding, in, dpooling);
    if (causal) return with_mask(heed::Causal{}, in, dpooling);
    if (padding) return with_mask(*padding, in, dpooling);
    return with_mask(heed::NoMask{}, in, dpooling);
  }
  std::string text() const {
    return "segments of " + std::to_string(segment) + (causal ? ", causal" : ", full") +
           (learned ? ", learned" : ", mean") + (padding ? ", padded" : "");
  }

 private:
  template <class M, class T>
  heed::AnyAttention<T> with_mask(const M& mask, const Inputs<T>& in, heed::TensorView<T, 2> dpooling) const {
    const heed::Segment length{segment};
    const heed::Scale factor{scale.value_or(1 / std::sqrt(static_cast<double>(in.q.extent(3))))};
    if (!learned) return heed::SegmentedAttention(mask, length, factor);
    const heed::LearnedPooling pooling(in.pooling);
    if (!dpooling.data()) return heed::SegmentedAttention(mask, length, factor, pooling);
    return heed::SegmentedAttention(mask, length, factor, pooling.with_gradient(dpooling));
  }
};

/// All kinds on two samples of L positions; segments of 8, of which padding leaves some without a real key.
struct Kinds {
  std::vector<int> begin, end, queries;
  explicit Kinds(int L) : begin{0, std::min(L, 9)}, end{L / 2, L - 1}, queries{L / 3, L} {}

  std::vector<Kind> all() const {
    std::vector<Kind> kinds;
    for (const bool causal : {false, true}) {
      for (const bool learned : {false, true}) {
        kinds.push_back({8, causal, learned});
        kinds.push_back({8, causal, learned, Padding(begin, end), 0.7});
        kinds.push_back({8, causal, learned, Padding::queries_and_keys(queries, end)});
      }
    }
    return kinds;
  }
};

template <class T>
struct Answer {
  Tensor4<T> out, dq, dk, dv;
  heed::Tensor<T, 2> dpooling;
};

template <class T>
Answer<T> answer(const Inputs<T>& in, const Kind& kind, heed::Context& context) {
  Answer<T> a{Tensor4<T>(in.dout.extents()), Tensor4<T>(in.q.extents()), Tensor4<T>(in.k.extents()),
              Tensor4<T>(in.v.extents()), heed::Tensor<T, 2>(in.pooling.extents())};
  heed::AttentionCache<T> cache;
  heed::attention_into(a.out, in.q, in.k, in.v, kind.value(in, a.dpooling.view()), cache, context);
  heed::attention_backward_into({a.dq, a.dk, a.dv}, in.dout, cache, context);
  return a;
}
template <class T>
Answer<T> answer(const Inputs<T>& in, const Kind& kind, Path path = Path::Automatic) {
  heed::Context context;
  context.path = path;
  return answer(in, kind, context);
}

void expect_same_bits(const Answer<double>& a, const Answer<double>& b) {
  EXPECT_TRUE(same_bits(a.out, b.out)) << "out";
  EXPECT_TRUE(same_bits(a.dq, b.dq)) << "dq";
  EXPECT_TRUE(same_bits(a.dk, b.dk)) << "dk";
  EXPECT_TRUE(same_bits(a.dv, b.dv)) << "dv";
  EXPECT_TRUE(same_bits(a.dpooling, b.dpooling)) << "dpooling";
}

/// What the comment on segmented_attention says, row by row: a list of keys and values, and their softmax.
class Formula {
 public:
  Formula(const Inputs<double>& in, const Kind& kind) : in_(in), kind_(kind) {}

  Tensor4<double> operator()() {
    Tensor4<double> out(in_.dout.extents());
    const int L = static_cast<int>(out.extent(2)), S = kind_.segment;
    for (b_ = 0; b_ < out.extent(0); ++b_) {
      for (Index h = 0; h < out.extent(1); ++h) {
        g_ = h / (in_.q.extent(1) / in_.k.extent(1));
        for (int q = 0; q < L; ++q) {
          pairs_.clear();
          if (kind_.padding && kind_.padding->range(b_, 0, q).end == 0) continue;
          const auto score = [&](const std::vector<double>& key) {
            double dot = 0;
            for (std::size_t i = 0; i < key.size(); ++i) dot += in_.q(b_, h, q, static_cast<Index>(i)) * key[i];
            return dot * kind_.scale.value_or(1 / std::sqrt(static_cast<double>(key.size())));
          };
          for (int first = 0; first < L; first += S) {
            const int last = std::min(L, first + S);
            if (q >= first && q < last) {
              for (int k = first; k < (kind_.causal ? q + 1 : last); ++k) {
                if (is_real(k)) pairs_.emplace_back(std::exp(score(row(in_.k, k))), row(in_.v, k));
              }
            } else if (!kind_.causal || last <= q) {
              add_summary(first, last, score);
            }
          }
          double sum = 0;
          for (const auto& [weight, value] : pairs_) sum += weight;
          for (const auto& [weight, value] : pairs_) {
            for (std::size_t j = 0; j < value.size(); ++j)
              out(b_, h, q, static_cast<Index>(j)) += weight / sum * value[j];
          }
        }
      }
    }
    return out;
  }

 private:
  bool is_real(int k) const { return !kind_.padding || kind_.padding->range(b_, 0, 0).contains(k); }
  std::vector<double> row(const Tensor4<double>& x, int i) const {
    const double* from = &x(b_, g_, i, 0);
    return {from, from + x.extent(3)};
  }
  template <class Score>
  void add_summary(int first, int last, const Score& score) {
    double sum = 0;
    std::vector<double> key(static_cast<std::size_t>(in_.k.extent(3))),
        value(static_cast<std::size_t>(in_.v.extent(3)));
    for (int k = first; k < last; ++k) {
      if (!is_real(k)) continue;
      const auto its_key = row(in_.k, k), its_value = row(in_.v, k);
      double logit = 0;
      for (std::size_t i = 0; kind_.learned && i < key.size(); ++i)
        logit += its_key[i] * in_.pooling(g_, static_cast<Index>(i));
      const double weight = std::exp(logit / std::sqrt(static_cast<double>(key.size())));
      sum += weight;
      for (std::size_t i = 0; i < key.size(); ++i) key[i] += weight * its_key[i];
      for (std::size_t j = 0; j < value.size(); ++j) value[j] += weight * its_value[j];
    }
    if (sum == 0) return;
    for (double& x : key) x /= sum;
    for (double& x : value) x /= sum;
    pairs_.emplace_back(std::exp(score(key)), value);
  }

  const Inputs<double>& in_;
  const Kind& kind_;
  int b_ = 0;
  Index g_ = 0;
  std::vector<std::pair<double, std::vector<double>>> pairs_;
};

TEST(SegmentedAttention, ByHand) {
  // Keys 0 let all scores be 0: a query averages the values of its segment and the means of the others.
  const heed::Tensor<double, 2> q(5, 1), k(5, 1);
  heed::Tensor<double, 2> v(5, 1);
  for (Index i = 0; i < 5; ++i) v(i, 0) = static_cast<double>(1 << i);  // 1 2 | 4 8 | 16
  const auto full = heed::attention(q, k, v, heed::SegmentedAttention(heed::Segment{2}));
  EXPECT_DOUBLE_EQ(full(0, 0), (1 + 2 + 6 + 16) / 4.);
  EXPECT_DOUBLE_EQ(full(3, 0), (1.5 + 4 + 8 + 16) / 4.);
  EXPECT_DOUBLE_EQ(full(4, 0), (1.5 + 6 + 16) / 3.);
  const auto causal = heed::attention(q, k, v, heed::SegmentedAttention(heed::Causal{}, heed::Segment{2}));
  EXPECT_DOUBLE_EQ(causal(0, 0), 1);
  EXPECT_DOUBLE_EQ(causal(1, 0), 1.5);
  EXPECT_DOUBLE_EQ(causal(2, 0), (1.5 + 4) / 2);
  EXPECT_DOUBLE_EQ(causal(4, 0), (1.5 + 6 + 16) / 3.);
}

TEST(SegmentedAttention, BothPathsAreTheFormula) {
  const Inputs<double> in({2, 4, 2, 77, 77, 5, 7}, 1);
  const Kinds kinds(77);
  for (const Kind& kind : kinds.all()) {
    SCOPED_TRACE(kind.text());
    const auto expected = Formula(in, kind)();
    for (const Path path : {Path::Reference, Path::Automatic}) {
      const auto out = answer(in, kind, path).out;
      EXPECT_LE((deviation<double, double, 4>(out, expected).error), 1e-14);
    }
  }
}

TEST(SegmentedAttention, OneSegmentOfEverythingIsAttention) {
  const Inputs<double> in({1, 2, 1, 50, 50, 4, 3}, 2);
  for (const int segment : {50, 1000}) {
    EXPECT_TRUE(same_bits(heed::attention(in.q, in.k, in.v, heed::SegmentedAttention(heed::Segment{segment})),
                          heed::attention(in.q, in.k, in.v)));
    EXPECT_TRUE(
        same_bits(heed::attention(in.q, in.k, in.v, heed::SegmentedAttention(heed::Causal{}, heed::Segment{segment})),
                  heed::attention(in.q, in.k, in.v, heed::Causal{})));
  }
  // Segments of one: a summary is its key.
  const auto ones = heed::attention(in.q, in.k, in.v, heed::SegmentedAttention(heed::Segment{1})),
             all = heed::attention(in.q, in.k, in.v);
  EXPECT_LE((deviation<double, double, 4>(ones, all).error), 1e-14);
}

TEST(SegmentedAttention, TheDefaultSegmentIsTheRootOfTheLength) {
  EXPECT_EQ(heed::default_segment(16384), 128);
  EXPECT_EQ(heed::default_segment(1000), 32);
  EXPECT_EQ(heed::default_segment(1), 16);
  const Inputs<double> in({1, 1, 1, 300, 300, 4, 3}, 3);
  EXPECT_TRUE(same_bits(heed::attention(in.q, in.k, in.v, heed::SegmentedAttention()),
                        heed::attention(in.q, in.k, in.v, heed::SegmentedAttention(heed::Segment{32}))));
}

TEST(SegmentedAttention, GradientsAreExact) {
  const Kinds kinds(21);
  for (const Kind& kind : kinds.all()) {
    for (const Path path : {Path::Reference, Path::Automatic}) {
      SCOPED_TRACE(kind.text() + (path == Path::Reference ? ", reference" : ", two passes"));
      Inputs<double> in({2, 2, 1, 21, 21, 2, 2}, 4);
      const Answer<double> claimed = answer(in, kind, path);
      heed::Context context;
      context.path = path;
      Tensor4<double> out(in.dout.extents());
      const auto loss = [&] {
        heed::attention_into(out, in.q, in.k, in.v, kind.value(in), context);
        double sum = 0;
        for (Index i = 0; i < out.size(); ++i) sum += out.data()[i] * in.dout.data()[i];
        return sum;
      };
      const auto flat = [](auto& x) { return TensorView<double, 1>(x.data(), {x.size()}); };
      const auto gradient = [](const auto& x) { return TensorView<const double, 1>(x.data(), {x.size()}); };
      const auto report = heed::gradcheck(loss, {{"q", flat(in.q), gradient(claimed.dq)},
                                                 {"k", flat(in.k), gradient(claimed.dk)},
                                                 {"v", flat(in.v), gradient(claimed.dv)},
                                                 {"pooling", flat(in.pooling), gradient(claimed.dpooling)}});
      EXPECT_TRUE(report.passed) << report.text();
      EXPECT_EQ(report.kinks, 0);
    }
  }
}

TEST(SegmentedAttention, GradientsThatAreNotWantedAreLeftOut) {
  const Inputs<double> in({1, 2, 1, 40, 40, 3, 5}, 5);
  const Kind kind{16, true, true};
  const Answer<double> all = answer(in, kind);
  heed::Context context;
  heed::AttentionCache<double> cache;
  Tensor4<double> out(in.dout.extents()), dq(in.q.extents()), dk(in.k.extents()), dv(in.v.extents());
  heed::Tensor<double, 2> dpooling(1, 3);
  const auto backward = [&](const heed::AttentionGradients<double>& to, heed::TensorView<double, 2> pooling = {}) {
    heed::attention_into(out, in.q, in.k, in.v, kind.value(in, pooling), cache, context);
    heed::attention_backward_into(to, in.dout, cache, context);
  };
  backward({dq, {}, {}});
  backward({{}, dk, {}});
  backward({{}, {}, dv});
  backward({}, dpooling.view());
  expect_same_bits({std::move(out), std::move(dq), std::move(dk), std::move(dv), std::move(dpooling)}, all);
}

TEST(SegmentedAttention, StaysWithinTheErrorBudget) {
  const Inputs<float> in({1, 2, 1, 700, 700, 16, 9}, 6);
  const Inputs<double> wide(in);
  for (const bool causal : {false, true}) {
    const Kind kind{48, causal, true};
    SCOPED_TRACE(kind.text());
    const Answer<float> fast = answer(in, kind), naive = answer(in, kind, Path::Reference);
    const Answer<double> exact = answer(wide, kind, Path::Reference);
    EXPECT_TRUE(within_budget(fast.out, naive.out, exact.out));
    EXPECT_TRUE(within_budget(fast.dq, naive.dq, exact.dq, 3)) << "dq";
    EXPECT_TRUE(within_budget(fast.dk, naive.dk, exact.dk, 3)) << "dk";
    EXPECT_TRUE(within_budget(fast.dv, naive.dv, exact.dv, 3)) << "dv";
    EXPECT_TRUE(within_budget(fast.dpooling, naive.dpooling, exact.dpooling, 3)) << "dpooling";
  }
}

TEST(SegmentedAttention, PaddingHasNoEffectWhateverItHolds) {
  const Kinds kinds(77);
  for (const Kind& kind : kinds.all()) {
    if (!kind.padding) continue;
    for (const Path path : {Path::Reference, Path::Automatic}) {
      SCOPED_TRACE(kind.text());
      Inputs<double> in({2, 4, 2, 77, 77, 5, 7}, 7);
      const Answer<double> expected = answer(in, kind, path);
      Random random(8);
      const auto spoil = [&](Tensor4<double>& x, int b, int i) {
        for_each_element(x.view()[b].slice(1, i, 1), [&](double& element) { element = poison<double>(random); });
      };
      for (int b = 0; b < 2; ++b) {
        for (int i = 0; i < 77; ++i) {
          if (!kind.padding->range(b, 0, 0).contains(i)) spoil(in.k, b, i), spoil(in.v, b, i);
          if (kind.padding->range(b, 0, i).end == 0) spoil(in.q, b, i), spoil(in.dout, b, i);
        }
      }
      expect_same_bits(answer(in, kind, path), expected);
    }
  }
}

TEST(SegmentedAttention, LaterPositionsHaveNoEffectAndVisibleOnesShow) {
  constexpr int L = 77, at = 43;  // in the segment of 40 to 47
  for (const bool learned : {false, true}) {
    for (const Path path : {Path::Reference, Path::Automatic}) {
      const Kind kind{8, true, learned};
      Inputs<double> in({1, 2, 1, L, L, 3, 4}, 9);
      const auto expected = answer(in, kind, path).out;
      for (const bool in_key : {false, true}) {
        double& element = in_key ? in.k(0, 0, at, 1) : in.v(0, 0, at, 1);
        const double kept = std::exchange(element, std::numeric_limits<double>::quiet_NaN());
        const auto out = answer(in, kind, path).out;
        element = kept;
        EXPECT_TRUE(same_bits(out.view().slice(2, 0, at), expected.view().slice(2, 0, at)));
        for (int i = at; i < L; ++i) EXPECT_TRUE(std::isnan(out(0, 1, i, 1))) << i;
      }
    }
  }
}

TEST(SegmentedAttention, TheSameBitsForAnyExecutorAndAnyStrides) {
  Random random(10);
  const Inputs<double> in({2, 4, 2, 203, 203, 20, 17}, 11);
  for (const Kind& kind : {Kind{24, false, true}, Kind{24, true, false}}) {
    const Answer<double> expected = answer(in, kind);
    for (const int workers : {1, 3, 16}) {
      ShuffledExecutor executor(workers, 12);
      heed::Context context(executor);
      expect_same_bits(answer(in, kind, context), expected);
    }
    const Spaced<double, 4> q(in.q.view(), random), k(in.k.view(), random), v(in.v.view(), random),
        dout(in.dout.view(), random), out(in.dout.extents(), random), dq(in.q.extents(), random),
        dk(in.k.extents(), random), dv(in.v.extents(), random);
    heed::Context context;
    heed::AttentionCache<double> cache;
    heed::attention_into(out.view(), q.view(), k.view(), v.view(), kind.value(in), cache, context);
    heed::attention_backward_into({dq.view(), dk.view(), dv.view()}, dout.view(), cache, context);
    EXPECT_TRUE(same_bits(out.view(), expected.out.view()));
    EXPECT_TRUE(same_bits(dq.view(), expected.dq.view()));
    EXPECT_TRUE(same_bits(dk.view(), expected.dk.view()));
    EXPECT_TRUE(same_bits(dv.view(), expected.dv.view()));
    EXPECT_TRUE(out.gaps_are_untouched() && dq.gaps_are_untouched() && dk.gaps_are_untouched() &&
                dv.gaps_are_untouched());
  }
}

TEST(SegmentedAttention, AllocatesNothingOnceWarm) {
  if (!counts_allocations()) GTEST_SKIP() << "allocations are not counted here";
  const Inputs<double> in({1, 2, 1, 200, 200, 20, 12}, 13);
  Tensor4<double> out(in.dout.extents()), dq(in.q.extents()), dk(in.k.extents()), dv(in.v.extents());
  heed::Tensor<double, 2> dpooling(in.pooling.extents());
  heed::Context context;
  heed::AttentionCache<double> cache;
  const Kind kind{32, true, true};
  const auto step = [&] {
    heed::attention_into(out, in.q, in.k, in.v, kind.value(in, dpooling.view()), cache, context);
    heed::attention_backward_into({dq, dk, dv}, in.dout, cache, context);
  };
  step();
  EXPECT_EQ(allocations_of(step), 0);
}

TEST(SegmentedAttention, SixteenBitStorage) {
  const Inputs<heed::half> in({1, 2, 1, 60, 60, 6, 5}, 14);
  const Inputs<float> wide(in);
  const Kind kind{16, true, true};
  const Answer<heed::half> a = answer(in, kind);
  const Answer<float> expected = answer(wide, kind);
  EXPECT_TRUE(same_bits(a.out, cast<heed::half>(expected.out.view())));
  // The backward has the rounded output.
  EXPECT_LE((deviation<heed::half, float, 4>(a.dk.view(), expected.dk.view()).error), 0.02);
  EXPECT_TRUE(same_bits(a.dv, cast<heed::half>(expected.dv.view())));
}

TEST(SegmentedAttention, EmptyExtents) {
  for (const Path path : {Path::Reference, Path::Automatic}) {
    for (const heed::AttentionShape& s : {heed::AttentionShape{0, 2, 1, 3, 3, 2, 2},
                                          {1, 0, 0, 3, 3, 2, 2},
                                          {1, 2, 1, 0, 0, 2, 2},
                                          {1, 2, 1, 20, 20, 2, 0}}) {
      const Answer<double> a = answer(Inputs<double>(s, 15), {0, true, true}, path);
      EXPECT_EQ(a.out.size(), 0);
      EXPECT_TRUE(same_bits(a.dk, Tensor4<double>(a.dk.extents())));
    }
  }
}

TEST(SegmentedAttention, Errors) {
  Tensor4<double> q(1, 2, 3, 4), x(1, 1, 3, 4);
  const heed::Tensor<double, 2> pooling(2, 4);
  heed::Context context;
  const auto text_of = [&](const Tensor4<double>& k, const Tensor4<double>& v, const auto&... parts) {
    return message_of<heed::Error>([&] { heed::attention(q, k, v, heed::SegmentedAttention(parts...)); });
  };
  EXPECT_TRUE(
      has_all(text_of(Tensor4<double>(1, 1, 3, 5), x), {"heed::SegmentedAttention: k has Dk = 5 but q has Dk = 4"}));
  EXPECT_TRUE(has_all(text_of(Tensor4<double>(1, 1, 5, 4), Tensor4<double>(1, 1, 5, 4)),
                      {"q has L = 3 positions but k has L = 5", "one sequence"}));
  EXPECT_TRUE(has_all(text_of(x, x, heed::Segment{-1}), {"segment = -1", "can't be negative"}));
  EXPECT_TRUE(has_all(text_of(x, x, heed::Scale{INFINITY}), {"scale = inf", "finite"}));
  EXPECT_NO_THROW(heed::attention(x, x, x, heed::SegmentedAttention(heed::Scale{1e39}))) << "finite in double";
  EXPECT_TRUE(has_all(text_of(x, x, heed::LearnedPooling(pooling)), {"pooling is (2, 4) but the call needs (1, 4)"}));
  EXPECT_TRUE(has_all(
      message_of<heed::ValueError>([&] { heed::attention_into(x, x, x, x, heed::SegmentedAttention(), context); }),
      {"heed::SegmentedAttention: out overlaps q"}));
  heed::AttentionCache<double> cache;
  const Tensor4<double> dout(1, 1, 3, 4);
  Tensor4<double> out(1, 1, 3, 4);
  const auto backward = [&](const heed::AttentionGradients<double>& to) {
    return message_of<heed::Error>([&] { heed::attention_backward_into(to, dout, cache, context); });
  };
  EXPECT_TRUE(has_all(backward({}), {"heed::attention_backward: no forward has filled the cache"}));
  heed::attention_into(out, x, x, x, heed::SegmentedAttention(), cache, context);
  EXPECT_TRUE(has_all(backward({x, {}, {}}), {"dq overlaps q"}));
  heed::Tensor<double, 2> dpooling(1, 5);
  EXPECT_TRUE(
      has_all(message_of<heed::ShapeError>([&] { heed::LearnedPooling(pooling).with_gradient(dpooling.view()); }),
              {"heed::LearnedPooling: the gradient is (1, 5) but the vectors are (2, 4)"}));
}

}  // namespace segmented_attention_tests
}  // namespace heed_test
