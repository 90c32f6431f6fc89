// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// RecentKeys: the keys that a cache with a window shows.

#include <heed/mask/concept.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// Query q, whose position is past + q, sees the last `window` keys, its own included, and the first `sinks`, which
/// never leave the window's cache (Xiao et al.: "Efficient streaming language models with attention sinks", 2023).
struct RecentKeys : MaskBase {
  int past = 0, window = 0, sinks = 0;
  RecentKeys(int keys_before, int window_length, int first_keys)
      : past(keys_before), window(window_length), sinks(first_keys) {}

  Index first_recent(int q) const { return Index{past} + q + 1 - window; }
  KeyRange range(int, int, int q) const { return {sinks > 0 ? 0 : first_recent(q), Index{past} + q + 1}; }
  bool visible(int, int, int q, int k) const { return k < sinks || k >= first_recent(q); }
  Index next(int, int, int q, Index k) const { return k < sinks ? k : std::max(k, first_recent(q)); }
  bool exact() const { return sinks == 0; }
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
