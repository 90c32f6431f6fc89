// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The Mask concept and its operators. A mask selects the keys that each query sees; it never adds numbers to scores.
///
/// To write a mask, derive from MaskBase and define range(), and any of the others, for query q and key k of head h and
/// sample b:
///
///     KeyRange range(int b, int h, int q) const;                    // the visible keys are in [begin, end)
///     bool visible(int b, int h, int q, int k) const;               // key k of the range is visible; default: true
///     std::uint64_t word(int b, int h, int q, int k, int n) const;  // bit i: visible(b, h, q, k + i), i < n <= 64
///     Index next(int b, int h, int q, Index k) const;               // a key >= k; none from k up to it is visible
///     bool exact() const;                                           // all keys of the ranges are visible
///     auto bind(const AttentionShape&) const;                       // the mask to use for a call, or an exception
///     Sequences sequences(const AttentionShape&) const;             // the sequences that the mask keeps apart
///
/// word() and next() make masks faster. exact() is for masks like AnyMask that have visible() but may not need it.
/// sequences() is for masks like DocumentMask: positions of the masks that `&` joins to it count within each sequence.
///
/// `a & b` intersects, `a | b` unites, `!a` complements (g++ -Wall asks for parentheses: `(!a) & b`), and heed::mask(f)
/// makes a mask from a function.

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include <heed/core/integers.hpp>

HEED_NAMESPACE_BEGIN

/// The sequences of a call, where they are not its samples.
class Sequences {
 public:
  /// The place of one sequence: its first query and key, and the numbers of its queries and keys.
  struct Place {
    Index query = 0;    ///< the first query
    Index key = 0;      ///< the first key
    Index queries = 0;  ///< the number of queries
    Index keys = 0;     ///< the number of keys
  };

  /// Each sample is one sequence.
  Sequences() = default;
  /// Sequence i of every sample is queries offsets[i], ..., offsets[i + 1] - 1, and its keys likewise.
  static Sequences packed(IntSpan query_offsets, IntSpan key_offsets) {
    return Sequences(Kind::Packed, query_offsets, key_offsets);
  }
  /// Sample b has queries[b] queries and keys[b] keys; padding follows.
  static Sequences padded(IntSpan queries, IntSpan keys) { return Sequences(Kind::Padded, queries, keys); }

  /// True if samples hold several sequences.
  bool is_packed() const { return kind_ == Kind::Packed; }
  /// True if each sample is one sequence with its lengths.
  bool is_padded() const { return kind_ == Kind::Padded; }
  /// The number of packed sequences, or of samples.
  int size() const { return is_packed() ? queries_.size() - 1 : queries_.size(); }
  /// Sequence i.
  Place operator[](int i) const {
    if (!is_packed()) return {0, 0, queries_[i], keys_[i]};
    return {queries_[i], keys_[i], queries_[i + 1] - queries_[i], keys_[i + 1] - keys_[i]};
  }
  /// The sequence of query q of sample b.
  Place of(int b, int q) const { return (*this)[is_packed() ? queries_.upper_bound(q) - 1 : b]; }

 private:
  enum class Kind { Whole, Packed, Padded };
  Sequences(Kind kind, IntSpan queries, IntSpan keys) : kind_(kind), queries_(queries), keys_(keys) {}

  Kind kind_ = Kind::Whole;
  IntSpan queries_, keys_;
};

/// The extents of one attention call: q (B, H, Lq, Dk), k (B, G, Lk, Dk), v (B, G, Lk, Dv).
struct AttentionShape {
  int B = 1;   ///< batch
  int H = 1;   ///< query heads
  int G = 1;   ///< key/value heads; H % G == 0
  int Lq = 0;  ///< queries
  int Lk = 0;  ///< keys
  int Dk = 1;  ///< width of a query or key head
  int Dv = 1;  ///< width of a value head
  /// The sequences that the mask of the call keeps apart; their lists are borrowed.
  Sequences sequences = {};
  /// True in a layer with a KvCache, where the extents are those of the whole sequences, earlier calls included: query
  /// q is the token q of its sequence, whatever the call.
  bool continues = false;
};

/// Keys [begin, end). May extend beyond the existing keys; empty if end <= begin.
struct KeyRange {
  Index begin = 0;  ///< the first key
  Index end = 0;    ///< one past the last key
  /// True if key k is in the range.
  constexpr bool contains(Index k) const { return begin <= k && k < end; }
};

/// All keys.
inline constexpr KeyRange kAllKeys{0, std::numeric_limits<Index>::max() / 2};

/// Base class of all masks. It limits the operators `&`, `|` and `!` to masks.
struct MaskBase {};

/// A type that derives from MaskBase and has range().
template <class M>
concept Mask = std::derived_from<std::remove_cvref_t<M>, MaskBase> && requires(const M& m, int i) {
  { m.range(i, i, i) } -> std::convertible_to<KeyRange>;
};

/// A mask fully described by its range.
template <class M>
concept RangeMask = Mask<M> && !requires(const M& m, int i) { m.visible(i, i, i, i); };

/// True if key k is visible to query q of head h of sample b.
template <Mask M>
constexpr bool is_visible(const M& m, int b, int h, int q, int k) {
  if (!m.range(b, h, q).contains(k)) return false;
  if constexpr (RangeMask<M>)
    return true;
  else
    return m.visible(b, h, q, k);
}

namespace detail {

/// The sequences that a mask keeps apart in a call of this shape. Throws as the bind() of the mask does.
template <Mask M>
Sequences sequences_of(const M& m, [[maybe_unused]] const AttentionShape& shape) {
  if constexpr (requires { m.sequences(shape); })
    return m.sequences(shape);
  else
    return {};
}
/// The shape for the masks and modifiers of a call with this mask.
template <Mask M>
AttentionShape with_sequences(const M& m, AttentionShape shape) {
  const Sequences own = sequences_of(m, shape);
  if (own.is_packed() || own.is_padded()) shape.sequences = own;
  return shape;
}

}  // namespace detail

/// The mask to use for a call of this shape. Throws as the bind() of the mask does.
template <Mask M>
auto bind(const M& m, [[maybe_unused]] const AttentionShape& shape) {
  if constexpr (requires { m.bind(shape); })
    return m.bind(shape);
  else
    return m;
}

namespace detail {

/// The lowest n bits.
constexpr std::uint64_t low_bits(Index n) {
  return n >= 64 ? ~std::uint64_t{0} : n <= 0 ? 0 : (std::uint64_t{1} << n) - 1;
}
/// Bit i is set if k + i is in the range, i < n <= 64.
constexpr std::uint64_t range_word(KeyRange r, int k, int n) {
  return low_bits(std::min<Index>(r.end - k, n)) & ~low_bits(std::min<Index>(r.begin - k, n));
}

/// Packs 64 bytes of 0 or 1 into the bits of a word.
inline std::uint64_t pack_bits(const unsigned char (&bytes)[64]) {
  std::uint64_t word = 0;
  for (int i = 0; i < 64; i += 8) {
    std::uint64_t eight = 0;
    for (int j = 0; j < 8; ++j) eight |= std::uint64_t{bytes[i + j]} << (8 * j);
    word |= ((eight * 0x0102040810204080u) >> 56) << i;
  }
  return word;
}

/// visible() of n keys from k on, one bit each, valid only inside the range.
template <Mask M>
std::uint64_t visible_word(const M& m, int b, int h, int q, int k, int n) {
  if constexpr (RangeMask<M>) {
    return low_bits(n);
  } else if constexpr (requires { m.word(b, h, q, k, n); }) {
    return m.word(b, h, q, k, n) & low_bits(n);
  } else {
    unsigned char bytes[64] = {};
    for (int i = 0; i < n; ++i) bytes[i] = m.visible(b, h, q, k + i);
    return pack_bits(bytes);
  }
}
/// is_visible() of n keys from k on, one bit each.
template <Mask M>
std::uint64_t truth_word(const M& m, int b, int h, int q, int k, int n) {
  const std::uint64_t in_range = range_word(m.range(b, h, q), k, n);
  if constexpr (RangeMask<M>)
    return in_range;
  else
    return in_range ? in_range & visible_word(m, b, h, q, k, n) : 0;
}

/// True if the ranges of m describe it completely. An AnyMask knows that only at run time.
template <Mask M>
constexpr bool is_exact(const M& m) {
  if constexpr (requires { m.exact(); })
    return m.exact();
  else
    return RangeMask<M>;
}

/// A key >= k such that query q sees none of the keys from k up to it.
template <Mask M>
constexpr Index next_candidate(const M& m, int b, int h, int q, Index k) {
  const KeyRange r = m.range(b, h, q);
  if (k >= r.end) return kAllKeys.end;
  k = std::max(k, r.begin);
  if constexpr (requires { m.next(b, h, q, k); })
    return std::max(k, m.next(b, h, q, k));
  else
    return k;
}

}  // namespace detail

/// The result of a & b: a key is visible if both masks show it.
template <Mask A, Mask B>
struct And : MaskBase {
  A a;  ///< the left operand
  B b;  ///< the right operand
  /// Copies both masks.
  And(A first, B second) : a(std::move(first)), b(std::move(second)) {}

  /// @{
  /// The interface of a mask.
  KeyRange range(int sample, int h, int q) const {
    const KeyRange x = a.range(sample, h, q), y = b.range(sample, h, q);
    return {std::max(x.begin, y.begin), std::min(x.end, y.end)};
  }
  bool visible(int sample, int h, int q, int k) const
  requires(!RangeMask<A> || !RangeMask<B>)
  {
    return is_visible(a, sample, h, q, k) && is_visible(b, sample, h, q, k);
  }
  std::uint64_t word(int sample, int h, int q, int k, int n) const
  requires(!RangeMask<A> || !RangeMask<B>)
  {
    return detail::visible_word(a, sample, h, q, k, n) & detail::visible_word(b, sample, h, q, k, n);
  }
  bool exact() const { return detail::is_exact(a) && detail::is_exact(b); }
  Index next(int sample, int h, int q, Index k) const {
    return std::max(detail::next_candidate(a, sample, h, q, k), detail::next_candidate(b, sample, h, q, k));
  }
  Sequences sequences(const AttentionShape& shape) const {
    const Sequences x = detail::sequences_of(a, shape), y = detail::sequences_of(b, shape);
    return x.is_packed() || (x.is_padded() && !y.is_packed()) ? x : y;
  }
  auto bind(const AttentionShape& whole) const {
    const AttentionShape shape = detail::with_sequences(*this, whole);
    using BoundA = decltype(heed::bind(a, shape));
    using BoundB = decltype(heed::bind(b, shape));
    return And<BoundA, BoundB>(heed::bind(a, shape), heed::bind(b, shape));
  }
  /// @}
};

/// The result of a | b: a key is visible if at least one mask shows it.
template <Mask A, Mask B>
struct Or : MaskBase {
  A a;  ///< the left operand
  B b;  ///< the right operand
  /// Copies both masks.
  Or(A first, B second) : a(std::move(first)), b(std::move(second)) {}

  /// @{
  /// The interface of a mask.
  KeyRange range(int sample, int h, int q) const {
    const KeyRange x = a.range(sample, h, q), y = b.range(sample, h, q);
    // The smallest range that covers both.
    if (x.end <= x.begin) return y;
    if (y.end <= y.begin) return x;
    return {std::min(x.begin, y.begin), std::max(x.end, y.end)};
  }
  bool visible(int sample, int h, int q, int k) const {
    return is_visible(a, sample, h, q, k) || is_visible(b, sample, h, q, k);
  }
  std::uint64_t word(int sample, int h, int q, int k, int n) const {
    return detail::truth_word(a, sample, h, q, k, n) | detail::truth_word(b, sample, h, q, k, n);
  }
  Index next(int sample, int h, int q, Index k) const {
    return std::min(detail::next_candidate(a, sample, h, q, k), detail::next_candidate(b, sample, h, q, k));
  }
  auto bind(const AttentionShape& shape) const {
    using BoundA = decltype(heed::bind(a, shape));
    using BoundB = decltype(heed::bind(b, shape));
    return Or<BoundA, BoundB>(heed::bind(a, shape), heed::bind(b, shape));
  }
  /// @}
};

/// The result of !a: a key is visible if the other mask hides it.
template <Mask A>
struct Not : MaskBase {
  A a;  ///< the operand
  /// Copies the mask.
  explicit Not(A mask) : a(std::move(mask)) {}

  /// @{
  /// The interface of a mask.
  KeyRange range(int, int, int) const { return kAllKeys; }
  bool visible(int b, int h, int q, int k) const { return !is_visible(a, b, h, q, k); }
  std::uint64_t word(int b, int h, int q, int k, int n) const { return ~detail::truth_word(a, b, h, q, k, n); }
  auto bind(const AttentionShape& shape) const {
    using Bound = decltype(heed::bind(a, shape));
    return Not<Bound>(heed::bind(a, shape));
  }
  /// @}
};

/// A key is visible if both masks show it.
template <Mask A, Mask B>
And<A, B> operator&(A a, B b) {
  return {std::move(a), std::move(b)};
}
/// A key is visible if at least one mask shows it.
template <Mask A, Mask B>
Or<A, B> operator|(A a, B b) {
  return {std::move(a), std::move(b)};
}
/// A key is visible if the mask hides it.
template <Mask A>
Not<A> operator!(A a) {
  return Not<A>(std::move(a));
}

/// The result of heed::mask(f): a key is visible if f(b, h, q, k) or f(q, k) is true.
template <class F>
struct FunctionMask : MaskBase {
  F f;  ///< the function
  /// Copies the function.
  explicit FunctionMask(F function) : f(std::move(function)) {}

  /// @{
  /// The interface of a mask.
  KeyRange range(int, int, int) const { return kAllKeys; }
  bool visible(int b, int h, int q, int k) const {
    if constexpr (std::is_invocable_v<const F&, int, int, int, int>)
      return f(b, h, q, k);
    else
      return f(q, k);
  }
  /// @}
};

/// Makes a mask from a function of (q, k) or (b, h, q, k): heed::mask([](int q, int k) { return (q + k) % 2 == 0; }).
/// If the function is false in whole regions, intersect it with a mask that has ranges (`& Causal{}`), so that kernels
/// skip those regions without calling it.
template <class F>
requires(std::is_invocable_r_v<bool, const F&, int, int, int, int> || std::is_invocable_r_v<bool, const F&, int, int>)
FunctionMask<F> mask(F f) {
  return FunctionMask<F>(std::move(f));
}

/// The key ranges of several queries, combined.
struct RangeSummary {
  int low;        ///< begin of the smallest range that covers every non-empty range
  int high;       ///< end of that range; high <= low if all are empty
  int full_low;   ///< begin of the part that is in all ranges
  int full_high;  ///< end of that part; full_high <= full_low if there is none
};

/// A borrowed mask of any type. Attention kernels take it, so that they are compiled once and not once per mask. The
/// mask must have been bound and must outlive the reference.
class MaskRef {
 public:
  /// The functions of one type of mask; the first argument of each points to the mask. See the members of MaskRef.
  struct Functions {
    /// @cond
    KeyRange (*range)(const void*, int b, int h, int q);
    RangeSummary (*ranges)(const void*, int b, int h, int q, int n, int Lk, KeyRange* out);
    void (*words)(const void*, int b, int h, int q, int n, int k, int keys, std::uint64_t* out);
    Index (*next)(const void*, int b, int h, int q, int n, Index k);
    bool (*visible)(const void*, int b, int h, int q, int k);
    /// @endcond
  };
  /// The functions of masks of type M.
  template <Mask M>
  static const Functions& functions_of() {
    static constexpr Functions functions{&range_of<M>, &ranges_of<M>, &words_of<M>, &next_of<M>, &visible_of<M>};
    return functions;
  }

  /// Refers to m, or to the mask that m holds if m is an AnyMask.
  template <Mask M>
  explicit MaskRef(const M& m) : MaskRef(&m, detail::is_exact(m), functions_of<M>()) {
    if constexpr (requires { m.reference(); }) *this = m.reference();
  }
  /// Refers to a mask by its address and the functions of its type.
  MaskRef(const void* mask, bool exact, const Functions& functions)
      : mask_(mask), functions_(&functions), exact_(exact) {}

  /// The same mask for a call whose sample 0 is the mask's `sample`, and whose query 0 is its `query`.
  MaskRef shifted(int sample, int query) const {
    MaskRef other = *this;
    other.sample_ += sample;
    other.query_ += query;
    return other;
  }

  /// True if ranges() describe the mask completely.
  bool exact() const { return exact_; }
  /// The ranges of queries q, ..., q + n - 1, cut to [0, Lk).
  RangeSummary ranges(int b, int h, int q, int n, int Lk, KeyRange* out) const {
    return functions_->ranges(mask_, b + sample_, h, q + query_, n, Lk, out);
  }
  /// For queries q, ..., q + n - 1 the visibility of `keys` <= 64 keys from k on, one bit each. The bits are valid only
  /// inside the ranges.
  void words(int b, int h, int q, int n, int k, int keys, std::uint64_t* out) const {
    functions_->words(mask_, b + sample_, h, q + query_, n, k, keys, out);
  }
  /// A key >= k such that queries q, ..., q + n - 1 see none of the keys from k up to it.
  Index next(int b, int h, int q, int n, Index k) const {
    return functions_->next(mask_, b + sample_, h, q + query_, n, k);
  }
  /// True if key k is visible to query q.
  bool visible(int b, int h, int q, int k) const { return functions_->visible(mask_, b + sample_, h, q + query_, k); }

 private:
  template <class M>
  static KeyRange range_of(const void* p, int b, int h, int q) {
    return static_cast<const M*>(p)->range(b, h, q);
  }
  template <class M>
  static RangeSummary ranges_of(const void* p, int b, int h, int q, int n, int Lk, KeyRange* out) {
    const M& m = *static_cast<const M*>(p);
    RangeSummary all{Lk, 0, 0, Lk};
    for (int i = 0; i < n; ++i) {
      const KeyRange r = m.range(b, h, q + i);
      const int last = static_cast<int>(std::clamp<Index>(r.end, 0, Lk));
      const int first = static_cast<int>(std::clamp<Index>(r.begin, 0, last));
      out[i] = {first, last};
      all.full_low = std::max(all.full_low, first);
      all.full_high = std::min(all.full_high, last);
      if (first == last) continue;
      all.low = std::min(all.low, first);
      all.high = std::max(all.high, last);
    }
    return all;
  }
  template <class M>
  static void words_of(const void* p, int b, int h, int q, int n, int k, int keys, std::uint64_t* out) {
    const M& m = *static_cast<const M*>(p);
    for (int i = 0; i < n; ++i) out[i] = detail::visible_word(m, b, h, q + i, k, keys);
  }
  template <class M>
  static Index next_of(const void* p, int b, int h, int q, int n, Index k) {
    const M& m = *static_cast<const M*>(p);
    Index next = kAllKeys.end;
    for (int i = 0; i < n && next > k; ++i) next = std::min(next, detail::next_candidate(m, b, h, q + i, k));
    return next;
  }
  template <class M>
  static bool visible_of(const void* p, int b, int h, int q, int k) {
    return is_visible(*static_cast<const M*>(p), b, h, q, k);
  }

  const void* mask_;
  const Functions* functions_;
  bool exact_;
  int sample_ = 0, query_ = 0;  // of the call's first
};

/// One line per query, one character per key: '#' is visible, '.' hidden. Throws as the mask's bind() does.
///
///     to_string(Causal{}, {.Lq = 3, .Lk = 3}) is
///       #..
///       ##.
///       ###
template <Mask M>
std::string to_string(const M& mask, const AttentionShape& shape, int b = 0, int h = 0) {
  const auto bound = bind(mask, shape);
  std::string picture;
  for (int q = 0; q < shape.Lq; ++q) {
    for (int k = 0; k < shape.Lk; ++k) picture += is_visible(bound, b, h, q, k) ? '#' : '.';
    picture += '\n';
  }
  return picture;
}

/// For one sample and one head of Lq queries and Lk keys.
template <Mask M>
std::string to_string(const M& mask, int Lq, int Lk) {
  return to_string(mask, {.Lq = Lq, .Lk = Lk});
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
