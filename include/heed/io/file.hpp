// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// MappedFile: the bytes of a file, mapped into memory where the system can, otherwise read. AtomicFile: a file that
/// replaces the old one at once when it is complete.

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
// On systems of this kind a file keeps its rights, its links are followed, and leftovers are found by their locks.
#if __has_include(<sys/file.h>) && __has_include(<sys/mman.h>) && !defined(__EMSCRIPTEN__)
#include <sys/file.h>
#define HEED_POSIX_FILES 1
#endif
#if defined(_WIN32)
#include <filesystem>
#endif

HEED_NAMESPACE_BEGIN

namespace detail {

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
  bool is_mapped() const { return is_mapped_; }

 private:
  struct Close {
    void operator()(std::FILE* stream) const { std::fclose(stream); }
  };

  [[noreturn]] static void refuse(const std::string& path, const char* what, int error) {
    raise<FormatError>("heed::SafeTensors: file ", in_quotes(path, path.size()), " ", what, ": ", std::strerror(error));
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
    HEED_CHECK(regular, FormatError, "heed::SafeTensors: ", in_quotes(path, path.size()),
               " is not a regular file; give the path of a .safetensors file");
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

/// A file that is written under a temporary name and renamed when it is complete. Whoever opens the path, even after a
/// crash, finds the complete old file or the complete new one. A symbolic link stays one, and the file that it names is
/// replaced; the new file has the rights of the old one. A device or a pipe is written as it is. The next save uses the
/// temporary file that a killed one has left.
class AtomicFile {
 public:
  /// `function` names the caller in messages. All members throw FormatError if the file cannot be created or written.
  AtomicFile(std::string path, std::string_view function) : path_(std::move(path)), function_(function) {
#if defined(HEED_POSIX_FILES)
    open_posix();
#else
    static std::atomic<unsigned> counter{0};
    temporary_ = path_ + "." + std::to_string(counter.fetch_add(1)) + ".tmp";
    stream_.reset(std::fopen(temporary_.c_str(), "wbx"));
#endif
    if (!stream_) fail("created", errno);
  }
  ~AtomicFile() {
    if (!stream_) return;
    // A file that is removed before it is closed is not taken for a leftover by another writer.
#if defined(HEED_POSIX_FILES)
    remove_temporary();
    stream_.reset();
#else
    stream_.reset();
    remove_temporary();
#endif
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* bytes, std::size_t count) {
    if (std::fwrite(bytes, 1, count, stream_.get()) != count) fail("written", errno);
  }
  void commit() {
    bool written = std::fflush(stream_.get()) == 0;
#if defined(HEED_POSIX_FILES)
    if (!temporary_.empty()) written = written && ::fsync(::fileno(stream_.get())) == 0;
    if (!written) fail("written", errno);
    // Renamed while it is open, and so locked: no other writer takes it for a leftover.
    if (!temporary_.empty() && !replace(temporary_, target_)) fail("put in place", errno);
    if (std::fclose(stream_.release()) != 0) fail("written", errno);
#else
    if (!written) fail("written", errno);
    if (std::fclose(stream_.release()) != 0 || !replace(temporary_, path_)) {
      const int error = errno;
      remove_temporary();
      fail("put in place", error);
    }
#endif
  }

 private:
  [[noreturn]] void fail(const char* what, int error) const {
    raise<FormatError>(function_, ": file ", in_quotes(path_, path_.size()), " cannot be ", what, ": ",
                       std::strerror(error), advice(error));
  }
  void remove_temporary() const {
    if (!temporary_.empty()) std::remove(temporary_.c_str());
  }

#if defined(HEED_POSIX_FILES)
  static const char* advice(int error) {
    if (error == EACCES || error == EPERM || error == EROFS)
      return "; a file is replaced as a whole, so its directory must be writable";
    if (error == EBUSY) return "; a file that is mounted alone can't be replaced, so mount its directory instead";
    if (error == EISDIR) return "; give the path of a file";
    return "";
  }

  void open_posix() {
    target_ = linked(path_);
    struct ::stat old{};
    const bool exists = ::stat(target_.c_str(), &old) == 0;
    if (exists && S_ISDIR(old.st_mode)) fail("created", EISDIR);
    if (exists && !S_ISREG(old.st_mode)) {
      stream_.reset(std::fopen(target_.c_str(), "wb"));
      return;
    }
    const int descriptor = create_temporary();
    if (descriptor < 0) fail("created", errno);
    if (exists) {
      // Another owner is kept where the system lets us; rights come second, since a new owner clears some.
      const bool owned = ::fchown(descriptor, old.st_uid, old.st_gid) == 0;
      const bool grouped = owned || ::fchown(descriptor, static_cast<::uid_t>(-1), old.st_gid) == 0;
      const ::mode_t rights = grouped ? 07777 : 0707;
      ::fchmod(descriptor, old.st_mode & rights);
    }
    stream_.reset(::fdopen(descriptor, "wb"));
    if (!stream_) {
      const int error = errno;
      remove_temporary();
      ::close(descriptor);
      fail("created", error);
    }
  }

  /// The path that a chain of symbolic links ends at, which need not exist.
  std::string linked(std::string path) const {
    constexpr int most_links = 40;
    for (int i = 0; i < most_links; ++i) {
      std::string next(4096, '\0');
      const ::ssize_t length = ::readlink(path.c_str(), next.data(), next.size());
      if (length < 0) return path;
      next.resize(static_cast<std::size_t>(length));
      path = next.starts_with('/') ? next : path.substr(0, path.rfind('/') + 1) + next;
    }
    fail("created", ELOOP);
  }

  /// Opens and locks a temporary file next to the target: a new one, or one that a killed writer has left, which nobody
  /// locks. Sets errno where it returns -1.
  int create_temporary() {
    for (unsigned number = 0;; ++number) {
      temporary_ = target_ + "." + std::to_string(number) + ".tmp";
      int descriptor = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      const bool is_new = descriptor >= 0;
      if (!is_new && errno != EEXIST) return -1;
      if (!is_new) descriptor = ::open(temporary_.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
      if (descriptor < 0) continue;
      const bool locked = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0;
      // Some file systems have no locks; there only new files serve.
      const bool free = locked || (is_new && errno != EWOULDBLOCK);
      struct ::stat opened{}, named{};
      const bool ours = free && ::fstat(descriptor, &opened) == 0 && ::lstat(temporary_.c_str(), &named) == 0 &&
                        opened.st_ino == named.st_ino && opened.st_dev == named.st_dev && S_ISREG(opened.st_mode) &&
                        opened.st_nlink == 1 && opened.st_uid == ::geteuid();
      if (ours && (is_new || ::ftruncate(descriptor, 0) == 0)) return descriptor;
      ::close(descriptor);
    }
  }
#else
  static const char* advice(int) { return ""; }
#endif

  /// Renames a file, also over another; sets errno where it returns false.
  static bool replace(const std::string& from, const std::string& to) {
#if defined(_WIN32)  // where std::rename keeps the other
    std::error_code error;
    std::filesystem::rename(from, to, error);
    errno = error.default_error_condition().value();
    return !error;
#else
    return std::rename(from.c_str(), to.c_str()) == 0;
#endif
  }

  struct Close {
    void operator()(std::FILE* stream) const { std::fclose(stream); }
  };
  std::string path_, function_, target_ = path_, temporary_;
  std::unique_ptr<std::FILE, Close> stream_;
};

/// True if there is a file that can be read.
inline bool can_be_opened(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file) std::fclose(file);
  return file != nullptr;
}

/// Writes a whole file atomically. Throws FormatError, with the name of the calling `function`, if that fails.
inline void write_file(const std::string& path, std::string_view bytes, std::string_view function) {
  AtomicFile file(path, function);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

}  // namespace detail

HEED_NAMESPACE_END

#undef HEED_POSIX_FILES
#include <heed/core/restore_macros.hpp>
