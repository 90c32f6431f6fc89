// SPDX-License-Identifier: MIT
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <heed/nn/recurrent.hpp>

#include "common/gemm_instances.hpp"
#include "common/golden.hpp"
#include "nn/backward_checks.hpp"
#include "nn/recurrent_kinds.hpp"

namespace {

using heed::Recurrent;
using heed_test::Golden;
using namespace backward_checks;
using namespace recurrent_kinds;

// All that goes into a layer and comes out of it, with gradients. The cells stay empty where there are none.
template <class T>
struct Run {
  Tensor<T, 3> x, h_0, c_0, dy, dh_n, dc_n;
  std::vector<int> lengths{};
  Tensor<T, 3> y{dy.extents()}, h_n{h_0.extents()}, c_n{c_0.extents()};
  Tensor<T, 3> dx{x.extents()}, dh_0{h_0.extents()}, dc_0{c_0.extents()};

  void forward(const Recurrent<T>& layer, Context& context) {
    layer.forward(x, {lengths, h_0, c_0, h_n, c_n}, y.view(), context);
  }
  void forward_backward(Recurrent<T>& layer, Context& context) {
    ParameterList<T>(layer).zero_grad();
    typename Recurrent<T>::Cache cache;
    layer.forward(x, {lengths, h_0, c_0, h_n, c_n}, y.view(), cache, context);
    layer.backward(dy, {dh_n, dc_n, dh_0, dc_0}, dx.view(), cache, context);
  }
};

template <class T>
void expect_golden(const std::string& kind, const std::string& variant, double tolerance) {
  SCOPED_TRACE(kind + variant);
  const Golden golden(kind + variant);
  Recurrent<T> layer = golden_layer<T>(kind, variant);
  golden.load_into(layer);
  const bool has_cells = kind == "lstm";
  const auto read = [&](const char* name) { return golden.tensor<T, 3>(name); };
  const auto read_cells = [&](const char* name) { return has_cells ? read(name) : Tensor<T, 3>(); };
  Run<T> run{.x = read("in.x"),
             .h_0 = read("in.h_0"),
             .c_0 = read_cells("in.c_0"),
             .dy = read("dout.y"),
             .dh_n = read("dout.h_n"),
             .dc_n = read_cells("dout.c_n")};
  if (golden.contains("in.lengths")) run.lengths = golden.integers("in.lengths");
  Context context;
  run.forward_backward(layer, context);
  EXPECT_TRUE(golden.agrees("out.y", run.y.view(), tolerance));
  EXPECT_TRUE(golden.agrees("out.h_n", run.h_n.view(), tolerance));
  EXPECT_TRUE(golden.agrees("grad.in.x", run.dx.view(), tolerance));
  EXPECT_TRUE(golden.agrees("grad.in.h_0", run.dh_0.view(), tolerance));
  EXPECT_TRUE(!has_cells || golden.agrees("grad.in.c_0", run.dc_0.view(), tolerance));
  layer.visit("", [&](std::string_view name, heed::Parameter<T>& parameter) {
    const std::string stored = "grad.param." + std::string(name);
    EXPECT_TRUE(parameter.rank() == 1 ? golden.agrees(stored, parameter.grad(), tolerance)
                                      : golden.agrees(stored, parameter.grad_matrix(), tolerance));
  });
}

TEST(RecurrentBackward, GradientsFromPyTorch) {
  for (const char* kind : {"rnn", "lstm", "gru"}) {
    for (const char* variant : kGoldenVariants) {
      expect_golden<double>(kind, variant, heed_test::kGoldenTolerance<double>);
      expect_golden<float>(kind, variant, heed_test::kGoldenTolerance<float>);
    }
  }
}

}  // namespace
