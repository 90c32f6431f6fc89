// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// ParameterList: the parameters of a model in a fixed order, collected once.

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <heed/core/config.hpp>
#include <heed/core/tensor.hpp>
#include <heed/nn/parameter.hpp>

HEED_NAMESPACE_BEGIN

/// The parameters of a model (anything with visit(prefix, f)) with their names. Borrows them: the model must live, stay
/// where it is and keep its layers as long as the list is used.
///
///   struct Model {
///     heed::Embedding<float> embedding;
///     heed::Linear<float> head;
///     template <class F>
///     void visit(std::string_view, F&& f) {
///       embedding.visit("embedding", f);
///       head.visit("head", f);
///     }
///   };
///   heed::ParameterList<float> parameters(model);
template <class T>
class ParameterList {
 public:
  /// A parameter, borrowed, under its name.
  struct Entry {
    std::string name;         ///< as visit() gives it
    Parameter<T>* parameter;  ///< never null
  };

  ParameterList() = default;
  /// All parameters that visit() gives, in its order.
  template <class Model>
  explicit ParameterList(Model& model) {
    model.visit("", [&](std::string_view name, Parameter<T>& parameter) {
      entries_.push_back({std::string(name), &parameter});
    });
  }

  Index size() const { return static_cast<Index>(entries_.size()); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  /// Entry i; unchecked.
  const Entry& operator[](Index i) const { return entries_[static_cast<std::size_t>(i)]; }

  /// The number of trainable numbers.
  Index element_count() const {
    Index count = 0;
    for (const Entry& entry : entries_) count += entry.parameter->size();
    return count;
  }
  /// Sets all gradients to zero, for the next backward to add to.
  void zero_grad() const {
    for (const Entry& entry : entries_) entry.parameter->zero_grad();
  }

  /// As a layer's.
  template <class F>
  void visit(std::string_view prefix, F&& f) const {
    for (const Entry& entry : entries_) f(std::string_view(detail::join(prefix, entry.name)), *entry.parameter);
  }

 private:
  std::vector<Entry> entries_;
};

HEED_NAMESPACE_END
