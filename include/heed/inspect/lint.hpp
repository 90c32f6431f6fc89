// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// lint(): compares a mask with its purpose and names the common mistakes.
///
///     for (const auto& f : heed::lint(heed::BoolMask::keep(m), {.B = 2, .H = 8, .Lq = 64, .Lk = 64},
///                                     {.causal = true, .lengths = lengths}))
///       std::printf("%s %s\n", f.text.c_str(), f.fix.c_str());

#include <vector>

#include <heed/core/core.hpp>
#include <heed/mask/concept.hpp>

HEED_NAMESPACE_BEGIN

/// The keys that a mask should show: all but padding, and, if causal, no later ones.
struct MaskExpectation {
  bool causal = false;  ///< queries see only keys at and before their position
  /// The number of keys of each sample that are not padding; empty means all. If queries and keys are the same tokens,
  /// rows of padded queries are ignored.
  std::vector<int> lengths = {};
  /// The position of the first query of each sample among its keys, that is, the number of tokens in its cache before
  /// the call. If empty, the last query is aligned with the last key.
  std::vector<int> first_positions = {};
  bool may_hide_more = false;  ///< the mask may hide further keys, as windows and document masks do
};

/// The mistakes that lint() finds.
enum class MaskMistake {
  PolaritySwapped,    ///< visible and hidden are exchanged
  Transposed,         ///< queries and keys are exchanged
  WrongAlignment,     ///< causal, with other positions of the queries
  OwnPositionHidden,  ///< causal, but a query does not see its position
  SeesNextPosition,   ///< causal, but one key too far
  HeadOrder,          ///< masks of the samples are repeated over the heads in the wrong order
  CausalMissing,      ///< later keys are visible
  PaddingMissing,     ///< padded keys are visible
  NoVisibleKey,       ///< queries that should see keys see none
  HidesTooMuch,       ///< keys that should be visible are hidden
};

/// The name in snake case, such as "polarity_swapped".
inline std::string_view to_string(MaskMistake mistake) {
  constexpr std::string_view names[] = {"polarity_swapped",   "transposed",    "wrong_alignment", "own_position_hidden",
                                        "sees_next_position", "head_order",    "causal_missing",  "padding_missing",
                                        "no_visible_key",     "hides_too_much"};
  return names[static_cast<std::size_t>(mistake)];
}

/// A mistake that lint() found.
struct MaskFinding {
  MaskMistake mistake;  ///< its kind
  std::string text;     ///< a sentence for people, with the first pair that shows it
  std::string fix;      ///< a sentence that says how to correct the mask
};

namespace detail {

/// Compares a mask first with the result of each common mistake, then pair by pair with the expected mask.
class MaskLinter {
 public:
  MaskLinter(ObservedMask mask, const AttentionShape& shape, const MaskExpectation& expected)
      : mask_(mask), shape_(shape), expected_(expected) {}

  std::vector<MaskFinding> run() {
    if (!is_as_expected() && !is_one_mistake()) add_symptoms();
    return std::move(findings_);
  }

 private:
  // ---- The expected mask --------------------------------------------------------------------------------------------

  int first(int b) const {
    const auto& list = expected_.first_positions;
    return list.empty() ? shape_.Lk - shape_.Lq : list[static_cast<std::size_t>(b)];
  }
  bool is_past(int b, int q, int k) const { return !expected_.causal || k <= first(b) + q; }
  bool is_real(int b, int k) const {
    return expected_.lengths.empty() || k < expected_.lengths[static_cast<std::size_t>(b)];
  }
  /// False if query q is padding, whose row is ignored.
  bool counts(int b, int q) const {
    const bool same_tokens = shape_.Lq == shape_.Lk && expected_.first_positions.empty();
    return !same_tokens || is_real(b, q);
  }
  bool wanted(int b, int q, int k) const { return is_past(b, q, k) && is_real(b, k); }

  template <class F>
  void for_each_pair(F&& f) const {
    for (int b = 0; b < shape_.B; ++b) {
      for (int h = 0; h < shape_.H; ++h) {
        for (int q = 0; q < shape_.Lq; ++q) {
          if (!counts(b, q)) continue;
          for (int k = 0; k < shape_.Lk; ++k) {
            if (!f(b, h, q, k)) return;
          }
        }
      }
    }
  }
  /// True if the mask equals `form` in all rows that count.
  bool is(FunctionRef<bool(int b, int h, int q, int k)> form) const {
    bool same = true;
    for_each_pair([&](int b, int h, int q, int k) { return same = mask_(b, h, q, k) == form(b, h, q, k); });
    return same;
  }

  bool is_as_expected() const {
    return is([&](int b, int, int q, int k) { return wanted(b, q, k); });
  }

  // ---- Mistakes that explain the whole mask -------------------------------------------------------------------------

  bool found(MaskMistake mistake, std::string text, std::string fix) {
    findings_.push_back({mistake, std::move(text), std::move(fix)});
    return true;
  }

  bool is_one_mistake() {
    if (expected_.may_hide_more) return false;
    return is_swapped() || (expected_.causal && (is_misaligned() || is_transposed())) || is_in_wrong_head_order();
  }

  bool is_swapped() {
    const char* fix =
        "For BoolMask::keep(m) true means visible; for BoolMask::ignore(m) true means hidden, as in PyTorch's "
        "nn.MultiheadAttention. Use the other function, or !mask.";
    if (is([&](int b, int, int q, int k) { return !wanted(b, q, k); })) {
      return found(MaskMistake::PolaritySwapped,
                   "The mask hides what should be visible and shows what should be hidden.", fix);
    }
    if (expected_.lengths.empty() || !expected_.causal) return false;
    if (is([&](int b, int, int q, int k) { return is_past(b, q, k) && !is_real(b, k); })) {
      return found(MaskMistake::PolaritySwapped, "The mask shows the padding and hides the real keys.", fix);
    }
    if (is([&](int b, int, int q, int k) { return !is_past(b, q, k) && is_real(b, k); })) {
      return found(MaskMistake::PolaritySwapped, "The causal part shows the later keys and hides the earlier ones.",
                   fix);
    }
    return false;
  }

  /// True if the mask is causal with query q of sample b at position(b, q).
  bool is_causal_at(FunctionRef<int(int b, int q)> position) const {
    return is([&](int b, int, int q, int k) { return k <= position(b, q) && is_real(b, k); });
  }
  bool is_misaligned() {
    const int bottom = shape_.Lk - shape_.Lq;
    const char* fix =
        "Choose the alignment: Causal::bottom_right() aligns the last query with the last key, "
        "Causal::from(first_positions) serves caches of different lengths, Causal::top_left() aligns query 0 with key "
        "0.";
    if (is_causal_at([](int, int q) { return q; })) {
      return found(MaskMistake::WrongAlignment,
                   concat("The causal mask is aligned top-left, query 0 at key 0, but query 0 of sample 0 is at key ",
                          first(0), '.'),
                   fix);
    }
    if (is_causal_at([&](int, int q) { return bottom + q; })) {
      return found(MaskMistake::WrongAlignment,
                   concat("The causal mask is aligned bottom-right, the last query at the last key, but query 0 of "
                          "sample 0 is at key ",
                          first(0), ", not at ", bottom, '.'),
                   fix);
    }
    if (is_causal_at([&](int b, int q) { return first(b) + q - 1; })) {
      return found(MaskMistake::OwnPositionHidden,
                   "Queries do not see their own position, and the first query sees nothing: the triangle lacks its "
                   "diagonal.",
                   "Use Causal{}, which includes the diagonal, as tril(0) does and tril(-1) does not.");
    }
    if (is_causal_at([&](int b, int q) { return first(b) + q + 1; })) {
      return found(MaskMistake::SeesNextPosition,
                   "Queries see the next position, which they should predict: the triangle is shifted by one.",
                   "Use Causal{}, which ends at the diagonal. Shift the targets against the inputs, not the mask.");
    }
    return false;
  }
  bool is_transposed() {
    if (shape_.Lq != shape_.Lk) return false;
    return is([&](int b, int, int q, int k) { return k >= q && is_real(b, k); }) &&
           found(MaskMistake::Transposed,
                 "Queries see the keys from their position on: queries and keys are exchanged.",
                 "Rows of a mask are queries and columns are keys, so that a causal mask is the lower triangle. Use "
                 "Causal{}.");
  }

  bool is_in_wrong_head_order() {
    if (expected_.lengths.empty() && expected_.first_positions.empty()) return false;
    return is([&](int b, int h, int q, int k) {
             const int sample = (b * shape_.H + h) % shape_.B;
             return wanted(sample, q, k);
           }) &&
           found(MaskMistake::HeadOrder,
                 "Heads see the masks of other samples: row b\u00B7H + h of the repeated mask holds sample "
                 "(b\u00B7H + h) mod B.",
                 "Repeat each sample's mask H times in a row (repeat_interleave, not repeat), or give BoolMask an H "
                 "of 1, which is broadcast.");
  }

  // ---- Other symptoms --------------------------------------------------------------------------------------------

  /// Counts the pairs that show a symptom and keeps the first of them.
  struct Count {
    long seen = 0, all = 0;
    std::string where = {};

    void add(bool here, int b, int h, int q, int k) {
      ++all;
      if (here && seen++ == 0) where = concat("sample ", b, ", head ", h, ", query ", q, ", key ", k);
    }
    std::string text(std::string_view pairs) const {
      return concat(seen == all ? "all " : concat(seen, " of "), all, ' ', pairs, ", first at ", where, '.');
    }
  };

  void add_symptoms() {
    Count later, padded, hidden;
    for_each_pair([&](int b, int h, int q, int k) {
      const bool visible = mask_(b, h, q, k);
      if (!is_real(b, k))
        padded.add(visible, b, h, q, k);
      else if (!is_past(b, q, k))
        later.add(visible, b, h, q, k);
      else
        hidden.add(!visible, b, h, q, k);
      return true;
    });
    if (later.seen > 0) {
      found(MaskMistake::CausalMissing, "Queries see later keys: " + later.text("such pairs"),
            "Intersect with Causal{}: mask & Causal{}.");
    }
    if (padded.seen > 0) {
      found(MaskMistake::PaddingMissing, "Queries see padded keys: " + padded.text("such pairs"),
            "Intersect with the lengths: mask & Padding(lengths).");
    }
    add_empty_rows();
    if (hidden.seen > 0 && !expected_.may_hide_more) {
      found(MaskMistake::HidesTooMuch, "Keys that should be visible are hidden: " + hidden.text("such pairs"),
            "If the mask should hide them (a window, documents), set .may_hide_more = true.");
    }
  }
  void add_empty_rows() {
    Count empty;
    for (int b = 0; b < shape_.B; ++b) {
      for (int h = 0; h < shape_.H; ++h) {
        for (int q = 0; q < shape_.Lq; ++q) {
          bool any_wanted = false, any_visible = false;
          for (int k = 0; k < shape_.Lk && counts(b, q); ++k) {
            any_wanted = any_wanted || wanted(b, q, k);
            any_visible = any_visible || mask_(b, h, q, k);
          }
          if (any_wanted) empty.add(!any_visible, b, h, q, 0);
        }
      }
    }
    if (empty.seen > 0) {
      found(MaskMistake::NoVisibleKey, "Queries see no key at all: " + empty.text("queries"),
            "Their attention output is 0. Check the ranges, and masks that exclude each other.");
    }
  }

  ObservedMask mask_;
  const AttentionShape& shape_;
  const MaskExpectation& expected_;
  std::vector<MaskFinding> findings_;
};

inline void check_expectation(const AttentionShape& s, const MaskExpectation& e) {
  const auto check = [&](const std::vector<int>& list, const char* name, int limit) {
    HEED_CHECK(list.empty() || static_cast<int>(list.size()) == s.B, ShapeError, "heed::lint: ", list.size(), ' ', name,
               " but B = ", s.B, "; give one for each sample, or none");
    for (const int value : list) {
      HEED_CHECK(value >= 0 && value <= limit, ValueError, "heed::lint: ", value, " among the ", name,
                 " must be between 0 and Lk = ", limit);
    }
  };
  HEED_CHECK(s.B >= 0 && s.H >= 0 && s.Lq >= 0 && s.Lk >= 0, ShapeError, "heed::lint: B = ", s.B, ", H = ", s.H,
             ", Lq = ", s.Lq, " and Lk = ", s.Lk, " must be non-negative");
  check(e.lengths, "lengths", s.Lk);
  check(e.first_positions, "first_positions", s.Lk);
}

}  // namespace detail

/// Compares a mask with the keys that it should show, and returns the mistakes found. If one common mistake explains
/// the whole mask, that is the only finding; otherwise each symptom is one. Reads every pair of (B, H, Lq, Lk) a few
/// times.
///
/// Throws as the bind() of the mask does (Causal{} without an alignment if Lq != Lk); ShapeError unless lengths and
/// first_positions have B entries or none, ValueError for entries outside [0, Lk].
template <Mask M>
std::vector<MaskFinding> lint(const M& mask, const AttentionShape& shape, const MaskExpectation& expected = {}) {
  detail::check_expectation(shape, expected);
  const auto bound = bind(mask, shape);
  const MaskRef reference(bound);
  const auto visible = [&](int b, int h, int q, int k) { return reference.visible(b, h, q, k); };
  return detail::MaskLinter(visible, shape, expected).run();
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
