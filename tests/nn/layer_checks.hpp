// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// What every layer with one input promises, checked for any of them: the same bits for all storage orders and thread
/// counts, gaps between elements neither read nor written, nothing allocated once warm, in place where allowed, overlap
/// refused, output observed. Compiled once for each element type (common/instances/layer_checks.cpp).

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/arguments.hpp>
#include <heed/core/context.hpp>
#include <heed/core/tensor.hpp>
#include <heed/nn/init.hpp>
#include <heed/nn/parameter.hpp>

namespace layer_checks {

using heed::Index;

/// Normal numbers; the same for one seed in every element type, up to rounding.
template <class T, int Rank>
heed::Tensor<T, Rank> random_tensor(const heed::Extents<Rank>& extents, std::uint64_t seed = 1);

template <class T>
void fill_parameter(heed::Parameter<T>& parameter, std::uint64_t seed);

/// Random parameters: PyTorch's starting values 0 and 1 would hide that one is missing.
template <class T, class Layer>
void fill_parameters(Layer& layer, std::uint64_t seed) {
  layer.visit("", [&](std::string_view, heed::Parameter<T>& parameter) { fill_parameter(parameter, ++seed); });
}

/// Starts a layer or a model from a seed.
template <class Model>
void initialize(Model& model, std::uint64_t seed, std::string_view name = "") {
  heed::Random random(seed);
  model.initialize(random, name);
}

template <class T, int Rank>
testing::AssertionResult const_bits_equal(const heed::TensorView<const T, Rank>& a,
                                          const heed::TensorView<const T, Rank>& b);

/// Compares two (B, L, E) or (B, H, L, D) results bit by bit.
template <heed::TensorLike A, heed::TensorLike B>
testing::AssertionResult bits_equal(const A& a, const B& b) {
  return const_bits_equal<heed::scalar_of_t<A>, heed::rank_of_v<A>>(heed::view_of(a), heed::view_of(b));
}

/// The same for plain Eigen.
testing::AssertionResult equal(const Eigen::Ref<const Eigen::MatrixXf>& a, const Eigen::Ref<const Eigen::MatrixXf>& b);

/// Memory with a (B, L, E) view of any order and spacing; what lies between the elements is NaN and must stay so.
template <class T, int Rank>
class Spaced {
 public:
  /// order[0] is the slowest dimension, order[Rank - 1] the fastest; consecutive elements of the fastest are `step`
  /// apart and every other dimension leaves `gap` elements unused.
  Spaced(const heed::Extents<Rank>& extents, const std::array<int, Rank>& order, Index step, Index gap);
  heed::TensorView<T, Rank> view() { return {memory_.data(), extents_, strides_}; }

  /// How many elements are not NaN.
  std::size_t written() const;

 private:
  heed::Extents<Rank> extents_, strides_{};
  std::vector<T> memory_;
};

template <class T, int Rank>
void copy_elements(const heed::TensorView<const T, Rank>& from, const heed::TensorView<T, Rank>& to);

template <heed::AnyTensor A, class U, int Rank>
void copy(const A& from, const heed::TensorView<U, Rank>& to) {
  copy_elements<U, Rank>(heed::view_of(from), to);
}

/// A layer of any type with elements T, borrowed.
template <class T>
class AnyLayer {
 public:
  template <class Layer>
  requires(!std::is_same_v<Layer, AnyLayer>)
  AnyLayer(const Layer& layer)
      : layer_(&layer),
        forward_([](const void* any, heed::TensorView<const T, 3> x, heed::TensorView<T, 3> y, heed::Context& context) {
          static_cast<const Layer*>(any)->forward(x, y, context);
        }),
        call_([](const void* any, const heed::Tensor<T, 3>& x, heed::Context& context) {
          return (*static_cast<const Layer*>(any))(x, context);
        }) {}

  void forward(const heed::TensorView<const T, 3>& x, const heed::TensorView<T, 3>& y, heed::Context& context) const {
    forward_(layer_, x, y, context);
  }
  heed::Tensor<T, 3> operator()(const heed::Tensor<T, 3>& x, heed::Context& context) const {
    return call_(layer_, x, context);
  }
  heed::Tensor<T, 3> operator()(const heed::Tensor<T, 3>& x) const;

 private:
  const void* layer_;
  void (*forward_)(const void*, heed::TensorView<const T, 3>, heed::TensorView<T, 3>, heed::Context&);
  heed::Tensor<T, 3> (*call_)(const void*, const heed::Tensor<T, 3>&, heed::Context&);
};

/// forward() on views of many strides gives the bits of the contiguous call and touches nothing else.
template <class T>
void expect_same_for_any_strides(const AnyLayer<T>& layer, const heed::Extents<3>& extents);

/// Thread counts change no bit, and a warm context allocates nothing. The extents should be large enough for several
/// pieces of work; rows of strides other than 1 pass through scratch memory, one row for each thread.
template <class T>
void expect_same_for_any_threads(const AnyLayer<T>& layer, const heed::Extents<3>& extents);

template <class T>
void expect_in_place(const AnyLayer<T>& layer, const heed::Extents<3>& extents);

template <class T>
void expect_overlap_refused(const AnyLayer<T>& layer, const heed::Extents<3>& extents);

class Recorder : public heed::Observer {
 public:
  void output(std::string_view name, const heed::ObservedTensor& value) override;
  std::vector<std::string> names;
  int rank = 0;
  double first = 0;
};

/// Takes the weights of the layer that is `wanted` as well.
struct WeightRecorder : Recorder {
  bool wants_weights(std::string_view name) override { return name == wanted; }
  void weights(std::string_view name, const heed::ObservedTensor& value) override {
    shown.emplace_back(name);
    for (int d = 0; d < 4; ++d) extents.push_back(value.extent(d));
    last = value(1, value.extent(1) - 1, 2, 1);
  }
  std::string wanted;
  std::vector<std::string> shown;
  std::vector<heed::Index> extents;
  double last = 0;
};

template <class T>
void expect_observed(const AnyLayer<T>& layer, const heed::Extents<3>& extents);

/// All of the above but the threads, for a layer whose output has the width of its input and which may run in place.
template <class T>
void expect_layer(const AnyLayer<T>& layer, Index width);

/// One sequence (L, E) as all kinds of plain Eigen.
template <class T>
struct Sequence {
  Sequence(Index length, Index width);
  auto block() const { return around.block(2, 1, x.extent(1), x.extent(2)); }

  heed::Tensor<T, 3> x;  // (1, L, E)
  Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> rows;
  Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic> columns, around;
};

/// Plain Eigen of any kind gives the bits of the batch call; tensors and views keep their rank. This alone takes the
/// layer's own type, for its overloads, and is compiled for each: one or two element types of a layer are enough.
template <class T, class Layer>
void expect_same_for_any_argument(const Layer& layer, Index length, Index width) {
  const Sequence<T> sequence(length, width);
  const auto& [x, rows, columns, around] = sequence;
  const heed::Tensor<T, 3> expected = layer(x);
  const auto compare = [&](const auto& y) {
    static_assert(heed::EigenDense<decltype(y)>);
    EXPECT_TRUE(bits_equal(expected.view()[0], heed::view_of(y)));
  };
  compare(layer(rows));
  compare(layer(columns));
  compare(layer(x.matrix(0)));
  compare(layer(rows + rows - columns));
  compare(layer(sequence.block()));

  heed::Context context;
  compare(layer(columns, context));
  const heed::TensorView<const T, 2> two = x.view()[0];
  EXPECT_TRUE(bits_equal(expected.view()[0], layer(two)));
  EXPECT_TRUE(bits_equal(expected.view(), layer(x.view(), context)));
}

template <class A, class B, int Rank>
double const_max_error(const heed::TensorView<const A, Rank>& a, const heed::TensorView<const B, Rank>& b);

/// The largest |a - b|; NaN when there is one.
template <heed::TensorLike A, heed::TensorLike B>
double max_error(const A& a, const B& b) {
  return const_max_error<heed::scalar_of_t<A>, heed::scalar_of_t<B>, heed::rank_of_v<A>>(heed::view_of(a),
                                                                                         heed::view_of(b));
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
