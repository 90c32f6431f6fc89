// SPDX-License-Identifier: MIT
#include "common/random_attention.hpp"

template class heed_test::RandomAttention<float, heed::half, double>;
template class heed_test::RandomAttention<float, heed::bfloat16, double>;
template class heed_test::RandomAttention<double, heed::half, long double>;
