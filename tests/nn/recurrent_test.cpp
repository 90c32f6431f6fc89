// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <heed/nn/recurrent.hpp>

#include "common/allocation_counter.hpp"
#include "common/golden.hpp"
#include "nn/layer_checks.hpp"
#include "nn/recurrent_kinds.hpp"

namespace {

using heed::Context;
using heed::GRU;
using heed::Index;
using heed::LSTM;
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

// A layer with one input, one unit and other numbers in every parameter.
Recurrent<double> small_layer(std::string_view kind) {
  Recurrent<double> layer = make<double>(kind, {.input_size = 1, .hidden_size = 1});
  fill_parameters<double>(layer, 3);
  return layer;
}
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(Recurrent, OneStepByHand) {
  constexpr double x = 0.7, h = -0.4, c = 0.9;
  for (const std::string_view kind : kKinds) {
    SCOPED_TRACE(kind);
    const Recurrent<double> layer = small_layer(kind);
    const auto& w = layer.weights(0);
    const auto of_x = [&](Index gate) { return w.weight_ih.value()(gate) * x + w.bias_ih.value()(gate); };
    const auto of_h = [&](Index gate) { return w.weight_hh.value()(gate) * h + w.bias_hh.value()(gate); };
    const auto sum = [&](Index gate) { return of_x(gate) + of_h(gate); };
    double expected = 0, expected_c = 0;
    if (kind == "rnn") {
      expected = std::tanh(sum(0));
    } else if (kind == "rnn_relu") {
      expected = std::max(0., sum(0));
    } else if (kind == "lstm") {
      expected_c = sigmoid(sum(1)) * c + sigmoid(sum(0)) * std::tanh(sum(2));
      expected = sigmoid(sum(3)) * std::tanh(expected_c);
    } else {
      const double z = sigmoid(sum(1));
      expected = (1 - z) * std::tanh(of_x(2) + sigmoid(sum(0)) * of_h(2)) + z * h;
    }
    Tensor<double, 3> in(1, 1, 1), state(1, 1, 1), cells(1, 1, 1);
    in(0, 0, 0) = x;
    state(0, 0, 0) = h;
    cells(0, 0, 0) = c;
    heed::RecurrentArguments<double> arguments{.h_0 = state, .h_n = state};
    if (kind == "lstm") arguments.c_0 = arguments.c_n = cells;
    const Tensor<double, 3> y = layer(in, arguments);
    EXPECT_NEAR(y(0, 0, 0), expected, 1e-15);
    EXPECT_EQ(state(0, 0, 0), y(0, 0, 0));
    if (kind == "lstm") {
      EXPECT_NEAR(cells(0, 0, 0), expected_c, 1e-15);
    }
  }
}

// Two layers in both directions, of widths that don't fill a register.
Recurrent<double> deep_layer(std::string_view kind) {
  Recurrent<double> layer =
      make<double>(kind, {.input_size = 3, .hidden_size = 11, .num_layers = 2, .bidirectional = true});
  fill_parameters<double>(layer, 5);
  return layer;
}

TEST(Recurrent, StepByStepIsTheWholeSequence) {
  for (const char* kind : kKinds) {
    SCOPED_TRACE(kind);
    Recurrent<double> layer = make<double>(kind, {.input_size = 3, .hidden_size = 11, .num_layers = 2});
    fill_parameters<double>(layer, 5);
    const auto x = random_tensor<double, 3>({2, 5, 3});
    const heed::Extents<3> state = layer.state_extents(2);
    const auto h_0 = random_tensor<double, 3>(state, 2), c_0 = random_tensor<double, 3>(state, 3);
    const bool has_cells = std::string_view(kind) == "lstm";
    Tensor<double, 3> h_n(state), c_n(state), h = h_0, c = c_0;
    heed::RecurrentArguments<double> whole{.h_0 = h_0, .h_n = h_n}, step{.h_0 = h, .h_n = h};
    if (has_cells) {
      whole.c_0 = c_0;
      whole.c_n = c_n;
      step.c_0 = step.c_n = c;
    }
    const auto expected = layer(x, whole);
    Context context;
    Tensor<double, 3> y(expected.extents());
    for (Index t = 0; t < 5; ++t) layer.forward(x.view().slice(1, t, 1), step, y.view().slice(1, t, 1), context);
    EXPECT_TRUE(bits_equal(expected.view(), y.view()));
    EXPECT_TRUE(bits_equal(h_n.view(), h.view()));
    EXPECT_TRUE(!has_cells || bits_equal(c_n.view(), c.view()));
  }
}

TEST(Recurrent, SequencesOfSeveralLengthsAreSequencesAlone) {
  const std::vector<int> lengths{2, 6, 0, 4, 6};
  constexpr Index B = 5, L = 7;
  for (const char* kind : kKinds) {
    SCOPED_TRACE(kind);
    const Recurrent<double> layer = deep_layer(kind);
    const heed::Extents<3> state = layer.state_extents(B);
    const bool has_cells = std::string_view(kind) == "lstm";
    auto x = random_tensor<double, 3>({B, L, 3});
    for (Index b = 0; b < B; ++b) {
      for (Index t = lengths[static_cast<std::size_t>(b)]; t < L; ++t) {
        for (Index e = 0; e < 3; ++e) x(b, t, e) = std::numeric_limits<double>::quiet_NaN();
      }
    }
    const auto h_0 = random_tensor<double, 3>(state, 2), c_0 = random_tensor<double, 3>(state, 3);
    Tensor<double, 3> h_n(state), c_n(state);
    heed::RecurrentArguments<double> together{.lengths = lengths, .h_0 = h_0, .h_n = h_n};
    if (has_cells) {
      together.c_0 = c_0;
      together.c_n = c_n;
    }
    const auto y = layer(x, together);
    for (Index b = 0; b < B; ++b) {
      SCOPED_TRACE(b);
      const Index length = lengths[static_cast<std::size_t>(b)];
      Tensor<double, 3> h(layer.state_extents(1)), c(h.extents());
      heed::RecurrentArguments<double> alone{.h_0 = h_0.view().slice(1, b, 1), .h_n = h};
      if (has_cells) {
        alone.c_0 = c_0.view().slice(1, b, 1);
        alone.c_n = c;
      }
      const auto expected = layer(x.view().slice(0, b, 1).slice(1, 0, length), alone);
      EXPECT_TRUE(bits_equal(expected.view(), y.view().slice(0, b, 1).slice(1, 0, length)));
      EXPECT_TRUE(bits_equal(h.view(), h_n.view().slice(1, b, 1)));
      EXPECT_TRUE(!has_cells || bits_equal(c.view(), c_n.view().slice(1, b, 1)));
      for (Index t = length; t < L; ++t) {
        for (Index e = 0; e < y.extent(2); ++e) ASSERT_EQ(y(b, t, e), 0) << t;
      }
    }
  }
}

// F47
TEST(Recurrent, TakesLengthsOfAnyIntegerType) {
  heed::LSTM<float> layer({.input_size = 3, .hidden_size = 4, .bidirectional = true});
  fill_parameters<float>(layer, 1);
  const auto x = random_tensor<float, 3>({3, 5, 3}, 2);
  const std::vector<int> ints{2, 5, 0};
  const Tensor<float, 3> expected = layer(x, {.lengths = ints});
  const std::vector<std::int64_t> wide(ints.begin(), ints.end());
  const std::array<std::uint8_t, 3> narrow{2, 5, 0};
  const Eigen::Matrix<std::uint64_t, 3, 1> eigen(2, 5, 0);
  EXPECT_TRUE(bits_equal(expected.view(), layer(x, {.lengths = wide})));
  EXPECT_TRUE(bits_equal(expected.view(), layer(x, {.lengths = narrow})));
  EXPECT_TRUE(bits_equal(expected.view(), layer(x, {.lengths = eigen})));
}

TEST(Recurrent, KeepsThePromisesOfALayer) {
  for (const char* kind : kKinds) {
    SCOPED_TRACE(kind);
    const Recurrent<double> layer = deep_layer(kind);
    expect_same_for_any_strides<double>(layer, {2, 3, 3});
    expect_observed<double>(layer, {2, 3, 3});
    EXPECT_EQ(layer(Tensor<double, 3>(0, 3, 3)).extents(), (heed::Extents<3>{0, 3, 22}));
    EXPECT_EQ(layer(Tensor<double, 3>(2, 0, 3)).extents(), (heed::Extents<3>{2, 0, 22}));
  }
  expect_same_for_any_argument<double>(deep_layer("gru"), 5, 3);
  Recurrent<double> square = make<double>("lstm", {.input_size = 4, .hidden_size = 4});
  expect_overlap_refused<double>(square, {2, 3, 4});
}

TEST(Recurrent, AllocatesNothingOnceWarm) {
  const std::vector<int> lengths{2, 6, 4};
  for (const char* kind : kKinds) {
    const Recurrent<double> layer = deep_layer(kind);
    const auto x = random_tensor<double, 3>({3, 6, 3});
    Tensor<double, 3> y(3, 6, 22), h(layer.state_extents(3));
    Context context;
    context.training = true;
    const auto run = [&] { layer.forward(x, {.lengths = lengths, .h_0 = h, .h_n = h}, y.view(), context); };
    run();
    EXPECT_EQ(heed_test::allocations_of(run), 0) << kind;
  }
}

TEST(Recurrent, ParametersHaveTheNamesOfPyTorch) {
  std::vector<std::string> names;
  deep_layer("gru").visit("encoder", [&](std::string_view name, const heed::Parameter<double>& parameter) {
    names.push_back(std::string(name) + " " + std::to_string(parameter.extents()[0]) + " " +
                    std::to_string(parameter.extents()[1]));
  });
  const std::vector<std::string> expected{"encoder.weight_ih_l0 33 3",
                                          "encoder.weight_hh_l0 33 11",
                                          "encoder.bias_ih_l0 33 1",
                                          "encoder.bias_hh_l0 33 1",
                                          "encoder.weight_ih_l0_reverse 33 3",
                                          "encoder.weight_hh_l0_reverse 33 11",
                                          "encoder.bias_ih_l0_reverse 33 1",
                                          "encoder.bias_hh_l0_reverse 33 1",
                                          "encoder.weight_ih_l1 33 22",
                                          "encoder.weight_hh_l1 33 11",
                                          "encoder.bias_ih_l1 33 1",
                                          "encoder.bias_hh_l1 33 1",
                                          "encoder.weight_ih_l1_reverse 33 22",
                                          "encoder.weight_hh_l1_reverse 33 11",
                                          "encoder.bias_ih_l1_reverse 33 1",
                                          "encoder.bias_hh_l1_reverse 33 1"};
  EXPECT_EQ(names, expected);
  EXPECT_EQ(heed::parameter_count(LSTM<double>({.input_size = 3, .hidden_size = 5, .bias = false})), 4 * 5 * (3 + 5));
}

TEST(Recurrent, StartsLikePyTorch) {
  LSTM<double> layer({.input_size = 30, .hidden_size = 25}), again({.input_size = 30, .hidden_size = 25});
  initialize(layer, 7);
  initialize(again, 7);
  layer.visit("", [&](std::string_view name, heed::Parameter<double>& parameter) {
    double largest = 0, sum = 0;
    for (Index i = 0; i < parameter.size(); ++i) {
      largest = std::max(largest, std::abs(parameter.value()(i)));
      sum += parameter.value()(i);
    }
    EXPECT_LE(largest, 1 / std::sqrt(25.)) << name;
    EXPECT_GE(largest, 0.9 / std::sqrt(25.)) << name;
    EXPECT_LE(std::abs(sum / static_cast<double>(parameter.size())), 0.04) << name;
  });
  EXPECT_TRUE(bits_equal(layer.weights(0).weight_hh.matrix(), again.weights(0).weight_hh.matrix()));
  EXPECT_FALSE(bits_equal(layer.weights(0).bias_ih.value(), layer.weights(0).bias_hh.value()));
  initialize(again, 7, "decoder");
  EXPECT_FALSE(bits_equal(layer.weights(0).weight_hh.matrix(), again.weights(0).weight_hh.matrix()));
}

TEST(Recurrent, APackedCopyChangesNoBitAndFollowsItsWeight) {
  Recurrent<double> layer = deep_layer("lstm"), plain = layer;
  const auto x = random_tensor<double, 3>({2, 4, 3});
  layer.pack();
  EXPECT_TRUE(bits_equal(plain(x), layer(x)));
  for (Recurrent<double>* each : {&layer, &plain}) {
    each->weights(0).weight_hh.mutable_matrix()(0, 0) += 1;
    each->weights(1, 1).weight_ih.mutable_matrix()(0, 0) += 1;
  }
  EXPECT_TRUE(bits_equal(plain(x), layer(x)));
}

// A layer of a deep one by itself.
Recurrent<double> layer_of(const Recurrent<double>& deep, int number) {
  Recurrent<double> one = make<double>("gru", {.input_size = number == 0 ? 3 : 8, .hidden_size = 8});
  one.weights(0) = deep.weights(number);
  return one;
}

TEST(Recurrent, DropoutIsBetweenLayersAndInTrainingOnly) {
  constexpr double probability = 0.25;
  Recurrent<double> layer =
      make<double>("gru", {.input_size = 3, .hidden_size = 8, .num_layers = 2, .dropout = probability});
  fill_parameters<double>(layer, 5);
  const auto x = random_tensor<double, 3>({2, 6, 3});
  const Recurrent<double> first = layer_of(layer, 0), second = layer_of(layer, 1);
  const auto kept = second(first(x));
  EXPECT_TRUE(bits_equal(kept.view(), layer(x)));

  Context context;
  context.training = true;
  context.seed = 11;
  const auto y = layer(x, context), other = layer(x, context);
  Tensor<double, 3> between = first(x);
  const heed::DropoutPattern pattern(11, 0, probability);
  Index dropped = 0;
  for (Index b = 0; b < 2; ++b) {
    for (Index t = 0; t < 6; ++t) {
      const auto word = pattern.query_word(static_cast<int>(b), 0, static_cast<int>(t));
      for (Index e = 0; e < 8; ++e) {
        const bool keeps = pattern.keeps(word, heed::DropoutPattern::key_word(static_cast<int>(e)));
        between(b, t, e) = keeps ? between(b, t, e) * (1 / (1 - probability)) : 0;
        dropped += keeps ? 0 : 1;
      }
    }
  }
  EXPECT_NEAR(static_cast<double>(dropped), 96 * probability, 13);
  EXPECT_TRUE(bits_equal(second(between), y.view()));
  EXPECT_FALSE(bits_equal(y.view(), other.view())) << "a second call drops other elements";
  context.restart_streams();
  EXPECT_TRUE(bits_equal(y.view(), layer(x, context)));
}

TEST(Recurrent, MistakesAreNamed) {
  EXPECT_THROW(GRU<float>({.input_size = 0, .hidden_size = 2}), heed::ShapeError);
  EXPECT_THROW(RNN<float>({.input_size = 1, .hidden_size = 2, .num_layers = 0}), heed::ShapeError);
  EXPECT_THROW(RNN<float>({.input_size = 1, .hidden_size = 2, .dropout = 1.5}), heed::ValueError);
  EXPECT_THROW(LSTM<double>({.input_size = 1, .hidden_size = 2}).weights(0, 1), heed::ValueError);

  const GRU<double> gru({.input_size = 3, .hidden_size = 2});
  LSTM<double> lstm({.input_size = 3, .hidden_size = 2});
  initialize(lstm, 1);
  Tensor<double, 3> x(2, 4, 3), y(2, 4, 2), state(1, 2, 2), other(1, 2, 2), long_state(1, 3, 2);
  Context context;
  const auto shape_error = [&](const heed::RecurrentArguments<double>& arguments) {
    return message_of<heed::ShapeError>([&] { lstm.forward(x, arguments, y.view(), context); });
  };
  const auto value_error = [&](const heed::RecurrentArguments<double>& arguments) {
    return message_of<heed::ValueError>([&] { lstm.forward(x, arguments, y.view(), context); });
  };
  EXPECT_EQ(message_of<heed::ShapeError>([&] { lstm(y); }),
            "heed::LSTM: x (2, 4, 2) has width 2 but the layer takes 3");
  const std::vector<std::int64_t> few{4}, beyond{4, 9'000'000'000'000'000'000}, negative{-1, 2};
  EXPECT_EQ(shape_error({.lengths = few}),
            "heed::LSTM: 1 lengths were given for the 2 sequences of x (2, 4, 3); give one for each");
  EXPECT_EQ(value_error({.lengths = beyond}),
            "heed::LSTM: lengths[1] = 9000000000000000000 must be between 0 and L = 4 of x (2, 4, 3)");
  EXPECT_NE(value_error({.lengths = negative}).find("lengths[0] = -1"), std::string::npos);
  EXPECT_EQ(shape_error({.c_0 = long_state}),
            "heed::LSTM: c_0 (1, 3, 2) does not fit; make it (1, 2, 2), (layers · directions, B, hidden)");
  EXPECT_EQ(value_error({.h_0 = state, .c_n = state}),
            "heed::LSTM: c_n shares memory with h_0; it needs separate memory");
  EXPECT_NE(value_error({.h_n = state, .c_n = state}).find("h_n shares memory with c_n"), std::string::npos);
  const TensorView<double, 3> in_y(y.data() + 4, {1, 2, 2});
  EXPECT_NE(value_error({.h_n = in_y}).find("y shares memory with h_n"), std::string::npos);
  EXPECT_EQ(message_of<heed::ValueError>([&] { gru.forward(x, {.c_0 = state}, y.view(), context); }),
            "heed::GRU: c_0 was given, but the layer has no cells; leave it out");
  EXPECT_NO_THROW(lstm.forward(x, {.h_0 = state, .c_0 = other, .h_n = state, .c_n = other}, y.view(), context));
}

}  // namespace
