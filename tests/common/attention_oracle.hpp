// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Attention by its definition, in a wide type. It shares no code with heed, so that it can judge heed's reference too.

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include <heed/core/tensor.hpp>

#include "common/random_inputs.hpp"

namespace heed_test {

template <class E>
struct OracleResult {
  heed::Tensor<E, 4> out, weights;
  heed::Tensor<E, 3> maximum, sum;
};

/// visible(b, h, q, k): bool; modify(score, b, h, q, k): E; keep(b, h, q, k): what dropout multiplies a weight by.
template <class E, class T, class S, class Visible, class Modify, class Survival>
OracleResult<E> attention_oracle(const heed::TensorView<const T, 4>& q, const heed::TensorView<const S, 4>& k,
                                 const heed::TensorView<const S, 4>& v, double scale, std::span<const double> sinks,
                                 Visible&& visible, Modify&& modify, Survival&& keep) {
  const int B = static_cast<int>(q.extent(0)), H = static_cast<int>(q.extent(1)), Lq = static_cast<int>(q.extent(2));
  const int G = static_cast<int>(k.extent(1)), Lk = static_cast<int>(k.extent(2));
  OracleResult<E> result{heed::Tensor<E, 4>(B, H, Lq, v.extent(3)), heed::Tensor<E, 4>(B, H, Lq, Lk),
                         heed::Tensor<E, 3>(B, H, Lq), heed::Tensor<E, 3>(B, H, Lq)};
  std::vector<E> score(static_cast<std::size_t>(Lk));
  for (int b = 0; b < B; ++b) {
    for (int h = 0; h < H; ++h) {
      const int g = h * G / H;
      for (int i = 0; i < Lq; ++i) {
        E maximum = sinks.empty() ? -std::numeric_limits<E>::infinity() : E(sinks[static_cast<std::size_t>(h)]);
        const E sink = maximum;
        for (int j = 0; j < Lk; ++j) {
          if (!visible(b, h, i, j)) continue;
          E dot = 0;
          for (Index d = 0; d < q.extent(3); ++d) dot += static_cast<E>(q(b, h, i, d)) * static_cast<E>(k(b, g, j, d));
          score[static_cast<std::size_t>(j)] = modify(dot * static_cast<E>(scale), b, h, i, j);
          maximum = std::max(maximum, score[static_cast<std::size_t>(j)]);
        }
        E sum = std::isinf(sink) ? E(0) : std::exp(sink - maximum);
        for (int j = 0; j < Lk; ++j) {
          if (!visible(b, h, i, j)) continue;
          result.weights(b, h, i, j) = std::exp(score[static_cast<std::size_t>(j)] - maximum);
          sum += result.weights(b, h, i, j);
        }
        for (int j = 0; j < Lk; ++j) {
          if (!visible(b, h, i, j)) continue;
          result.weights(b, h, i, j) /= sum;
          const E weight = result.weights(b, h, i, j) * static_cast<E>(keep(b, h, i, j));
          for (Index d = 0; d < v.extent(3); ++d) result.out(b, h, i, d) += weight * static_cast<E>(v(b, g, j, d));
        }
        result.maximum(b, h, i) = maximum;
        result.sum(b, h, i) = sum;
      }
    }
  }
  return result;
}

}  // namespace heed_test
