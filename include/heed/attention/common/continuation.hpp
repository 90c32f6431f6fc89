// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Continuation: the place of a call in the sequences that it goes on with. RecentKeys: the keys that a cache with a
/// window shows.

#include <optional>

#include <heed/mask/concept.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// A query sees the last `window` keys, its own included, and the first `sinks`, which a cache with a window keeps
/// (Xiao et al.: "Efficient streaming language models with attention sinks", 2023).
struct RecentKeys : MaskBase {
  int window, sinks;
  RecentKeys(int window_length, int first_keys) : window(window_length), sinks(first_keys) {}

  Index first_recent(int q) const { return Index{q} + 1 - window; }
  KeyRange range(int, int, int q) const { return {sinks > 0 ? 0 : first_recent(q), Index{q} + 1}; }
  bool visible(int, int, int q, int k) const { return k < sinks || k >= first_recent(q); }
  Index next(int, int, int q, Index k) const { return k < sinks ? k : std::max(k, first_recent(q)); }
  bool exact() const { return sinks == 0; }
};

/// A call on samples sample, sample + 1, ... of a cache, whose queries come after `past` tokens. Masks and modifiers
/// see the sequences as a whole: a batch of `batch` samples with queries and keys 0, ..., length - 1.
struct Continuation {
  int batch, sample, past;
  int queries, keys;  // of the longest sample, earlier calls included
  std::optional<RecentKeys> recent{};

  /// The shape that masks and modifiers are bound to.
  AttentionShape whole(AttentionShape call) const {
    call.B = batch, call.Lq = queries, call.Lk = keys;
    call.continues = true;
    return call;
  }
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
