// SPDX-License-Identifier: MIT
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/nn/embedding.hpp>
#include <heed/nn/positional.hpp>
#include <heed/nn/rotary.hpp>

#include "nn/backward_checks.hpp"

namespace {

using heed::Embedding;
using heed::LearnedPositions;
using heed::Positions;
using heed::RotaryEmbedding;
using heed::SinusoidalPositions;
using namespace backward_checks;

Tensor<int, 2> some_ids(Index batch, Index length, int vocabulary) {
  Tensor<int, 2> ids(batch, length);
  for (Index i = 0; i < ids.size(); ++i) ids.data()[i] = static_cast<int>((i * i * 7 + 3 * i) % vocabulary);
  return ids;
}

TEST(EmbeddingBackward, GradientsFromPyTorch) {
  const heed_test::Golden golden("embedding");
  Embedding<double> layer({.vocab_size = 11, .embed_dim = 16});
  golden.load_into(layer);
  const std::vector<int> list = [&] {
    const auto ids = golden.file().read_integers<int, 2>("in.ids");
    return std::vector<int>(ids.data(), ids.data() + ids.size());
  }();
  const TensorView<const int, 2> ids(list.data(), {2, 5});
  const auto dy = golden.tensor<double, 3>("dout.y");
  Tensor<double, 3> y(dy.extents());
  Context context;
  Embedding<double>::Cache cache;
  layer.forward(ids, y.view(), cache, context);
  layer.backward(dy.view(), cache, context);
  EXPECT_TRUE(golden.agrees("out.y", y.view(), 0));
  EXPECT_TRUE(golden.agrees("grad.param.weight", layer.weight.grad_matrix(), 1e-15));
}

TEST(EmbeddingBackward, ExactGradientsButForThePaddingRow) {
  const Tensor<int, 2> ids = some_ids(3, 7, 6);
  const auto dy = random_tensor<double, 3>({3, 7, 5});
  Context context;
  Embedding<double> layer({.vocab_size = 6, .embed_dim = 5, .scale = 2.5});
  fill_parameters<double>(layer, 1);
  Tensor<double, 3> y(3, 7, 5);
  Embedding<double>::Cache cache;
  layer.forward(ids, y.view(), cache, context);
  layer.backward(dy.view(), cache, context);
  const auto loss = [&] {
    layer.forward(ids, y.view(), context);
    return dot(y, dy);
  };
  const auto report = heed::gradcheck(loss, ParameterList<double>(layer));
  EXPECT_TRUE(report.passed) << report.text();
  EXPECT_EQ(report.checked, 30);

  Embedding<double> padded({.vocab_size = 6, .embed_dim = 5, .scale = 2.5, .padding = 4});
  padded.forward(ids, y.view(), cache, context);
  padded.backward(dy.view(), cache, context);
  for (Index id = 0; id < 6; ++id) {
    for (Index e = 0; e < 5; ++e) {
      EXPECT_EQ(padded.weight.grad_matrix()(id, e), id == 4 ? 0 : layer.weight.grad_matrix()(id, e));
    }
  }
}

TEST(EmbeddingBackward, MistakesAreNamed) {
  Embedding<double> layer({.vocab_size = 6, .embed_dim = 5});
  Embedding<double>::Cache cache;
  Context context;
  Tensor<double, 3> y(1, 4, 5);
  const auto ids = some_ids(1, 4, 6);
  layer.forward(ids, y.view(), context);
  EXPECT_THROW(layer.backward(y.view(), cache, context), heed::ShapeError) << "no forward with this cache";
}

TEST(PositionsBackward, KeepThePromisesOfABackward) {
  LearnedPositions<double> learned({.length = 9, .embed_dim = 7, .offset = 2, .scale = 1.5, .input_scale = 0.75});
  fill_parameters<double>(learned, 1);
  expect_backward(learned, {2, 6, 7});
  expect_same_backward_for_any_strides<double>(learned, {2, 6, 7});
  SinusoidalPositions<double> sinusoidal({.embed_dim = 7, .input_scale = 3});
  expect_backward(sinusoidal, {2, 6, 7});
}

// Samples that stand at different positions share rows of the table.
TEST(PositionsBackward, LearnedPositionsOfAnyKind) {
  LearnedPositions<double> layer({.length = 12, .embed_dim = 3});
  fill_parameters<double>(layer, 1);
  const auto x = random_tensor<double, 3>({3, 4, 3}), dy = random_tensor<double, 3>({3, 4, 3}, 2);
  const std::vector<int> first{0, 5, 8}, each{3, 3, 0, 11};
  Context context;
  for (const Positions& positions : {Positions(2), Positions::from(first), Positions::at(each)}) {
    ParameterList<double>(layer).zero_grad();
    Tensor<double, 3> y(x.extents());
    LearnedPositions<double>::Cache cache;
    layer.forward(x.view(), positions, y.view(), cache, context);
    layer.backward(dy.view(), heed::kNotWanted, cache, context);
    const auto loss = [&] {
      layer.forward(x.view(), positions, y.view(), context);
      return dot(y, dy);
    };
    const auto report = heed::gradcheck(loss, ParameterList<double>(layer));
    EXPECT_TRUE(report.passed) << report.text();
  }
}

TEST(PositionsBackward, RotaryGradients) {
  for (const bool interleaved : {false, true}) {
    for (const std::string kind : {"", "_far", "_partial"}) {
      const heed_test::Golden golden((interleaved ? "rotary_interleaved" : "rotary_half_split") + kind);
      const RotaryEmbedding<double> rotary(
          {.head_dim = kind == "_partial" ? 12 : 16,
           .rotary_dim = kind == "_partial" ? std::optional<Index>(interleaved ? 6 : 8) : std::nullopt,
           .theta = kind == "_far" ? 500000. : 10000.,
           .pairing = interleaved ? heed::RotaryPairing::Interleaved : heed::RotaryPairing::HalfSplit});
      const auto x = golden.tensor<double, 4>("in.x"), dy = golden.tensor<double, 4>("dout.y");
      const std::vector<int> positions = golden.integers("in.positions");
      Tensor<double, 4> y(x.extents()), dx(x.extents());
      Context context;
      RotaryEmbedding<double>::Cache cache;
      rotary.forward(x.view(), Positions::at(positions), y.view(), cache, context);
      rotary.backward(dy.view(), dx.view(), cache, context);
      EXPECT_TRUE(golden.agrees("grad.in.x", dx.view(), 1e-13));
      Tensor<double, 4> in_place = dy;
      rotary.backward(in_place.view(), in_place.view(), cache, context);
      EXPECT_TRUE(bits_equal(dx.view(), in_place.view()));
      rotary.backward(dy.view(), heed::kNotWanted, cache, context);
    }
  }
}

}  // namespace
