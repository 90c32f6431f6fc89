// SPDX-License-Identifier: MIT
#include "common/golden.hpp"

#include <algorithm>
#include <cmath>

#include <heed/io/name_map.hpp>

namespace heed_test {
namespace {

/// NaN when there is one.
template <class T, int Rank>
double worst(const heed::TensorView<const T, Rank>& a, const heed::TensorView<const double, Rank>& b) {
  double result = 0;
  for (heed::Index i = 0; i < a.extent(0); ++i) {
    double error;
    if constexpr (Rank == 1)
      error = std::abs(static_cast<double>(a(i)) - b(i));
    else
      error = worst<T, Rank - 1>(a[i], b[i]);
    if (!(error <= result)) result = error;
    if (std::isnan(result)) return result;
  }
  return result;
}

/// What load_parameters() takes for a layer.
struct Parameters {
  const AnyParameters& all;

  template <class F>
  void visit(std::string_view, F&& f) const {
    for (const auto& [name, any] : all) {
      std::visit([&, path = std::string_view(name)](auto* parameter) { f(path, *parameter); }, any);
    }
  }
};

}  // namespace

Golden::Golden(const std::string& name)
    : file_(heed::SafeTensors::open(HEED_TEST_DATA_DIR "/golden/torch/" + name + ".safetensors")) {}
Golden::~Golden() = default;

bool Golden::contains(std::string_view name) const { return file_.contains(name); }

template <class T, int Rank>
heed::Tensor<T, Rank> Golden::tensor(std::string_view name) const {
  return file_.read<T, Rank>(name);
}

template <int Rank>
heed::Tensor<int, Rank> Golden::integer_tensor(std::string_view name) const {
  return file_.read_integers<int, Rank>(name);
}

std::vector<int> Golden::integers(std::string_view name) const {
  const heed::Tensor<int, 1> values = integer_tensor<1>(name);
  return {values.data(), values.data() + values.size()};
}

void Golden::load(const AnyParameters& parameters) const {
  const Parameters layer{parameters};
  heed::load_parameters(layer, file_,
                        {.rules = {{"*", {"param.*"}}}, .ignored = {"in.*", "keep*", "out.*", "dout.*", "grad.*"}});
}

template <class T, int Rank>
testing::AssertionResult Golden::agrees_with(std::string_view name, const heed::TensorView<const T, Rank>& actual,
                                             double tolerance) const {
  const heed::Tensor<double, Rank> expected = tensor<double, Rank>(name);
  if (actual.extents() != expected.extents()) return testing::AssertionFailure() << name << " has other extents";
  double largest = 0;
  for (heed::Index i = 0; i < expected.size(); ++i) largest = std::max(largest, std::abs(expected.data()[i]));
  const double error = worst<T, Rank>(actual, expected.view());
  if (error <= tolerance * largest) return testing::AssertionSuccess();
  return testing::AssertionFailure() << name << " differs by " << error << ", the tolerance is " << tolerance << " of "
                                     << largest;
}

#define INSTANTIATE_FOR_RANK(T, Rank)                                              \
  template heed::Tensor<T, Rank> Golden::tensor<T, Rank>(std::string_view) const;  \
  template testing::AssertionResult Golden::agrees_with<T, Rank>(std::string_view, \
                                                                 const heed::TensorView<const T, Rank>&, double) const
#define INSTANTIATE(T)        \
  INSTANTIATE_FOR_RANK(T, 1); \
  INSTANTIATE_FOR_RANK(T, 2); \
  INSTANTIATE_FOR_RANK(T, 3); \
  INSTANTIATE_FOR_RANK(T, 4)

INSTANTIATE(float);
INSTANTIATE(double);
INSTANTIATE(heed::half);
INSTANTIATE(heed::bfloat16);
template heed::Tensor<int, 1> Golden::integer_tensor<1>(std::string_view) const;
template heed::Tensor<int, 2> Golden::integer_tensor<2>(std::string_view) const;

}  // namespace heed_test
