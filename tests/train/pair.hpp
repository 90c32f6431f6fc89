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

/// A vector and a matrix, with random values and, when asked for, random gradients.
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
    const auto a = layer_checks::random_tensor<T, 1>({first.size()}, seed);
    const auto b = layer_checks::random_tensor<T, 1>({second.size()}, seed + 1);
    layer_checks::copy(a.view(), first.grad());
    layer_checks::copy(b.view(), second.grad());
  }
  heed::Parameter<T> first, second;
};

}  // namespace heed_test
