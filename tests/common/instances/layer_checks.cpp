// SPDX-License-Identifier: MIT
#include "nn/layer_checks.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include <heed/core/parallel.hpp>
#include <heed/core/random.hpp>
#include <heed/core/scalar.hpp>

#include "common/allocation_counter.hpp"

namespace layer_checks {

template <class T, int Rank>
heed::Tensor<T, Rank> random_tensor(const heed::Extents<Rank>& extents, std::uint64_t seed) {
  heed::Tensor<T, Rank> x(extents);
  const heed::Philox random(seed, 77);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<T>(random.normal(static_cast<std::uint64_t>(i)));
  return x;
}

template <class T>
void fill_parameter(heed::Parameter<T>& parameter, std::uint64_t seed) {
  const auto values = random_tensor<T, 1>({parameter.size()}, seed);
  const auto to = parameter.mutable_value();
  for (Index i = 0; i < parameter.size(); ++i) to(i) = values(i);
}

template <class T, int Rank>
testing::AssertionResult const_bits_equal(const heed::TensorView<const T, Rank>& a,
                                          const heed::TensorView<const T, Rank>& b) {
  if (a.extents() != b.extents()) return testing::AssertionFailure() << "the extents differ";
  if constexpr (Rank == 1) {
    for (Index i = 0; i < a.extent(0); ++i) {
      if (std::memcmp(&a(i), &b(i), sizeof(T)) != 0) {
        return testing::AssertionFailure()
               << "[" << i << "] " << static_cast<double>(a(i)) << " and " << static_cast<double>(b(i));
      }
    }
  } else {
    for (Index i = 0; i < a.extent(0); ++i) {
      if (auto inner = const_bits_equal<T, Rank - 1>(a[i], b[i]); !inner) return inner << " at " << i;
    }
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult equal(const Eigen::Ref<const Eigen::MatrixXf>& a, const Eigen::Ref<const Eigen::MatrixXf>& b) {
  return bits_equal(heed::view_of(a), heed::view_of(b));
}

template <class T, int Rank>
Spaced<T, Rank>::Spaced(const heed::Extents<Rank>& extents, const std::array<int, Rank>& order, Index step, Index gap)
    : extents_(extents) {
  Index size = 1;
  for (int i = Rank; i-- > 0;) {
    const auto d = static_cast<std::size_t>(order[static_cast<std::size_t>(i)]);
    strides_[d] = i == Rank - 1 ? step : size;
    size = strides_[d] * extents[d] + gap;
  }
  memory_.assign(static_cast<std::size_t>(size), std::numeric_limits<T>::quiet_NaN());
}

template <class T, int Rank>
std::size_t Spaced<T, Rank>::written() const {
  std::size_t count = 0;
  for (const T& x : memory_) count += !std::isnan(static_cast<double>(x));
  return count;
}

template <class T, int Rank>
void copy_elements(const heed::TensorView<const T, Rank>& from, const heed::TensorView<T, Rank>& to) {
  if constexpr (Rank == 1) {
    for (Index i = 0; i < from.extent(0); ++i) to(i) = from(i);
  } else {
    for (Index i = 0; i < from.extent(0); ++i) copy_elements<T, Rank - 1>(from[i], to[i]);
  }
}

template <class T>
heed::Tensor<T, 3> AnyLayer<T>::operator()(const heed::Tensor<T, 3>& x) const {
  heed::Context context;
  return (*this)(x, context);
}

template <class T>
void expect_same_for_any_strides(const AnyLayer<T>& layer, const heed::Extents<3>& extents) {
  const auto x = random_tensor<T, 3>(extents);
  const auto expected = layer(x);
  const std::array<int, 3> orders[] = {{0, 1, 2}, {0, 2, 1}, {2, 1, 0}, {1, 0, 2}};
  heed::Context context;
  for (const auto& in : orders) {
    for (const auto& out : orders) {
      for (const Index step : {1, 3}) {
        SCOPED_TRACE(testing::Message() << "in " << in[0] << in[1] << in[2] << " out " << out[0] << out[1] << out[2]
                                        << " step " << step);
        Spaced<T, 3> from(extents, in, step, 2), to(expected.extents(), out, 4 - step, 5);
        copy(x.view(), from.view());
        layer.forward(from.view(), to.view(), context);
        EXPECT_TRUE(bits_equal(expected.view(), heed::TensorView<const T, 3>(to.view())));
        EXPECT_EQ(to.written(), static_cast<std::size_t>(expected.size()));
      }
    }
  }
}

template <class T>
void expect_same_for_any_threads(const AnyLayer<T>& layer, const heed::Extents<3>& extents) {
  const auto x = random_tensor<T, 3>(extents);
  const heed::Tensor<T, 3> expected = layer(x);
  Spaced<T, 3> spaced(extents, {0, 2, 1}, 1, 0);
  copy(x.view(), spaced.view());
  for (const int threads : {1, 2, 3, 7}) {
    SCOPED_TRACE(threads);
    heed::ThreadPool pool(threads);
    heed::Context context(pool);
    for (const heed::TensorView<const T, 3>& in : {x.view(), heed::TensorView<const T, 3>(spaced.view())}) {
      heed::Tensor<T, 3> y(expected.extents());
      layer.forward(in, y, context);
      EXPECT_TRUE(bits_equal(expected.view(), y.view()));
      EXPECT_EQ(heed_test::allocations_of([&] { layer.forward(in, y, context); }), 0);
    }
  }
}

template <class T>
void expect_in_place(const AnyLayer<T>& layer, const heed::Extents<3>& extents) {
  auto x = random_tensor<T, 3>(extents);
  const heed::Tensor<T, 3> expected = layer(x);
  heed::Context context;
  Spaced<T, 3> y(extents, {0, 2, 1}, 2, 1);
  copy(x.view(), y.view());
  layer.forward(y.view(), y.view(), context);
  EXPECT_TRUE(bits_equal(expected.view(), y.view()));
  layer.forward(x.view(), x.view(), context);
  EXPECT_TRUE(bits_equal(expected.view(), x.view()));
}

template <class T>
void expect_overlap_refused(const AnyLayer<T>& layer, const heed::Extents<3>& extents) {
  heed::Extents<3> longer = extents;
  ++longer[1];
  auto memory = random_tensor<T, 3>(longer);
  heed::Context context;
  EXPECT_THROW(layer.forward(memory.view().slice(1, 0, extents[1]), memory.view().slice(1, 1, extents[1]), context),
               heed::ValueError);
}

void Recorder::output(std::string_view name, const heed::ObservedTensor& value) {
  names.emplace_back(name);
  rank = value.rank();
  first = rank == 3 ? value(0, 0, 0) : 0;
}

template <class T>
void expect_observed(const AnyLayer<T>& layer, const heed::Extents<3>& extents) {
  const auto x = random_tensor<T, 3>(extents);
  Recorder recorder;
  heed::Context context;
  context.observer = &recorder;
  const heed::Context::Scope scope(context, "the_layer");
  const heed::Tensor<T, 3> y = layer(x, context);
  EXPECT_EQ(recorder.names, std::vector<std::string>{"the_layer"});
  EXPECT_EQ(recorder.rank, 3);
  EXPECT_EQ(recorder.first, static_cast<double>(y(0, 0, 0)));
}

template <class T>
void expect_layer(const AnyLayer<T>& layer, Index width) {
  expect_same_for_any_strides<T>(layer, {2, 3, width});
  expect_in_place<T>(layer, {2, 3, width});
  expect_overlap_refused<T>(layer, {2, 3, width});
  expect_observed<T>(layer, {2, 3, width});
  EXPECT_EQ((layer(heed::Tensor<T, 3>(0, 3, width)).size()), 0);
  EXPECT_EQ((layer(heed::Tensor<T, 3>(2, 0, width)).size()), 0);
}

template <class T>
Sequence<T>::Sequence(Index length, Index width)
    : x(random_tensor<T, 3>({1, length, width})), rows(x.matrix(0)), columns(rows), around(length + 3, width + 2) {
  around.setConstant(std::numeric_limits<T>::quiet_NaN());
  around.block(2, 1, length, width) = columns;
}

template <class A, class B, int Rank>
double const_max_error(const heed::TensorView<const A, Rank>& a, const heed::TensorView<const B, Rank>& b) {
  double worst = 0;
  for (Index i = 0; i < a.extent(0); ++i) {
    double error;
    if constexpr (Rank == 1)
      error = std::abs(static_cast<double>(a(i)) - static_cast<double>(b(i)));
    else
      error = const_max_error<A, B, Rank - 1>(a[i], b[i]);
    if (std::isnan(error)) return error;
    worst = std::max(worst, error);
  }
  return worst;
}

#define INSTANTIATE_MAX_ERROR(A, B, Rank)                                             \
  template double const_max_error<A, B, Rank>(const heed::TensorView<const A, Rank>&, \
                                              const heed::TensorView<const B, Rank>&)
#define INSTANTIATE_FOR_RANK(T, Rank)                                                                             \
  template heed::Tensor<T, Rank> random_tensor<T, Rank>(const heed::Extents<Rank>&, std::uint64_t);               \
  template testing::AssertionResult const_bits_equal<T, Rank>(const heed::TensorView<const T, Rank>&,             \
                                                              const heed::TensorView<const T, Rank>&);            \
  template class Spaced<T, Rank>;                                                                                 \
  template void copy_elements<T, Rank>(const heed::TensorView<const T, Rank>&, const heed::TensorView<T, Rank>&); \
  INSTANTIATE_MAX_ERROR(T, T, Rank)
#define INSTANTIATE(T)                                                                       \
  INSTANTIATE_FOR_RANK(T, 1);                                                                \
  INSTANTIATE_FOR_RANK(T, 2);                                                                \
  INSTANTIATE_FOR_RANK(T, 3);                                                                \
  INSTANTIATE_FOR_RANK(T, 4);                                                                \
  template void fill_parameter<T>(heed::Parameter<T>&, std::uint64_t);                       \
  template class AnyLayer<T>;                                                                \
  template struct Sequence<T>;                                                               \
  template void expect_same_for_any_strides<T>(const AnyLayer<T>&, const heed::Extents<3>&); \
  template void expect_same_for_any_threads<T>(const AnyLayer<T>&, const heed::Extents<3>&); \
  template void expect_in_place<T>(const AnyLayer<T>&, const heed::Extents<3>&);             \
  template void expect_overlap_refused<T>(const AnyLayer<T>&, const heed::Extents<3>&);      \
  template void expect_observed<T>(const AnyLayer<T>&, const heed::Extents<3>&);             \
  template void expect_layer<T>(const AnyLayer<T>&, Index)
// Results of any type against expected values in double.
#define INSTANTIATE_WITH_DOUBLE(T)     \
  INSTANTIATE_MAX_ERROR(T, double, 1); \
  INSTANTIATE_MAX_ERROR(T, double, 2); \
  INSTANTIATE_MAX_ERROR(T, double, 3); \
  INSTANTIATE_MAX_ERROR(T, double, 4)

INSTANTIATE(float);
INSTANTIATE(double);
INSTANTIATE(heed::half);
INSTANTIATE(heed::bfloat16);
INSTANTIATE_WITH_DOUBLE(float);
INSTANTIATE_WITH_DOUBLE(heed::half);
INSTANTIATE_WITH_DOUBLE(heed::bfloat16);

}  // namespace layer_checks
