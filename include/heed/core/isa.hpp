// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The sizes that the kernels take from the instruction set. They are chosen by measurement: larger register tiles
/// spill, smaller ones wait for loads. docs/guide/instruction-sets.md explains how to add an instruction set.

#include <heed/core/config.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// How the kernels use one instruction set. None of these changes the order in which a sum is added up.
struct InstructionSet {
  /// Vector registers.
  int registers;
  /// The register tile of gemm: rows × vectors accumulators, next to the vectors of one row of B and one element of A.
  int product_rows, product_vectors;
  /// Keys, or columns of V, that attention computes at once for one register of queries, and for two.
  int lane_rows, lane_rows_of_two;
  /// Registers whose exponentials are computed at once.
  int exponentials;
  /// The register tile of the sums dk and dv: keys × registers.
  int outer_rows, outer_columns;
};

#if defined(EIGEN_VECTORIZE_AVX512)
// 12 and 14 rows of a product were no faster than 8, and took longer to compile.
inline constexpr InstructionSet kIsa{.registers = 32,
                                     .product_rows = 8,
                                     .product_vectors = 2,
                                     .lane_rows = 8,
                                     .lane_rows_of_two = 8,
                                     .exponentials = 8,
                                     .outer_rows = 6,
                                     .outer_columns = 4};
#elif defined(EIGEN_VECTORIZE_AVX)
inline constexpr InstructionSet kIsa{.registers = 16,
                                     .product_rows = 6,
                                     .product_vectors = 2,
                                     .lane_rows = 8,
                                     .lane_rows_of_two = 6,
                                     .exponentials = 4,
                                     .outer_rows = 6,
                                     .outer_columns = 2};
#elif defined(EIGEN_VECTORIZE_NEON) && defined(__aarch64__)
// g++ keeps all elements of A of a step in registers at once.
inline constexpr InstructionSet kIsa{.registers = 32,
                                     .product_rows = 5,
                                     .product_vectors = 4,
                                     .lane_rows = 8,
                                     .lane_rows_of_two = 8,
                                     .exponentials = 8,
                                     .outer_rows = 6,
                                     .outer_columns = 4};
#else
// SSE, 32-bit NEON, no vectors. Multiply and add are two instructions and need a temporary.
inline constexpr InstructionSet kIsa{.registers = 16,
                                     .product_rows = 2,
                                     .product_vectors = 4,
                                     .lane_rows = 8,
                                     .lane_rows_of_two = 6,
                                     .exponentials = 4,
                                     .outer_rows = 6,
                                     .outer_columns = 2};
#endif

}  // namespace detail

HEED_NAMESPACE_END
