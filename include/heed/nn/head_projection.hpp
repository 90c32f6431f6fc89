// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The options of MultiHeadAttention, and what it begins with: the projections of queries, keys and values.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/core/tensor.hpp>
#include <heed/core/workspace.hpp>
#include <heed/nn/backward.hpp>
#include <heed/nn/init.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/masked_layer.hpp>
#include <heed/nn/parameter.hpp>
#include <heed/nn/rotary.hpp>

HEED_NAMESPACE_BEGIN

struct MultiHeadAttentionOptions {
  Index embed_dim;                ///< E, the width of the queries' input and of y
  Index num_heads;                ///< H
  Index num_kv_heads = 0;         ///< G, a divisor of H; 0 stands for H, 1 is multi-query attention
  Index head_dim = 0;             ///< Dk; 0 stands for E/H
  Index value_head_dim = 0;       ///< Dv; 0 stands for Dk
  Index key_dim = 0;              ///< the width of the keys' input (PyTorch: kdim); 0 stands for E
  Index value_dim = 0;            ///< the width of the values' input (PyTorch: vdim); 0 stands for key_model
  bool bias = true;               ///< in every projection
  std::optional<double> scale{};  ///< of the scores; 1/√Dk where not given
  double dropout = 0;             ///< probability that a weight is dropped, while context.training
  std::optional<RotaryEmbeddingOptions> rotary{};  ///< turns queries and keys by their positions; width 0 stands for Dk
};

/// Which products MultiHeadAttention::pack() prepares.
enum class Projections {
  Joint,    ///< query, key and value in one product, for self-attention; other calls use the raw weights
  Separate  ///< three products, which serve every call
};

/// Where the gradient of an input goes, and what is added to it; a view without data is not computed, or adds nothing.
/// The residual may be dx itself.
template <class T>
struct InputGradient {
  TensorView<T, 3> dx{};              ///< where it goes
  TensorView<const T, 3> residual{};  ///< what is added
};

namespace detail {

/// The options with everything that 0 stands for filled in.
inline MultiHeadAttentionOptions resolved(MultiHeadAttentionOptions o) {
  constexpr std::string_view name = "heed::MultiHeadAttention";
  HEED_CHECK(o.embed_dim >= 1 && o.num_heads >= 1, ShapeError, name, ": embed_dim = ", o.embed_dim,
             " and num_heads = ", o.num_heads, " must be at least 1");
  HEED_CHECK(o.num_kv_heads >= 0 && o.head_dim >= 0 && o.value_head_dim >= 0 && o.key_dim >= 0 && o.value_dim >= 0,
             ShapeError, name, ": num_kv_heads = ", o.num_kv_heads, ", head_dim = ", o.head_dim,
             ", value_head_dim = ", o.value_head_dim, ", key_dim = ", o.key_dim, " and value_dim = ", o.value_dim,
             " can't be negative");
  if (o.num_kv_heads == 0) o.num_kv_heads = o.num_heads;
  HEED_CHECK(o.num_heads % o.num_kv_heads == 0, ShapeError, name, ": num_heads = ", o.num_heads,
             " but num_kv_heads = ", o.num_kv_heads,
             "; heads must be a multiple, query head h reads key head h / "
             "(heads/num_kv_heads)");
  if (o.head_dim == 0) {
    HEED_CHECK(o.embed_dim % o.num_heads == 0, ShapeError, name, ": embed_dim = ", o.embed_dim,
               " is not a multiple of num_heads = ", o.num_heads, "; give head_dim");
    o.head_dim = o.embed_dim / o.num_heads;
  }
  if (o.value_head_dim == 0) o.value_head_dim = o.head_dim;
  if (o.key_dim == 0) o.key_dim = o.embed_dim;
  if (o.value_dim == 0) o.value_dim = o.key_dim;
  if (o.rotary) {
    if (o.rotary->head_dim == 0) o.rotary->head_dim = o.head_dim;
    HEED_CHECK(o.rotary->head_dim == o.head_dim, ShapeError, name, ": rotary.head_dim = ", o.rotary->head_dim,
               " but head_dim = ", o.head_dim, "; leave it 0, or give rotary.rotary_dim to turn a part of each head");
  }
  check_attention_options(name, o.scale, o.dropout);
  return o;
}

/// Query, key and value as heads (B, H, L, D).
template <class T>
struct Heads {
  TensorView<T, 4> q, k, v;
};

/// Columns [column, column + heads·width) of x (B, L, columns) as (B, heads, L, width), where they lie.
template <class T>
TensorView<T, 4> split_heads(const TensorView<T, 3>& x, Index column, Index heads, Index width) {
  return {x.data() + column * x.stride(2),
          {x.extent(0), heads, x.extent(1), width},
          {x.stride(0), width * x.stride(2), x.stride(1), x.stride(2)}};
}

/// When parts with one input share a product. A training lets them always, so that backward() finds them together.
enum class Sharing { UnlessPacked, Always };

/// Query, key and value are parts 0, 1 and 2. With one input width they share a weight, the rows of one part after
/// those of another; parts that also share their input share a product.
template <class T>
class HeadProjection {
 public:
  using Inputs = std::array<TensorView<const T, 3>, 3>;

  /// The options are resolved().
  explicit HeadProjection(const MultiHeadAttentionOptions& o)
      : input_{o.embed_dim, o.key_dim, o.value_dim},
        heads_{o.num_heads, o.num_kv_heads, o.num_kv_heads},
        width_{o.head_dim, o.head_dim, o.value_head_dim} {
    if (is_joint()) {
      joint_weight_ = Parameter<T>(first_row(3), input_width(0));
    } else {
      for (int part = 0; part < 3; ++part) part_weight_[at(part)] = Parameter<T>(rows(part), input_width(part));
    }
    if (o.bias) bias_ = Parameter<T>(first_row(3));
  }

  Parameter<T>& joint_weight() { return joint_weight_; }
  const Parameter<T>& joint_weight() const { return joint_weight_; }
  Parameter<T>& part_weight(int part) { return part_weight_[at(part)]; }
  const Parameter<T>& part_weight(int part) const { return part_weight_[at(part)]; }
  Parameter<T>& bias() { return bias_; }
  const Parameter<T>& bias() const { return bias_; }
  Index input_width(int part) const { return input_[at(part)]; }

  template <class Self, class F>
  static void visit_parameters(Self& self, std::string_view prefix, F& f) {
    visit_parameter(prefix, "in_proj_weight", self.joint_weight_, f);
    visit_parameter(prefix, "q_proj_weight", self.part_weight_[0], f);
    visit_parameter(prefix, "k_proj_weight", self.part_weight_[1], f);
    visit_parameter(prefix, "v_proj_weight", self.part_weight_[2], f);
    visit_parameter(prefix, "in_proj_bias", self.bias_, f);
  }

  /// Xavier-uniform weights, each part by its own widths; biases 0.
  void initialize(std::uint64_t seed, std::string_view name) {
    constexpr std::string_view kParts[] = {"q_proj_weight", "k_proj_weight", "v_proj_weight"};
    for (int part = 0; part < 3; ++part) {
      init::xavier_uniform(weight(part).mutable_matrix().slice(0, first_weight_row(part), rows(part)),
                           generator(seed, name, kParts[part]));
    }
    if (bias_.exists()) init::zeros(bias_);
  }

  void pack(const PackOptions& options, Projections projections) {
    if (!is_joint()) {
      for (int part = 0; part < 3; ++part) {
        packed_[at(part)].pack(part_weight_[at(part)], 0, rows(part));
        if (options.release) part_weight_[at(part)].release();
      }
    } else if (projections == Projections::Joint) {
      packed_joint_.pack(joint_weight_, 0, first_row(3));
      for (auto& packed : packed_) packed.drop();
    } else {
      for (int part = 0; part < 3; ++part) packed_[at(part)].pack(joint_weight_, first_row(part), rows(part));
      packed_joint_.drop();
    }
    if (options.release) joint_weight_.release();
  }

  /// Computes the heads of each part, where `memory(part, extents)` says: row-major (B, L, columns) for a part and
  /// those after it that share its product.
  template <class Memory>
  Heads<T> project(const Inputs& inputs, Context& context, Memory&& memory, Sharing sharing) const {
    const bool may_share = sharing == Sharing::Always || !packed_[0].current(joint_weight_);
    return heads_of(inputs, may_share, memory, [&](int part, int end, const TensorView<T, 3>& projected) {
      linear<T>(inputs[at(part)], operand(part, end), projected, {}, context);
    });
  }
  /// The same layout of heads, with nothing computed.
  template <class Memory>
  Heads<T> heads_in(const Inputs& inputs, Memory&& memory) const {
    return heads_of(inputs, true, memory, [](int, int, const TensorView<T, 3>&) {});
  }

  /// From the gradients of the heads, which lie where heads_in() has them: adds to the gradients of the parameters and
  /// writes those of the inputs. Parts that share a product have one gradient, that of the first of them.
  template <class Memory>
  void backward(const Inputs& inputs, const std::array<InputGradient<T>, 3>& gradients, Context& context,
                Memory&& memory) {
    heads_of(inputs, true, memory, [&](int part, int end, const TensorView<T, 3>& d) {
      const Index count = first_row(end) - first_row(part);
      T* dbias = bias_.exists() ? bias_.grad().data() + first_row(part) : nullptr;
      linear_backward_parameters<T>(inputs[at(part)], d,
                                    weight(part).grad_matrix().slice(0, first_weight_row(part), count), dbias, context);
      const InputGradient<T>& to = gradients[at(part)];
      if (!to.dx.data()) return;
      linear_backward_input<T>(d, weight(part).matrix().slice(0, first_weight_row(part), count), to.residual, to.dx,
                               context);
    });
  }
  /// Whether the input of a part has its gradient with that of a part before it.
  bool is_joined(const Inputs& inputs, int part) const {
    return part > 0 && is_joint() && is_same(inputs[at(part - 1)], inputs[at(part)]);
  }

 private:
  static constexpr std::size_t at(int part) { return static_cast<std::size_t>(part); }
  bool is_joint() const { return input_width(1) == input_width(0) && input_width(2) == input_width(0); }
  Index rows(int part) const { return heads_[at(part)] * width_[at(part)]; }
  /// Where the rows of a part begin in joint_weight_ and bias_; for 3, how many rows there are.
  Index first_row(int part) const {
    Index first = 0;
    for (int before = 0; before < part; ++before) first += rows(before);
    return first;
  }
  Parameter<T>& weight(int part) { return is_joint() ? joint_weight_ : part_weight_[at(part)]; }
  const Parameter<T>& weight(int part) const { return is_joint() ? joint_weight_ : part_weight_[at(part)]; }
  Index first_weight_row(int part) const { return is_joint() ? first_row(part) : 0; }

  static bool is_same(const TensorView<const T, 3>& a, const TensorView<const T, 3>& b) {
    return a.data() == b.data() && a.extents() == b.extents() && a.strides() == b.strides();
  }

  /// f(part, end, memory) for each run of parts that share a product, and the heads in that memory.
  template <class Memory, class F>
  Heads<T> heads_of(const Inputs& inputs, bool may_share, Memory& memory, F&& f) const {
    TensorView<T, 4> parts[3];
    for (int part = 0; part < 3;) {
      const TensorView<const T, 3>& x = inputs[at(part)];
      int end = part + 1;
      while (may_share && is_joint() && end < 3 && is_same(x, inputs[at(end)])) ++end;
      const Index first = first_row(part);
      const TensorView<T, 3> run = memory(part, Extents<3>{x.extent(0), x.extent(1), first_row(end) - first});
      f(part, end, run);
      for (; part < end; ++part) {
        parts[part] = split_heads(run, first_row(part) - first, heads_[at(part)], width_[at(part)]);
      }
    }
    return {parts[0], parts[1], parts[2]};
  }

  /// Parts [part, end) as they multiply an input.
  LinearOperand<T> operand(int part, int end) const {
    LinearOperand<T> operand;
    if (end - part == 3) operand.packed = packed_joint_.current(weight(part));
    if (end - part == 1) operand.packed = packed_[at(part)].current(weight(part));
    if (!operand.packed) {
      HEED_CHECK(!weight(part).released(), ValueError,
                 "heed::MultiHeadAttention: in_proj_weight was released after "
                 "it was packed for self-attention, but "
                 "the inputs differ; pack with Projections::Separate");
      operand.weight = weight(part).matrix().slice(0, first_weight_row(part), first_row(end) - first_row(part));
    }
    operand.bias = bias_from(bias_, first_row(part));
    return operand;
  }

  std::array<Index, 3> input_, heads_, width_;
  Parameter<T> joint_weight_, bias_;
  std::array<Parameter<T>, 3> part_weight_;
  PackedRows<T> packed_joint_;
  std::array<PackedRows<T>, 3> packed_;
};

}  // namespace detail

HEED_NAMESPACE_END
