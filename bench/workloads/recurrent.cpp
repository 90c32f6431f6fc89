// SPDX-License-Identifier: MIT
// An LSTM: R1 forward with packed weights, R2 forward and backward, as a training step computes them.

#include <memory>
#include <string>
#include <vector>

#include <heed/nn/recurrent.hpp>

#include "machine.hpp"
#include "workload.hpp"

namespace heed_bench {

namespace {

using heed::Index;

constexpr Index kBatch = 16, kLength = 256, kIn = 128, kHidden = 256;

class Lstm final : public Workload {
 public:
  explicit Lstm(bool trains)
      : layer_({.input_size = kIn, .hidden_size = kHidden}),
        x_(normal_tensor<float, 3>({kBatch, kLength, kIn}, 0)),
        dy_(normal_tensor<float, 3>({kBatch, kLength, kHidden}, 1)),
        y_(dy_.extents()),
        dx_(x_.extents()),
        trains_(trains) {
    heed::Random random(42);
    layer_.initialize(random);
    if (!trains_) layer_.pack();
  }

  void run(heed::Context& context) override {
    if (!trains_) {
      layer_.forward(x_, y_.view(), context);
      return touch(y_.data());
    }
    layer_.forward(x_, y_.view(), cache_, context);
    layer_.backward(dy_, dx_.view(), cache_, context);
    touch(dx_.data());
  }

  /// `out` holds y or, of a training step, dx.
  void save(const std::string& path) const override {
    save_with_parameters(path, {{"x", x_}, {"dy", dy_}, {"out", trains_ ? dx_ : y_}}, layer_,
                         {{"kind", trains_ ? "lstm_step" : "lstm"}});
  }

 private:
  heed::LSTM<float> layer_;
  heed::Tensor<float, 3> x_, dy_, y_, dx_;
  heed::LSTM<float>::Cache cache_;
  bool trains_;
};

NamedWorkload lstm(const std::string& name, bool trains) {
  NamedWorkload w;
  w.name = name;
  w.shape = "LSTM B16 L256 E128 hid256";
  if (trains) w.shape += " tr";
  // Each product has two gradients, of what was multiplied.
  w.flops = (trains ? 3 : 1) * 2. * static_cast<double>(kBatch * kLength * 4 * kHidden * (kIn + kHidden));
  w.make = [=] { return std::make_unique<Lstm>(trains); };
  return w;
}

}  // namespace

std::vector<NamedWorkload> recurrent_workloads() { return {lstm("R1", false), lstm("R2", true)}; }

}  // namespace heed_bench
