// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

#include "minilm.hpp"

namespace sentence_search {

struct Match {
  std::size_t passage;
  float score;  // cosine
};

// The `top` passages (or all, if there are fewer) nearest to query i, best first; of equal ones the earlier first.
std::vector<Match> nearest(const Embeddings& passages, const Embeddings& queries, std::size_t i, std::size_t top);

}  // namespace sentence_search
