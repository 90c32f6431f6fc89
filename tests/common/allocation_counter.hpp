// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Counts what a piece of code allocates: every malloc, calloc, realloc and aligned allocation of the whole program,
/// and with them operator new.

// Sanitizers bring a malloc and a use of memory of their own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HEED_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define HEED_TEST_SANITIZED 1
#endif
#endif

namespace heed_test {

/// Allocations of this program so far, in all threads.
long allocations();

/// Whether allocations are counted at all on this platform.
bool counts_allocations();

/// The number of allocations that running `f` makes.
template <class F>
long allocations_of(F&& f) {
  const long before = allocations();
  f();
  return allocations() - before;
}

}  // namespace heed_test
