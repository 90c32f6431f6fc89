// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Module: the base of everything with parameters. A layer or a model lists its members once; visiting, starting and
/// packing its parameters follow from that list.
///
///   struct Classifier : heed::Module<Classifier> {
///     heed::Embedding<float> embedding{{.vocab_size = 1000, .embed_dim = 64}};
///     heed::Encoder<float> encoder{{.num_layers = 2, .layer = {.embed_dim = 64, .num_heads = 4}}};
///     heed::Linear<float> head{64, 10};
///
///     static void members(auto&& f) {
///       f("embedding", &Classifier::embedding);
///       f("encoder", &Classifier::encoder);
///       f("head", &Classifier::head);
///     }
///   };
///
///   Classifier model;
///   heed::Random random(1);
///   model.initialize(random);
///   heed::AdamW<float> optimizer(model, {.learning_rate = 1e-3});
///   heed::save_parameters(model, "model.safetensors");

#include <heed/nn/init.hpp>

HEED_NAMESPACE_BEGIN

/// Options of pack().
struct PackOptions {
  bool release = false;  ///< free the raw weights that were packed: they can then not be read, trained or saved
};

namespace detail {

template <class Part>
inline constexpr bool is_parameter_v = false;
template <class T>
inline constexpr bool is_parameter_v<Parameter<T>> = true;

/// f(name, part) for a member, for the content of an optional that has one, and for each element of a vector under
/// "name.0", "name.1", ...
template <class Part, class F>
void for_each_part(std::string_view name, Part& part, F& f) {
  f(name, part);
}
template <class Part, class F>
void for_each_part(std::string_view name, std::optional<Part>& part, F& f) {
  if (part) f(name, *part);
}
template <class Part, class F>
void for_each_part(std::string_view name, const std::optional<Part>& part, F& f) {
  if (part) f(name, *part);
}
template <class Part, class F>
void for_each_part(std::string_view name, std::vector<Part>& parts, F& f) {
  for (std::size_t i = 0; i < parts.size(); ++i) f(std::string_view(join(name, std::to_string(i))), parts[i]);
}
template <class Part, class F>
void for_each_part(std::string_view name, const std::vector<Part>& parts, F& f) {
  for (std::size_t i = 0; i < parts.size(); ++i) f(std::string_view(join(name, std::to_string(i))), parts[i]);
}

}  // namespace detail

/// Base of a layer or a model `Derived`, which lists its members: static void members(auto&& f) calls
/// f("name", &Derived::member) for each. A member is a Parameter, a layer, a std::optional or a std::vector of either;
/// parameters of a member named "" come directly under the name of the whole. A part that differs from its base (it
/// starts in another way, for instance) defines the function itself.
template <class Derived>
class Module {
 public:
  /// No members; a Derived with members has the same function with its list.
  static void members(auto&&) {}

  /// f(name, parameter) for each parameter, under "prefix.member.name" and in the order of the list.
  template <class F>
  void visit(std::string_view prefix, F&& f) {
    visit_members(static_cast<Derived&>(*this), prefix, f);
  }
  /// @overload
  template <class F>
  void visit(std::string_view prefix, F&& f) const {
    visit_members(static_cast<const Derived&>(*this), prefix, f);
  }

  /// Gives each parameter its starting values. `name` is the name of this part in its model. Of parameters that are
  /// members themselves, matrices start Xavier-uniform, and vectors keep their numbers.
  void initialize(Random& random, std::string_view name = "") {
    for_each_member(static_cast<Derived&>(*this), [&](std::string_view member, auto& part) {
      using Part = std::remove_cvref_t<decltype(part)>;
      if constexpr (!detail::is_parameter_v<Part>)
        part.initialize(random, detail::join(name, member));
      else if (part.rank() == 2)
        init::xavier_uniform(part, random(detail::join(name, member)));
    });
  }

  /// Lays weights out as the kernels read them: forward gives the same bits in less time. Mutable access to a weight
  /// drops its copy. Throws ValueError for a weight that was released and has changed since.
  void pack(const PackOptions& options = {}) {
    for_each_member(static_cast<Derived&>(*this), [&](std::string_view, auto& part) {
      if constexpr (requires { part.pack(options); }) part.pack(options);
    });
  }
  /// Stores the matrices of its Linear, Embedding and attention layers in few bits, for inference: less memory and,
  /// where memory is what limits, faster. Norms, biases and tables of positions stay as they are. Throws as
  /// Parameter::quantize() does.
  void quantize(WeightFormat format) {
    for_each_member(static_cast<Derived&>(*this), [&](std::string_view, auto& part) {
      if constexpr (requires { part.visit("", [](auto&&...) {}); }) part.quantize(format);
    });
  }

 private:
  template <class Self, class F>
  static void for_each_member(Self& self, F&& f) {
    Derived::members([&](std::string_view name, auto member) { detail::for_each_part(name, self.*member, f); });
  }
  template <class Self, class F>
  static void visit_members(Self& self, std::string_view prefix, F& f) {
    for_each_member(self, [&](std::string_view name, auto& part) {
      if constexpr (detail::is_parameter_v<std::remove_cvref_t<decltype(part)>>)
        detail::visit_parameter(prefix, name, part, f);
      else
        part.visit(detail::join(prefix, name), f);
    });
  }
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
