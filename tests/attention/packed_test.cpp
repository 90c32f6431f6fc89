// SPDX-License-Identifier: MIT
// Packed sequences: each gives what it gives alone, whatever mask or modifier of positions is joined to DocumentMask.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/attention/attention.hpp>
#include <heed/compiled/attention.hpp>
#include <heed/mask/sparse.hpp>

#include "common/message_of.hpp"
#include "common/random_inputs.hpp"

namespace heed_test {
namespace {

using heed::Alibi;
using heed::Alignment;
using heed::AnyAttention;
using heed::AnyMask;
using heed::Attention;
using heed::Causal;
using heed::DocumentMask;
using heed::GlobalTokens;
using heed::NoMask;
using heed::Padding;
using heed::RelativeBias;
using heed::Strided;
using heed::Tensor;
using heed::Window;

/// A mask of positions for a call of one sequence or of several.
struct NamedMask {
  const char* name;
  AnyMask mask;
};

std::vector<NamedMask> masks(bool square) {
  std::vector<NamedMask> all{
      {"none", NoMask{}},
      {"causal, top left", Causal::top_left()},
      {"causal, bottom right", Causal::bottom_right()},
      {"window, top left", Window::top_left(3, 1)},
      {"window, bottom right", Window::bottom_right(2, 0)},
      {"strided, bottom right", Strided::bottom_right(3, 1) & Causal::bottom_right()},
      {"global or window", (Window::bottom_right(1, 1) | GlobalTokens(1)) & Causal::bottom_right()},
      {"not causal", !Causal::bottom_right()},
  };
  if (square) {
    all.push_back({"causal", Causal{}});
    all.push_back({"window", Window(2, 1)});
  }
  return all;
}

/// Sequences side by side, and the same tensors as calls of their own.
class Packing {
 public:
  static constexpr int kHeads = 2, kWidth = 3;

  Packing(std::vector<std::int64_t> query_offsets, std::vector<std::uint16_t> key_offsets, Random& random)
      : queries(std::move(query_offsets)),
        keys(std::move(key_offsets)),
        q(normal_tensor<double, 4>({2, kHeads, static_cast<Index>(queries.back()), kWidth}, random)),
        k(normal_tensor<double, 4>({2, kHeads, static_cast<Index>(keys.back()), kWidth}, random)),
        v(normal_tensor<double, 4>({2, kHeads, static_cast<Index>(keys.back()), kWidth}, random)),
        dout(normal_tensor<double, 4>(q.extents(), random)) {}

  /// Random lengths, some of them 0.
  static Packing random(bool square, Random& random) {
    std::vector<std::int64_t> query_offsets{0};
    std::vector<std::uint16_t> key_offsets{0};
    for (int i = random.integer(1, 5); i > 0; --i) {
      const int queries = random.integer(0, 19), keys = square ? queries : random.integer(0, 40);
      query_offsets.push_back(query_offsets.back() + queries);
      key_offsets.push_back(static_cast<std::uint16_t>(key_offsets.back() + keys));
    }
    return Packing(query_offsets, key_offsets, random);
  }

  struct Result {
    Tensor<double, 4> out, dq, dk, dv;
  };
  /// Forward and backward of queries and keys [first, last) each.
  Result run(const AnyAttention<double>& value, Index q_first, Index q_last, Index k_first, Index k_last,
             heed::Context& context) const {
    const auto part = [](const Tensor<double, 4>& x, Index first, Index last) {
      return x.view().slice(2, first, last - first);
    };
    const auto of_q = part(q, q_first, q_last), of_k = part(k, k_first, k_last), of_v = part(v, k_first, k_last);
    Result r{Tensor<double, 4>(of_q.extents()), Tensor<double, 4>(of_q.extents()), Tensor<double, 4>(of_k.extents()),
             Tensor<double, 4>(of_v.extents())};
    heed::AttentionCache<double> cache;
    heed::attention_into(r.out, of_q, of_k, of_v, value, cache, context);
    heed::attention_backward_into({r.dq, r.dk, r.dv}, part(dout, q_first, q_last), cache, context);
    return r;
  }

  /// The packed call gives what each sequence gives alone.
  void check(const AnyAttention<double>& packed, const AnyAttention<double>& alone, heed::Context& context) const {
    const Result all = run(packed, 0, q.extent(2), 0, k.extent(2), context);
    for (std::size_t i = 0; i + 1 < queries.size(); ++i) {
      const Index q_first = static_cast<Index>(queries[i]), q_last = static_cast<Index>(queries[i + 1]);
      const Index k_first = keys[i], k_last = keys[i + 1];
      const Result own = run(alone, q_first, q_last, k_first, k_last, context);
      const auto same = [&](const Tensor<double, 4>& whole, const Tensor<double, 4>& part, Index first,
                            const char* what) {
        for (Index b = 0; b < part.extent(0); ++b) {
          for (Index h = 0; h < part.extent(1); ++h) {
            for (Index l = 0; l < part.extent(2); ++l) {
              for (Index e = 0; e < part.extent(3); ++e) {
                ASSERT_NEAR(whole(b, h, first + l, e), part(b, h, l, e), 1e-12)
                    << what << " of sequence " << i << ", row " << l;
              }
            }
          }
        }
      };
      same(all.out, own.out, q_first, "out");
      same(all.dq, own.dq, q_first, "dq");
      same(all.dk, own.dk, k_first, "dk");
      same(all.dv, own.dv, k_first, "dv");
    }
  }

  std::vector<std::int64_t> queries;
  std::vector<std::uint16_t> keys;
  Tensor<double, 4> q, k, v, dout;
};

TEST(PackedSequences, CausalIsThatOfEachSequence) {
  const std::vector<int> queries{0, 2, 4}, keys{0, 3, 8};
  const Eigen::MatrixXd q = Eigen::MatrixXd::Zero(4, 1), k = Eigen::MatrixXd::Zero(8, 1);
  Eigen::MatrixXd v(8, 1);
  v << 1, 2, 4, 8, 16, 32, 64, 128;
  const Eigen::MatrixXd out = heed::attention(q, k, v, DocumentMask(queries, keys) & Causal::bottom_right());
  EXPECT_DOUBLE_EQ(out(0, 0), 3.0 / 2);
  EXPECT_DOUBLE_EQ(out(1, 0), 7.0 / 3);
  EXPECT_DOUBLE_EQ(out(2, 0), 120.0 / 4);
  EXPECT_DOUBLE_EQ(out(3, 0), 248.0 / 5);
  // The order does not matter, nor does the way in which the masks are joined.
  EXPECT_EQ(heed::attention(q, k, v, Causal::bottom_right() & DocumentMask(queries, keys)), out);
  EXPECT_EQ(heed::attention(q, k, v, AnyMask(DocumentMask(queries, keys)) & (NoMask{} & Causal::bottom_right())), out);
  const Eigen::MatrixXd top = heed::attention(q, k, v, DocumentMask(queries, keys) & Causal::top_left());
  EXPECT_DOUBLE_EQ(top(2, 0), 8);
  EXPECT_DOUBLE_EQ(top(3, 0), 12);
}

TEST(PackedSequences, GiveWhatTheyGiveAlone) {
  const int count = effort(12);
  for (int i = 0; i < count && !HasFailure(); ++i) {
    Random random(95, i);
    const bool square = random.chance(0.3);
    const Packing packing = Packing::random(square, random);
    heed::Context context;
    context.path = random.chance(0.5) ? heed::Path::Reference : heed::Path::Blocked;
    const DocumentMask packed(packing.queries, packing.keys);
    Tensor<double, 2> table = normal_tensor<double, 2>({Packing::kHeads, 9}, random);
    for (const auto& [name, mask] : masks(square)) {
      SCOPED_TRACE("seed 95, case " + std::to_string(i) + ", " + name);
      packing.check(packed & mask, mask, context);
      for (const Alignment& alignment : {Alignment::bottom_right(), Alignment::top_left()}) {
        const RelativeBias bias(table, alignment);
        packing.check(Attention(mask & packed, bias), Attention(mask, bias), context);
      }
      packing.check(Attention(packed & mask, Alibi::bottom_right(Packing::kHeads)),
                    Attention(mask, Alibi::bottom_right(Packing::kHeads)), context);
    }
  }
}

// One and two new tokens for each sequence, keys from caches of other lengths.
TEST(PackedSequences, OfFewQueriesToo) {
  Random random(96);
  for (const heed::Path path : {heed::Path::Reference, heed::Path::Blocked}) {
    heed::Context context;
    context.path = path;
    const Packing packing({0, 1, 3, 4}, {0, 300, 301, 800}, random);
    const AnyMask mask = Window::bottom_right(200, 0);
    packing.check(Attention(DocumentMask(packing.queries, packing.keys) & mask, Alibi::bottom_right(Packing::kHeads)),
                  Attention(mask, Alibi::bottom_right(Packing::kHeads)), context);
  }
}

TEST(PackedSequences, NeedANamedAlignmentWhereLengthsDiffer) {
  const std::vector<int> queries{0, 2, 5}, keys{0, 3, 5};
  const Eigen::MatrixXd x = Eigen::MatrixXd::Zero(5, 1);
  EXPECT_TRUE(
      has_all(message_of<heed::ValueError>([&] { heed::attention(x, x, x, DocumentMask(queries, keys) & Causal{}); }),
              {"heed::Causal: sequence 0 has 2 queries but 3 keys", "Causal::bottom_right"}));
  EXPECT_TRUE(
      has_all(message_of<heed::ValueError>([&] { heed::attention(x, x, x, DocumentMask(queries, keys), Alibi(1)); }),
              {"heed::Alibi: sequence 0 has 2 queries but 3 keys"}));
  // Offsets that fit nothing are named before an alignment reads them.
  const std::vector<int> none, shorter{0, 2, 4};
  EXPECT_TRUE(has_all(
      message_of<heed::ValueError>([&] { heed::attention(x, x, x, Causal{} & DocumentMask(queries, shorter)); }),
      {"key offsets must start at 0 and end at Lk = 5"}));
  EXPECT_THROW(heed::attention(x, x, x, Causal{} & DocumentMask(none)), heed::ValueError);
}

// The first token of each sequence is global; a list and first positions count from the beginning of the call.
TEST(PackedSequences, HaveGlobalTokensOfTheirOwn) {
  const std::vector<int> offsets{0, 3, 6}, listed{4}, first{1};
  const DocumentMask packed(offsets);
  EXPECT_EQ(heed::to_string(packed & GlobalTokens(1), 6, 6), "###...\n#.....\n#.....\n...###\n...#..\n...#..\n");
  EXPECT_EQ(heed::to_string(packed & GlobalTokens(listed), 6, 6), "......\n......\n......\n....#.\n...###\n....#.\n");
  EXPECT_EQ(heed::to_string(packed & Causal::from(first), 6, 6), "##....\n###...\n###...\n...##.\n...###\n...###\n");
}

// Samples of known lengths are sequences as well; a padding of keys alone leaves the alignment to the call.
TEST(PaddedSequences, HaveTheAlignmentOfTheirLengths) {
  const std::vector<int> queries{2, 1}, keys{3, 5};
  const heed::AttentionShape s{.B = 2, .Lq = 2, .Lk = 6};
  const auto both = Padding::queries_and_keys(queries, keys) & Causal::bottom_right();
  EXPECT_EQ(heed::to_string(both, s, 0), "##....\n###...\n");
  EXPECT_EQ(heed::to_string(both, s, 1), "#####.\n......\n");
  const auto of_keys = Padding(keys) & Causal::bottom_right();
  EXPECT_EQ(heed::to_string(of_keys, s, 0), "###...\n###...\n");
  EXPECT_EQ(heed::to_string(of_keys, s, 1), "#####.\n#####.\n");
}

// F43: caches of several lengths with rubbish behind them, one and two new tokens, in both types of keys.
template <class S>
void check_ragged_caches(double tolerance) {
  constexpr int H = 14, G = 2, D = 64, longest = 9;
  const std::vector<std::int64_t> lengths{5, 1, 8};
  for (const int new_tokens : {1, 2}) {
    Random random(97, new_tokens);
    std::vector<std::int64_t> before;
    for (const std::int64_t n : lengths) before.push_back(n - 1);
    const auto q = normal_tensor<float, 4>({3, H, new_tokens, D}, random);
    const auto wide_k = normal_tensor<float, 4>({3, G, longest, D}, random);
    const auto wide_v = normal_tensor<float, 4>({3, G, longest, D}, random);
    Tensor<S, 4> k(wide_k.extents()), v(wide_k.extents());
    const auto keys_of = [&](int b) {
      return std::min<Index>(longest, static_cast<Index>(lengths[static_cast<std::size_t>(b)]) + new_tokens - 1);
    };
    for (int b = 0; b < 3; ++b) {
      for (int h = 0; h < G; ++h) {
        for (int l = 0; l < longest; ++l) {
          for (int d = 0; d < D; ++d) {
            const bool rubbish = l >= keys_of(b);
            k(b, h, l, d) = static_cast<S>(rubbish ? std::numeric_limits<float>::quiet_NaN() : wide_k(b, h, l, d));
            v(b, h, l, d) = static_cast<S>(rubbish ? std::numeric_limits<float>::infinity() : wide_v(b, h, l, d));
          }
        }
      }
    }
    std::vector<std::int64_t> ends;
    for (int b = 0; b < 3; ++b) ends.push_back(keys_of(b));
    heed::Context serial;
    Tensor<float, 4> out(3, H, new_tokens, D), threaded(3, H, new_tokens, D);
    heed::attention_into(out, q, k, v, Padding(ends) & Causal::from(before), serial);
    heed::ThreadPool pool(2);
    heed::Context context(pool);
    heed::attention_into(threaded, q, k, v, Padding(ends) & Causal::from(before), context);
    for (Index i = 0; i < out.size(); ++i) ASSERT_EQ(out.data()[i], threaded.data()[i]);
    for (int b = 0; b < 3; ++b) {
      const auto alone = heed::attention(q.view().slice(0, b, 1), wide_k.view().slice(0, b, 1).slice(2, 0, keys_of(b)),
                                         wide_v.view().slice(0, b, 1).slice(2, 0, keys_of(b)), Causal::bottom_right());
      for (int h = 0; h < H; ++h) {
        for (int l = 0; l < new_tokens; ++l) {
          for (int d = 0; d < D; ++d) ASSERT_NEAR(out(b, h, l, d), alone(0, h, l, d), tolerance) << b << ' ' << l;
        }
      }
    }
  }
}

TEST(RaggedCaches, GiveWhatEachSampleGivesAlone) {
  check_ragged_caches<float>(1e-6);
  check_ragged_caches<heed::bfloat16>(2e-2);
}

}  // namespace
}  // namespace heed_test
