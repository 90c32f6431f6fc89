// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Positions: where the tokens of a call stand.

#include <string_view>

#include <heed/core/config.hpp>
#include <heed/core/error.hpp>
#include <heed/core/tensor.hpp>
#include <heed/mask/concept.hpp>

HEED_NAMESPACE_BEGIN

/// The position of token l of sample b; without more said, l. Lists are borrowed and must live through the call.
class Positions {
 public:
  Positions() = default;
  /// start + l: the sequence goes on after `start` tokens.
  explicit Positions(int start) : start_(start) {}
  /// first[b] + l: sequences that differ in what came before.
  static Positions from(IntSpan first) { return {Kind::PerSample, {first.begin(), {first.size(), 1}}}; }
  /// positions[l], the same in every sample.
  static Positions at(IntSpan positions) {
    return {Kind::PerToken, {positions.begin(), {1, positions.size()}, {0, 1}}};
  }
  /// positions(b, l), of shape (B, L).
  static Positions at(TensorView<const int, 2> positions) { return {Kind::PerToken, positions}; }
  static Positions at(Tensor<int, 2>&&) = delete;

  /// The position of token l of sample b; unchecked.
  Index operator()(Index b, Index l) const {
    switch (kind_) {
      case Kind::PerSample:
        return list_(b, 0) + l;
      case Kind::PerToken:
        return list_(b, l);
      case Kind::Start:
        break;
    }
    return start_ + l;
  }

  /// Throws ShapeError unless there is a position for every token of (B, L); `name` is the layer's.
  void check(std::string_view name, Index batch, Index length) const {
    if (kind_ == Kind::PerSample) {
      HEED_CHECK(list_.extent(0) == batch, ShapeError, name, ": ", list_.extent(0), " first positions but B = ", batch,
                 "; give one for each sample");
    } else if (kind_ == Kind::PerToken) {
      HEED_CHECK((list_.extent(0) == batch || list_.stride(0) == 0) && list_.extent(1) == length, ShapeError, name,
                 ": positions ", list_.extents(), " but x has B = ", batch, " and L = ", length,
                 "; give one for each token");
    }
  }

 private:
  enum class Kind { Start, PerSample, PerToken };
  Positions(Kind kind, TensorView<const int, 2> list) : kind_(kind), list_(list) {}

  Kind kind_ = Kind::Start;
  Index start_ = 0;
  TensorView<const int, 2> list_;
};

HEED_NAMESPACE_END
