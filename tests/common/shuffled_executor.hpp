// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// An executor that runs pieces in random order and in random workers, one after the other: what depends on the order
/// of pieces or on who runs them shows, without threads and reproducibly.

#include <numeric>
#include <utility>
#include <vector>

#include <heed/core/parallel.hpp>

#include "common/random_inputs.hpp"

namespace heed_test {

class ShuffledExecutor final : public heed::Executor {
 public:
  ShuffledExecutor(int concurrency, std::uint64_t seed) : concurrency_(concurrency), random_(seed) {}
  int concurrency() const override { return concurrency_; }
  void parallel_for(int n, heed::Task piece) override {
    std::vector<int> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size(); i-- > 1;) {
      std::swap(order[i], order[static_cast<std::size_t>(random_.integer(0, static_cast<int>(i)))]);
    }
    for (const int i : order) piece(i, random_.integer(0, concurrency_ - 1));
  }

 private:
  int concurrency_;
  Random random_;
};

}  // namespace heed_test
