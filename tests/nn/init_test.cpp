// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <Eigen/LU>
#include <gtest/gtest.h>

#include <heed/nn/init.hpp>
#include <heed/nn/norm.hpp>

#include "nn/layer_checks.hpp"

namespace {

using heed::Index;
using heed::Parameter;
using heed::Philox;
using namespace layer_checks;

namespace init = heed::init;

constexpr Index kRows = 300, kColumns = 200;  // 60000 numbers: a mean within 4σ/245

struct Moments {
  double mean = 0, stddev = 0, largest = 0, fourth = 0;
};
template <class T>
Moments moments(const Parameter<T>& parameter) {
  Moments m;
  const auto count = static_cast<double>(parameter.size());
  for (Index i = 0; i < parameter.size(); ++i) {
    const double x = static_cast<double>(parameter.value()(i));
    m.mean += x / count;
    m.stddev += x * x / count;
    m.fourth += x * x * x * x / count;
    m.largest = std::max(m.largest, std::abs(x));
  }
  m.fourth /= m.stddev * m.stddev;
  m.stddev = std::sqrt(m.stddev);
  return m;
}

// The fourth moment tells the distributions apart: 3 for a normal one, 9/5 for a uniform one.
void expect_normal(const Parameter<float>& parameter, double stddev) {
  const Moments m = moments(parameter);
  EXPECT_NEAR(m.mean, 0, stddev * 0.017);
  EXPECT_NEAR(m.stddev, stddev, stddev * 0.012);
  EXPECT_NEAR(m.fourth, 3, 0.1);
}
void expect_uniform(const Parameter<float>& parameter, double bound) {
  const Moments m = moments(parameter);
  EXPECT_NEAR(m.mean, 0, bound * 0.01);
  EXPECT_NEAR(m.stddev, bound / std::sqrt(3.0), bound * 0.01);
  EXPECT_NEAR(m.fourth, 1.8, 0.05);
  EXPECT_LE(m.largest, bound * (1 + 1e-6));
  EXPECT_GE(m.largest, bound * 0.999);
}

TEST(Init, MomentsAreThoseOfTheFormulas) {
  Parameter<float> w(kRows, kColumns);
  const Philox random(5, init::stream("w"));
  init::normal(w, random, 0.02);
  expect_normal(w, 0.02);
  init::uniform(w, random, -0.3, 0.3);
  expect_uniform(w, 0.3);
  init::xavier_normal(w, random);
  expect_normal(w, std::sqrt(2.0 / (kRows + kColumns)));
  init::xavier_uniform(w, random, 2);
  expect_uniform(w, 2 * std::sqrt(6.0 / (kRows + kColumns)));
  init::kaiming_normal(w, random);
  expect_normal(w, std::sqrt(2.0 / kColumns));
  init::kaiming_normal(w, random, {.gain = 1, .fan = init::Fan::Out});
  expect_normal(w, 1 / std::sqrt(double{kRows}));
  init::kaiming_uniform(w, random);
  expect_uniform(w, std::sqrt(6.0 / kColumns));
  // What PyTorch's Linear starts from: 1/√in.
  init::kaiming_uniform(w, random, {.gain = 1 / std::sqrt(3.0)});
  expect_uniform(w, 1 / std::sqrt(double{kColumns}));
  init::zeros(w);
  EXPECT_EQ(moments(w).largest, 0);
  init::constant(w, 2.5);
  EXPECT_NEAR(moments(w).mean, 2.5, 1e-9);
  EXPECT_EQ(w.value()(w.size() - 1), 2.5f);
}

TEST(Init, UniformStaysBetweenItsEnds) {
  Parameter<double> w(kRows, kColumns);
  init::uniform(w, Philox(1), 2, 5);
  double low = 5, high = 2;
  for (Index i = 0; i < w.size(); ++i) {
    low = std::min(low, w.value()(i));
    high = std::max(high, w.value()(i));
  }
  EXPECT_GE(low, 2);
  EXPECT_LE(low, 2.001);
  EXPECT_LT(high, 5);
  EXPECT_GE(high, 4.999);
}

template <class T>
void expect_orthogonal(Index rows, Index columns, double gain) {
  Parameter<T> w(rows, columns);
  init::orthogonal(w, Philox(3, init::stream("w")), gain);
  const auto m = w.matrix();
  const auto vectors = rows <= columns ? m : m.transpose(0, 1);
  const double eps = static_cast<double>(std::numeric_limits<T>::epsilon());
  for (Index i = 0; i < vectors.extent(0); ++i) {
    for (Index j = 0; j <= i; ++j) {
      double dot = 0;
      for (Index k = 0; k < vectors.extent(1); ++k) {
        dot += static_cast<double>(vectors(i, k)) * static_cast<double>(vectors(j, k));
      }
      ASSERT_NEAR(dot, i == j ? gain * gain : 0, 10 * eps * gain * gain) << rows << " x " << columns;
    }
  }
}

TEST(Init, OrthogonalRowsOrColumns) {
  for (const auto& [rows, columns] : std::vector<std::pair<Index, Index>>{
           {1, 1}, {1, 9}, {9, 1}, {2, 2}, {17, 17}, {40, 64}, {64, 40}, {97, 128}, {130, 67}}) {
    expect_orthogonal<double>(rows, columns, 1);
    expect_orthogonal<double>(rows, columns, 1.5);
    expect_orthogonal<float>(rows, columns, 1);
  }
  Parameter<float> none(0, 5);
  init::orthogonal(none, Philox(1));
}

// Uniform over the orthogonal matrices: of many 3 x 3 ones every element has mean 0 and variance 1/3, the trace has
// mean 0 and variance 1, and both determinants occur. A QR whose signs are left as they fall fails this.
TEST(Init, OrthogonalIsUniform) {
  constexpr int draws = 4000;
  Eigen::Matrix3d mean = Eigen::Matrix3d::Zero(), square = Eigen::Matrix3d::Zero();
  double trace = 0, trace_square = 0;
  int reflections = 0;
  for (int draw = 0; draw < draws; ++draw) {
    Parameter<double> w(3, 3);
    init::orthogonal(w, Philox(static_cast<std::uint64_t>(draw), 9));
    const Eigen::Matrix3d m = w.matrix().matrix();
    mean += m / draws;
    square += m.cwiseProduct(m) / draws;
    trace += m.trace() / draws;
    trace_square += m.trace() * m.trace() / draws;
    reflections += m.determinant() < 0;
  }
  EXPECT_LE(largest(mean), 0.04);
  EXPECT_LE(largest(square - Eigen::Matrix3d::Constant(1.0 / 3)), 0.025);
  EXPECT_NEAR(trace, 0, 0.07);
  EXPECT_NEAR(trace_square, 1, 0.1);
  EXPECT_NEAR(reflections, draws / 2, draws / 20);
}

// Two layers, visited in either order.
struct Pair {
  static heed::LayerNorm<float> make() { return heed::LayerNorm<float>({.embed_dim = 40}); }
  heed::LayerNorm<float> first = make(), second = make();
  bool swapped = false;
  template <class F>
  void visit(std::string_view prefix, F&& f) {
    if (!swapped) first.visit(heed::detail::join(prefix, "first"), f);
    second.visit(heed::detail::join(prefix, "second"), f);
    if (swapped) first.visit(heed::detail::join(prefix, "first"), f);
  }
};

// The numbers belong to the place in the parameter, whatever its strides, and to the name, whatever the order of
// layers.
TEST(Init, NumbersDependOnNameAndPlaceAlone) {
  Parameter<float> w(13, 21);
  init::xavier_uniform(w, Philox(7, 8));
  Spaced<float, 2> spaced({13, 21}, {1, 0}, 2, 3);
  init::xavier_uniform(spaced.view(), Philox(7, 8));
  EXPECT_TRUE(bits_equal(w.matrix(), spaced.view()));
  EXPECT_EQ(spaced.written(), 13u * 21u);
  init::orthogonal(w, Philox(7, 8));
  init::orthogonal(spaced.view(), Philox(7, 8));
  EXPECT_TRUE(bits_equal(w.matrix(), spaced.view()));

  Pair a, b;
  b.swapped = true;
  int visited = 0;
  const auto each = [&](Pair& pair, std::uint64_t seed) {
    heed::Random random(seed);
    init::each(pair, random, [&](std::string_view, auto& parameter, const Philox& numbers) {
      init::normal(parameter, numbers, 1);
      ++visited;
    });
  };
  each(a, 11);
  each(b, 11);
  EXPECT_EQ(visited, 8);
  EXPECT_TRUE(bits_equal(a.first.weight.value(), b.first.weight.value()));
  EXPECT_TRUE(bits_equal(a.second.bias.value(), b.second.bias.value()));
  EXPECT_FALSE(bits_equal(a.first.weight.value(), a.second.weight.value()));
  EXPECT_FALSE(bits_equal(a.first.weight.value(), a.first.bias.value()));
  each(b, 12);
  EXPECT_FALSE(bits_equal(a.first.weight.value(), b.first.weight.value()));
}

// Numbers that files and other machines rely on.
TEST(Init, StreamsAreFixed) {
  EXPECT_EQ(init::stream(""), 0xcbf29ce484222325u);
  EXPECT_EQ(init::stream("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(init::stream("foobar"), 0x85944171f73967e8u);
}

TEST(Init, MistakesAreNamed) {
  Parameter<float> vector(5), matrix(2, 2);
  const std::string text = message_of<heed::ShapeError>([&] { init::xavier_uniform(vector, Philox(1)); });
  EXPECT_NE(text.find("heed::init::xavier_uniform: the parameter has rank 1"), std::string::npos) << text;
  EXPECT_THROW(init::xavier_normal(vector, Philox(1)), heed::ShapeError);
  EXPECT_THROW(init::kaiming_uniform(vector, Philox(1)), heed::ShapeError);
  EXPECT_THROW(init::kaiming_normal(vector, Philox(1)), heed::ShapeError);
  EXPECT_THROW(init::orthogonal(vector, Philox(1)), heed::ShapeError);
  EXPECT_THROW(init::normal(matrix, Philox(1), -1), heed::ValueError);
  EXPECT_THROW(init::uniform(matrix, Philox(1), 1, -1), heed::ValueError);
  init::uniform(vector, Philox(1), 0, 1);
  EXPECT_GT(vector.value()(4), 0);
}

}  // namespace
