// SPDX-License-Identifier: MIT
// Options borrow the sinks: a temporary list would be gone before the call.
// expect: could not convert|no viable conversion|no matching|cannot convert

#include <vector>

#include <heed/attention/common/call.hpp>

std::vector<double> sinks_of_heads();

std::size_t count() {
#ifdef MUST_NOT_COMPILE
  const heed::AttentionOptions options{.sinks = sinks_of_heads()};
#else
  const std::vector<double> sinks = sinks_of_heads();
  const heed::AttentionOptions options{.sinks = sinks};
#endif
  return options.sinks.size();
}
