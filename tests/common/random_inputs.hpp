// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Random numbers for tests, rebuilt from a seed that a failing test prints.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <string>

#include <heed/core/scalar.hpp>
#include <heed/core/tensor.hpp>

namespace heed_test {

using heed::Index;

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014). Not heed's own generator,
/// which is under test, and not the standard library's distributions, which differ between libraries. A fuzzer makes
/// the same choices from bytes: fuzz/fuzz_input.hpp.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  /// Independent numbers for case i of a test.
  Random(std::uint64_t seed, int i) : state_(seed) {
    state_ = next() + static_cast<std::uint64_t>(i) * 0xd1342543de82ef95u;
  }
  virtual ~Random() = default;
  Random(const Random&) = default;
  Random& operator=(const Random&) = default;

  virtual std::uint64_t bits() { return next(); }
  /// In [0, 1).
  virtual double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  /// low, ..., high.
  virtual int integer(int low, int high) {
    return low + static_cast<int>(bits() % static_cast<std::uint64_t>(std::int64_t{high} - low + 1));
  }
  bool chance(double probability) { return uniform() < probability; }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[integer(0, static_cast<int>(choices.size()) - 1)];
  }

 private:
  std::uint64_t next() {
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

  std::uint64_t state_;
};

/// How many of `cases` random cases a test runs: all of them in a release build, a tenth in a debug or sanitizer build.
/// The environment variable HEED_TEST_EFFORT, in percent, changes that.
inline int effort(int cases) {
#if defined(NDEBUG)
  int percent = 100;
#else
  int percent = 10;
#endif
  if (const char* wanted = std::getenv("HEED_TEST_EFFORT")) percent = std::atoi(wanted);
  const int count = static_cast<int>(std::int64_t{cases} * percent / 100);
  return count > 1 ? count : 1;
}

/// f(element) for each element of a view, in row-major order.
template <class T, int Rank, class F>
void for_each_element(const heed::TensorView<T, Rank>& view, F&& f) {
  for (Index i = 0; i < view.extent(0); ++i) {
    if constexpr (Rank == 1)
      f(view(i));
    else
      for_each_element(view[i], f);
  }
}

/// Normal numbers.
template <class T, int Rank>
void fill_normal(const heed::TensorView<T, Rank>& view, Random& random, double stddev = 1) {
  for_each_element(view, [&](T& x) { x = static_cast<T>(random.normal() * stddev); });
}
template <class T, int Rank>
heed::Tensor<T, Rank> normal_tensor(const heed::Extents<Rank>& extents, Random& random, double stddev = 1) {
  heed::Tensor<T, Rank> x(extents);
  fill_normal(x.view(), random, stddev);
  return x;
}

/// What a hidden row may hold: NaN, an infinity, or the largest numbers there are.
template <class T>
T poison(Random& random) {
  using Limits = std::numeric_limits<T>;
  switch (random.integer(0, 4)) {
    case 0:
      return Limits::quiet_NaN();
    case 1:
      return Limits::infinity();
    case 2:
      return static_cast<T>(-Limits::infinity());
    case 3:
      return Limits::max();
    default:
      return Limits::lowest();
  }
}

/// The same numbers in another type.
template <class To, class From, int Rank>
heed::Tensor<To, Rank> cast(const heed::TensorView<From, Rank>& from) {
  heed::Tensor<To, Rank> to(from.extents());
  To* out = to.data();
  for_each_element(from, [&](const auto& x) { *out++ = static_cast<To>(x); });
  return to;
}
template <class To, class From, int Rank>
heed::Tensor<To, Rank> cast(const heed::Tensor<From, Rank>& from) {
  return cast<To>(from.view());
}

}  // namespace heed_test
