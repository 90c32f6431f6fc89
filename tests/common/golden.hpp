// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Values that PyTorch computed: tests/golden/README.md tells what is in a file.

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/tensor.hpp>
#include <heed/io/name_map.hpp>
#include <heed/io/safetensors.hpp>

namespace heed_test {

/// One file of tests/golden/torch: Golden golden("mha_self").
class Golden {
 public:
  explicit Golden(const std::string& name)
      : file_(heed::SafeTensors::open(HEED_TEST_DATA_DIR "/golden/torch/" + name + ".safetensors")) {}

  const heed::SafeTensors& file() const { return file_; }
  bool contains(std::string_view name) const { return file_.contains(name); }

  template <class T, int Rank>
  heed::Tensor<T, Rank> tensor(std::string_view name) const {
    return file_.read<T, Rank>(name);
  }
  /// A mask, true = may attend.
  template <int Rank>
  heed::Tensor<bool, Rank> keep(std::string_view name = "keep") const {
    return file_.read_integers<bool, Rank>(name);
  }
  /// Lengths, for a mask to borrow.
  std::vector<int> integers(std::string_view name) const {
    const heed::Tensor<int, 1> values = file_.read_integers<int, 1>(name);
    return {values.data(), values.data() + values.size()};
  }

  /// Sets every parameter of a layer; fails when the layer and the file don't have the same ones.
  template <class Layer>
  void load_into(Layer& layer) const {
    heed::load_parameters(layer, file_,
                          {.rules = {{"*", {"param.*"}}}, .ignored = {"in.*", "keep*", "out.*", "dout.*", "grad.*"}});
  }

  /// Whether every element is within `tolerance` times the largest expected element, and none is NaN.
  template <class T, int Rank>
  testing::AssertionResult agrees(std::string_view name, const heed::TensorView<T, Rank>& actual,
                                  double tolerance) const {
    const heed::Tensor<double, Rank> expected = tensor<double, Rank>(name);
    if (actual.extents() != expected.extents()) return testing::AssertionFailure() << name << " has other extents";
    double largest = 0;
    for (heed::Index i = 0; i < expected.size(); ++i) largest = std::max(largest, std::abs(expected.data()[i]));
    const double error = worst(actual, expected.view());
    if (error <= tolerance * largest) return testing::AssertionSuccess();
    return testing::AssertionFailure() << name << " differs by " << error << ", the tolerance is " << tolerance
                                       << " of " << largest;
  }

 private:
  /// NaN when there is one.
  template <class T, int Rank>
  static double worst(const heed::TensorView<T, Rank>& a, const heed::TensorView<const double, Rank>& b) {
    double result = 0;
    for (heed::Index i = 0; i < a.extent(0); ++i) {
      double error;
      if constexpr (Rank == 1)
        error = std::abs(static_cast<double>(a(i)) - b(i));
      else
        error = worst(a[i], b[i]);
      if (!(error <= result)) result = error;
      if (std::isnan(result)) return result;
    }
    return result;
  }

  heed::SafeTensors file_;
};

/// What a golden value may differ by, relative to the largest element: a few roundings of T.
template <class T>
inline constexpr double kGoldenTolerance = sizeof(T) == 8 ? 1e-13 : 2e-6;

}  // namespace heed_test
