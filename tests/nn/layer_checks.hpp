// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// What every layer with one input promises, checked for any of them: the same bits for all storage orders and thread
/// counts, gaps between elements neither read nor written, nothing allocated once warm, in place where allowed, overlap
/// refused, output observed.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/context.hpp>
#include <heed/core/parallel.hpp>
#include <heed/core/random.hpp>
#include <heed/core/tensor.hpp>
#include <heed/nn/parameter.hpp>

#include "common/allocation_counter.hpp"

namespace layer_checks {

using heed::Index;

/// Normal numbers; the same for one seed in every element type, up to rounding.
template <class T, int Rank>
heed::Tensor<T, Rank> random_tensor(const heed::Extents<Rank>& extents, std::uint64_t seed = 1) {
  heed::Tensor<T, Rank> x(extents);
  const heed::Philox random(seed, 77);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<T>(random.normal(static_cast<std::uint64_t>(i)));
  return x;
}

/// Random parameters: PyTorch's starting values 0 and 1 would hide that one is missing.
template <class T, class Layer>
void fill_parameters(Layer& layer, std::uint64_t seed) {
  layer.visit("", [&](std::string_view, heed::Parameter<T>& parameter) {
    const auto values = random_tensor<T, 1>({parameter.size()}, ++seed);
    for (Index i = 0; i < parameter.size(); ++i) parameter.mutable_value()(i) = values(i);
  });
}

template <class A, class B>
bool same_bits(const A& a, const B& b) {
  static_assert(sizeof a == sizeof b);
  return std::memcmp(&a, &b, sizeof a) == 0;
}

/// Compares two (B, L, E) or (B, H, L, D) results bit by bit.
template <class T, class U, int Rank>
::testing::AssertionResult bits_equal(const heed::TensorView<T, Rank>& a, const heed::TensorView<U, Rank>& b) {
  if (a.extents() != b.extents()) return ::testing::AssertionFailure() << "the extents differ";
  if constexpr (Rank == 1) {
    for (Index i = 0; i < a.extent(0); ++i) {
      if (!same_bits(a(i), b(i))) {
        return ::testing::AssertionFailure()
               << "[" << i << "] " << static_cast<double>(a(i)) << " and " << static_cast<double>(b(i));
      }
    }
  } else {
    for (Index i = 0; i < a.extent(0); ++i) {
      if (auto inner = bits_equal(a[i], b[i]); !inner) return inner << " at " << i;
    }
  }
  return ::testing::AssertionSuccess();
}

/// Memory with a (B, L, E) view of any order and spacing; what lies between the elements is NaN and must stay so.
template <class T, int Rank>
class Spaced {
 public:
  /// order[0] is the slowest dimension, order[Rank - 1] the fastest; consecutive elements of the fastest are `step`
  /// apart and every other dimension leaves `gap` elements unused.
  Spaced(const heed::Extents<Rank>& extents, const std::array<int, Rank>& order, Index step, Index gap)
      : extents_(extents) {
    Index size = 1;
    for (int i = Rank; i-- > 0;) {
      const auto d = static_cast<std::size_t>(order[static_cast<std::size_t>(i)]);
      strides_[d] = i == Rank - 1 ? step : size;
      size = strides_[d] * extents[d] + gap;
    }
    memory_.assign(static_cast<std::size_t>(size), std::numeric_limits<T>::quiet_NaN());
  }
  heed::TensorView<T, Rank> view() { return {memory_.data(), extents_, strides_}; }

  /// How many elements are not NaN.
  std::size_t written() const {
    std::size_t count = 0;
    for (const T& x : memory_) count += !std::isnan(static_cast<double>(x));
    return count;
  }

 private:
  heed::Extents<Rank> extents_, strides_{};
  std::vector<T> memory_;
};

template <class T, class U, int Rank>
void copy(const heed::TensorView<T, Rank>& from, const heed::TensorView<U, Rank>& to) {
  if constexpr (Rank == 1) {
    for (Index i = 0; i < from.extent(0); ++i) to(i) = from(i);
  } else {
    for (Index i = 0; i < from.extent(0); ++i) copy(from[i], to[i]);
  }
}

/// forward() on views of many strides gives the bits of the contiguous call and touches nothing else.
template <class T, class Layer>
void expect_same_for_any_strides(const Layer& layer, const heed::Extents<3>& extents) {
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

/// Plain Eigen of any kind gives the bits of the batch call; tensors and views keep their rank.
template <class T, class Layer>
void expect_same_for_any_argument(const Layer& layer, Index length, Index width) {
  const auto x = random_tensor<T, 3>({1, length, width});
  const heed::Tensor<T, 3> expected = layer(x);
  const auto compare = [&](const auto& y) {
    static_assert(heed::EigenDense<decltype(y)>);
    EXPECT_TRUE(bits_equal(expected.view()[0], heed::view_of(y)));
  };
  const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> rows = x.matrix(0);
  const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic> columns = rows;
  compare(layer(rows));
  compare(layer(columns));
  compare(layer(x.matrix(0)));
  compare(layer(rows + rows - columns));

  Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic> around(length + 3, width + 2);
  around.setConstant(std::numeric_limits<T>::quiet_NaN());
  around.block(2, 1, length, width) = columns;
  compare(layer(around.block(2, 1, length, width)));

  heed::Context context;
  compare(layer(columns, context));
  const heed::TensorView<const T, 2> two = x.view()[0];
  EXPECT_TRUE(bits_equal(expected.view()[0], layer(two).view()));
  EXPECT_TRUE(bits_equal(expected.view(), layer(x.view(), context).view()));
}

/// Thread counts change no bit, and a warm context allocates nothing. The extents should be large enough for several
/// pieces of work; rows of strides other than 1 pass through scratch memory, one row for each thread.
template <class T, class Layer>
void expect_same_for_any_threads(const Layer& layer, const heed::Extents<3>& extents) {
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

template <class T, class Layer>
void expect_in_place(const Layer& layer, const heed::Extents<3>& extents) {
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

template <class T, class Layer>
void expect_overlap_refused(const Layer& layer, const heed::Extents<3>& extents) {
  heed::Extents<3> longer = extents;
  ++longer[1];
  auto memory = random_tensor<T, 3>(longer);
  heed::Context context;
  EXPECT_THROW(layer.forward(memory.view().slice(1, 0, extents[1]), memory.view().slice(1, 1, extents[1]), context),
               heed::ValueError);
}

class Recorder : public heed::Observer {
 public:
  void output(std::string_view name, const heed::ObservedTensor& value) override {
    names.emplace_back(name);
    rank = value.rank();
    first = rank == 3 ? value(0, 0, 0) : 0;
  }
  std::vector<std::string> names;
  int rank = 0;
  double first = 0;
};

template <class T, class Layer>
void expect_observed(const Layer& layer, const heed::Extents<3>& extents) {
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

/// All of the above but the threads, for a layer whose output has the width of its input and which may run in place.
template <class T, class Layer>
void expect_layer(const Layer& layer, Index width) {
  expect_same_for_any_strides<T>(layer, {2, 3, width});
  expect_same_for_any_argument<T>(layer, 5, width);
  expect_in_place<T>(layer, {2, 3, width});
  expect_overlap_refused<T>(layer, {2, 3, width});
  expect_observed<T>(layer, {2, 3, width});
  EXPECT_EQ((layer(heed::Tensor<T, 3>(0, 3, width)).size()), 0);
  EXPECT_EQ((layer(heed::Tensor<T, 3>(2, 0, width)).size()), 0);
}

/// The largest |a - b|; NaN when there is one.
template <class A, class B, int Rank>
double max_error(const heed::TensorView<A, Rank>& a, const heed::TensorView<B, Rank>& b) {
  double worst = 0;
  for (Index i = 0; i < a.extent(0); ++i) {
    double error;
    if constexpr (Rank == 1)
      error = std::abs(static_cast<double>(a(i)) - static_cast<double>(b(i)));
    else
      error = max_error(a[i], b[i]);
    if (std::isnan(error)) return error;
    worst = std::max(worst, error);
  }
  return worst;
}

/// The largest |element| of an Eigen matrix; NaN when there is one, which Eigen's maxCoeff() may pass over.
template <class M>
double largest(const M& m) {
  double worst = 0;
  for (Index i = 0; i < m.rows(); ++i) {
    for (Index j = 0; j < m.cols(); ++j) {
      const double size = std::abs(static_cast<double>(m(i, j)));
      if (std::isnan(size)) return size;
      worst = std::max(worst, size);
    }
  }
  return worst;
}

/// Runs f and returns the text of the Exception it must throw.
template <class Exception, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Exception& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing of the expected type was thrown";
  return "";
}

}  // namespace layer_checks
