// SPDX-License-Identifier: MIT
// The same bits whoever runs the pieces, in whatever order (C45).
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <heed/attention/attention.hpp>
#include <heed/compiled/attention.hpp>
#include <heed/mask/bool_mask.hpp>

#include "common/any_mask.hpp"
#include "common/any_modifier.hpp"
#include "common/shuffled_executor.hpp"
#include "common/views.hpp"

namespace heed_test {
namespace {

/// Runs a call with every executor and compares with the serial answer.
template <class Call>
void expect_same_bits(Call&& call) {
  heed::Context serial;
  const auto expected = call(serial);
  for (const int threads : {1, 2, 3, 7}) {
    SCOPED_TRACE(std::to_string(threads) + " threads");
    heed::ThreadPool pool(threads);
    heed::Context context(pool);
    EXPECT_TRUE(same_bits(call(context), expected));
    context.restart_streams();
    EXPECT_TRUE(same_bits(call(context), expected)) << "in a warm context";
  }
  for (const int workers : {1, 2, 5, 16}) {
    SCOPED_TRACE(std::to_string(workers) + " workers, shuffled");
    ShuffledExecutor executor(workers, 31);
    heed::Context context(executor);
    EXPECT_TRUE(same_bits(call(context), expected));
  }
}

class SameBits : public ::testing::Test {
 protected:
  SameBits() : random(30) {}
  Random random;
  // Several groups of blocks a head, none of them full.
  heed::Tensor<float, 4> q = normal_tensor<float, 4>({2, 4, 203, 20}, random);
  heed::Tensor<float, 4> k = normal_tensor<float, 4>({2, 2, 150, 20}, random);
  heed::Tensor<float, 4> v = normal_tensor<float, 4>({2, 2, 150, 17}, random);
};

TEST_F(SameBits, WithoutMask) {
  expect_same_bits(
      [&](heed::Context& context) { return heed::attention(q, k, v, AnyMask<true>(heed::NoMask{}), context); });
}

TEST_F(SameBits, WithMasksOfEveryKind) {
  const std::vector<int> lengths{150, 41};
  heed::Tensor<bool, 2> keep(203, 150);
  for_each_element(keep.view(), [&](bool& x) { x = random.chance(0.3); });
  const AnyMask<false> masks[] = {
      heed::Causal::bottom_right() & heed::Padding(lengths) & heed::BoolMask::keep(keep),
      heed::BoolMask::ignore(keep) | heed::Window::top_left(3, 3),
      heed::mask([](int b, int h, int i, int j) { return (b + h + i + j) % 3 != 0; }),
  };
  for (const auto& mask : masks) {
    expect_same_bits([&](heed::Context& context) { return heed::attention(q, k, v, mask, context); });
  }
  expect_same_bits([&](heed::Context& context) {
    return heed::attention(q, k, v, AnyMask<true>(heed::Causal::top_left()), context);
  });
}

TEST_F(SameBits, UnderDropout) {
  heed::AttentionOptions options;
  options.dropout = 0.4;
  expect_same_bits([&](heed::Context& context) {
    context.training = true;
    context.seed = 5;
    return heed::attention(q, k, v, AnyMask<true>(heed::NoMask{}), options, context);
  });
}

TEST_F(SameBits, WithModifierAndSinks) {
  const std::vector<double> sinks{0, 1, 2, 3};
  heed::AttentionOptions options;
  options.sinks = sinks;
  expect_same_bits([&](heed::Context& context) {
    return heed::attention(q, k, v, AnyMask<true>(heed::NoMask{}), AnyModifier::distance(0.1), options, context);
  });
}

TEST_F(SameBits, WithStridedAndNarrowKeys) {
  const auto k16 = cast<heed::bfloat16>(k.view()), v16 = cast<heed::bfloat16>(v.view());
  const Spaced<heed::bfloat16, 4> k_spaced(k16.view(), random), v_spaced(v16.view(), random);
  const Spaced<float, 4> q_spaced(std::as_const(q).view(), random);
  expect_same_bits([&](heed::Context& context) {
    return heed::attention(q_spaced.view(), k_spaced.view(), v_spaced.view(), AnyMask<true>(heed::NoMask{}), context);
  });
}

TEST_F(SameBits, WithFewQueries) {
  expect_same_bits([&](heed::Context& context) {
    return heed::attention(q.view().slice(2, 0, 3), k, v, AnyMask<true>(heed::NoMask{}), context);
  });
}

TEST_F(SameBits, InDouble) {
  const auto qd = cast<double>(q.view()), kd = cast<double>(k.view()), vd = cast<double>(v.view());
  expect_same_bits([&](heed::Context& context) {
    return heed::attention(qd, kd, vd, AnyMask<true>(heed::Causal::bottom_right()), context);
  });
}

TEST_F(SameBits, StatisticsToo) {
  heed::Context serial;
  const auto run = [&](heed::Context& context) {
    return heed::attention_with_statistics(q, k, v, AnyMask<true>(heed::Causal::top_left()), context);
  };
  const auto expected = run(serial);
  heed::ThreadPool pool(3);
  heed::Context context(pool);
  const auto found = run(context);
  EXPECT_TRUE(same_bits(found.maximum, expected.maximum));
  EXPECT_TRUE(same_bits(found.sum, expected.sum));
}

/// dq, dk and dv behind each other.
template <class M, class F>
heed::Tensor<float, 1> gradients(const heed::Tensor<float, 4>& dout, const heed::TensorView<const float, 4>& q,
                                 const heed::Tensor<float, 4>& k, const heed::Tensor<float, 4>& v, const M& mask,
                                 const F& modifier, heed::Context& context) {
  heed::AttentionOptions options;
  options.dropout = 0.2;
  context.training = true;
  context.seed = 6;
  heed::AttentionCache<float> cache;
  heed::Tensor<float, 4> out(dout.extents());
  heed::attention_into(out, q, k, v, mask, modifier, options, cache, context);
  heed::Tensor<float, 1> all(q.size() + k.size() + v.size());
  const heed::TensorView<float, 4> dq(all.data(), q.extents()), dk(all.data() + q.size(), k.extents()),
      dv(all.data() + q.size() + k.size(), v.extents());
  heed::attention_backward_into(heed::AttentionGradients<float>{dq, dk, dv}, dout, cache, context);
  return all;
}

TEST_F(SameBits, GradientsOfSeveralHeads) {
  const auto dout = normal_tensor<float, 4>({2, 4, 203, 17}, random);
  expect_same_bits([&](heed::Context& context) {
    return gradients(dout, std::as_const(q).view(), k, v, AnyMask<true>(heed::Causal::bottom_right()),
                     heed::NoModifier{}, context);
  });
}

TEST_F(SameBits, GradientsOfOneHeadInParts) {
  const auto one_q = normal_tensor<float, 4>({1, 1, 1100, 12}, random), dout = one_q;
  const auto one_k = normal_tensor<float, 4>({1, 1, 70, 12}, random);
  expect_same_bits([&](heed::Context& context) {
    return gradients(dout, one_q.view(), one_k, one_k,
                     AnyMask<false>(heed::mask([](int i, int j) { return (i + j) % 7 != 0; })),
                     AnyModifier::soft_cap(3), context);
  });
}

TEST_F(SameBits, GradientsOfASharedBias) {
  const auto dout = normal_tensor<float, 4>({2, 4, 203, 17}, random);
  const auto bias = normal_tensor<float, 4>({1, 1, 203, 150}, random);
  expect_same_bits([&](heed::Context& context) {
    heed::Tensor<float, 4> dbias(bias.extents());
    gradients(dout, std::as_const(q).view(), k, v, AnyMask<true>(heed::NoMask{}),
              heed::Bias(bias).with_gradient(dbias.view()), context);
    return dbias;
  });
}

// C45: output and all gradients, ten runs with each number of threads.
TEST_F(SameBits, RunAfterRun) {
  const auto x = normal_tensor<float, 4>({1, 3, 200, 16}, random),
             dout = normal_tensor<float, 4>({1, 3, 200, 16}, random);
  const auto run = [&](heed::Context& context) {
    heed::Tensor<float, 1> all(4 * x.size());
    const auto part = [&](Index i) { return heed::TensorView<float, 4>(all.data() + i * x.size(), x.extents()); };
    heed::AttentionCache<float> cache;
    const auto out = part(0);
    heed::attention_into(out, x, x, x, AnyMask<true>(heed::Causal{}), cache, context);
    heed::attention_backward_into(heed::AttentionGradients<float>{part(1), part(2), part(3)}, dout, cache, context);
    return all;
  };
  heed::Context serial;
  const auto expected = run(serial);
  for (const int threads : {1, 2, 3, 7, 16}) {
    heed::ThreadPool pool(threads);
    heed::Context context(pool);
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(same_bits(run(context), expected)) << threads << " threads, run " << i;
  }
}

TEST_F(SameBits, ForCallersInSeveralThreads) {
  heed::Context serial;
  const auto expected = heed::attention(q, k, v, AnyMask<true>(heed::NoMask{}), serial);
  heed::ThreadPool pool(2);
  std::vector<heed::Tensor<float, 4>> found(3);
  {
    std::vector<std::thread> callers;
    for (auto& out : found) {
      callers.emplace_back([&] {
        heed::Context context(pool);
        for (int i = 0; i < 3; ++i) {
          out = heed::attention(q, k, v, AnyMask<true>(heed::NoMask{}), context);
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
  }
  for (const auto& out : found) EXPECT_TRUE(same_bits(out, expected));
}

TEST_F(SameBits, AnExceptionInAWorkerReachesTheCaller) {
  heed::ThreadPool pool(3);
  heed::Context context(pool);
  const auto mask = heed::mask([](int, int, int i, int) -> bool {
    if (i == 150) throw std::runtime_error("no such query");
    return true;
  });
  EXPECT_THROW(heed::attention(q, k, v, AnyMask<false>(mask), context), std::runtime_error);
  EXPECT_NO_THROW(heed::attention(q, k, v, AnyMask<true>(heed::NoMask{}), context));
}

}  // namespace
}  // namespace heed_test
