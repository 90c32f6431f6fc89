// SPDX-License-Identifier: MIT
#include <array>
#include <cstdint>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include <Eigen/Core>
#include <gtest/gtest.h>

#include <heed/core/scalar.hpp>
#include <heed/core/tensor.hpp>

#include "common/allocation_counter.hpp"
#include "common/random_inputs.hpp"

namespace {

using heed::Extents;
using heed::Index;
using heed::Tensor;
using heed::TensorView;
using heed::view_of;
using heed_test::Random;

/// In [first, last].
Index random_index(Random& random, Index first, Index last) {
  return random.integer(static_cast<int>(first), static_cast<int>(last));
}

/// Calls f(i, j, k) for every position of a view of rank 3.
template <class T, class F>
void for_each_position(const TensorView<T, 3>& v, F&& f) {
  for (Index i = 0; i < v.extent(0); ++i) {
    for (Index j = 0; j < v.extent(1); ++j) {
      for (Index k = 0; k < v.extent(2); ++k) f(i, j, k);
    }
  }
}

// ---- Tensor --------------------------------------------------------------------------------------------------------

TEST(Tensor, IsRowMajorAlignedAndZeroAtFirst) {
  Tensor<float, 3> t(2, 3, 5);
  EXPECT_EQ(t.extents(), (Extents<3>{2, 3, 5}));
  EXPECT_EQ(t.size(), 30);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.data()) % 64, 0u);
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(t.data()[i], 0.0f);
    t.data()[i] = static_cast<float>(i);
  }
  for_each_position(t.view(), [&](Index i, Index j, Index k) {
    EXPECT_EQ(t(i, j, k), static_cast<float>(i * 15 + j * 5 + k));
    EXPECT_EQ(&std::as_const(t)(i, j, k), &t(i, j, k));
  });
  EXPECT_TRUE(t.view().is_contiguous());
}

TEST(Tensor, ZeroIsThePositiveZeroOfEveryType) {
  EXPECT_EQ((Tensor<heed::half, 1>(3)(2)), heed::half(0.0f));
  EXPECT_EQ((Tensor<heed::bfloat16, 1>(3)(2)), heed::bfloat16(0.0f));
  EXPECT_EQ((Tensor<int, 1>(3)(2)), 0);
  EXPECT_FALSE((Tensor<bool, 1>(3)(2)));
}

TEST(Tensor, CopiesAreDeepAndMovesLeaveNothingBehind) {
  Tensor<int, 2> a(2, 2);
  a(1, 1) = 7;
  Tensor<int, 2> b = a;
  b(1, 1) = 8;
  EXPECT_EQ(a(1, 1), 7);

  const int* memory = b.data();
  Tensor<int, 2> c = std::move(b);
  EXPECT_EQ(c.data(), memory);
  EXPECT_TRUE(b.empty());
  EXPECT_EQ(b.extents(), (Extents<2>{0, 0}));
  EXPECT_EQ(b.data(), nullptr);

  b = c;
  EXPECT_EQ(b(1, 1), 8);
  b = std::move(a);
  EXPECT_EQ(b(1, 1), 7);
  Tensor<int, 2>& same = b;
  b = same;
  EXPECT_EQ(b(1, 1), 7);
}

TEST(Tensor, EmptyExtentsAreLegalAndAllocateNothing) {
  ASSERT_TRUE(heed_test::counts_allocations());
  EXPECT_EQ(heed_test::allocations_of([] {
              const Tensor<float, 3> none, no_batch(0, 3, 4), no_width(2, 3, 0);
              const Tensor<float, 3> copy = no_width;
              EXPECT_TRUE(none.empty() && no_batch.empty() && no_width.empty() && copy.empty());
              EXPECT_EQ(copy.extent(1), 3);
              EXPECT_TRUE(no_width.view().is_contiguous());
            }),
            0);
}

TEST(Tensor, RefusesExtentsThatAreNegativeOrTooLarge) {
  constexpr Index most = std::numeric_limits<int>::max();
  EXPECT_THROW((Tensor<float, 2>(-1, 2)), heed::ShapeError);
  EXPECT_THROW((Tensor<float, 2>(2, -1)), heed::ShapeError);
#if PTRDIFF_MAX > INT32_MAX
  EXPECT_THROW((Tensor<float, 1>(most + 1)), heed::ShapeError);
#endif
  EXPECT_THROW((Tensor<float, 4>(most, most, most, 2)), heed::ShapeError);
  EXPECT_THROW((Tensor<float, 2>(0, -1)), heed::ShapeError);
  try {
    Tensor<float, 2>(3, -1);
    FAIL() << "nothing was thrown";
  } catch (const heed::ShapeError& e) {
    EXPECT_NE(std::string(e.what()).find("(3, -1)"), std::string::npos) << e.what();
  }
#if PTRDIFF_MAX > INT32_MAX
  EXPECT_NO_THROW((Tensor<float, 4>(most, 0, most, most)));
#endif
}

// ---- TensorView ----------------------------------------------------------------------------------------------------

TEST(TensorView, DefaultIsEmpty) {
  const TensorView<float, 3> v;
  EXPECT_TRUE(v.empty());
  EXPECT_EQ(v.size(), 0);
  EXPECT_EQ(v.data(), nullptr);
}

TEST(TensorView, ReadsAsConstOnly) {
  using View = TensorView<float, 2>;
  using ConstView = TensorView<const float, 2>;
  static_assert(std::is_convertible_v<View, ConstView> && !std::is_convertible_v<ConstView, View>);
  static_assert(std::is_convertible_v<Tensor<float, 2>&, View> && std::is_convertible_v<Tensor<float, 2>&, ConstView>);
  static_assert(!std::is_convertible_v<const Tensor<float, 2>&, View>);
  static_assert(std::is_trivially_copyable_v<View>);
  float x[6] = {0, 1, 2, 3, 4, 5};
  const ConstView v = View(x, {2, 3});
  EXPECT_EQ(&v(1, 2), x + 5);
}

TEST(TensorView, StridesMayBeAnything) {
  const int x[5] = {0, 1, 2, 3, 4};
  const TensorView<const int, 2> broadcast(x + 1, {3, 2}, {0, 1});
  EXPECT_EQ(broadcast(2, 1), 2);
  const TensorView<const int, 1> reversed(x + 4, {5}, {-1});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(reversed(i), 4 - i);
  const TensorView<const int, 2> diagonals(x, {3, 3}, {1, 1});
  EXPECT_EQ(diagonals(2, 2), 4);
}

/// Slices, transposes and indices only change which element a position means; the property is checked against a model
/// that maps positions to positions of the original.
TEST(TensorView, SlicesTransposesAndIndicesPickTheRightElements) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Tensor<int, 3> t(random_index(random, 1, 6), random_index(random, 1, 6), random_index(random, 1, 6));
    for (int i = 0; i < t.size(); ++i) t.data()[i] = i;

    TensorView<int, 3> v = t.view();
    std::array<int, 3> dimension{0, 1, 2};
    Extents<3> first{0, 0, 0};
    for (int step = 0; step < 6; ++step) {
      const int d = random.integer(0, 2), e = random.integer(0, 2);
      if (random.chance(0.5)) {
        v = v.transpose(d, e);
        std::swap(dimension[static_cast<std::size_t>(d)], dimension[static_cast<std::size_t>(e)]);
      } else {
        const Index from = random_index(random, 0, v.extent(d) - 1),
                    count = random_index(random, 1, v.extent(d) - from);
        v = v.slice(d, from, count);
        first[static_cast<std::size_t>(dimension[static_cast<std::size_t>(d)])] += from;
      }
    }
    for_each_position(v, [&](Index i, Index j, Index k) {
      Extents<3> at = first;
      at[static_cast<std::size_t>(dimension[0])] += i;
      at[static_cast<std::size_t>(dimension[1])] += j;
      at[static_cast<std::size_t>(dimension[2])] += k;
      const int right = t(at[0], at[1], at[2]);
      ASSERT_EQ(v(i, j, k), right);
      ASSERT_EQ(v[i](j, k), right);
      ASSERT_EQ(v[i][j](k), right);
      ASSERT_EQ(v.matrix(i)(j, k), right);
      ASSERT_EQ(v.unsqueeze()(0, i, j, k), right);
      ASSERT_EQ(v.unsqueeze().matrix(0, i)(j, k), right);
    });
    EXPECT_EQ(v.size(), v.extent(0) * v.extent(1) * v.extent(2));
  }
}

TEST(TensorView, SliceChecksItsRange) {
  Tensor<int, 2> t(4, 5);
  const TensorView<int, 2> v = t.view();
  EXPECT_EQ(v.slice(0, 4, 0).size(), 0);
  EXPECT_EQ(v.slice(1, 0, 5).size(), 20);
  EXPECT_THROW(v.slice(0, 2, 3), heed::ShapeError);
  EXPECT_THROW(v.slice(0, -1, 2), heed::ShapeError);
  EXPECT_THROW(v.slice(1, 2, -1), heed::ShapeError);
  EXPECT_THROW(v.slice(2, 0, 1), heed::ShapeError);
  EXPECT_THROW(v.slice(-1, 0, 1), heed::ShapeError);
  EXPECT_THROW(v.slice(1, std::numeric_limits<Index>::max(), 1), heed::ShapeError);
  EXPECT_THROW(v.slice(1, 1, std::numeric_limits<Index>::max()), heed::ShapeError);
}

TEST(TensorView, KnowsWhetherItIsContiguous) {
  Tensor<int, 3> t(2, 3, 4);
  const TensorView<int, 3> v = t.view();
  EXPECT_TRUE(v.is_contiguous());
  EXPECT_TRUE(v.slice(0, 1, 1).is_contiguous());
  EXPECT_FALSE(v.slice(1, 0, 2).is_contiguous());
  EXPECT_TRUE(v.slice(1, 0, 2).slice(0, 0, 1).is_contiguous());
  EXPECT_FALSE(v.slice(2, 0, 3).is_contiguous());
  EXPECT_TRUE(v.slice(2, 0, 3).has_dense_rows());
  EXPECT_FALSE(v.transpose(1, 2).is_contiguous());
  EXPECT_FALSE(v.transpose(1, 2).has_dense_rows());
  EXPECT_TRUE(v.transpose(0, 2).slice(2, 0, 1).has_dense_rows()) << "one column is always dense";
}

TEST(TensorView, IsUsableInConstantExpressions) {
  static constexpr std::array<int, 6> x{0, 1, 2, 3, 4, 5};
  constexpr TensorView<const int, 2> v(x.data(), {2, 3});
  static_assert(v(1, 2) == 5 && v.transpose(0, 1)(2, 1) == 5 && v[1](0) == 3 && v.slice(1, 1, 2)(0, 1) == 2);
}

// ---- Eigen ---------------------------------------------------------------------------------------------------------

/// That a view of an Eigen object has its shape, its elements and its very memory.
template <class D>
void expect_view_of(const Eigen::DenseBase<D>& m) {
  const TensorView<const typename D::Scalar, 2> v = view_of(m);
  ASSERT_EQ(v.extents(), (Extents<2>{m.rows(), m.cols()}));
  for (Index i = 0; i < m.rows(); ++i) {
    for (Index j = 0; j < m.cols(); ++j) {
      ASSERT_EQ(v(i, j), m.derived().coeff(i, j)) << i << ", " << j;
      ASSERT_EQ(&v(i, j), &m.derived().coeffRef(i, j)) << i << ", " << j;
    }
  }
}

template <class Matrix>
void expect_views_of_everything_made_from(Index rows, Index columns) {
  Matrix m(rows, columns);
  for (Index i = 0; i < m.size(); ++i) m.data()[i] = static_cast<typename Matrix::Scalar>(i);
  const Matrix& c = m;
  expect_view_of(m);
  expect_view_of(c.transpose());
  expect_view_of(c.array());
  if (m.size() == 0) return;
  expect_view_of(c.topLeftCorner(rows / 2, columns / 2));
  expect_view_of(c.bottomRightCorner(rows / 2, columns / 2).transpose());
  expect_view_of(c.middleCols(columns / 3, columns / 2));
  expect_view_of(c.row(rows - 1));
  expect_view_of(c.col(columns - 1));
  expect_view_of(c.row(0).transpose());

  using Stride = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
  const Index outer_extent = Matrix::IsRowMajor ? rows : columns;
  std::vector<typename Matrix::Scalar> spaced(static_cast<std::size_t>(outer_extent * (3 * m.size() + 5) + 1));
  for (std::size_t i = 0; i < spaced.size(); ++i) spaced[i] = static_cast<typename Matrix::Scalar>(i % 251);
  expect_view_of(Eigen::Map<const Matrix, 0, Stride>(spaced.data(), rows, columns, Stride(3 * m.size() + 5, 3)));

  const Eigen::Ref<const Matrix> ref(c);
  expect_view_of(ref);
  Eigen::Ref<Matrix, 0, Eigen::OuterStride<>> block(m.topLeftCorner(rows / 2, columns / 2));
  expect_view_of(block);
}

TEST(ViewOfEigen, IsTheMemoryOfEveryStorageOrderBlockMapRefAndTranspose) {
  for (const auto& [rows, columns] : {std::pair<Index, Index>{1, 1}, {5, 7}, {8, 3}, {1, 6}, {6, 1}, {0, 4}, {4, 0}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << columns);
    expect_views_of_everything_made_from<Eigen::MatrixXf>(rows, columns);
    expect_views_of_everything_made_from<Eigen::Matrix<double, -1, -1, Eigen::RowMajor>>(rows, columns);
    expect_views_of_everything_made_from<Eigen::Matrix<heed::half, -1, -1, Eigen::RowMajor>>(rows, columns);
    expect_views_of_everything_made_from<Eigen::Matrix<float, -1, -1, Eigen::ColMajor, 9, 9>>(rows, columns);
  }
}

TEST(ViewOfEigen, FixedSizesVectorsAndArraysWork) {
  const Eigen::Matrix3f fixed = Eigen::Matrix3f::Random();
  expect_view_of(fixed);
  expect_view_of(fixed.block<2, 2>(1, 0));
  const Eigen::VectorXd column = Eigen::VectorXd::Random(5);
  expect_view_of(column);
  expect_view_of(column.transpose());
  expect_view_of(column.segment(1, 3));
  const Eigen::RowVectorXd row = Eigen::RowVectorXd::Random(5);
  expect_view_of(row);
  const Eigen::ArrayXXf array = Eigen::ArrayXXf::Random(3, 4);
  expect_view_of(array);
}

TEST(ViewOfEigen, WritesThroughWhatIsWritable) {
  Eigen::MatrixXf m = Eigen::MatrixXf::Zero(3, 4);
  view_of(m)(2, 3) = 1;
  auto block = m.block(0, 1, 2, 2);
  view_of(block)(1, 1) = 2;
  auto transposed = m.transpose();
  view_of(transposed)(0, 2) = 3;
  Eigen::Map<Eigen::MatrixXf> map(m.data(), 3, 4);
  view_of(map)(0, 3) = 4;
  EXPECT_EQ(m(2, 3), 1);
  EXPECT_EQ(m(1, 2), 2);
  EXPECT_EQ(m(2, 0), 3);
  EXPECT_EQ(m(0, 3), 4);
}

TEST(ViewOfEigen, ConstMemoryGivesConstViews) {
  using ConstView = TensorView<const float, 2>;
  Eigen::MatrixXf m(2, 2);
  const Eigen::MatrixXf& c = m;
  Eigen::Map<const Eigen::MatrixXf> map(m.data(), 2, 2);
  auto block = c.leftCols(1);
  static_assert(std::is_same_v<decltype(view_of(c)), ConstView>);
  static_assert(std::is_same_v<decltype(view_of(map)), ConstView>);
  static_assert(std::is_same_v<decltype(view_of(block)), ConstView>);
  static_assert(std::is_same_v<decltype(view_of(m)), TensorView<float, 2>>);
}

TEST(EigenMapOfView, WritesThroughAndKeepsStrides) {
  Tensor<double, 4> t(2, 3, 4, 5);
  t.matrix(1, 2) = Eigen::MatrixXd::Constant(4, 5, 3.0);
  EXPECT_EQ(t(1, 2, 3, 4), 3.0);
  EXPECT_EQ(t(1, 1, 3, 4), 0.0);
  t.view().transpose(2, 3).matrix(0, 0)(4, 1) = 9;
  EXPECT_EQ(t(0, 0, 1, 4), 9);
  EXPECT_EQ(std::as_const(t).matrix(1, 2).sum(), 60);
  // Heads of packed (L, H·D) memory are matrices with a stride: no copy is needed.
  Tensor<double, 2> packed(4, 6);
  packed(3, 5) = 2;
  const TensorView<double, 3> heads(packed.data(), {3, 4, 2}, {2, 6, 1});
  EXPECT_EQ(heads.matrix(2)(3, 1), 2);
}

TEST(TensorConcepts, TellTensorsEigenAndTheRestApart) {
  using Product = decltype(Eigen::MatrixXf() * Eigen::MatrixXf());
  static_assert(heed::TensorLike<Tensor<float, 3>> && heed::TensorLike<const TensorView<const float, 2>&>);
  static_assert(heed::TensorLike<Eigen::MatrixXf> && heed::TensorLike<Product>);
  static_assert(!heed::TensorLike<std::vector<float>> && !heed::TensorLike<float*>);
  static_assert(heed::EigenDirect<Eigen::Block<Eigen::MatrixXf>> && !heed::EigenDirect<Product>);
  static_assert(std::is_same_v<heed::scalar_of_t<const TensorView<const heed::half, 2>&>, heed::half>);
  static_assert(std::is_same_v<heed::scalar_of_t<Product>, float>);
  static_assert(heed::rank_of_v<Tensor<float, 4>&> == 4 && heed::rank_of_v<Eigen::VectorXd> == 2);
}

// ---- Overlap -------------------------------------------------------------------------------------------------------

std::set<const float*> addresses_of(const TensorView<const float, 3>& v) {
  std::set<const float*> all;
  for_each_position(v, [&](Index i, Index j, Index k) { all.insert(&v(i, j, k)); });
  return all;
}

bool share_an_element(const TensorView<const float, 3>& a, const TensorView<const float, 3>& b) {
  const std::set<const float*> in_a = addresses_of(a), in_b = addresses_of(b);
  return std::any_of(in_a.begin(), in_a.end(), [&](const float* p) { return in_b.count(p) != 0; });
}

/// A view made by a few random slices and transposes of one buffer.
TensorView<const float, 3> random_view(Random& random, const Tensor<float, 3>& t) {
  TensorView<const float, 3> v = t.view();
  for (int step = 0; step < 4; ++step) {
    const int d = random.integer(0, 2), e = random.integer(0, 2);
    if (random.chance(0.25)) {
      v = v.transpose(d, e);
    } else {
      const Index from = random_index(random, 0, v.extent(d));
      v = v.slice(d, from, random_index(random, 0, v.extent(d) - from));
    }
  }
  return v;
}

TEST(MayOverlap, NeverMissesAnOverlap) {
  int overlapping = 0, told_apart = 0;
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    const Tensor<float, 3> t(4, 5, 6);
    const TensorView<const float, 3> a = random_view(random, t), b = random_view(random, t);
    const bool overlap = share_an_element(a, b), may = heed::detail::may_overlap(a, b);
    ASSERT_TRUE(may || !overlap) << "seed " << seed;
    ASSERT_EQ(may, heed::detail::may_overlap(b, a)) << "not symmetric, seed " << seed;
    overlapping += overlap;
    told_apart += !may;
  }
  EXPECT_GT(overlapping, 200);
  EXPECT_GT(told_apart, 200);
}

TEST(MayOverlap, TellsColumnRangesOfOneMatrixApartExactly) {
  const Tensor<float, 3> packed(2, 4, 9);
  for (Index a = 0; a <= 9; ++a) {
    for (Index n = 0; a + n <= 9; ++n) {
      for (Index b = 0; b <= 9; ++b) {
        for (Index m = 0; b + m <= 9; ++m) {
          const auto left = packed.view().slice(2, a, n), right = packed.view().slice(2, b, m);
          ASSERT_EQ(heed::detail::may_overlap(left, right), share_an_element(left, right))
              << "columns " << a << " + " << n << " and " << b << " + " << m;
        }
      }
    }
  }
}

TEST(MayOverlap, SeparateBuffersAndEmptyViewsDoNotOverlap) {
  Tensor<float, 2> a(3, 4), b(3, 4);
  EXPECT_FALSE(heed::detail::may_overlap(a.view(), b.view()));
  EXPECT_TRUE(heed::detail::may_overlap(a.view(), a.view()));
  EXPECT_FALSE(heed::detail::may_overlap(a.view(), a.view().slice(0, 1, 0)));
  EXPECT_FALSE(heed::detail::may_overlap(a.view().slice(0, 0, 1), a.view().slice(0, 1, 2)));
}

TEST(MayOverlap, LooksAtBytesWhateverTheTypes) {
  alignas(8) std::array<unsigned char, 64> bytes{};
  const TensorView<const float, 2> floats(reinterpret_cast<const float*>(bytes.data()), {2, 4});
  const TensorView<const double, 2> same(reinterpret_cast<const double*>(bytes.data()), {2, 2});
  const TensorView<const double, 2> behind(reinterpret_cast<const double*>(bytes.data() + 32), {2, 2});
  EXPECT_TRUE(heed::detail::may_overlap(floats, same));
  EXPECT_FALSE(heed::detail::may_overlap(floats, behind));
}

TEST(MayOverlap, KnowsNegativeStrides) {
  Tensor<float, 1> t(10);
  const TensorView<float, 1> reversed_head(t.data() + 4, {5}, {-1});
  EXPECT_TRUE(heed::detail::may_overlap(reversed_head, t.view().slice(0, 0, 1)));
  EXPECT_FALSE(heed::detail::may_overlap(reversed_head, t.view().slice(0, 5, 5)));
}

TEST(MayOverlap, TellsHeadsOfAFusedProjectionApart) {
  // The parts of one buffer, as views (B, H, L, D): all pairs of heads and of q, k, v.
  constexpr Index B = 2, L = 3, H = 2, D = 4;
  Tensor<float, 1> buffer(B * L * 3 * H * D);
  const Index W = 3 * H * D;
  const auto check = [&](const char* layout, const Extents<4>& strides, Index part) {
    const auto view = [&](Index which) {
      return TensorView<float, 4>(buffer.data() + which * part, {B, H, L, D}, strides);
    };
    for (Index i = 0; i < 3; ++i) {
      for (Index j = 0; j < 3; ++j) {
        EXPECT_EQ(heed::detail::may_overlap(view(i), view(j)), i == j) << layout << i << j;
        for (Index g = 0; g < H; ++g) {
          for (Index h = 0; h < H; ++h) {
            const auto head_i = view(i).slice(1, g, 1), head_j = view(j).slice(1, h, 1);
            EXPECT_EQ(heed::detail::may_overlap(head_i, head_j), i == j && g == h) << layout << i << j << g << h;
          }
        }
      }
    }
  };
  check("(B, L, 3HD) ", {L * W, D, W, 1}, H * D);
  check("(B, L, H, 3, D) ", {L * W, 3 * D, W, 1}, D);
  check("(3, B, H, L, D) ", {H * L * D, L * D, D, 1}, B * H * L * D);
  check("(B, L, D, H, 3) ", {L * W, 3, W, 3 * H}, 1);
}

TEST(MayOverlap, IsExactForStridedViewsOfOneBuffer) {
  // Arbitrary small strides, of either sign, also 0.
  int overlapping = 0, apart = 0;
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    std::array<float, 512> buffer{};
    const auto view = [&] {
      Extents<3> extents{}, strides{};
      for (std::size_t d = 0; d < 3; ++d) {
        extents[d] = random_index(random, 1, 4);
        strides[d] = random_index(random, -20, 20);
      }
      return TensorView<const float, 3>(buffer.data() + random.integer(200, 300), extents, strides);
    };
    const auto a = view(), b = view();
    const bool overlap = share_an_element(a, b);
    ASSERT_EQ(heed::detail::may_overlap(a, b), overlap) << "seed " << seed;
    (overlap ? overlapping : apart) += 1;
  }
  EXPECT_GT(overlapping, 1000);
  EXPECT_GT(apart, 1000);
}

TEST(MayOverlap, TellsElementsOfDifferentTypesApart) {
  // Pairs of a float and a double, 16 bytes each: floats at byte 0, doubles at byte 8.
  alignas(8) std::array<unsigned char, 64> bytes{};
  const TensorView<const float, 1> floats(reinterpret_cast<const float*>(bytes.data()), {4}, {4});
  const TensorView<const double, 1> doubles(reinterpret_cast<const double*>(bytes.data() + 8), {4}, {2});
  const TensorView<const float, 1> inside(reinterpret_cast<const float*>(bytes.data() + 12), {4}, {4});
  EXPECT_FALSE(heed::detail::may_overlap(floats, doubles));
  EXPECT_TRUE(heed::detail::may_overlap(doubles, inside));
  EXPECT_FALSE(heed::detail::may_overlap(floats, inside));
}

TEST(MayOverlap, TakesBroadcastViewsOfHugeExtents) {
  constexpr Index huge = std::numeric_limits<int>::max();
  std::array<float, 2> values{};
  const TensorView<const float, 3> a(values.data(), {huge, huge, huge}, {0, 0, 0});
  const TensorView<const float, 3> b(values.data() + 1, {huge, huge, huge}, {0, 0, 0});
  EXPECT_TRUE(heed::detail::may_overlap(a, a));
  EXPECT_FALSE(heed::detail::may_overlap(a, b));
  EXPECT_FALSE(a.empty());
  EXPECT_EQ(a.size(), std::numeric_limits<Index>::max());
  EXPECT_EQ((TensorView<const float, 3>(values.data(), {huge, huge, 0}, {0, 0, 0}).size()), 0);
}

TEST(MayOverlap, AnswersSoonForAwkwardStrides) {
  // Deciding these exactly would take many tries; the answer may then be true, but never a wrong false.
  std::vector<float> buffer(4'000'000);
  const TensorView<const float, 4> a(buffer.data(), {60, 60, 60, 60}, {1009, 1013, 1019, 1021});
  const TensorView<const float, 4> b(buffer.data() + 30000, {60, 60, 60, 60}, {1031, 1033, 1039, 1049});
  EXPECT_TRUE(heed::detail::may_overlap(a, b));
}

}  // namespace
