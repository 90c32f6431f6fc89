// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <heed/nn/positional.hpp>
#include <heed/nn/rotary.hpp>

#include "common/golden.hpp"
#include "nn/layer_checks.hpp"

namespace {

using heed::Index;
using heed::LearnedPositions;
using heed::Positions;
using heed::RotaryEmbedding;
using heed::RotaryPairing;
using heed::SinusoidalLayout;
using heed::SinusoidalPositions;
using heed::SinusoidalSpacing;
using heed::Tensor;
using namespace layer_checks;
using heed_test::Golden;

using PositionalElements = testing::Types<float, double, heed::half, heed::bfloat16>;
constexpr RotaryPairing kPairings[] = {RotaryPairing::HalfSplit, RotaryPairing::Interleaved};

// ---- Positions ------------------------------------------------------------------------------------------------------

TEST(Positions, EachForm) {
  EXPECT_EQ(Positions()(3, 5), 5);
  EXPECT_EQ(Positions(10)(3, 5), 15);
  const std::vector<int> first{7, 0, 100};
  EXPECT_EQ(Positions::from(first)(2, 5), 105);
  const std::vector<int> each{4, 4, 9};
  EXPECT_EQ(Positions::at(each)(8, 2), 9);
  Tensor<int, 2> table(2, 3);
  table(1, 2) = -6;
  EXPECT_EQ(Positions::at(table)(1, 2), -6);
  EXPECT_EQ(Positions::at(table.view().transpose(0, 1))(2, 1), -6);

  Positions(3).check("layer", 17, 4);
  Positions::from(first).check("layer", 3, 99);
  Positions::at(each).check("layer", 99, 3);
  Positions::at(table).check("layer", 2, 3);
  EXPECT_THROW(Positions::from(first).check("layer", 2, 3), heed::ShapeError);
  EXPECT_THROW(Positions::at(each).check("layer", 3, 2), heed::ShapeError);
  EXPECT_THROW(Positions::at(table).check("layer", 1, 3), heed::ShapeError);
  const std::string text = message_of<heed::ShapeError>([&] { Positions::at(table).check("heed::X", 4, 5); });
  EXPECT_NE(text.find("heed::X: positions (2, 3) but x has B = 4 and L = 5"), std::string::npos) << text;
}

// ---- Sinusoidal -----------------------------------------------------------------------------------------------------

// Case C19: an odd width has one sine more.
TEST(SinusoidalPositions, Tables) {
  Eigen::MatrixXd four_by_five(4, 5);
  four_by_five << 0, 1, 0, 1, 0,                                                //
      0.8414709848, 0.5403023059, 0.0251162229, 0.9996845379, 0.0006309573026,  //
      0.9092974268, -0.4161468365, 0.0502165994, 0.9987383507, 0.001261914354,  //
      0.1411200081, -0.9899924966, 0.0752852930, 0.9971620353, 0.001892870903;
  EXPECT_LE(largest(SinusoidalPositions<double>({.embed_dim = 5}).table(4) - four_by_five), 1e-10);
  EXPECT_LE(largest(SinusoidalPositions<float>({.embed_dim = 5}).table(4).cast<double>() - four_by_five), 1e-7);
  EXPECT_NEAR(SinusoidalPositions<double>({.embed_dim = 4}).table(3)(2, 3), 0.9998000067, 1e-10);
  EXPECT_NEAR(SinusoidalPositions<double>({.embed_dim = 1}).table(2)(1, 0), 0.8414709848, 1e-10);
}

template <class T>
void expect_golden_table(const std::string& name, const heed::SinusoidalPositionsOptions& options) {
  const Tensor<double, 2> expected = heed_test::Golden(name).tensor<double, 2>("out.table");
  const auto table = SinusoidalPositions<T>(options).table(expected.extent(0));
  EXPECT_LE(max_error(heed::view_of(table), expected.view()), (std::is_same_v<T, double> ? 1e-14 : 6e-8)) << name;
}

TEST(SinusoidalPositions, ValuesFromTheFormula) {
  const auto check = [](const std::string& name, const heed::SinusoidalPositionsOptions& options) {
    expect_golden_table<double>(name, options);
    expect_golden_table<float>(name, options);
  };
  check("sinusoidal_even", {.embed_dim = 16});
  check("sinusoidal_odd", {.embed_dim = 29});
  check("sinusoidal_base", {.embed_dim = 10, .base = 100});
  check("sinusoidal_halves", {.embed_dim = 16, .layout = SinusoidalLayout::Halves});
  check("sinusoidal_halves_endpoint",
        {.embed_dim = 16, .layout = SinusoidalLayout::Halves, .spacing = SinusoidalSpacing::Endpoint});
}

TEST(SinusoidalPositions, LayoutsHoldTheSameNumbers) {
  for (const Index width : {1, 2, 7, 12}) {
    const auto interleaved = SinusoidalPositions<double>({.embed_dim = width}).table(9);
    const auto halves = SinusoidalPositions<double>({.embed_dim = width, .layout = SinusoidalLayout::Halves}).table(9);
    for (Index e = 0; e < width; ++e) {
      EXPECT_EQ(interleaved.col(e), halves.col(e % 2 == 0 ? e / 2 : (width + 1) / 2 + e / 2)) << width << " " << e;
    }
  }
}

TEST(SinusoidalPositions, EndpointReachesTheBase) {
  const Eigen::RowVectorXd row =
      SinusoidalPositions<double>({.embed_dim = 8, .base = 50, .spacing = SinusoidalSpacing::Endpoint}).table(2).row(1);
  EXPECT_NEAR(row(6), std::sin(1.0 / 50), 1e-16);
  EXPECT_NEAR(row(0), std::sin(1.0), 1e-16);
  // One pair has no last frequency besides the first.
  EXPECT_NEAR(SinusoidalPositions<double>({.embed_dim = 2, .spacing = SinusoidalSpacing::Endpoint}).table(2)(1, 1),
              std::cos(1.0), 1e-16);
}

// Vaswani et al.: PE(p + k) is a linear function of PE(p), a turn of each pair by an angle that depends on k alone.
TEST(SinusoidalPositions, ShiftsAreLinear) {
  constexpr Index width = 10;
  const SinusoidalPositions<double> positions({.embed_dim = width});
  const auto table = positions.table(200);
  for (const Index k : {1, 7, 50}) {
    for (Index p = 0; p + k < table.rows(); ++p) {
      for (Index e = 0; e < width; e += 2) {
        // The turn by k, read off at position 0: sine and cosine of k·frequency.
        const double sine = table(k, e), cosine = table(k, e + 1);
        EXPECT_NEAR(table(p + k, e), cosine * table(p, e) + sine * table(p, e + 1), 1e-13);
        EXPECT_NEAR(table(p + k, e + 1), cosine * table(p, e + 1) - sine * table(p, e), 1e-13);
      }
    }
  }
}

TEST(SinusoidalPositions, FirstAndStepMoveThePositions) {
  const SinusoidalPositions<double> plain({.embed_dim = 6}), moved({.embed_dim = 6, .first = 3, .step = 0.5});
  EXPECT_EQ(moved.table(1, 0), plain.table(1, 3));
  EXPECT_EQ(moved.table(1, 4), plain.table(1, 5));
  EXPECT_NEAR(moved.table(2)(1, 0), std::sin(3.5), 1e-15);
  EXPECT_NEAR(plain.table(1, -2)(0, 0), -std::sin(2.0), 1e-15);
}

template <class T>
class SinusoidalOf : public testing::Test {};
TYPED_TEST_SUITE(SinusoidalOf, PositionalElements);

TYPED_TEST(SinusoidalOf, KeepsThePromisesOfALayer) {
  for (const Index width : {1, 9, 64}) {
    SCOPED_TRACE(width);
    expect_layer<TypeParam>(
        SinusoidalPositions<TypeParam>({.embed_dim = width, .scale = 0.5, .input_scale = 3, .length = 100}), width);
  }
  expect_same_for_any_threads<TypeParam>(SinusoidalPositions<TypeParam>({.embed_dim = 75, .length = 100}),
                                         {3, 300, 75});
}

TEST(SinusoidalPositions, TakesAnyArgument) {
  for (const Index width : {1, 9, 64}) {
    SCOPED_TRACE(width);
    expect_same_for_any_argument<float>(SinusoidalPositions<float>({.embed_dim = width}), 5, width);
    expect_same_for_any_argument<heed::bfloat16>(SinusoidalPositions<heed::bfloat16>({.embed_dim = width}), 5, width);
  }
}

TYPED_TEST(SinusoidalOf, AddsTheScaledTableToTheScaledInput) {
  using T = TypeParam;
  using A = heed::accumulate_t<T>;
  const SinusoidalPositions<T> layer({.embed_dim = 21, .scale = 0.5, .input_scale = 3, .length = 4});
  const SinusoidalPositions<A> wide({.embed_dim = 21});
  const auto x = random_tensor<T, 3>({3, 6, 21});
  const std::vector<int> first{0, 3, 500};
  const Tensor<T, 3> y = layer(x, Positions::from(first));
  const double eps = std::is_same_v<T, double> ? 1e-15 : std::is_same_v<T, float> ? 1e-6 : 0.05;
  for (Index b = 0; b < 3; ++b) {
    const auto table = wide.table(6, first[static_cast<std::size_t>(b)]);
    for (Index l = 0; l < 6; ++l) {
      for (Index e = 0; e < 21; ++e) {
        EXPECT_NEAR(static_cast<double>(y(b, l, e)),
                    3 * static_cast<double>(x(b, l, e)) + 0.5 * static_cast<double>(table(l, e)), eps);
      }
    }
  }
  // Rows formed beforehand and rows formed when needed have the same bits.
  const SinusoidalPositions<T> formed({.embed_dim = 21, .scale = 0.5, .input_scale = 3, .length = 1000});
  EXPECT_TRUE(bits_equal(formed(x, Positions::from(first)), y.view()));
}

template <class Layer>
void expect_positions(const Layer& layer) {
  const auto x = random_tensor<float, 3>({2, 4, layer.options().embed_dim});
  const auto expected = layer(x);
  Tensor<int, 2> each(2, 4);
  for (Index b = 0; b < 2; ++b) {
    for (int l = 0; l < 4; ++l) each(b, l) = l;
  }
  const std::vector<int> zeros{0, 0}, row{0, 1, 2, 3};
  heed::Context context;
  EXPECT_TRUE(bits_equal(expected.view(), layer(x, Positions(0))));
  EXPECT_TRUE(bits_equal(expected.view(), layer(x, Positions::from(zeros))));
  EXPECT_TRUE(bits_equal(expected.view(), layer(x, Positions::at(row), context)));
  EXPECT_TRUE(bits_equal(expected.view(), layer(x, Positions::at(each))));

  // A sequence in two parts, the second in reverse.
  const Eigen::MatrixXf all = x.matrix(1), whole = expected.matrix(1);
  const std::vector<int> back{3, 2};
  EXPECT_TRUE(equal(layer(all.topRows(2)), whole.topRows(2)));
  EXPECT_TRUE(equal(layer(all.bottomRows(2), Positions(2)), whole.bottomRows(2)));
  EXPECT_TRUE(equal(layer(all.bottomRows(2).colwise().reverse(), Positions::at(back)),
                    whole.bottomRows(2).colwise().reverse()));
  EXPECT_THROW(layer(x, Positions::at(back)), heed::ShapeError);
}

TEST(SinusoidalPositions, AnyPositions) {
  expect_positions(SinusoidalPositions<float>({.embed_dim = 12, .length = 3}));
}

TEST(SinusoidalPositions, HasNoParametersAndNamesMistakes) {
  EXPECT_EQ(heed::parameter_count(SinusoidalPositions<float>({.embed_dim = 3})), 0);
  EXPECT_THROW(SinusoidalPositions<float>({.embed_dim = 0}), heed::ShapeError);
  EXPECT_THROW(SinusoidalPositions<float>({.embed_dim = 3, .length = -1}), heed::ShapeError);
  EXPECT_THROW(SinusoidalPositions<float>({.embed_dim = 3, .base = 0}), heed::ValueError);
  const std::string text =
      message_of<heed::ShapeError>([] { SinusoidalPositions<float>({.embed_dim = 3})(Eigen::MatrixXf::Zero(2, 4)); });
  EXPECT_NE(text.find("heed::SinusoidalPositions: x (1, 2, 4) has width 4 but the layer takes 3"), std::string::npos)
      << text;
}

// ---- Learned --------------------------------------------------------------------------------------------------------

template <class T>
class LearnedOf : public testing::Test {};
TYPED_TEST_SUITE(LearnedOf, PositionalElements);

TYPED_TEST(LearnedOf, KeepsThePromisesOfALayer) {
  for (const Index width : {1, 9, 64}) {
    SCOPED_TRACE(width);
    LearnedPositions<TypeParam> layer({.length = 300, .embed_dim = width, .scale = 0.5, .input_scale = 3});
    fill_parameters<TypeParam>(layer, 2);
    expect_layer<TypeParam>(layer, width);
    if (width == 64) expect_same_for_any_threads<TypeParam>(layer, {3, 300, width});
  }
}

TEST(LearnedPositions, TakesAnyArgument) {
  for (const Index width : {1, 9, 64}) {
    SCOPED_TRACE(width);
    LearnedPositions<float> layer({.length = 5, .embed_dim = width});
    fill_parameters<float>(layer, 2);
    expect_same_for_any_argument<float>(layer, 5, width);
  }
}

TEST(LearnedPositions, AddsTheRowOfThePosition) {
  LearnedPositions<float> layer({.length = 7, .embed_dim = 5, .offset = 2, .scale = 0.5, .input_scale = 3});
  fill_parameters<float>(layer, 2);
  const Eigen::MatrixXf x = Eigen::MatrixXf::Random(3, 5);
  const Eigen::MatrixXf expected = 3 * x + 0.5f * layer.weight.matrix().matrix().middleRows(2 + 1, 3);
  EXPECT_LE(largest(layer(x, Positions(1)) - expected), 1e-6);
}

TEST(LearnedPositions, AnyPositions) {
  LearnedPositions<float> layer({.length = 4, .embed_dim = 12});
  fill_parameters<float>(layer, 2);
  expect_positions(layer);
}

TEST(LearnedPositions, APositionWithoutARowIsNamed) {
  LearnedPositions<float> layer({.length = 7, .embed_dim = 5, .offset = 2});
  heed::init::zeros(layer.weight);
  const Eigen::MatrixXf x = Eigen::MatrixXf::Zero(6, 5);
  EXPECT_TRUE(equal(layer(x.topRows(5)), x.topRows(5)));
  const std::string text = message_of<heed::ValueError>([&] { layer(x); });
  EXPECT_NE(text.find("heed::LearnedPositions: token 5 of sample 0 has position 5, row 7"), std::string::npos) << text;
  EXPECT_NE(text.find("only 7 rows"), std::string::npos) << text;
  EXPECT_THROW(layer(x, Positions(-3)), heed::ValueError);
  EXPECT_THROW(LearnedPositions<float>({.length = 0, .embed_dim = 5}), heed::ShapeError);
  EXPECT_THROW(LearnedPositions<float>({.length = 5, .embed_dim = 0}), heed::ShapeError);
}

TEST(LearnedPositions, IsVisitedAndInitialized) {
  LearnedPositions<float> layer({.length = 70, .embed_dim = 50});
  layer.visit("position_embeddings",
              [](std::string_view name, const auto&) { EXPECT_EQ(name, "position_embeddings.weight"); });
  EXPECT_EQ(heed::parameter_count(layer), 3500);
  heed::Random random(3);
  layer.initialize(random, "", 0.1);
  EXPECT_NEAR(layer.weight.matrix().matrix().squaredNorm() / 3500, 0.01, 0.001);
}

// ---- Rotary ---------------------------------------------------------------------------------------------------------

// Case C17: two pairings with the same shapes, and partial rotation.
TEST(Rotary, PairingsAndPartialWidth) {
  const Eigen::RowVector4d x(1, 2, 3, 4);
  const auto at = [&](RotaryPairing pairing, Index turned, int position) {
    return RotaryEmbedding<double>({.head_dim = 4, .rotary_dim = turned, .pairing = pairing})(x, Positions(position));
  };
  const auto near = [](const auto& y, double a, double b, double c, double d) {
    return largest(y - Eigen::RowVector4d(a, b, c, d)) < 1e-9;
  };
  for (const RotaryPairing pairing : kPairings) {
    for (const Index turned : {0, 2, 4}) EXPECT_TRUE(near(at(pairing, turned, 0), 1, 2, 3, 4));
    EXPECT_TRUE(near(at(pairing, 0, 9), 1, 2, 3, 4));
    EXPECT_TRUE(near(at(pairing, 2, 1), -1.1426396637, 1.9220755965, 3, 4));
    EXPECT_TRUE(near(at(pairing, 2, 2), -2.2347416902, 0.0770037538, 3, 4));
  }
  EXPECT_TRUE(near(at(RotaryPairing::HalfSplit, 4, 1), -1.9841106486, 1.9599006675, 2.4623779024, 4.0197996683));
  EXPECT_TRUE(near(at(RotaryPairing::HalfSplit, 4, 2), -3.1440391170, 1.9196053466, -0.3391430828, 4.0391973601));
  EXPECT_TRUE(near(at(RotaryPairing::Interleaved, 4, 1), -1.1426396637, 1.9220755965, 2.9598506679, 4.0297995017));
  EXPECT_TRUE(near(at(RotaryPairing::Interleaved, 4, 2), -2.2347416902, 0.0770037538, 2.9194053532, 4.0591960267));
}

template <class T>
class RotaryOf : public testing::Test {};
TYPED_TEST_SUITE(RotaryOf, PositionalElements);

template <class T>
constexpr double kRotaryTolerance = std::is_same_v<T, double>       ? 4e-15
                                    : std::is_same_v<T, float>      ? 6e-7
                                    : std::is_same_v<T, heed::half> ? 2e-3
                                                                    : 2e-2;

TYPED_TEST(RotaryOf, ValuesFromTheFormula) {
  using T = TypeParam;
  const auto check = [](const std::string& name, const heed::RotaryEmbeddingOptions& options) {
    const Golden golden(name);
    const Tensor<int, 1> positions = golden.integer_tensor<1>("in.positions");
    const std::vector<int> list(positions.data(), positions.data() + positions.size());
    const RotaryEmbedding<T> rotary(options);
    const Tensor<T, 4> y = rotary(golden.tensor<T, 4>("in.x"), Positions::at(list));
    // An error relative to the largest value, which is below 4.
    EXPECT_LE(max_error(y.view(), golden.tensor<double, 4>("out.y")), 2 * kRotaryTolerance<T>) << name;

    // The gradient is the turn back.
    const Tensor<T, 4> dy = golden.tensor<T, 4>("dout.y");
    Tensor<T, 4> dx(dy.extents());
    heed::Context context;
    rotary.inverse(dy, Positions::at(list), dx, context);
    EXPECT_LE(max_error(dx.view(), golden.tensor<double, 4>("grad.in.x")), 2 * kRotaryTolerance<T>) << name;
  };
  for (const Index length : {0, 1024}) {
    check("rotary_half_split", {.head_dim = 16, .length = length});
    check("rotary_half_split_far", {.head_dim = 16, .theta = 500000, .length = length});
    check("rotary_half_split_partial", {.head_dim = 12, .rotary_dim = 8, .length = length});
    check("rotary_interleaved", {.head_dim = 16, .pairing = RotaryPairing::Interleaved, .length = length});
    check("rotary_interleaved_far",
          {.head_dim = 16, .theta = 500000, .pairing = RotaryPairing::Interleaved, .length = length});
    check("rotary_interleaved_partial",
          {.head_dim = 12, .rotary_dim = 6, .pairing = RotaryPairing::Interleaved, .length = length});
  }
}

// Heads as an attention layer sees them, in every order of memory, in place and not, turned and turned back.
TYPED_TEST(RotaryOf, SameBitsForAnyStridesAndBack) {
  using T = TypeParam;
  for (const RotaryPairing pairing : kPairings) {
    for (const auto& [width, turned] : {std::pair<Index, Index>{2, 2}, {7, 6}, {34, 34}, {64, 64}, {80, 40}}) {
      SCOPED_TRACE(testing::Message() << width << " " << turned << " " << static_cast<int>(pairing));
      const RotaryEmbedding<T> rotary({.head_dim = width, .rotary_dim = turned, .pairing = pairing, .length = 6});
      const heed::Extents<4> extents{2, 3, 4, width};
      const auto x = random_tensor<T, 4>(extents);
      const std::vector<int> first{1, 5};  // the second sample leaves the table
      const Positions positions = Positions::from(first);
      const Tensor<T, 4> expected = rotary(x, positions);
      heed::Context context;
      for (const auto& order : {std::array{0, 1, 2, 3}, std::array{0, 2, 1, 3}, std::array{3, 2, 1, 0}}) {
        for (const Index step : {1, 2}) {
          Spaced<T, 4> from(extents, order, step, 2), to(extents, order, 3 - step, 1);
          copy(x.view(), from.view());
          rotary.forward(from.view(), positions, to.view(), context);
          EXPECT_TRUE(bits_equal(expected.view(), to.view()));
          EXPECT_EQ(to.written(), static_cast<std::size_t>(x.size()));

          rotary.forward(from.view(), positions, from.view(), context);
          EXPECT_TRUE(bits_equal(expected.view(), from.view()));
          rotary.inverse(from.view(), positions, from.view(), context);
          EXPECT_LE(max_error(from.view(), x.view()), 4 * kRotaryTolerance<T>);
        }
      }
    }
  }
}

TEST(Rotary, KeepsLengthsAndRelativeProducts) {
  for (const RotaryPairing pairing : kPairings) {
    const RotaryEmbedding<double> rotary({.head_dim = 12, .rotary_dim = 10, .pairing = pairing});
    const Eigen::RowVectorXd q = Eigen::RowVectorXd::Random(12), k = Eigen::RowVectorXd::Random(12);
    const auto product = [&](int at_q, int at_k) {
      return rotary(q, Positions(at_q)).row(0).dot(rotary(k, Positions(at_k)).row(0));
    };
    for (const int position : {0, 1, 99, 5000}) {
      EXPECT_NEAR(rotary(q, Positions(position)).norm(), q.norm(), 1e-14);
      for (const int distance : {0, 1, 17}) {
        EXPECT_NEAR(product(position + distance, position), product(distance, 0), 1e-11);
      }
    }
    EXPECT_GT(std::abs(product(3, 0) - product(0, 0)), 1e-3);
  }
}

// Angles are formed in double: with a float product position·frequency, positions near a million would be off by 0.03.
TEST(Rotary, FarPositionsKeepTheirAngle) {
  const int position = 1'000'003;
  const RotaryEmbedding<float> rotary({.head_dim = 4});
  const auto y = rotary(Eigen::RowVector4f(1, 1, 0, 0), Positions(position));
  for (Index i = 0; i < 2; ++i) {
    const double angle = position * std::pow(10000.0, -static_cast<double>(i) / 2);
    EXPECT_NEAR(y(0, i), std::cos(angle), 1e-6);
    EXPECT_NEAR(y(0, i + 2), std::sin(angle), 1e-6);
  }
}

/// The angles from position 0 to 1.
std::vector<double> frequencies(const heed::RotaryEmbeddingOptions& options) {
  const RotaryEmbedding<double> rotary(options);
  const Index pairs = options.rotary_dim.value_or(options.head_dim) / 2;
  Eigen::RowVectorXd x = Eigen::RowVectorXd::Zero(options.head_dim);
  x.head(pairs).setOnes();
  const Eigen::RowVectorXd y = rotary(x, Positions(1));
  std::vector<double> angles;
  for (Index i = 0; i < pairs; ++i) angles.push_back(std::atan2(y(pairs + i), y(i)));
  return angles;
}

// Numbers of transformers' modeling_rope_utils, computed in double.
TEST(Rotary, ScalingChangesTheAngles) {
  using heed::RotaryScalingKind;
  const auto expect_near = [](const std::vector<double>& a, const std::vector<double>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-12 * b[i]) << i;
  };
  expect_near(frequencies({.head_dim = 8, .scaling = {.kind = RotaryScalingKind::Linear, .factor = 4}}),
              {0.25, 0.025, 0.0025, 0.00025});
  expect_near(frequencies({.head_dim = 8, .scaling = {.kind = RotaryScalingKind::Ntk, .factor = 4}}),
              {1.0, 0.06299605249474366, 0.003968502629920499, 0.00025});
  expect_near(
      frequencies({.head_dim = 16, .theta = 500000, .scaling = {.kind = RotaryScalingKind::Llama3, .factor = 8}}),
      {1.0, 0.19392274474868576, 0.03760603093086393, 0.0072926647372171085, 0.0005248461609929547,
       3.428102195952591e-05, 6.647869871181236e-06, 1.2891731721515574e-06});
  EXPECT_EQ(frequencies({.head_dim = 8, .scaling = {.factor = 4}}), frequencies({.head_dim = 8}));
  EXPECT_THROW(RotaryEmbedding<float>({.head_dim = 4, .scaling = {.factor = 0}}), heed::ValueError);
  EXPECT_THROW(RotaryEmbedding<float>({.head_dim = 4, .scaling = {.low_freq_factor = 4}}), heed::ValueError);
}

TEST(Rotary, AnyArgument) {
  const RotaryEmbedding<float> rotary({.head_dim = 8});
  const auto x = random_tensor<float, 4>({2, 3, 5, 8});
  const Tensor<float, 4> all = rotary(x, Positions(2));
  heed::Context context;
  const Tensor<float, 3> heads = rotary(x.view()[1], Positions(2));
  EXPECT_TRUE(bits_equal(all.view()[1], heads.view()));
  const Eigen::MatrixXf matrix = x.matrix(1, 2);
  EXPECT_TRUE(equal(rotary(matrix, Positions(2), context), all.matrix(1, 2)));
  EXPECT_TRUE(equal(rotary(matrix + 0 * matrix, Positions(2)), all.matrix(1, 2)));
  EXPECT_TRUE(equal(rotary(matrix), rotary(matrix, Positions(0))));
  EXPECT_TRUE(equal(rotary(matrix, context), rotary(matrix)));
  Tensor<int, 2> each(2, 5);
  for (Index b = 0; b < 2; ++b) {
    for (int l = 0; l < 5; ++l) each(b, l) = l + 2;
  }
  EXPECT_TRUE(bits_equal(all.view(), rotary(x, Positions::at(each))));
  EXPECT_EQ(rotary(Tensor<float, 4>(2, 3, 0, 8)).size(), 0);
}

TEST(Rotary, ThreadsGiveTheSameBits) {
  const RotaryEmbedding<float> rotary({.head_dim = 32, .length = 100});
  const auto x = random_tensor<float, 4>({2, 6, 400, 32});
  const Tensor<float, 4> expected = rotary(x);
  for (const int threads : {1, 2, 3, 7}) {
    heed::ThreadPool pool(threads);
    heed::Context context(pool);
    EXPECT_TRUE(bits_equal(expected.view(), rotary(x, Positions(), context))) << threads;
  }
}

TEST(Rotary, MistakesAreNamed) {
  EXPECT_THROW(RotaryEmbedding<float>({.head_dim = 0}), heed::ShapeError);
  EXPECT_THROW(RotaryEmbedding<float>({.head_dim = 5}), heed::ShapeError);
  EXPECT_THROW(RotaryEmbedding<float>({.head_dim = 4, .rotary_dim = 6}), heed::ShapeError);
  EXPECT_THROW(RotaryEmbedding<float>({.head_dim = 4, .length = -1}), heed::ShapeError);
  EXPECT_THROW(RotaryEmbedding<float>({.head_dim = 4, .theta = -1}), heed::ValueError);
  const RotaryEmbedding<float> rotary({.head_dim = 4});
  const std::string text = message_of<heed::ShapeError>([&] { rotary(Eigen::MatrixXf::Zero(2, 6)); });
  EXPECT_NE(text.find("heed::RotaryEmbedding: x (1, 1, 2, 6) has width 6 but the heads have 4"), std::string::npos)
      << text;
  heed::Context context;
  auto x = random_tensor<float, 4>({1, 1, 6, 4});
  EXPECT_THROW(rotary.forward(x.view().slice(2, 0, 5), Positions(), x.view().slice(2, 1, 5), context),
               heed::ValueError);
  EXPECT_THROW(rotary.forward(x.view().slice(2, 0, 5), Positions(), x.view(), context), heed::ShapeError);
}

}  // namespace
