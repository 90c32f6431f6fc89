// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// AnyMask: an owning mask of any type, for masks that are chosen at run time.

#include <memory>
#include <new>

#include <heed/mask/basic.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// A value whose type the owner remembers. Trivially copyable values of up to Bytes bytes are stored inline; others
/// are stored on the heap once, and copies share them.
template <std::size_t Bytes>
class InlineValue {
 public:
  template <class X>
  requires(!std::is_same_v<std::remove_cvref_t<X>, InlineValue>)
  explicit InlineValue(X&& value) {
    using Held = std::remove_cvref_t<X>;
    if constexpr (std::is_trivially_copyable_v<Held> && sizeof(Held) <= Bytes &&
                  alignof(Held) <= alignof(std::max_align_t))
      ::new (static_cast<void*>(inline_)) Held(std::forward<X>(value));
    else
      shared_ = std::make_shared<const Held>(std::forward<X>(value));
  }
  const void* get() const { return shared_ ? shared_.get() : inline_; }

 private:
  std::shared_ptr<const void> shared_;
  alignas(std::max_align_t) std::byte inline_[Bytes]{};
};

}  // namespace detail

/// Holds a copy of any mask behind one type:
///
///     AnyMask mask = causal ? AnyMask(Causal{}) : NoMask{};
///     if (padded) mask = mask & Padding(lengths);
///
/// It combines with `&`, `|` and `!` like every mask and gives the same bits as the mask it holds, at the same speed.
/// Copies are cheap and share nothing that changes. A trivially copyable mask of up to 320 bytes, which includes every
/// mask of heed and most of their combinations, is stored inline: making, copying and binding it allocates nothing.
/// Other masks (a lambda that owns a vector, an expression that contains an AnyMask) are stored on the heap once and
/// shared by copies; binding allocates only if their type has a bind(). Lists that a mask borrows stay borrowed.
class AnyMask : public MaskBase {
 public:
  /// Hides nothing, as NoMask.
  AnyMask() : AnyMask(NoMask{}) {}
  /// Holds `mask`.
  template <Mask M>
  requires(!std::same_as<std::remove_cvref_t<M>, AnyMask>)
  AnyMask(M&& mask)
      : functions_(&MaskRef::functions_of<std::remove_cvref_t<M>>()),
        bind_(&bind_held<std::remove_cvref_t<M>>),
        sequences_(&sequences_of_held<std::remove_cvref_t<M>>),
        exact_(detail::is_exact(mask)),
        held_(std::forward<M>(mask)) {}

  /// @{
  /// The interface of a mask, see mask/concept.hpp. bind() returns an AnyMask of the bound mask.
  KeyRange range(int b, int h, int q) const { return functions_->range(held(), b, h, q); }
  bool visible(int b, int h, int q, int k) const { return functions_->visible(held(), b, h, q, k); }
  std::uint64_t word(int b, int h, int q, int k, int n) const {
    std::uint64_t word = 0;
    functions_->words(held(), b, h, q, 1, k, n, &word);
    return word;
  }
  Index next(int b, int h, int q, Index k) const { return functions_->next(held(), b, h, q, 1, k); }
  bool exact() const { return exact_; }
  AnyMask bind(const AttentionShape& shape) const { return bind_(*this, shape); }
  Sequences sequences(const AttentionShape& shape) const { return sequences_(held(), shape); }
  /// @}

  /// Refers to the mask held, for kernels, which then call it directly and not through this object.
  MaskRef reference() const { return MaskRef(held(), exact_, *functions_); }

 private:
  template <class M>
  static AnyMask bind_held(const AnyMask& any, const AttentionShape& shape) {
    if constexpr (requires(const M& m) { m.bind(shape); })
      return static_cast<const M*>(any.held())->bind(shape);
    else
      return any;
  }
  template <class M>
  static Sequences sequences_of_held(const void* held, const AttentionShape& shape) {
    return detail::sequences_of(*static_cast<const M*>(held), shape);
  }
  const void* held() const { return held_.get(); }

  const MaskRef::Functions* functions_;
  AnyMask (*bind_)(const AnyMask&, const AttentionShape&);
  Sequences (*sequences_)(const void*, const AttentionShape&);
  bool exact_;
  detail::InlineValue<320> held_;
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
