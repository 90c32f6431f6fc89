// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Writes files atomically: readers see the old file or the new one, never a part.

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <heed/core/core.hpp>
#include <heed/io/text.hpp>

#if __has_include(<unistd.h>)
#include <unistd.h>
#endif

HEED_NAMESPACE_BEGIN

namespace detail {

/// A file that is written under a temporary name and renamed when it is complete. Whoever opens the path, even after a
/// crash, finds the complete old file or the complete new one.
class AtomicFile {
 public:
  /// `function` names the caller in messages. All members throw FormatError if the file cannot be created or written.
  AtomicFile(std::string path, std::string_view function) : path_(std::move(path)), function_(function) {
    static std::atomic<unsigned> counter{0};
    temporary_ = path_ + ".";
#if __has_include(<unistd.h>)
    temporary_ += std::to_string(::getpid()) + "-";
#endif
    temporary_ += std::to_string(counter.fetch_add(1)) + ".tmp";
    stream_.reset(std::fopen(temporary_.c_str(), "wbx"));
    if (!stream_) fail("created", errno);
  }
  ~AtomicFile() {
    if (!stream_) return;
    stream_.reset();
    std::remove(temporary_.c_str());
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* bytes, std::size_t count) {
    if (std::fwrite(bytes, 1, count, stream_.get()) != count) fail("written", errno);
  }
  void commit() {
    bool written = std::fflush(stream_.get()) == 0;
#if __has_include(<unistd.h>)
    written = written && ::fsync(::fileno(stream_.get())) == 0;
#endif
    if (!written) fail("written", errno);
    if (std::fclose(stream_.release()) != 0 || std::rename(temporary_.c_str(), path_.c_str()) != 0) {
      const int error = errno;
      std::remove(temporary_.c_str());
      fail("put in place", error);
    }
  }

 private:
  [[noreturn]] void fail(const char* what, int error) const {
    raise<FormatError>(function_, ": file ", in_quotes(path_, path_.size()), " cannot be ", what, ": ",
                       std::strerror(error));
  }

  struct Close {
    void operator()(std::FILE* stream) const { std::fclose(stream); }
  };
  std::string path_, function_, temporary_;
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
