// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// PackedSequences: the order in which a recurrent layer runs through sequences of several lengths, step by step and
/// the longest first, so that the sequences that a step still reaches are the first rows of every state.

#include <algorithm>
#include <numeric>
#include <span>

#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/tensor.hpp>
#include <heed/nn/rows.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

template <class T>
void copy_row(const TensorView<const T, 1>& from, const TensorView<T, 1>& to) {
  if (from.has_dense_rows() && to.has_dense_rows()) {
    std::copy_n(from.data(), from.extent(0), to.data());
  } else {
    for (Index e = 0; e < from.extent(0); ++e) to(e) = from(e);
  }
}
template <class T>
void clear_row(const TensorView<T, 1>& row) {
  for (Index e = 0; e < row.extent(0); ++e) row(e) = T(0);
}

/// The tokens of B sequences in packed rows: first all first tokens, then all second ones, and so on; nothing for
/// padding. Within a step, sequences are in the order of their ranks, longest first; equals keep their order.
class PackedSequences {
 public:
  /// The memory that the constructor needs.
  static Index memory_size(Index batch, Index length) { return batch + length + 1; }

  PackedSequences() = default;
  /// Borrows the memory. `lengths` holds B lengths of at most `length`, or nothing: then all are `length`.
  PackedSequences(std::span<const int> lengths, Index batch, Index length, Index* memory)
      : batch_(batch), samples_(memory), first_(memory + batch) {
    const auto length_of = [&](Index b) {
      return lengths.empty() ? length : Index{lengths[static_cast<std::size_t>(b)]};
    };
    std::iota(samples_, samples_ + batch, Index{0});
    std::sort(samples_, samples_ + batch,
              [&](Index a, Index b) { return length_of(a) != length_of(b) ? length_of(a) > length_of(b) : a < b; });
    first_[0] = 0;
    Index count = batch;
    for (Index t = 0; t < length; ++t) {
      while (count > 0 && length_of(samples_[count - 1]) <= t) --count;
      first_[t + 1] = first_[t] + count;
      if (count > 0) steps_ = t + 1;
    }
  }

  Index batch() const { return batch_; }
  /// The length of the longest sequence.
  Index steps() const { return steps_; }
  /// Tokens of all sequences.
  Index rows() const { return steps_ == 0 ? 0 : first_[steps_]; }
  /// The row of the sequence of rank 0 at step t.
  Index first(Index t) const { return first_[t]; }
  /// The number of sequences longer than t; t below the padded length.
  Index count(Index t) const { return first_[t + 1] - first_[t]; }
  Index sample(Index rank) const { return samples_[rank]; }

  /// packed (rows, E) = x (B, L, E) without its padding, which is not read.
  template <class T>
  void pack(const TensorView<const T, 3>& x, const TensorView<T, 2>& packed, Context& context) const {
    parallel_for_rows(context, steps_, batch_ * x.extent(2), [&](Index begin, Index end, int) {
      for (Index t = begin; t < end; ++t) {
        for (Index r = 0; r < count(t); ++r) copy_row<T>(x[sample(r)][t], packed[first(t) + r]);
      }
    });
  }
  /// y (B, L, E) = packed (rows, E), and 0 in the padding.
  template <class T>
  void unpack(const TensorView<const T, 2>& packed, const TensorView<T, 3>& y, Context& context) const {
    parallel_for_rows(context, y.extent(1), batch_ * y.extent(2), [&](Index begin, Index end, int) {
      for (Index t = begin; t < end; ++t) {
        const Index n = count(t);
        for (Index r = 0; r < n; ++r) copy_row<T>(packed[first(t) + r], y[sample(r)][t]);
        for (Index r = n; r < batch_; ++r) clear_row(y[sample(r)][t]);
      }
    });
  }

  /// by_rank (B, E) = the rows of `state` in the order of ranks; zeros for a state without data.
  template <class T>
  void sort(const TensorView<const T, 2>& state, const TensorView<T, 2>& by_rank) const {
    for (Index r = 0; r < batch_; ++r) {
      if (state.data())
        copy_row<T>(state[sample(r)], by_rank[r]);
      else
        clear_row(by_rank[r]);
    }
  }
  /// The way back; a state without data is not written.
  template <class T>
  void restore(const TensorView<const T, 2>& by_rank, const TensorView<T, 2>& state) const {
    if (!state.data()) return;
    for (Index r = 0; r < batch_; ++r) copy_row<T>(by_rank[r], state[sample(r)]);
  }

 private:
  Index batch_ = 0, steps_ = 0;
  Index *samples_ = nullptr, *first_ = nullptr;
};

/// The two ways to go through packed sequences: from the first step to the last, or back.
struct StepOrder {
  const PackedSequences& sequences;
  bool reverse;

  /// The step that is taken as number i.
  Index step(Index i) const { return reverse ? sequences.steps() - 1 - i : i; }
  /// The rows of sequences that step t finds in the state that another step left, and where that step's rows begin; the
  /// rest of its rows start from the initial state.
  struct Before {
    Index rows, first;
  };
  Before before(Index t) const {
    if (!reverse) return t == 0 ? Before{0, 0} : Before{sequences.count(t), sequences.first(t - 1)};
    return t + 1 == sequences.steps() ? Before{0, 0} : Before{sequences.count(t + 1), sequences.first(t + 1)};
  }
};

}  // namespace detail

HEED_NAMESPACE_END
