// SPDX-License-Identifier: MIT
#include "search.hpp"

#include <algorithm>

namespace sentence_search {

std::vector<Match> nearest(const Embeddings& passages, const Embeddings& queries, std::size_t i, std::size_t top) {
  const Eigen::VectorXf scores = passages * queries.row(static_cast<Eigen::Index>(i)).transpose();
  std::vector<Match> matches(static_cast<std::size_t>(scores.size()));
  for (std::size_t p = 0; p < matches.size(); ++p) matches[p] = {p, scores[static_cast<Eigen::Index>(p)]};
  const auto end = matches.begin() + static_cast<std::ptrdiff_t>(std::min(top, matches.size()));
  std::partial_sort(matches.begin(), end, matches.end(), [](const Match& a, const Match& b) {
    return a.score != b.score ? a.score > b.score : a.passage < b.passage;
  });
  matches.erase(end, matches.end());
  return matches;
}

}  // namespace sentence_search
