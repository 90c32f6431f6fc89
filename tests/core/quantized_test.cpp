// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/quantized.hpp>

#include "common/message_of.hpp"
#include "common/random_inputs.hpp"

namespace {

using heed::Epilogue;
using heed::Index;
using heed::QuantizedMatrix;
using heed::Tensor;
using heed::TensorView;
using heed::WeightFormat;
using heed_test::message_of;

constexpr WeightFormat kFormats[] = {WeightFormat::Float16, WeightFormat::BFloat16, WeightFormat::Q8_0,
                                     WeightFormat::Q4_0, WeightFormat::Q4_1};
constexpr WeightFormat kBlockFormats[] = {WeightFormat::Q8_0, WeightFormat::Q4_0, WeightFormat::Q4_1};

Tensor<float, 2> random_matrix(Index rows, Index columns, heed_test::Random& random) {
  Tensor<float, 2> x(rows, columns);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<float>(random.normal());
  return x;
}

bool same_bits(const TensorView<const float, 2>& a, const TensorView<const float, 2>& b) {
  for (Index i = 0; i < a.extent(0); ++i) {
    for (Index j = 0; j < a.extent(1); ++j) {
      if (std::bit_cast<std::uint32_t>(a(i, j)) != std::bit_cast<std::uint32_t>(b(i, j))) return false;
    }
  }
  return a.extents() == b.extents();
}

void put_half(std::vector<std::byte>& bytes, std::size_t at, float x) {
  const heed::half h(x);
  std::memcpy(bytes.data() + at, &h, sizeof h);
}

// Blocks by hand, as ggml's files hold them.
TEST(Quantized, BlocksOfFiles) {
  float row[32];
  std::vector<std::byte> q8(34);
  put_half(q8, 0, 0.5f);
  for (int i = 0; i < 32; ++i)
    q8[static_cast<std::size_t>(2 + i)] = static_cast<std::byte>(i == 31 ? -128 : 4 * i - 60);
  QuantizedMatrix matrix(WeightFormat::Q8_0, 1, 32);
  matrix.set_blocks(0, 1, q8.data());
  matrix.read_row(0, row);
  for (int i = 0; i < 31; ++i) EXPECT_EQ(row[i], 0.5f * static_cast<float>(4 * i - 60));
  EXPECT_EQ(row[31], -64.f);

  std::vector<std::byte> q4(18);
  put_half(q4, 0, -0.25f);
  for (int i = 0; i < 16; ++i) q4[static_cast<std::size_t>(2 + i)] = static_cast<std::byte>(i | (15 - i) << 4);
  matrix = QuantizedMatrix(WeightFormat::Q4_0, 1, 32);
  matrix.set_blocks(0, 1, q4.data());
  matrix.read_row(0, row);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(row[i], -0.25f * static_cast<float>(i - 8)) << "the lower halves come first";
    EXPECT_EQ(row[16 + i], -0.25f * static_cast<float>(7 - i));
  }

  std::vector<std::byte> q41(20);
  put_half(q41, 0, 0.125f);
  put_half(q41, 2, -3.f);
  for (int i = 0; i < 16; ++i) q41[static_cast<std::size_t>(4 + i)] = static_cast<std::byte>(i | (15 - i) << 4);
  matrix = QuantizedMatrix(WeightFormat::Q4_1, 1, 32);
  matrix.set_blocks(0, 1, q41.data());
  matrix.read_row(0, row);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(row[i], 0.125f * static_cast<float>(i) - 3.f);
    EXPECT_EQ(row[16 + i], 0.125f * static_cast<float>(15 - i) - 3.f);
  }
}

TEST(Quantized, ProductsHaveTheBitsOfTheDequantizedWeight) {
  heed_test::Random random(1);
  heed::ThreadPool pool(3);
  for (int i = 0; i < 150; ++i) {
    const WeightFormat format = kFormats[random.integer(0, 4)];
    const Index block = heed::detail::facts_of(format).block;
    // Beyond 768 steps the depth is cut, within a block or a word.
    const Index depth = block == 1 ? random.integer(1, 100) : 32 * random.pick<Index>({1, 2, 5, 25, 49});
    const Index columns = random.integer(1, 150), rows = random.pick<Index>({1, 2, 3, 4, 5, 7, 8, 16, 17, 40});
    const Tensor<float, 2> w = random_matrix(columns, depth, random);
    const QuantizedMatrix quantized = QuantizedMatrix::quantize(w, format);
    const Tensor<float, 2> numbers = quantized.dequantize();
    // x of any strides, c with gaps between its rows.
    const Tensor<float, 2> rows_first = random_matrix(rows, depth, random),
                           columns_first = random_matrix(depth, rows, random);
    TensorView<const float, 2> x = rows_first.view();
    if (random.chance(0.5)) x = columns_first.view().transpose(0, 1);
    const Tensor<float, 2> bias = random_matrix(1, columns, random), residual = random_matrix(rows, columns, random);
    Epilogue<float> epilogue{.accumulate = random.chance(0.3)};
    if (random.chance(0.5)) epilogue.bias = bias.data();
    if (random.chance(0.5)) epilogue.residual = residual.view();
    epilogue.activation = random.pick({heed::Activation::None, heed::Activation::ReLU, heed::Activation::SiLU});
    Tensor<float, 2> memory = random_matrix(rows, columns + 3, random), expected = memory;
    heed::Context serial, threads(pool);
    heed::gemm<float>(x, numbers.view().transpose(0, 1), expected.view().slice(1, 1, columns), epilogue, serial);
    heed::gemm(x, quantized.panels(0, columns), memory.view().slice(1, 1, columns), epilogue,
               random.chance(0.5) ? serial : threads);
    EXPECT_TRUE(same_bits(memory.view(), expected.view()))
        << to_string(format) << ' ' << rows << " x " << depth << " x " << columns;
  }
}

// Every factor that a half can be, the subnormal ones among them, with every code.
TEST(Quantized, EveryFactorIsExpandedExactly) {
  Tensor<float, 2> identity(32, 32), product(32, 8);
  for (Index i = 0; i < 32; ++i) {
    for (Index j = 0; j < 32; ++j) identity(i, j) = i == j ? 1.f : 0.f;
  }
  heed::Context context;
  for (const WeightFormat format : kBlockFormats) {
    const auto bytes = static_cast<std::size_t>(heed::detail::facts_of(format).block_bytes);
    for (std::uint32_t bits = 0; bits < 0x10000; bits += 8) {
      QuantizedMatrix matrix(format, 8, 32);
      for (std::uint32_t row = 0; row < 8; ++row) {
        std::vector<std::byte> block(bytes);
        // The smallest number of Q4_1 has the factor's bits in another order.
        const auto d = static_cast<std::uint16_t>(bits + row), m = static_cast<std::uint16_t>(d * 40503u & 0xfbffu);
        for (std::size_t i = 2; i < bytes; ++i) block[i] = static_cast<std::byte>(i * 37 + bits / 8 * 11 + row * 5);
        std::memcpy(block.data(), &d, 2);
        if (format == WeightFormat::Q4_1) std::memcpy(block.data() + 2, &m, 2);
        matrix.set_blocks(row, 1, block.data());
      }
      const Tensor<float, 2> numbers = matrix.dequantize();
      if (!std::all_of(numbers.data(), numbers.data() + numbers.size(),
                       [](float x) { return heed::detail::is_finite(x); })) {
        continue;
      }
      heed::gemm(identity, matrix.panels(0, 8), product.view(), {}, context);
      for (Index row = 0; row < 8; ++row) {
        for (Index i = 0; i < 32; ++i) ASSERT_EQ(product(i, row), numbers(row, i)) << to_string(format) << ' ' << bits;
      }
    }
  }
}

TEST(Quantized, TheQuantizerTakesTheNearestNumber) {
  heed_test::Random random(2);
  for (int i = 0; i < 50; ++i) {
    Tensor<float, 2> x = random_matrix(3, 64, random);
    const float scale = static_cast<float>(std::pow(10, random.integer(-3, 3)));
    for (Index j = 0; j < x.size(); ++j) x.data()[j] *= scale;
    for (const WeightFormat format : kFormats) {
      const QuantizedMatrix matrix = QuantizedMatrix::quantize(x, format);
      float row[64];
      for (Index r = 0; r < 3; ++r) {
        matrix.read_row(r, row);
        for (Index b = 0; b < 64; b += 32) {
          const auto [low, high] = std::minmax_element(&x(r, b), &x(r, b) + 32);
          const float most = std::max(-*low, *high);
          for (Index j = b; j < b + 32; ++j) {
            // Half a step, and the rounding of the factor to half, which the furthest code multiplies.
            const float step = format == WeightFormat::Q8_0   ? most / 127
                               : format == WeightFormat::Q4_0 ? most / 8
                               : format == WeightFormat::Q4_1
                                   ? (*high - *low) / 15
                                   : std::abs(x(r, j)) * (format == WeightFormat::Float16 ? 0x1p-10f : 0x1p-7f);
            // 7 is the largest code of Q4_0 on the other side of its furthest number.
            const float slack = format == WeightFormat::Q4_0 ? step / 2 : most * 0x1p-10f + 0x1p-24f;
            EXPECT_LE(std::abs(row[j] - x(r, j)), step / 2 * 1.001f + slack) << to_string(format);
          }
        }
      }
      const heed::QuantizationError error = heed::quantization_error(x, format);
      EXPECT_GT(error.largest, 0);
      EXPECT_LT(error.root_mean_square, error.largest);
    }
  }
  Tensor<float, 2> zeros(1, 32);
  std::fill_n(zeros.data(), 32, 0.f);
  for (const WeightFormat format : kFormats) {
    const Tensor<float, 2> back = QuantizedMatrix::quantize(zeros, format).dequantize();
    for (Index i = 0; i < 32; ++i) EXPECT_EQ(back(0, i), 0.f);
  }
}

TEST(Quantized, CopiesAreTheirOwn) {
  heed_test::Random random(3);
  const Tensor<float, 2> a = random_matrix(5, 32, random), b = random_matrix(1, 32, random);
  QuantizedMatrix first = QuantizedMatrix::quantize(a, WeightFormat::Q8_0);
  const QuantizedMatrix second = first;
  const Tensor<float, 2> before = second.dequantize();
  std::vector<std::byte> block(34, std::byte{1});
  first.set_blocks(2, 1, block.data());
  const Tensor<float, 2> changed = first.dequantize(), unchanged = second.dequantize();
  EXPECT_TRUE(same_bits(unchanged, before));
  EXPECT_FALSE(same_bits(changed, before));
  EXPECT_EQ(second.bytes(), first.bytes());
}

TEST(Quantized, MistakesAreNamed) {
  EXPECT_EQ(message_of<heed::ShapeError>([] { QuantizedMatrix(WeightFormat::Q4_1, 3, 33); }),
            "heed::QuantizedMatrix: a matrix (3, 33) can't be Q4_1: it needs rows, and a multiple of 32 columns");
  EXPECT_THROW(QuantizedMatrix(WeightFormat::Float16, 0, 3), heed::ShapeError);
  Tensor<float, 2> x(1, 32);
  std::fill_n(x.data(), 32, 1.f);
  x(0, 7) = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(message_of<heed::ValueError>([&] {
              QuantizedMatrix::quantize(x, WeightFormat::Q4_0);
            }).find("weight (0, 7) is nan, which can't be quantized"),
            std::string::npos);
  x(0, 7) = 1e30f;
  for (const WeightFormat format :
       {WeightFormat::Float16, WeightFormat::Q8_0, WeightFormat::Q4_0, WeightFormat::Q4_1}) {
    EXPECT_NE(message_of<heed::ValueError>([&] { QuantizedMatrix::quantize(x, format); }).find("too large for"),
              std::string::npos);
  }
  EXPECT_EQ(QuantizedMatrix::quantize(x, WeightFormat::BFloat16).rows(), 1);
  const QuantizedMatrix matrix(WeightFormat::Q8_0, 4, 32);
  Tensor<float, 2> a(2, 31), c(2, 4);
  heed::Context context;
  EXPECT_THROW(heed::gemm(a, matrix.panels(0, 4), c.view(), {}, context), heed::ShapeError);
}

}  // namespace
