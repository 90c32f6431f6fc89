// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// ParameterList: the parameters of a model in a fixed order. Gradient clipping by the global norm.

#include <vector>

#include <heed/core/simd.hpp>
#include <heed/nn/parameter.hpp>
#include <heed/nn/rows.hpp>

HEED_NAMESPACE_BEGIN

/// Refers to the parameters of a model (anything with visit(prefix, f)) by name. The list holds their addresses: the
/// model must outlive it and must not be moved, nor gain or lose layers. A growing `std::vector<Model>` moves its
/// elements; use a std::deque, std::unique_ptr or reserve().
///
///     struct Model {
///       heed::Embedding<float> embedding;
///       heed::Linear<float> head;
///       template <class F>
///       void visit(std::string_view, F&& f) {
///         embedding.visit("embedding", f);
///         head.visit("head", f);
///       }
///     };
///     heed::ParameterList<float> parameters(model);
template <class T>
class ParameterList {
 public:
  /// A parameter and its name.
  struct Entry {
    std::string name;         ///< the name from visit()
    Parameter<T>* parameter;  ///< borrowed, never null
  };

  /// An empty list.
  ParameterList() = default;
  /// Collects the parameters that visit() passes, in its order.
  template <class Model>
  explicit ParameterList(Model& model) {
    model.visit("", [&](std::string_view name, Parameter<T>& parameter) {
      entries_.push_back({std::string(name), &parameter});
    });
  }

  /// The number of parameters.
  Index size() const { return static_cast<Index>(entries_.size()); }
  /// The first entry.
  auto begin() const { return entries_.begin(); }
  /// One past the last entry.
  auto end() const { return entries_.end(); }
  /// Entry i; unchecked.
  const Entry& operator[](Index i) const { return entries_[static_cast<std::size_t>(i)]; }

  /// The number of elements of all parameters.
  Index element_count() const {
    Index count = 0;
    for (const Entry& entry : entries_) count += entry.parameter->size();
    return count;
  }
  /// Sets all gradients to zero. The next backward adds to them.
  void zero_grad() const {
    for (const Entry& entry : entries_) entry.parameter->zero_grad();
  }

  /// Calls f(name, parameter) for each parameter, as a layer's visit() does.
  template <class F>
  void visit(std::string_view prefix, F&& f) const {
    for (const Entry& entry : entries_) f(std::string_view(detail::join(prefix, entry.name)), *entry.parameter);
  }

 private:
  std::vector<Entry> entries_;
};

namespace detail {

/// The sum of squares in double. Blocks depend only on the number of elements, so that threads do not change the bits.
template <class T>
double sum_of_squares(const TensorView<const T, 1>& x, Context& context) {
  const RowBlocks blocks{x.extent(0), 4096, (x.extent(0) + 4095) / 4096};
  const Workspace::Frame frame(context.workspace());
  double* sums = context.workspace().template take<double>(blocks.count);
  blocks.for_each(context, [&](Index block, int) {
    constexpr int chains = 8;
    double sum[chains] = {};
    const Index begin = blocks.begin(block), end = blocks.end(block);
    for (Index i = begin; i < end; i += chains) {
      for (int c = 0; c < std::min<Index>(chains, end - i); ++c) {
        const double value = static_cast<double>(x(i + c));
        sum[c] += value * value;
      }
    }
    sums[block] = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
  });
  double total = 0;
  for (Index block = 0; block < blocks.count; ++block) total += sums[block];
  return total;
}

}  // namespace detail

/// The Euclidean norm of all gradients, taken as one vector. Parameters without a gradient count as 0.
template <class T>
double global_grad_norm(const ParameterList<T>& parameters, Context& context = detail::own_context({})) {
  double total = 0;
  for (const auto& entry : parameters) {
    if (entry.parameter->has_grad()) total += detail::sum_of_squares<T>(entry.parameter->grad(), context);
  }
  return std::sqrt(total);
}

/// Limits the global norm of all gradients: if it exceeds max_norm, scales all gradients by max_norm / norm. Returns
/// the norm before scaling. Pascanu, Mikolov, Bengio: "On the difficulty of training recurrent neural networks", 2013.
///
/// Throws ValueError unless max_norm is positive, and if the norm is not finite, with the name of the first parameter
/// whose gradient is not finite; the gradients then remain unchanged.
template <class T>
double clip_grad_norm(const ParameterList<T>& parameters, double max_norm, Context& context = detail::own_context({})) {
  HEED_CHECK(max_norm > 0, ValueError, "heed::clip_grad_norm: max_norm = ", max_norm, " must be positive");
  const double norm = global_grad_norm(parameters, context);
  if (!detail::is_finite(norm)) {
    for (const auto& [name, parameter] : parameters) {
      HEED_CHECK(!parameter->has_grad() || detail::is_finite(detail::sum_of_squares<T>(parameter->grad(), context)),
                 ValueError, "heed::clip_grad_norm: the norm is ", norm, "; the gradient of ", name,
                 " contains a number that is not finite");
    }
    HEED_CHECK(false, ValueError, "heed::clip_grad_norm: the norm is ", norm);
  }
  if (norm <= max_norm) return norm;
  const T factor = static_cast<T>(max_norm / norm);
  for (const auto& entry : parameters) {
    if (!entry.parameter->has_grad()) continue;
    const TensorView<T, 1> grad = entry.parameter->grad();
    detail::parallel_for_elements(context, grad.extent(0), [&](Index begin, Index end) {
      for (Index i = begin; i < end; i += Vec<T>::size) {
        detail::store_lanes<T>(detail::load_lanes(grad.data() + i, end - i) * Vec<T>(factor), grad.data() + i, end - i);
      }
    });
  }
  return norm;
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
