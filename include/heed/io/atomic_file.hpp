// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// AtomicFile: a file that replaces the old one at once when it is complete.

#include <cerrno>
#include <cstring>

#include <heed/core/core.hpp>
#include <heed/io/text.hpp>

#if __has_include(<sys/file.h>) && !defined(_WIN32)
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#else
#include <filesystem>
#endif

HEED_NAMESPACE_BEGIN

namespace detail {

/// A file that is written under a temporary name, "PATH.0.tmp", and renamed when it is complete. Whoever opens the
/// path, even after a crash, finds the complete old file or the complete new one.
///
/// A symbolic link stays, and the file that it leads to is replaced. The new file has the rights of the old one, and
/// its owner and group as far as the system permits. A path that is no file, such as /dev/stdout, is written where it
/// is. A lock on the temporary file shows that somebody still writes it: what a killed program left is removed by the
/// next save.
class AtomicFile {
 public:
  /// `function` names the caller in messages. All members throw FormatError if the file cannot be created or written.
  AtomicFile(std::string path, std::string_view function) : path_(std::move(path)), function_(function) {
    const int error = open();
    if (error) fail("created", error);
  }
  ~AtomicFile() {
    if (stream_) give_up();
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* bytes, std::size_t count) {
    if (std::fwrite(bytes, 1, count, stream_.get()) != count) fail("written", errno);
  }
  void commit() {
    if (std::fflush(stream_.get()) != 0) fail("written", errno);
#if __has_include(<sys/file.h>) && !defined(_WIN32)
    // Renamed before it is closed, which ends the lock.
    if (!temporary_.empty()) {
      if (::fsync(::fileno(stream_.get())) != 0) fail("written", errno);
      if (std::rename(temporary_.c_str(), target_.c_str()) != 0) fail("put in place", errno);
      temporary_.clear();
    }
    if (std::fclose(stream_.release()) != 0) fail("written", errno);
#else
    const int error = std::fclose(stream_.release()) == 0 ? 0 : errno;
    std::error_code renamed;
    if (!error) std::filesystem::rename(temporary_, target_, renamed);  // std::rename may keep the old file
    if (!error && !renamed) return;
    std::remove(temporary_.c_str());
    fail("put in place", error ? error : renamed.default_error_condition().value());
#endif
  }

 private:
  [[noreturn]] void fail(const char* what, int error) const {
    const char* fix = "";
    if (error == EBUSY) {
      fix = "; it is a mount point, which no new file can replace: mount its directory, or save under another path";
    } else if (error == EISDIR) {
      fix = "; give the path of a file in it";
    } else if (error == EACCES || error == EPERM || error == EROFS) {
      fix = "; a new file replaces the old one, so the directory must permit new files";
    }
    raise<FormatError>(function_, ": file ", in_quotes(path_, path_.size()), " cannot be ", what, ": ",
                       std::strerror(error), fix);
  }
  void give_up() {
#if __has_include(<sys/file.h>) && !defined(_WIN32)
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
    stream_.reset();
#else
    stream_.reset();
    std::remove(temporary_.c_str());
#endif
  }

#if __has_include(<sys/file.h>) && !defined(_WIN32)
  /// Opens the stream and returns 0, else an error number.
  int open() {
    struct ::stat old{};
    const bool exists = ::stat(path_.c_str(), &old) == 0;
    if (exists && S_ISDIR(old.st_mode)) return EISDIR;
    if (exists && !S_ISREG(old.st_mode)) {
      stream_.reset(std::fopen(path_.c_str(), "wb"));
      return stream_ ? 0 : errno;
    }
    if (const int error = follow_links()) return error;
    // Nobody else may read a private file's content, even before it has its owner.
    const int descriptor = create(exists ? S_IRUSR | S_IWUSR : 0666);
    if (descriptor < 0) return errno;
    if (exists) {
      // A change of owner clears rights, so they come last. Without permission the group alone may still change.
      if (::fchown(descriptor, old.st_uid, old.st_gid) != 0 &&
          ::fchown(descriptor, static_cast<::uid_t>(-1), old.st_gid) != 0) {
        errno = 0;  // the file then belongs to whoever saves it
      }
      if (::fchmod(descriptor, old.st_mode & 07777) != 0) errno = 0;  // a file system without rights
    }
    stream_.reset(::fdopen(descriptor, "wb"));
    if (stream_) return 0;
    const int error = errno;
    ::unlink(temporary_.c_str());
    ::close(descriptor);
    return error;
  }

  /// Sets target_ to the file that path_ leads to, or would lead to. Returns 0, else an error number.
  int follow_links() {
    target_ = path_;
    for (int links = 0;; ++links) {
      char to[4096];
      const ::ssize_t length = ::readlink(target_.c_str(), to, sizeof to);
      if (length < 0) return 0;  // no link, or nothing yet: creating the file finds other errors
      if (links == 40) return ELOOP;
      if (static_cast<std::size_t>(length) == sizeof to) return ENAMETOOLONG;
      const std::string_view link(to, static_cast<std::size_t>(length));
      // A link without '/' at its beginning starts from its directory.
      const std::size_t directory = link.starts_with('/') ? 0 : target_.rfind('/') + 1;
      target_.replace(directory, std::string::npos, link);
    }
  }

  /// Creates the temporary file, removing those that nobody writes any more. Returns its descriptor, or -1 with errno.
  int create(::mode_t mode) {
    constexpr int most_attempts = 1000;  // writers of one path at once
    for (int number = 0; number < most_attempts; ++number) {
      temporary_ = target_ + "." + std::to_string(number) + ".tmp";
      int descriptor = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
      if (descriptor < 0 && errno != EEXIST) return -1;
      if (descriptor < 0 && remove_left(temporary_)) {
        descriptor = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
      }
      if (descriptor < 0) continue;
      // Another writer may have taken the file for one that was left, before it was locked.
      if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0 ? errno != EWOULDBLOCK : is_at(descriptor, temporary_)) {
        return descriptor;
      }
      ::close(descriptor);
    }
    errno = EEXIST;
    return -1;
  }
  /// Removes a temporary file that no writer has locked.
  static bool remove_left(const std::string& path) {
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) return false;
    const bool left = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 && is_at(descriptor, path);
    const bool removed = left && ::unlink(path.c_str()) == 0;
    ::close(descriptor);
    return removed;
  }
  /// True if the open file is a regular one and still the one at the path.
  static bool is_at(int descriptor, const std::string& path) {
    struct ::stat open{}, there{};
    return ::fstat(descriptor, &open) == 0 && ::lstat(path.c_str(), &there) == 0 && S_ISREG(open.st_mode) &&
           open.st_dev == there.st_dev && open.st_ino == there.st_ino;
  }
#else
  int open() {
    static std::atomic<unsigned> counter{0};
    std::error_code error;
    if (std::filesystem::is_directory(path_, error)) return EISDIR;
    const bool is_link = std::filesystem::is_symlink(path_, error);
    target_ = is_link ? std::filesystem::weakly_canonical(path_, error).string() : path_;
    if (is_link && error) return error.default_error_condition().value();
    temporary_ = target_ + "." + std::to_string(counter.fetch_add(1)) + ".tmp";
    stream_.reset(std::fopen(temporary_.c_str(), "wbx"));
    return stream_ ? 0 : errno;
  }
#endif

  struct Close {
    void operator()(std::FILE* stream) const { std::fclose(stream); }
  };
  std::string path_, function_;
  std::string target_, temporary_;  // empty while the path itself is written
  std::unique_ptr<std::FILE, Close> stream_;
};

/// Writes a whole file atomically. Throws FormatError, with the name of the calling `function`, if that fails.
inline void write_file(const std::string& path, std::string_view bytes, std::string_view function) {
  AtomicFile file(path, function);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
