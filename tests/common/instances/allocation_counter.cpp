// SPDX-License-Identifier: MIT
#include "common/allocation_counter.hpp"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>

namespace {
// No constructor runs for it: malloc is called before any constructor.
constinit std::atomic<long> count{0};
[[maybe_unused]] void add_one() { count.fetch_add(1, std::memory_order_relaxed); }
}  // namespace

#if defined(HEED_TEST_SANITIZED)

// Sanitizers replace malloc themselves and tell of each call.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*, std::size_t),
                                                         void (*free_hook)(const volatile void*));

namespace {
const bool counting = __sanitizer_install_malloc_and_free_hooks([](const volatile void*, std::size_t) { add_one(); },
                                                                [](const volatile void*) {}) != 0;
}  // namespace

#elif defined(__GLIBC__)

// The program's own malloc comes before the library's, also for calls from within the C++ library.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t size) {
  add_one();
  return __libc_malloc(size);
}
void* calloc(std::size_t n, std::size_t size) {
  add_one();
  return __libc_calloc(n, size);
}
void* realloc(void* old, std::size_t size) {
  add_one();
  return __libc_realloc(old, size);
}
void* memalign(std::size_t alignment, std::size_t size) {
  add_one();
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) { return memalign(alignment, size); }
int posix_memalign(void** out, std::size_t alignment, std::size_t size) {
  *out = memalign(alignment, size);
  return *out ? 0 : ENOMEM;
}
}

namespace {
constexpr bool counting = true;
}

#else

namespace {
constexpr bool counting = false;
}

#endif

namespace heed_test {
long allocations() { return count.load(std::memory_order_relaxed); }
bool counts_allocations() { return counting; }
}  // namespace heed_test
