// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Buffer: memory that is kept between calls. Caches, parameters and packed weights hold theirs in it.

#include <heed/core/tensor.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

[[noreturn]] HEED_NOINLINE inline void out_of_memory() {
  HEED_THROW(std::bad_alloc());
  handler_returned("out of memory");
}

}  // namespace detail

/// Memory for elements of T, aligned to 64 bytes, that grows when it must and never shrinks. A Buffer moves but does
/// not copy, since views of it may be in use. Each extent fits int; their product is 64-bit, so a buffer may hold more
/// than 2^31 elements.
///
/// New memory is zero. The system provides it page by page on first use, so a large buffer costs only what is touched.
template <class T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  /// Bytes to which the first element is aligned.
  static constexpr std::size_t kAlignment = 64;

  Buffer() = default;
  /// Takes the memory; `other` is then empty.
  Buffer(Buffer&& other) noexcept
      : memory_(std::move(other.memory_)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  /// Takes the memory; `other` is then empty.
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer taken(std::move(other));
    std::swap(memory_, taken.memory_);
    std::swap(data_, taken.data_);
    std::swap(size_, taken.size_);
    return *this;
  }
  ~Buffer() = default;

  /// The first elements as a row-major tensor. What they held stays, unless the buffer has to grow: then all are zero
  /// and earlier views end. Throws ShapeError for an extent that is negative or beyond int, std::bad_alloc when memory
  /// runs out; the buffer then keeps what it had.
  template <int Rank>
  TensorView<T, Rank> view(const Extents<Rank>& extents) & {
    const Index size = detail::checked_size<Rank>(extents);
    if (size > size_) *this = Buffer(size);
    return {data_, extents};
  }
  template <int Rank>
  void view(const Extents<Rank>& extents) && = delete;

  T* data() { return data_; }              ///< the first element; null without memory
  const T* data() const { return data_; }  ///< the first element; null without memory
  /// The number of elements that fit without growing.
  Index size() const { return size_; }
  /// Bytes held.
  std::size_t bytes() const { return static_cast<std::size_t>(size_) * sizeof(T); }

 protected:
  /// calloc rather than operator new: it takes large memory from the system as untouched zero pages.
  explicit Buffer(Index size) : size_(size) {
    if (size == 0) return;
    std::size_t space = bytes() + kAlignment;
    memory_.reset(std::calloc(space, 1));
    if (!memory_) detail::out_of_memory();
    void* first = memory_.get();
    data_ = static_cast<T*>(std::align(kAlignment, bytes(), first, space));
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  std::unique_ptr<void, Free> memory_;
  T* data_ = nullptr;
  Index size_ = 0;
};

namespace detail {

/// A Buffer that is copied with the object that holds it.
template <class T>
struct CopiedBuffer : Buffer<T> {
  CopiedBuffer() = default;
  CopiedBuffer(CopiedBuffer&&) = default;
  CopiedBuffer& operator=(CopiedBuffer&&) = default;
  CopiedBuffer(const CopiedBuffer& other) : Buffer<T>(other.size()) {
    std::copy_n(other.data(), other.size(), this->data());
  }
  CopiedBuffer& operator=(const CopiedBuffer& other) { return *this = CopiedBuffer(other); }
  ~CopiedBuffer() = default;
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
