// SPDX-License-Identifier: MIT
// Losses, optimizers and clipping have the same bits for any number of threads and allocate nothing once warm.
#include <gtest/gtest.h>

#include <heed/core/parallel.hpp>
#include <heed/train/loss.hpp>
#include <heed/train/optimizer.hpp>
#include <heed/train/parameter_list.hpp>

#include "common/allocation_counter.hpp"
#include "nn/layer_checks.hpp"
#include "train/pair.hpp"

namespace {

using heed::Context;
using heed::Index;
using heed::ParameterList;
using heed::Tensor;
using heed::TensorView;
using namespace layer_checks;
using heed_test::Pair;

/// Various classes, with some positions skipped.
Tensor<int, 2> some_targets(Index batch, Index length, int classes) {
  Tensor<int, 2> targets(batch, length);
  for (Index i = 0; i < targets.size(); ++i) {
    targets.data()[i] = i % 5 == 3 ? -100 : static_cast<int>((i * 7 + 2) % classes);
  }
  return targets;
}

TEST(CrossEntropy, ThreadsStridesAndPlaceChangeNothing) {
  const auto logits = random_tensor<float, 3>({3, 50, 65});
  const Tensor<int, 2> targets = some_targets(3, 50, 65);
  Tensor<float, 3> expected(logits.extents());
  const heed::CrossEntropyOptions options{.label_smoothing = 0.1};
  const heed::Loss loss = heed::cross_entropy(logits, targets, expected, options);
  Spaced<float, 3> from(logits.extents(), {2, 0, 1}, 1, 2), to(logits.extents(), {0, 2, 1}, 2, 3);
  copy(logits.view(), from.view());
  for (const int threads : {1, 2, 3, 7}) {
    heed::ThreadPool pool(threads);
    Context context(pool);
    Tensor<float, 3> dlogits(logits.extents());
    EXPECT_EQ(heed::cross_entropy(logits, targets, dlogits, options, context).value, loss.value);
    EXPECT_TRUE(bits_equal(expected.view(), dlogits.view()));
    EXPECT_EQ(heed_test::allocations_of([&] { heed::cross_entropy(logits, targets, dlogits, options, context); }), 0);
    EXPECT_EQ(heed::cross_entropy(from.view(), targets, to.view(), options, context).value, loss.value);
    EXPECT_TRUE(bits_equal(expected.view(), TensorView<const float, 3>(to.view())));
    Tensor<float, 3> in_place = logits;
    EXPECT_EQ(heed::cross_entropy(in_place, targets, in_place, options, context).value, loss.value);
    EXPECT_TRUE(bits_equal(expected.view(), in_place.view()));
    EXPECT_EQ(heed::cross_entropy(logits, targets, options, context).value, loss.value);
  }
}

TEST(Optimizer, ThreadsChangeNothingAndNothingIsAllocated) {
  Pair<float> expected(50000);
  heed::AdamW<float> serial(expected, {});
  for (int step = 0; step < 3; ++step) {
    expected.set_gradients(static_cast<std::uint64_t>(step));
    serial.step();
  }
  for (const int threads : {1, 2, 3, 7}) {
    Pair<float> model(50000);
    heed::AdamW<float> optimizer(model, {});
    heed::ThreadPool pool(threads);
    Context context(pool);
    for (int step = 0; step < 3; ++step) {
      model.set_gradients(static_cast<std::uint64_t>(step));
      EXPECT_EQ(heed_test::allocations_of([&] { optimizer.step(context); }), 0);
    }
    EXPECT_TRUE(bits_equal(expected.first.value(), model.first.value()));
    EXPECT_TRUE(bits_equal(expected.second.value(), model.second.value()));
  }
}

TEST(Clip, ThreadsChangeNothing) {
  Pair<float> expected(50000);
  expected.set_gradients(3);
  const double norm = heed::clip_grad_norm(ParameterList<float>(expected), 1);
  for (const int threads : {1, 2, 3, 7}) {
    Pair<float> model(50000);
    model.set_gradients(3);
    const ParameterList<float> parameters(model);
    heed::ThreadPool pool(threads);
    Context context(pool);
    EXPECT_EQ(heed::clip_grad_norm(parameters, 1, context), norm);
    EXPECT_TRUE(bits_equal(expected.first.grad(), model.first.grad()));
    EXPECT_EQ(heed_test::allocations_of([&] { heed::clip_grad_norm(parameters, 0.1, context); }), 0);
  }
}

}  // namespace
