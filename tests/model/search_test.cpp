// SPDX-License-Identifier: MIT
#include "sentence_search/search.hpp"

#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

namespace sentence_search {
namespace {

std::vector<std::size_t> passages_of(const std::vector<Match>& matches) {
  std::vector<std::size_t> passages;
  for (const Match& match : matches) passages.push_back(match.passage);
  return passages;
}

TEST(Search, RanksByCosine) {
  Embeddings passages(4, 2), queries(2, 2);
  passages << 0, 1,  //
      1, 0,          //
      0.6F, 0.8F,    //
      1, 0;
  queries << 0, 1,  //
      1, 0;
  const std::vector<Match> matches = nearest(passages, queries, 1, 3);
  EXPECT_EQ(passages_of(matches), (std::vector<std::size_t>{1, 3, 2})) << "of equal ones the earlier first";
  EXPECT_FLOAT_EQ(matches[0].score, 1);
  EXPECT_FLOAT_EQ(matches[2].score, 0.6F);
  EXPECT_EQ(passages_of(nearest(passages, queries, 0, 10)), (std::vector<std::size_t>{0, 2, 1, 3}));
  EXPECT_TRUE(nearest(Embeddings(0, 2), queries, 0, 3).empty());
}

}  // namespace
}  // namespace sentence_search
