// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Starting values of parameters. Every number is a function of (seed, name of the parameter, place in it), so a model
/// starts the same whatever the order in which its layers are made.
///
///   heed::Random random(1);
///   model.initialize(random);  // the usual start of every layer
///   heed::init::each(model, random, [](std::string_view, auto& parameter, const heed::Philox& numbers) {
///     if (parameter.rank() == 2) heed::init::normal(parameter, numbers, 0.02);
///   });
///
/// Each function takes a parameter, or a matrix view (out, in) so that the parts of a joint weight can start apart.

#include <unordered_map>

#include <heed/core/simd.hpp>
#include <heed/nn/parameter.hpp>

HEED_NAMESPACE_BEGIN

namespace init {

/// The stream of a name, "layers.0.linear1.weight" for instance: FNV-1a, 64 bits.
constexpr std::uint64_t stream(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace init

/// The numbers that models start from. Each parameter draws by its name: the first draw of a name is a function of the
/// seed and the name alone, each further draw of it takes another stream. Two layers started from one Random differ.
class Random {
 public:
  explicit Random(std::uint64_t seed) : seed_(seed) {}  ///< The same seed gives the same numbers.

  /// The numbers for the parameter of this name.
  Philox operator()(std::string_view name) {
    const std::uint64_t number = draws_[init::stream(name)]++;
    if (number == 0) return Philox(seed_, init::stream(name));
    return Philox(seed_, init::stream(std::string(name) + '#' + std::to_string(number)));
  }

 private:
  std::uint64_t seed_;
  std::unordered_map<std::uint64_t, std::uint64_t> draws_;
};

namespace init {

/// f(name, parameter, numbers) for every parameter of a layer or model, with the numbers of that name.
template <class Model, class F>
void each(Model& model, Random& random, F&& f) {
  model.visit("", [&](std::string_view name, auto& parameter) { f(name, parameter, random(name)); });
}

/// Scales a weight by its inputs, which keeps the spread of the forward, or by its outputs, which keeps the backward's.
enum class Fan { In, Out };

/// Options of kaiming_normal() and kaiming_uniform().
struct KaimingOptions {
  double gain = 1.4142135623730951;  ///< √2 for ReLU; 1 for a linear layer
  Fan fan = Fan::In;                 ///< the width that counts
};

}  // namespace init

namespace detail {

/// value(number) for each element; numbers count in row-major order, whatever the strides.
template <class T, class Value>
void fill_numbered(const TensorView<T, 2>& w, Value&& value) {
  std::uint64_t number = 0;
  for (Index r = 0; r < w.extent(0); ++r) {
    for (Index c = 0; c < w.extent(1); ++c) w(r, c) = static_cast<T>(value(number++));
  }
}

template <class T>
void check_fans(std::string_view name, const Parameter<T>& parameter) {
  HEED_CHECK(parameter.rank() == 2, ShapeError, name, ": the parameter has rank ", parameter.rank(),
             " but a matrix (out, in) is needed; vectors start by init::normal, uniform or zeros");
}

/// 1 / √fan; an empty weight has no elements to scale.
inline double inverse_root_fan(Index fan) { return 1 / std::sqrt(static_cast<double>(std::max<Index>(1, fan))); }

template <class T>
double kaiming_stddev(const TensorView<T, 2>& w, const init::KaimingOptions& options) {
  return options.gain * inverse_root_fan(w.extent(options.fan == init::Fan::In ? 1 : 0));
}

/// Numbers uniform within ±b have the standard deviation b / √3.
inline constexpr double kSqrt3 = 1.7320508075688772;

/// Σ a[i]·b[i].
inline double dot(const double* a, const double* b, Index n) {
  using V = Vec<double>;
  V sums = 0.0;
  Index i = 0;
  for (; i + V::size <= n; i += V::size) sums = fma(V::load(a + i), V::load(b + i), sums);
  double total = sum(sums);
  for (; i < n; ++i) total += a[i] * b[i];
  return total;
}
/// y[i] += factor·x[i].
inline void add_scaled(double factor, const double* x, double* y, Index n) {
  using V = Vec<double>;
  Index i = 0;
  for (; i + V::size <= n; i += V::size) fma(V(factor), V::load(x + i), V::load(y + i)).store(y + i);
  for (; i < n; ++i) y[i] += factor * x[i];
}

/// n <= m orthonormal vectors of m elements, one after the other, uniform over all such sets.
///
/// Stewart: "The efficient generation of random orthogonal matrices with an application to condition estimators", 1980.
/// The Q of a matrix of normal numbers is a product of Householder reflections, and the vector of the k-th one is again
/// normal and independent of the others: the reflections are drawn directly and applied to the unit vectors, last one
/// first. The signs are those that give R a positive diagonal.
inline std::vector<double> orthonormal_vectors(Index n, Index m, const Philox& random) {
  std::vector<double> q(static_cast<std::size_t>(n * m), 0.0), reflection(static_cast<std::size_t>(m));
  for (Index k = n; k-- > 0;) {
    const Index size = m - k;
    double* v = reflection.data();
    for (Index i = 0; i < size; ++i) v[i] = random.normal(static_cast<std::uint64_t>(k * m + i));
    const double norm = std::sqrt(dot(v, v, size));
    const double sign = v[0] < 0 ? -1 : 1;
    // H = 1 - v·vᵀ / (norm·|v₀|) turns the drawn vector into -sign·norm along the k-th axis.
    v[0] += sign * norm;
    const double factor = 1 / (norm * std::abs(v[0]));
    double* qk = q.data() + k * m + k;
    qk[0] = -sign;
    for (Index j = k; j < n; ++j) {
      double* qj = q.data() + j * m + k;
      add_scaled(-factor * dot(v, qj, size), v, qj, size);
    }
  }
  return q;
}

}  // namespace detail

namespace init {

/// Every number the same.
template <class T>
void constant(TensorView<T, 2> w, double value) {
  detail::fill_numbered(w, [&](std::uint64_t) { return value; });
}
/// @overload
template <class T>
void constant(Parameter<T>& parameter, double value) {
  constant(parameter.mutable_matrix(), value);
}
/// Every number 0.
template <class T>
void zeros(Parameter<T>& parameter) {
  constant(parameter, 0);
}

/// Uniform in [low, high). Throws ValueError unless low <= high.
template <class T>
void uniform(TensorView<T, 2> w, const Philox& random, double low, double high) {
  HEED_CHECK(low <= high, ValueError, "heed::init::uniform: low = ", low, " is above high = ", high);
  detail::fill_numbered(w, [&](std::uint64_t i) { return low + (high - low) * random.uniform(i); });
}
/// @overload
template <class T>
void uniform(Parameter<T>& parameter, const Philox& random, double low, double high) {
  uniform(parameter.mutable_matrix(), random, low, high);
}

/// Normal with mean 0. Throws ValueError for a negative standard deviation.
template <class T>
void normal(TensorView<T, 2> w, const Philox& random, double stddev) {
  HEED_CHECK(stddev >= 0, ValueError, "heed::init::normal: the standard deviation ", stddev, " is negative");
  detail::fill_numbered(w, [&](std::uint64_t i) { return stddev * random.normal(i); });
}
/// @overload
template <class T>
void normal(Parameter<T>& parameter, const Philox& random, double stddev) {
  normal(parameter.mutable_matrix(), random, stddev);
}

/// Normal with the standard deviation gain·√(2 / (in + out)); Glorot, Bengio: "Understanding the difficulty of training
/// deep feedforward neural networks", 2010. A parameter that is a vector throws ShapeError.
template <class T>
void xavier_normal(TensorView<T, 2> w, const Philox& random, double gain = 1) {
  normal(w, random, gain * std::sqrt(2.0) * detail::inverse_root_fan(w.extent(0) + w.extent(1)));
}
/// @overload
template <class T>
void xavier_normal(Parameter<T>& parameter, const Philox& random, double gain = 1) {
  detail::check_fans("heed::init::xavier_normal", parameter);
  xavier_normal(parameter.mutable_matrix(), random, gain);
}

/// Uniform with the standard deviation of xavier_normal(): within ±gain·√(6 / (in + out)).
template <class T>
void xavier_uniform(TensorView<T, 2> w, const Philox& random, double gain = 1) {
  const double bound = gain * std::sqrt(6.0) * detail::inverse_root_fan(w.extent(0) + w.extent(1));
  uniform(w, random, -bound, bound);
}
/// @overload
template <class T>
void xavier_uniform(Parameter<T>& parameter, const Philox& random, double gain = 1) {
  detail::check_fans("heed::init::xavier_uniform", parameter);
  xavier_uniform(parameter.mutable_matrix(), random, gain);
}

/// Normal with the standard deviation gain / √fan; He, Zhang, Ren, Sun: "Delving deep into rectifiers", 2015.
/// A parameter that is a vector throws ShapeError.
template <class T>
void kaiming_normal(TensorView<T, 2> w, const Philox& random, const KaimingOptions& options = {}) {
  normal(w, random, detail::kaiming_stddev(w, options));
}
/// @overload
template <class T>
void kaiming_normal(Parameter<T>& parameter, const Philox& random, const KaimingOptions& options = {}) {
  detail::check_fans("heed::init::kaiming_normal", parameter);
  kaiming_normal(parameter.mutable_matrix(), random, options);
}

/// Uniform with the standard deviation of kaiming_normal(): within ±gain·√(3 / fan). PyTorch's Linear has the gain
/// 1/√3.
template <class T>
void kaiming_uniform(TensorView<T, 2> w, const Philox& random, const KaimingOptions& options = {}) {
  const double bound = detail::kSqrt3 * detail::kaiming_stddev(w, options);
  uniform(w, random, -bound, bound);
}
/// @overload
template <class T>
void kaiming_uniform(Parameter<T>& parameter, const Philox& random, const KaimingOptions& options = {}) {
  detail::check_fans("heed::init::kaiming_uniform", parameter);
  kaiming_uniform(parameter.mutable_matrix(), random, options);
}

/// Orthonormal rows, or columns where there are more rows than columns, times gain; uniform over all such matrices
/// (Saxe, McClelland, Ganguli: "Exact solutions to the nonlinear dynamics of learning", 2014). Formed in double; takes
/// in·out doubles of memory and max(in, out)·min(in, out)² steps. A parameter that is a vector throws ShapeError.
template <class T>
void orthogonal(TensorView<T, 2> w, const Philox& random, double gain = 1) {
  const bool wide = w.extent(0) <= w.extent(1);
  const Index n = std::min(w.extent(0), w.extent(1)), m = std::max(w.extent(0), w.extent(1));
  const std::vector<double> vectors = detail::orthonormal_vectors(n, m, random);
  const TensorView<const double, 2> q(vectors.data(), {n, m});
  for (Index r = 0; r < w.extent(0); ++r) {
    for (Index c = 0; c < w.extent(1); ++c) w(r, c) = static_cast<T>(gain * (wide ? q(r, c) : q(c, r)));
  }
}
/// @overload
template <class T>
void orthogonal(Parameter<T>& parameter, const Philox& random, double gain = 1) {
  detail::check_fans("heed::init::orthogonal", parameter);
  orthogonal(parameter.mutable_matrix(), random, gain);
}

}  // namespace init

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
