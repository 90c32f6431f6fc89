// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// What a score modifier is. A modifier changes scores after scaling and before the mask: s -> f(s, b, h, q, k).
///
/// It derives from ModifierBase and is written once, generic over a scalar and a register of lanes:
///   template <class V> V operator()(V score, const ScorePlace<V>& at) const
/// where V has + - * / and exp, tanh, abs, max, min (found by argument-dependent lookup; `using std::exp` for scalars).
/// A result of -inf hides the pair exactly as a mask does.

#include <concepts>
#include <type_traits>

#include <heed/core/config.hpp>

HEED_NAMESPACE_BEGIN

/// Where the score of each lane stands: sample b, head h, query q + lane·q_step, key k + lane·k_step. Only the first
/// `lanes` lanes are real: a modifier that reads memory must not read for the others.
template <class V>
struct ScorePlace {
  int b = 0, h = 0, q = 0, k = 0;
  int q_step = 0, k_step = 0;
  int lanes = 1;
  /// The queries and keys of the lanes, as numbers; spare lanes repeat the last real one.
  V query, key;
};

/// Modifiers derive from it.
struct ModifierBase {};

template <class M>
concept Modifier = std::derived_from<std::remove_cvref_t<M>, ModifierBase>;

/// Leaves scores as they are.
struct NoModifier : ModifierBase {
  template <class V>
  V operator()(V score, const ScorePlace<V>&) const {
    return score;
  }
};

HEED_NAMESPACE_END
