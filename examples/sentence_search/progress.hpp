// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>

#if __has_include(<unistd.h>)
#include <unistd.h>
#endif

namespace sentence_search {

// Whether someone watches, or types: progress and prompts are for terminals only, not for logs and scripts.
#if __has_include(<unistd.h>)
inline bool stderr_is_terminal() { return isatty(STDERR_FILENO) == 1; }
inline bool stdin_is_terminal() { return isatty(STDIN_FILENO) == 1; }
#else
inline bool stderr_is_terminal() { return false; }
inline bool stdin_is_terminal() { return false; }
#endif

// A bar on stderr for work of a known size. It is drawn a few times a second, and wiped out at the end.
class Progress {
 public:
  Progress(std::string label, std::size_t total)
      : label_(std::move(label)), total_(total), visible_(total > 0 && stderr_is_terminal()) {
    advance(0);
  }
  ~Progress() {
    if (drawn_) std::fputs("\r\033[K", stderr);
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(std::size_t by) {
    done_ = std::min(done_ + by, total_);
    const auto now = Clock::now();
    if (!visible_ || now < next_) return;
    next_ = now + std::chrono::milliseconds(100);
    draw(std::chrono::duration<double>(now - start_).count());
  }

 private:
  using Clock = std::chrono::steady_clock;

  void draw(double seconds) {
    constexpr std::size_t kWidth = 30;
    const double part = static_cast<double>(done_) / static_cast<double>(total_);
    const auto filled = static_cast<std::size_t>(part * static_cast<double>(kWidth));
    const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
    std::fprintf(stderr, "\r\033[K%s [%s] %3.0f %%", label_.c_str(), bar.c_str(), 100 * part);
    if (seconds > 1 && part > 0) std::fprintf(stderr, ", %.0f s left", seconds * (1 - part) / part);
    std::fflush(stderr);
    drawn_ = true;
  }

  std::string label_;
  std::size_t total_;
  std::size_t done_ = 0;
  bool visible_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_ = start_;
};

}  // namespace sentence_search
