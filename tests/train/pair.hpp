// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// A model of two parameters.

#include <cstdint>
#include <string_view>

#include <heed/core/tensor.hpp>
#include <heed/nn/parameter.hpp>

#include "nn/layer_checks.hpp"

namespace heed_test {

/// A vector and a matrix with random values and, on request, random gradients.
template <class T>
struct Pair {
  explicit Pair(heed::Index n = 3000) : first(n), second(7, 9) { layer_checks::fill_parameters<T>(*this, 4); }
  template <class F>
  void visit(std::string_view, F&& f) {
    f("first", first);
    f("second", second);
  }
  template <class F>
  void visit(std::string_view, F&& f) const {
    f("first", first);
    f("second", second);
  }
  void set_gradients(std::uint64_t seed) {
    const auto dfirst = layer_checks::random_tensor<T, 1>({first.size()}, seed);
    const auto dsecond = layer_checks::random_tensor<T, 1>({second.size()}, seed + 1);
    layer_checks::copy(dfirst.view(), first.grad());
    layer_checks::copy(dsecond.view(), second.grad());
  }
  heed::Parameter<T> first, second;
};

}  // namespace heed_test
