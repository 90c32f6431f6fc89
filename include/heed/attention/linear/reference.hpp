// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Linear attention the naive way, one position after the other, for any scalar: the specification that the chunked
/// path is tested against. O(L·Dk·Dv) time, O(Dk·Dv) memory.

#include <heed/attention/linear/call.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// The sums over keys that a head has seen: values (Dk, Dv) = Σ phi(k) vᵀ and keys (Dk) = Σ phi(k).
template <class A>
struct LinearSums {
  A* values;
  A* keys;

  LinearSums(int Dk, int Dv, Workspace& workspace)
      : values(workspace.take<A>(Index{Dk} * Dv)), keys(workspace.take<A>(Dk)) {}

  void clear(int Dk, int Dv) {
    std::fill_n(values, Index{Dk} * Dv, A(0));
    std::fill_n(keys, Dk, A(0));
  }
  template <class T, class S>
  void add_key(const LinearCall<T, S>& call, int b, int g, int k) {
    const int Dk = call.shape.Dk, Dv = call.shape.Dv;
    for (int i = 0; i < Dk; ++i) {
      const A phi = feature(call.options.feature_map, static_cast<A>(call.k(b, g, k, i)));
      keys[i] += phi;
      for (int j = 0; j < Dv; ++j) values[i * Dv + j] += phi * static_cast<A>(call.v(b, g, k, j));
    }
  }
};

/// out[q] = phi(q)ᵀ (Σ phi(k) vᵀ) / (phi(q) · Σ phi(k)) over the visible keys; 0 where the denominator is 0.
template <class T, class S>
void reference_linear_attention(const LinearCall<T, S>& call, Workspace& workspace) {
  using A = accumulate_t<T>;
  const AttentionShape& s = call.shape;
  Workspace::Frame frame(workspace);
  LinearSums<A> sums(s.Dk, s.Dv, workspace);
  A* row = workspace.take<A>(s.Dv);

  for (int b = 0; b < s.B; ++b) {
    const KeyRange real = real_keys(call.options.padding, b, s.Lk);
    for (int h = 0; h < s.H; ++h) {
      const int group = s.H / s.G, g = h / group;
      sums.clear(s.Dk, s.Dv);
      if (call.values.data()) {
        for (int i = 0; i < s.Dk; ++i) {
          sums.keys[i] = call.keys(b, g, i);
          for (int j = 0; j < s.Dv; ++j) sums.values[i * s.Dv + j] = call.values(b, g, i, j);
        }
      }
      if (!call.options.causal) {
        for (int k = 0; k < s.Lk; ++k) {
          if (real.contains(k)) sums.add_key(call, b, g, k);
        }
      }
      for (int q = 0; q < s.Lq; ++q) {
        if (call.options.causal && real.contains(q)) sums.add_key(call, b, g, q);
        A denominator(0);
        std::fill_n(row, s.Dv, A(0));
        if (is_real_query(call.options.padding, b, q)) {
          for (int i = 0; i < s.Dk; ++i) {
            const A phi = feature(call.options.feature_map, static_cast<A>(call.q(b, h, q, i)));
            denominator += phi * sums.keys[i];
            for (int j = 0; j < s.Dv; ++j) row[j] += phi * sums.values[i * s.Dv + j];
          }
        }
        for (int j = 0; j < s.Dv; ++j) {
          call.out(b, h, q, j) = denominator == A(0) ? T(0) : stored_as<T>(row[j] / denominator);
        }
        if (call.denominators.data()) call.denominators(b, h, q) = denominator;
      }
      // Every head of the group begins with the state as it was.
      if (call.values.data() && h % group == group - 1) {
        for (int i = 0; i < s.Dk; ++i) {
          call.keys(b, g, i) = sums.keys[i];
          for (int j = 0; j < s.Dv; ++j) call.values(b, g, i, j) = sums.values[i * s.Dv + j];
        }
      }
    }
  }
}

/// The gradients. With w = phi(q) / denominator and delta = <dout, out>, sums over the pairs that see each other:
///   dphi(q) = (Σ phi(k) (<dout, v> - delta)) / denominator
///   dphi(k) = Σ w (<dout, v> - delta),  dv = Σ <w, phi(k)> dout
/// each from running sums: over keys forwards, over queries (of w doutᵀ and w·delta) backwards.
template <class T>
void reference_linear_backward(const LinearBackwardCall<T>& backward, Workspace& workspace) {
  using A = accumulate_t<T>;
  const LinearCall<T, T>& call = backward.forward;
  const AttentionGradients<T>& to = backward.gradients;
  const AttentionShape& s = call.shape;
  const FeatureMap map = call.options.feature_map;
  Workspace::Frame frame(workspace);
  LinearSums<A> key_sums(s.Dk, s.Dv, workspace), query_sums(s.Dk, s.Dv, workspace);

  const auto delta = [&](int b, int h, int q) {
    A sum(0);
    for (int j = 0; j < s.Dv; ++j)
      sum += static_cast<A>(backward.dout(b, h, q, j)) * static_cast<A>(backward.out(b, h, q, j));
    return sum;
  };
  const auto write_query = [&](int b, int h, int q) {
    const A denominator = call.denominators(b, h, q), mean = delta(b, h, q);
    for (int i = 0; i < s.Dk; ++i) {
      if (denominator == A(0)) {
        to.dq(b, h, q, i) = T(0);
        continue;
      }
      A sum = -mean * key_sums.keys[i];
      for (int j = 0; j < s.Dv; ++j) sum += static_cast<A>(backward.dout(b, h, q, j)) * key_sums.values[i * s.Dv + j];
      const A slope = feature_slope(map, feature(map, static_cast<A>(call.q(b, h, q, i))));
      to.dq(b, h, q, i) = stored_as<T>(slope / denominator * sum);
    }
  };
  // Whether the query takes part.
  const auto add_query = [&](int b, int h, int q) {
    const A denominator = call.denominators(b, h, q);
    if (denominator == A(0)) return false;
    const A mean = delta(b, h, q);
    for (int i = 0; i < s.Dk; ++i) {
      const A weight = feature(map, static_cast<A>(call.q(b, h, q, i))) / denominator;
      query_sums.keys[i] += weight * mean;
      for (int j = 0; j < s.Dv; ++j)
        query_sums.values[i * s.Dv + j] += weight * static_cast<A>(backward.dout(b, h, q, j));
    }
    return true;
  };
  const auto write_key = [&](int b, int g, int k, bool is_seen) {
    for (int i = 0; to.dk.data() && i < s.Dk; ++i) {
      A sum = -query_sums.keys[i];
      for (int j = 0; j < s.Dv; ++j) sum += static_cast<A>(call.v(b, g, k, j)) * query_sums.values[i * s.Dv + j];
      const A slope = feature_slope(map, feature(map, static_cast<A>(call.k(b, g, k, i))));
      to.dk(b, g, k, i) = is_seen ? stored_as<T>(slope * sum) : T(0);
    }
    for (int j = 0; to.dv.data() && j < s.Dv; ++j) {
      A sum(0);
      for (int i = 0; i < s.Dk; ++i)
        sum += feature(map, static_cast<A>(call.k(b, g, k, i))) * query_sums.values[i * s.Dv + j];
      to.dv(b, g, k, j) = is_seen ? stored_as<T>(sum) : T(0);
    }
  };

  for (int b = 0; b < s.B; ++b) {
    const KeyRange real = real_keys(call.options.padding, b, s.Lk);
    for (int g = 0; g < s.G; ++g) {
      const int first_head = g * (s.H / s.G), end_head = (g + 1) * (s.H / s.G);
      if (to.dq.data()) {
        key_sums.clear(s.Dk, s.Dv);
        for (int k = 0; !call.options.causal && k < s.Lk; ++k) {
          if (real.contains(k)) key_sums.add_key(call, b, g, k);
        }
        for (int q = 0; q < s.Lq; ++q) {
          if (call.options.causal && real.contains(q)) key_sums.add_key(call, b, g, q);
          for (int h = first_head; h < end_head; ++h) write_query(b, h, q);
        }
      }
      query_sums.clear(s.Dk, s.Dv);
      bool is_seen = false;
      for (int q = 0; !call.options.causal && q < s.Lq; ++q) {
        for (int h = first_head; h < end_head; ++h) is_seen |= add_query(b, h, q);
      }
      for (int k = s.Lk; k-- > 0;) {
        for (int h = first_head; call.options.causal && h < end_head; ++h) is_seen |= add_query(b, h, k);
        write_key(b, g, k, is_seen && real.contains(k));
      }
    }
  }
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
