// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Values that PyTorch computed: tests/golden/README.md tells what is in a file. Reading is compiled once for all tests
/// (instances/golden.cpp).

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/scalar.hpp>
#include <heed/core/tensor.hpp>
#include <heed/io/safetensors.hpp>
#include <heed/nn/parameter.hpp>

namespace heed_test {

/// The parameters of a layer of any type, under their names.
using AnyParameter = std::variant<heed::Parameter<float>*, heed::Parameter<double>*, heed::Parameter<heed::half>*,
                                  heed::Parameter<heed::bfloat16>*>;
using AnyParameters = std::vector<std::pair<std::string, AnyParameter>>;

/// One file of tests/golden/torch: Golden golden("mha_self").
class Golden {
 public:
  explicit Golden(const std::string& name);
  ~Golden();

  const heed::SafeTensors& file() const { return file_; }
  bool contains(std::string_view name) const;

  template <class T, int Rank>
  heed::Tensor<T, Rank> tensor(std::string_view name) const;
  template <int Rank>
  heed::Tensor<int, Rank> integer_tensor(std::string_view name) const;
  /// Lengths, for a mask to borrow.
  std::vector<int> integers(std::string_view name) const;

  /// Sets every parameter of a layer; fails when the layer and the file don't have the same ones.
  template <class Layer>
  void load_into(Layer& layer) const {
    AnyParameters parameters;
    layer.visit("", [&](std::string_view name, auto& parameter) { parameters.emplace_back(name, &parameter); });
    load(parameters);
  }

  /// Whether every element is within `tolerance` times the largest expected element, and none is NaN.
  template <heed::TensorLike A>
  testing::AssertionResult agrees(std::string_view name, const A& actual, double tolerance) const {
    return agrees_with<heed::scalar_of_t<A>, heed::rank_of_v<A>>(name, heed::view_of(actual), tolerance);
  }

 private:
  void load(const AnyParameters& parameters) const;
  template <class T, int Rank>
  testing::AssertionResult agrees_with(std::string_view name, const heed::TensorView<const T, Rank>& actual,
                                       double tolerance) const;

  heed::SafeTensors file_;
};

/// What a golden value may differ by, relative to the largest element: a few roundings of T.
template <class T>
inline constexpr double kGoldenTolerance = sizeof(T) == 8 ? 1e-13 : 2e-6;

}  // namespace heed_test
