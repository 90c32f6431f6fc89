// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// FiniteObserver: an observer that finds the first layer whose output is not finite.

#include <cmath>
#include <string>
#include <string_view>

#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/core/tensor.hpp>

HEED_NAMESPACE_BEGIN

/// Remembers the first output that contains a NaN or an infinity.
class FiniteObserver final : public Observer {
 public:
  /// True once such an output was seen.
  bool found() const { return found_; }
  /// The name of the layer.
  const std::string& layer() const { return layer_; }
  /// The value.
  double value() const { return value_; }
  /// The position of the value in the output, (b, l, e).
  const Extents<3>& index() const { return index_; }
  /// A description: "layers.1.linear1 (output 9 of the pass), nan at (0, 3, 17) of (2, 8, 64)".
  const std::string& place() const { return place_; }

  /// Checks an output (B, L, E) unless one was found before.
  void output(std::string_view name, const ObservedTensor& value) override {
    ++outputs_;
    if (found_ || value.rank() != 3) return;
    for (Index b = 0; b < value.extent(0); ++b) {
      for (Index l = 0; l < value.extent(1); ++l) {
        for (Index e = 0; e < value.extent(2); ++e) {
          if (std::isfinite(value(b, l, e))) continue;
          found_ = true;
          layer_ = name;
          value_ = value(b, l, e);
          index_ = {b, l, e};
          place_ = detail::concat(name.empty() ? "a layer without a name" : name, " (output ", outputs_,
                                  " of the pass), ", value_, " at ", index_, " of ",
                                  Extents<3>{value.extent(0), value.extent(1), value.extent(2)});
          return;
        }
      }
    }
  }

 private:
  bool found_ = false;
  int outputs_ = 0;
  double value_ = 0;
  Extents<3> index_{};
  std::string layer_, place_;
};

HEED_NAMESPACE_END
