// SPDX-License-Identifier: MIT
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/simd.hpp>
#include <heed/core/vec_math.hpp>

#include "common/float_modes.hpp"
#include "common/random_inputs.hpp"
#include "common/special_values.hpp"

namespace {

using heed::bfloat16;
using heed::half;
using heed::Index;
using heed::Vec;
using heed_test::kInf;
using heed_test::kNaN;

template <class T>
using Lanes = std::array<T, static_cast<std::size_t>(Vec<T>::size)>;

template <class T>
Vec<T> load(const Lanes<T>& x) {
  return Vec<T>::load(x.data());
}
template <class T>
Lanes<T> lanes_of(Vec<T> v) {
  Lanes<T> x;
  v.store(x.data());
  return x;
}
/// Equal, or both NaN, with the sign of zero.
template <class T>
bool same(T a, T b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

/// Values that arithmetic gets wrong, and ordinary ones.
template <class T>
std::vector<T> interesting_values() {
  using L = std::numeric_limits<T>;
  std::vector<T> x{0, 1, 2, T(0.5), T(1) / 3, T(1e-3), 100, L::min(), L::denorm_min(), L::max(), L::epsilon(), kInf<T>};
  const std::size_t n = x.size();
  for (std::size_t i = 0; i < n; ++i) x.push_back(-x[i]);
  x.push_back(kNaN<T>);
  return x;
}

template <class T>
class VecTest : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(VecTest, Scalars);

/// Every pair of interesting values in every lane: vector(a, b) must be scalar(a, b) lane by lane.
template <class T, class VectorOp, class ScalarOp>
void expect_lane_by_lane(VectorOp&& vector, ScalarOp&& scalar) {
  const std::vector<T> values = interesting_values<T>();
  for (std::size_t shift = 0; shift < values.size(); ++shift) {
    Lanes<T> a, b;
    for (std::size_t start = 0; start < values.size(); ++start) {
      for (std::size_t i = 0; i < a.size(); ++i) {
        a[i] = values[(start + i) % values.size()];
        b[i] = values[(start + i + shift) % values.size()];
      }
      const Lanes<T> got = lanes_of<T>(vector(load<T>(a), load<T>(b)));
      for (std::size_t i = 0; i < a.size(); ++i) {
        ASSERT_TRUE(same(got[i], scalar(a[i], b[i])))
            << a[i] << ", " << b[i] << ": " << got[i] << " instead of " << scalar(a[i], b[i]);
      }
    }
  }
}

TYPED_TEST(VecTest, ArithmeticIsLaneByLane) {
  using T = TypeParam;
  using V = Vec<T>;
  expect_lane_by_lane<T>([](V a, V b) { return a + b; }, [](T a, T b) { return a + b; });
  expect_lane_by_lane<T>([](V a, V b) { return a - b; }, [](T a, T b) { return a - b; });
  expect_lane_by_lane<T>([](V a, V b) { return a * b; }, [](T a, T b) { return a * b; });
  expect_lane_by_lane<T>([](V a, V b) { return a / b; }, [](T a, T b) { return a / b; });
  expect_lane_by_lane<T>([](V a, V) { return -a; }, [](T a, T) { return -a; });
  expect_lane_by_lane<T>([](V a, V) { return abs(a); }, [](T a, T) { return std::abs(a); });
}

TYPED_TEST(VecTest, MaxAndMinKeepTheNaNOfTheirFirstArgument) {
  using T = TypeParam;
  using V = Vec<T>;
  for (const T a : interesting_values<T>()) {
    for (const T b : interesting_values<T>()) {
      const T high = lanes_of<T>(max(V(a), V(b)))[0], low = lanes_of<T>(min(V(a), V(b)))[0];
      // As numbers: of 0 and -0, either may be returned.
      if (std::isnan(a)) {
        EXPECT_TRUE(std::isnan(high) && std::isnan(low)) << b;
      } else {
        EXPECT_EQ(high, std::isnan(b) ? a : std::max(a, b));
        EXPECT_EQ(low, std::isnan(b) ? a : std::min(a, b));
      }
    }
  }
}

TYPED_TEST(VecTest, MasksSelectLaneByLane) {
  using T = TypeParam;
  using V = Vec<T>;
  const auto pick = [](bool take, T a, T b) { return take ? a : b; };
  expect_lane_by_lane<T>([](V a, V b) { return select(less(a, b), a, b); },
                         [&](T a, T b) { return pick(a < b, a, b); });
  expect_lane_by_lane<T>([](V a, V b) { return select(equal(a, b), a, b); },
                         [&](T a, T b) { return pick(a == b, a, b); });
  for (const T a : interesting_values<T>()) {
    Lanes<T> x;
    x.fill(kNaN<T>);
    EXPECT_FALSE(any(equal(load<T>(x), V(a))));
    x.back() = a;
    EXPECT_EQ(any(equal(load<T>(x), V(a))), !std::isnan(a));
  }
}

TYPED_TEST(VecTest, FmaIsExactWhereTheProductIs) {
  using T = TypeParam;
  using V = Vec<T>;
  heed_test::Random random(1);
  for (int n = 0; n < 1000; ++n) {
    const T a = T(random.integer(-1000, 1000)), b = T(random.integer(-1000, 1000)), c = T(random.integer(-1000, 1000));
    EXPECT_EQ(lanes_of<T>(fma(V(a), V(b), V(c)))[0], a * b + c);
  }
}

TYPED_TEST(VecTest, LoadsStoresAndBroadcasts) {
  using T = TypeParam;
  using V = Vec<T>;
  std::vector<T> memory(static_cast<std::size_t>(V::size) + 1);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = T(i) + T(0.5);
  // One element off: never aligned.
  for (const V& v : {V::load(memory.data() + 1), V::load_kept(memory.data() + 1)}) {
    const Lanes<T> x = lanes_of<T>(v);
    EXPECT_TRUE(std::equal(x.begin(), x.end(), memory.begin() + 1));
  }
  for (const V& v : {V::broadcast(memory.data()), V(memory[0]), V::constant(memory[0])}) {
    for (const T x : lanes_of<T>(v)) EXPECT_EQ(x, memory[0]);
  }
  EXPECT_EQ(lanes_of<T>(V::from_bits(V::load(memory.data()).bits()))[0], memory[0]);
}

TYPED_TEST(VecTest, SumsAndMaximaAreOverAllLanes) {
  using T = TypeParam;
  for (int peak = 0; peak < Vec<T>::size; ++peak) {
    Lanes<T> x;
    T total = 0;
    for (int i = 0; i < Vec<T>::size; ++i) {
      x[static_cast<std::size_t>(i)] = i == peak ? T(100) : T(-i);
      total += x[static_cast<std::size_t>(i)];
    }
    EXPECT_EQ(sum(load<T>(x)), total);
    EXPECT_EQ(max_lane(load<T>(x)), T(100));
  }
}

TYPED_TEST(VecTest, LanesWithABitBecomeAMask) {
  using T = TypeParam;
  using V = Vec<T>;
  typename V::Word words[V::size];
  for (int i = 0; i < V::size; ++i) words[i] = static_cast<typename V::Word>(i);
  for (const typename V::Word bit : {1u, 2u, 4u}) {
    const Lanes<T> x = lanes_of<T>(select(V::lanes_with(V::load_words(words), bit), V(T(1)), V(T(0))));
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], (i & bit) ? T(1) : T(0));
  }
}

TYPED_TEST(VecTest, TransposeExchangesRowsAndColumns) {
  using T = TypeParam;
  constexpr int n = Vec<T>::size;
  Vec<T> r[n];
  for (int i = 0; i < n; ++i) {
    Lanes<T> x;
    for (int j = 0; j < n; ++j) x[static_cast<std::size_t>(j)] = T(i * n + j);
    r[i] = load<T>(x);
  }
  Vec<T>::transpose(r);
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) EXPECT_EQ(lanes_of<T>(r[i])[static_cast<std::size_t>(j)], T(j * n + i));
  }
}

// ---- exp2, exp, tanh -----------------------------------------------------------------------------------------------

/// The distance between neighbors of T at x.
template <class T>
long double ulp_at(long double x) {
  int exponent;
  std::frexp(x, &exponent);
  exponent = std::max(exponent, std::numeric_limits<T>::min_exponent);
  return std::ldexp(1.0L, exponent - std::numeric_limits<T>::digits);
}

/// Numbers of [first, last]: every float of a coarse grid of bit patterns, or as many doubles with random bits.
template <class T, class F>
void for_numbers_between(T first, T last, F&& f) {
  using Word = typename Vec<T>::Word;
  const auto check = [&](Word bits) {
    const T x = std::bit_cast<T>(bits);
    if (x >= first && x <= last) f(x);
  };
  if constexpr (sizeof(T) == 4) {
    for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 2503) check(static_cast<Word>(bits));
  } else {
    heed_test::Random random(11);
    for (int i = 0; i < 400000; ++i) {
      check(random.bits());
      // Random bits are mostly far too large or small, so the same number of ordinary ones.
      f(static_cast<T>(first + (last - first) * random.uniform()));
    }
  }
}

/// The largest error in ULP of `vector` against `exact` on [first, last], and where it is.
template <class T, class VectorOp, class ExactOp>
std::pair<double, T> worst_ulp(T first, T last, VectorOp&& vector, ExactOp&& exact) {
  double worst = 0;
  T where = 0;
  Lanes<T> x;
  std::size_t filled = 0;
  const auto run = [&] {
    const Lanes<T> got = lanes_of<T>(vector(load<T>(x)));
    for (std::size_t i = 0; i < filled; ++i) {
      const long double right = exact(static_cast<long double>(x[i]));
      const double error = static_cast<double>(std::abs(static_cast<long double>(got[i]) - right) / ulp_at<T>(right));
      if (!(error <= worst)) worst = error, where = x[i];
    }
    filled = 0;
  };
  x.fill(0);
  for_numbers_between<T>(first, last, [&](T value) {
    x[filled++] = value;
    if (filled == x.size()) run();
  });
  run();
  return {worst, where};
}

TYPED_TEST(VecTest, Exp2IsWithinItsUlp) {
  using T = TypeParam;
  const T lowest = sizeof(T) == 4 ? T(-126) : T(-1022), highest = sizeof(T) == 4 ? T(127.5) : T(1023.5);
  const auto [worst, where] =
      worst_ulp<T>(lowest, highest, [](Vec<T> x) { return exp2(x); }, [](long double x) { return std::exp2(x); });
  EXPECT_LE(worst, sizeof(T) == 4 ? 2.5 : 1.5) << "at " << where;
  EXPECT_GT(worst, 0.5) << "a bound that is never needed was not measured";
}

TYPED_TEST(VecTest, Exp2OfWholeNumbersIsExact) {
  using T = TypeParam;
  for (int n = std::numeric_limits<T>::min_exponent - 1; n < std::numeric_limits<T>::max_exponent; ++n) {
    EXPECT_EQ(lanes_of<T>(exp2(Vec<T>(T(n))))[0], std::ldexp(T(1), n)) << n;
  }
}

TYPED_TEST(VecTest, Exp2SpecialValues) {
  using T = TypeParam;
  const auto exp2_of = [](T x) { return lanes_of<T>(exp2(Vec<T>(x)))[0]; };
  const T below_normal = T(std::numeric_limits<T>::min_exponent) - 3;
  EXPECT_TRUE(same(exp2_of(-kInf<T>), T(0))) << "a hidden weight must be exactly 0";
  EXPECT_TRUE(same(exp2_of(std::numeric_limits<T>::lowest()), T(0)));
  EXPECT_TRUE(same(exp2_of(below_normal), T(0)));
  EXPECT_EQ(exp2_of(kInf<T>), kInf<T>);
  EXPECT_EQ(exp2_of(std::numeric_limits<T>::max()), kInf<T>);
  EXPECT_EQ(exp2_of(T(std::numeric_limits<T>::max_exponent)), kInf<T>);
  EXPECT_TRUE(std::isnan(exp2_of(kNaN<T>)));
  EXPECT_TRUE(std::isnan(exp2_of(-kNaN<T>)));
  EXPECT_EQ(exp2_of(T(0)), T(1));
  EXPECT_EQ(exp2_of(T(-0.0)), T(1));
}

TYPED_TEST(VecTest, Exp2NeverFallsNorIsNegativeBetweenItsLimits) {
  using T = TypeParam;
  const T first = T(std::numeric_limits<T>::min_exponent) - 4, last = T(std::numeric_limits<T>::max_exponent) + 2;
  for (T x = first; x < last; x += T(0.0078125)) {
    const T y = lanes_of<T>(exp2(Vec<T>(x)))[0];
    ASSERT_GE(y, 0) << x;
    ASSERT_FALSE(std::isnan(y)) << x;
    ASSERT_LE(y, lanes_of<T>(exp2(Vec<T>(x + T(0.0078125))))[0]) << x;
  }
}

TYPED_TEST(VecTest, ExpIsWithinItsBoundForEachArgument) {
  using T = TypeParam;
  const T limit = sizeof(T) == 4 ? T(87) : T(708);
  // (3 + 1.3·|x|) ULP: the error in units of that bound is at most 1.
  double worst = 0;
  T where = 0;
  for_numbers_between<T>(-limit, limit, [&](T x) {
    const long double right = std::exp(static_cast<long double>(x));
    const auto got = static_cast<long double>(lanes_of<T>(exp(Vec<T>(x)))[0]);
    const double error = static_cast<double>(std::abs(got - right) /
                                             (ulp_at<T>(right) * (3 + 1.3L * std::abs(static_cast<long double>(x)))));
    if (!(error <= worst)) worst = error, where = x;
  });
  EXPECT_LE(worst, 1) << "at " << where;
}

TYPED_TEST(VecTest, ExpSpecialValues) {
  using T = TypeParam;
  const auto exp_of = [](T x) { return lanes_of<T>(exp(Vec<T>(x)))[0]; };
  EXPECT_TRUE(same(exp_of(-kInf<T>), T(0)));
  EXPECT_TRUE(same(exp_of(std::numeric_limits<T>::lowest()), T(0)));
  EXPECT_EQ(exp_of(kInf<T>), kInf<T>);
  EXPECT_TRUE(std::isnan(exp_of(kNaN<T>)));
  EXPECT_EQ(exp_of(T(0)), T(1));
}

TYPED_TEST(VecTest, TanhIsWithinItsUlp) {
  using T = TypeParam;
  const T limit = std::numeric_limits<T>::max();
  const auto [worst, where] =
      worst_ulp<T>(-limit / 2, limit / 2, [](Vec<T> x) { return tanh(x); }, [](long double x) { return std::tanh(x); });
  EXPECT_LE(worst, 4) << "at " << where;
  const auto [in_middle, at] =
      worst_ulp<T>(T(-3), T(3), [](Vec<T> x) { return tanh(x); }, [](long double x) { return std::tanh(x); });
  EXPECT_LE(in_middle, 4) << "at " << at;
}

TYPED_TEST(VecTest, TanhSpecialValues) {
  using T = TypeParam;
  const auto tanh_of = [](T x) { return lanes_of<T>(tanh(Vec<T>(x)))[0]; };
  EXPECT_EQ(tanh_of(kInf<T>), T(1));
  EXPECT_EQ(tanh_of(-kInf<T>), T(-1));
  EXPECT_EQ(tanh_of(T(0)), T(0));
  EXPECT_TRUE(std::isnan(tanh_of(kNaN<T>)));
  EXPECT_LE(std::abs(tanh_of(T(9.5))), T(1));
}

/// The same arithmetic whatever stands in the other lanes and however many registers run together: rows of a batch must
/// not depend on each other.
TYPED_TEST(VecTest, LanesAndRegistersAreIndependent) {
  using T = TypeParam;
  heed_test::Random random(5);
  for (std::size_t n = 0; n < 2000; ++n) {
    Lanes<T> x;
    for (T& lane : x) lane = static_cast<T>(40 * random.uniform() - 30);
    x[n % x.size()] = interesting_values<T>()[n % interesting_values<T>().size()];
    const Lanes<T> together = lanes_of<T>(exp2(load<T>(x)));
    Vec<T> four[4] = {load<T>(x), Vec<T>(T(1)), load<T>(x), Vec<T>(kNaN<T>)};
    heed::detail::exp2_in_place<T, 4>(four);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const T alone = lanes_of<T>(exp2(Vec<T>(x[i])))[i];
      ASSERT_TRUE(same(together[i], alone)) << x[i];
      ASSERT_TRUE(same(lanes_of<T>(four[0])[i], alone)) << x[i];
      ASSERT_TRUE(same(lanes_of<T>(four[2])[i], alone)) << x[i];
    }
  }
}

// ---- Conversions ---------------------------------------------------------------------------------------------------

template <class S>
void expect_every_pattern_loads_as_float() {
  constexpr int n = Vec<float>::size;
  for (std::uint32_t first = 0; first <= 0xFFFF; first += n) {
    S block[n];
    for (int i = 0; i < n; ++i) {
      block[i] = std::bit_cast<S>(static_cast<std::uint16_t>(first + static_cast<std::uint32_t>(i)));
    }
    const Lanes<float> got = lanes_of<float>(heed::detail::load_float(block));
    for (int i = 0; i < n; ++i) {
      const float right = static_cast<float>(block[i]);
      ASSERT_TRUE(same(got[static_cast<std::size_t>(i)], right)) << std::hex << first + static_cast<std::uint32_t>(i);
    }
  }
}

TEST(LoadFloat, IsRightForEveryHalf) { expect_every_pattern_loads_as_float<half>(); }
TEST(LoadFloat, IsRightForEveryBfloat16) { expect_every_pattern_loads_as_float<bfloat16>(); }

template <class S>
std::vector<std::uint32_t> bits_of_every_pattern() {
  constexpr std::uint32_t n = Vec<float>::size;
  std::vector<std::uint32_t> bits;
  for (std::uint32_t first = 0; first <= 0xFFFF; first += n) {
    S block[n];
    for (std::uint32_t i = 0; i < n; ++i) block[i] = std::bit_cast<S>(static_cast<std::uint16_t>(first + i));
    for (const float x : lanes_of<float>(heed::detail::load_float(block)))
      bits.push_back(std::bit_cast<std::uint32_t>(x));
  }
  return bits;
}

TEST(LoadFloat, F17_DoesNotDependOnTheFloatState) {
  const auto half_bits = bits_of_every_pattern<half>(), bfloat16_bits = bits_of_every_pattern<bfloat16>();
  EXPECT_EQ(half_bits[1], std::bit_cast<std::uint32_t>(0x1p-24f));
  for (const bool flush : {false, true}) {
    for (const int rounding : {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
      const heed_test::FloatMode mode(flush, rounding);
      EXPECT_TRUE(bits_of_every_pattern<half>() == half_bits) << flush << ' ' << rounding;
      EXPECT_TRUE(bits_of_every_pattern<bfloat16>() == bfloat16_bits) << flush << ' ' << rounding;
    }
  }
}

template <class S, class T>
void expect_rows_to_convert() {
  for (Index n = 0; n <= 70; ++n) {
    for (const Index stride : {1, 3, -2}) {
      std::vector<S> from(static_cast<std::size_t>(3 * n + 1));
      for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<S>(static_cast<float>(i) - 10.5f);
      const S* begin = stride < 0 ? from.data() + 2 * n : from.data();
      std::vector<T> to(static_cast<std::size_t>(n) + 2, T(-77));
      heed::detail::convert_row(begin, stride, n, to.data() + 1);
      for (Index i = 0; i < n; ++i) {
        ASSERT_EQ(to[static_cast<std::size_t>(i) + 1], static_cast<T>(begin[i * stride])) << n << ' ' << stride;
      }
      ASSERT_EQ(to.front(), T(-77)) << "written before the row";
      ASSERT_EQ(to.back(), T(-77)) << "written behind the row";
    }
  }
}

TEST(ConvertRow, ConvertsEveryLengthAndStride) {
  expect_rows_to_convert<float, float>();
  expect_rows_to_convert<double, double>();
  expect_rows_to_convert<half, float>();
  expect_rows_to_convert<bfloat16, float>();
  expect_rows_to_convert<float, double>();
  expect_rows_to_convert<double, float>();
  expect_rows_to_convert<half, double>();
  expect_rows_to_convert<half, half>();
}

TEST(Unroll, RunsEveryIndexInOrder) {
  std::string order;
  heed::detail::unroll<5>([&](auto i) {
    static_assert(decltype(i)::value < 5);
    order += static_cast<char>('0' + i);
  });
  EXPECT_EQ(order, "01234");
}

}  // namespace
