// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// What a mask is. A mask says, for each query, which keys are visible; it selects and never adds numbers to scores.
///
/// A mask derives from MaskBase and gives
///   KeyRange range(int b, int h, int q) const          the visible keys are in [begin, end); required
///   bool visible(int b, int h, int q, int k) const     which of them; without it, all
///   std::uint64_t word(int b, int h, int q, int k, int n) const
///                                                      for speed: bit i tells visible(b, h, q, k + i), n <= 64 keys
///   Index next(int b, int h, int q, Index k) const     for speed: from k on, no key before this one is visible
///   auto bind(const AttentionShape&) const             checks the mask against a call, returns the mask to use for it
/// Only `range` is required. `a & b` intersects, `a | b` unites, `!a` complements (g++ -Wall wants `(!a) & b`);
/// heed::mask(f) makes one of a function.

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <iterator>
#include <limits>
#include <ranges>
#include <type_traits>
#include <utility>

#include <heed/core/config.hpp>
#include <heed/core/error.hpp>

HEED_NAMESPACE_BEGIN

/// The extents of one attention call: q (B, H, Lq, Dk), k (B, G, Lk, Dk), v (B, G, Lk, Dv).
struct AttentionShape {
  int B = 0, H = 0, G = 0, Lq = 0, Lk = 0, Dk = 0, Dv = 0;  ///< the extents, by their letters
};

/// Keys [begin, end). May reach beyond the keys that exist; empty when end <= begin.
struct KeyRange {
  Index begin = 0, end = 0;
  /// Whether key k lies in the range.
  constexpr bool contains(Index k) const { return begin <= k && k < end; }
};

/// Every key there is.
inline constexpr KeyRange kAllKeys{0, std::numeric_limits<Index>::max() / 2};

/// Masks derive from it, so that `&`, `|` and `!` are found for them and for nothing else.
struct MaskBase {};

template <class M>
concept Mask = std::derived_from<std::remove_cvref_t<M>, MaskBase> && requires(const M& m, int i) {
  { m.range(i, i, i) } -> std::convertible_to<KeyRange>;
};

/// A mask whose range is the whole truth.
template <class M>
concept RangeMask = Mask<M> && !requires(const M& m, int i) { m.visible(i, i, i, i); };

/// Whether key k is visible to query q of head h of sample b.
template <Mask M>
constexpr bool is_visible(const M& m, int b, int h, int q, int k) {
  if (!m.range(b, h, q).contains(k)) return false;
  if constexpr (RangeMask<M>)
    return true;
  else
    return m.visible(b, h, q, k);
}

/// The mask that serves a call of this shape; throws what the mask finds wrong with it.
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
/// Bit i tells whether k + i lies in the range; n <= 64 keys.
constexpr std::uint64_t range_word(KeyRange r, int k, int n) {
  return low_bits(std::min<Index>(r.end - k, n)) & ~low_bits(std::min<Index>(r.begin - k, n));
}

/// 64 bytes of 0 or 1 as the bits of a word.
inline std::uint64_t pack_bits(const unsigned char (&bytes)[64]) {
  std::uint64_t word = 0;
  for (int i = 0; i < 64; i += 8) {
    std::uint64_t eight = 0;
    for (int j = 0; j < 8; ++j) eight |= std::uint64_t{bytes[i + j]} << (8 * j);
    word |= ((eight * 0x0102040810204080u) >> 56) << i;
  }
  return word;
}

/// visible() of n keys from k on, without regard to the range.
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
/// is_visible() of n keys from k on.
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

/// Visible where both are.
template <Mask A, Mask B>
struct And : MaskBase {
  A a;
  B b;
  And(A first, B second) : a(std::move(first)), b(std::move(second)) {}

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
  auto bind(const AttentionShape& shape) const {
    using BoundA = decltype(heed::bind(a, shape));
    using BoundB = decltype(heed::bind(b, shape));
    return And<BoundA, BoundB>(heed::bind(a, shape), heed::bind(b, shape));
  }
};

/// Visible where at least one is.
template <Mask A, Mask B>
struct Or : MaskBase {
  A a;
  B b;
  Or(A first, B second) : a(std::move(first)), b(std::move(second)) {}

  /// The hull of both ranges.
  KeyRange range(int sample, int h, int q) const {
    const KeyRange x = a.range(sample, h, q), y = b.range(sample, h, q);
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
};

/// Visible where the other is not.
template <Mask A>
struct Not : MaskBase {
  A a;
  /// Of this one.
  explicit Not(A mask) : a(std::move(mask)) {}

  KeyRange range(int, int, int) const { return kAllKeys; }
  bool visible(int b, int h, int q, int k) const { return !is_visible(a, b, h, q, k); }
  std::uint64_t word(int b, int h, int q, int k, int n) const { return ~detail::truth_word(a, b, h, q, k, n); }
  auto bind(const AttentionShape& shape) const {
    using Bound = decltype(heed::bind(a, shape));
    return Not<Bound>(heed::bind(a, shape));
  }
};

/// Visible where both are.
template <Mask A, Mask B>
And<A, B> operator&(A a, B b) {
  return {std::move(a), std::move(b)};
}
/// Visible where at least one is.
template <Mask A, Mask B>
Or<A, B> operator|(A a, B b) {
  return {std::move(a), std::move(b)};
}
/// Visible where the mask is not.
template <Mask A>
Not<A> operator!(A a) {
  return Not<A>(std::move(a));
}

/// A mask from a function of (b, h, q, k) or (q, k) that tells whether key k is visible.
template <class F>
struct FunctionMask : MaskBase {
  F f;
  explicit FunctionMask(F function) : f(std::move(function)) {}

  KeyRange range(int, int, int) const { return kAllKeys; }
  bool visible(int b, int h, int q, int k) const {
    if constexpr (std::is_invocable_v<const F&, int, int, int, int>)
      return f(b, h, q, k);
    else
      return f(q, k);
  }
};

/// heed::mask([](int q, int k) { return (q + k) % 2 == 0; }): visible where the function says true. Intersect it with a
/// mask that has ranges (`& Causal{}`) where the function is false in whole regions: regions are then skipped unseen.
template <class F>
requires(std::is_invocable_r_v<bool, const F&, int, int, int, int> || std::is_invocable_r_v<bool, const F&, int, int>)
FunctionMask<F> mask(F f) {
  return FunctionMask<F>(std::move(f));
}

namespace detail {

/// Ints next to each other in memory: std::vector, std::array, std::span, int[n], an Eigen vector of its own (not a
/// strided block).
template <class C>
concept ContiguousInts = requires(const C& c) {
  { std::data(c) } -> std::convertible_to<const int*>;
  std::size(c);
} && (std::ranges::contiguous_range<C> || std::derived_from<C, Eigen::PlainObjectBase<C>>);

}  // namespace detail

/// A borrowed list of int. Neither an owning temporary nor a list in braces compiles: masks live longer than it would.
class IntSpan {
 public:
  /// A std::vector, std::array, std::span, int[n] or Eigen vector that lives on.
  template <class C>
  requires(detail::ContiguousInts<std::remove_cvref_t<C>> &&
           (std::is_lvalue_reference_v<C> || std::ranges::enable_borrowed_range<std::remove_cvref_t<C>>))
  IntSpan(C&& c) : data_(std::data(c)), size_(static_cast<int>(std::size(c))) {}

  int size() const { return size_; }
  /// Number i; unchecked.
  int operator[](int i) const { return data_[i]; }
  const int* begin() const { return data_; }
  const int* end() const { return data_ + size_; }

 private:
  const int* data_;
  int size_;
};

/// What several queries see together.
struct RangeSummary {
  /// The hull of the ranges that are not empty; low >= high when there is none.
  int low, high;
  /// What is in all ranges.
  int full_low, full_high;
};

/// A borrowed mask of any type. Attention kernels take it, so that they are compiled once and not once per mask. The
/// mask must have been bound and must outlive the reference.
class MaskRef {
 public:
  /// The functions of one type of mask; the first argument of each points to the mask.
  struct Functions {
    KeyRange (*range)(const void*, int b, int h, int q);
    RangeSummary (*ranges)(const void*, int b, int h, int q, int n, int Lk, KeyRange* out);
    void (*words)(const void*, int b, int h, int q, int n, int k, int keys, std::uint64_t* out);
    Index (*next)(const void*, int b, int h, int q, int n, Index k);
    bool (*visible)(const void*, int b, int h, int q, int k);
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

  /// True if ranges() describe the mask completely.
  bool exact() const { return exact_; }
  /// The ranges of queries q, ..., q + n - 1, cut to [0, Lk).
  RangeSummary ranges(int b, int h, int q, int n, int Lk, KeyRange* out) const {
    return functions_->ranges(mask_, b, h, q, n, Lk, out);
  }
  /// For queries q, ..., q + n - 1 the visibility of `keys` <= 64 keys from k on, one bit each. The bits are valid only
  /// inside the ranges.
  void words(int b, int h, int q, int n, int k, int keys, std::uint64_t* out) const {
    functions_->words(mask_, b, h, q, n, k, keys, out);
  }
  /// A key >= k such that queries q, ..., q + n - 1 see none of the keys from k up to it.
  Index next(int b, int h, int q, int n, Index k) const { return functions_->next(mask_, b, h, q, n, k); }
  /// True if key k is visible to query q.
  bool visible(int b, int h, int q, int k) const { return functions_->visible(mask_, b, h, q, k); }

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
};

HEED_NAMESPACE_END
