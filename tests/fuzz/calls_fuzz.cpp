// SPDX-License-Identifier: MIT
// Fuzzes attention calls: shapes, strides, masks, modifiers, options, poison, workers and gradients, in all types of
// storage. What must hold is in common/random_attention.hpp.
#include <cstdint>

#include <gtest/gtest.h>

#include "common/random_attention.hpp"
#include "fuzz/fuzz_input.hpp"

namespace {

template <class T, class S, class E>
void check(heed_test::FuzzInput& input) {
  static heed::Context context;
  heed_test::Random numbers = input.numbers();
  const heed::AttentionShape shape = heed_test::random_shape(input, 6000);
  heed_test::RandomAttention<T, S, E> attention(shape, input, numbers, context);
  const std::string text = attention.text();
  attention.check_one();
  if (::testing::Test::HasFailure()) std::fprintf(stderr, "call:%s\n", text.c_str());
  heed_test::require(!::testing::Test::HasFailure(), "what is said above");
}

}  // namespace

void heed_test::fuzz(FuzzInput& input) {
  switch (input.integer(0, 7)) {
    case 0:
      check<heed::half, heed::half, double>(input);
      break;
    case 1:
      check<heed::bfloat16, heed::bfloat16, double>(input);
      break;
    case 2:
      check<float, heed::half, double>(input);
      break;
    case 3:
      check<float, heed::bfloat16, double>(input);
      break;
    case 4:
      check<double, heed::half, long double>(input);
      break;
    case 5:
      check<double, double, long double>(input);
      break;
    default:
      check<float, float, double>(input);
  }
}
