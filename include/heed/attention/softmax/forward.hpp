// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The cache-blocked path: tiles of keys against groups of query blocks, in O(L·D) memory.
///
/// A piece of work is a group of query blocks of one head. It walks the tiles of keys that any of its blocks sees;
/// tiles that a block does not see cost it nothing. Tile borders are multiples of the tile's size and depend on Dk and
/// Dv alone, so a query's sums are cut in the same places whatever stands beside it and whoever runs it.

#include <heed/attention/softmax/query_block.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// The sizes that a call of this shape works with.
template <class A, int QueryVectors>
struct BlockedPlan {
  using Block = QueryBlock<A, QueryVectors>;

  int tile_keys;
  int group_blocks;
  int groups;
  /// Elements of scratch that each worker of the executor needs.
  Index block_elements, worker_elements;

  BlockedPlan(const AttentionShape& s, int concurrency) {
    // Keys and values of a tile stay close to the block's own rows: measured, one and a half times the usual
    // first-level cache, since rows are read in order and more keys a tile cost less around it.
    constexpr int budget = 49152 / static_cast<int>(sizeof(A));
    tile_keys = std::clamp(budget / (s.Dk + s.Dv) / 8 * 8, 16, kMaxTileKeys);
    const int blocks = (s.Lq + Block::lanes - 1) / Block::lanes;
    // As many blocks as share a tile's copy, but enough groups for everyone who works.
    const int wanted = concurrency > 1 ? 4 * concurrency : 1;
    const Index heads = std::max<Index>(Index{s.B} * s.H, 1);
    const int most = static_cast<int>(std::max<Index>(1, Index{blocks} * heads / wanted));
    group_blocks = std::clamp(std::min(most, 256 / Block::lanes), 1, std::max(blocks, 1));
    groups = (blocks + group_blocks - 1) / group_blocks;
    block_elements = Block::memory(s.Dk, s.Dv);
    worker_elements = block_elements * group_blocks + Block::Kernels::score_memory +
                      Index{kMaxTileKeys} * (s.Dk + 2 * Index{s.Dv}) + Index{Block::width} * std::max(s.Dk, s.Dv);
  }
};

/// One piece: query blocks `first`, ... of head h of sample b.
template <class A, int QueryVectors>
void run_group(const BlockedProblem<A>& p, const BlockedPlan<A, QueryVectors>& plan, int b, int h, int group, A* memory,
               QueryBlock<A, QueryVectors>* blocks) {
  using Block = QueryBlock<A, QueryVectors>;
  const Index Dk = p.q.width(), Dv = p.v.width();
  A* scores = memory + plan.block_elements * plan.group_blocks;
  A* k_copy = scores + Block::Kernels::score_memory;
  A* v_copy = k_copy + kMaxTileKeys * Dk;
  A* clean = v_copy + kMaxTileKeys * Dv;
  A* row = clean + kMaxTileKeys * Dv;
  const int g = h / (p.shape.H / p.shape.G);

  const int first = group * plan.group_blocks * Block::lanes;
  const int last = std::min(p.shape.Lq, first + plan.group_blocks * Block::lanes);
  int count = 0, low = p.shape.Lk, high = 0;
  for (int q = first; q < last; q += Block::lanes, ++count) {
    blocks[count].begin(p, b, h, q, std::min(Block::lanes, last - q), memory + plan.block_elements * count, row);
    if (blocks[count].low() >= blocks[count].high()) continue;
    low = std::min(low, blocks[count].low());
    high = std::max(high, blocks[count].high());
  }
  // Rows that must be converted are copied; rows that lie far apart are too when several blocks share the copy, since
  // they fall into few sets of the cache.
  const bool copy = !p.k.direct() || !p.v.direct() || (count > 2 && !(p.k.contiguous() && p.v.contiguous()));

  typename Block::Keys keys;
  for (int k = low / plan.tile_keys * plan.tile_keys; k < high; k += plan.tile_keys) {
    const int n = std::min(plan.tile_keys, p.shape.Lk - k);
    keys.begin_tile(k, n);
    bool copied = false, seen = false;
    for (int i = 0; i < count; ++i) {
      blocks[i].list_keys(p, b, h, k, n, keys);
      if (keys.count == 0) continue;
      seen = true;
      if (copy) {
        if (!copied) {
          for (int j = 0; j < n; ++j) {
            p.k.copy(b, g, k + j, k_copy + j * Dk);
            p.v.copy(b, g, k + j, v_copy + j * Dv);
          }
          copied = true;
        }
        keys.point(k_copy, Dk, v_copy, Dv, k);
      } else {
        keys.point(p.k.in_place(b, g, 0), p.k.row_stride(), p.v.in_place(b, g, 0), p.v.row_stride(), 0);
      }
      blocks[i].add(p, b, h, keys, scores, clean);
    }
    if (!seen) {  // sparse masks tell where they go on
      const Index next = p.mask.next(b, h, first, last - first, Index{k} + plan.tile_keys);
      if (next >= high) break;
      k = static_cast<int>(next) / plan.tile_keys * plan.tile_keys - plan.tile_keys;
    }
  }
  for (int i = 0; i < count; ++i) blocks[i].finish(p, b, h, row);
}

/// Bytes of workspace that run_blocked takes.
template <class A, int QueryVectors>
std::size_t blocked_workspace(const AttentionShape& shape, int workers) {
  const BlockedPlan<A, QueryVectors> plan(shape, workers);
  return Workspace::bytes_of<A>(plan.worker_elements * workers) +
         Workspace::bytes_of<QueryBlock<A, QueryVectors>>(Index{plan.group_blocks} * workers);
}

template <class A, int QueryVectors>
void run_blocked(const BlockedProblem<A>& p, Context& context) {
  const int workers = context.executor().concurrency();
  const BlockedPlan<A, QueryVectors> plan(p.shape, workers);
  Workspace::Frame frame(context.workspace());
  A* memory = context.workspace().take<A>(plan.worker_elements * workers);
  auto* blocks = context.workspace().take<QueryBlock<A, QueryVectors>>(Index{plan.group_blocks} * workers);
  std::uninitialized_default_construct_n(blocks, Index{plan.group_blocks} * workers);
  const Index heads = Index{p.shape.B} * p.shape.H;
  parallel_for_each(&context.executor(), heads * plan.groups, [&](Index task, int worker) {
    // The last groups first: under a causal mask they are the longest.
    const int group = plan.groups - 1 - static_cast<int>(task % plan.groups);
    const Index head = task / plan.groups;
    const int b = static_cast<int>(head / p.shape.H), h = static_cast<int>(head % p.shape.H);
    run_group(p, plan, b, h, group, memory + plan.worker_elements * worker, blocks + Index{plan.group_blocks} * worker);
  });
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
