// SPDX-License-Identifier: MIT
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <heed/nn/embedding.hpp>

#include "common/golden.hpp"
#include "nn/layer_checks.hpp"

namespace {

using heed::Embedding;
using heed::Index;
using heed::Tensor;
using namespace layer_checks;
using heed_test::Golden;

template <class T>
class EmbeddingOf : public testing::Test {};
using EmbeddingElements = testing::Types<float, double, heed::half, heed::bfloat16>;
TYPED_TEST_SUITE(EmbeddingOf, EmbeddingElements);

TYPED_TEST(EmbeddingOf, ValuesFromPyTorch) {
  using T = TypeParam;
  const Golden golden("embedding");
  Embedding<T> embedding({.vocab_size = 11, .embed_dim = 16});
  golden.load_into(embedding);
  const Tensor<int, 2> ids = golden.integer_tensor<2>("in.ids");
  const Tensor<T, 3> y = embedding(ids);
  EXPECT_EQ(max_error(y.view(), golden.tensor<double, 3>("out.y")), 0);
}

TYPED_TEST(EmbeddingOf, RowsTimesScaleForAnyStrides) {
  using T = TypeParam;
  for (const double scale : {1.0, 4.0, std::sqrt(12.0)}) {
    Embedding<T> embedding({.vocab_size = 9, .embed_dim = 12, .scale = scale});
    fill_parameters<T>(embedding, 4);
    // ids (B, L) column by column, with numbers between them that are no ids.
    std::vector<int> memory(3 * 5 * 2, -1);
    const heed::TensorView<int, 2> ids(memory.data(), {3, 5}, {2, 6});
    for (Index b = 0; b < 3; ++b) {
      for (Index l = 0; l < 5; ++l) ids(b, l) = static_cast<int>((b * 5 + l * 2) % 9);
    }
    const Tensor<T, 3> expected = embedding(ids);
    ASSERT_EQ(expected.extents(), (heed::Extents<3>{3, 5, 12}));
    for (Index b = 0; b < 3; ++b) {
      for (Index l = 0; l < 5; ++l) {
        for (Index e = 0; e < 12; ++e) {
          using A = heed::accumulate_t<T>;
          const T row = embedding.weight.matrix()(ids(b, l), e);
          EXPECT_EQ(expected(b, l, e), static_cast<T>(static_cast<A>(scale) * static_cast<A>(row)));
        }
      }
    }
    heed::Context context;
    for (const std::array<int, 3>& order : {std::array{0, 1, 2}, std::array{2, 1, 0}, std::array{1, 0, 2}}) {
      for (const Index step : {1, 2}) {
        Spaced<T, 3> y({3, 5, 12}, order, step, 3);
        embedding.forward(ids, y.view(), context);
        EXPECT_TRUE(bits_equal(expected.view(), y.view()));
        EXPECT_EQ(y.written(), static_cast<std::size_t>(expected.size()));
      }
    }
  }
}

TEST(Embedding, AnyListOfIdsGivesOneSequence) {
  Embedding<float> embedding({.vocab_size = 10, .embed_dim = 7});
  fill_parameters<float>(embedding, 1);
  const std::vector<int> list{3, 0, 9, 3};
  const Eigen::MatrixXf expected = embedding(list);
  ASSERT_EQ(expected.rows(), 4);
  EXPECT_TRUE(equal(expected.row(0), expected.row(3)));
  EXPECT_TRUE(equal(embedding(std::vector<int>{3, 0, 9, 3}), expected));
  EXPECT_TRUE(equal(embedding(std::array{3, 0, 9, 3}), expected));
  EXPECT_TRUE(equal(embedding(std::span<const int>(list).first(2)), expected.topRows(2)));

  const Eigen::VectorXi column = Eigen::Map<const Eigen::VectorXi>(list.data(), 4);
  EXPECT_TRUE(equal(embedding(column), expected));
  EXPECT_TRUE(equal(embedding(column.transpose()), expected));
  EXPECT_TRUE(equal(embedding(column + Eigen::VectorXi::Zero(4)), expected));
  EXPECT_TRUE(equal(embedding(Eigen::Vector4i(3, 0, 9, 3)), expected));
  Eigen::MatrixXi table = Eigen::MatrixXi::Constant(4, 3, -1);
  table.col(1) = column;
  EXPECT_TRUE(equal(embedding(table.col(1)), expected));
  Eigen::MatrixXi wide = Eigen::MatrixXi::Constant(3, 4, -1);
  wide.row(1) = column.transpose();
  EXPECT_TRUE(equal(embedding(wide.row(1)), expected));

  Tensor<int, 1> tensor(4);
  for (Index i = 0; i < 4; ++i) tensor(i) = list[static_cast<std::size_t>(i)];
  const Tensor<float, 2> y = embedding(tensor);
  EXPECT_TRUE(bits_equal(y.view(), heed::view_of(expected)));
  heed::Context context;
  EXPECT_TRUE(equal(embedding(list, context), expected));
  EXPECT_TRUE(equal(embedding(column, context), expected));
  EXPECT_EQ(embedding(std::vector<int>{}).rows(), 0);
}

template <class T>
class EmbeddingIds : public testing::Test {};
using IdTypes = testing::Types<std::int8_t, std::uint8_t, std::int16_t, std::uint16_t, unsigned, std::int64_t,
                               std::uint64_t, long long>;
TYPED_TEST_SUITE(EmbeddingIds, IdTypes);

// F47: ids of any integer type, in tensors, lists and Eigen objects.
TYPED_TEST(EmbeddingIds, MeanWhatIntsMean) {
  using I = TypeParam;
  Embedding<float> embedding({.vocab_size = 100, .embed_dim = 3, .padding = 2});
  fill_parameters<float>(embedding, 1);
  Tensor<int, 2> ints(2, 3);
  Tensor<I, 2> ids(2, 3);
  Eigen::Matrix<I, Eigen::Dynamic, Eigen::Dynamic> matrix(2, 3);
  for (Index b = 0; b < 2; ++b) {
    for (Index l = 0; l < 3; ++l) {
      ints(b, l) = static_cast<int>(b * 45 + 2 * l + 2);
      matrix(b, l) = ids(b, l) = static_cast<I>(ints(b, l));
    }
  }
  const Tensor<float, 3> expected = embedding(ints);
  EXPECT_TRUE(bits_equal(expected.view(), embedding(ids)));
  EXPECT_TRUE(bits_equal(expected.view().slice(1, 1, 2), embedding(ids.view().slice(1, 1, 2))));
  const Eigen::MatrixXf row = expected.matrix(1);
  EXPECT_TRUE(equal(embedding(std::vector<I>(&ids(1, 0), &ids(1, 0) + 3)), row));
  EXPECT_TRUE(equal(embedding(std::span<const I>(&ids(1, 0), 3)), row));
  EXPECT_TRUE(equal(embedding(matrix.row(1)), row));
  EXPECT_TRUE(equal(embedding((matrix.row(1) + matrix.row(1) - matrix.row(1)).eval()), row));
  EXPECT_TRUE(equal(embedding(2 * matrix.row(1) - matrix.row(1)), row));

  heed::Context context;
  Tensor<float, 3> y(2, 3, 3);
  EXPECT_TRUE(bits_equal(expected.view(), embedding(matrix)));
  EXPECT_TRUE(bits_equal(expected.view(), embedding(heed::IntView(matrix))));
  embedding.forward(matrix, y, context);
  EXPECT_TRUE(bits_equal(y.view(), expected.view()));
  const auto dy = random_tensor<float, 3>({2, 3, 3}, 3);
  const auto gradient = [&](const auto& list) {
    Embedding<float>::Cache cache;
    embedding.weight.zero_grad();
    embedding.forward(list, y, cache, context);
    embedding.backward(dy, cache, context);
    Tensor<float, 1> copied(embedding.weight.size());
    copy(std::as_const(embedding.weight).grad(), copied.view());
    return copied;
  };
  const Tensor<float, 1> of_ints = gradient(ints);
  EXPECT_TRUE(bits_equal(of_ints.view(), gradient(ids)));
}

TEST(Embedding, IdsBeyondIntAreNotCut) {
  Embedding<float> embedding({.vocab_size = 10, .embed_dim = 4});
  const auto text = [&](const auto& ids) { return message_of<heed::ValueError>([&] { embedding(ids); }); };
  EXPECT_NE(text(std::vector<std::int64_t>{1, (std::int64_t{1} << 32) + 1}).find("id 4294967297 at position 1"),
            std::string::npos);
  EXPECT_NE(text(std::vector<std::uint64_t>{~std::uint64_t{0}}).find("id 18446744073709551615"), std::string::npos);
  EXPECT_NE(text(std::vector<std::int64_t>{-9'000'000'000'000'000'000}).find("id -9000000000000000000"),
            std::string::npos);
}

TEST(Embedding, ThreadsGiveTheSameBits) {
  Embedding<float> embedding({.vocab_size = 50, .embed_dim = 100, .scale = 10});
  fill_parameters<float>(embedding, 1);
  Tensor<int, 2> ids(3, 300);
  for (Index i = 0; i < ids.size(); ++i) ids.data()[i] = static_cast<int>(i * i % 50);
  const Tensor<float, 3> expected = embedding(ids);
  for (const int threads : {1, 2, 3, 7}) {
    heed::ThreadPool pool(threads);
    heed::Context context(pool);
    EXPECT_TRUE(bits_equal(expected.view(), embedding(ids, context))) << threads;
  }
}

TEST(Embedding, AnIdOutsideTheVocabularyIsNamed) {
  Embedding<float> embedding({.vocab_size = 10, .embed_dim = 4});
  Tensor<int, 2> ids(2, 3);
  ids(1, 2) = 10;
  const std::string text = message_of<heed::ValueError>([&] { embedding(ids); });
  EXPECT_NE(text.find("id 10 at position 2 of sample 1"), std::string::npos) << text;
  EXPECT_NE(text.find("V = 10"), std::string::npos) << text;
  EXPECT_THROW(embedding(std::vector<int>{0, -1}), heed::ValueError);
}

TEST(Embedding, OtherMistakesAreNamed) {
  EXPECT_THROW(Embedding<float>({.vocab_size = 0, .embed_dim = 4}), heed::ShapeError);
  EXPECT_THROW(Embedding<float>({.vocab_size = 4, .embed_dim = 0}), heed::ShapeError);
  EXPECT_THROW(Embedding<float>({.vocab_size = 4, .embed_dim = 4, .padding = 4}), heed::ValueError);
  EXPECT_THROW(Embedding<float>({.vocab_size = 4, .embed_dim = 4, .padding = -1}), heed::ValueError);
  Embedding<float> embedding({.vocab_size = 4, .embed_dim = 4});
  Tensor<float, 3> y(1, 2, 5);
  heed::Context context;
  const Tensor<int, 2> ids(1, 2);
  EXPECT_THROW(embedding.forward(ids, y, context), heed::ShapeError);
}

TEST(Embedding, ThePaddingRowStartsWithZeros) {
  Embedding<double> embedding({.vocab_size = 1000, .embed_dim = 20, .padding = 3});
  heed::Random random(1);
  embedding.initialize(random, "", 0.5);
  const auto weight = embedding.weight.matrix().matrix();
  EXPECT_EQ(weight.row(3).squaredNorm(), 0);
  EXPECT_NEAR(weight.squaredNorm() / static_cast<double>(weight.size()), 0.25, 0.02);
  Embedding<double> without({.vocab_size = 1000, .embed_dim = 20});
  heed::Random same(1);
  without.initialize(same, "", 0.5);
  EXPECT_GT(without.weight.matrix().matrix().row(3).squaredNorm(), 0);
}

TEST(Embedding, IsObservedAndVisited) {
  Embedding<float> embedding({.vocab_size = 4, .embed_dim = 4});
  fill_parameters<float>(embedding, 1);
  Recorder recorder;
  heed::Context context;
  context.observer = &recorder;
  const heed::Context::Scope scope(context, "embeddings");
  const auto y = embedding(std::vector<int>{2}, context);
  EXPECT_EQ(recorder.names, std::vector<std::string>{"embeddings"});
  EXPECT_EQ(recorder.first, static_cast<double>(y(0, 0)));
  embedding.visit("word", [](std::string_view name, auto&) { EXPECT_EQ(name, "word.weight"); });
  EXPECT_EQ(heed::parameter_count(embedding), 16);
}

}  // namespace
