// SPDX-License-Identifier: MIT
// F15: what heed computes under a compiler flag, against formulas that were compiled without it (plain.cpp).
// Exit codes: 0 right, 1 wrong, 3 refused by heed when the program ran. tests/tools/check_flags.py builds it with each
// flag.

#include <algorithm>
#include <cstdio>
#include <functional>

#include <heed/attention/attention.hpp>
#include <heed/attention/linear/linear.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/norm.hpp>
#include <heed/train/parameter_list.hpp>

#include "plain.hpp"

namespace {

using heed::Index;
using Numbers = std::vector<double>;

int failures = 0;

void expect(const char* what, bool is_right) {
  if (is_right) return;
  ++failures;
  std::printf("%s: wrong\n", what);
}
/// A distance of `limit` is allowed in float, or in double, times 2^-29.
template <class T>
void expect_near(const char* what, int length, const Numbers& value, const Numbers& right, double limit) {
  if (sizeof(T) == 8) limit *= 0x1p-29;
  const double distance = plain::distance(value, right);
  if (distance <= limit) return;
  ++failures;
  std::printf("%s, %s, %d: off by %.2g, more than %.2g\n", what, sizeof(T) == 4 ? "float" : "double", length, distance,
              limit);
}
/// Numbers that must have the same bits; on x87, which keeps more digits in some places, the same up to rounding.
template <class T>
void expect_same(const char* what, const T* begin, const T* end, const T* other) {
#if __FLT_EVAL_METHOD__ == 0
  expect(what, std::equal(begin, end, other));
#else
  const Numbers found(begin, end);
  expect_near<T>(what, 0, found, Numbers(other, other + found.size()), 1e-5);
#endif
}
/// f() must refuse its arguments.
void expect_refusal(const char* what, const std::function<void()>& f) {
  try {
    f();
  } catch (const heed::ValueError&) {
    return;
  }
  expect(what, false);
}

template <class T>
void round_to(Numbers& x) {
  for (double& value : x) value = static_cast<double>(static_cast<T>(value));
}
template <class T>
heed::Tensor<T, 4> head_of(const Numbers& x, int D) {
  heed::Tensor<T, 4> head(1, 1, static_cast<Index>(x.size()) / D, D);
  std::transform(x.begin(), x.end(), head.data(), [](double value) { return static_cast<T>(value); });
  return head;
}
template <class Tensor>
Numbers numbers_of(const Tensor& x) {
  Numbers values(static_cast<std::size_t>(x.size()));
  std::transform(x.data(), x.data() + x.size(), values.begin(), [](auto value) { return static_cast<double>(value); });
  return values;
}

template <class T>
T nan_of() {
  volatile T nan = std::numeric_limits<T>::quiet_NaN();
  return nan;
}
template <class T>
T infinity_of() {
  volatile T infinity = std::numeric_limits<T>::infinity();
  return infinity;
}

template <class T>
void attention() {
  constexpr int D = 24;
  heed::ThreadPool pool(2);
  heed::Context serial, threads(pool);
  for (const int L : {4, 40, 300, 1000}) {
    Numbers q = plain::numbers(L * D, 1), k = plain::numbers(L * D, 2), v = plain::numbers(L * D, 3);
    for (double& value : q) value *= 2;
    round_to<T>(q), round_to<T>(k), round_to<T>(v);
    const auto query = head_of<T>(q, D), key = head_of<T>(k, D), value = head_of<T>(v, D);
    const auto full = heed::attention(query, key, value, serial);
    const auto causal = heed::attention(query, key, value, heed::Causal{}, serial);
    expect_near<T>("attention", L, numbers_of(full), plain::attention(q, k, v, D, false), 1e-6);
    expect_near<T>("causal attention", L, numbers_of(causal), plain::attention(q, k, v, D, true), 1e-6);
    const auto shared = heed::attention(query, key, value, heed::Causal{}, threads);
    expect_same("bits of two threads", causal.data(), causal.data() + causal.size(), shared.data());

    // One query, and garbage behind the mask.
    const Numbers last(q.end() - D, q.end());
    auto padded_key = head_of<T>(k, D), padded_value = head_of<T>(v, D);
    const int visible[] = {L - 2};
    for (int d = 0; d < D; ++d) {
      padded_key(0, 0, L - 2, d) = padded_value(0, 0, L - 2, d) = nan_of<T>();
      padded_key(0, 0, L - 1, d) = padded_value(0, 0, L - 1, d) = infinity_of<T>();
    }
    const Numbers short_k(k.begin(), k.end() - 2 * D), short_v(v.begin(), v.end() - 2 * D);
    expect_near<T>("padded attention", L,
                   numbers_of(heed::attention(query, padded_key, padded_value, heed::Padding(visible))),
                   plain::attention(q, short_k, short_v, D, false), 1e-6);
    expect_near<T>("one padded query", L,
                   numbers_of(heed::attention(head_of<T>(last, D), padded_key, padded_value, heed::Padding(visible))),
                   plain::attention(last, short_k, short_v, D, false), 1e-6);
    // The last value is garbage, which the last query alone sees.
    auto late_value = head_of<T>(v, D);
    for (int d = 0; d < D; ++d) late_value(0, 0, L - 1, d) = nan_of<T>();
    const auto before = heed::attention(query, key, late_value, heed::Causal{});
    expect_same("NaN in the future", causal.data(), causal.data() + (L - 1) * D, before.data());
    expect("NaN in the present", plain::is_nan(static_cast<double>(before(0, 0, L - 1, 0))));
    const T seen = heed::attention(query, padded_key, padded_value)(0, 0, 0, 0);
    expect("a visible NaN", plain::is_nan(static_cast<double>(seen)));
    const int none[] = {0};
    const auto nothing = heed::attention(query, padded_key, padded_value, heed::Padding(none));
    expect("queries that see nothing", plain::distance(numbers_of(nothing), Numbers(q.size())) == 0);
  }
}

template <class T>
void gradients() {
  constexpr int D = 8;
  for (const int L : {5, 70}) {
    Numbers q = plain::numbers(L * D, 1), k = plain::numbers(L * D, 2), v = plain::numbers(L * D, 3),
            dout = plain::numbers(L * D, 4);
    round_to<T>(q), round_to<T>(k), round_to<T>(v), round_to<T>(dout);
    const auto [dq, dk, dv] = heed::attention_backward(head_of<T>(dout, D), head_of<T>(q, D), head_of<T>(k, D),
                                                       head_of<T>(v, D), heed::Causal{});
    Numbers found = numbers_of(dq);
    for (const auto* gradient : {&dk, &dv}) {
      const Numbers more = numbers_of(*gradient);
      found.insert(found.end(), more.begin(), more.end());
    }
    expect_near<T>("gradients", L, found, plain::attention_gradients(q, k, v, dout, D, true), 4e-6);
  }
}

template <class T>
void functions() {
  constexpr int W = heed::Vec<T>::size;
  const T points[] = {T(-80), T(-9.75), T(-1), T(-0.4375), T(0), T(0.28125), T(1), T(2.5), T(17), T(60)};
  for (const T x : points) {
    T lanes[W];
    heed::exp(heed::Vec<T>(x)).store(lanes);
    const double right = plain::exp(static_cast<double>(x));
    expect_near<T>("exp", static_cast<int>(x), {static_cast<double>(lanes[0]) / right}, {1}, 2e-5);
    heed::tanh(heed::Vec<T>(x)).store(lanes);
    expect_near<T>("tanh", static_cast<int>(x), {static_cast<double>(lanes[0])}, {plain::tanh(static_cast<double>(x))},
                   5e-7);
    const double gelu = plain::gelu(static_cast<double>(x));
    expect_near<T>("gelu", static_cast<int>(x), {static_cast<double>(heed::gelu(x))}, {gelu},
                   5e-7 * std::max(1.0, gelu));
  }
  T lanes[W];
  heed::exp(heed::Vec<T>(-infinity_of<T>())).store(lanes);
  expect("exp(-inf)", lanes[0] == T(0));
  heed::exp(heed::Vec<T>(nan_of<T>())).store(lanes);
  expect("exp(NaN)", plain::is_nan(static_cast<double>(lanes[0])));
}

template <class T>
void layers() {
  constexpr int rows = 9, in = 40, out = 33;
  Numbers x = plain::numbers(rows * in, 5), w = plain::numbers(out * in, 6);
  round_to<T>(x), round_to<T>(w);
  heed::Tensor<T, 3> input(1, rows, in), far(1, rows, in);
  std::transform(x.begin(), x.end(), input.data(), [](double value) { return static_cast<T>(value); });

  heed::LayerNorm<T> norm({.embed_dim = in, .eps = 1e-5});
  heed::Random random(1);
  norm.initialize(random);
  expect_near<T>("layer norm", in, numbers_of(norm(input)), plain::layer_norm(x, in, 1e-5), 2e-6);
  std::fill_n(far.data(), far.size(), T(1000.1));
  expect_near<T>("layer norm of a constant row", in, numbers_of(norm(far)), Numbers(x.size()), 1e-6);

  heed::Linear<T> linear({.in_features = in, .out_features = out, .bias = false});
  linear.initialize(random);
  std::transform(w.begin(), w.end(), linear.weight.mutable_value().data(),
                 [](double value) { return static_cast<T>(value); });
  const auto y = linear(input);
  expect_near<T>("linear", in, numbers_of(y), plain::product(x, w, in), 1e-5);
  linear.pack();
  heed::Tensor<T, 3> row(1, 1, in);
  std::copy_n(input.data(), in, row.data());
  const auto alone = linear(row);
  expect_same("bits of a row alone", alone.data(), alone.data() + out, y.data());

  // Clipping, and what finds numbers that are not finite.
  const heed::ParameterList<T> parameters(linear);
  heed::Context context;
  linear.weight.grad();
  linear.weight.zero_grad();
  linear.weight.grad_matrix()(0, 0) = T(3), linear.weight.grad_matrix()(1, 1) = T(4);
  heed::clip_grad_norm(parameters, 1.0, context);
  expect_near<T>(
      "clipping", 2,
      {static_cast<double>(linear.weight.grad_matrix()(0, 0)), static_cast<double>(linear.weight.grad_matrix()(1, 1))},
      {0.6, 0.8}, 1e-6);
  for (const T wrong : {nan_of<T>(), infinity_of<T>()}) {
    linear.weight.grad_matrix()(0, 0) = wrong;
    expect_refusal("clipping of a gradient that is not finite",
                   [&] { heed::clip_grad_norm(parameters, 1.0, context); });
    heed::FiniteObserver observer;
    input(0, 3, 2) = wrong;
    observer.output("x", heed::ObservedTensor(heed::TensorView<const T, 3>(input.view())));
    expect("an observer of numbers that are not finite", observer.found());
  }
}

void narrow_types() {
  constexpr int D = 16, L = 50;
  Numbers q = plain::numbers(L * D, 1), k = plain::numbers(L * D, 2), v = plain::numbers(L * D, 3);
  round_to<float>(q);
  Numbers half_k = k, half_v = v;
  round_to<heed::half>(half_k), round_to<heed::half>(half_v);
  expect_near<float>(
      "attention on half", L,
      numbers_of(heed::attention(head_of<float>(q, D), head_of<heed::half>(k, D), head_of<heed::half>(v, D))),
      plain::attention(q, half_k, half_v, D, false), 1e-6);
}

void options() {
  const auto x = head_of<float>(plain::numbers(12, 1), 4);
  const double nan = nan_of<double>(), infinity = infinity_of<double>();
  for (const double wrong : {nan, infinity}) {
    expect_refusal("a scale", [&] { heed::attention(x, x, x, heed::Scale{wrong}); });
    expect_refusal("a soft cap", [&] { heed::SoftCap(static_cast<float>(wrong)); });
    expect_refusal("an epsilon", [&] { heed::LayerNorm<float>({.embed_dim = 4, .eps = wrong}); });
  }
}

}  // namespace

int main() {
  try {
    attention<float>(), attention<double>();
    gradients<float>(), gradients<double>();
    functions<float>(), functions<double>();
    layers<float>(), layers<double>();
    narrow_types();
    options();
  } catch (const heed::Error& error) {
    std::printf("%s\n", error.what());
    return 3;
  }
  return failures == 0 ? 0 : 1;
}
