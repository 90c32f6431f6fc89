// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The everyday masks: NoMask, Causal, Window, Padding, DocumentMask. All of them are exact ranges.

#include <algorithm>
#include <optional>

#include <heed/core/config.hpp>
#include <heed/core/error.hpp>
#include <heed/mask/concept.hpp>

HEED_NAMESPACE_BEGIN

/// Every query sees every key.
struct NoMask : MaskBase {
  KeyRange range(int, int, int) const { return kAllKeys; }
};

/// Where query q stands among the keys; what Causal, Window and Strided need to know when Lq != Lk.
class Alignment {
 public:
  /// Position q; a call with Lq != Lk is refused, since the two readings differ there.
  Alignment() = default;
  /// Position q: the first query stands at the first key.
  static Alignment top_left() { return Alignment(Kind::TopLeft); }
  /// Position q + Lk - Lq: the last query stands at the last key, as with a key cache.
  static Alignment bottom_right() { return Alignment(Kind::BottomRight); }
  /// Position first[b] + q: caches that differ in length from sample to sample.
  static Alignment from(IntSpan first) {
    Alignment a(Kind::From);
    a.first_ = first;
    return a;
  }

  /// Where query q of sample b stands among the keys; of a bound alignment.
  Index position(int b, int q) const { return Index{q} + (first_ ? Index{(*first_)[b]} : offset_); }

  /// Fixes the offset for a call. For messages: the name of the mask or modifier, and of the class whose functions name
  /// the alignment, when that is another one.
  Alignment bind(const AttentionShape& s, const char* name, const char* namer = nullptr) const {
    if (!namer) namer = name;
    Alignment bound = *this;
    switch (kind_) {
      case Kind::Square:
        HEED_CHECK(s.Lq == s.Lk, ValueError, "heed::", name, ": Lq = ", s.Lq, " but Lk = ", s.Lk,
                   "; name the alignment: ", namer, "::top_left (query 0 at key 0), ", namer,
                   "::bottom_right (last query at last key), or ", namer, "::from (first position of each sample)");
        break;
      case Kind::TopLeft:
        break;
      case Kind::BottomRight:
        bound.offset_ = Index{s.Lk} - s.Lq;
        break;
      case Kind::From:
        HEED_CHECK(first_->size() == s.B, ShapeError, "heed::", namer, "::from: ", first_->size(),
                   " positions but B = ", s.B, "; give one for each sample");
        for (int b = 0; b < s.B; ++b) {
          HEED_CHECK((*first_)[b] >= 0, ValueError, "heed::", namer, "::from: position ", (*first_)[b], " of sample ",
                     b, " is negative");
        }
        break;
    }
    return bound;
  }

 private:
  enum class Kind { Square, TopLeft, BottomRight, From };
  explicit Alignment(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::Square;
  Index offset_ = 0;
  std::optional<IntSpan> first_;
};

/// A query sees the keys up to its own position.
///
/// Causal{} needs Lq = Lk. Otherwise the alignment is named: Causal::top_left(), Causal::bottom_right(), or
/// Causal::from(first_position_of_each_sample); binding it to a call without one throws ValueError.
class Causal : public MaskBase {
 public:
  Causal() = default;
  static Causal top_left() { return Causal(Alignment::top_left()); }
  static Causal bottom_right() { return Causal(Alignment::bottom_right()); }
  static Causal from(IntSpan first) { return Causal(Alignment::from(first)); }

  KeyRange range(int b, int, int q) const { return {0, alignment_.position(b, q) + 1}; }
  Causal bind(const AttentionShape& shape) const { return Causal(alignment_.bind(shape, "Causal")); }

 private:
  explicit Causal(Alignment alignment) : alignment_(alignment) {}
  Alignment alignment_;
};

/// A query sees its own position, `left` keys before it and `right` keys after it (Beltagy et al., Longformer, 2020).
/// W keys in total, looking back only, are Window(W - 1, 0). Alignment as Causal.
class Window : public MaskBase {
 public:
  /// Throws ValueError for a negative number of keys.
  Window(int left, int right) : Window(left, right, Alignment()) {}
  static Window top_left(int left, int right) { return Window(left, right, Alignment::top_left()); }
  static Window bottom_right(int left, int right) { return Window(left, right, Alignment::bottom_right()); }
  static Window from(IntSpan first, int left, int right) { return Window(left, right, Alignment::from(first)); }

  KeyRange range(int b, int, int q) const {
    const Index p = alignment_.position(b, q);
    return {p - left_, p + right_ + 1};
  }
  Window bind(const AttentionShape& shape) const { return Window(left_, right_, alignment_.bind(shape, "Window")); }

 private:
  Window(int left, int right, Alignment alignment) : left_(left), right_(right), alignment_(alignment) {
    HEED_CHECK(left >= 0 && right >= 0, ValueError, "heed::Window: left = ", left, " and right = ", right,
               " count keys besides the own one and can't be negative");
  }
  int left_, right_;
  Alignment alignment_;
};

/// The real keys of each sample; the rest is padding. The lists are borrowed and must live through the call.
class Padding : public MaskBase {
 public:
  /// Sample b has keys 0, ..., lengths[b] - 1.
  explicit Padding(IntSpan lengths) : end_(lengths) {}
  /// Sample b has keys begin[b], ..., end[b] - 1: left padding.
  Padding(IntSpan begin, IntSpan end) : begin_(begin), end_(end) {}
  /// Sample b has `queries[b]` queries and `keys[b]` keys: padded queries see nothing, so their output is 0.
  static Padding queries_and_keys(IntSpan queries, IntSpan keys) {
    Padding padding(keys);
    padding.queries_ = queries;
    return padding;
  }

  KeyRange range(int b, int, int q) const {
    if (queries_ && q >= (*queries_)[b]) return {};
    return {begin_ ? (*begin_)[b] : 0, end_[b]};
  }
  /// Throws ShapeError unless there is one entry a sample, ValueError for an entry outside [0, Lk] (or [0, Lq]).
  Padding bind(const AttentionShape& s) const {
    check(end_, s.B, s.Lk, "keys", "Lk");
    if (begin_) {
      check(*begin_, s.B, s.Lk, "begin", "Lk");
      for (int b = 0; b < s.B; ++b) {
        HEED_CHECK((*begin_)[b] <= end_[b], ValueError, "heed::Padding: sample ", b, " begins at ", (*begin_)[b],
                   " but ends at ", end_[b]);
      }
    }
    if (queries_) check(*queries_, s.B, s.Lq, "queries", "Lq");
    return *this;
  }

 private:
  static void check(IntSpan list, int B, int limit, const char* what, const char* letter) {
    HEED_CHECK(list.size() == B, ShapeError, "heed::Padding: ", list.size(), " entries for ", what, " but B = ", B,
               "; give one for each sample");
    for (int b = 0; b < B; ++b) {
      HEED_CHECK(list[b] >= 0 && list[b] <= limit, ValueError, "heed::Padding: entry ", list[b], " for ", what,
                 " of sample ", b, " lies outside 0 to ", letter, " = ", limit);
    }
  }
  std::optional<IntSpan> begin_;
  IntSpan end_;
  std::optional<IntSpan> queries_;
};

/// Sequences of different lengths one after the other, without padding: sequence i holds positions offsets[i], ...,
/// offsets[i + 1] - 1, and sees itself only. offsets begins with 0, never falls, and ends with the length.
/// DocumentMask(offsets) & Causal{} is causal inside each sequence. The lists are borrowed.
class DocumentMask : public MaskBase {
 public:
  /// Self-attention.
  explicit DocumentMask(IntSpan offsets) : queries_(offsets), keys_(offsets) {}
  /// Cross-attention: query sequence i sees key sequence i.
  DocumentMask(IntSpan query_offsets, IntSpan key_offsets) : queries_(query_offsets), keys_(key_offsets) {}

  KeyRange range(int, int, int q) const {
    const int i = static_cast<int>(std::upper_bound(queries_.begin(), queries_.end(), q) - queries_.begin()) - 1;
    return {keys_[i], keys_[i + 1]};
  }
  /// Throws ShapeError or ValueError when the offsets don't describe Lq queries and Lk keys.
  DocumentMask bind(const AttentionShape& s) const {
    HEED_CHECK(queries_.size() == keys_.size(), ShapeError, "heed::DocumentMask: ", queries_.size(),
               " query offsets but ", keys_.size(), " key offsets; both need one more than there are sequences");
    check(queries_, s.Lq, "query", "Lq");
    check(keys_, s.Lk, "key", "Lk");
    return *this;
  }

 private:
  static void check(IntSpan offsets, int length, const char* what, const char* letter) {
    HEED_CHECK(offsets.size() >= 1 && offsets[0] == 0 && offsets[offsets.size() - 1] == length, ValueError,
               "heed::DocumentMask: ", what, " offsets must begin with 0 and end with ", letter, " = ", length,
               "; there are ", offsets.size(), offsets.size() ? ", the last is " : "",
               offsets.size() ? offsets[offsets.size() - 1] : 0);
    HEED_CHECK(std::is_sorted(offsets.begin(), offsets.end()), ValueError, "heed::DocumentMask: ", what,
               " offsets must not fall");
  }
  IntSpan queries_, keys_;
};

HEED_NAMESPACE_END
