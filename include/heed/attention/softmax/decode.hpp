// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Few queries against many keys: the step of a decoder with a key/value cache. Reading K and V is what costs, so all
/// query heads that share a key head share one read, and keys are cut into chunks of a fixed size that can be read by
/// several threads. Each chunk leaves its maximum, sum and values; chunks are merged in order, so the bits never depend
/// on who ran them (after FlashDecoding; Dao et al., 2023).

#include <heed/attention/softmax/decode_rows.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// Up to how many queries a head this path is the faster one.
inline constexpr int kDecodeQueries = 4;
/// Keys of a chunk.
inline constexpr int kDecodeChunk = 512;
/// Bytes of the keys of a tile. Small, because memory idles while scores become weights: in short turns with products
/// the processor looks beyond them.
inline constexpr Index kDecodeTileBytes = 4096;

/// What the query rows of one key head have from a part of the keys: maximum, sum and values.
template <class A>
struct DecodePart {
  A* maximum;  // [rows]
  A* sum;      // [rows]
  A* values;   // [rows][row_stride]

  /// Takes in the part that follows; both are in the kernel's units.
  void merge(const DecodePart& next, Index rows, Index row_stride, A to_log2) {
    for (Index r = 0; r < rows; ++r) {
      const A top = std::max(maximum[r], next.maximum[r]);
      const A mine = std::exp2((maximum[r] - top) * to_log2), theirs = std::exp2((next.maximum[r] - top) * to_log2);
      maximum[r] = top;
      sum[r] = sum[r] * mine + next.sum[r] * theirs;
      for (Index d = 0; d < row_stride; ++d)
        values[r * row_stride + d] = values[r * row_stride + d] * mine + next.values[r * row_stride + d] * theirs;
    }
  }
};

/// The sizes that a call of this shape works with.
template <class A, class S, int Rows>
struct DecodePlan {
  using Batch = DecodeRows<A, S, Rows>;

  int heads;         // key heads of all samples
  Index rows;        // query rows of a key head
  Index batches;     // in which they go
  int chunks;        // of keys
  int tile_keys;     // in which a chunk goes
  Index row_stride;  // of rows of values
  /// Elements of A: what a chunk leaves, what a batch and all batches of a worker need.
  Index part_elements, batch_elements, worker_elements;

  explicit DecodePlan(const AttentionShape& s)
      : heads(s.B * s.G),
        rows(Index{s.H / s.G} * s.Lq),
        batches((rows + Rows - 1) / Rows),
        chunks(std::max(1, (s.Lk + kDecodeChunk - 1) / kDecodeChunk)),
        tile_keys(static_cast<int>(
            std::clamp<Index>(kDecodeTileBytes / (s.Dk * static_cast<Index>(sizeof(S))), 8, kMaxTileKeys))),
        row_stride(whole_registers<A>(s.Dv)),
        part_elements(rows * (row_stride + 2)),
        batch_elements(Batch::memory(s.Dk, s.Dv)),
        worker_elements(batch_elements * batches + Batch::score_memory) {}

  /// Bytes of workspace for keys and values whose elements lie next to each other.
  std::size_t workspace(int workers) const {
    return Workspace::bytes_of<A>(part_elements * heads * chunks) + Workspace::bytes_of<A>(worker_elements * workers) +
           Workspace::bytes_of<Batch>(batches * workers);
  }
};

template <class A, class S, int Rows>
class Decoder {
 public:
  using Batch = DecodeRows<A, S, Rows>;

  Decoder(const BlockedProblem<A>& problem, const TensorView<const S, 4>& k, const TensorView<const S, 4>& v)
      : p_(problem), k_(k), v_(v), plan_(problem.shape) {}

  void run(Context& context) {
    Workspace& workspace = context.workspace();
    Workspace::Frame frame(workspace);
    const int workers = context.executor().concurrency();
    parts_ = workspace.take<A>(plan_.part_elements * plan_.heads * plan_.chunks);
    A* memory = workspace.take<A>(plan_.worker_elements * workers);
    Batch* batches = workspace.take<Batch>(plan_.batches * workers);
    std::uninitialized_default_construct_n(batches, plan_.batches * workers);
    // Rows whose elements lie apart are copied together first.
    const Index copy_size =
        (gathers(k_) ? kMaxTileKeys * p_.q.width() : 0) + (gathers(v_) ? kMaxTileKeys * p_.v.width() : 0);
    S* copies = workspace.take<S>(copy_size * workers);

    parallel_for_each(&context.executor(), Index{plan_.heads} * plan_.chunks, [&](Index task, int worker) {
      run_chunk(static_cast<int>(task / plan_.chunks), static_cast<int>(task % plan_.chunks),
                memory + worker * plan_.worker_elements, batches + worker * plan_.batches, copies + worker * copy_size);
    });
    parallel_for_each(&context.executor(), plan_.heads, [&](Index head, int) { finish(static_cast<int>(head)); });
  }

 private:
  static bool gathers(const TensorView<const S, 4>& rows) { return !rows.has_dense_rows(); }

  DecodePart<A> part(int head, int chunk) const {
    A* p = parts_ + (Index{head} * plan_.chunks + chunk) * plan_.part_elements;
    return {p, p + plan_.rows, p + 2 * plan_.rows};
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
    A* scores = memory + plan_.batch_elements * plan_.batches;
    for (Index i = 0; i < plan_.batches; ++i) {
      batches[i].begin(p_, b, g, static_cast<int>(i) * Rows,
                       static_cast<int>(std::min<Index>(Rows, plan_.rows - i * Rows)),
                       memory + plan_.batch_elements * i);
    }
    typename Batch::Keys keys;
    const int last = std::min(p_.shape.Lk, (chunk + 1) * kDecodeChunk);
    for (int k = chunk * kDecodeChunk; k < last; k += plan_.tile_keys) {
      const int n = std::min(plan_.tile_keys, last - k);
      StoredRows<S> k_rows{}, v_rows{};
      for (Index i = 0; i < plan_.batches; ++i) {
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
    for (Index r = 0; r < plan_.rows; ++r) {
      const Batch& batch = batches[r / Rows];
      const int i = static_cast<int>(r % Rows);
      to.maximum[r] = batch.row_maximum(i);
      to.sum[r] = batch.row_sum(i);
      std::copy_n(batch.values(i), plan_.row_stride, to.values + r * plan_.row_stride);
    }
  }

  void finish(int head) const {
    DecodePart<A> all = part(head, 0);
    for (int chunk = 1; chunk < plan_.chunks; ++chunk)
      all.merge(part(head, chunk), plan_.rows, plan_.row_stride, p_.to_log2());
    const int b = head / p_.shape.G, g = head % p_.shape.G;
    for (Index r = 0; r < plan_.rows; ++r) {
      const int h = g * (p_.shape.H / p_.shape.G) + static_cast<int>(r) / p_.shape.Lq,
                q = static_cast<int>(r) % p_.shape.Lq;
      const A factor = p_.finish_row(b, h, q, all.maximum[r], all.sum[r]);
      A* row = all.values + r * plan_.row_stride;
      // Adding 0 makes every zero positive, as in the other paths.
      for (Index d = 0; d < p_.v.width(); ++d) row[d] = all.sum[r] == A(0) ? A(0) : row[d] * factor + A(0);
      p_.out.write(b, h, q, row);
    }
  }

  const BlockedProblem<A>& p_;
  TensorView<const S, 4> k_, v_;
  DecodePlan<A, S, Rows> plan_;
  A* parts_ = nullptr;
};

/// Whether each key head has one query row only.
inline bool single_rows(const AttentionShape& shape) { return shape.H == shape.G && shape.Lq == 1; }

/// Bytes of workspace that run_decode takes.
template <class A, class S>
std::size_t decode_workspace(const AttentionShape& shape, int workers) {
  return single_rows(shape) ? DecodePlan<A, S, 1>(shape).workspace(workers)
                            : DecodePlan<A, S, 4>(shape).workspace(workers);
}

template <class A, class S>
void run_decode(const BlockedProblem<A>& p, const TensorView<const S, 4>& k, const TensorView<const S, 4>& v,
                Context& context) {
  if (single_rows(p.shape))
    Decoder<A, S, 1>(p, k, v).run(context);
  else
    Decoder<A, S, 4>(p, k, v).run(context);
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
