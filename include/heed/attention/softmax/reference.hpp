// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The naive path: one row of scores at a time, for any scalar, mask and modifier. It is the specification that every
/// fast path is tested against, so it is written to be read.

#include <heed/attention/common/call.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// The softmax of one row, in the compute type A.
template <class A>
struct RowSoftmax {
  A maximum, sum;
};

/// weights[k] = exp(score(q, k) - maximum) for visible keys, exactly 0 for hidden ones; visible[k] tells them apart.
///   score = modifier(scale · <q, k>), maximum over the visible scores and the head's sink, sum of the weights and
///   exp(sink - maximum). A score of -inf hides its key.
template <class Call, class A>
RowSoftmax<A> reference_row(const Call& call, int b, int h, int q, A* weights, bool* visible) {
  using std::exp;
  const int g = call.key_head(h);
  const A none = -std::numeric_limits<A>::infinity();

  A maximum = none;
  for (int k = 0; k < call.shape.Lk; ++k) {
    visible[k] = call.mask.visible(b, h, q, k);
    if (!visible[k]) continue;
    A dot(0);
    for (int d = 0; d < call.shape.Dk; ++d)
      dot += static_cast<A>(call.q(b, h, q, d)) * static_cast<A>(call.k(b, g, k, d));
    ScoreIndex<A> at;
    at.b = b, at.h = h, at.q = q, at.k = k;
    at.query = static_cast<A>(q), at.key = static_cast<A>(k);
    weights[k] = call.modifier(dot * call.scale, at);
    visible[k] = !(weights[k] == none);
    if (visible[k] && !(weights[k] <= maximum)) maximum = weights[k];
  }
  A sum(0);
  if (!call.sinks.empty()) {
    const A sink = static_cast<A>(call.sinks[static_cast<std::size_t>(h)]);
    if (!(sink <= maximum)) maximum = sink;
    if (!(sink == none)) sum = exp(sink - maximum);
  }
  for (int k = 0; k < call.shape.Lk; ++k) {
    weights[k] = visible[k] ? exp(weights[k] - maximum) : A(0);
    sum += weights[k];
  }
  return {maximum, sum};
}

/// Bytes of workspace that reference_attention takes.
template <class A>
std::size_t reference_workspace(const AttentionShape& s) {
  return Workspace::bytes_of<A>(s.Lk) + Workspace::bytes_of<bool>(s.Lk) + Workspace::bytes_of<A>(s.Dv);
}

/// out[b, h, q] = sum over visible k of dropout(weight[k] / sum) · v[b, g, k]; 0 where nothing is visible.
template <class T, class S>
void reference_attention(const AttentionCall<T, S>& call, Workspace& workspace) {
  using A = accumulate_t<T>;
  const AttentionShape& s = call.shape;
  Workspace::Frame frame(workspace);
  A* weights = workspace.take<A>(s.Lk);
  bool* visible = workspace.take<bool>(s.Lk);
  A* row = workspace.take<A>(s.Dv);
  const A keep_scale = call.keep_scale();

  for (int b = 0; b < s.B; ++b) {
    for (int h = 0; h < s.H; ++h) {
      for (int q = 0; q < s.Lq; ++q) {
        const RowSoftmax<A> softmax = reference_row(call, b, h, q, weights, visible);
        if (call.wants_statistics()) {
          call.row_max(b, h, q) = softmax.maximum;
          call.row_sum(b, h, q) = softmax.sum;
        }
        const std::uint32_t query_word = call.dropped.query_word(b, h, q);
        for (int d = 0; d < s.Dv; ++d) row[d] = A(0);
        for (int k = 0; k < s.Lk; ++k) {
          if (!visible[k]) continue;
          A weight = weights[k] / softmax.sum;
          if (call.dropout > 0) {
            weight *= call.dropped.keeps(query_word, DropoutPattern::key_word(k)) ? keep_scale : A(0);
          }
          for (int d = 0; d < s.Dv; ++d) row[d] += weight * static_cast<A>(call.v(b, call.key_head(h), k, d));
        }
        for (int d = 0; d < s.Dv; ++d) call.out(b, h, q, d) = stored_as<T>(row[d]);
      }
    }
  }
}

/// weights (B, H, Lq, Lk) = softmax of the visible scores, before dropout; a hidden weight is exactly 0.
template <class T, class S>
void reference_weights(const AttentionCall<T, S>& call, TensorView<T, 4> weights, Workspace& workspace) {
  using A = accumulate_t<T>;
  const AttentionShape& s = call.shape;
  Workspace::Frame frame(workspace);
  A* row = workspace.take<A>(s.Lk);
  bool* visible = workspace.take<bool>(s.Lk);
  for (int b = 0; b < s.B; ++b) {
    for (int h = 0; h < s.H; ++h) {
      for (int q = 0; q < s.Lq; ++q) {
        const RowSoftmax<A> softmax = reference_row(call, b, h, q, row, visible);
        for (int k = 0; k < s.Lk; ++k) weights(b, h, q, k) = visible[k] ? stored_as<T>(row[k] / softmax.sum) : T(0);
      }
    }
  }
}

/// The gradients of reference_attention, with W the weights, P = dropout(W) and o = P·V:
///   dv[k] = sum over q of P[q, k] · do[q]
///   ds'[q, k] = W[q, k] · (dropout(<do[q], v[k]>) - sum over k of W[q, k] · dropout(<do[q], v[k]>))
///   ds = ds' through the modifier, dq[q] = scale · sum over k of ds · k[k], dk[k] = scale · sum over q of ds · q[q]
/// and of a sink, which has no value: - its weight · the same sum. Only visible pairs take part.
template <class T>
void reference_backward(const AttentionBackwardCall<T>& call, Workspace& workspace) {
  using A = accumulate_t<T>;
  using std::exp;
  const AttentionGradients<T>& to = call.gradients;
  const AttentionShape& s = call.shape;
  Workspace::Frame frame(workspace);
  A* weights = workspace.take<A>(s.Lk);
  A* dweights = workspace.take<A>(s.Lk);
  bool* visible = workspace.take<bool>(s.Lk);
  A* dq = workspace.take<A>(s.Dk);
  A* dk = workspace.take<A>(Index{s.Lk} * s.Dk);
  A* dv = workspace.take<A>(Index{s.Lk} * s.Dv);
  const A keep_scale = call.keep_scale();
  for (double& d : to.dsinks) d = 0;

  for (int b = 0; b < s.B; ++b) {
    for (int g = 0; g < s.G; ++g) {
      std::fill_n(dk, Index{s.Lk} * s.Dk, A(0));
      std::fill_n(dv, Index{s.Lk} * s.Dv, A(0));
      for (int h = g * (s.H / s.G); h < (g + 1) * (s.H / s.G); ++h) {
        for (int q = 0; q < s.Lq; ++q) {
          const RowSoftmax<A> softmax = reference_row(call, b, h, q, weights, visible);
          const std::uint32_t query_word = call.dropped.query_word(b, h, q);
          const auto keep = [&](int k) {
            if (call.dropout == 0) return A(1);
            return call.dropped.keeps(query_word, DropoutPattern::key_word(k)) ? keep_scale : A(0);
          };
          A mean(0);
          for (int k = 0; k < s.Lk; ++k) {
            if (!visible[k]) continue;
            weights[k] = weights[k] / softmax.sum;
            A dot(0);
            for (int d = 0; d < s.Dv; ++d) {
              dot += static_cast<A>(call.dout(b, h, q, d)) * static_cast<A>(call.v(b, g, k, d));
              dv[Index{k} * s.Dv + d] += weights[k] * keep(k) * static_cast<A>(call.dout(b, h, q, d));
            }
            dweights[k] = dot * keep(k);
            mean += weights[k] * dweights[k];
          }
          if (!to.dsinks.empty()) {
            const auto head = static_cast<std::size_t>(h);
            const A sink = static_cast<A>(call.sinks[head]);
            if (softmax.sum != A(0)) {
              to.dsinks[head] -= static_cast<double>(exp(sink - softmax.maximum) / softmax.sum * mean);
            }
          }
          for (int d = 0; d < s.Dk; ++d) dq[d] = A(0);
          for (int k = 0; k < s.Lk; ++k) {
            if (!visible[k]) continue;
            A dot(0);
            for (int d = 0; d < s.Dk; ++d)
              dot += static_cast<A>(call.q(b, h, q, d)) * static_cast<A>(call.k(b, g, k, d));
            ScoreIndex<A> at;
            at.b = b, at.h = h, at.q = q, at.k = k;
            at.query = static_cast<A>(q), at.key = static_cast<A>(k);
            const A ds = call.modifier.backward(dot * call.scale, weights[k] * (dweights[k] - mean), at) * call.scale;
            for (int d = 0; d < s.Dk; ++d) {
              dq[d] += ds * static_cast<A>(call.k(b, g, k, d));
              dk[Index{k} * s.Dk + d] += ds * static_cast<A>(call.q(b, h, q, d));
            }
          }
          if (to.dq.data()) {
            for (int d = 0; d < s.Dk; ++d) to.dq(b, h, q, d) = stored_as<T>(dq[d]);
          }
        }
      }
      for (int k = 0; k < s.Lk; ++k) {
        if (to.dk.data()) {
          for (int d = 0; d < s.Dk; ++d) to.dk(b, g, k, d) = stored_as<T>(dk[Index{k} * s.Dk + d]);
        }
        if (to.dv.data()) {
          for (int d = 0; d < s.Dv; ++d) to.dv(b, g, k, d) = stored_as<T>(dv[Index{k} * s.Dv + d]);
        }
      }
    }
  }
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
