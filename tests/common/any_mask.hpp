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

/// The place of a sequence in a call: its first query and key, and its lengths.
struct Place {
  int query = 0, key = 0, queries = 0, keys = 0;
};
/// The same for a query of the sequence at `own`.
using TruthAt = std::function<bool(const Place& own, int b, int h, int q, int k)>;
/// The sequence of query q of sample b.
using PlaceOf = std::function<Place(int b, int q)>;

/// A mask, what it means, and how it is written.
class MaskCase {
 public:
  /// `storage` is what the mask borrows. Its meaning does not depend on the sequence.
  MaskCase(std::string text, heed::AnyMask mask, Truth truth, std::shared_ptr<const void> storage = {})
      : MaskCase(
            std::move(text), std::move(mask), Place{},
            [t = std::move(truth)](const Place&, int b, int h, int q, int k) { return t(b, h, q, k); },
            std::move(storage)) {}
  /// A mask of positions. `whole` is the sequence where no mask keeps several apart.
  MaskCase(std::string text, heed::AnyMask mask, Place whole, TruthAt truth, std::shared_ptr<const void> storage = {})
      : text_(std::move(text)),
        whole_(whole),
        truth_(std::move(truth)),
        storage_{std::move(storage)},
        mask_(std::move(mask)) {}

  /// The same mask, which keeps sequences apart: `packed` ones before those of samples.
  MaskCase with_sequences(PlaceOf sequences, bool packed) const {
    MaskCase result = *this;
    result.sequences_ = std::move(sequences);
    result.packed_ = packed;
    return result;
  }

  const std::string& text() const { return text_; }
  bool visible(int b, int h, int q, int k) const { return truth_(whole_, b, h, q, k); }
  Truth truth() const {
    return [t = truth_, whole = whole_](int b, int h, int q, int k) { return t(whole, b, h, q, k); };
  }
  /// f(mask).
  template <class F>
  decltype(auto) with_mask(F&& f) const {
    return f(mask_);
  }
  bool is_exact() const { return mask_.exact(); }

  /// In the sequences of a, else of b; packed ones come first.
  friend MaskCase operator&(const MaskCase& a, const MaskCase& b) {
    const MaskCase& from = a.packed_ || (a.sequences_ && !b.packed_) ? a : b;
    MaskCase result(
        a, b, " & ", a.mask_ & b.mask_,
        [ta = a.truth_, tb = b.truth_, sequences = from.sequences_](const Place& outer, int s, int h, int q, int k) {
          const Place own = sequences ? sequences(s, q) : outer;
          return ta(own, s, h, q, k) && tb(own, s, h, q, k);
        });
    result.sequences_ = from.sequences_;
    result.packed_ = from.packed_;
    return result;
  }
  friend MaskCase operator|(const MaskCase& a, const MaskCase& b) {
    return MaskCase(a, b, " | ", a.mask_ | b.mask_,
                    [ta = a.truth_, tb = b.truth_](const Place& own, int s, int h, int q, int k) {
                      return ta(own, s, h, q, k) || tb(own, s, h, q, k);
                    });
  }
  friend MaskCase operator!(const MaskCase& a) {
    MaskCase result("!" + a.text_, !a.mask_, a.whole_,
                    [t = a.truth_](const Place& own, int s, int h, int q, int k) { return !t(own, s, h, q, k); });
    result.storage_ = a.storage_;
    return result;
  }

 private:
  MaskCase(const MaskCase& a, const MaskCase& b, const char* sign, heed::AnyMask mask, TruthAt truth)
      : text_("(" + a.text_ + sign + b.text_ + ")"),
        whole_(a.whole_.queries + a.whole_.keys > 0 ? a.whole_ : b.whole_),
        truth_(std::move(truth)),
        storage_(a.storage_),
        mask_(std::move(mask)) {
    storage_.insert(storage_.end(), b.storage_.begin(), b.storage_.end());
  }

  std::string text_;
  Place whole_;
  TruthAt truth_;
  PlaceOf sequences_;
  bool packed_ = false;
  std::vector<std::shared_ptr<const void>> storage_;
  heed::AnyMask mask_;
};

/// A random mask of one kind that fits the shape.
MaskCase random_leaf(const heed::AttentionShape& shape, Random& random);
/// A random expression of &, | and ! over such masks.
MaskCase random_mask(const heed::AttentionShape& shape, Random& random);
/// Packed or padded sequences, joined by & with random expressions.
MaskCase random_sequences(const heed::AttentionShape& shape, Random& random);

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
