// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// InlineValue: storage for a value of any type that copies without allocation.

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include <heed/core/config.hpp>

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

HEED_NAMESPACE_END
