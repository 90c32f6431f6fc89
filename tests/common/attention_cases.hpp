// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The table of attention calls that every fast path must answer within the error budget, in every element type.

#include <optional>
#include <string>
#include <vector>

#include <heed/attention/common/call.hpp>
#include <heed/mask/concept.hpp>

#include "common/any_mask.hpp"
#include "common/any_modifier.hpp"

namespace heed_test {

struct AttentionCase {
  std::string name;
  heed::AttentionShape shape;
  MaskCase mask;
  /// Standard stddev of the entries of q and k: scores grow with its square.
  double stddev = 1;
  /// Entries are multiples of 1/16. Dot products are then exact in float, the naive path errs by almost nothing, and a
  /// fast path may not either.
  bool on_grid = false;
  std::optional<double> scale{};
  std::optional<AnyModifier> modifier{};
  std::vector<double> sinks{};
};

/// Shapes × masks, then sweeps over widths, lengths beside the borders of tiles, scales of scores, modifiers and sinks.
std::vector<AttentionCase> attention_cases();

}  // namespace heed_test
