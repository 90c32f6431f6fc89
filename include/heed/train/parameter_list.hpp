// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// ParameterList: the parameters of a model in a fixed order.

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <heed/core/config.hpp>
#include <heed/core/tensor.hpp>
#include <heed/nn/parameter.hpp>

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

HEED_NAMESPACE_END
