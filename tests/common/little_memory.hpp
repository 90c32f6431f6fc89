// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Lets the program run out of memory.

#include "common/allocation_counter.hpp"

// Sanitizers need address space of their own.
#if defined(__linux__) && !defined(HEED_TEST_SANITIZED)
#define HEED_TEST_LITTLE_MEMORY 1

#include <fstream>
#include <sys/resource.h>
#include <unistd.h>

namespace heed_test {

/// Limits the program to `bytes` of further address space during its lifetime. A negative number limits it to less than
/// it has: then it gets nothing, even after it has given some back.
class LittleMemory {
 public:
  explicit LittleMemory(long long bytes) {
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &before_);
    const rlimit limit{pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + static_cast<rlim_t>(bytes),
                       before_.rlim_max};
    setrlimit(RLIMIT_AS, &limit);
  }
  ~LittleMemory() { setrlimit(RLIMIT_AS, &before_); }
  LittleMemory(const LittleMemory&) = delete;
  LittleMemory& operator=(const LittleMemory&) = delete;

 private:
  rlimit before_{};
};

}  // namespace heed_test
#endif
