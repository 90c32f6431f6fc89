// SPDX-License-Identifier: MIT
// The arguments of a recurrent layer borrow the lengths.
// expect: could not convert|no viable conversion|no matching|cannot convert

#include <cstdint>
#include <vector>

#include <heed/nn/recurrent_sequences.hpp>

std::vector<std::int64_t> lengths_of_batch();

int count() {
#ifdef MUST_NOT_COMPILE
  const heed::RecurrentArguments<float> arguments{.lengths = lengths_of_batch()};
#else
  const std::vector<std::int64_t> lengths = lengths_of_batch();
  const heed::RecurrentArguments<float> arguments{.lengths = lengths};
#endif
  return arguments.lengths.size();
}
