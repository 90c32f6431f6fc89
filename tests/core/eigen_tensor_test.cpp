// SPDX-License-Identifier: MIT
// Views of Eigen::Tensor and TensorMap of both layouts: the same element for the same indices, as input and as output.
#include <cmath>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include <heed/attention/attention.hpp>
#include <heed/eigen_tensor.hpp>

namespace eigen_tensor {

using heed::Index;
using heed::Tensor;
using heed::TensorView;

constexpr int B = 2, H = 3, L = 4, D = 5;

template <class EigenTensor>
EigenTensor numbered() {
  EigenTensor t(B, L, D);
  float next = 0;
  for (int b = 0; b < B; ++b) {
    for (int l = 0; l < L; ++l) {
      for (int d = 0; d < D; ++d) t(b, l, d) = next++;
    }
  }
  return t;
}

template <class View>
void expect_numbered(const View& view) {
  ASSERT_EQ(view.extents(), (heed::Extents<3>{B, L, D}));
  float next = 0;
  for (int b = 0; b < B; ++b) {
    for (int l = 0; l < L; ++l) {
      for (int d = 0; d < D; ++d) EXPECT_EQ(view(b, l, d), next++) << b << ' ' << l << ' ' << d;
    }
  }
}

template <class EigenTensor>
struct EigenTensorView : testing::Test {};
using Layouts = testing::Types<Eigen::Tensor<float, 3>, Eigen::Tensor<float, 3, Eigen::RowMajor>,
                               Eigen::Tensor<float, 3, Eigen::ColMajor, int>>;
TYPED_TEST_SUITE(EigenTensorView, Layouts);

TYPED_TEST(EigenTensorView, HasTheElementsOfTheTensorAtTheSameIndices) {
  auto tensor = numbered<TypeParam>();
  expect_numbered(heed::view_of(tensor));
  expect_numbered(heed::view_of(std::as_const(tensor)));
  expect_numbered(heed::view_of(Eigen::TensorMap<TypeParam>(tensor.data(), B, L, D)));
  expect_numbered(heed::view_of(Eigen::TensorMap<const TypeParam>(tensor.data(), B, L, D)));
  static_assert(std::is_same_v<decltype(heed::view_of(tensor)), TensorView<float, 3>>);
  static_assert(std::is_same_v<decltype(heed::view_of(std::as_const(tensor))), TensorView<const float, 3>>);
  static_assert(std::is_same_v<decltype(heed::view_of(std::declval<Eigen::TensorMap<const TypeParam>>())),
                               TensorView<const float, 3>>);
  heed::view_of(tensor)(1, 2, 3) = -1;
  EXPECT_EQ(tensor(1, 2, 3), -1);
}

template <class EigenTensor>
struct EigenTensorAttention : testing::Test {};
using Heads = testing::Types<Eigen::Tensor<float, 4>, Eigen::Tensor<float, 4, Eigen::RowMajor>>;
TYPED_TEST_SUITE(EigenTensorAttention, Heads);

TYPED_TEST(EigenTensorAttention, IsAnInputAndAnOutput) {
  const auto waves = [](float frequency) {
    Tensor<float, 4> t(B, H, L, D);
    for (Index i = 0; i < t.size(); ++i) t.data()[i] = std::sin(frequency * static_cast<float>(i));
    return t;
  };
  const Tensor<float, 4> q = waves(0.3F), k = waves(1.7F), v = waves(2.9F);
  const auto expected = heed::attention(q, k, v, heed::Causal{});
  const auto copy = [](const Tensor<float, 4>& from) {
    TypeParam to(B, H, L, D);
    for (int b = 0; b < B; ++b) {
      for (int h = 0; h < H; ++h) heed::view_of(to)[b].matrix(h) = from.matrix(b, h);
    }
    return to;
  };
  const TypeParam eq = copy(q), ek = copy(k), ev = copy(v);
  TypeParam out(B, H, L, D);
  heed::Context context;
  heed::attention_into(heed::view_of(out), heed::view_of(eq), heed::view_of(ek), heed::view_of(ev), heed::Causal{},
                       context);
  for (int b = 0; b < B; ++b) {
    for (int h = 0; h < H; ++h) {
      for (int l = 0; l < L; ++l) {
        for (int d = 0; d < D; ++d) EXPECT_NEAR(out(b, h, l, d), expected(b, h, l, d), 1e-6F);
      }
    }
  }
}

}  // namespace eigen_tensor
