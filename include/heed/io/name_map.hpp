// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Loads and saves the parameters of a layer, with a map from parameter names to names in the file.
///
///     heed::load_parameters(encoder, "bert.safetensors", {
///         .rules = {{"layers.*.self_attn.in_proj_*", {"encoder.layer.*.attention.self.query.*",
///                                                     "encoder.layer.*.attention.self.key.*",
///                                                     "encoder.layer.*.attention.self.value.*"}},
///                   {"layers.*.linear1.*", {"encoder.layer.*.intermediate.dense.*"}}},
///         .ignored = {"pooler.*"}});

#include <heed/io/safetensors.hpp>
#include <heed/nn/parameter.hpp>

HEED_NAMESPACE_BEGIN

/// Maps one parameter name, or all names that match a pattern, to tensors in a file.
struct NameRule {
  /// The name from the layer's visit(). A '*' matches any text: "layers.*.norm1.*".
  std::string parameter;
  /// The names in the file. Their stars become, in order, the texts that the parameter's stars match. The rows of
  /// several tensors are joined: query, key and value weights become in_proj_weight.
  std::vector<std::string> file = {};
  bool transposed = false;  ///< matrices in the file are (in, out), as those of GPT-2
};

/// Maps parameter names to tensor names in a file. Plain data; define it as a constant.
struct NameMap {
  std::vector<NameRule> rules = {};       ///< the first match decides; without a match, the names are equal
  std::vector<std::string> ignored = {};  ///< names or patterns of tensors in the file to skip: "pooler.*"
};

namespace detail {

/// Collects all mismatches for one message.
class Mismatches {
 public:
  void missing(std::string_view parameter, std::string_view in_file) {
    missing_.push_back(in_quotes(parameter) +
                       (parameter == in_file ? "" : " (in the file: " + in_quotes(in_file) + ")"));
  }
  void unfit(std::string_view parameter, std::string_view why) {
    unfit_.push_back(in_quotes(parameter) + ": " + std::string(why));
  }
  void unused(std::string_view in_file, const TensorInfo& info) {
    unused_.push_back(in_quotes(in_file) + " " + shape_text(info.shape));
  }

  /// Throws FormatError if there are any.
  void raise_if_any(const std::string& file, std::size_t parameters) const {
    if (missing_.empty() && unfit_.empty() && unused_.empty()) return;
    std::string text;
    list(text, "missing in the file", missing_);
    list(text, "of another shape or type", unfit_);
    list(text, "in the file, but not in the layer", unused_);
    detail::raise<FormatError>(
        "heed::load_parameters: file ", file, " does not fit the layer's ", parameters,
        " parameters; nothing was loaded", text,
        "\n  Fix the layer's options, or the NameMap: add rules for other names, and tensors to skip to `ignored`.");
  }

 private:
  static void list(std::string& text, std::string_view title, const std::vector<std::string>& entries) {
    constexpr std::size_t longest = 30;
    if (entries.empty()) return;
    text += concat("\n  ", title, " (", entries.size(), "):");
    for (std::size_t i = 0; i < std::min(entries.size(), longest); ++i) text += "\n    " + entries[i];
    if (entries.size() > longest) text += concat("\n    and ", entries.size() - longest, " more");
  }

  std::vector<std::string> missing_, unfit_, unused_;
};

/// The names of the tensors in the file whose joined rows are a parameter.
struct Sources {
  std::vector<std::string> names;
  bool transposed = false;
};

inline Sources find_sources(const NameMap& map, std::string_view parameter) {
  std::vector<std::string_view> parts;
  for (const NameRule& rule : map.rules) {
    if (!matches(rule.parameter, parameter, &parts)) continue;
    Sources sources{{}, rule.transposed};
    for (const std::string& name : rule.file) sources.names.push_back(substitute(name, parts));
    return sources;
  }
  return {{std::string(parameter)}, false};
}

/// The shape of a parameter in PyTorch: (n), or (rows, columns).
template <class T>
std::vector<Index> shape_of(const Parameter<T>& parameter) {
  const Extents<2>& e = parameter.extents();
  return parameter.rank() == 1 ? std::vector<Index>{e[0]} : std::vector<Index>{e[0], e[1]};
}

/// The reason a parameter cannot be loaded; empty if it can be.
template <class T>
std::string reason_against(const Parameter<T>& parameter, const Sources& sources, const SafeTensors& file) {
  const std::vector<Index> wanted = shape_of(parameter);
  const bool transposed = sources.transposed && wanted.size() == 2;
  Index rows = 0;
  bool fits = true;
  std::string found;
  for (const std::string& name : sources.names) {
    std::vector<Index> shape = file.shape(name);
    found += concat(found.empty() ? "" : ", ", in_quotes(name), " ", shape_text(shape));
    if (!is_float(file.dtype(name))) return in_quotes(name) + " holds " + std::string(dtype_name(file.info(name)));
    if (transposed) std::reverse(shape.begin(), shape.end());
    // The sum of extents from a malicious file must not overflow.
    fits = fits && shape.size() == wanted.size() && shape[0] <= wanted[0] - rows &&
           (wanted.size() == 1 || shape[1] == wanted[1]);
    if (fits) rows += shape[0];
  }
  if (fits && rows == wanted[0]) return {};
  return "it has shape " + shape_text(wanted) + ", but the file has " + found +
         (transposed                 ? ", to be transposed"
          : sources.names.size() > 1 ? ", whose rows are joined"
                                     : "");
}

template <class T>
void load_parameter(Parameter<T>& parameter, const Sources& sources, const SafeTensors& file) {
  TensorView<T, 1> value = parameter.mutable_value();
  Index first = 0;
  for (const std::string& name : sources.names) {
    Index count = 1;
    for (const Index e : file.shape(name)) count *= e;
    if (sources.transposed && parameter.rank() == 2) {
      const Tensor<T, 2> columns = file.read<T, 2>(name);
      for (Index i = 0; i < columns.extent(1); ++i) {
        for (Index j = 0; j < columns.extent(0); ++j) value(first + i * columns.extent(0) + j) = columns(j, i);
      }
    } else {
      file.read_into(name, std::span<T>(value.data() + first, static_cast<std::size_t>(count)));
    }
    first += count;
  }
}

}  // namespace detail

/// Loads every parameter of a layer (anything with visit(prefix, f)) from a file and converts between floating-point
/// types. Each parameter must be in the file with its shape, and each tensor of the file must be used, or ignored by
/// the map. Otherwise one FormatError lists all missing, mismatched and unused tensors, and the layer remains
/// unchanged. Packed copies of weights are dropped. Throws ValueError if a parameter was released or a rule is
/// inconsistent.
template <class Layer>
void load_parameters(Layer& layer, const SafeTensors& file, const NameMap& map = {}) {
  for (const NameRule& rule : map.rules) {
    const auto stars = std::count(rule.parameter.begin(), rule.parameter.end(), '*');
    HEED_CHECK(!rule.file.empty(), ValueError, "heed::load_parameters: the rule for ",
               detail::in_quotes(rule.parameter), " names no tensor of the file; give at least one");
    for (const std::string& name : rule.file) {
      HEED_CHECK(std::count(name.begin(), name.end(), '*') <= stars, ValueError, "heed::load_parameters: the rule for ",
                 detail::in_quotes(rule.parameter), " has ", stars, " stars, fewer than its ", detail::in_quotes(name),
                 "; each star of the file's name needs one");
    }
  }

  detail::Mismatches mismatches;
  std::set<std::string, std::less<>> used;
  std::size_t parameters = 0;
  auto check = [&](std::string_view name, auto& parameter) {
    ++parameters;
    HEED_CHECK(!parameter.released(), ValueError, "heed::load_parameters: parameter ", detail::in_quotes(name),
               " was released after packing; load parameters before release()");
    const detail::Sources sources = detail::find_sources(map, name);
    bool complete = true;
    for (const std::string& source : sources.names) {
      used.insert(source);
      if (file.contains(source)) continue;
      complete = false;
      mismatches.missing(name, source);
    }
    if (!complete) return;
    const std::string reason = detail::reason_against(parameter, sources, file);
    if (!reason.empty()) return mismatches.unfit(name, reason);
    using T = typename std::remove_cvref_t<decltype(parameter.value())>::value_type;
    for (const std::string& source : sources.names) file.require_readable<T>(source);
  };
  layer.visit("", check);
  for (const std::string& name : file.names()) {
    const bool ignored = std::any_of(map.ignored.begin(), map.ignored.end(),
                                     [&](const std::string& form) { return detail::matches(form, name); });
    if (!ignored && used.find(name) == used.end()) mismatches.unused(name, file.info(name));
  }
  mismatches.raise_if_any(file.file(), parameters);

  auto load = [&](std::string_view name, auto& parameter) {
    detail::load_parameter(parameter, detail::find_sources(map, name), file);
  };
  layer.visit("", load);
}

/// Loads every parameter of a layer from the file at `path`. Throws as SafeTensors::open() does, too.
template <class Layer>
void load_parameters(Layer& layer, const std::string& path, const NameMap& map = {}) {
  load_parameters(layer, SafeTensors::open(path), map);
}

/// Writes every parameter of a layer to a safetensors file under its name in the layer; load_parameters() without a map
/// restores the same bits. Throws as save_safetensors() does, and ValueError if a parameter was released.
template <class Layer>
void save_parameters(const Layer& layer, const std::string& path, const Metadata& metadata = {}) {
  std::vector<NamedTensor> tensors;
  auto add = [&](std::string_view name, const auto& parameter) {
    if (parameter.rank() == 1)
      tensors.emplace_back(name, parameter.value());
    else
      tensors.emplace_back(name, parameter.matrix());
  };
  layer.visit("", add);
  save_safetensors(path, tensors, metadata);
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
