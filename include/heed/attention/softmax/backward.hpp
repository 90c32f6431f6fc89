// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The gradients of the blocked path in O(L·D) memory: the weights are computed again, tile by tile, from the row
/// statistics of the forward (FlashAttention; Dao et al., 2022).
///
/// A piece of work is one key head with all its query heads, or a part of their queries: it owns the sums of dk and dv.
/// The parts and the borders of tiles depend on the shape alone and sums are merged in order, so the gradients have the
/// same bits whoever computes them.

#include <heed/attention/softmax/backward_tile.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

template <class A>
class BackwardRunner {
 public:
  using Tile = BackwardTile<A>;

  explicit BackwardRunner(const BackwardProblem<A>& problem)
      : p_(problem),
        heads_(p_.shape.B * p_.shape.G),
        tiles_((p_.shape.Lq + Tile::queries - 1) / Tile::queries),
        parts_(std::clamp(kWantedTasks / std::max(heads_, 1), 1, std::max(1, tiles_ / 4))),
        sums_size_(Index{p_.shape.Lk} * (p_.dk_row_stride() + p_.dv_row_stride())) {}

  void run(Context& context) {
    // A modifier that adds to gradients of its parameters does so in the order of the tasks.
    Executor& executor = p_.modifier.accumulates() ? static_cast<Executor&>(serial_) : context.executor();
    const int workers = executor.concurrency();
    Workspace& workspace = context.workspace();
    Workspace::Frame frame(workspace);
    // With one part a head is finished by whoever computed it, and its sums can be used again.
    A* sums = workspace.take<A>(sums_size_ * (parts_ > 1 ? Index{heads_} * parts_ : Index{workers}));
    double* dsinks = workspace.take<double>(Index{p_.shape.B} * p_.shape.H * parts_);
    const Index tile_size = Tile::memory(p_);
    A* memory = workspace.take<A>(tile_size * workers);
    Tile* tiles = workspace.take<Tile>(workers);
    std::uninitialized_default_construct_n(tiles, workers);

    parallel_for_each(&executor, Index{heads_} * parts_, [&](Index task, int worker) {
      const int head = static_cast<int>(task / parts_), part = static_cast<int>(task % parts_);
      A* const to = sums + sums_size_ * (parts_ > 1 ? task : worker);
      tiles[worker].use(p_, memory + tile_size * worker);
      run_part(tiles[worker], head, part, to, dsinks);
      if (parts_ == 1) write(head, to);
    });
    if (parts_ > 1) {
      parallel_for_each(&executor, heads_, [&](Index task, int) {
        const int head = static_cast<int>(task);
        A* const to = sums + sums_size_ * head * parts_;
        for (int part = 1; part < parts_; ++part) {
          for (Index i = 0; i < sums_size_; ++i) to[i] += to[part * sums_size_ + i];
        }
        write(head, to);
      });
    }
    for (std::size_t h = 0; h < p_.dsinks.size(); ++h) {
      p_.dsinks[h] = 0;
      for (int b = 0; b < p_.shape.B; ++b) {
        for (int part = 0; part < parts_; ++part) {
          p_.dsinks[h] += dsinks[(Index{b} * p_.shape.H + static_cast<Index>(h)) * parts_ + part];
        }
      }
    }
  }

 private:
  /// Enough pieces for the threads of a machine when there are few heads; each costs memory for its sums.
  static constexpr int kWantedTasks = 4;

  void run_part(Tile& tile, int head, int part, A* sums, double* dsinks) const {
    const AttentionShape& s = p_.shape;
    const int b = head / s.G, g = head % s.G;
    A* const dk = sums;
    A* const dv = sums + Index{s.Lk} * p_.dk_row_stride();
    std::fill_n(sums, sums_size_, A(0));
    const int first = tiles_ * part / parts_ * Tile::queries;
    const int last = std::min(s.Lq, tiles_ * (part + 1) / parts_ * Tile::queries);
    for (int h = g * (s.H / s.G); h < (g + 1) * (s.H / s.G); ++h) {
      double dsink = 0;
      for (int q = first; q < last; q += Tile::queries) {
        dsink += tile.run(p_, b, h, g, q, std::min(Tile::queries, last - q), dk, dv);
      }
      dsinks[(Index{b} * s.H + h) * parts_ + part] = dsink;
    }
  }

  void write(int head, const A* sums) const {
    const int b = head / p_.shape.G, g = head % p_.shape.G;
    const A* const dv = sums + Index{p_.shape.Lk} * p_.dk_row_stride();
    for (int k = 0; k < p_.shape.Lk; ++k) {
      if (p_.dk.is_wanted()) p_.dk.write(b, g, k, sums + k * p_.dk_row_stride());
      if (p_.dv.is_wanted()) p_.dv.write(b, g, k, dv + k * p_.dv_row_stride());
    }
  }

  const BackwardProblem<A>& p_;
  int heads_, tiles_, parts_;
  Index sums_size_;
  Serial serial_;
};

template <class A>
void run_blocked_backward(const BackwardProblem<A>& p, Context& context) {
  BackwardRunner<A>(p).run(context);
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
