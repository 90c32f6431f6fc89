// SPDX-License-Identifier: MIT
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <heed/nn/recurrent.hpp>

#include "common/golden.hpp"
#include "nn/backward_checks.hpp"
#include "nn/recurrent_kinds.hpp"

namespace {

using heed::LSTM;
using heed::Recurrent;
using heed_test::Golden;
using namespace backward_checks;
using namespace recurrent_kinds;

// All that goes into a layer and comes out of it, with gradients. The cells stay empty where there are none.
template <class T>
struct Step {
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
void expect_golden_gradients(const std::string& kind, const std::string& variant, double tolerance) {
  SCOPED_TRACE(kind + variant);
  const Golden golden(kind + variant);
  Recurrent<T> layer = golden_layer<T>(kind, variant);
  golden.load_into(layer);
  const bool has_cells = kind == "lstm";
  const auto read = [&](const char* name) { return golden.tensor<T, 3>(name); };
  const auto read_cells = [&](const char* name) { return has_cells ? read(name) : Tensor<T, 3>(); };
  Step<T> run{.x = read("in.x"),
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
      expect_golden_gradients<double>(kind, variant, heed_test::kGoldenTolerance<double>);
      expect_golden_gradients<float>(kind, variant, heed_test::kGoldenTolerance<float>);
    }
  }
}

// Random numbers for everything, cells where the layer has them.
Step<double> random_run(const Recurrent<double>& layer, bool has_cells, Index B, Index L) {
  const Index in = layer.options().input_size;
  const Extents<3> state = layer.state_extents(B), cells = has_cells ? state : Extents<3>{};
  return {.x = random_tensor<double, 3>({B, L, in}, 1),
          .h_0 = random_tensor<double, 3>(state, 2),
          .c_0 = random_tensor<double, 3>(cells, 3),
          .dy = random_tensor<double, 3>({B, L, layer.output_width(in)}, 4),
          .dh_n = random_tensor<double, 3>(state, 5),
          .dc_n = random_tensor<double, 3>(cells, 6)};
}

void expect_exact(Recurrent<double>& layer, bool has_cells, bool trains, Index most_kinks) {
  fill_parameters<double>(layer, 9);
  Step<double> run = random_run(layer, has_cells, 4, 5);
  run.lengths = {3, 0, 5, 1};
  Context context;
  context.training = trains;
  run.forward_backward(layer, context);
  const Step<double> claimed = run;
  const auto loss = [&] {
    context.restart_streams();
    run.forward(layer, context);
    return dot(run.y, run.dy) + dot(run.h_n, run.dh_n) + dot(run.c_n, run.dc_n);
  };
  const auto report = heed::gradcheck(loss, ParameterList<double>(layer),
                                      {{"x", flat(run.x), flat(claimed.dx)},
                                       {"h_0", flat(run.h_0), flat(claimed.dh_0)},
                                       {"c_0", flat(run.c_0), flat(claimed.dc_0)}});
  EXPECT_TRUE(report.passed) << report.text();
  EXPECT_LE(report.kinks, most_kinks) << report.text();
}

TEST(RecurrentBackward, IsExactWithLengthsAndStates) {
  for (const std::string_view kind : kKinds) {
    SCOPED_TRACE(kind);
    for (const bool bias : {true, false}) {
      auto layer =
          make<double>(kind, {.input_size = 2, .hidden_size = 3, .num_layers = 2, .bidirectional = true, .bias = bias});
      expect_exact(layer, kind == "lstm", false, kind == "rnn_relu" ? 4 : 0);
    }
  }
}

TEST(RecurrentBackward, ReplaysDropout) {
  Recurrent<double> layer = make<double>("lstm", {.input_size = 2, .hidden_size = 3, .num_layers = 3, .dropout = 0.4});
  expect_exact(layer, true, true, 0);
}

TEST(RecurrentBackward, KeepsThePromisesOfABackward) {
  for (const std::string_view kind : {"rnn", "lstm", "gru"}) {
    SCOPED_TRACE(kind);
    Recurrent<double> layer = make<double>(kind, {.input_size = 4, .hidden_size = 9, .num_layers = 2});
    fill_parameters<double>(layer, 3);
    expect_backward(layer, {2, 3, 4});
    expect_same_backward_for_any_strides<double>(layer, {2, 3, 4});
  }
}

TEST(RecurrentBackward, DoesNotReadPadding) {
  for (const std::string_view kind : kKinds) {
    SCOPED_TRACE(kind);
    Recurrent<double> layer =
        make<double>(kind, {.input_size = 2, .hidden_size = 9, .num_layers = 2, .bidirectional = true});
    fill_parameters<double>(layer, 9);
    Step<double> clean = random_run(layer, kind == "lstm", 3, 4);
    clean.lengths = {2, 0, 3};
    Step<double> poisoned = clean;
    for (Index b = 0; b < 3; ++b) {
      for (Index t = clean.lengths[static_cast<std::size_t>(b)]; t < 4; ++t) {
        for (Index e = 0; e < 2; ++e) poisoned.x(b, t, e) = std::numeric_limits<double>::quiet_NaN();
        for (Index e = 0; e < 18; ++e) poisoned.dy(b, t, e) = std::numeric_limits<double>::quiet_NaN();
      }
    }
    Context context;
    clean.forward_backward(layer, context);
    const auto parameters = parameter_gradients<double>(layer);
    poisoned.forward_backward(layer, context);
    expect_same_parameter_gradients(parameters, parameter_gradients<double>(layer));
    EXPECT_TRUE(bits_equal(clean.y.view(), poisoned.y.view()));
    EXPECT_TRUE(bits_equal(clean.dx.view(), poisoned.dx.view()));
    EXPECT_TRUE(bits_equal(clean.dh_0.view(), poisoned.dh_0.view()));
    EXPECT_TRUE(bits_equal(clean.dc_0.view(), poisoned.dc_0.view()));
    for (Index e = 0; e < 2; ++e) {
      EXPECT_EQ(poisoned.dx(0, 2, e), 0);
      EXPECT_EQ(poisoned.dx(1, 0, e), 0);
    }
    EXPECT_TRUE(bits_equal(poisoned.dh_n.view().slice(1, 1, 1), poisoned.dh_0.view().slice(1, 1, 1)))
        << "a sequence without tokens hands its state on";
  }
}

// A sequence in two pieces: the gradient of the state goes from the second one to the first, in place.
TEST(RecurrentBackward, GoesOnThroughStates) {
  LSTM<double> layer({.input_size = 3, .hidden_size = 5, .num_layers = 2});
  fill_parameters<double>(layer, 9);
  Step<double> whole = random_run(layer, true, 2, 5);
  Context context;
  whole.forward_backward(layer, context);
  const auto expected = parameter_gradients<double>(layer);

  ParameterList<double>(layer).zero_grad();
  Tensor<double, 3> h = whole.h_0, c = whole.c_0, dh = whole.dh_n, dc = whole.dc_n, dx(whole.x.extents());
  LSTM<double>::Cache caches[2];
  const auto piece = [](auto& tensor, int number) { return tensor.view().slice(1, number * 2, number == 0 ? 2 : 3); };
  for (const int number : {0, 1}) {
    layer.forward(piece(whole.x, number), {.h_0 = h, .c_0 = c, .h_n = h, .c_n = c}, piece(whole.y, number),
                  caches[number], context);
  }
  for (const int number : {1, 0}) {
    layer.backward(piece(whole.dy, number), {dh, dc, dh, dc}, piece(dx, number), caches[number], context);
  }
  EXPECT_LE(max_error(whole.dx.view(), dx.view()), 1e-14);
  EXPECT_LE(max_error(whole.dh_0.view(), dh.view()), 1e-14);
  EXPECT_LE(max_error(whole.dc_0.view(), dc.view()), 1e-14);
  const auto found = parameter_gradients<double>(layer);
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_LE(max_error(expected[i].view(), found[i].view()), 1e-13);
}

TEST(RecurrentBackward, MistakesAreNamed) {
  LSTM<double> layer({.input_size = 2, .hidden_size = 2});
  initialize(layer, 1);
  Tensor<double, 3> x(2, 3, 2), y(2, 3, 2), dx(2, 3, 2), state(1, 2, 2), wide(1, 2, 3);
  Context context;
  LSTM<double>::Cache cache;
  layer.forward(x, y.view(), cache, context);
  EXPECT_GT(cache.bytes(), std::size_t{6 * 5 * 2 * sizeof(double)});
  const auto shape_error = [&](const heed::RecurrentGradients<double>& gradients) {
    return message_of<heed::ShapeError>([&] { layer.backward(y, gradients, dx.view(), cache, context); });
  };
  const auto value_error = [&](const heed::RecurrentGradients<double>& gradients) {
    return message_of<heed::ValueError>([&] { layer.backward(y, gradients, dx.view(), cache, context); });
  };
  EXPECT_NE(shape_error({.dc_0 = wide}).find("heed::LSTM: dc_0 (1, 2, 3)"), std::string::npos);
  EXPECT_NE(value_error({.dh_0 = state, .dc_0 = state}).find("dh_0 shares memory with dc_0"), std::string::npos);
  EXPECT_NE(value_error({.dh_0 = {y.data(), {1, 2, 2}}}).find("dh_0 shares memory with dy"), std::string::npos);
  EXPECT_EQ(message_of<heed::ValueError>([&] { layer.backward(y, y.view(), cache, context); }),
            "heed::LSTM: dx shares memory with dy; it needs separate memory");
  LSTM<double> deeper({.input_size = 2, .hidden_size = 2, .num_layers = 2});
  EXPECT_EQ(
      message_of<heed::ShapeError>([&] { deeper.backward(y, dx.view(), cache, context); }),
      "heed::LSTM: the cache holds a forward of heed::LSTM with num_layers = 1, input_size = 2, hidden_size = 2 but "
      "this layer has num_layers = 2, input_size = 2, hidden_size = 2; give it to a forward of this layer first");
  layer.pack({.release = true});
  EXPECT_THROW(layer.backward(y, dx.view(), cache, context), heed::ValueError);
}

}  // namespace
