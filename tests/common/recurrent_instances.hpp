// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Recurrent layers, compiled once for all tests (instances/recurrent.cpp).

#include <heed/nn/recurrent.hpp>

#include "common/gemm_instances.hpp"

namespace heed {

#define HEED_TEST_RECURRENT(declaration, T)        \
  declaration struct detail::SimpleCell<T, false>; \
  declaration struct detail::SimpleCell<T, true>;  \
  declaration struct detail::LstmCell<T>;          \
  declaration struct detail::GruCell<T>;           \
  declaration class Recurrent<T>

HEED_TEST_RECURRENT(extern template, float);
HEED_TEST_RECURRENT(extern template, double);

}  // namespace heed
