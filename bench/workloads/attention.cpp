// SPDX-License-Identifier: MIT
// Attention alone: F0 to F8 full sequences, D1 and D2 one query against a long cache; then the same work in other
// layouts and element types and with score modifiers, and shapes that no constant was chosen for.

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <heed/attention/attention.hpp>
#include <heed/core/error.hpp>
#include <heed/io/safetensors.hpp>
#include <heed/mask/basic.hpp>
#include <heed/mask/modifier.hpp>

#include "machine.hpp"
#include "workload.hpp"

namespace heed_bench {

namespace {

using heed::Index;

struct Shape {
  Index B = 1, H, G, Lq, Lk, D;
};

enum class Layout {
  HeadMajor,   // (B, H, L, D)
  Interleaved  // (B, L, H·D), as a projection leaves it; each head is read by stride
};

// Padding borrows its lengths.
const std::vector<int>& lengths_of_f7() {
  static const std::vector<int> lengths{64, 128, 192, 256, 320, 384, 448, 512};
  return lengths;
}

template <class T, class S, heed::Mask M, heed::Modifier Mod>
class Attention final : public Workload {
 public:
  Attention(const Shape& s, const M& mask, heed::Metadata metadata, Layout layout, const Mod& modifier)
      : q_(normal_tensor<T, 4>({s.B, s.H, s.Lq, s.D}, 0)),
        k_(normal_tensor<S, 4>({s.B, s.G, s.Lk, s.D}, 1)),
        v_(normal_tensor<S, 4>({s.B, s.G, s.Lk, s.D}, 2)),
        out_(s.B, s.H, s.Lq, s.D),
        mask_(mask),
        metadata_(std::move(metadata)),
        layout_(layout),
        modifier_(modifier) {}

  void run(heed::Context& context) override {
    const Attention& inputs = *this;
    heed::attention_into(heads(out_.view()), heads(inputs.q_.view()), heads(inputs.k_.view()), heads(inputs.v_.view()),
                         mask_, modifier_, context);
    touch(out_.data());
  }

  void save(const std::string& path) const override {
    HEED_CHECK(layout_ == Layout::HeadMajor && (std::is_same_v<Mod, heed::NoModifier>), ValueError, path,
               " would not tell a peer what to compute: layouts and score modifiers are not written");
    std::vector<heed::NamedTensor> tensors{{"q", q_}, {"k", k_}, {"v", v_}, {"out", out_}};
    const heed::TensorView<const int, 1> lengths(lengths_of_f7().data(), {Index(lengths_of_f7().size())});
    if (metadata_.at("mask") == "padding") tensors.emplace_back("lengths", lengths);
    heed::save_safetensors(path, tensors, metadata_);
  }

 private:
  template <class View>
  View heads(const View& x) const {
    if (layout_ == Layout::HeadMajor) return x;
    const Index H = x.extent(1), L = x.extent(2), D = x.extent(3);
    return View(x.data(), x.extents(), {L * H * D, D, H * D, 1});
  }

  heed::Tensor<T, 4> q_;
  heed::Tensor<S, 4> k_, v_;
  heed::Tensor<T, 4> out_;
  M mask_;
  heed::Metadata metadata_;
  Layout layout_;
  Mod modifier_;
};

std::string text(const Shape& s) {
  std::string out;
  if (s.B > 1) out += "B" + std::to_string(s.B) + " ";
  out += "H" + std::to_string(s.H);
  if (s.G != s.H) out += " G" + std::to_string(s.G);
  if (s.Lq == s.Lk)
    out += " L" + std::to_string(s.Lk);
  else
    out += " Lq" + std::to_string(s.Lq) + " Lk" + std::to_string(s.Lk);
  return out + " D" + std::to_string(s.D);
}

struct MakeNoModifier {
  heed::NoModifier operator()() const { return {}; }
};

template <class T = float, class S = T, heed::Mask M = heed::NoMask, class MakeModifier = MakeNoModifier>
NamedWorkload attention(const std::string& name, const Shape& s, double pairs, const M& mask = {},
                        const heed::Metadata& metadata = {{"mask", "none"}}, Layout layout = Layout::HeadMajor,
                        const MakeModifier& modifier = {}) {
  NamedWorkload w;
  w.name = name;
  w.shape = text(s);
  if (metadata.at("mask") != "none") w.shape += " " + metadata.at("mask");
  w.flops = 4. * static_cast<double>(s.H * s.D) * pairs;
  if (s.Lq == 1) w.bytes = 2. * static_cast<double>(s.B * s.G * s.Lk * s.D) * sizeof(S);
  w.is_double = std::is_same_v<T, double>;
  w.make = [=] {
    heed::Metadata all = metadata;
    all["kind"] = "attention";
    return std::make_unique<Attention<T, S, M, decltype(modifier())>>(s, mask, all, layout, modifier());
  };
  return w;
}

template <class T = float, class S = T>
NamedWorkload dense(const std::string& name, const Shape& s, Layout layout = Layout::HeadMajor) {
  return attention<T, S>(name, s, static_cast<double>(s.B * s.Lq * s.Lk), heed::NoMask{}, {{"mask", "none"}}, layout);
}

template <class MakeModifier>
NamedWorkload modified(const std::string& name, const Shape& s, const MakeModifier& modifier) {
  return attention(name, s, static_cast<double>(s.B * s.Lq * s.Lk), heed::NoMask{}, {{"mask", "none"}},
                   Layout::HeadMajor, modifier);
}

// Bias borrows it: (1, H, L, L).
const heed::Tensor<float, 4>& bias_of_f1() {
  static const auto bias = normal_tensor<float, 4>({1, 8, 512, 512}, 3);
  return bias;
}

}  // namespace

std::vector<NamedWorkload> attention_workloads() {
  constexpr double L3 = 2048, L8 = 4096, W8 = 256;
  double keys_of_f7 = 0;
  for (const int length : lengths_of_f7()) keys_of_f7 += length;
  constexpr Shape f1{1, 8, 8, 512, 512, 64}, d1{1, 32, 32, 1, 4096, 64};
  return {
      dense("F0", {1, 8, 8, 128, 128, 64}),
      dense("F1", f1),
      dense("F2", {1, 8, 8, 2048, 2048, 64}),
      attention("F3", {1, 8, 8, 2048, 2048, 64}, L3 * (L3 + 1) / 2, heed::Causal{}, {{"mask", "causal"}}),
      dense("F4", {1, 1, 1, 8192, 8192, 64}),
      dense("F5", {1, 8, 8, 1024, 1024, 128}),
      dense("F6", {1, 4, 4, 16, 16, 32}),
      attention("F7", {8, 8, 8, 512, 512, 64}, 512 * keys_of_f7, heed::Padding(lengths_of_f7()), {{"mask", "padding"}}),
      attention("F8", {1, 8, 8, 4096, 4096, 64}, W8 * L8 - W8 * (W8 - 1) / 2, heed::Window(255, 0),
                {{"mask", "window"}, {"window", "256"}}),
      dense("D1", d1),
      dense<float, heed::half>("D1-half", d1),
      dense<float, heed::bfloat16>("D1-bfloat16", d1),
      dense("D2", {1, 32, 8, 1, 4096, 64}),

      dense("F1-strided", f1, Layout::Interleaved),
      dense<float, heed::half>("F1-half", f1),
      dense<float, heed::bfloat16>("F1-bfloat16", f1),
      dense<double>("F1-double", f1),
      modified("F1-softcap", f1, [] { return heed::SoftCap(30); }),
      modified("F1-alibi", f1, [] { return heed::Alibi(8); }),
      modified("F1-bias", f1, [] { return heed::Bias<float>(bias_of_f1()); }),
      dense("L100-D48", {1, 5, 5, 100, 100, 48}),
      dense("L777-D80", {1, 5, 5, 777, 777, 80}),
      dense("L3000-D96", {1, 5, 5, 3000, 3000, 96}),
  };
}

}  // namespace heed_bench
