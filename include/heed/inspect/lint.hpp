// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The classic mistakes with masks, named.
///
///     for (const auto& f : heed::lint(heed::BoolMask::keep(m), {.batch = 2, .heads = 8, .queries = 64, .keys = 64,
///                                                            .causal = true, .lengths = lengths}))
///       std::printf("%s %s\n", f.text.c_str(), f.fix.c_str());

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/mask/concept.hpp>

HEED_NAMESPACE_BEGIN

/// A call, and what its mask is meant to let through.
struct MaskExpectation {
  int batch = 1;     ///< B
  int heads = 1;     ///< H
  int queries;       ///< Lq
  int keys;          ///< Lk
  int kv_heads = 0;  ///< G; 0 stands for H
  /// Whether a query may see the keys up to its own position only.
  bool causal = false;
  /// How many keys of each sample are real, from the first on; without any, all are. Where queries and keys are the
  /// same tokens, rows of padded queries may hold anything.
  std::vector<int> lengths = {};
  /// The position of the first query of each sample among its keys: how many tokens its cache held before the call.
  /// Without any, the last query stands at the last key.
  std::vector<int> first_positions = {};
  /// Whether the mask may hide more than that: a window, global tokens, packed sequences.
  bool may_hide_more = false;
};

/// The mistakes that lint() knows.
enum class MaskMistake {
  PolaritySwapped,    ///< hides what it should show
  Transposed,         ///< queries and keys are exchanged
  WrongAlignment,     ///< causal, with the queries at other positions
  OwnPositionHidden,  ///< causal, and a query does not see itself
  SeesNextPosition,   ///< causal, one key too far
  HeadOrder,          ///< the masks of the samples are repeated over the heads in the wrong order
  CausalMissing,      ///< later keys are visible
  PaddingMissing,     ///< padded keys are visible
  NoVisibleKey,       ///< queries that should see keys see none
  HidesTooMuch,       ///< keys that should be visible are hidden
};

/// "polarity_swapped" and so on.
inline std::string_view to_string(MaskMistake mistake) {
  constexpr std::string_view names[] = {"polarity_swapped",   "transposed",    "wrong_alignment", "own_position_hidden",
                                        "sees_next_position", "head_order",    "causal_missing",  "padding_missing",
                                        "no_visible_key",     "hides_too_much"};
  return names[static_cast<std::size_t>(mistake)];
}

/// A mistake in a mask.
struct MaskFinding {
  MaskMistake mistake;  ///< which one
  /// What is seen, with the first pair that shows it.
  std::string text;
  /// What to write instead.
  std::string fix;
};

namespace detail {

/// Compares a mask with what is expected of it: first with what each classic mistake would give, then pair by pair.
class MaskLinter {
 public:
  MaskLinter(ObservedMask mask, const MaskExpectation& expected) : mask_(mask), expected_(expected) {}

  std::vector<MaskFinding> run() {
    if (!is_as_expected() && !is_one_mistake()) add_symptoms();
    return std::move(findings_);
  }

 private:
  // ---- What is expected ---------------------------------------------------------------------------------------------

  int first(int b) const {
    const auto& list = expected_.first_positions;
    return list.empty() ? expected_.keys - expected_.queries : list[static_cast<std::size_t>(b)];
  }
  bool is_past(int b, int q, int k) const { return !expected_.causal || k <= first(b) + q; }
  bool is_real(int b, int k) const {
    return expected_.lengths.empty() || k < expected_.lengths[static_cast<std::size_t>(b)];
  }
  /// Whether the row of a query means anything.
  bool counts(int b, int q) const {
    const bool same_tokens = expected_.queries == expected_.keys && expected_.first_positions.empty();
    return !same_tokens || is_real(b, q);
  }
  bool wanted(int b, int q, int k) const { return is_past(b, q, k) && is_real(b, k); }

  template <class F>
  void for_each_pair(F&& f) const {
    for (int b = 0; b < expected_.batch; ++b) {
      for (int h = 0; h < expected_.heads; ++h) {
        for (int q = 0; q < expected_.queries; ++q) {
          if (!counts(b, q)) continue;
          for (int k = 0; k < expected_.keys; ++k) {
            if (!f(b, h, q, k)) return;
          }
        }
      }
    }
  }
  /// Whether the mask is this one, wherever it matters.
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
        "In heed a mask tells what is visible: BoolMask::keep(m) reads true as visible, BoolMask::ignore(m) reads true "
        "as "
        "hidden, as PyTorch's nn.MultiheadAttention does; take the other one, or !mask.";
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

  /// Whether query q of sample b sees as if it stood at position(b, q).
  bool is_causal_at(FunctionRef<int(int b, int q)> position) const {
    return is([&](int b, int, int q, int k) { return k <= position(b, q) && is_real(b, k); });
  }
  bool is_misaligned() {
    const int bottom = expected_.keys - expected_.queries;
    const char* fix =
        "Name the alignment: Causal::bottom_right() where the last query stands at the last key, "
        "Causal::from(first_positions) for caches of different lengths, Causal::top_left() where query 0 stands at key "
        "0.";
    if (is_causal_at([](int, int q) { return q; })) {
      return found(
          MaskMistake::WrongAlignment,
          concat("The causal mask is aligned top-left, query 0 at key 0, but query 0 of sample 0 stands at key ",
                 first(0), '.'),
          fix);
    }
    if (is_causal_at([&](int, int q) { return bottom + q; })) {
      return found(MaskMistake::WrongAlignment,
                   concat("The causal mask is aligned bottom-right, the last query at the last key, but query 0 of "
                          "sample 0 stands at key ",
                          first(0), ", not at ", bottom, '.'),
                   fix);
    }
    if (is_causal_at([&](int b, int q) { return first(b) + q - 1; })) {
      return found(MaskMistake::OwnPositionHidden,
                   "A query does not see its own position, and the first one sees nothing: the triangle lacks its "
                   "diagonal.",
                   "Causal{} includes the own position, as tril(0) does and tril(-1) does not.");
    }
    if (is_causal_at([&](int b, int q) { return first(b) + q + 1; })) {
      return found(MaskMistake::SeesNextPosition,
                   "A query sees the position after its own, which it is to predict: the triangle is shifted by one.",
                   "Causal{} ends at the own position; shift inputs and targets against each other, not the mask.");
    }
    return false;
  }
  bool is_transposed() {
    if (expected_.queries != expected_.keys) return false;
    return is([&](int b, int, int q, int k) { return k >= q && is_real(b, k); }) &&
           found(MaskMistake::Transposed,
                 "A query sees the keys from its own position on: queries and keys are exchanged.",
                 "Rows of a mask are queries, columns are keys: it wants the lower triangle; use Causal{}.");
  }

  bool is_in_wrong_head_order() {
    if (expected_.lengths.empty() && expected_.first_positions.empty()) return false;
    return is([&](int b, int h, int q, int k) {
             const int sample = (b * expected_.heads + h) % expected_.batch;
             return wanted(sample, q, k);
           }) &&
           found(MaskMistake::HeadOrder,
                 "Heads see the masks of other samples: row b\u00B7H + h of the repeated mask holds sample "
                 "(b\u00B7H + h) mod B.",
                 "Repeat each sample's mask H times in a row (repeat_interleave, not repeat), or leave H = 1 in "
                 "BoolMask, "
                 "which is broadcast.");
  }

  // ---- What else is seen --------------------------------------------------------------------------------------------

  /// How often something was seen among the pairs where it could be, and where first.
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
            "Masks that are meant to hide more (a window, packed sequences) are linted with .may_hide_more = true.");
    }
  }
  void add_empty_rows() {
    Count empty;
    for (int b = 0; b < expected_.batch; ++b) {
      for (int h = 0; h < expected_.heads; ++h) {
        for (int q = 0; q < expected_.queries; ++q) {
          bool any_wanted = false, any_visible = false;
          for (int k = 0; k < expected_.keys && counts(b, q); ++k) {
            any_wanted = any_wanted || wanted(b, q, k);
            any_visible = any_visible || mask_(b, h, q, k);
          }
          if (any_wanted) empty.add(!any_visible, b, h, q, 0);
        }
      }
    }
    if (empty.seen > 0) {
      found(MaskMistake::NoVisibleKey, "Queries see no key at all: " + empty.text("queries"),
            "Attention gives such a query 0. Look at the ranges, or at masks that exclude each other.");
    }
  }

  ObservedMask mask_;
  const MaskExpectation& expected_;
  std::vector<MaskFinding> findings_;
};

inline void check_expectation(const MaskExpectation& e) {
  const auto check = [&](const std::vector<int>& list, const char* name, int limit) {
    HEED_CHECK(list.empty() || static_cast<int>(list.size()) == e.batch, ShapeError, "heed::lint: ", list.size(), ' ',
               name, " but batch = ", e.batch, "; give one for each sample, or none");
    for (const int value : list) {
      HEED_CHECK(value >= 0 && value <= limit, ValueError, "heed::lint: ", value, " among the ", name,
                 " lies outside 0 to ", limit);
    }
  };
  HEED_CHECK(e.batch >= 0 && e.heads >= 0 && e.queries >= 0 && e.keys >= 0, ShapeError, "heed::lint: batch = ", e.batch,
             ", heads = ", e.heads, ", queries = ", e.queries, " and keys = ", e.keys, " must not be negative");
  check(e.lengths, "lengths", e.keys);
  check(e.first_positions, "first_positions", e.keys);
}

}  // namespace detail

/// What is wrong with a mask, given what it is meant to let through; empty when nothing is. Where one classic mistake
/// explains the whole mask, that is the one finding; else each symptom is one. Reads every pair of (B, H, Lq, Lk) a few
/// times. Throws what the mask finds wrong with the shape (Causal{} without an alignment where Lq != Lk), ShapeError or
/// ValueError for lengths or positions that don't fit it.
template <Mask M>
std::vector<MaskFinding> lint(const M& mask, const MaskExpectation& expected) {
  detail::check_expectation(expected);
  const auto bound = bind(mask, {.B = expected.batch,
                                 .H = expected.heads,
                                 .G = expected.kv_heads > 0 ? expected.kv_heads : expected.heads,
                                 .Lq = expected.queries,
                                 .Lk = expected.keys,
                                 .Dk = 1,
                                 .Dv = 1});
  const MaskRef reference(bound);
  const auto visible = [&](int b, int h, int q, int k) { return reference.visible(b, h, q, k); };
  return detail::MaskLinter(visible, expected).run();
}

HEED_NAMESPACE_END
