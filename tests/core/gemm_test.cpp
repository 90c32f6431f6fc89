// SPDX-License-Identifier: MIT
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/gemm.hpp>

#include "common/allocation_counter.hpp"
#include "common/error_budget.hpp"
#include "common/gemm_cases.hpp"
#include "common/message_of.hpp"
#include "common/random_inputs.hpp"
#include "common/views.hpp"

namespace {

using heed::Activation;
using heed::Context;
using heed::Epilogue;
using heed::Index;
using heed::PackedMatrix;
using heed::Tensor;
using heed::TensorView;
using heed_test::EpilogueCase;
using heed_test::GemmCase;
using heed_test::Random;
using heed_test::same_bits;
using heed_test::Spaced;

template <class T>
class GemmTest : public testing::Test {
 protected:
  Context context_;
};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(GemmTest, Scalars);

/// Checks a product against the naive one, with B packed and not.
template <class T>
void expect_right(const GemmCase<T>& p, Context& context) {
  SCOPED_TRACE(p.text());
  const Tensor<T, 2> packed = p.packed(context);
  EXPECT_TRUE(heed_test::within_budget(packed, heed_test::naive<T>(p), heed_test::naive<long double>(p)));
  EXPECT_TRUE(same_bits(p.unpacked(context), packed));
}

TYPED_TEST(GemmTest, AllSmallShapes) {
  using T = TypeParam;
  for (int i = 0; i < heed_test::effort(3000); ++i) {
    SCOPED_TRACE(i);
    Random random(1, i);
    const Index m = random.integer(0, 40), n = random.integer(0, 40), k = random.integer(0, 40);
    expect_right(GemmCase<T>(m, n, k, EpilogueCase::random(random), random), this->context_);
    if (this->HasFailure()) return;
  }
}

TYPED_TEST(GemmTest, LargeOddShapes) {
  using T = TypeParam;
  const std::vector<std::vector<Index>> shapes = {{1, 1001, 1577}, {2, 517, 769}, {7, 131, 3001}, {25, 258, 385},
                                                  {97, 65, 1537},  {101, 97, 97}, {300, 33, 129}, {193, 301, 10}};
  Random random(2);
  for (const auto& shape : shapes) {
    for (int i = 0; i < heed_test::effort(3); ++i) {
      expect_right(GemmCase<T>(shape[0], shape[1], shape[2], EpilogueCase::random(random), random), this->context_);
    }
  }
}

TYPED_TEST(GemmTest, AnyStridesGiveTheBitsOfDenseOperandsAndTouchNoGap) {
  using T = TypeParam;
  for (int i = 0; i < heed_test::effort(1000); ++i) {
    SCOPED_TRACE(i);
    Random random(3, i);
    const Index m = random.integer(1, 40), n = random.integer(1, 70), k = random.integer(0, 40);
    const GemmCase<T> p(m, n, k, EpilogueCase::random(random), random);
    SCOPED_TRACE(p.text());
    const Tensor<T, 2> expected = p.packed(this->context_);
    const Spaced<T, 2> a(p.a.view(), random), b(p.b.view(), random), residual(p.residual.view(), random);

    const Spaced<T, 2> unpacked(p.former.view(), random);
    heed::gemm<T>(a.view(), b.view(), unpacked.view(), p.options_with(residual.view()), this->context_);
    ASSERT_TRUE(same_bits(unpacked.view(), expected.view()));
    ASSERT_TRUE(unpacked.gaps_are_untouched());

    const Spaced<T, 2> packed(p.former.view(), random);
    heed::gemm<T>(a.view(), PackedMatrix<T>::pack(b.view()), packed.view(), p.options_with(residual.view()),
                  this->context_);
    ASSERT_TRUE(same_bits(packed.view(), expected.view()));
    ASSERT_TRUE(packed.gaps_are_untouched());
  }
}

TYPED_TEST(GemmTest, StridesOfZeroRepeatWhatIsRead) {
  using T = TypeParam;
  Random random(4);
  const Tensor<T, 1> row = heed_test::normal_tensor<T, 1>({20}, random),
                     tail = heed_test::normal_tensor<T, 1>({50}, random);
  const TensorView<const T, 2> a(row.data(), {9, 20}, {0, 1}), b(row.data(), {20, 50}, {1, 0});
  const TensorView<const T, 2> residual(tail.data(), {9, 50}, {0, 1});
  Tensor<T, 2> c(9, 50), one(1, 1);
  heed::gemm<T>(a, b, c.view(), {.residual = residual}, this->context_);
  heed::gemm<T>(a.slice(0, 0, 1), b.slice(1, 0, 1), one.view(), {}, this->context_);
  for (Index i = 0; i < 9; ++i) {
    for (Index j = 0; j < 50; ++j) EXPECT_EQ(c(i, j), one(0, 0) + tail(j));
  }
}

// Each row of a batch, and any run of rows, has the bits that it has alone: neither the tile's height nor its place in
// it matters. The same for columns, whatever panel they are in.
TYPED_TEST(GemmTest, PartsHaveTheBitsOfTheWhole) {
  using T = TypeParam;
  for (int i = 0; i < heed_test::effort(150); ++i) {
    SCOPED_TRACE(i);
    Random random(5, i);
    const Index m = random.integer(1, i % 5 == 0 ? 210 : 40), n = random.integer(1, 150);
    const Index k = random.chance(0.3) ? random.integer(300, 2500) : random.integer(1, 60);
    const GemmCase<T> p(m, n, k, EpilogueCase::random(random), random);
    SCOPED_TRACE(p.text());
    const Tensor<T, 2> whole = p.packed(this->context_);
    const auto packed = PackedMatrix<T>::pack(p.b);

    for (Index first = 0, rows = 1; first < m; first += rows) {
      rows = std::min<Index>(m - first, first < 3 ? 1 : random.integer(1, 20));
      Tensor<T, 2> c = p.former;
      Epilogue<T> e = p.options();
      if (e.residual.data()) e.residual = e.residual.slice(0, first, rows);
      heed::gemm<T>(p.a.view().slice(0, first, rows), packed, c.view().slice(0, first, rows), e, this->context_);
      ASSERT_TRUE(same_bits(c.view().slice(0, first, rows), whole.view().slice(0, first, rows))) << "row " << first;
    }
    for (Index first = 0, columns = 1; first < n; first += columns) {
      columns = std::min<Index>(n - first, random.integer(1, 80));
      Tensor<T, 2> c = p.former;
      Epilogue<T> e = p.options();
      if (e.bias) e.bias += first;
      if (e.residual.data()) e.residual = e.residual.slice(1, first, columns);
      heed::gemm<T>(p.a, p.b.view().slice(1, first, columns), c.view().slice(1, first, columns), e, this->context_);
      ASSERT_TRUE(same_bits(c.view().slice(1, first, columns), whole.view().slice(1, first, columns)))
          << "column " << first;
    }
  }
}

TYPED_TEST(GemmTest, DepthZeroLeavesTheEpilogue) {
  using T = TypeParam;
  Random random(6);
  for (int i = 0; i < 40; ++i) {
    expect_right(GemmCase<T>(random.integer(1, 20), random.integer(1, 70), 0, EpilogueCase::random(random), random),
                 this->context_);
  }
}

TYPED_TEST(GemmTest, EmptyOutputs) {
  using T = TypeParam;
  Tensor<T, 2> none(0, 5), thin(5, 0);
  const Tensor<T, 2> no_rows(0, 3), wide(3, 5), rows(5, 3), no_columns(3, 0);
  heed::gemm<T>(no_rows, wide, none.view(), {}, this->context_);
  heed::gemm<T>(rows, no_columns, thin.view(), {}, this->context_);
  heed::gemm<T>(rows, PackedMatrix<T>::pack(no_columns), thin.view(), {}, this->context_);
  EXPECT_EQ(this->context_.workspace().peak(), 0u);
}

TYPED_TEST(GemmTest, NaNShowsInItsRowOrColumnAndNowhereElse) {
  using T = TypeParam;
  const T nan = std::numeric_limits<T>::quiet_NaN(), inf = std::numeric_limits<T>::infinity();
  for (const Activation activation : {Activation::None, Activation::ReLU, Activation::GELU, Activation::SiLU}) {
    for (const T bad : {nan, inf}) {
      Random random(7);
      GemmCase<T> p(11, 45, 30, {.activation = activation}, random);
      const Tensor<T, 2> clean = p.packed(this->context_);
      p.a(4, 29) = bad;
      p.b(0, 44) = nan;
      const Tensor<T, 2> c = p.packed(this->context_);
      for (Index i = 0; i < 11; ++i) {
        for (Index j = 0; j < 45; ++j) {
          if (j == 44 || (i == 4 && std::isnan(bad)))
            EXPECT_TRUE(std::isnan(c(i, j))) << i << " " << j;
          else if (i == 4)
            EXPECT_TRUE(std::isinf(c(i, j)) || c(i, j) == 0) << c(i, j);
          else
            EXPECT_EQ(c(i, j), clean(i, j)) << i << " " << j;
        }
      }
    }
  }
}

TYPED_TEST(GemmTest, ColumnsOfOneBufferDoNotCountAsOverlap) {
  using T = TypeParam;
  Random random(8);
  const GemmCase<T> p(6, 5, 7, {.residual = true}, random);
  Tensor<T, 2> buffer(6, 20);
  const auto a = buffer.view().slice(1, 0, 7), c = buffer.view().slice(1, 7, 5),
             residual = buffer.view().slice(1, 12, 5);
  for (Index i = 0; i < 6; ++i) {
    for (Index k = 0; k < 7; ++k) a(i, k) = p.a(i, k);
    for (Index j = 0; j < 5; ++j) residual(i, j) = p.residual(i, j);
  }
  heed::gemm<T>(a, p.b, c, {.residual = residual}, this->context_);
  EXPECT_TRUE(same_bits(c, p.packed(this->context_)));
}

TYPED_TEST(GemmTest, AWarmContextAllocatesNothing) {
  if (!heed_test::counts_allocations()) GTEST_SKIP() << "allocations can't be counted on this platform";
  using T = TypeParam;
  Random random(9);
  for (const Index m : {1, 5, 150}) {
    const GemmCase<T> p(m, 200, 900, {.bias = true, .residual = true, .activation = Activation::GELU}, random);
    const auto packed = PackedMatrix<T>::pack(p.b);
    Tensor<T, 2> c(m, 200);
    const auto run = [&] {
      heed::gemm<T>(p.a, packed, c.view(), p.options(), this->context_);
      heed::gemm<T>(p.a, p.b, c.view(), p.options(), this->context_);
    };
    run();
    EXPECT_EQ(heed_test::allocations_of(run), 0) << m;
  }
}

TYPED_TEST(GemmTest, PackedMatrixTellsWhatItHolds) {
  using T = TypeParam;
  PackedMatrix<T> packed;
  EXPECT_TRUE(packed.empty());
  EXPECT_EQ(packed.bytes(), 0u);
  Random random(10);
  const GemmCase<T> p(3, 33, 20, {}, random);
  packed = PackedMatrix<T>::pack(p.b);
  EXPECT_FALSE(packed.empty());
  EXPECT_EQ(packed.depth(), 20);
  EXPECT_EQ(packed.columns(), 33);
  EXPECT_GE(packed.bytes(), 20 * 33 * sizeof(T));
  EXPECT_LE(packed.bytes(), 20 * (33 + 63) * sizeof(T));

  const PackedMatrix<T> copy = packed, moved = std::move(packed);
  Tensor<T, 2> c(3, 33), d(3, 33);
  heed::gemm<T>(p.a, copy, c.view(), {}, this->context_);
  heed::gemm<T>(p.a, moved, d.view(), {}, this->context_);
  EXPECT_TRUE(same_bits(c, d));
}

TEST(Gemm, DeducesTheTypeFromTheOutput) {
  Tensor<float, 2> a(2, 3), b(3, 4), c(2, 4);
  a(1, 2) = 2;
  b(2, 3) = 5;
  const std::vector<float> bias = {1, 1, 1, 1};
  Context context;
  heed::gemm(a, b, c.view(), {.bias = bias.data()}, context);
  EXPECT_EQ(c(1, 3), 11);
  heed::gemm(a.view(), PackedMatrix<float>::pack(b), c.view(), {.accumulate = true}, context);
  EXPECT_EQ(c(1, 3), 21);
  EXPECT_EQ(c(0, 0), 1);
}

TEST(Gemm, RefusesWhatDoesNotFit) {
  Tensor<float, 2> a(2, 3), b(4, 5), c(2, 5), other(2, 6);
  Context context;
  using heed_test::has_all;
  using heed_test::message_of;
  EXPECT_TRUE(has_all(message_of<heed::ShapeError>([&] { heed::gemm<float>(a, b, c.view(), {}, context); }),
                      {"heed::gemm", "a", "(2, 3)", "k = 4"}));
  EXPECT_TRUE(has_all(
      message_of<heed::ShapeError>([&] { heed::gemm<float>(a, PackedMatrix<float>::pack(b), c.view(), {}, context); }),
      {"heed::gemm", "(2, 3)", "k = 4"}));
  Tensor<float, 2> fits(3, 5);
  EXPECT_TRUE(has_all(message_of<heed::ShapeError>([&] { heed::gemm<float>(a, fits, other.view(), {}, context); }),
                      {"heed::gemm", "c", "(2, 6)", "(2, 5)"}));
  EXPECT_TRUE(
      has_all(message_of<heed::ShapeError>([&] { heed::gemm<float>(a, fits, c.view(), {.residual = other}, context); }),
              {"heed::gemm", "residual", "(2, 6)", "(2, 5)"}));
  const TensorView<float, 2> repeated(c.data(), {2, 5}, {0, 1});
  EXPECT_TRUE(has_all(message_of<heed::ShapeError>([&] { heed::gemm<float>(a, fits, repeated, {}, context); }),
                      {"heed::gemm", "c", "(0, 1)", "stride of 0"}));
}

TEST(Gemm, RefusesToOverwriteWhatItReads) {
  Tensor<float, 2> x(3, 3), y(3, 3), z(3, 3);
  Context context;
  using heed_test::has_all;
  using heed_test::message_of;
  EXPECT_TRUE(has_all(message_of<heed::ValueError>([&] { heed::gemm<float>(x, y, x.view(), {}, context); }),
                      {"heed::gemm", "overlap a"}));
  EXPECT_TRUE(has_all(message_of<heed::ValueError>([&] { heed::gemm<float>(x, y, y.view(), {}, context); }),
                      {"heed::gemm", "overlap b"}));
  EXPECT_TRUE(
      has_all(message_of<heed::ValueError>([&] { heed::gemm<float>(x, y, z.view(), {.residual = z}, context); }),
              {"heed::gemm", "overlap residual", "accumulate"}));
}

}  // namespace
