// SPDX-License-Identifier: MIT
// Fuzzes masks: for any expression of masks and any shape, visibility, ranges, words, the next candidate and the lists
// of keys that kernels work on agree with the definition, asked pair by pair.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

#include <heed/attention/softmax/key_list.hpp>
#include <heed/mask/bool_mask.hpp>
#include <heed/mask/sparse.hpp>

#include "common/any_mask.hpp"
#include "fuzz/fuzz_input.hpp"

namespace {

using heed_test::FuzzInput;
using heed_test::require;

/// A mask that is bound to a shape, and the truth about it.
template <class M>
class MaskCheck {
 public:
  MaskCheck(const M& bound, const heed::AttentionShape& shape, const heed_test::Truth& truth)
      : mask_(bound), reference_(bound), shape_(shape), truth_(shape, truth) {}

  void run(FuzzInput& input) const {
    for (int b = 0; b < shape_.B; ++b) {
      for (int h = 0; h < shape_.H; ++h) {
        for (int q = 0; q < shape_.Lq; ++q) check_query(b, h, q);
      }
    }
    if (shape_.B * shape_.H * shape_.Lq == 0) return;
    const int b = input.integer(0, shape_.B - 1), h = input.integer(0, shape_.H - 1);
    check_words(b, h, input);
    check_next(b, h, input);
    check_ranges(b, h, input);
    check_tiles<float, 8>(b, h, input);
    check_tiles<double, 4>(b, h, input);
  }

 private:
  void check_query(int b, int h, int q) const {
    const heed::KeyRange range = mask_.range(b, h, q);
    for (int k = 0; k < shape_.Lk; ++k) {
      const bool seen = truth_(b, h, q, k);
      require(is_visible(mask_, b, h, q, k) == seen, "visible() is the definition");
      require(reference_.visible(b, h, q, k) == seen, "so it is through a reference");
      require(range.contains(k) || !seen, "a visible key is in the range");
      require(!range.contains(k) || seen || !reference_.exact(), "a key in an exact range is visible");
    }
  }

  /// The bits of keys k, ..., k + n - 1 by definition.
  std::uint64_t truth_bits(int b, int h, int q, int k, int n) const {
    std::uint64_t bits = 0;
    for (int i = 0; i < n; ++i) bits |= std::uint64_t{truth_(b, h, q, k + i)} << i;
    return bits;
  }

  void check_words(int b, int h, FuzzInput& input) const {
    if (shape_.Lk == 0) return;
    const int k = input.integer(0, shape_.Lk - 1), n = input.integer(1, std::min(64, shape_.Lk - k));
    for (int q = 0; q < shape_.Lq; ++q) {
      const std::uint64_t bits = truth_bits(b, h, q, k, n);
      require(heed::detail::truth_word(mask_, b, h, q, k, n) == bits, "a word has a bit for each visible key");
      std::uint64_t word = 0;
      reference_.words(b, h, q, 1, k, n, &word);
      require((word & heed::detail::range_word(mask_.range(b, h, q), k, n)) == bits, "so it has through a reference");
    }
  }

  void check_next(int b, int h, FuzzInput& input) const {
    const int n = input.integer(1, std::min(8, shape_.Lq)), first = input.integer(0, shape_.Lq - n);
    for (int k = 0; k <= shape_.Lk; ++k) {
      const heed::Index next = reference_.next(b, h, first, n, k);
      require(next >= k, "next() does not go back");
      for (int j = k; j < std::min<heed::Index>(next, shape_.Lk); ++j) {
        for (int q = first; q < first + n; ++q) require(!truth_(b, h, q, j), "next() passes no visible key");
      }
    }
  }

  void check_ranges(int b, int h, FuzzInput& input) const {
    const int n = input.integer(1, std::min(16, shape_.Lq)), first = input.integer(0, shape_.Lq - n);
    std::vector<heed::KeyRange> ranges(static_cast<std::size_t>(n));
    const heed::RangeSummary all = reference_.ranges(b, h, first, n, shape_.Lk, ranges.data());
    for (int i = 0; i < n; ++i) {
      const heed::KeyRange r = ranges[static_cast<std::size_t>(i)], raw = mask_.range(b, h, first + i);
      require(0 <= r.begin && r.begin <= r.end && r.end <= shape_.Lk, "a range is cut to the keys that exist");
      for (int k = 0; k < shape_.Lk; ++k) {
        require(r.contains(k) == raw.contains(k), "cutting a range moves no border");
        require(!r.contains(k) || (all.low <= k && k < all.high), "the hull covers every range");
        require(r.contains(k) || k < all.full_low || k >= all.full_high, "the full part is in every range");
      }
    }
  }

  /// The list of keys of a tile against the pairs of a block of queries.
  template <class A, int Lanes>
  void check_tiles(int b, int h, FuzzInput& input) const {
    const int first = input.integer(0, shape_.Lq - 1), count = input.integer(1, std::min(Lanes, shape_.Lq - first));
    const int tile = input.integer(1, heed::detail::kMaxTileKeys);
    heed::detail::LaneMask<A, Lanes> lanes;
    heed::detail::KeyList<A, Lanes> keys;
    lanes.begin(reference_, b, h, first, count, shape_.Lk);
    for (int k = 0; k < shape_.Lk; k += tile) {
      const int n = std::min(tile, shape_.Lk - k);
      keys.begin_tile(k, n);
      lanes.list_keys(reference_, b, h, k, n, keys);
      std::uint64_t listed = 0;
      for (int r = 0; r < keys.count; ++r) {
        require(k <= keys.key[r] && keys.key[r] < k + n, "a listed key is in the tile");
        require(r == 0 || keys.key[r - 1] < keys.key[r], "listed keys are in order");
        listed |= std::uint64_t{1} << (keys.key[r] - k);
      }
      for (int lane = 0; lane < Lanes; ++lane) {
        const std::uint64_t seen = truth_bits(b, h, first + std::min(lane, count - 1), k, n);
        require((seen & ~listed) == 0, "a key that a query sees is listed");
        for (int r = 0; r < keys.count; ++r) {
          const bool visible = (seen >> (keys.key[r] - k) & 1) != 0;
          if (!keys.masked) {
            require(visible, "an unmasked list holds what every query sees");
            continue;
          }
          constexpr int bits = heed::detail::KeyList<A, Lanes>::word_bits;
          require((keys.visible[lane] >> r & 1) == std::uint64_t{visible}, "a lane has a bit for each key it sees");
          require((keys.lane_words[r / bits][lane] >> (r % bits) & 1) == (visible ? 1u : 0u), "and one in its words");
        }
      }
      for (int r = 0; r < keys.count; ++r) {
        bool any = false;
        for (int i = 0; i < count; ++i) any = any || truth_(b, h, first + i, keys.key[r]);
        require(any, "some query sees a listed key");
      }
    }
  }

  const M& mask_;
  heed::MaskRef reference_;
  heed::AttentionShape shape_;
  heed_test::TruthTable truth_;
};

/// Binds a mask and checks it.
template <class M>
void check(const M& mask, const heed::AttentionShape& shape, const heed_test::Truth& truth, FuzzInput& input) {
  const auto bound = bind(mask, shape);
  MaskCheck(bound, shape, truth).run(input);
}

/// Expressions of masks by their types, which take other ways than AnyMask: what ranges describe stays a range.
void check_typed(const heed::AttentionShape& s, FuzzInput& input) {
  std::vector<int> lengths, firsts, queries{0}, keys{0};
  for (int b = 0; b < s.B; ++b) {
    lengths.push_back(input.integer(0, s.Lk));
    firsts.push_back(input.chance(0.05) ? std::numeric_limits<int>::max() : input.integer(0, s.Lk + 2));
  }
  for (int i = input.integer(1, 3); i-- > 0;) {
    queries.push_back(input.integer(queries.back(), s.Lq));
    keys.push_back(input.integer(keys.back(), s.Lk));
  }
  queries.push_back(s.Lq);
  keys.push_back(s.Lk);
  // Sums with the largest numbers must not overflow.
  const auto width = [&]() -> heed::Index {
    constexpr heed::Index largest = std::numeric_limits<heed::Index>::max();
    if (input.chance(0.9)) return input.integer(0, 9);
    return input.pick({heed::Index{std::numeric_limits<int>::max()}, largest / 2, largest});
  };
  const heed::Index left = width(), right = width(), stride = std::max<heed::Index>(width(), 1);
  const auto causal = heed::Causal::from(firsts);
  const auto window = heed::Window::from(firsts, left, right);
  const heed::Padding padding(lengths);
  const heed::DocumentMask packed(queries, keys);
  const auto strided = heed::Strided::from(firsts, stride, right);
  const heed::GlobalTokens global(left);
  const auto at = [](const std::vector<int>& list, int i) { return list[static_cast<std::size_t>(i)]; };
  // The key's distance from the query's position.
  const auto after = [&](int b, int q, int k) { return heed::Index{k} - at(firsts, b) - q; };
  const auto is_past = [&](int b, int q, int k) { return after(b, q, k) <= 0; };
  const auto is_real = [&](int b, int k) { return k < at(lengths, b); };
  const auto is_near = [&](int b, int q, int k) { return -after(b, q, k) <= left && after(b, q, k) <= right; };
  const auto is_own = [&](int q, int k) {
    const auto sequence = [](const std::vector<int>& offsets, int i) {
      return std::upper_bound(offsets.begin(), offsets.end(), i) - offsets.begin();
    };
    return sequence(queries, q) == sequence(keys, k);
  };
  const auto is_strided = [&](int b, int q, int k) { return k % stride == 0 || std::abs(after(b, q, k)) <= right; };
  switch (input.integer(0, 6)) {
    case 0:
      return check(
          causal & padding, s, [&](int b, int, int q, int k) { return is_past(b, q, k) && is_real(b, k); }, input);
    case 1:
      return check(
          window & padding & packed, s,
          [&](int b, int, int q, int k) { return is_near(b, q, k) && is_real(b, k) && is_own(q, k); }, input);
    case 2:
      return check(
          (window | global) & causal, s,
          [&](int b, int, int q, int k) { return (is_near(b, q, k) || q < left || k < left) && is_past(b, q, k); },
          input);
    case 3:
      return check(
          strided & padding, s, [&](int b, int, int q, int k) { return is_strided(b, q, k) && is_real(b, k); }, input);
    case 4:
      return check((!packed) | window, s, [&](int b, int, int q, int k) { return !is_own(q, k) || is_near(b, q, k); },
                   input);
    case 5:
      return check(
          !(causal & padding), s, [&](int b, int, int q, int k) { return !(is_past(b, q, k) && is_real(b, k)); },
          input);
    default:
      return check(
          packed | (strided & window), s,
          [&](int b, int, int q, int k) { return is_own(q, k) || (is_strided(b, q, k) && is_near(b, q, k)); }, input);
  }
}

}  // namespace

void heed_test::fuzz(FuzzInput& input) {
  heed::AttentionShape s;
  s.B = input.integer(0, 2);
  s.H = input.integer(0, 2);
  // Beyond the 64 keys of a word and a tile.
  const auto length = [&] { return input.chance(0.7) ? input.integer(0, 12) : input.integer(0, 150); };
  s.Lq = length();
  s.Lk = input.chance(0.3) ? s.Lq : length();
  if (s.Lq * s.Lk > 3000) s.Lq = 3000 / s.Lk;
  if (input.chance(0.2)) {
    check_typed(s, input);
  } else {
    const MaskCase mask = input.chance(0.3) ? random_sequences(s, input) : random_mask(s, input);
    mask.with_mask([&](const auto& m) { check(m, s, mask.truth(), input); });
  }
}
