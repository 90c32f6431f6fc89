// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Masks chosen at run time, each with its meaning written down a second time as a plain function of (b, h, q, k).

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <heed/mask/basic.hpp>
#include <heed/mask/concept.hpp>

#include "common/random_inputs.hpp"

namespace heed_test {

/// Any mask behind one type, so that random expressions of masks need no new instantiations. Exact: a mask whose range
/// is the whole truth, which kernels treat differently.
template <bool Exact>
class AnyMask : public heed::MaskBase {
 public:
  template <heed::Mask M>
  requires(heed::RangeMask<M> == Exact && !std::is_same_v<M, AnyMask>)
  AnyMask(M mask) : mask_(std::make_shared<Model<M>>(std::move(mask))) {}

  heed::KeyRange range(int b, int h, int q) const { return mask_->range(b, h, q); }
  bool visible(int b, int h, int q, int k) const
  requires(!Exact)
  {
    return mask_->visible(b, h, q, k);
  }
  std::uint64_t word(int b, int h, int q, int k, int n) const
  requires(!Exact)
  {
    return mask_->word(b, h, q, k, n);
  }
  heed::Index next(int b, int h, int q, heed::Index k) const
  requires(!Exact)
  {
    return mask_->next(b, h, q, k);
  }
  AnyMask bind(const heed::AttentionShape& shape) const { return AnyMask(mask_->bind(shape)); }

 private:
  struct Interface {
    virtual ~Interface() = default;
    virtual heed::KeyRange range(int b, int h, int q) const = 0;
    virtual bool visible(int b, int h, int q, int k) const = 0;
    virtual std::uint64_t word(int b, int h, int q, int k, int n) const = 0;
    virtual heed::Index next(int b, int h, int q, heed::Index k) const = 0;
    virtual std::shared_ptr<const Interface> bind(const heed::AttentionShape& shape) const = 0;
  };
  template <class M>
  struct Model final : Interface {
    explicit Model(M m) : mask(std::move(m)) {}
    heed::KeyRange range(int b, int h, int q) const override { return mask.range(b, h, q); }
    bool visible([[maybe_unused]] int b, [[maybe_unused]] int h, [[maybe_unused]] int q,
                 [[maybe_unused]] int k) const override {
      if constexpr (Exact)
        return true;
      else
        return mask.visible(b, h, q, k);
    }
    std::uint64_t word(int b, int h, int q, int k, int n) const override {
      return heed::detail::visible_word(mask, b, h, q, k, n);
    }
    heed::Index next(int b, int h, int q, heed::Index k) const override {
      return heed::detail::next_candidate(mask, b, h, q, k);
    }
    std::shared_ptr<const Interface> bind(const heed::AttentionShape& shape) const override {
      auto bound = heed::bind(mask, shape);
      return std::make_shared<Model<decltype(bound)>>(std::move(bound));
    }
    M mask;
  };

  explicit AnyMask(std::shared_ptr<const Interface> mask) : mask_(std::move(mask)) {}
  std::shared_ptr<const Interface> mask_;
};

/// Whether the key is visible, by definition.
using Truth = std::function<bool(int b, int h, int q, int k)>;

/// A mask, what it means, and how it is written.
class MaskCase {
 public:
  /// `storage` is what the mask borrows.
  template <heed::Mask M>
  MaskCase(std::string text, M mask, Truth truth, std::shared_ptr<const void> storage = {})
      : text_(std::move(text)), truth_(std::move(truth)), storage_{std::move(storage)} {
    set(std::move(mask));
  }

  const std::string& text() const { return text_; }
  bool visible(int b, int h, int q, int k) const { return truth_(b, h, q, k); }
  const Truth& truth() const { return truth_; }
  bool is_exact() const { return exact_.has_value(); }

  /// f(mask), as an AnyMask.
  template <class F>
  decltype(auto) with_mask(F&& f) const {
    return exact_ ? f(*exact_) : f(*general_);
  }

  friend MaskCase operator&(const MaskCase& a, const MaskCase& b) {
    return combine(
        a, b, " & ", [](auto x, auto y) { return x & y; },
        [ta = a.truth_, tb = b.truth_](int s, int h, int q, int k) { return ta(s, h, q, k) && tb(s, h, q, k); });
  }
  friend MaskCase operator|(const MaskCase& a, const MaskCase& b) {
    return combine(
        a, b, " | ", [](auto x, auto y) { return x | y; },
        [ta = a.truth_, tb = b.truth_](int s, int h, int q, int k) { return ta(s, h, q, k) || tb(s, h, q, k); });
  }
  friend MaskCase operator!(const MaskCase& a) {
    return a.with_mask([&](const auto& mask) {
      MaskCase result("!" + a.text_, !mask, [t = a.truth_](int s, int h, int q, int k) { return !t(s, h, q, k); });
      result.storage_ = a.storage_;
      return result;
    });
  }

 private:
  template <heed::Mask M>
  void set(M mask) {
    if constexpr (heed::RangeMask<M>)
      exact_.emplace(std::move(mask));
    else
      general_.emplace(std::move(mask));
  }
  template <class Combine>
  static MaskCase combine(const MaskCase& a, const MaskCase& b, const char* sign, Combine with, Truth truth) {
    return a.with_mask([&](const auto& x) {
      return b.with_mask([&](const auto& y) {
        MaskCase result("(" + a.text_ + sign + b.text_ + ")", with(x, y), std::move(truth));
        result.storage_ = a.storage_;
        result.storage_.insert(result.storage_.end(), b.storage_.begin(), b.storage_.end());
        return result;
      });
    });
  }

  std::string text_;
  Truth truth_;
  std::vector<std::shared_ptr<const void>> storage_;
  std::optional<AnyMask<true>> exact_;
  std::optional<AnyMask<false>> general_;
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
