// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Masks chosen at run time, each with its meaning written down a second time as a plain function of (b, h, q, k).

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <heed/mask/any_mask.hpp>

#include "common/random_inputs.hpp"

namespace heed_test {

/// The masks of these tests: one type, so that random expressions of masks need no new instantiations.
template <bool>
using AnyMask = heed::AnyMask;

/// Whether the key is visible, by definition.
using Truth = std::function<bool(int b, int h, int q, int k)>;

/// A mask, what it means, and how it is written.
class MaskCase {
 public:
  /// `storage` is what the mask borrows.
  MaskCase(std::string text, heed::AnyMask mask, Truth truth, std::shared_ptr<const void> storage = {})
      : text_(std::move(text)), truth_(std::move(truth)), storage_{std::move(storage)}, mask_(std::move(mask)) {}

  const std::string& text() const { return text_; }
  bool visible(int b, int h, int q, int k) const { return truth_(b, h, q, k); }
  const Truth& truth() const { return truth_; }
  /// f(mask).
  template <class F>
  decltype(auto) with_mask(F&& f) const {
    return f(mask_);
  }
  bool is_exact() const { return mask_.exact(); }

  friend MaskCase operator&(const MaskCase& a, const MaskCase& b) {
    return MaskCase(a, b, " & ", a.mask_ & b.mask_, [ta = a.truth_, tb = b.truth_](int s, int h, int q, int k) {
      return ta(s, h, q, k) && tb(s, h, q, k);
    });
  }
  friend MaskCase operator|(const MaskCase& a, const MaskCase& b) {
    return MaskCase(a, b, " | ", a.mask_ | b.mask_, [ta = a.truth_, tb = b.truth_](int s, int h, int q, int k) {
      return ta(s, h, q, k) || tb(s, h, q, k);
    });
  }
  friend MaskCase operator!(const MaskCase& a) {
    MaskCase result("!" + a.text_, !a.mask_, [t = a.truth_](int s, int h, int q, int k) { return !t(s, h, q, k); });
    result.storage_ = a.storage_;
    return result;
  }

 private:
  MaskCase(const MaskCase& a, const MaskCase& b, const char* sign, heed::AnyMask mask, Truth truth)
      : text_("(" + a.text_ + sign + b.text_ + ")"),
        truth_(std::move(truth)),
        storage_(a.storage_),
        mask_(std::move(mask)) {
    storage_.insert(storage_.end(), b.storage_.begin(), b.storage_.end());
  }

  std::string text_;
  Truth truth_;
  std::vector<std::shared_ptr<const void>> storage_;
  heed::AnyMask mask_;
};

/// A random mask of one kind that fits the shape.
MaskCase random_leaf(const heed::AttentionShape& shape, Random& random);
/// A random expression of &, | and ! over such masks.
MaskCase random_mask(const heed::AttentionShape& shape, Random& random);

/// The answers of a truth function, looked up.
class TruthTable {
 public:
  TruthTable(const heed::AttentionShape& shape, const Truth& truth);
  bool operator()(int b, int h, int q, int k) const {
    return visible_[((static_cast<std::size_t>(b) * heads_ + static_cast<std::size_t>(h)) * queries_ +
                     static_cast<std::size_t>(q)) *
                        keys_ +
                    static_cast<std::size_t>(k)] != 0;
  }
  bool any(int b, int h, int q) const {
    for (int k = 0; k < static_cast<int>(keys_); ++k) {
      if ((*this)(b, h, q, k)) return true;
    }
    return false;
  }

 private:
  std::size_t heads_, queries_, keys_;
  std::vector<char> visible_;
};

}  // namespace heed_test
