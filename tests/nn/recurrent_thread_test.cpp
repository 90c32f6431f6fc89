// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <heed/nn/recurrent.hpp>

#include "nn/backward_checks.hpp"
#include "nn/recurrent_kinds.hpp"

namespace {

using namespace backward_checks;

TEST(RecurrentThreads, ChangeNoBit) {
  for (const char* kind : {"lstm", "gru"}) {
    SCOPED_TRACE(kind);
    auto layer = recurrent_kinds::make<double>(
        kind, {.input_size = 40, .hidden_size = 120, .num_layers = 2, .bidirectional = true});
    fill_parameters<double>(layer, 3);
    expect_same_for_any_threads<double>(layer, {24, 5, 40});
    expect_same_backward_for_any_threads<double>(layer, {24, 5, 40});
  }
}

}  // namespace
