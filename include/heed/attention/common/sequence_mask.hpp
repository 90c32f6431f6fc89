// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The masks of linear and segmented attention: Causal, Padding, or both joined with &.

#include <optional>
#include <type_traits>

#include <heed/core/config.hpp>
#include <heed/core/error.hpp>
#include <heed/mask/basic.hpp>
#include <heed/mask/concept.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

template <class M>
inline constexpr bool is_sequence_mask_v =
    std::is_same_v<M, NoMask> || std::is_same_v<M, Causal> || std::is_same_v<M, Padding>;
template <class A, class B>
inline constexpr bool is_sequence_mask_v<And<A, B>> = is_sequence_mask_v<A> && is_sequence_mask_v<B>;

/// Causal and Padding, taken apart.
struct SequenceMask {
  std::optional<Causal> causal;
  std::optional<Padding> padding;

  explicit SequenceMask(const NoMask&) {}
  explicit SequenceMask(const Causal& mask) : causal(mask) {}
  explicit SequenceMask(const Padding& mask) : padding(mask) {}
  template <Mask A, Mask B>
  explicit SequenceMask(const And<A, B>& both) : SequenceMask(both.a) {
    const SequenceMask other(both.b);
    if (other.causal) causal = other.causal;
    if (other.padding) padding = other.padding;
  }
  template <Mask M>
  explicit SequenceMask(const M&) {
    static_assert(
        is_sequence_mask_v<M>,
        "heed: linear and segmented attention take the masks Causal, Padding(lengths), or both joined with &; "
        "another mask needs softmax attention");
  }

  /// Checks the mask against a call of queries and keys of one sequence and binds the padding.
  SequenceMask bind(const char* function, const AttentionShape& s) const {
    SequenceMask bound = *this;
    if (causal) {
      HEED_CHECK(s.Lq == s.Lk, ShapeError, function, ": causal needs as many queries as keys, but Lq = ", s.Lq,
                 " and Lk = ", s.Lk, "; to continue after earlier keys, keep a LinearAttentionState");
      bound.causal = causal->bind(s);
      for (int b = 0; b < s.B; ++b) {
        const Index first = bound.causal->range(b, 0, 0).end - 1;
        HEED_CHECK(first == 0, ValueError, function, ": Causal puts the first query of sample ", b, " at position ",
                   first, " but this kind of attention starts at 0; leave out the alignment");
      }
    }
    if (padding) bound.padding = heed::bind(*padding, s);
    return bound;
  }
};

}  // namespace detail

HEED_NAMESPACE_END
