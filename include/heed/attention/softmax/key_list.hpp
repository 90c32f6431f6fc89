// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Which keys of a tile a block of queries works on, and which of its lanes see them.

#include <bit>
#include <cstdint>

#include <heed/core/simd.hpp>
#include <heed/core/vec_math.hpp>
#include <heed/mask/concept.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// A tile has at most as many keys as a word has bits.
inline constexpr int kMaxTileKeys = 64;
/// The score kernels take the last keys in a group of four and may read row pointers beyond the last one.
inline constexpr int kKeyPadding = 3;

/// The keys of one tile that at least one lane sees, in order, as rows of K and V; and per lane a bit for each of them.
/// Hidden keys that no lane sees never enter: they cost nothing and can't poison anything.
template <class A, int Lanes>
struct KeyList {
  using Word = typename Vec<A>::Word;
  static constexpr int word_bits = static_cast<int>(sizeof(Word)) * 8;
  static constexpr int words = kMaxTileKeys / word_bits;

  int count = 0;
  /// Whether some listed key is hidden from some lane.
  bool masked = false;
  int key[kMaxTileKeys];
  const A* k_row[kMaxTileKeys + kKeyPadding];
  const A* v_row[kMaxTileKeys + kKeyPadding];
  /// Bit r: the lane sees listed key r.
  std::uint64_t visible[Lanes];
  /// The same, cut to the width of a lane.
  Word lane_words[words][Lanes];

  /// The list will be about keys first, ..., first + n - 1, whose rows may stand elsewhere than before.
  void begin_tile(int first, int n) {
    tile_first_ = first;
    tile_count_ = n;
    non_finite_ = NonFinite::Unknown;
    whole_ = 0;
  }

  /// All of n keys from `first` on, seen by every lane.
  void fill(int first, int n) {
    masked = false;
    count = n;
    if (whole_ == n && key[0] == first) return;
    whole_ = n;
    pointed_ = false;
    for (int r = 0; r < n; ++r) key[r] = first + r;
  }

  /// Bit r of seen[lane] tells whether the lane sees key first + r; n keys. Empty when none is seen.
  void select(int first, int n, const std::uint64_t (&seen)[Lanes]) {
    std::uint64_t any = 0, all = ~std::uint64_t{0};
    for (int lane = 0; lane < Lanes; ++lane) {
      any |= seen[lane];
      all &= seen[lane];
    }
    any &= low_bits(n);
    count = 0;
    if (!any) return;
    const int skip = std::countr_zero(any);
    if (any == all && any >> skip == low_bits(std::popcount(any))) return fill(first + skip, std::popcount(any));

    whole_ = 0;
    pointed_ = false;
    for (int lane = 0; lane < Lanes; ++lane) visible[lane] = 0;
    while (any) {  // runs of seen keys close up
      const int at = std::countr_zero(any);
      const int run = std::countr_one(any >> at);
      for (int lane = 0; lane < Lanes; ++lane) visible[lane] |= ((seen[lane] >> at) & low_bits(run)) << count;
      for (int i = 0; i < run; ++i) key[count + i] = first + at + i;
      count += run;
      any &= ~(low_bits(run) << at);
    }
    all = ~std::uint64_t{0};
    for (int lane = 0; lane < Lanes; ++lane) {
      all &= visible[lane];
      for (int w = 0; w < words; ++w) lane_words[w][lane] = static_cast<Word>(visible[lane] >> (w * word_bits));
    }
    masked = (all & low_bits(count)) != low_bits(count);
  }

  /// Points the list at rows; `base` is the key of row 0. Blocks that meet the same whole tile share the work.
  void point(const A* k, Index k_pitch, const A* v, Index v_pitch, int base) {
    if (pointed_) return;
    pointed_ = true;
    v_tile_ = v + (tile_first_ - base) * v_pitch;
    v_pitch_ = v_pitch;
    for (int r = 0; r < count; ++r) {
      k_row[r] = k + (key[r] - base) * k_pitch;
      v_row[r] = v + (key[r] - base) * v_pitch;
    }
    for (int r = count; r < count + kKeyPadding; ++r) {
      k_row[r] = k_row[count - 1];
      v_row[r] = v_row[count - 1];
    }
  }

  /// Whether some value row of the tile, listed or not, holds Inf or NaN. Found out once a tile.
  bool has_non_finite(Index Dv) {
    if (non_finite_ == NonFinite::Unknown) {
      non_finite_ = detail::has_non_finite(v_tile_, v_pitch_, tile_count_, Dv) ? NonFinite::Some : NonFinite::None;
    }
    return non_finite_ == NonFinite::Some;
  }

  /// Hides what a modifier has hidden: the pairs with a score of -inf; `scores` is [key][lane].
  void hide_minus_infinity(const A* scores) {
    if (!masked) {
      masked = true;
      for (int lane = 0; lane < Lanes; ++lane) {
        visible[lane] = ~std::uint64_t{0};
        for (int w = 0; w < words; ++w) lane_words[w][lane] = ~Word{0};
      }
    }
    for (int r = 0; r < count; ++r) {
      for (int lane = 0; lane < Lanes; ++lane) {
        if (scores[r * Lanes + lane] != -infinity<A>()) continue;
        visible[lane] &= ~(std::uint64_t{1} << r);
        lane_words[r / word_bits][lane] &= static_cast<Word>(~(Word{1} << (r % word_bits)));
      }
    }
  }

 private:
  enum class NonFinite { Unknown, None, Some };

  int tile_first_ = 0, tile_count_ = 0;
  const A* v_tile_ = nullptr;
  Index v_pitch_ = 0;
  NonFinite non_finite_ = NonFinite::Unknown;
  int whole_ = 0;  // how many keys in a row the list holds since fill(), whose rows need no new pointers
  bool pointed_ = false;
};

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

#include <heed/core/restore_macros.hpp>
