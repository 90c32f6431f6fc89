// SPDX-License-Identifier: MIT
// Backwards among threads: the same bits for any number of them, and nothing allocated once warm.
#include <cmath>

#include <gtest/gtest.h>

#include <heed/compiled/layers.hpp>
#include <heed/nn/activation.hpp>
#include <heed/nn/dropout.hpp>
#include <heed/nn/embedding.hpp>
#include <heed/nn/feed_forward.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/norm.hpp>
#include <heed/nn/positional.hpp>

#include "nn/backward_checks.hpp"

namespace {

using heed::Dropout;
using heed::Embedding;
using namespace backward_checks;

// Enough rows for several blocks: where a sum over rows is cut must not depend on who adds it up.
TEST(NormBackward, ThreadsChangeNothing) {
  heed::LayerNorm<float> layer_norm({.embed_dim = 75});
  heed::RMSNorm<double> rms_norm({.embed_dim = 75});
  fill_parameters<float>(layer_norm, 3);
  fill_parameters<double>(rms_norm, 3);
  expect_same_backward_for_any_threads<float>(layer_norm, {3, 300, 75});
  expect_same_backward_for_any_threads<double>(rms_norm, {3, 300, 75});
}

// A product whose depth, the number of rows, is cut into blocks.
TEST(LinearBackward, ThreadsChangeNothing) {
  heed::Linear<float> layer({.in_features = 70, .out_features = 130});
  fill_parameters<float>(layer, 3);
  expect_same_backward_for_any_threads<float>(layer, {3, 300, 70});
}

TEST(FeedForwardBackward, ThreadsChangeNothing) {
  heed::FeedForward<float> layer({.embed_dim = 40, .activation = heed::Activation::GELU, .gated = true});
  fill_parameters<float>(layer, 3);
  expect_same_backward_for_any_threads<float>(layer, {3, 100, 40});
}

/// GELU as the checks want a layer: with one type of cache.
struct FloatGelu : heed::GELU {
  using Cache = heed::GELU::Cache<float>;
};
TEST(ActivationBackward, ThreadsChangeNothing) {
  FloatGelu layer;
  expect_same_backward_for_any_threads<float>(layer, {3, 300, 75});
}

TEST(PositionsBackward, ThreadsChangeNothing) {
  heed::LearnedPositions<float> learned({.length = 300, .embed_dim = 96});
  fill_parameters<float>(learned, 3);
  expect_same_backward_for_any_threads<float>(learned, {2, 300, 96});
}

Tensor<int, 2> some_ids(Index batch, Index length, int vocabulary) {
  Tensor<int, 2> ids(batch, length);
  for (Index i = 0; i < ids.size(); ++i) ids.data()[i] = static_cast<int>((i * i * 7 + 3 * i) % vocabulary);
  return ids;
}

TEST(EmbeddingBackward, ThreadsAndStridesChangeNothing) {
  constexpr Index width = 200;
  const Tensor<int, 2> ids = some_ids(4, 100, 30);
  const auto dy = random_tensor<float, 3>({4, 100, width});
  Tensor<float, 3> y(4, 100, width);
  const auto gradient = [&](const TensorView<const float, 3>& errors, Context& context) {
    Embedding<float> layer({.vocab_size = 30, .embed_dim = width});
    fill_parameters<float>(layer, 3);
    Embedding<float>::Cache cache;
    layer.forward(ids, y.view(), cache, context);
    layer.backward(errors, cache, context);
    Tensor<float, 1> result(layer.weight.size());
    copy(layer.weight.grad(), result.view());
    layer.weight.zero_grad();
    EXPECT_EQ(heed_test::allocations_of([&] { layer.backward(errors, cache, context); }), 0);
    EXPECT_TRUE(bits_equal(result.view(), layer.weight.grad()));
    return result;
  };
  Context serial;
  const Tensor<float, 1> expected = gradient(dy.view(), serial);
  Spaced<float, 3> spaced(dy.extents(), {2, 0, 1}, 2, 1);
  copy(dy.view(), spaced.view());
  for (const int threads : {1, 2, 3, 7}) {
    heed::ThreadPool pool(threads);
    Context context(pool);
    EXPECT_TRUE(bits_equal(expected.view(), gradient(dy.view(), context)));
    EXPECT_TRUE(bits_equal(expected.view(), gradient(spaced.view(), context)));
  }
}

// The backward drops what the forward dropped, whatever streams were drawn between them.
TEST(DropoutBackward, BackwardReplaysTheForward) {
  Dropout<double> layer({.probability = 0.4});
  const Extents<3> extents{2, 40, 70};
  const auto dy = random_tensor<double, 3>(extents, 2);
  Tensor<double, 3> ones(extents), y(extents);
  std::fill_n(ones.data(), ones.size(), 1.0);
  Context context;
  context.training = true;
  context.seed = 5;
  Dropout<double>::Cache cache;
  layer.forward(ones.view(), y.view(), cache, context);
  layer(ones, context);
  context.training = false;
  for (const int threads : {1, 2, 3, 7}) {
    heed::ThreadPool pool(threads);
    Context other(pool);
    Tensor<double, 3> dx(extents);
    layer.backward(dy.view(), dx.view(), cache, other);
    for (Index i = 0; i < dx.size(); ++i) ASSERT_DOUBLE_EQ(dx.data()[i], y.data()[i] * dy.data()[i]);
    auto in_place = dy;
    layer.backward(in_place.view(), in_place.view(), cache, other);
    EXPECT_TRUE(bits_equal(dx.view(), in_place.view()));
  }
}

}  // namespace
