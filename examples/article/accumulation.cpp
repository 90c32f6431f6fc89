// SPDX-License-Identifier: MIT
// Two ways to train in less memory: small batches whose gradients add up, and forwards that are computed twice.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <heed/core/random.hpp>
#include <heed/mask/basic.hpp>
#include <heed/nn/transformer.hpp>

#include "common/claim.hpp"
#include "common/models.hpp"
#include "common/texts.hpp"

namespace {

template <class Run>
double seconds_of(Run&& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Windows first, ..., first + size - 1 of a batch.
article::Batch part_of(const article::Batch& batch, heed::Index first, heed::Index size) {
  const heed::Index L = batch.ids.extent(1);
  article::Batch part{heed::Tensor<int, 2>(size, L), {}, heed::Tensor<int, 2>(size, L)};
  std::copy_n(&batch.ids(first, 0), size * L, part.ids.data());
  std::copy_n(&batch.targets(first, 0), size * L, part.targets.data());
  return part;
}

std::vector<float> gradients(const article::Model& model) {
  std::vector<float> all;
  for (const auto& entry : model.parameters()) {
    const auto grad = entry.parameter->grad();
    all.insert(all.end(), grad.data(), grad.data() + grad.extent(0));
  }
  return all;
}

struct Accumulated {
  double difference;  // of the gradients, at most, against the largest
  double throughput;  // one window at a time against all at once
};

Accumulated measure_accumulation(article::Report& report) {
  constexpr int windows = 32, length = 64;
  const article::Characters text(article::pride_and_prejudice(), length);
  const article::Batch batch = text.sample(1, 0, windows);
  report.text(
      "A character model of two blocks, 32 windows of 64 characters: at once, or in parts that add to the same "
      "gradients, each part divided by the number of targets of the whole batch.");
  article::Table& table =
      report.table("gradients of 32 windows", {"windows at once", "difference / largest gradient", "windows a second"});
  examples::Curve curve{"windows a second", {}};
  std::vector<float> whole;
  double largest = 0, worst = 0;
  for (const int size : {32, 16, 8, 4, 2, 1}) {
    article::Model model({.vocab_size = text.vocabulary(),
                          .classes = text.vocabulary(),
                          .length = length,
                          .readout = article::Readout::EachToken,
                          .causal = true});
    heed::Context context;
    std::vector<article::Batch> parts;
    for (int first = 0; first < windows; first += size) parts.push_back(part_of(batch, first, size));
    const auto step = [&] {
      model.parameters().zero_grad();
      for (const article::Batch& part : parts) model.loss_and_gradients(part, context, heed::Index{windows * length});
    };
    double seconds = seconds_of(step);  // warms up
    for (int i = 0; i < report.pick(5, 2); ++i) seconds = std::min(seconds, seconds_of(step));
    const std::vector<float> found = gradients(model);
    if (whole.empty()) {
      whole = found;
      for (const float g : whole) largest = std::max<double>(largest, std::abs(g));
    }
    double difference = 0;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      difference = std::max<double>(difference, std::abs(found[i] - whole[i]));
    }
    worst = std::max(worst, difference / largest);
    table.row({size, difference / largest, windows / seconds});
    curve.points.push_back({static_cast<double>(size), windows / seconds});
  }
  std::reverse(curve.points.begin(), curve.points.end());
  report.curves("Throughput of one thread", {curve}, "windows at once", "windows a second",
                {.x = examples::Scale::Log2});
  report.expect("largest difference / largest gradient", worst, article::at_most(1e-4));
  return {worst, curve.points.front().y / curve.points.back().y};
}

struct Cost {
  double bytes = 0, seconds = 1e9;
};

// Training steps of a stack of causal blocks on (B, L, E): what they keep for the backward, and their time; without
// checkpointing and with it, in turns, so that what else the machine does meets both.
std::array<Cost, 2> step_costs(int layers, int repeats) {
  constexpr int B = 4, L = 256, E = 128;
  heed::Encoder<float> encoder(
      {.num_layers = layers, .layer = {.embed_dim = E, .num_heads = 4, .norm_placement = heed::NormPlacement::Pre}});
  heed::Random random(1);
  encoder.initialize(random);
  heed::Tensor<float, 3> x(B, L, E), y(B, L, E), dy(B, L, E), dx(B, L, E);
  const heed::Philox random(1, 1);
  for (heed::Index i = 0; i < x.size(); ++i) {
    x.data()[i] = static_cast<float>(random.normal(static_cast<std::uint64_t>(i)));
    dy.data()[i] = 1;
  }
  std::array<heed::Encoder<float>::Cache, 2> caches;
  caches[1].checkpointing = true;
  std::array<heed::Context, 2> contexts;
  std::array<Cost, 2> costs;
  for (int i = 0; i <= repeats; ++i) {
    for (std::size_t way = 0; way < 2; ++way) {
      const double seconds = seconds_of([&] {
        encoder.forward(x, heed::Causal{}, y, caches[way], contexts[way]);
        encoder.backward(dy, dx, caches[way], contexts[way]);
      });
      if (i > 0) costs[way].seconds = std::min(costs[way].seconds, seconds);
      costs[way].bytes = static_cast<double>(caches[way].bytes() + contexts[way].workspace().peak());
    }
  }
  return costs;
}

void measure(article::Report& report) {
  const Accumulated accumulated = measure_accumulation(report);
  report.text(
      "Checkpointing: a stack of blocks of width 128 on 4 sequences of 256 keeps the input of each block alone, "
      "and computes a block's inside again when its gradient is due. The gradients have the same bits.");
  article::Table& table = report.table("a training step", {"blocks", "MB, all kept", "MB, checkpointing",
                                                           "ms, all kept", "ms, checkpointing", "memory", "time"});
  std::vector<examples::Curve> memory{{"all kept", {}}, {"checkpointing", {}}};
  double less = 0, longer = 0;
  for (int layers = 2; layers <= report.pick(16, 8); layers *= 2) {
    const auto [kept, again] = step_costs(layers, report.pick(5, 3));
    less = again.bytes / kept.bytes;
    longer = again.seconds / kept.seconds;
    table.row({layers, kept.bytes / 1e6, again.bytes / 1e6, 1e3 * kept.seconds, 1e3 * again.seconds, less, longer});
    memory[0].points.push_back({static_cast<double>(layers), kept.bytes / 1e6});
    memory[1].points.push_back({static_cast<double>(layers), again.bytes / 1e6});
  }
  report.curves("Memory of a training step", memory, "blocks", "megabytes");
  report.expect("memory with checkpointing / without", less, article::at_most(0.5));
  report.expect("time with checkpointing / without", longer, article::between(0.8, 2.5));
  report.verdict(
      accumulated.difference < 1e-4 && less < 0.5 && longer < 2,
      article::format("accumulated gradients differ by %.0e of the largest, and one window at a time has %.2f of the "
                      "throughput of 32; checkpointing %.0f blocks takes %.2f of the memory and %.2f of the time",
                      {accumulated.difference, accumulated.throughput, memory[0].points.back().x, less, longer}));
}

}  // namespace

int main(int argc, char** argv) {
  return article::run(argc, argv,
                      {.name = "accumulation",
                       .claim = "Accumulated gradients equal those of the large batch; checkpointing pays memory with "
                                "time."},
                      measure);
}
