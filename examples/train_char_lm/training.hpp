// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <heed/core/context.hpp>
#include <heed/io/safetensors.hpp>
#include <heed/train/monitor.hpp>
#include <heed/train/optimizer.hpp>

#include "../common/loss_curve.hpp"
#include "char_lm.hpp"
#include "corpus.hpp"

namespace train_char_lm {

// All that decides the numbers of a training, besides the text.
struct Settings {
  int embed_dim = 128, num_heads = 4, num_layers = 3;
  int length = 128;  // L, characters the model sees
  int batch = 16;    // B, windows in a step
  int steps = 500, warmup = 50;
  double learning_rate = 3e-3;  // the largest; it falls to a hundredth of it
  double weight_decay = 0.1;
  double clip = 1;  // the most that the norm of the gradients may be
  std::uint64_t seed = 1;
};

// A model of a text in the making. Saved and loaded, it goes on with the same numbers as if it had not stopped.
class Training {
 public:
  // From the start. The corpus, cut for settings.length, and the context must outlive it.
  Training(const Settings& settings, const Corpus& corpus, heed::Context& context);
  // From what save() wrote. Throws std::runtime_error when the file is of another text, heed::FormatError when it is
  // no file of a training, or damaged.
  Training(const heed::SafeTensors& file, const Corpus& corpus, heed::Context& context);

  static Settings settings_of(const heed::SafeTensors& file);

  const Settings& settings() const { return settings_; }
  const CharLm& model() const { return model_; }
  heed::Index steps() const { return optimizer_.steps(); }
  bool is_done() const { return steps() >= settings_.steps; }
  heed::TrainingTimer& timer() { return timer_; }

  // One step; returns the loss of its batch.
  double step();
  // The mean loss per character, in nats, over `windows` windows of the held-out text; it becomes a point of the curve.
  double measure_held_out(heed::Index windows);

  // The losses of all steps in small groups, and those of the held-out text, by the number of steps made.
  std::vector<examples::Curve> curves() const;

  void save(const std::string& file) const;

 private:
  Settings settings_;
  const Corpus* corpus_;
  heed::Context* context_;
  CharLm model_;
  heed::AdamW<float> optimizer_;
  heed::Schedule schedule_;
  CharLm::Cache cache_;
  Batch batch_;
  heed::Tensor<float, 3> logits_;
  heed::TrainingTimer timer_;
  std::vector<double> losses_;
  std::vector<examples::Curve::Point> held_out_;
};

}  // namespace train_char_lm
