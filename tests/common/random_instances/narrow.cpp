// SPDX-License-Identifier: MIT
#include "common/random_attention.hpp"

template class heed_test::RandomAttention<heed::half, heed::half, double>;
template class heed_test::RandomAttention<heed::bfloat16, heed::bfloat16, double>;
