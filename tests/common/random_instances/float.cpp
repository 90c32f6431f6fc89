// SPDX-License-Identifier: MIT
#include "common/random_attention.hpp"

template class heed_test::RandomAttention<float, float, double>;
