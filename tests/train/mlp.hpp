// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// A small model of layers without attention, for tests of training.

#include <string>
#include <string_view>
#include <vector>

#include <heed/core/buffer.hpp>
#include <heed/core/context.hpp>
#include <heed/core/tensor.hpp>
#include <heed/nn/activation.hpp>
#include <heed/nn/dropout.hpp>
#include <heed/nn/linear.hpp>
#include <heed/train/loss.hpp>

#include "common/golden.hpp"

namespace heed_test {

/// logits = linear2(dropout(gelu(linear1(x)))).
template <class T>
struct Mlp {
  explicit Mlp(double dropped = 0)
      : linear1({.in_features = 8, .out_features = 12}),
        linear2({.in_features = 12, .out_features = 5}),
        dropout({.probability = dropped}) {}

  struct Cache {
    typename heed::Linear<T>::Cache linear1, linear2;
    heed::GELU::Cache<T> gelu;
    typename heed::Dropout<T>::Cache dropout;
    heed::Buffer<T> hidden, activated, gradient;
  };

  template <class F>
  void visit(std::string_view, F&& f) {
    linear1.visit("linear1", f);
    linear2.visit("linear2", f);
  }
  template <class F>
  void visit(std::string_view, F&& f) const {
    linear1.visit("linear1", f);
    linear2.visit("linear2", f);
  }
  void initialize(heed::Random& random) {
    linear1.initialize(random, "linear1");
    linear2.initialize(random, "linear2");
  }

  void forward(heed::TensorView<const T, 3> x, heed::TensorView<T, 3> logits, Cache& cache,
               heed::Context& context) const {
    const heed::Extents<3> extents{x.extent(0), x.extent(1), 12};
    const auto hidden = cache.hidden.template view<3>(extents), activated = cache.activated.template view<3>(extents);
    {
      const heed::Context::Scope scope(context, "linear1");
      linear1.forward(x, hidden, cache.linear1, context);
    }
    {
      const heed::Context::Scope scope(context, "gelu");
      gelu.forward(hidden, activated, cache.gelu, context);
    }
    {
      const heed::Context::Scope scope(context, "dropout");
      dropout.forward(activated, activated, cache.dropout, context);
    }
    const heed::Context::Scope scope(context, "linear2");
    linear2.forward(activated, logits, cache.linear2, context);
  }
  void backward(heed::TensorView<const T, 3> dlogits, Cache& cache, heed::Context& context) {
    const auto d = cache.gradient.template view<3>({dlogits.extent(0), dlogits.extent(1), 12});
    linear2.backward(dlogits, d, cache.linear2, context);
    dropout.backward(d, d, cache.dropout, context);
    gelu.backward(d, d, cache.gelu, context);
    linear1.backward(d, heed::kNotWanted, cache.linear1, context);
  }

  heed::Linear<T> linear1, linear2;
  heed::GELU gelu;
  heed::Dropout<T> dropout;
};

/// Batches of an mlp_training golden: x (6, 8) and targets (6) for each of ten steps.
struct MlpBatches {
  explicit MlpBatches(const Golden& golden)
      : x(golden.tensor<double, 3>("in.x")), targets(golden.file().read_integers<int, 2>("in.targets")) {}
  heed::TensorView<const double, 3> input(heed::Index step) const { return x.view()[step].unsqueeze(); }
  heed::TensorView<const int, 2> target(heed::Index step) const { return targets.view()[step].unsqueeze(); }

  heed::Tensor<double, 3> x;
  heed::Tensor<int, 2> targets;
};

/// Forward, loss and backward; adds to the gradients.
template <class T>
heed::Loss learn(Mlp<T>& model, const heed::TensorView<const T, 3>& x, const heed::TensorView<const int, 2>& targets,
                 typename Mlp<T>::Cache& cache, const heed::CrossEntropyOptions& options, heed::Context& context) {
  const heed::Workspace::Frame frame(context.workspace());
  const auto logits = context.workspace().template tensor<T, 3>({x.extent(0), x.extent(1), 5});
  model.forward(x, logits, cache, context);
  const heed::Loss loss = heed::cross_entropy(logits, targets, logits, options, context);
  model.backward(logits, cache, context);
  return loss;
}

}  // namespace heed_test
