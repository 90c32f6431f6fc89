// SPDX-License-Identifier: MIT
// Offsets are borrowed too, by every list that a mask takes.
// expect: no matching (function for call to|constructor for initialization of) .*DocumentMask

#include <vector>

#include <heed/mask/basic.hpp>

std::vector<int> offsets_of_keys();

bool first_key_visible(const std::vector<int>& offsets_of_queries) {
#ifdef MUST_NOT_COMPILE
  const heed::DocumentMask packed(offsets_of_queries, offsets_of_keys());
#else
  const std::vector<int> offsets = offsets_of_keys();
  const heed::DocumentMask packed(offsets_of_queries, offsets);
#endif
  return heed::is_visible(packed, 0, 0, 0, 0);
}
