// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// What the backward of every layer with one input promises: exact gradients; the same bits for any strides and thread
/// counts; gradients that add up; nothing allocated once warm; a dx that may be left out; mistakes refused.

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/context.hpp>
#include <heed/core/parallel.hpp>
#include <heed/core/tensor.hpp>
#include <heed/train/gradcheck.hpp>
#include <heed/train/parameter_list.hpp>

#include "common/allocation_counter.hpp"
#include "common/golden.hpp"
#include "nn/layer_checks.hpp"

namespace backward_checks {

using heed::Context;
using heed::Extents;
using heed::Index;
using heed::ParameterList;
using heed::Tensor;
using heed::TensorView;
using namespace layer_checks;

/// All elements of a tensor one after the other.
template <class T, int Rank>
TensorView<T, 1> flat(Tensor<T, Rank>& tensor) {
  return {tensor.data(), {tensor.size()}};
}
template <class T, int Rank>
TensorView<const T, 1> flat(const Tensor<T, Rank>& tensor) {
  return {tensor.data(), {tensor.size()}};
}

/// sum over the elements of y·dy: a loss whose gradient at y is dy.
template <class T, int Rank>
double dot(const Tensor<T, Rank>& y, const Tensor<T, Rank>& dy) {
  double sum = 0;
  for (Index i = 0; i < y.size(); ++i) sum += y.data()[i] * dy.data()[i];
  return sum;
}

/// What a forward and a backward give.
template <class T>
struct Gradients {
  Tensor<T, 3> y, dx;
  std::vector<Tensor<T, 1>> parameters;
};

/// The gradients of a layer's parameters, in the order of visit().
template <class T, class Layer>
std::vector<Tensor<T, 1>> parameter_gradients(Layer& layer) {
  std::vector<Tensor<T, 1>> gradients;
  layer.visit("", [&](std::string_view, heed::Parameter<T>& parameter) {
    gradients.emplace_back(parameter.size());
    copy(parameter.grad(), flat(gradients.back()));
  });
  return gradients;
}

template <class T, class Layer>
Gradients<T> gradients(Layer& layer, const Tensor<T, 3>& x, const Tensor<T, 3>& dy, Context& context) {
  ParameterList<T>(layer).zero_grad();
  Gradients<T> result{Tensor<T, 3>(dy.extents()), Tensor<T, 3>(x.extents()), {}};
  typename Layer::Cache cache;
  layer.forward(x.view(), result.y.view(), cache, context);
  layer.backward(dy.view(), result.dx.view(), cache, context);
  result.parameters = parameter_gradients<T>(layer);
  return result;
}

template <class T>
void expect_same_parameter_gradients(const std::vector<Tensor<T, 1>>& a, const std::vector<Tensor<T, 1>>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(bits_equal(a[i].view(), b[i].view())) << "parameter " << i;
}

template <class Layer>
Tensor<double, 3> random_dy(const Layer& layer, const Extents<3>& x) {
  return random_tensor<double, 3>({x[0], x[1], layer.output_width(x[2])}, 99);
}

/// Central differences for x and all parameters, in double.
template <class Layer>
heed::GradcheckReport check_gradients(Layer& layer, Tensor<double, 3> x) {
  const auto dy = random_dy(layer, x.extents());
  Context context;
  const Gradients<double> claimed = gradients<double>(layer, x, dy, context);
  Tensor<double, 3> y(dy.extents());
  const auto loss = [&] {
    layer.forward(x.view(), y.view(), context);
    return dot(y, dy);
  };
  return heed::gradcheck(loss, ParameterList<double>(layer), {{"x", flat(x), flat(claimed.dx)}});
}
template <class Layer>
void expect_exact_gradients(Layer& layer, const Extents<3>& extents, Index most_kinks = 0) {
  const auto report = check_gradients(layer, random_tensor<double, 3>(extents, 7));
  EXPECT_TRUE(report.passed) << report.text();
  EXPECT_LE(report.kinks, most_kinks) << report.text();
  EXPECT_EQ(report.checked + report.kinks, heed::parameter_count(layer) + extents[0] * extents[1] * extents[2]);
}

/// forward() with a cache gives the bits of forward() without, and both show the same to an observer.
template <class T, class Layer>
void expect_forward_unchanged(const Layer& layer, const Extents<3>& extents) {
  const auto x = random_tensor<T, 3>(extents);
  Recorder plain, training;
  Context context;
  context.observer = &plain;
  const Tensor<T, 3> expected = layer(x, context);
  context.observer = &training;
  Tensor<T, 3> y(expected.extents());
  typename Layer::Cache cache;
  layer.forward(x.view(), y.view(), cache, context);
  EXPECT_TRUE(bits_equal(expected.view(), y.view()));
  EXPECT_EQ(plain.names, training.names);
}

/// backward() on views of many strides gives the bits of the contiguous call and touches nothing else.
template <class T, class Layer>
void expect_same_backward_for_any_strides(Layer& layer, const Extents<3>& extents) {
  const auto x = random_tensor<T, 3>(extents);
  const auto dy = random_tensor<T, 3>({extents[0], extents[1], layer.output_width(extents[2])}, 5);
  Context context;
  const Gradients<T> expected = gradients<T>(layer, x, dy, context);
  const std::array<int, 3> orders[] = {{0, 1, 2}, {0, 2, 1}, {2, 1, 0}, {1, 0, 2}};
  for (const auto& in : orders) {
    for (const auto& out : orders) {
      SCOPED_TRACE(testing::Message() << "x and dx " << in[0] << in[1] << in[2] << " dy " << out[0] << out[1]
                                      << out[2]);
      Spaced<T, 3> from(extents, in, 1, 3), errors(dy.extents(), out, 2, 1), to(extents, in, 3, 2);
      copy(x.view(), from.view());
      copy(dy.view(), errors.view());
      ParameterList<T>(layer).zero_grad();
      typename Layer::Cache cache;
      Tensor<T, 3> y(dy.extents());
      layer.forward(from.view(), y.view(), cache, context);
      layer.backward(errors.view(), to.view(), cache, context);
      EXPECT_TRUE(bits_equal(expected.dx.view(), TensorView<const T, 3>(to.view())));
      EXPECT_EQ(to.written(), static_cast<std::size_t>(x.size()));
      expect_same_parameter_gradients(expected.parameters, parameter_gradients<T>(layer));
    }
  }
}

/// Thread counts change no bit, a second step in a warm context and cache allocates nothing, and its gradients add up.
template <class T, class Layer>
void expect_same_backward_for_any_threads(Layer& layer, const Extents<3>& extents) {
  const auto x = random_tensor<T, 3>(extents);
  const auto dy = random_tensor<T, 3>({extents[0], extents[1], layer.output_width(extents[2])}, 5);
  Context serial;
  const Gradients<T> expected = gradients<T>(layer, x, dy, serial);
  for (const int threads : {1, 2, 3, 7}) {
    SCOPED_TRACE(threads);
    heed::ThreadPool pool(threads);
    Context context(pool);
    ParameterList<T> parameters(layer);
    parameters.zero_grad();
    Tensor<T, 3> y(dy.extents()), dx(extents);
    typename Layer::Cache cache;
    const auto step = [&] {
      layer.forward(x.view(), y.view(), cache, context);
      layer.backward(dy.view(), dx.view(), cache, context);
    };
    step();
    EXPECT_TRUE(bits_equal(expected.dx.view(), dx.view()));
    expect_same_parameter_gradients(expected.parameters, parameter_gradients<T>(layer));
    parameters.zero_grad();
    EXPECT_EQ(heed_test::allocations_of(step), 0);
    expect_same_parameter_gradients(expected.parameters, parameter_gradients<T>(layer));
  }
}

/// A second backward with the same cache adds the same gradients once more.
template <class Layer>
void expect_gradients_add_up(Layer& layer, const Extents<3>& extents) {
  const auto x = random_tensor<double, 3>(extents);
  const auto dy = random_dy(layer, extents);
  Context context;
  const Gradients<double> once = gradients<double>(layer, x, dy, context);
  typename Layer::Cache cache;
  Tensor<double, 3> y(dy.extents()), dx(extents);
  layer.forward(x.view(), y.view(), cache, context);
  layer.backward(dy.view(), dx.view(), cache, context);
  EXPECT_TRUE(bits_equal(once.dx.view(), dx.view()));
  const auto twice = parameter_gradients<double>(layer);
  for (std::size_t i = 0; i < twice.size(); ++i) {
    double largest = 0, error = 0;
    for (Index j = 0; j < twice[i].size(); ++j) {
      largest = std::max(largest, std::abs(twice[i](j)));
      error = std::max(error, std::abs(twice[i](j) - 2 * once.parameters[i](j)));
    }
    EXPECT_GT(largest, 0);
    EXPECT_LE(error, 1e-15 * static_cast<double>(extents[0] * extents[1]) * largest);
  }
}

/// Without dx the parameters get the same gradients.
template <class Layer>
void expect_dx_may_be_left_out(Layer& layer, const Extents<3>& extents) {
  const auto x = random_tensor<double, 3>(extents);
  const auto dy = random_dy(layer, extents);
  Context context;
  const Gradients<double> with = gradients<double>(layer, x, dy, context);
  ParameterList<double>(layer).zero_grad();
  typename Layer::Cache cache;
  Tensor<double, 3> y(dy.extents());
  layer.forward(x.view(), y.view(), cache, context);
  layer.backward(dy.view(), heed::kNotWanted, cache, context);
  expect_same_parameter_gradients(with.parameters, parameter_gradients<double>(layer));
}

/// Without tokens there is nothing to add, and nothing to write.
template <class Layer>
void expect_empty_backward(Layer& layer, Index width) {
  Context context;
  for (const Extents<3>& extents : {Extents<3>{0, 3, width}, Extents<3>{2, 0, width}}) {
    const Tensor<double, 3> x(extents), dy(extents[0], extents[1], layer.output_width(width));
    for (const auto& gradient : gradients<double>(layer, x, dy, context).parameters) {
      for (Index i = 0; i < gradient.size(); ++i) ASSERT_EQ(gradient(i), 0);
    }
  }
}

/// Extents that don't fit the forward and memory that overlaps are refused.
template <class Layer>
void expect_backward_mistakes_refused(Layer& layer, const Extents<3>& extents) {
  const auto x = random_tensor<double, 3>(extents);
  auto dy = random_dy(layer, extents);
  Tensor<double, 3> y(dy.extents()), dx(extents), longer(extents[0], extents[1] + 1, extents[2]);
  Context context;
  typename Layer::Cache cache;
  EXPECT_THROW(layer.backward(dy.view(), dx.view(), cache, context), heed::ShapeError) << "no forward";
  layer.forward(x.view(), y.view(), cache, context);
  EXPECT_THROW(layer.backward(dy.view(), longer.view(), cache, context), heed::ShapeError);
  const Tensor<double, 3> more(dy.extent(0), dy.extent(1), dy.extent(2) + 1);
  EXPECT_THROW(layer.backward(more.view(), dx.view(), cache, context), heed::ShapeError);
}

/// All of the above but the threads and the strides.
template <class Layer>
void expect_backward(Layer& layer, const Extents<3>& extents, Index most_kinks = 0) {
  expect_exact_gradients(layer, extents, most_kinks);
  expect_forward_unchanged<double>(layer, extents);
  expect_gradients_add_up(layer, extents);
  expect_dx_may_be_left_out(layer, extents);
  expect_empty_backward(layer, extents[2]);
  expect_backward_mistakes_refused(layer, extents);
}

/// The gradients that PyTorch computed, for a layer with one input x.
template <class T, class Layer>
void expect_golden_gradients(const std::string& name, Layer layer, double tolerance = heed_test::kGoldenTolerance<T>) {
  SCOPED_TRACE(name);
  const heed_test::Golden golden(name);
  golden.load_into(layer);
  Context context;
  const auto x = golden.tensor<T, 3>("in.x"), dy = golden.tensor<T, 3>("dout.y");
  const Gradients<T> found = gradients<T>(layer, x, dy, context);
  EXPECT_TRUE(golden.agrees("out.y", found.y.view(), tolerance));
  EXPECT_TRUE(golden.agrees("grad.in.x", found.dx.view(), tolerance));
  layer.visit("", [&](std::string_view parameter_name, heed::Parameter<T>& parameter) {
    const std::string stored = "grad.param." + std::string(parameter_name);
    EXPECT_TRUE(parameter.rank() == 1 ? golden.agrees(stored, parameter.grad(), tolerance)
                                      : golden.agrees(stored, parameter.grad_matrix(), tolerance));
  });
}

}  // namespace backward_checks
