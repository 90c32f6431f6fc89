// SPDX-License-Identifier: MIT
// Positions borrow their list.
// expect: no matching (function for call to|function|constructor)|no viable conversion|could not convert|cannot convert

#include <cstdint>

#include <heed/nn/positional.hpp>

heed::Tensor<std::int64_t, 2> positions_of_tokens();

heed::Index first() {
#ifdef MUST_NOT_COMPILE
  const auto positions = heed::Positions::at(positions_of_tokens());
#else
  const heed::Tensor<std::int64_t, 2> list = positions_of_tokens();
  const auto positions = heed::Positions::at(list);
#endif
  return positions(0, 0);
}
