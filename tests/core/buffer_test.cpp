// SPDX-License-Identifier: MIT
// Memory that grows, moves, begins as zeros, and counts its elements in 64 bits.
#include <common/allocation_counter.hpp>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include <heed/core/buffer.hpp>
#include <heed/nn/parameter.hpp>

namespace {

using heed::Buffer;
using heed::Extents;
using heed::Index;

static_assert(!std::is_copy_constructible_v<Buffer<float>> && !std::is_copy_assignable_v<Buffer<float>>);
static_assert(std::is_nothrow_move_constructible_v<Buffer<float>>);

TEST(Buffer, BeginsAsAlignedZeros) {
  Buffer<double> buffer;
  EXPECT_EQ(buffer.bytes(), 0u);
  const auto view = buffer.view<2>({3, 5});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data()) % 64, 0u);
  EXPECT_EQ(buffer.bytes(), 15 * sizeof(double));
  for (Index i = 0; i < 15; ++i) EXPECT_EQ(view.data()[i], 0.0);
}

TEST(Buffer, GrowsAndNeverShrinks) {
  Buffer<float> buffer;
  float* const large = buffer.view<1>({1000}).data();
  large[7] = 3;
  EXPECT_EQ(buffer.view<2>({4, 5}).data(), large);
  EXPECT_EQ(buffer.data()[7], 3.f) << "what it held stays";
  EXPECT_EQ(buffer.size(), 1000);
  EXPECT_EQ(buffer.view<1>({2000}).data()[7], 0.f) << "grown memory is zero";
}

TEST(Buffer, MovesItsMemory) {
  Buffer<float> from;
  float* const memory = from.view<1>({8}).data();
  Buffer<float> to = std::move(from);
  EXPECT_EQ(to.data(), memory);
  EXPECT_EQ(from.size(), 0);
  EXPECT_EQ(from.data(), nullptr);
  from = std::move(to);
  EXPECT_EQ(from.data(), memory);
  EXPECT_EQ(from.view<1>({8}).data(), memory);
}

TEST(Buffer, RefusesExtentsBeyondInt) {
  Buffer<float> buffer;
  EXPECT_THROW(buffer.view<1>({Index{1} << 31}), heed::ShapeError);
  EXPECT_THROW(buffer.view<1>({-1}), heed::ShapeError);
}

// Sanitizers end the program when it asks for this much.
#if !defined(HEED_TEST_SANITIZED) && PTRDIFF_MAX > INT32_MAX
TEST(Buffer, KeepsWhatItHasWhenMemoryRunsOut) {
  Buffer<float> buffer;
  float* const memory = buffer.view<1>({8}).data();
  EXPECT_THROW(buffer.view<2>({(Index{1} << 31) - 1, Index{1} << 27}), std::bad_alloc);
  EXPECT_EQ(buffer.data(), memory);
  EXPECT_EQ(buffer.size(), 8);
}
#endif

#if PTRDIFF_MAX > INT32_MAX
TEST(Buffer, HoldsMoreElementsThanInt) {
  const Index rows = Index{1} << 16, columns = (Index{1} << 15) + 1;
  Buffer<std::int8_t> buffer;
  const auto view = buffer.view<2>({rows, columns});
  EXPECT_EQ(buffer.size(), rows * columns);
  EXPECT_GT(buffer.size(), Index{1} << 31);
  view(rows - 1, columns - 1) = 5;
  EXPECT_EQ(view.data()[rows * columns - 1], 5);
  EXPECT_EQ(view(rows / 2, 0), 0) << "untouched pages read as zero";
}

TEST(Buffer, AParameterHoldsMoreElementsThanInt) {
  heed::Parameter<float> table((Index{1} << 17), (Index{1} << 14) + 1);
  EXPECT_GT(table.size(), Index{1} << 31);
  table.mutable_matrix()((Index{1} << 17) - 1, Index{1} << 14) = 2;
  EXPECT_EQ(table.value()(table.size() - 1), 2.f);
}
#endif

TEST(Buffer, ParametersCopyTheirMemory) {
  heed::Parameter<float> a(2, 3);
  a.mutable_matrix()(1, 2) = 4;
  a.grad()(0) = 1;
  heed::Parameter<float> b = a;
  a.mutable_matrix()(1, 2) = 5;
  EXPECT_EQ(b.matrix()(1, 2), 4.f);
  EXPECT_EQ(b.grad()(0), 1.f);
  b = a;
  EXPECT_EQ(b.matrix()(1, 2), 5.f);
  EXPECT_NE(a.value().data(), b.value().data());
}

TEST(NotWanted, IsAnEmptyViewOfAnyKind) {
  const auto takes = [](heed::TensorView<float, 3> dx, heed::TensorView<const double, 2> dy) {
    return dx.data() == nullptr && dx.empty() && dy.data() == nullptr && dy.empty();
  };
  EXPECT_TRUE(takes(heed::kNotWanted, heed::kNotWanted));
}

}  // namespace
