// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// MappedFile: the bytes of a file, mapped into memory where the system can, otherwise read.

#include <cerrno>
#include <cstring>
#include <span>

#include <heed/core/core.hpp>
#include <heed/io/text.hpp>

#if __has_include(<sys/mman.h>)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

HEED_NAMESPACE_BEGIN

namespace detail {

/// True if there is a file that can be read.
inline bool can_be_opened(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file) std::fclose(file);
  return file != nullptr;
}

/// Read-only bytes of a file. While a file is mapped, nobody may shorten it in place (replace it by renaming another
/// over it instead): reading a mapped page that is gone ends the program on POSIX systems.
class MappedFile {
 public:
  MappedFile() = default;
  /// Throws FormatError when the path cannot be opened or read, or is no regular file.
  static MappedFile open(const std::string& path) {
#if __has_include(<sys/mman.h>) && !defined(__EMSCRIPTEN__)  // whose mmap copies, or fails in silence on node's files
    MappedFile file;
    if (file.map(path)) return file;
#endif
    return read(path);
  }
  /// The same without mapping, for systems and files that cannot be mapped.
  static MappedFile read(const std::string& path) {
    MappedFile file;
    const std::unique_ptr<std::FILE, Close> stream(std::fopen(path.c_str(), "rb"));
    if (!stream) refuse(path, "cannot be opened", errno);
    // The size is found by reading, since the size that a system reports beforehand need not be true.
    std::size_t used = 0, got = 0;
    do {
      if (file.memory_.size() == used) file.memory_.resize(std::max<std::size_t>(std::size_t{1} << 16, 2 * used));
      got = std::fread(file.memory_.data() + used, 1, file.memory_.size() - used, stream.get());
      used += got;
    } while (got > 0);
    if (std::ferror(stream.get())) refuse(path, "cannot be read", errno);
    file.memory_.resize(used);
    file.bytes_ = file.memory_;
    return file;
  }

  MappedFile(MappedFile&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})),
        memory_(std::move(other.memory_)),
        is_mapped_(std::exchange(other.is_mapped_, false)) {}
  MappedFile& operator=(MappedFile other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(memory_, other.memory_);
    std::swap(is_mapped_, other.is_mapped_);
    return *this;
  }
  ~MappedFile() {
#if __has_include(<sys/mman.h>)
    if (is_mapped_) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
#endif
  }

  std::span<const std::byte> bytes() const { return bytes_; }
  /// Gives up the memory of a part that was read: its pages come from the file again if they are read again.
  void forget([[maybe_unused]] std::span<const std::byte> part) const {
#if __has_include(<sys/mman.h>) && defined(MADV_DONTNEED)
    if (!is_mapped_) return;
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    // Whole pages, counted from the start of the mapping, which is one.
    const auto offset = static_cast<std::size_t>(part.data() - bytes_.data());
    const std::size_t first = (offset + page - 1) / page * page, last = (offset + part.size()) / page * page;
    if (first < last) ::madvise(const_cast<std::byte*>(bytes_.data()) + first, last - first, MADV_DONTNEED);
#endif
  }
  bool is_mapped() const { return is_mapped_; }

 private:
  struct Close {
    void operator()(std::FILE* stream) const { std::fclose(stream); }
  };

  [[noreturn]] static void refuse(const std::string& path, const char* what, int error) {
    raise<FormatError>("heed: file ", in_quotes(path, path.size()), " ", what, ": ", std::strerror(error));
  }

#if __has_include(<sys/mman.h>)
  /// Returns false where the file can only be read.
  bool map(const std::string& path) {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) refuse(path, "cannot be opened", errno);
    struct ::stat status{};
    const int error = ::fstat(descriptor, &status) == 0 ? 0 : errno;
    const bool regular = error == 0 && S_ISREG(status.st_mode);
    void* address = MAP_FAILED;
    if (regular && status.st_size > 0 &&
        static_cast<std::uint64_t>(status.st_size) <= std::numeric_limits<std::size_t>::max()) {
      address = ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
    }
    ::close(descriptor);
    if (error) refuse(path, "cannot be read", error);
    HEED_CHECK(regular, FormatError, "heed: ", in_quotes(path, path.size()),
               " is not a regular file; give the path of a file of weights");
    if (address == MAP_FAILED) return false;
    bytes_ = {static_cast<const std::byte*>(address), static_cast<std::size_t>(status.st_size)};
    is_mapped_ = true;
    return true;
  }
#endif

  std::span<const std::byte> bytes_;
  std::vector<std::byte> memory_;
  bool is_mapped_ = false;
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
