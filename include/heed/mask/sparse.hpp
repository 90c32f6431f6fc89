// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Sparse attention patterns for long sequences: Strided and GlobalTokens.

#include <heed/mask/basic.hpp>

HEED_NAMESPACE_BEGIN

/// A query sees every stride-th key (0, stride, 2·stride, ...), the key at its position and `local` keys on either side
/// of that (after Child et al., "Generating long sequences with sparse transformers", 2019). Strided(...) & Causal{}
/// looks back only. Choose an alignment as for Causal. In packed sequences the stride starts at the first key of each.
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
  bool visible(int b, int, int q, int k) const {
    return (k - first_key(b, q)) % stride_ == 0 || near(b, q).contains(k);
  }
  std::uint64_t word(int b, int, int q, int k, int n) const {
    std::uint64_t word = detail::range_word(near(b, q), k, n);
    for (Index i = strided_from(b, q, k) - k; i < n; i += stride_) word |= std::uint64_t{1} << i;
    return word;
  }
  Index next(int b, int, int q, Index k) const {
    const KeyRange neighbors = near(b, q);
    const Index strided = strided_from(b, q, k);
    return k >= neighbors.end ? strided : std::min(strided, std::max(k, neighbors.begin));
  }
  Strided bind(const AttentionShape& shape) const {
    Strided bound(stride_, local_, alignment_.bind(shape, "Strided"));
    if (shape.sequences.is_packed()) bound.packed_ = shape.sequences;
    return bound;
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
  int first_key(int b, int q) const { return packed_.is_packed() ? static_cast<int>(packed_.of(b, q).key) : 0; }
  /// The first key of the stride from k on.
  Index strided_from(int b, int q, Index k) const {
    const Index past = (k - first_key(b, q)) % stride_;
    return k + (past > 0 ? stride_ - past : -past);
  }
  int stride_;
  Index local_;
  Alignment alignment_;
  Sequences packed_;
};

/// Global tokens attend to all keys, and all queries attend to them (Longformer). Combine it with a local pattern:
/// Window(64, 64) | GlobalTokens(1).
class GlobalTokens : public MaskBase {
 public:
  /// The first `count` positions are global; in packed sequences, the first of each. Throws ValueError if count < 0.
  explicit GlobalTokens(Index count) : count_(count) {
    HEED_CHECK(count >= 0, ValueError, "heed::GlobalTokens: count = ", count, " must be non-negative");
  }
  /// The listed positions of the call, in increasing order, are global. The list is borrowed.
  explicit GlobalTokens(IntSpan positions) : positions_(positions) {}

  /// @{
  /// The interface of a mask, see mask/concept.hpp. bind() throws ValueError unless the positions are non-negative and
  /// increase.
  KeyRange range(int b, int, int q) const {
    if (!positions_) {
      const Sequences::Place own = place(b, q);
      return q - own.query < count_ ? kAllKeys : KeyRange{own.key, own.key + std::min(count_, kAllKeys.end)};
    }
    if (is_listed(q)) return kAllKeys;
    const int n = positions_->size();
    return n ? KeyRange{(*positions_)[0], (*positions_)[n - 1] + 1} : KeyRange{};
  }
  bool visible(int b, int, int q, int k) const {
    if (positions_) return is_listed(k) || is_listed(q);
    const Sequences::Place own = place(b, q);
    return k - own.key < count_ || q - own.query < count_;
  }
  Index next(int, int, int q, Index k) const {
    if (!positions_ || is_listed(q)) return k;
    const int i = positions_->lower_bound(k);
    return i == positions_->size() ? kAllKeys.end : (*positions_)[i];
  }
  GlobalTokens bind(const AttentionShape& shape) const {
    GlobalTokens bound = *this;
    if (shape.sequences.is_packed()) bound.packed_ = shape.sequences;
    if (!positions_) return bound;
    for (int i = 0; i < positions_->size(); ++i) {
      HEED_CHECK((*positions_)[i] >= 0 && (i == 0 || (*positions_)[i] > (*positions_)[i - 1]), ValueError,
                 "heed::GlobalTokens: positions must be non-negative and increase, but entry ", i, " is ",
                 positions_->text(i));
    }
    return bound;
  }
  /// @}

 private:
  Sequences::Place place(int b, int q) const { return packed_.is_packed() ? packed_.of(b, q) : Sequences::Place{}; }
  bool is_listed(Index position) const {
    const int i = positions_->lower_bound(position);
    return i < positions_->size() && (*positions_)[i] == position;
  }
  Index count_ = 0;
  std::optional<IntSpan> positions_;
  Sequences packed_;
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
