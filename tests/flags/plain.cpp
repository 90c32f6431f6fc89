// SPDX-License-Identifier: MIT
#include "plain.hpp"

#include <algorithm>
#include <cmath>

namespace plain {

namespace {

/// The weights of query i.
std::vector<double> weights_of(const double* q, const std::vector<double>& k, int D, int visible) {
  std::vector<double> w(static_cast<std::size_t>(visible));
  double largest = -1e300, sum = 0;
  for (int j = 0; j < visible; ++j) {
    double dot = 0;
    for (int d = 0; d < D; ++d) dot += q[d] * k[static_cast<std::size_t>(j * D + d)];
    w[static_cast<std::size_t>(j)] = dot / std::sqrt(D);
    largest = std::max(largest, dot / std::sqrt(D));
  }
  for (double& x : w) sum += x = std::exp(x - largest);
  for (double& x : w) x /= sum;
  return w;
}

}  // namespace

std::vector<double> attention(const std::vector<double>& q, const std::vector<double>& k, const std::vector<double>& v,
                              int D, bool causal) {
  const int Lq = static_cast<int>(q.size()) / D, Lk = static_cast<int>(k.size()) / D;
  std::vector<double> out(q.size());
  for (int i = 0; i < Lq; ++i) {
    const std::vector<double> w = weights_of(&q[static_cast<std::size_t>(i * D)], k, D, causal ? Lk - Lq + i + 1 : Lk);
    for (std::size_t j = 0; j < w.size(); ++j) {
      for (int d = 0; d < D; ++d) {
        out[static_cast<std::size_t>(i * D + d)] +=
            w[j] * v[j * static_cast<std::size_t>(D) + static_cast<std::size_t>(d)];
      }
    }
  }
  return out;
}

std::vector<double> attention_gradients(const std::vector<double>& q, const std::vector<double>& k,
                                        const std::vector<double>& v, const std::vector<double>& dout, int D,
                                        bool causal) {
  const int Lq = static_cast<int>(q.size()) / D, Lk = static_cast<int>(k.size()) / D;
  const double scale = 1 / std::sqrt(D);
  std::vector<double> gradients(q.size() + k.size() + v.size());
  double *const dq = gradients.data(), *const dk = dq + q.size(), *const dv = dk + k.size();
  for (int i = 0; i < Lq; ++i) {
    const std::vector<double> w = weights_of(&q[static_cast<std::size_t>(i * D)], k, D, causal ? Lk - Lq + i + 1 : Lk);
    std::vector<double> dw(w.size());
    double mean = 0;
    for (std::size_t j = 0; j < w.size(); ++j) {
      const std::size_t key = j * static_cast<std::size_t>(D);
      for (int d = 0; d < D; ++d) {
        const double g = dout[static_cast<std::size_t>(i * D + d)];
        dw[j] += g * v[key + static_cast<std::size_t>(d)];
        dv[key + static_cast<std::size_t>(d)] += w[j] * g;
      }
      mean += w[j] * dw[j];
    }
    for (std::size_t j = 0; j < w.size(); ++j) {
      const double ds = w[j] * (dw[j] - mean) * scale;
      for (int d = 0; d < D; ++d) {
        dq[i * D + d] += ds * k[j * static_cast<std::size_t>(D) + static_cast<std::size_t>(d)];
        dk[static_cast<int>(j) * D + d] += ds * q[static_cast<std::size_t>(i * D + d)];
      }
    }
  }
  return gradients;
}

std::vector<double> layer_norm(const std::vector<double>& x, int width, double eps) {
  std::vector<double> y(x.size());
  for (std::size_t row = 0; row < x.size(); row += static_cast<std::size_t>(width)) {
    double mean = 0, variance = 0;
    for (int i = 0; i < width; ++i) mean += x[row + static_cast<std::size_t>(i)] / width;
    for (int i = 0; i < width; ++i) variance += std::pow(x[row + static_cast<std::size_t>(i)] - mean, 2) / width;
    for (int i = 0; i < width; ++i) {
      y[row + static_cast<std::size_t>(i)] = (x[row + static_cast<std::size_t>(i)] - mean) / std::sqrt(variance + eps);
    }
  }
  return y;
}

std::vector<double> product(const std::vector<double>& x, const std::vector<double>& w, int k) {
  std::vector<double> y;
  for (std::size_t row = 0; row < x.size(); row += static_cast<std::size_t>(k)) {
    for (std::size_t column = 0; column < w.size(); column += static_cast<std::size_t>(k)) {
      double sum = 0;
      for (std::size_t i = 0; i < static_cast<std::size_t>(k); ++i) sum += x[row + i] * w[column + i];
      y.push_back(sum);
    }
  }
  return y;
}

double gelu(double x) { return 0.5 * x * std::erfc(-x * std::sqrt(0.5)); }
double tanh(double x) { return std::tanh(x); }
double exp(double x) { return std::exp(x); }

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return 1e300;
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (!(difference <= 1e300)) return 1e300;
    largest = std::max(largest, difference);
  }
  return largest;
}

std::vector<double> numbers(int n, unsigned seed) {
  std::vector<double> x(static_cast<std::size_t>(n));
  for (double& value : x) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<double>(seed >> 8) * 0x1p-23 - 1;
  }
  return x;
}

bool is_nan(const double& x) { return x != x; }

}  // namespace plain
