// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#if __has_include(<unistd.h>) && __has_include(<sys/ioctl.h>)
#include <sys/ioctl.h>
#include <unistd.h>
#define EXAMPLES_HAVE_TERMINALS 1
#endif

namespace examples {

// True at a terminal: progress and prompts are not for logs and scripts.
#ifdef EXAMPLES_HAVE_TERMINALS
inline bool stderr_is_terminal() { return isatty(STDERR_FILENO) == 1; }
inline bool stdin_is_terminal() { return isatty(STDIN_FILENO) == 1; }
inline std::size_t terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}
#else
inline bool stderr_is_terminal() { return false; }
inline bool stdin_is_terminal() { return false; }
inline std::size_t terminal_width() { return 80; }
#endif
#undef EXAMPLES_HAVE_TERMINALS

// A bar on stderr for work of a known size. It is drawn a few times a second, and wiped out at the end.
class Progress {
 public:
  // `done` of it may be done already: the time left is told from the rest.
  Progress(std::string label, std::size_t total, std::size_t done = 0)
      : label_(std::move(label)),
        total_(total),
        first_(done),
        done_(done),
        visible_(total > 0 && stderr_is_terminal()) {
    advance(0);
  }
  ~Progress() { wipe(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // The note, if there is one, follows the bar.
  void advance(std::size_t by, std::string_view note = {}) {
    done_ = std::min(done_ + by, total_);
    const auto now = Clock::now();
    if (!visible_ || now < next_) return;
    next_ = now + std::chrono::milliseconds(100);
    draw(std::chrono::duration<double>(now - start_).count(), note);
  }
  // Makes room for a line of output; the next advance() draws the bar again.
  void wipe() {
    if (!drawn_) return;
    std::fputs("\r\033[K", stderr);
    std::fflush(stderr);
    drawn_ = false;
    next_ = start_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void draw(double seconds, std::string_view note) {
    const std::size_t width = note.empty() ? 30 : 16;
    const double part = static_cast<double>(done_) / static_cast<double>(total_);
    const auto filled = static_cast<std::size_t>(part * static_cast<double>(width));
    std::string line = label_ + " [" + std::string(filled, '#') + std::string(width - filled, '.') + "]";
    char text[64];
    std::snprintf(text, sizeof text, " %3.0f %%", 100 * part);
    line += text;
    if (seconds > 1 && done_ > first_) {
      const double left = seconds * static_cast<double>(total_ - done_) / static_cast<double>(done_ - first_);
      std::snprintf(text, sizeof text, ", %.0f s left", left);
      line += text;
    }
    if (!note.empty()) line.append(", ").append(note);
    line.resize(std::min(line.size(), terminal_width() - 1));  // a line that breaks could not be wiped out
    std::fprintf(stderr, "\r\033[K%s", line.c_str());
    std::fflush(stderr);
    drawn_ = true;
  }

  std::string label_;
  std::size_t total_, first_, done_;
  bool visible_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_ = start_;
};

}  // namespace examples
