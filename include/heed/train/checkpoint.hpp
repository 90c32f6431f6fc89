// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Saves and restores training state; resuming is bit-identical to not stopping.

#include <charconv>
#include <system_error>
#include <vector>

#include <heed/io/name_map.hpp>
#include <heed/io/safetensors.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// A model and, under "optimizer.", the state of its optimizer, as one object with parameters.
template <class Model, class Optimizer>
struct Training {
  Model& model;
  Optimizer& optimizer;
  template <class F>
  void visit(std::string_view prefix, F&& f) const {
    model.visit(prefix, f);
    optimizer.visit(join(prefix, "optimizer"), f);
  }
};

/// The metadata of a parameter that had no gradient in some steps.
inline std::string skipped_key(std::string_view parameter) { return join("training.skipped", parameter); }

/// A number in the metadata. Throws FormatError if it is missing or not a number.
inline std::uint64_t training_number(const SafeTensors& file, std::string_view key) {
  const auto entry = file.metadata().find(key);
  HEED_CHECK(entry != file.metadata().end(), FormatError, "heed::load_checkpoint: file ", file.file(),
             " has no metadata ", in_quotes(key), "; it was not written by save_checkpoint");
  const std::string& text = entry->second;
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  HEED_CHECK(error == std::errc() && end == text.data() + text.size() && !text.empty(), FormatError,
             "heed::load_checkpoint: file ", file.file(), ", metadata ", in_quotes(key), ": ", in_quotes(text),
             " is not a whole number");
  return number;
}

}  // namespace detail

/// Writes the parameters of a model, the optimizer's state under "optimizer.", and as metadata the number of steps and
/// the context's seed and dropout stream. The file is replaced atomically, so that an interrupt leaves the old one or
/// the new one. For inference, load_parameters() reads it with .ignored = {"optimizer.*"}. Throws as save_parameters()
/// does. `metadata` is written too; its keys must not begin with "training.".
template <class Model, class Optimizer>
void save_checkpoint(const std::string& path, const Model& model, const Optimizer& optimizer, Context& context,
                     Metadata metadata = {}) {
  metadata["training.steps"] = std::to_string(optimizer.steps());
  for (Index i = 0; i < optimizer.parameters().size(); ++i) {
    const Index skipped = optimizer.skipped_steps(i);
    if (skipped > 0) metadata[detail::skipped_key(optimizer.parameters()[i].name)] = std::to_string(skipped);
  }
  metadata["training.seed"] = std::to_string(context.seed);
  metadata["training.stream"] = std::to_string(detail::next_stream_of(context));
  save_parameters(detail::Training<const Model, const Optimizer>{model, optimizer}, path, metadata);
}

/// Reads a file of save_checkpoint() into a model and an optimizer with the same options, and sets the context's seed
/// and dropout stream: the next step gives the same bits as it would have given before saving. Returns the number of
/// steps. The learning rate is not saved; a Schedule computes it from the step. Throws FormatError if the file does not
/// match; the model and the optimizer then remain unchanged.
template <class Model, class Optimizer>
Index load_checkpoint(const SafeTensors& file, Model& model, Optimizer& optimizer, Context& context) {
  const std::uint64_t steps = detail::training_number(file, "training.steps");
  const std::uint64_t seed = detail::training_number(file, "training.seed");
  const std::uint64_t stream = detail::training_number(file, "training.stream");
  HEED_CHECK(steps <= std::uint64_t{1} << 62, FormatError, "heed::load_checkpoint: file ", file.file(), " has ", steps,
             " steps, more than can be counted");
  std::vector<Index> skipped;
  for (const auto& entry : optimizer.parameters()) {
    const std::string key = detail::skipped_key(entry.name);
    const std::uint64_t count = file.metadata().contains(key) ? detail::training_number(file, key) : 0;
    HEED_CHECK(count <= steps, FormatError, "heed::load_checkpoint: file ", file.file(), ", metadata ",
               detail::in_quotes(key), ": ", count, " is more than the ", steps, " steps");
    skipped.push_back(static_cast<Index>(count));
  }
  detail::Training<Model, Optimizer> training{model, optimizer};
  load_parameters(training, file);
  optimizer.set_steps(static_cast<Index>(steps));
  for (std::size_t i = 0; i < skipped.size(); ++i) optimizer.set_skipped_steps(static_cast<Index>(i), skipped[i]);
  context.seed = seed;
  context.restart_streams(stream);
  return optimizer.steps();
}
/// @overload
template <class Model, class Optimizer>
Index load_checkpoint(const std::string& path, Model& model, Optimizer& optimizer, Context& context) {
  return load_checkpoint(SafeTensors::open(path), model, optimizer, context);
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
