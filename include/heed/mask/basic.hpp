// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The common masks: NoMask, Causal, Window, Padding, DocumentMask. Ranges alone describe each of them.

#include <optional>

#include <heed/mask/concept.hpp>

HEED_NAMESPACE_BEGIN

/// Hides nothing: every query sees every key.
struct NoMask : MaskBase {
  /// The visible keys.
  KeyRange range(int, int, int) const { return kAllKeys; }
};

/// Maps queries to positions among the keys. Causal, Window and Strided need one when Lq != Lk.
///
/// Joined by & to a mask that keeps sequences apart, the alignment is that of each sequence: in
/// DocumentMask(query_offsets, key_offsets) & Causal::bottom_right() the last query of a sequence sees all of its keys,
/// as if the sequence were a call of its own. The same holds for the samples of Padding::queries_and_keys(). Padding of
/// keys alone does not say which queries exist, and leaves the alignment as it is: from() serves for caches of several
/// lengths. In a layer with a KvCache positions go on from its length, and no alignment is named.
class Alignment {
 public:
  /// Query q has position q. bind() throws if Lq != Lk, in the call or in a packed sequence, since top-left and
  /// bottom-right then differ.
  Alignment() = default;
  /// Query q has position q: the first query is aligned with the first key.
  static Alignment top_left() { return Alignment(Kind::TopLeft); }
  /// Query q has position q + Lk - Lq: the last query is aligned with the last key, as with a key cache.
  static Alignment bottom_right() { return Alignment(Kind::BottomRight); }
  /// Query q of sample b has position first[b] + q: for caches whose lengths differ between samples. Packed sequences
  /// do not change it.
  static Alignment from(IntSpan first) {
    Alignment a(Kind::From);
    a.first_ = first;
    return a;
  }

  /// The position of query q of sample b among the keys. Requires a bound alignment.
  Index position(int b, int q) const {
    if (kind_ == Kind::From) return Index{q} + first_[b];
    if (!differs_) return Index{q} + offset_;
    const Sequences::Place own = sequences_.of(b, q);
    return own.key + (q - own.query) + (kind_ == Kind::BottomRight ? own.keys - own.queries : 0);
  }

  /// True if position(b, q) - q is the same for all queries of a sample.
  bool shifts_alike() const { return !differs_; }

  /// Returns the alignment for calls of this shape. Throws ValueError if Lq != Lk and no alignment was chosen, or for a
  /// negative position; ShapeError unless from() has B positions. Messages name the mask or modifier `name`, and
  /// `namer`, the class whose functions choose the alignment, if that is another one.
  Alignment bind(const AttentionShape& s, const char* name, const char* namer = nullptr) const {
    if (!namer) namer = name;
    Alignment bound = *this;
    if (kind_ == Kind::From) {
      HEED_CHECK(!s.continues, ValueError, "heed::", namer,
                 "::from: in a layer with a KvCache positions go on from its length; give heed::", name,
                 " without an alignment");
      HEED_CHECK(first_.size() == s.B, ShapeError, "heed::", namer, "::from: ", first_.size(),
                 " positions but B = ", s.B, "; give one for each sample");
      for (int b = 0; b < s.B; ++b) {
        HEED_CHECK(first_[b] >= 0, ValueError, "heed::", namer, "::from: position ", first_.text(b), " of sample ", b,
                   " is negative");
        HEED_CHECK(first_[b] <= std::numeric_limits<int>::max(), ValueError, "heed::", namer, "::from: position ",
                   first_.text(b), " of sample ", b, " is more than 2147483647");
      }
      return bound;
    }
    const bool packed = s.sequences.is_packed();
    HEED_CHECK(kind_ != Kind::Square || packed || s.Lq == s.Lk, ValueError, "heed::", name, ": Lq = ", s.Lq,
               " but Lk = ", s.Lk, "; choose an alignment: ", choices(namer));
    bound.offset_ = kind_ == Kind::BottomRight ? Index{s.Lk} - s.Lq : 0;
    if (!packed && !(s.sequences.is_padded() && kind_ == Kind::BottomRight)) return bound;
    bound.sequences_ = s.sequences;
    for (int i = 0; i < s.sequences.size(); ++i) {
      const Sequences::Place own = s.sequences[i];
      HEED_CHECK(kind_ != Kind::Square || own.queries == own.keys, ValueError, "heed::", name, ": sequence ", i,
                 " has ", own.queries, " queries but ", own.keys, " keys; choose an alignment: ", choices(namer));
      // The position of the first query decides for the rest of the sequence.
      const Index first = own.key - own.query + (kind_ == Kind::BottomRight ? own.keys - own.queries : 0);
      bound.differs_ = bound.differs_ || (own.queries > 0 && first != bound.offset_);
    }
    return bound;
  }

 private:
  enum class Kind { Square, TopLeft, BottomRight, From };
  explicit Alignment(Kind kind) : kind_(kind) {}
  static std::string choices(const char* namer) {
    return detail::concat(namer, "::top_left (query 0 at key 0), ", namer,
                          "::bottom_right (last query at last key), or ", namer,
                          "::from (first position of each sample)");
  }

  Kind kind_ = Kind::Square;
  bool differs_ = false;  // Sequences have different offsets.
  Index offset_ = 0;
  IntSpan first_;
  Sequences sequences_;
};

/// A query sees the keys at its position and before it.
///
/// Causal{} requires Lq = Lk and otherwise throws ValueError. For Lq != Lk choose an alignment: Causal::top_left(),
/// Causal::bottom_right(), or Causal::from(first_position_of_each_sample).
class Causal : public MaskBase {
 public:
  /// For Lq = Lk.
  Causal() = default;
  /// Query q sees keys 0, ..., q.
  static Causal top_left() { return Causal(Alignment::top_left()); }
  /// Query q sees keys 0, ..., q + Lk - Lq.
  static Causal bottom_right() { return Causal(Alignment::bottom_right()); }
  /// Query q of sample b sees keys 0, ..., first[b] + q. The list is borrowed.
  static Causal from(IntSpan first) { return Causal(Alignment::from(first)); }

  /// The visible keys.
  KeyRange range(int b, int, int q) const { return {0, alignment_.position(b, q) + 1}; }
  /// Throws as Alignment::bind() does.
  Causal bind(const AttentionShape& shape) const { return Causal(alignment_.bind(shape, "Causal")); }

 private:
  explicit Causal(Alignment alignment) : alignment_(alignment) {}
  Alignment alignment_;
};

/// A query sees the key at its position, `left` keys before it and `right` keys after it (Beltagy et al., Longformer,
/// 2020). A window of W keys that looks back only is Window(W - 1, 0). Choose an alignment as for Causal.
class Window : public MaskBase {
 public:
  /// For Lq = Lk. Throws ValueError if left or right is negative, as the other functions do.
  Window(Index left, Index right) : Window(left, right, Alignment()) {}
  /// Query q has position q.
  static Window top_left(Index left, Index right) { return Window(left, right, Alignment::top_left()); }
  /// Query q has position q + Lk - Lq.
  static Window bottom_right(Index left, Index right) { return Window(left, right, Alignment::bottom_right()); }
  /// Query q of sample b has position first[b] + q. The list is borrowed.
  static Window from(IntSpan first, Index left, Index right) { return Window(left, right, Alignment::from(first)); }

  /// The visible keys.
  KeyRange range(int b, int, int q) const {
    const Index p = alignment_.position(b, q);
    return {p - left_, p + right_ + 1};
  }
  /// Throws as Alignment::bind() does.
  Window bind(const AttentionShape& shape) const { return Window(left_, right_, alignment_.bind(shape, "Window")); }

 private:
  // A window wider than kAllKeys is the same mask, and its sums do not overflow.
  Window(Index left, Index right, Alignment alignment)
      : left_(std::min(left, kAllKeys.end)), right_(std::min(right, kAllKeys.end)), alignment_(alignment) {
    HEED_CHECK(left >= 0 && right >= 0, ValueError, "heed::Window: left = ", left, " and right = ", right,
               " exclude the query's own position and must be non-negative");
  }
  Index left_, right_;
  Alignment alignment_;
};

/// Hides the padding of each sample. The lists are borrowed and must outlive every call that uses the mask.
class Padding : public MaskBase {
 public:
  /// The keys of sample b are 0, ..., lengths[b] - 1; the rest is padding.
  explicit Padding(IntSpan lengths) : end_(lengths) {}
  /// The keys of sample b are begin[b], ..., end[b] - 1, for padding on the left.
  Padding(IntSpan begin, IntSpan end) : begin_(begin), end_(end) {}
  /// Sample b has queries[b] queries and keys[b] keys. Padded queries see nothing, so their output is 0.
  static Padding queries_and_keys(IntSpan queries, IntSpan keys) {
    Padding padding(keys);
    padding.queries_ = queries;
    return padding;
  }

  /// The visible keys.
  KeyRange range(int b, int, int q) const {
    if (queries_ && q >= (*queries_)[b]) return {};
    return {begin_ ? (*begin_)[b] : 0, end_[b]};
  }
  /// Throws ShapeError unless each list has B entries, ValueError for an entry outside [0, Lk] ([0, Lq] for queries) or
  /// a begin beyond its end.
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
  /// The samples, if the lengths of queries and keys are known. Throws as bind() does.
  Sequences sequences(const AttentionShape& s) const {
    if (!queries_) return {};
    bind(s);
    return Sequences::padded(*queries_, end_);
  }

 private:
  static void check(IntSpan list, int B, int limit, const char* what, const char* letter) {
    HEED_CHECK(list.size() == B, ShapeError, "heed::Padding: ", list.size(), " entries for ", what, " but B = ", B,
               "; give one for each sample");
    for (int b = 0; b < B; ++b) {
      HEED_CHECK(list[b] >= 0 && list[b] <= limit, ValueError, "heed::Padding: entry ", list.text(b), " for ", what,
                 " of sample ", b, " must be between 0 and ", letter, " = ", limit);
    }
  }
  std::optional<IntSpan> begin_;
  IntSpan end_;
  std::optional<IntSpan> queries_;
};

/// Separates sequences that are concatenated without padding: positions offsets[i], ..., offsets[i + 1] - 1 are
/// sequence i, and each sequence attends to itself only. The offsets start at 0, never decrease, and end at the length.
/// DocumentMask(offsets) & Causal{} is causal within each sequence: what a mask or a modifier makes of positions, it
/// makes of the positions in the sequence, see Alignment. A matrix, a function and a list of GlobalTokens keep the
/// positions of the call. The lists are borrowed.
class DocumentMask : public MaskBase {
 public:
  /// For self-attention.
  explicit DocumentMask(IntSpan offsets) : queries_(offsets), keys_(offsets) {}
  /// For cross-attention: query sequence i attends to key sequence i.
  DocumentMask(IntSpan query_offsets, IntSpan key_offsets) : queries_(query_offsets), keys_(key_offsets) {}

  /// The visible keys.
  KeyRange range(int, int, int q) const {
    const int i = queries_.upper_bound(q) - 1;
    return {keys_[i], keys_[i + 1]};
  }
  /// Throws ShapeError unless both lists have the same size, ValueError unless they partition Lq queries and Lk keys.
  DocumentMask bind(const AttentionShape& s) const {
    HEED_CHECK(queries_.size() == keys_.size(), ShapeError, "heed::DocumentMask: ", queries_.size(),
               " query offsets but ", keys_.size(), " key offsets; give one more than there are sequences to both");
    check(queries_, s.Lq, "query", "Lq");
    check(keys_, s.Lk, "key", "Lk");
    return *this;
  }
  /// The sequences. Throws as bind() does.
  Sequences sequences(const AttentionShape& s) const {
    bind(s);
    return Sequences::packed(queries_, keys_);
  }

 private:
  static void check(IntSpan offsets, int length, const char* what, const char* letter) {
    const int n = offsets.size();
    HEED_CHECK(n >= 1 && offsets[0] == 0 && offsets[n - 1] == length, ValueError, "heed::DocumentMask: ", what,
               " offsets must start at 0 and end at ", letter, " = ", length, "; there are ", n,
               n ? ", the last is " : "", n ? offsets.text(n - 1) : "");
    for (int i = 1; i < n; ++i) {
      HEED_CHECK(offsets[i] >= offsets[i - 1], ValueError, "heed::DocumentMask: ", what,
                 " offsets must not decrease, but offset ", i, " is ", offsets.text(i), " after ", offsets.text(i - 1));
    }
  }
  IntSpan queries_, keys_;
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
