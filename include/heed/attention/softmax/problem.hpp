// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// One attention call without its types: what the kernels work on. They are compiled once per compute type; storage
/// types come in as row readers, masks as ranges and words, modifiers as functions on scores.

#include <algorithm>
#include <cmath>
#include <span>

#include <heed/attention/common/call.hpp>
#include <heed/attention/common/rows.hpp>
#include <heed/core/config.hpp>
#include <heed/core/random.hpp>
#include <heed/core/simd.hpp>
#include <heed/core/vec_math.hpp>
#include <heed/mask/concept.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// How a modifier is applied to scores in memory; both scale the scores first.
template <class A>
struct ModifyScores {
  /// `count` rows of `vectors` registers: row r holds the dot products of key[r] with the queries from q on, of which
  /// `queries` are real.
  void (*query_lanes)(const void* modifier, A scale, A* scores, int vectors, int b, int h, int q, int queries,
                      const int* key, int count) = nullptr;
  /// `count` dot products of one query with key[0], key[1], ...; scores may be written up to the next whole register.
  void (*key_lanes)(const void* modifier, A scale, A* scores, int b, int h, int q, const int* key, int count) = nullptr;
};

/// What all blocks of a call share.
template <class A>
struct BlockedProblem {
  AttentionShape shape;
  RowSource<A> q, k, v;
  RowSink<A> out;
  MaskRef mask;
  A scale;
  const void* modifier;  // null for none
  ModifyScores<A> modify;
  std::span<const double> sinks;
  double dropout;
  DropoutPattern dropped;
  TensorView<A, 3> row_max, row_sum;

  /// What queries are multiplied by: the sign of the scale, so that the largest dot product is the largest score.
  A query_factor() const { return modifier || scale > 0 ? A(1) : scale < 0 ? A(-1) : A(0); }
  /// What the scores in the kernel are multiplied by to become the scores of the call; never 0, since hidden ones are
  /// -inf.
  A to_score() const { return modifier || scale == 0 ? A(1) : std::abs(scale); }
  /// The same, to become exponents of 2.
  A to_log2() const { return to_score() * kLog2E<A>; }

  /// Whether all that finish_row() does is to divide by the sum.
  bool plain_rows() const { return sinks.empty() && dropout == 0 && !row_max.data(); }

  /// The factor that normalizes the values of a row, whose maximum and sum (0 for a row that sees nothing) are in the
  /// kernel's units; the sink joins in, and the row statistics are written if they are wanted.
  A finish_row(int b, int h, int query, A maximum, A sum) const {
    maximum = sum == A(0) ? -infinity<A>() : maximum * to_score();
    A factor(1);
    if (!sinks.empty()) {
      const A sink = static_cast<A>(sinks[static_cast<std::size_t>(h)]);
      if (!(sink == -infinity<A>())) {
        const A top = std::max(maximum, sink);
        factor = std::exp(maximum - top);
        sum = sum * factor + std::exp(sink - top);
        maximum = top;
      }
    }
    if (row_max.data()) {
      row_max(b, h, query) = maximum;
      row_sum(b, h, query) = sum;
    }
    const A keep_scale = dropout < 1 ? A(1 / (1 - dropout)) : A(0);
    return sum == A(0) ? A(0) : factor / sum * keep_scale;
  }
};

}  // namespace detail

HEED_NAMESPACE_END
