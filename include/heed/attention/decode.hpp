// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Few queries against many keys: the step of a decoder with a key/value cache. Reading K and V is what costs, so all
/// query heads that share a key head share one read, and keys are cut into chunks of a fixed size that can be read by
/// several threads. Each chunk leaves its maximum, sum and values; chunks are merged in order, so the bits never depend
/// on who ran them (after FlashDecoding; Dao et al., 2023).

#include <algorithm>
#include <cmath>
#include <memory>

#include <heed/attention/blocked/decode_rows.hpp>
#include <heed/attention/blocked/problem.hpp>
#include <heed/core/config.hpp>
#include <heed/core/context.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// Up to how many queries a head this path is the faster one.
inline constexpr int kDecodeQueries = 4;
/// Keys of a chunk.
inline constexpr int kDecodeChunk = 512;

/// What the query rows of one key head have from a part of the keys: maximum, sum and values.
template <class A>
struct DecodePart {
  A* maximum;  // [rows]
  A* sum;      // [rows]
  A* values;   // [rows][pitch]

  /// Takes in the part that follows; both are in the kernel's units.
  void merge(const DecodePart& next, Index rows, Index pitch, A to_log2) {
    for (Index r = 0; r < rows; ++r) {
      const A top = std::max(maximum[r], next.maximum[r]);
      const A mine = std::exp2((maximum[r] - top) * to_log2), theirs = std::exp2((next.maximum[r] - top) * to_log2);
      maximum[r] = top;
      sum[r] = sum[r] * mine + next.sum[r] * theirs;
      for (Index d = 0; d < pitch; ++d)
        values[r * pitch + d] = values[r * pitch + d] * mine + next.values[r * pitch + d] * theirs;
    }
  }
};

template <class A, class S, int Rows>
class Decoder {
 public:
  using Batch = DecodeRows<A, S, Rows>;

  Decoder(const BlockedProblem<A>& problem, const TensorView<const S, 4>& k, const TensorView<const S, 4>& v)
      : p_(problem),
        k_(k),
        v_(v),
        rows_(Index{p_.shape.H / p_.shape.G} * p_.shape.Lq),
        batches_((rows_ + Rows - 1) / Rows),
        chunks_(std::max(1, (p_.shape.Lk + kDecodeChunk - 1) / kDecodeChunk)),
        pitch_(whole_registers<A>(p_.v.width())) {}

  void run(Context& context) {
    Workspace& workspace = context.workspace();
    Workspace::Frame frame(workspace);
    const int heads = p_.shape.B * p_.shape.G, slots = context.executor().concurrency();
    parts_ = workspace.take<A>(Index{heads} * chunks_ * part_size());
    const Index batch_memory = Batch::memory(p_.q.width(), p_.v.width());
    const Index slot_size = batch_memory * batches_ + Batch::score_memory;
    A* memory = workspace.take<A>(slot_size * slots);
    Batch* batches = workspace.take<Batch>(batches_ * slots);
    std::uninitialized_default_construct_n(batches, batches_ * slots);
    // Rows whose elements lie apart are copied together first.
    const Index copy_size =
        (gathers(k_) ? kMaxTileKeys * p_.q.width() : 0) + (gathers(v_) ? kMaxTileKeys * p_.v.width() : 0);
    S* copies = workspace.take<S>(copy_size * slots);

    context.executor().parallel_for(heads * chunks_, [&](int piece, int slot) {
      run_chunk(piece / chunks_, piece % chunks_, memory + slot * slot_size, batches + slot * batches_,
                copies + slot * copy_size);
    });
    context.executor().parallel_for(heads, [&](int head, int) { finish(head); });
  }

 private:
  static bool gathers(const TensorView<const S, 4>& rows) { return !rows.has_dense_rows(); }

  Index part_size() const { return rows_ * (pitch_ + 2); }
  DecodePart<A> part(int head, int chunk) const {
    A* p = parts_ + (Index{head} * chunks_ + chunk) * part_size();
    return {p, p + rows_, p + 2 * rows_};
  }

  /// n rows from key k on, where they lie or gathered.
  StoredRows<S> stored(const TensorView<const S, 4>& view, int b, int g, int k, int n, S* copy) const {
    const TensorView<const S, 2> rows = view[b][g];
    if (!gathers(view)) return {rows.data(), rows.stride(0), rows.extent(1), 0};
    for (int i = 0; i < n; ++i) {
      for (Index d = 0; d < rows.extent(1); ++d) copy[i * rows.extent(1) + d] = rows(k + i, d);
    }
    return {copy, rows.extent(1), rows.extent(1), k};
  }

  void run_chunk(int head, int chunk, A* memory, Batch* batches, S* copies) const {
    const int b = head / p_.shape.G, g = head % p_.shape.G;
    const Index batch_memory = Batch::memory(p_.q.width(), p_.v.width());
    A* scores = memory + batch_memory * batches_;
    for (Index i = 0; i < batches_; ++i) {
      batches[i].begin(p_, b, g, static_cast<int>(i) * Rows, static_cast<int>(std::min<Index>(Rows, rows_ - i * Rows)),
                       memory + batch_memory * i);
    }
    typename Batch::Keys keys;
    const int last = std::min(p_.shape.Lk, (chunk + 1) * kDecodeChunk);
    for (int k = chunk * kDecodeChunk; k < last; k += kMaxTileKeys) {
      const int n = std::min(kMaxTileKeys, last - k);
      StoredRows<S> k_rows{}, v_rows{};
      for (Index i = 0; i < batches_; ++i) {
        batches[i].list_keys(p_, b, k, n, keys);
        if (keys.count == 0) continue;
        if (!k_rows.data) {
          k_rows = stored(k_, b, g, k, n, copies);
          v_rows = stored(v_, b, g, k, n, copies + (gathers(k_) ? kMaxTileKeys * p_.q.width() : 0));
        }
        batches[i].add(p_, b, keys, k_rows, v_rows, scores);
      }
    }
    const DecodePart<A> to = part(head, chunk);
    for (Index r = 0; r < rows_; ++r) {
      const Batch& batch = batches[r / Rows];
      const int i = static_cast<int>(r % Rows);
      to.maximum[r] = batch.row_maximum(i);
      to.sum[r] = batch.row_sum(i);
      std::copy_n(batch.values(i), pitch_, to.values + r * pitch_);
    }
  }

  void finish(int head) const {
    DecodePart<A> all = part(head, 0);
    for (int chunk = 1; chunk < chunks_; ++chunk) all.merge(part(head, chunk), rows_, pitch_, p_.to_log2());
    const int b = head / p_.shape.G, g = head % p_.shape.G;
    for (Index r = 0; r < rows_; ++r) {
      const int h = g * (p_.shape.H / p_.shape.G) + static_cast<int>(r) / p_.shape.Lq,
                q = static_cast<int>(r) % p_.shape.Lq;
      const A factor = p_.finish_row(b, h, q, all.maximum[r], all.sum[r]);
      A* row = all.values + r * pitch_;
      // Adding 0 makes every zero positive, as in the other paths.
      for (Index d = 0; d < p_.v.width(); ++d) row[d] = all.sum[r] == A(0) ? A(0) : row[d] * factor + A(0);
      p_.out.write(b, h, q, row);
    }
  }

  const BlockedProblem<A>& p_;
  TensorView<const S, 4> k_, v_;
  Index rows_, batches_;
  int chunks_;
  Index pitch_;
  A* parts_ = nullptr;
};

template <class A, class S>
void run_decode(const BlockedProblem<A>& p, const TensorView<const S, 4>& k, const TensorView<const S, 4>& v,
                Context& context) {
  if (p.shape.H == p.shape.G && p.shape.Lq == 1)
    Decoder<A, S, 1>(p, k, v).run(context);
  else
    Decoder<A, S, 4>(p, k, v).run(context);
}

}  // namespace detail

HEED_NAMESPACE_END
