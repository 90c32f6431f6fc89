// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// What the blocks of transformers share: where they normalize, and their parts.
/// Where the norms stand: Xiong et al.: "On layer normalization in the transformer architecture", 2020.

#include <string_view>

#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/tensor.hpp>
#include <heed/core/workspace.hpp>
#include <heed/nn/dropout.hpp>
#include <heed/nn/feed_forward.hpp>
#include <heed/nn/head_projection.hpp>
#include <heed/nn/init.hpp>
#include <heed/nn/norm.hpp>

HEED_NAMESPACE_BEGIN

/// Where a block normalizes.
enum class NormPlacement {
  Pre,  ///< x + f(norm(x)); a stack of such blocks wants a final norm
  Post  ///< norm(x + f(x)), as in the paper and in BERT
};

namespace detail {

// The parts of a block, from the options of an encoder or a decoder layer.

template <class Options>
MultiHeadAttentionOptions self_attention_options(const Options& o) {
  return {.embed_dim = o.embed_dim,
          .num_heads = o.num_heads,
          .num_kv_heads = o.num_kv_heads,
          .bias = o.bias,
          .dropout = o.dropout,
          .rotary = o.rotary};
}
template <class Options>
FeedForwardOptions feed_forward_options(const Options& o) {
  return {.embed_dim = o.embed_dim,
          .ffn_dim = o.ffn_dim,
          .activation = o.activation,
          .gated = o.gated,
          .bias = o.bias,
          .dropout = o.dropout};
}
template <class Options>
LayerNormOptions norm_options(const Options& o) {
  return {.embed_dim = o.embed_dim, .eps = o.eps, .bias = o.bias};
}

template <class T>
void start_norm(LayerNorm<T>& norm) {
  init::constant(norm.weight(), 1);
  if (norm.bias().exists()) init::zeros(norm.bias());
}

template <class T>
void run_norm(const LayerNorm<T>& norm, std::string_view name, const TensorView<const T, 3>& x,
              const TensorView<T, 3>& y, Context& context) {
  const Context::Scope scope(context, name);
  norm.forward(x, y, context);
}
template <class T>
void run_norm(const LayerNorm<T>& norm, std::string_view name, const TensorView<const T, 3>& x,
              const TensorView<T, 3>& y, typename LayerNorm<T>::Cache& cache, Context& context) {
  const Context::Scope scope(context, name);
  norm.forward(x, y, cache, context);
}

/// y = residual + dropout(f(x)), where branch(r, y) computes y = r + f(x), in one product when nothing is dropped.
template <class T, class Branch>
void add_branch(const Dropout<T>& dropout, const TensorView<const T, 3>& residual, const TensorView<T, 3>& y,
                typename Dropout<T>::Cache& cache, Context& context, Branch&& branch) {
  cache = {y.extents(), {}};
  if (!context.training || dropout.options().probability == 0) return branch(residual, y);
  branch(TensorView<const T, 3>(), y);
  dropout.forward_residual(y, residual, y, cache, context);
}
template <class T, class Branch>
void add_branch(const Dropout<T>& dropout, const TensorView<const T, 3>& residual, const TensorView<T, 3>& y,
                Context& context, Branch&& branch) {
  typename Dropout<T>::Cache cache;
  add_branch<T>(dropout, residual, y, cache, context, branch);
}

/// y = residual + dropout(feed_forward(x)).
template <class T>
void add_feed_forward(const FeedForward<T>& feed_forward, const Dropout<T>& dropout, const TensorView<const T, 3>& x,
                      const TensorView<const T, 3>& residual, const TensorView<T, 3>& y, Context& context) {
  add_branch<T>(dropout, residual, y, context,
                [&](const auto& r, const auto& sum) { feed_forward.forward_residual(x, r, sum, context); });
}
template <class T>
void add_feed_forward(const FeedForward<T>& feed_forward, const Dropout<T>& dropout, const TensorView<const T, 3>& x,
                      const TensorView<const T, 3>& residual, const TensorView<T, 3>& y,
                      typename FeedForward<T>::Cache& cache, typename Dropout<T>::Cache& dropped, Context& context) {
  add_branch<T>(dropout, residual, y, dropped, context,
                [&](const auto& r, const auto& sum) { feed_forward.forward_residual(x, r, sum, cache, context); });
}

/// The gradient of the f(x) of such a branch, from that of y: dy itself, or in the workspace where elements were
/// dropped.
template <class T>
TensorView<const T, 3> branch_gradient(const Dropout<T>& dropout, const TensorView<const T, 3>& dy,
                                       const typename Dropout<T>::Cache& cache, Context& context) {
  if (!cache.pattern) return dy;
  const TensorView<T, 3> kept = context.workspace().template tensor<T, 3>(dy.extents());
  dropout.backward(dy, kept, cache, context);
  return kept;
}

}  // namespace detail

HEED_NAMESPACE_END
