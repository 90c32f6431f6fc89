// SPDX-License-Identifier: MIT
// A mask borrows its lengths: a temporary would be gone before the mask is used.
// expect: no matching (function for call to|constructor for initialization of) .*Padding

#include <vector>

#include <heed/mask/basic.hpp>

std::vector<int> lengths_of_batch();

bool first_key_visible() {
#ifdef MUST_NOT_COMPILE
  const heed::Padding padding(lengths_of_batch());
#else
  const std::vector<int> lengths = lengths_of_batch();
  const heed::Padding padding(lengths);
#endif
  return heed::is_visible(padding, 0, 0, 0, 0);
}
