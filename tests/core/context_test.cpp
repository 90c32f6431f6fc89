// SPDX-License-Identifier: MIT
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/context.hpp>
#include <heed/core/scalar.hpp>

#include "common/allocation_counter.hpp"

namespace {

using Scope = heed::Context::Scope;

/// Writes down what it is shown.
struct Diary : heed::Observer {
  std::vector<std::string> outputs;
  void output(std::string_view name, const heed::ObservedTensor& value) override {
    outputs.push_back(std::string(name) + " " + std::to_string(value.rank()) + ": " + std::to_string(value(0, 0)));
  }
};

TEST(Context, IsSerialAndEvaluatesByDefault) {
  heed::Context context;
  EXPECT_EQ(context.executor().concurrency(), 1);
  EXPECT_FALSE(context.training);
  EXPECT_EQ(context.seed, 0u);
  EXPECT_EQ(context.path, heed::Path::Automatic);
  EXPECT_EQ(context.observer, nullptr);
  EXPECT_EQ(context.name(), "");
}

TEST(Context, UsesTheExecutorItWasGiven) {
  heed::ThreadPool pool(3);
  heed::Context context(pool);
  EXPECT_EQ(&context.executor(), &pool);
}

TEST(Context, StreamsCountUpAndStartAgain) {
  heed::Context context;
  EXPECT_EQ(context.next_stream(), 0u);
  EXPECT_EQ(context.next_stream(), 1u);
  context.restart_streams();
  EXPECT_EQ(context.next_stream(), 0u);
  context.restart_streams(7);
  EXPECT_EQ(context.next_stream(), 7u);
}

TEST(ContextScope, NestedScopesMakeThePathOfALayer) {
  Diary diary;
  heed::Context context;
  context.observer = &diary;
  {
    const Scope encoder(context, "encoder");
    EXPECT_EQ(context.name(), "encoder");
    {
      const Scope layer(context, "layers", 3);
      EXPECT_EQ(context.name(), "encoder.layers.3");
      const Scope attention(context, "self_attn");
      EXPECT_EQ(context.name(), "encoder.layers.3.self_attn");
    }
    EXPECT_EQ(context.name(), "encoder");
    const Scope unnamed(context, "");
    EXPECT_EQ(context.name(), "encoder");
  }
  EXPECT_EQ(context.name(), "");
  const Scope numbered(context, "layers", 0);
  EXPECT_EQ(context.name(), "layers.0");
}

TEST(ContextScope, LeavesThePathWhenAnExceptionPasses) {
  Diary diary;
  heed::Context context;
  context.observer = &diary;
  try {
    const Scope scope(context, "layer");
    throw heed::ValueError("stop");
  } catch (const heed::ValueError&) {}
  EXPECT_EQ(context.name(), "");
}

TEST(ContextScope, CostsNothingWhileNobodyObserves) {
  heed::Context context;
  const std::string long_name(1000, 'x');
  const long allocations = heed_test::allocations_of([&] {
    const Scope scope(context, long_name);
    const Scope numbered(context, long_name, 12345678);
    EXPECT_EQ(context.name(), "");
  });
  EXPECT_EQ(allocations, 0);
}

TEST(ContextObserver, SeesOutputsUnderTheirNames) {
  Diary diary;
  heed::Context context;
  heed::Tensor<float, 2> y(2, 2);
  y(0, 0) = 5;
  context.observe(y.view());
  EXPECT_TRUE(diary.outputs.empty());

  context.observer = &diary;
  const Scope scope(context, "norm1");
  context.observe(y.view());
  context.observe(std::as_const(y).view());
  EXPECT_EQ(diary.outputs, (std::vector<std::string>{"norm1 2: 5.000000", "norm1 2: 5.000000"}));
}

TEST(ContextObserver, WantsNoWeightsUnlessItSaysSo) {
  heed::Observer observer;
  EXPECT_FALSE(observer.wants_weights("layers.0.self_attn"));
}

template <class T>
void expect_observed_elements() {
  heed::Tensor<T, 3> x(2, 3, 4);
  for (int i = 0; i < 24; ++i) x.data()[i] = static_cast<T>(static_cast<float>(i));
  const heed::TensorView<const T, 3> swapped = heed::TensorView<const T, 3>(x.view()).transpose(0, 2);
  const heed::ObservedTensor seen(swapped);
  EXPECT_EQ(seen.rank(), 3);
  EXPECT_EQ(seen.extent(0), 4);
  EXPECT_EQ(seen.extent(1), 3);
  EXPECT_EQ(seen.extent(2), 2);
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 2; ++k) EXPECT_EQ(seen(i, j, k), k * 12 + j * 4 + i);
    }
  }
}

TEST(ObservedTensor, ReadsAnyTypeByItsStrides) {
  expect_observed_elements<float>();
  expect_observed_elements<double>();
  expect_observed_elements<heed::half>();
  expect_observed_elements<heed::bfloat16>();
}

}  // namespace
