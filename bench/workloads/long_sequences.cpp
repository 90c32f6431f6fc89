// SPDX-License-Identifier: MIT
// Mechanisms for long sequences, each at lengths that grow fourfold: what their time grows like is read off the table.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <heed/attention/attention.hpp>
#include <heed/attention/linear/linear.hpp>
#include <heed/attention/segmented/segmented.hpp>
#include <heed/core/error.hpp>
#include <heed/mask/basic.hpp>
#include <heed/mask/sparse.hpp>

#include "machine.hpp"
#include "workload.hpp"

namespace heed_bench {

namespace {

using heed::Index;

constexpr int kWidth = 64;    // of a head
constexpr int kWindow = 256;  // keys that a query sees around itself under Window, Strided and GlobalTokens

using Tensor = heed::Tensor<float, 4>;
using Call = std::function<void(Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v, heed::Context&)>;

class LongSequence final : public Workload {
 public:
  LongSequence(int length, Call call)
      : q_(normal_tensor<float, 4>({1, 1, length, kWidth}, 0)),
        k_(normal_tensor<float, 4>({1, 1, length, kWidth}, 1)),
        v_(normal_tensor<float, 4>({1, 1, length, kWidth}, 2)),
        out_(1, 1, length, kWidth),
        call_(std::move(call)) {}

  void run(heed::Context& context) override {
    call_(out_, q_, k_, v_, context);
    touch(out_.data());
  }
  void save(const std::string& path) const override {
    HEED_CHECK(false, ValueError, path, " would not tell a peer what to compute: long sequences have none");
  }

 private:
  Tensor q_, k_, v_, out_;
  Call call_;
};

NamedWorkload workload(const std::string& mechanism, int length, double flops, Call call) {
  NamedWorkload w;
  w.name = "L-" + mechanism + "-" + std::to_string(length);
  w.shape = "H1 L" + std::to_string(length) + " D" + std::to_string(kWidth);
  if (mechanism.ends_with("causal")) w.shape += " causal";
  w.flops = flops;
  w.make = [length, call = std::move(call)] { return std::make_unique<LongSequence>(length, call); };
  return w;
}

template <heed::Mask M>
NamedWorkload masked(const std::string& mechanism, int length, double pairs, const M& mask) {
  return workload(mechanism, length, 4. * kWidth * pairs,
                  [mask](Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v, heed::Context& context) {
                    heed::attention_into(out, q, k, v, mask, context);
                  });
}

// Sums over keys, and for each query their product with it; causally also the pairs of a chunk.
NamedWorkload linear(const std::string& mechanism, int length, bool causal) {
  return workload(mechanism, length, 4. * length * kWidth * kWidth * (causal ? 1.5 : 1),
                  [causal](Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v, heed::Context& context) {
                    if (causal)
                      heed::attention_into(out, q, k, v, heed::LinearAttention(heed::Causal{}), context);
                    else
                      heed::attention_into(out, q, k, v, heed::LinearAttention(), context);
                  });
}

NamedWorkload segmented(const std::string& mechanism, int length, bool causal) {
  const double L = length, S = heed::default_segment(length), pairs = L * (causal ? (S + L / S) / 2 : S + L / S - 1);
  return workload(mechanism, length, 4. * kWidth * pairs,
                  [causal](Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v, heed::Context& context) {
                    if (causal)
                      heed::attention_into(out, q, k, v, heed::SegmentedAttention(heed::Causal{}), context);
                    else
                      heed::attention_into(out, q, k, v, heed::SegmentedAttention(), context);
                  });
}

}  // namespace

std::vector<NamedWorkload> long_sequence_workloads() {
  std::vector<NamedWorkload> all;
  const heed::Window window(kWindow / 2, kWindow / 2);
  for (const int length : {1024, 4096, 16384}) {
    const double L = length, w = kWindow, near = L * (w + 1) - w / 2 * (w / 2 + 1);
    all.push_back(masked("full", length, L * L, heed::NoMask{}));
    all.push_back(linear("linear", length, false));
    all.push_back(linear("linear-causal", length, true));
    all.push_back(segmented("segmented", length, false));
    all.push_back(segmented("segmented-causal", length, true));
    all.push_back(masked("window", length, near, window));
    // One key in L / w, so that as many are seen at every length.
    all.push_back(masked("strided", length, near + (L - near / L) * w, heed::Strided(length / kWindow, kWindow / 2)));
    all.push_back(masked("global", length, near + 2 * (L - w), window | heed::GlobalTokens(1)));
  }
  return all;
}

}  // namespace heed_bench
