// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Sparse attention patterns for long sequences: Strided and GlobalTokens.

#include <heed/mask/basic.hpp>

HEED_NAMESPACE_BEGIN

/// A query sees every stride-th key (0, stride, 2·stride, ...), the key at its position and `local` keys on either side
/// of that (after Child et al., "Generating long sequences with sparse transformers", 2019). Strided(...) & Causal{}
/// looks back only. Choose an alignment as for Causal.
class Strided : public MaskBase {
 public:
  /// For Lq = Lk. Throws ValueError if stride < 1 or local < 0, as the other functions do.
  Strided(Index stride, Index local) : Strided(stride, local, Alignment()) {}
  /// Query q has position q.
  static Strided top_left(Index stride, Index local) { return Strided(stride, local, Alignment::top_left()); }
  /// Query q has position q + Lk - Lq.
  static Strided bottom_right(Index stride, Index local) { return Strided(stride, local, Alignment::bottom_right()); }
  /// Query q of sample b has position first[b] + q. The list is borrowed.
  static Strided from(IntSpan first, Index stride, Index local) {
    return Strided(stride, local, Alignment::from(first));
  }

  /// @{
  /// The interface of a mask, see mask/concept.hpp. bind() throws as Alignment::bind() does.
  KeyRange range(int, int, int) const { return kAllKeys; }
  bool visible(int b, int, int q, int k) const { return k % stride_ == 0 || near(b, q).contains(k); }
  std::uint64_t word(int b, int, int q, int k, int n) const {
    std::uint64_t word = detail::range_word(near(b, q), k, n);
    for (Index i = (stride_ - k % stride_) % stride_; i < n; i += stride_) word |= std::uint64_t{1} << i;
    return word;
  }
  Index next(int b, int, int q, Index k) const {
    const KeyRange neighbors = near(b, q);
    const Index strided = (k + stride_ - 1) / stride_ * stride_;
    return k >= neighbors.end ? strided : std::min(strided, std::max(k, neighbors.begin));
  }
  Strided bind(const AttentionShape& shape) const {
    return Strided(stride_, local_, alignment_.bind(shape, "Strided"));
  }
  /// @}

 private:
  // The stride is an int for the speed of its division. An int holds every stride that shows more than key 0.
  Strided(Index stride, Index local, Alignment alignment)
      : stride_(static_cast<int>(std::min<Index>(stride, std::numeric_limits<int>::max()))),
        local_(std::min(local, kAllKeys.end)),
        alignment_(alignment) {
    HEED_CHECK(stride >= 1, ValueError, "heed::Strided: stride = ", stride, " must be at least 1");
    HEED_CHECK(local >= 0, ValueError, "heed::Strided: local = ", local,
               " excludes the query's own position and must be non-negative");
  }
  KeyRange near(int b, int q) const {
    const Index p = alignment_.position(b, q);
    return {p - local_, p + local_ + 1};
  }
  int stride_;
  Index local_;
  Alignment alignment_;
};

/// Global tokens attend to all keys, and all queries attend to them (Longformer). Combine it with a local pattern:
/// Window(64, 64) | GlobalTokens(1).
class GlobalTokens : public MaskBase {
 public:
  /// The first `count` positions are global. Throws ValueError if count < 0.
  explicit GlobalTokens(Index count) : count_(count) {
    HEED_CHECK(count >= 0, ValueError, "heed::GlobalTokens: count = ", count, " must be non-negative");
  }
  /// The listed positions, in increasing order, are global. The list is borrowed.
  explicit GlobalTokens(IntSpan positions) : positions_(positions) {}

  /// @{
  /// The interface of a mask, see mask/concept.hpp. bind() throws ValueError unless the positions are non-negative and
  /// increase.
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
  GlobalTokens bind(const AttentionShape&) const {
    if (positions_) {
      for (int i = 0; i < positions_->size(); ++i) {
        HEED_CHECK((*positions_)[i] >= 0 && (i == 0 || (*positions_)[i] > (*positions_)[i - 1]), ValueError,
                   "heed::GlobalTokens: positions must be non-negative and increase, but entry ", i, " is ",
                   (*positions_)[i]);
      }
    }
    return *this;
  }
  /// @}

 private:
  bool is_global(int position) const {
    return positions_ ? std::binary_search(positions_->begin(), positions_->end(), position) : position < count_;
  }
  Index count_ = 0;
  std::optional<IntSpan> positions_;
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
