// SPDX-License-Identifier: MIT
// Layers with packed weights: M1 and M2 multi-head self-attention, E1a and E1b encoder blocks, and two Linear layers of
// few rows.

#include <cmath>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <heed/io/safetensors.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/multi_head_attention.hpp>
#include <heed/nn/transformer.hpp>

#include "machine.hpp"
#include "workload.hpp"

namespace heed_bench {

namespace {

using heed::Index;

// Weights that keep the variance of what passes through them; biases and norms that a peer can't leave out unnoticed.
template <class Layer>
void fill_parameters(Layer& layer) {
  std::uint64_t stream = 10;
  layer.visit("", [&](std::string_view name, heed::Parameter<float>& parameter) {
    const bool is_matrix = parameter.rank() == 2, is_norm = name.find("norm") != std::string_view::npos;
    const double scale = is_matrix ? 1 / std::sqrt(static_cast<double>(parameter.extents()[1])) : 0.1;
    const double mean = is_norm && name.ends_with("weight") ? 1 : 0;
    fill_normal(parameter.mutable_value().data(), parameter.size(), stream++, scale, mean);
  });
}

// y (B, L, out) = layer(x (B, L, in)).
template <class Layer>
class LayerCall final : public Workload {
 public:
  template <class Options>
  LayerCall(const Options& options, Index B, Index L, Index in, heed::Metadata metadata)
      : layer_(options),
        x_(normal_tensor<float, 3>({B, L, in}, 0)),
        y_(B, L, layer_.output_width(in)),
        metadata_(std::move(metadata)) {
    fill_parameters(layer_);
    layer_.pack();
  }

  void run(heed::Context& context) override {
    if constexpr (std::is_same_v<Layer, heed::Linear<float>>)
      layer_.forward(x_, y_.view(), context);
    else
      layer_.forward(x_, heed::NoMask{}, y_.view(), context);
    touch(y_.data());
  }

  void save(const std::string& path) const override {
    save_with_parameters(path, {{"x", x_}, {"out", y_}}, layer_, metadata_);
  }

 private:
  Layer layer_;
  heed::Tensor<float, 3> x_, y_;
  heed::Metadata metadata_;
};

std::string text(Index B, Index L) { return (B > 1 ? "B" + std::to_string(B) + " " : "") + "L" + std::to_string(L); }

NamedWorkload attention_layer(const std::string& name, Index B, Index L, Index E, Index H) {
  NamedWorkload w;
  w.name = name;
  w.shape = text(B, L) + " E" + std::to_string(E) + " H" + std::to_string(H);
  w.flops = static_cast<double>(B * L * E) * static_cast<double>(8 * E + 4 * L);
  w.make = [=] {
    const heed::MultiHeadAttentionOptions options{.embed_dim = E, .num_heads = H};
    const heed::Metadata metadata{{"kind", "multi_head_attention"}, {"heads", std::to_string(H)}};
    return std::make_unique<LayerCall<heed::MultiHeadAttention<float>>>(options, B, L, E, metadata);
  };
  return w;
}

NamedWorkload encoder_layer(const std::string& name, Index L, Index E, Index H, Index F) {
  NamedWorkload w;
  w.name = name;
  w.shape = text(1, L) + " E" + std::to_string(E) + " H" + std::to_string(H) + " F" + std::to_string(F);
  w.flops = static_cast<double>(L * E) * static_cast<double>(8 * E + 4 * L + 4 * F);
  w.make = [=] {
    const heed::EncoderLayerOptions options{.embed_dim = E,
                                            .num_heads = H,
                                            .ffn_dim = F,
                                            .norm_placement = heed::NormPlacement::Post,
                                            .activation = heed::Activation::GELU};
    const heed::Metadata metadata{{"kind", "encoder_layer"}, {"heads", std::to_string(H)}};
    return std::make_unique<LayerCall<heed::EncoderLayer<float>>>(options, 1, L, E, metadata);
  };
  return w;
}

NamedWorkload linear(Index L, Index in, Index out) {
  NamedWorkload w;
  w.name = "Linear-" + std::to_string(L) + "x" + std::to_string(in) + "x" + std::to_string(out);
  w.shape = text(1, L) + " in " + std::to_string(in) + " out " + std::to_string(out);
  w.flops = 2. * static_cast<double>(L * in * out);
  if (L == 1) w.bytes = static_cast<double>(in * out) * sizeof(float);
  w.make = [=] {
    const heed::LinearOptions options{.in_features = in, .out_features = out};
    return std::make_unique<LayerCall<heed::Linear<float>>>(options, 1, L, in, heed::Metadata{{"kind", "linear"}});
  };
  return w;
}

}  // namespace

std::vector<NamedWorkload> layer_workloads() {
  return {
      attention_layer("M1", 8, 128, 512, 8),
      attention_layer("M2", 1, 512, 768, 12),
      encoder_layer("E1a", 128, 768, 12, 3072),
      encoder_layer("E1b", 512, 768, 12, 3072),
      linear(16, 768, 3072),
      linear(1, 576, 49152),
  };
}

}  // namespace heed_bench
