// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// ParameterList: the parameters of a model in a fixed order. Gradient clipping by the global norm.

#include <set>
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
  /// Collects the parameters that visit() passes, in its order. A shared one, visited again, keeps its first name: its
  /// gradient counts once, and a step moves it once.
  template <class Model>
  explicit ParameterList(Model& model) {
    std::set<const Parameter<T>*> seen;
    model.visit("", [&](std::string_view name, Parameter<T>& parameter) {
      if (seen.insert(&parameter).second) entries_.push_back({std::string(name), &parameter});
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

/// The sum of squares of 2^shift·x in double. Blocks depend only on the number of elements, so that threads do not
/// change the bits.
template <class T>
double sum_of_squares(const TensorView<const T, 1>& x, int shift, Context& context) {
  const double factor = std::ldexp(1.0, shift);
  const RowBlocks blocks{x.extent(0), 4096, (x.extent(0) + 4095) / 4096};
  const Workspace::Frame frame(context.workspace());
  double* sums = context.workspace().template take<double>(blocks.count);
  blocks.for_each(context, [&](Index block, int) {
    constexpr int chains = 8;
    double sum[chains] = {};
    const Index begin = blocks.begin(block), end = blocks.end(block);
    for (Index i = begin; i < end; i += chains) {
      for (int c = 0; c < std::min<Index>(chains, end - i); ++c) {
        const double value = factor * static_cast<double>(x(i + c));
        sum[c] += value * value;
      }
    }
    sums[block] = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
  });
  double total = 0;
  for (Index block = 0; block < blocks.count; ++block) total += sums[block];
  return total;
}

/// The norm root·2^-shift. Apart, its two parts stay in range where squares of gradients, or the norm, would not.
struct GradNorm {
  double root = 0;
  int shift = 0;
  double value() const { return std::ldexp(root, -shift); }
};

/// The norm of all gradients. It is not finite only if a gradient is not.
template <class T>
GradNorm grad_norm(const ParameterList<T>& parameters, Context& context) {
  const auto total = [&](int shift) {
    double sum = 0;
    for (const auto& entry : parameters) {
      if (entry.parameter->has_grad()) {
        sum += sum_of_squares<T>(std::as_const(*entry.parameter).grad(), shift, context);
      }
    }
    return sum;
  };
  const double plain = total(0);
  // In this range no square that counts has lost digits.
  if (plain > 1e-250 && plain < 1e300) return {std::sqrt(plain), 0};
  double largest = 0;
  for (const auto& entry : parameters) {
    const TensorView<const T, 1> grad = std::as_const(*entry.parameter).grad();
    for (Index i = 0; i < grad.extent(0); ++i) {
      const double size = std::abs(static_cast<double>(grad(i)));
      if (!detail::is_finite(size)) return {size, 0};
      largest = std::max(largest, size);
    }
  }
  if (largest == 0) return {};
  // 2^1000 keeps the factor of the smallest numbers finite.
  const int shift = std::min(1000, -std::ilogb(largest));
  return {std::sqrt(total(shift)), shift};
}

/// factor·2^shift times every gradient. A product that T can't hold is formed in two steps.
template <class T>
void scale_gradients(const ParameterList<T>& parameters, double factor, int shift, Context& context) {
  int exponent = 0;
  double mantissa = std::frexp(factor, &exponent);
  exponent += shift;
  const bool fits = exponent > std::numeric_limits<T>::min_exponent;
  const T first = static_cast<T>(fits ? std::ldexp(mantissa, exponent) : std::ldexp(1.0, exponent / 2));
  const T second = static_cast<T>(fits ? 1.0 : std::ldexp(mantissa, exponent - exponent / 2));
  for (const auto& entry : parameters) {
    if (!entry.parameter->has_grad()) continue;
    const TensorView<T, 1> grad = entry.parameter->grad();
    parallel_for_elements(context, grad.extent(0), [&](Index begin, Index end) {
      for (Index i = begin; i < end; i += Vec<T>::size) {
        Vec<T> g = load_lanes(grad.data() + i, end - i) * Vec<T>(first);
        if (!fits) g = g * Vec<T>(second);
        store_lanes<T>(g, grad.data() + i, end - i);
      }
    });
  }
}

}  // namespace detail

/// The Euclidean norm of all gradients, taken as one vector. Parameters without a gradient count as 0.
template <class T>
double global_grad_norm(const ParameterList<T>& parameters, Context& context = detail::own_context({})) {
  return detail::grad_norm(parameters, context).value();
}

/// Limits the global norm of all gradients: if it exceeds max_norm, scales all gradients by max_norm / norm. Returns
/// the norm before scaling. Squares may leave the range of double: gradients of 1e200 or 1e-200 are clipped as others.
/// Pascanu, Mikolov, Bengio: "On the difficulty of training recurrent neural networks", 2013.
///
/// Throws ValueError unless max_norm is positive, and if a gradient is not finite, with the name of the first parameter
/// that has one; the gradients then remain unchanged.
template <class T>
double clip_grad_norm(const ParameterList<T>& parameters, double max_norm, Context& context = detail::own_context({})) {
  HEED_CHECK(max_norm > 0, ValueError, "heed::clip_grad_norm: max_norm = ", max_norm, " must be positive");
  const detail::GradNorm norm = detail::grad_norm(parameters, context);
  if (!detail::is_finite(norm.root)) {
    for (const auto& [name, parameter] : parameters) {
      const TensorView<const T, 1> grad = std::as_const(*parameter).grad();
      for (Index i = 0; i < grad.extent(0); ++i) {
        HEED_CHECK(detail::is_finite(grad(i)), ValueError, "heed::clip_grad_norm: the gradient of ", name,
                   " contains a number that is not finite: element ", i, " is ", grad(i));
      }
    }
  }
  const double value = norm.value();
  if (value > max_norm) detail::scale_gradients(parameters, max_norm / norm.root, norm.shift, context);
  return value;
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
