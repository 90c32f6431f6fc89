// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Plain formulas in double, compiled without the flags that are tried, and tests of bits that no flag touches.

#include <cstdint>
#include <cstring>
#include <vector>

namespace plain {

/// softmax(q·kᵀ/√D)·v for one head: q (Lq, D), k and v (Lk, D), row-major; query i sees keys 0 ... Lk - Lq + i when
/// causal.
std::vector<double> attention(const std::vector<double>& q, const std::vector<double>& k, const std::vector<double>& v,
                              int D, bool causal);
/// The gradients of <dout, attention(q, k, v)>: dq, dk and dv one after the other.
std::vector<double> attention_gradients(const std::vector<double>& q, const std::vector<double>& k,
                                        const std::vector<double>& v, const std::vector<double>& dout, int D,
                                        bool causal);
/// (x - mean)/√(variance + eps) of each row of x (rows, width).
std::vector<double> layer_norm(const std::vector<double>& x, int width, double eps);
/// x·wᵀ: x (m, k), w (n, k).
std::vector<double> product(const std::vector<double>& x, const std::vector<double>& w, int k);
double gelu(double x);
double tanh(double x);
double exp(double x);
/// The largest |a - b|; 1e300 if any difference is no number.
double distance(const std::vector<double>& a, const std::vector<double>& b);
/// Reproducible numbers between -1 and 1.
std::vector<double> numbers(int n, unsigned seed);

bool is_nan(const double& x);

}  // namespace plain
