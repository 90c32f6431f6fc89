// SPDX-License-Identifier: MIT
// The cache of an embedding borrows its ids for the backward.
// expect: no matching

#include <cstdint>

#include <heed/nn/embedding.hpp>

heed::Tensor<std::int64_t, 2> ids_of_batch();

void run(const heed::Embedding<float>& embedding, heed::Tensor<float, 3>& y, heed::Embedding<float>::Cache& cache,
         heed::Context& context) {
#ifdef MUST_NOT_COMPILE
  embedding.forward(ids_of_batch(), y, cache, context);
#else
  const heed::Tensor<std::int64_t, 2> ids = ids_of_batch();
  embedding.forward(ids, y, cache, context);
#endif
}
