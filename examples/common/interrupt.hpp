// SPDX-License-Identifier: MIT
#pragma once

#include <csignal>

namespace examples {

namespace detail {
inline volatile std::sig_atomic_t interrupt_signal = 0;
}

// While it lives, Ctrl-C (SIGINT) and SIGTERM only set a flag, so that work can be brought to an end and saved. A
// second one ends the program at once.
class Interrupt {
 public:
  Interrupt() {
    detail::interrupt_signal = 0;
    std::signal(SIGINT, &note);
    std::signal(SIGTERM, &note);
  }
  ~Interrupt() {
    std::signal(SIGINT, SIG_DFL);
    std::signal(SIGTERM, SIG_DFL);
  }
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // The signal that came; 0 if there was none.
  int signal() const { return detail::interrupt_signal; }

 private:
  static void note(int signal) {
    detail::interrupt_signal = signal;
    std::signal(signal, SIG_DFL);
  }
};

}  // namespace examples
