// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Products for the tests of gemm: operands and epilogues at random, and the naive product in any type.

#include <cmath>
#include <optional>
#include <string>

#include <heed/compiled/attention.hpp>
#include <heed/core/context.hpp>
#include <heed/core/gemm.hpp>
#include <heed/core/tensor.hpp>

#include "common/random_inputs.hpp"

namespace heed_test {

using heed::Activation;

/// What follows a product, as a value.
struct EpilogueCase {
  bool bias = false, residual = false, accumulate = false;
  Activation activation = Activation::None;

  static EpilogueCase random(Random& random) {
    return {random.chance(0.5), random.chance(0.3), random.chance(0.3),
            random.pick({Activation::None, Activation::None, Activation::ReLU, Activation::GELU, Activation::GELUTanh,
                         Activation::SiLU})};
  }
  std::string text() const {
    return std::string(bias ? " bias" : "") + (residual ? " residual" : "") + (accumulate ? " accumulate" : "") +
           " activation " + std::to_string(static_cast<int>(activation));
  }
};

/// The operands of one product, dense: a (m, k), b (k, n), bias (n), residual and the former c (m, n).
template <class T>
struct GemmCase {
  GemmCase(Index m, Index n, Index k, const EpilogueCase& then, Random& random)
      : epilogue(then),
        a(normal_tensor<T, 2>({m, k}, random)),
        b(normal_tensor<T, 2>({k, n}, random)),
        bias(normal_tensor<T, 1>({n}, random)),
        residual(normal_tensor<T, 2>({m, n}, random)),
        former(normal_tensor<T, 2>({m, n}, random)) {}

  Index m() const { return a.extent(0); }
  Index n() const { return b.extent(1); }
  Index k() const { return a.extent(1); }
  std::string text() const {
    return "m " + std::to_string(m()) + " n " + std::to_string(n()) + " k " + std::to_string(k()) + epilogue.text();
  }

  heed::Epilogue<T> options() const { return options_with(residual.view()); }
  heed::Epilogue<T> options_with(const heed::TensorView<const T, 2>& other_residual) const {
    heed::Epilogue<T> e;
    if (epilogue.bias) e.bias = bias.data();
    e.activation = epilogue.activation;
    if (epilogue.residual) e.residual = other_residual;
    e.accumulate = epilogue.accumulate;
    return e;
  }

  heed::Tensor<T, 2> packed(heed::Context& context) const {
    heed::Tensor<T, 2> c = former;
    heed::gemm<T>(a, heed::PackedMatrix<T>::pack(b), c.view(), options(), context);
    return c;
  }
  heed::Tensor<T, 2> unpacked(heed::Context& context) const {
    heed::Tensor<T, 2> c = former;
    heed::gemm<T>(a, b, c.view(), options(), context);
    return c;
  }

  EpilogueCase epilogue;
  heed::Tensor<T, 2> a, b;
  heed::Tensor<T, 1> bias;
  heed::Tensor<T, 2> residual, former;
};

/// The textbook formulas.
template <class E>
E naive_activation(Activation activation, E x) {
  switch (activation) {
    case Activation::None:
      return x;
    case Activation::ReLU:
      return x > 0 ? x : E(0);
    case Activation::GELU:
      return x / 2 * (1 + std::erf(x / std::sqrt(E(2))));
    case Activation::GELUTanh:
      return x / 2 * (1 + std::tanh(std::sqrt(E(2) / std::acos(E(-1))) * (x + E(0.044715L) * x * x * x)));
    case Activation::SiLU:
      return x / (1 + std::exp(-x));
  }
  return x;
}

/// The product, one element after the other, computed in E.
template <class E, class T>
heed::Tensor<E, 2> naive(const GemmCase<T>& p) {
  heed::Tensor<E, 2> c(p.m(), p.n());
  for (Index i = 0; i < p.m(); ++i) {
    for (Index j = 0; j < p.n(); ++j) {
      E sum = p.epilogue.accumulate ? static_cast<E>(p.former(i, j)) : E(0);
      for (Index k = 0; k < p.k(); ++k) sum += static_cast<E>(p.a(i, k)) * static_cast<E>(p.b(k, j));
      if (p.epilogue.bias) sum += static_cast<E>(p.bias(j));
      sum = naive_activation(p.epilogue.activation, sum);
      if (p.epilogue.residual) sum += static_cast<E>(p.residual(i, j));
      c(i, j) = sum;
    }
  }
  return c;
}

}  // namespace heed_test
