// SPDX-License-Identifier: MIT
// Attention with its gradients: a forward and a backward, as a training step computes them.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <heed/attention/attention.hpp>
#include <heed/io/safetensors.hpp>
#include <heed/mask/basic.hpp>
#include <heed/mask/modifier.hpp>

#include "machine.hpp"
#include "workload.hpp"

namespace heed_bench {

namespace {

using heed::Index;

template <heed::Mask M>
class AttentionStep final : public Workload {
 public:
  AttentionStep(const heed::Extents<4>& extents, const M& mask, std::string mask_name)
      : q_(normal_tensor<float, 4>(extents, 0)),
        k_(normal_tensor<float, 4>(extents, 1)),
        v_(normal_tensor<float, 4>(extents, 2)),
        dout_(normal_tensor<float, 4>(extents, 3)),
        out_(extents),
        gradients_(3 * extents[0], extents[1], extents[2], extents[3]),
        mask_(mask),
        mask_name_(std::move(mask_name)) {}

  void run(heed::Context& context) override {
    const heed::AttentionOptions options;
    heed::attention_into(out_, q_, k_, v_, mask_, options, cache_, context);
    const Index B = q_.extent(0);
    const auto part = [&](Index i) { return gradients_.view().slice(0, i * B, B); };
    heed::attention_backward_into(heed::AttentionGradients<float>{part(0), part(1), part(2)}, dout_, cache_, context);
    touch(gradients_.data());
  }

  /// `out` holds dq, dk and dv, behind each other along the first dimension.
  void save(const std::string& path) const override {
    const std::vector<heed::NamedTensor> tensors{{"q", q_}, {"k", k_}, {"v", v_}, {"dout", dout_}, {"out", gradients_}};
    heed::save_safetensors(path, tensors, {{"kind", "attention_step"}, {"mask", mask_name_}});
  }

 private:
  heed::Tensor<float, 4> q_, k_, v_, dout_, out_, gradients_;
  M mask_;
  std::string mask_name_;
  heed::AttentionCache<float> cache_;
};

template <heed::Mask M>
NamedWorkload step(const std::string& name, Index L, double pairs, const M& mask, const std::string& mask_name) {
  constexpr Index H = 8, D = 64;
  NamedWorkload w;
  w.name = name;
  w.shape = "H8 L" + std::to_string(L) + " D64 training" + (mask_name == "none" ? "" : " " + mask_name);
  // A backward counts as two and a half forwards: five products against two.
  w.flops = 3.5 * 4. * static_cast<double>(H * D) * pairs;
  w.make = [=] { return std::make_unique<AttentionStep<M>>(heed::Extents<4>{1, H, L, D}, mask, mask_name); };
  return w;
}

}  // namespace

std::vector<NamedWorkload> training_workloads() {
  return {
      step("B1", 1024, 1024. * 1025 / 2, heed::Causal{}, "causal"),
      step("B2", 512, 512. * 512, heed::NoMask{}, "none"),
  };
}

}  // namespace heed_bench
