// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// A call as the kernels take it: without the types of its tensors. Kernels are compiled once for each compute type;
/// storage types come in as row readers, masks as ranges and words, modifiers as functions on scores.

#include <heed/attention/common/call.hpp>
#include <heed/attention/common/rows.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

template <class A>
struct BlockedProblem : AttentionTerms<A> {
  RowSource<A> q, k, v;
  RowSink<A> out;

  template <class T, class S>
  explicit BlockedProblem(const AttentionCall<T, S>& call)
      : AttentionTerms<A>(call), q(call.q), k(call.k), v(call.v), out(call.out) {}

  /// The factor of the queries: the sign of the scale, so that the largest dot product is the largest score.
  A query_factor() const { return this->modifier || this->scale > 0 ? A(1) : this->scale < 0 ? A(-1) : A(0); }
  /// The factor that turns the kernel's scores into those of the call; never 0, because hidden scores are -inf.
  A to_score() const { return this->modifier || this->scale == 0 ? A(1) : std::abs(this->scale); }
  /// The factor that turns the kernel's scores into exponents of 2.
  A to_log2() const { return to_score() * kLog2E<A>; }

  /// True when finish_row() only divides by the sum.
  bool plain_rows() const { return this->sinks.empty() && this->dropout == 0 && !this->wants_statistics(); }

  /// The factor that normalizes the values of a row, given its maximum and sum in the kernel's units (sum 0 for a row
  /// that sees nothing). Adds the sink, and writes the row statistics if they are wanted.
  A finish_row(int b, int h, int query, A maximum, A sum) const {
    maximum = sum == A(0) ? -infinity<A>() : maximum * to_score();
    A factor(1);
    if (!this->sinks.empty()) {
      const A sink = static_cast<A>(this->sinks[static_cast<std::size_t>(h)]);
      if (!(sink == -infinity<A>())) {
        const A top = std::max(maximum, sink);
        factor = std::exp(maximum - top);
        sum = sum * factor + std::exp(sink - top);
        maximum = top;
      }
    }
    if (this->wants_statistics()) {
      this->row_max(b, h, query) = maximum;
      this->row_sum(b, h, query) = sum;
    }
    return sum == A(0) ? A(0) : factor / sum * this->keep_scale();
  }
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
