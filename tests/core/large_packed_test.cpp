// SPDX-License-Identifier: MIT
// A packed weight of more than 2^31 elements.
#include <cstdint>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include <heed/core/context.hpp>
#include <heed/core/gemm.hpp>
#include <heed/core/tensor.hpp>

#include "common/allocation_counter.hpp"

namespace {

using heed::Index;
using heed::Tensor;
using heed::TensorView;

/// Bytes that the system can give without swapping; 0 if it does not say.
[[maybe_unused]] long long available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  long long kilobytes = 0;
  while (file >> word) {
    if (word == "MemAvailable:" && file >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

TEST(LargePackedMatrix, HoldsMoreElementsThanInt) {
#if defined(HEED_TEST_SANITIZED)
  GTEST_SKIP() << "sanitizers multiply the memory";
#elif PTRDIFF_MAX <= INT32_MAX
  GTEST_SKIP() << "an address has 32 bits";
#else
  constexpr Index depth = Index{1} << 16, columns = (Index{1} << 15) + 1;
  if (available_memory() < 2 * depth * columns * static_cast<Index>(sizeof(float)))
    GTEST_SKIP() << "takes 8 GB of memory";
  // Every row of b is this one, so that only the packed copy takes memory.
  Tensor<float, 1> row(columns);
  for (Index i = 0; i < columns; ++i) row.data()[i] = static_cast<float>(i % 7);
  const auto packed = heed::PackedMatrix<float>::pack(TensorView<const float, 2>(row.data(), {depth, columns}, {0, 1}));
  EXPECT_GT(static_cast<Index>(packed.bytes() / sizeof(float)), Index{1} << 31);

  Tensor<float, 2> a(1, depth), c(1, columns);
  a(0, 0) = 1;
  a(0, depth - 1) = 2;
  heed::Context context;
  heed::gemm(a.view(), packed, c.view(), {}, context);
  for (Index i = 0; i < columns; ++i) ASSERT_EQ(c(0, i), 3 * row(i)) << i;
#endif
}

}  // namespace
