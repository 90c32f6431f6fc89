// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/parallel.hpp>
#include <heed/nn/recurrent.hpp>

#include "common/allocation_counter.hpp"
#include "common/gemm_instances.hpp"
#include "common/golden.hpp"
#include "nn/layer_checks.hpp"
#include "nn/recurrent_kinds.hpp"

namespace {

using heed::Context;
using heed::GRU;
using heed::Index;
using heed::LSTM;
using heed::Nonlinearity;
using heed::Recurrent;
using heed::RNN;
using heed::Tensor;
using heed::TensorView;
using heed_test::Golden;
using heed_test::kGoldenTolerance;
using namespace layer_checks;
using namespace recurrent_kinds;

template <class T>
void expect_golden(const std::string& kind, const std::string& variant) {
  const std::string name = kind + variant;
  SCOPED_TRACE(name);
  const Golden golden(name);
  Recurrent<T> layer = golden_layer<T>(kind, variant);
  golden.load_into(layer);
  const bool has_cells = kind == "lstm";
  const auto x = golden.tensor<T, 3>("in.x"), h_0 = golden.tensor<T, 3>("in.h_0");
  const auto c_0 = has_cells ? golden.tensor<T, 3>("in.c_0") : Tensor<T, 3>();
  const auto lengths = golden.contains("in.lengths") ? golden.integers("in.lengths") : std::vector<int>();
  for (int packed = 0; packed < 2; ++packed) {
    Tensor<T, 3> h(h_0.extents()), c(c_0.extents());
    const auto y = layer(x, {lengths, h_0, c_0, h, c});
    EXPECT_TRUE(golden.agrees("out.y", y.view(), kGoldenTolerance<T>));
    EXPECT_TRUE(golden.agrees("out.h_n", h.view(), kGoldenTolerance<T>));
    EXPECT_TRUE(!has_cells || golden.agrees("out.c_n", c.view(), kGoldenTolerance<T>));
    layer.pack({.release = true});
  }
}

TEST(Recurrent, ValuesFromPyTorch) {
  for (const char* kind : {"rnn", "lstm", "gru"}) {
    for (const char* variant : kGoldenVariants) {
      expect_golden<double>(kind, variant);
      expect_golden<float>(kind, variant);
    }
  }
}

}  // namespace
