// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Sparse patterns for long sequences: Strided and GlobalTokens.

#include <algorithm>
#include <optional>

#include <heed/core/config.hpp>
#include <heed/core/error.hpp>
#include <heed/mask/basic.hpp>
#include <heed/mask/concept.hpp>

HEED_NAMESPACE_BEGIN

/// A query sees every stride-th key (0, stride, 2·stride, ...), its own position and `local` keys on either side of it
/// (after Child et al., "Generating long sequences with sparse transformers", 2019). Strided(...) & Causal{} looks back
/// only. Alignment as Causal.
class Strided : public MaskBase {
 public:
  /// Throws ValueError when stride < 1 or local < 0.
  Strided(int stride, int local) : Strided(stride, local, Alignment()) {}
  static Strided top_left(int stride, int local) { return Strided(stride, local, Alignment::top_left()); }
  static Strided bottom_right(int stride, int local) { return Strided(stride, local, Alignment::bottom_right()); }
  static Strided from(IntSpan first, int stride, int local) { return Strided(stride, local, Alignment::from(first)); }

  KeyRange range(int, int, int) const { return kAllKeys; }
  bool visible(int b, int, int q, int k) const { return k % stride_ == 0 || near(b, q).contains(k); }
  std::uint64_t word(int b, int, int q, int k, int n) const {
    std::uint64_t word = detail::range_word(near(b, q), k, n);
    for (int i = (stride_ - k % stride_) % stride_; i < n; i += stride_) word |= std::uint64_t{1} << i;
    return word;
  }
  Index next(int b, int, int q, Index k) const {
    const KeyRange own = near(b, q);
    const Index strided = (k + stride_ - 1) / stride_ * stride_;
    return k >= own.end ? strided : std::min(strided, std::max(k, own.begin));
  }
  Strided bind(const AttentionShape& shape) const {
    return Strided(stride_, local_, alignment_.bind(shape, "Strided"));
  }

 private:
  Strided(int stride, int local, Alignment alignment) : stride_(stride), local_(local), alignment_(alignment) {
    HEED_CHECK(stride >= 1, ValueError, "heed::Strided: stride = ", stride, " must be at least 1");
    HEED_CHECK(local >= 0, ValueError, "heed::Strided: local = ", local,
               " counts keys besides the own one and can't be negative");
  }
  KeyRange near(int b, int q) const {
    const Index p = alignment_.position(b, q);
    return {p - local_, p + local_ + 1};
  }
  int stride_, local_;
  Alignment alignment_;
};

/// Global tokens see everything and are seen by everything (Longformer): unite it with a local pattern,
/// Window(64, 64) | GlobalTokens(1).
class GlobalTokens : public MaskBase {
 public:
  /// The first `count` positions are global. Throws ValueError when count < 0.
  explicit GlobalTokens(int count) : count_(count) {
    HEED_CHECK(count >= 0, ValueError, "heed::GlobalTokens: count = ", count, " can't be negative");
  }
  /// The listed positions, in rising order, are global. The list is borrowed.
  explicit GlobalTokens(IntSpan positions) : positions_(positions) {}

  KeyRange range(int, int, int q) const {
    if (is_global(q)) return kAllKeys;
    if (!positions_) return {0, count_};
    return positions_->size() ? KeyRange{*positions_->begin(), Index{*(positions_->end() - 1)} + 1} : KeyRange{};
  }
  bool visible(int, int, int q, int k) const { return is_global(k) || is_global(q); }
  Index next(int, int, int q, Index k) const {
    if (!positions_ || is_global(q)) return k;
    const int* const position = std::lower_bound(positions_->begin(), positions_->end(), k);
    return position == positions_->end() ? kAllKeys.end : *position;
  }
  /// Throws ValueError when the positions don't rise or are negative.
  GlobalTokens bind(const AttentionShape&) const {
    if (positions_) {
      for (int i = 0; i < positions_->size(); ++i) {
        HEED_CHECK((*positions_)[i] >= 0 && (i == 0 || (*positions_)[i] > (*positions_)[i - 1]), ValueError,
                   "heed::GlobalTokens: positions must rise from 0 on, but entry ", i, " is ", (*positions_)[i]);
      }
    }
    return *this;
  }

 private:
  bool is_global(int position) const {
    return positions_ ? std::binary_search(positions_->begin(), positions_->end(), position) : position < count_;
  }
  int count_ = 0;
  std::optional<IntSpan> positions_;
};

HEED_NAMESPACE_END
