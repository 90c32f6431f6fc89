// SPDX-License-Identifier: MIT
// T1: a step of training the model of examples/train_char_lm: forward, cross entropy, backward, clipping, AdamW.

#include "train_char_lm/char_lm.hpp"

#include <memory>
#include <string>
#include <vector>

#include <heed/train/loss.hpp>
#include <heed/train/optimizer.hpp>
#include <heed/train/parameter_list.hpp>

#include "machine.hpp"
#include "workload.hpp"

namespace heed_bench {

namespace {

using heed::Index;

constexpr train_char_lm::CharLmOptions kModel{.alphabet = 63, .embed_dim = 128, .num_heads = 4, .num_layers = 3};
constexpr Index kBatch = 16, kLength = 128;
// AdamW's first step is as long for a gradient that is mostly rounding as for any other: a low rate lets peers agree.
constexpr heed::AdamWOptions kOptimizer{.learning_rate = 1e-4, .weight_decay = 0.01};
constexpr double kClip = 1;

heed::Tensor<int, 2> random_ids(std::uint64_t stream) {
  heed::Tensor<int, 2> ids(kBatch, kLength);
  const heed::Philox random(42, stream);
  for (Index i = 0; i < ids.size(); ++i) {
    ids.data()[i] =
        static_cast<int>(static_cast<double>(kModel.alphabet) * random.uniform(static_cast<std::uint64_t>(i)));
  }
  return ids;
}

train_char_lm::CharLm initial_model() {
  train_char_lm::CharLm model(kModel);
  model.initialize(42);
  return model;
}

class CharLmStep final : public Workload {
 public:
  void run(heed::Context& context) override {
    context.training = true;
    model_.forward(ids_, logits_.view(), cache_, context);
    heed::cross_entropy(logits_, targets_, logits_, {}, context);  // leaves the gradient there
    optimizer_.zero_grad();
    model_.backward(logits_, cache_, context);
    heed::clip_grad_norm(optimizer_.parameters(), kClip, context);
    optimizer_.step(context);
    touch(logits_.data());
  }

  /// After one step; `out` holds the logits that the model then gives, on which all of the step has its influence.
  void save(const std::string& path) const override {
    heed::Context context;
    train_char_lm::CharLm::Cache cache;
    heed::Tensor<float, 3> logits(logits_.extents());
    model_.forward(ids_, logits.view(), cache, context);
    save_with_parameters(path, {{"ids", ids_}, {"targets", targets_}, {"out", logits}}, initial_model(),
                         {{"kind", "char_lm_step"}, {"heads", std::to_string(kModel.num_heads)}});
  }

 private:
  train_char_lm::CharLm model_ = initial_model();
  heed::AdamW<float> optimizer_{model_, kOptimizer};
  train_char_lm::CharLm::Cache cache_;
  heed::Tensor<int, 2> ids_ = random_ids(0), targets_ = random_ids(1);
  heed::Tensor<float, 3> logits_{kBatch, kLength, kModel.alphabet};
};

}  // namespace

std::vector<NamedWorkload> char_lm_workloads() {
  constexpr double E = static_cast<double>(kModel.embed_dim), F = 4 * E, V = static_cast<double>(kModel.alphabet);
  constexpr double products = static_cast<double>(kModel.num_layers) * E * (8 * E + 4 * F) + 2 * E * V;
  constexpr double pairs = static_cast<double>(kLength + 1) / 2;  // of a position, on average
  NamedWorkload w;
  w.name = "T1";
  w.shape = "B16 L128 E128 H4 F512 x3";
  // Each product of a layer has two gradients; the backward of attention counts as two and a half forwards.
  w.flops = static_cast<double>(kBatch * kLength) *
            (3 * products + 3.5 * static_cast<double>(kModel.num_layers) * 4 * E * pairs);
  w.make = [] { return std::make_unique<CharLmStep>(); };
  return {w};
}

}  // namespace heed_bench
