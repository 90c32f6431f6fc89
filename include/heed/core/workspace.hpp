// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Workspace: a stack-like arena of scratch memory. After a call has run once, repeating it allocates nothing.

#include <vector>

#include <heed/core/tensor.hpp>

HEED_NAMESPACE_BEGIN

/// An arena. Memory is taken inside a Frame and returned when the Frame ends. When the outermost Frame ends, blocks
/// that the call had to add are replaced by one that is large enough, if there is memory for it. take() throws
/// std::bad_alloc when memory runs out. One thread at a time may use a workspace: the caller of a parallel loop takes
/// the memory of all workers before the loop.
class Workspace {
 public:
  /// The alignment of everything that is taken, in bytes.
  static constexpr std::size_t kAlignment = 64;

  Workspace() = default;
  /// Takes the other's memory; outside frames only.
  Workspace(Workspace&&) = default;
  /// Takes the other's memory; outside frames only.
  Workspace& operator=(Workspace&&) = default;

  /// Makes room beforehand: after reserve(n), frames that together hold at most n bytes allocate nothing.
  void reserve(std::size_t bytes) {
    if (depth_ == 0 && capacity() < bytes) {
      blocks_.clear();
      add_block(bytes);
    }
  }
  /// Bytes held.
  std::size_t capacity() const {
    std::size_t total = 0;
    for (const Block& b : blocks_) total += b.size;
    return total;
  }
  /// The most bytes that were ever in use at once: what to reserve in the next run.
  std::size_t peak() const { return peak_; }
  /// Gives all memory back; only outside frames.
  void release() {
    if (depth_ == 0) blocks_.clear();
  }

  /// n elements of T, 64-byte aligned, not initialized; valid until the innermost Frame ends.
  template <class T>
  T* take(Index n) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= kAlignment);
    return static_cast<T*>(take_bytes(static_cast<std::size_t>(n) * sizeof(T)));
  }
  /// A row-major tensor in the workspace, not initialized; valid until the innermost Frame ends.
  template <class T, int Rank>
  TensorView<T, Rank> tensor(const Extents<Rank>& extents) {
    return {take<T>(detail::checked_size<Rank>(extents)), extents};
  }
  /// The bytes that take() of n elements of T occupies.
  template <class T>
  static std::size_t bytes_of(Index n) {
    return rounded(static_cast<std::size_t>(n) * sizeof(T));
  }

  /// Returns what was taken during its lifetime.
  class Frame {
   public:
    /// Frames end in the reverse order of their beginning.
    explicit Frame(Workspace& workspace)
        : workspace_(workspace), block_(workspace.current_), used_(workspace.used_), in_use_(workspace.in_use_) {
      ++workspace_.depth_;
    }
    ~Frame() {
      workspace_.current_ = block_;
      workspace_.used_ = used_;
      workspace_.in_use_ = in_use_;
      if (--workspace_.depth_ == 0) workspace_.merge();
    }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    Workspace& workspace_;
    std::size_t block_, used_, in_use_;
  };

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{kAlignment}); }
  };
  using Memory = std::unique_ptr<std::byte, Free>;
  struct Block {
    Memory memory;
    std::size_t size = 0;
  };

  static std::size_t rounded(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  void* take_bytes(std::size_t bytes) {
    bytes = rounded(bytes);
    while (current_ < blocks_.size() && blocks_[current_].size - used_ < bytes) {
      ++current_;
      used_ = 0;
    }
    if (current_ == blocks_.size()) {
      add_block(std::max(bytes, capacity()));
      used_ = 0;
    }
    if (bytes == 0) return blocks_[current_].memory.get();
    void* p = blocks_[current_].memory.get() + used_;
    used_ += bytes;
    in_use_ += bytes;
    peak_ = std::max(peak_, in_use_);
    return p;
  }
  void add_block(std::size_t bytes) {
    bytes = rounded(std::max<std::size_t>(bytes, 4096));
    void* p = ::operator new(bytes, std::align_val_t{kAlignment});
    blocks_.push_back({Memory(static_cast<std::byte*>(p)), bytes});
  }
  /// Called by a destructor, so it must not throw: the old blocks go first, their list has room for the new one, and
  /// without memory the next call adds blocks again.
  void merge() noexcept {
    if (blocks_.size() < 2) return;
    blocks_.clear();
    const std::size_t bytes = rounded(peak_);
    void* p = ::operator new(bytes, std::align_val_t{kAlignment}, std::nothrow);
    if (p) blocks_.push_back({Memory(static_cast<std::byte*>(p)), bytes});
  }

  std::vector<Block> blocks_;
  std::size_t current_ = 0, used_ = 0, in_use_ = 0, peak_ = 0;
  int depth_ = 0;
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
