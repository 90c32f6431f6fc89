// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// What the queries of a block see.

#include <cstdint>

#include <heed/attention/softmax/key_list.hpp>
#include <heed/core/config.hpp>
#include <heed/mask/concept.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// The ranges of a block's queries, one a lane, and the lists of keys that follow from them.
template <class A, int Lanes>
class LaneMask {
 public:
  using Keys = KeyList<A, Lanes>;

  /// Queries first, ..., first + count - 1 of head h; spare lanes repeat the last one.
  void begin(const MaskRef& mask, int b, int h, int first, int count, int Lk) {
    first_ = first;
    count_ = count;
    seen_ = mask.ranges(b, h, first, count, Lk, range_);
    for (int i = count; i < Lanes; ++i) range_[i] = range_[count - 1];
  }

  /// The hull of the keys that some query sees: [low, high), empty when low >= high.
  int low() const { return seen_.low; }
  int high() const { return seen_.high; }

  /// Lists the keys that some query sees among n keys from k on; an empty list when there are none.
  void list_keys(const MaskRef& mask, int b, int h, int k, int n, Keys& keys) const {
    keys.count = 0;
    if (k >= seen_.high || k + n <= seen_.low) return;
    const bool cut = k < seen_.full_low || k + n > seen_.full_high;
    if (mask.exact() && !cut) return keys.fill(k, n);
    std::uint64_t seen[Lanes];
    if (mask.exact()) {
      for (int i = 0; i < Lanes; ++i) seen[i] = range_word(range_[i], k, n);
    } else {
      mask.words(b, h, first_, count_, k, n, seen);
      for (int i = count_; i < Lanes; ++i) seen[i] = seen[count_ - 1];
      if (cut) {
        for (int i = 0; i < Lanes; ++i) seen[i] &= range_word(range_[i], k, n);
      }
    }
    keys.select(k, n, seen);
  }

 private:
  int first_ = 0, count_ = 0;
  RangeSummary seen_;
  KeyRange range_[Lanes];
};

}  // namespace detail

HEED_NAMESPACE_END
