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

#include <concepts>
#include <optional>
#include <span>

#include <heed/io/gguf.hpp>
#include <heed/io/safetensors.hpp>
#include <heed/nn/parameter.hpp>

HEED_NAMESPACE_BEGIN

/// The rows that a parameter takes from a tensor in a file, by default all in order. The tensor's rows are seen as
/// (heads, parts, rest).
///
///     {"mlp.gate_up_proj.weight", {.parts = 2, .part = 0}}                  the first half of the rows
///     {"query_key_value.*", {.heads = 12, .parts = 3, .part = 1}}           the keys, where each head has its q, k, v
///     {"qkv_proj.weight", {.parts = 48, .part = 32, .count = 8}}            the keys of 8 heads after 32 of queries
///     {"q_proj.weight", {.heads = 32, .parts = 2}}                          rotary halves of each head to pairs
///     {"k_proj.bias", {.if_missing = 0}}                                    zeros, if the file has no such tensor
struct RowSelection {
  Index heads = 1;                        ///< how often the parts repeat
  Index parts = 1;                        ///< the number of equal parts in each head
  std::optional<Index> part = {};         ///< takes this part of each head; without one, a row of each part in turn
  Index count = 1;                        ///< with `part`, takes as many parts, this one and those after it
  std::optional<double> if_missing = {};  ///< fills the rows if the file has no such tensor
};

/// A tensor in a file by name, and the rows taken from it. A name alone takes all.
struct FileRows {
  /// From a name and, if not all rows in order are meant, the rows.
  template <class Name>
  requires std::convertible_to<Name, std::string>
  FileRows(Name&& tensor, RowSelection selection = {}) : name(std::forward<Name>(tensor)), rows(selection) {}

  std::string name;   ///< stars become, in order, the texts that the parameter's stars match
  RowSelection rows;  ///< the rows taken
};

/// Maps one parameter name, or all names that match a pattern, to tensors in a file.
struct NameRule {
  /// The name from the layer's visit(). A '*' matches any text: "layers.*.norm1.*".
  std::string parameter;
  /// The names in the file. Their stars become, in order, the texts that the parameter's stars match. The rows of
  /// several tensors are joined: query, key and value weights become in_proj_weight. Of a tensor with more dimensions
  /// than the parameter, leading extents of 1 go and the last ones become one: a convolution's (E, C, P, P) is (E,
  /// CPP).
  std::vector<FileRows> file = {};
  bool transposed = false;  ///< matrices in the file are (in, out), as those of GPT-2
};

/// Maps parameter names to tensor names in a file. Plain data; define it as a constant.
struct NameMap {
  std::vector<NameRule> rules = {};       ///< the first match decides; without a match, the names are equal
  std::vector<std::string> ignored = {};  ///< names or patterns of tensors in the file to skip: "pooler.*"
};

/// Options of load_parameters().
struct LoadOptions {
  /// Matrices that a GGUF file holds in F16, BF16, Q8_0, Q4_0 or Q4_1 stay in that format: they are copied, in the
  /// layout of gemm, and the file may be closed. Where joined tensors differ in their formats, they become numbers.
  bool keep_blocks = false;
};

namespace detail {

inline bool holds_floats(const TensorInfo& info) { return is_float(info.dtype); }
inline bool holds_floats(const GgufTensor& info) { return is_readable(info); }
inline std::string_view dtype_name(const GgufTensor& info) { return ggml_type(info.type).name; }

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
  void unused(std::string_view in_file, const std::vector<Index>& shape) {
    unused_.push_back(in_quotes(in_file) + " " + shape_text(shape));
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

/// The tensors in the file whose joined rows are a parameter.
struct Sources {
  std::vector<FileRows> tensors;
  bool transposed = false, by_rule = true;
};

inline Sources find_sources(const NameMap& map, std::string_view parameter) {
  std::vector<std::string_view> parts;
  for (const NameRule& rule : map.rules) {
    if (!matches(rule.parameter, parameter, &parts)) continue;
    Sources sources{{}, rule.transposed, true};
    for (const FileRows& from : rule.file) sources.tensors.emplace_back(substitute(from.name, parts), from.rows);
    return sources;
  }
  return {{std::string(parameter)}, false, false};
}

/// The shape of a parameter in PyTorch: (n), or (rows, columns).
template <class T>
std::vector<Index> shape_of(const Parameter<T>& parameter) {
  const Extents<2>& e = parameter.extents();
  return parameter.rank() == 1 ? std::vector<Index>{e[0]} : std::vector<Index>{e[0], e[1]};
}

/// The rows and columns of a tensor in the file as a parameter of this rank sees them; nothing if it can't.
inline std::optional<Extents<2>> as_matrix(std::span<const Index> shape, int rank, const Sources& sources) {
  const auto wanted = static_cast<std::size_t>(rank);
  while (sources.by_rule && shape.size() > wanted && shape[0] == 1) shape = shape.subspan(1);
  if (shape.size() != wanted && (!sources.by_rule || wanted == 1 || shape.size() < wanted)) return std::nullopt;
  Extents<2> extents{shape[0], 1};
  for (const Index e : shape.subspan(1)) extents[1] *= e;
  if (wanted == 2 && sources.transposed) std::swap(extents[0], extents[1]);
  return extents;
}

/// The number of rows that a selection takes of `rows`; nothing if they can't be divided into its parts.
inline std::optional<Index> selected_rows(const RowSelection& selection, Index rows) {
  const Index pieces = selection.heads * selection.parts;
  if (rows % pieces != 0) return std::nullopt;
  return selection.part ? rows / selection.parts * selection.count : rows;
}
/// The row of the file that is row i of a selection from `rows`.
inline Index selected_row(const RowSelection& selection, Index rows, Index i) {
  const Index parts = selection.parts, rest = rows / (selection.heads * parts);
  if (selection.part) {
    const Index taken = selection.count * rest;
    return (i / taken * parts + *selection.part) * rest + i % taken;
  }
  const Index head = i / (parts * rest), within = i % (parts * rest);
  return (head * parts + within % parts) * rest + within / parts;
}

/// The rows of a parameter that come from each of its sources. Sources that the file lacks share what is left.
struct RowPlan {
  std::vector<Index> rows;
  std::string why_not;  ///< the reason a parameter cannot be loaded; empty if it can be
};

template <class T, class File>
RowPlan plan_rows(const Parameter<T>& parameter, const Sources& sources, const File& file) {
  const Extents<2>& wanted = parameter.extents();
  RowPlan plan;
  Index left = wanted[0], lacking = 0;
  bool fits = true;
  std::string found;
  for (const auto& [name, selection] : sources.tensors) {
    plan.rows.push_back(0);
    if (!file.contains(name)) {
      ++lacking;
      continue;
    }
    const auto& info = file.info(name);
    found += concat(found.empty() ? "" : ", ", in_quotes(name), " ", shape_text(info.shape));
    if (selection.part) {
      found += selection.count == 1 ? concat(", of which part ", *selection.part)
                                    : concat(", of which ", selection.count, " parts from ", *selection.part);
      found += concat(" of ", selection.parts);
    }
    if (selection.heads > 1) found += concat(" of ", selection.heads, " heads");
    if (!holds_floats(info)) {
      plan.why_not = in_quotes(name) + " holds " + std::string(dtype_name(info));
      return plan;
    }
    const std::optional<Extents<2>> extents = as_matrix(info.shape, parameter.rank(), sources);
    const std::optional<Index> rows = extents ? selected_rows(selection, (*extents)[0]) : std::nullopt;
    // The sum of extents from a malicious file must not overflow.
    fits = fits && rows && *rows <= left && (*extents)[1] == wanted[1];
    if (fits) left -= plan.rows.back() = *rows;
  }
  fits = fits && (lacking == 0 ? left == 0 : left % lacking == 0);
  if (!fits) {
    plan.why_not = "it has shape " + shape_text(shape_of(parameter)) + ", but the file has " + found +
                   (sources.transposed && parameter.rank() == 2 ? ", to be transposed"
                    : sources.tensors.size() > 1                ? ", whose rows are joined"
                                                                : "");
  }
  for (std::size_t i = 0; i < plan.rows.size() && lacking > 0; ++i) {
    if (!file.contains(sources.tensors[i].name)) plan.rows[i] = left / lacking;
  }
  return plan;
}

/// The format of all of a parameter's sources; nothing if they differ, or are rearranged
/// within their rows.
template <class T, class File>
std::optional<WeightFormat> common_format(const Parameter<T>& parameter, const Sources& sources, const File& file) {
  std::optional<WeightFormat> format;
  if constexpr (std::is_same_v<T, float> && std::is_same_v<File, Gguf>) {
    if (parameter.rank() != 2 || sources.transposed) return {};
    for (const FileRows& source : sources.tensors) {
      if (!file.contains(source.name) || file.shape(source.name).size() != 2) return {};
      const std::optional<WeightFormat> own = file.format(source.name);
      if (!own || (format && format != own)) return {};
      format = own;
    }
  }
  return format;
}

/// A parameter from blocks of one format.
template <class T>
void load_blocks(Parameter<T>& parameter, const Sources& sources, const Gguf& file, WeightFormat format) {
  if constexpr (std::is_same_v<T, float>) {
    const RowPlan plan = plan_rows(parameter, sources, file);
    const Index columns = parameter.extents()[1], row_bytes = bytes_of_row(format, columns);
    QuantizedMatrix matrix(format, parameter.extents()[0], columns);
    Index row = 0;
    for (std::size_t s = 0; s < sources.tensors.size(); ++s) {
      const auto& [name, selection] = sources.tensors[s];
      const std::byte* from = file.bytes(name).data();
      for (Index i = 0; i < plan.rows[s]; ++i, ++row) {
        matrix.set_blocks(row, 1, from + selected_row(selection, file.shape(name)[0], i) * row_bytes);
      }
    }
    parameter.store(std::move(matrix));
  }
}

template <class T, class File>
void load_parameter(Parameter<T>& parameter, const Sources& sources, const File& file, const LoadOptions& options) {
  if constexpr (std::is_same_v<File, Gguf>) {
    const std::optional<WeightFormat> format =
        options.keep_blocks ? common_format(parameter, sources, file) : std::nullopt;
    if (format) return load_blocks(parameter, sources, file, *format);
  }
  const RowPlan plan = plan_rows(parameter, sources, file);
  parameter.dequantize();
  const Index columns = parameter.extents()[1];
  T* to = parameter.mutable_value().data();
  for (std::size_t s = 0; s < sources.tensors.size(); ++s) {
    const auto& [name, selection] = sources.tensors[s];
    const Index rows = plan.rows[s];
    const bool transposed = sources.transposed && parameter.rank() == 2;
    if (!file.contains(name)) {
      std::fill_n(to, rows * columns, static_cast<T>(*selection.if_missing));
    } else if (!transposed && selection.parts == 1) {
      file.read_into(name, std::span<T>(to, static_cast<std::size_t>(rows * columns)));
    } else {
      const Index all = (*as_matrix(file.shape(name), parameter.rank(), sources))[0];
      std::vector<T> numbers(static_cast<std::size_t>(all * columns));
      file.read_into(name, std::span<T>(numbers));
      const Index row_stride = transposed ? 1 : columns, column_stride = transposed ? all : 1;
      for (Index i = 0; i < rows; ++i) {
        const T* from = numbers.data() + selected_row(selection, all, i) * row_stride;
        for (Index j = 0; j < columns; ++j) to[i * columns + j] = from[j * column_stride];
      }
    }
    to += rows * columns;
  }
}

/// Throws ValueError for a rule that can't work.
inline void check_rule(const NameRule& rule) {
  constexpr const char* function = "heed::load_parameters: the rule for ";
  const auto stars = std::count(rule.parameter.begin(), rule.parameter.end(), '*');
  HEED_CHECK(!rule.file.empty(), ValueError, function, in_quotes(rule.parameter),
             " names no tensor of the file; give at least one");
  for (const auto& [name, rows] : rule.file) {
    HEED_CHECK(std::count(name.begin(), name.end(), '*') <= stars, ValueError, function, in_quotes(rule.parameter),
               " has ", stars, " stars, fewer than its ", in_quotes(name), "; each star of the file's name needs one");
    constexpr Index most = 1 << 24;
    HEED_CHECK(rows.heads >= 1 && rows.heads <= most && rows.parts >= 1 && rows.parts <= most, ValueError, function,
               in_quotes(rule.parameter), ": heads = ", rows.heads, " and parts = ", rows.parts, " of ",
               in_quotes(name), " must be from 1 to ", most);
    const Index part = rows.part.value_or(0);
    HEED_CHECK(part >= 0 && part < rows.parts, ValueError, function, in_quotes(rule.parameter), ": part = ", part,
               " of ", in_quotes(name), " is not one of its parts = ", rows.parts, "; parts count from 0");
    HEED_CHECK(rows.count >= 1 && rows.count <= rows.parts - part && (rows.part || rows.count == 1), ValueError,
               function, in_quotes(rule.parameter), ": count = ", rows.count, " of ", in_quotes(name),
               " from part = ", part, " on must be from 1 to ", rows.part ? rows.parts - part : 1,
               "; only with a part, it is more");
  }
}

}  // namespace detail

/// Loads every parameter of a layer (anything with visit(prefix, f)) from a SafeTensors or Gguf file and converts
/// between floating-point types. Each parameter must be in the file with its shape, and each tensor of the file must be
/// used, or ignored by the map. Otherwise one FormatError lists all missing, mismatched and unused tensors, and the
/// layer remains unchanged. Packed copies of weights are dropped. Throws ValueError if a parameter was released or a
/// rule is inconsistent.
template <class Layer, class File>
requires(std::is_same_v<File, SafeTensors> || std::is_same_v<File, Gguf>)
void load_parameters(Layer& layer, const File& file, const NameMap& map = {}, const LoadOptions& options = {}) {
  for (const NameRule& rule : map.rules) detail::check_rule(rule);

  detail::Mismatches mismatches;
  std::set<std::string, std::less<>> used;
  std::size_t parameters = 0;
  auto check = [&](std::string_view name, auto& parameter) {
    ++parameters;
    HEED_CHECK(!parameter.released(), ValueError, "heed::load_parameters: parameter ", detail::in_quotes(name),
               " was released after packing; load parameters before release()");
    const detail::Sources sources = detail::find_sources(map, name);
    bool complete = true;
    for (const auto& [source, rows] : sources.tensors) {
      used.insert(source);
      if (file.contains(source) || rows.if_missing) continue;
      complete = false;
      mismatches.missing(name, source);
    }
    if (!complete) return;
    const std::string why_not = detail::plan_rows(parameter, sources, file).why_not;
    if (!why_not.empty()) return mismatches.unfit(name, why_not);
    using T = typename std::remove_cvref_t<decltype(parameter)>::Scalar;
    for (const FileRows& source : sources.tensors) {
      if (file.contains(source.name)) file.template require_readable<T>(source.name);
    }
  };
  layer.visit("", check);
  for (const std::string& name : file.names()) {
    const bool ignored = std::any_of(map.ignored.begin(), map.ignored.end(),
                                     [&](const std::string& form) { return detail::matches(form, name); });
    if (!ignored && used.find(name) == used.end()) mismatches.unused(name, file.info(name).shape);
  }
  mismatches.raise_if_any(file.file(), parameters);

  auto load = [&](std::string_view name, auto& parameter) {
    const detail::Sources sources = detail::find_sources(map, name);
    detail::load_parameter(parameter, sources, file, options);
    if constexpr (std::is_same_v<File, Gguf>) {
      // Otherwise a model and its file would be in memory side by side.
      for (const FileRows& source : sources.tensors) {
        if (file.contains(source.name)) file.forget(source.name);
      }
    }
  };
  layer.visit("", load);
}

/// Loads every parameter of a layer from the file at `path`, the index of several, or a directory. Throws as
/// SafeTensors::open() does, too.
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
