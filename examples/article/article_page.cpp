// SPDX-License-Identifier: MIT
// article_page DIRECTORY PAGE: makes one page of the files that the other programs wrote to a directory.

#include <cstdio>
#include <exception>

#include "common/claim.hpp"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: article_page DIRECTORY PAGE\n");
    return 1;
  }
  try {
    // The order in which an article would tell it.
    article::write_page(argv[1], argv[2],
                        {"scaled_scores", "projections_heads", "positions", "position_lengths", "path_length",
                         "bilstm_vs_transformer", "long_sequences", "masks_forgotten", "mask_fillers",
                         "uniform_weights", "pre_post_norm", "accumulation", "text_matcher"});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "article_page: %s\n", error.what());
    return 1;
  }
  return 0;
}
