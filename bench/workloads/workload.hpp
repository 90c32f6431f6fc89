// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The named workloads that heed's speed is told by.

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <heed/core/context.hpp>
#include <heed/core/random.hpp>
#include <heed/core/tensor.hpp>
#include <heed/io/safetensors.hpp>
#include <heed/nn/parameter.hpp>

namespace heed_bench {

/// A call that can be repeated on inputs that were made once.
class Workload {
 public:
  virtual ~Workload() = default;
  virtual void run(heed::Context& context) = 0;
  /// Writes inputs, parameters and the last output as safetensors, with metadata that tell a peer what to compute.
  /// Throws ValueError for a workload that has no peers.
  virtual void save(const std::string& path) const = 0;
};

struct NamedWorkload {
  std::string name;
  std::string shape;  ///< in the letters B H G L D E, and the mask
  double flops;       ///< of one call: 2 for a multiply-add, in attention 4·D for each visible pair
  double bytes = 0;   ///< of keys and values or of weights that one call reads, where that is what costs; else 0
  bool is_double = false;
  std::function<std::unique_ptr<Workload>()> make;
};

std::vector<NamedWorkload> attention_workloads();
std::vector<NamedWorkload> long_sequence_workloads();
std::vector<NamedWorkload> training_workloads();
std::vector<NamedWorkload> layer_workloads();
std::vector<NamedWorkload> recurrent_workloads();
std::vector<NamedWorkload> char_lm_workloads();
/// A pretrained model end to end; make() throws FormatError where its files are missing.
std::vector<NamedWorkload> minilm_workloads();
std::vector<NamedWorkload> smollm2_workloads();  ///< a language model, likewise

/// Normal random numbers, scaled; different streams are independent.
template <class T>
void fill_normal(T* data, heed::Index size, std::uint64_t stream, double scale = 1, double mean = 0) {
  const heed::Philox random(42, stream);
  for (heed::Index i = 0; i < size; ++i) {
    data[i] = static_cast<T>(static_cast<float>(mean + scale * random.normal(static_cast<std::uint64_t>(i))));
  }
}
template <class T, int Rank>
heed::Tensor<T, Rank> normal_tensor(const heed::Extents<Rank>& extents, std::uint64_t stream) {
  heed::Tensor<T, Rank> x(extents);
  fill_normal(x.data(), x.size(), stream);
  return x;
}

/// Writes tensors and, as "param.NAME", the parameters of a layer.
template <class Layer>
void save_with_parameters(const std::string& path, std::vector<heed::NamedTensor> tensors, const Layer& layer,
                          const heed::Metadata& metadata) {
  std::list<std::string> names;  // tensors borrow them
  layer.visit("", [&](std::string_view name, const heed::Parameter<float>& parameter) {
    names.push_back("param." + std::string(name));
    if (parameter.rank() == 2)
      tensors.emplace_back(names.back(), parameter.matrix());
    else
      tensors.emplace_back(names.back(), parameter.value());
  });
  heed::save_safetensors(path, tensors, metadata);
}

}  // namespace heed_bench
