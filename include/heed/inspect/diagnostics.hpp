// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// What is wrong with a model's attention: numbers of each head, and findings where they are out of the ordinary.
///
///     heed::Recorder recorder;
///     context.observer = &recorder;
///     encoder.forward(x, mask, y, context);
///     const heed::Diagnosis diagnosis = heed::diagnose(recorder, encoder);
///     std::puts(diagnosis.text().c_str());                   // or .json()

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/core/tensor.hpp>
#include <heed/inspect/json.hpp>
#include <heed/inspect/recorder.hpp>

HEED_NAMESPACE_BEGIN

/// Where the ordinary ends. The defaults leave trained encoders in peace and catch what is broken.
struct DiagnosticOptions {
  /// A head is judged by this many queries at least: chance makes a few of them look like anything.
  Index min_rows = 8;
  /// Share of a layer's heads that must stand out in the same way before that is a finding. Sound models have single
  /// heads that do: of MiniLM's 12 in a layer, one looks at nothing but its own position, one or two at the first
  /// token, three at all words alike where the text repeats itself. A fault of the layer takes all of them.
  double share_of_heads = 0.5;
  /// Mean entropy over log(visible keys) from which a head counts as uniform: it takes the mean of its keys and ignores
  /// the query. Scores that are nearly 0 give 0.999, broad heads of trained models seldom more than 0.97.
  double uniform_entropy = 0.985;
  /// How many of the first keys that a query sees count as the first tokens.
  Index first_tokens = 1;
  /// Mean weight on them from which a head only puts its weight aside there (an attention sink; Xiao et al., 2023).
  double sink_weight = 0.95;
  /// A row whose largest weight is above it is saturated: its softmax passes next to no gradient.
  double saturated_weight = 0.99;
  /// Share of saturated rows from which a head counts as saturated. Heads that look at a neighbor saturate most of
  /// their rows and are sound; scores that miss their 1/√Dk saturate nearly all.
  double saturated_share = 0.9;
  /// Absolute cosine of two projections, as vectors of all their numbers, from which they count as proportional.
  /// Independent ones of n numbers have about 1/√n, and trained ones stay below 0.5.
  double proportional = 0.9;
};

/// What can be out of the ordinary; DiagnosticOptions tells from where on.
enum class FindingKind { NearlyUniform, AttentionSink, Saturated, NoVisibleKey, NotFinite, ProportionalProjections };

/// "nearly_uniform" and so on.
inline std::string_view to_string(FindingKind kind) {
  constexpr std::string_view names[] = {"nearly_uniform", "attention_sink", "saturated",
                                        "no_visible_key", "not_finite",     "proportional_projections"};
  return names[static_cast<std::size_t>(kind)];
}

/// One thing that is out of the ordinary.
struct Finding {
  FindingKind kind;
  std::string layer;
  /// The heads that it is about; none where it is about the whole layer.
  std::vector<Index> heads = {};
  /// The number behind it: of the heads the mean entropy, weight or share; a count of rows; a cosine; what is not
  /// finite.
  double value = 0;
  /// What was found, and what to look at.
  std::string text = {};
};

/// The numbers of one head, over the queries of all samples. NaN where no query counts.
struct HeadStatistics {
  std::string layer;
  Index head = 0;
  /// Queries; of these, those that see no key, and those with a weight that is not finite. Neither counts below.
  Index queries = 0, without_keys = 0, not_finite = 0;
  /// Queries that see two keys or more: only these have a choice, and only these count below.
  Index rows = 0;
  /// Mean of -Σ w·log w / log(visible keys): 0 looks at one key, 1 at all alike.
  double entropy = 0;
  /// Mean weight on the first keys that the query sees, over queries that see more than those and one other.
  double first_weight = 0;
  /// Share of rows whose largest weight is above saturated_weight.
  double saturated = 0;
  /// What it stands out by, if by anything: one of NearlyUniform, AttentionSink, Saturated.
  std::vector<FindingKind> marks = {};
};

/// Cosines of the query, key and value weights of one layer. NaN where the shapes differ.
struct ProjectionCosines {
  std::string layer;
  double query_key, query_value, key_value;  ///< of the two weights as vectors
};

/// What diagnose() found.
struct Diagnosis {
  std::vector<Finding> findings;               ///< what is out of the ordinary
  std::vector<HeadStatistics> heads;           ///< of all heads that were recorded
  std::vector<ProjectionCosines> projections;  ///< of all attention layers of the model, where it was given
  std::vector<OutputStatistics> outputs;       ///< of all outputs that were recorded

  /// A report for people: the findings, then the numbers of each head.
  std::string text() const;
  /// The same with all numbers: {"findings": [...], "heads": [...], "projections": [...], "outputs": [...]}.
  std::string json() const;
};

namespace detail {

/// The statistics of head h, over all samples or over one.
inline HeadStatistics head_statistics(const RecordedAttention& attention, Index h, const DiagnosticOptions& options,
                                      std::optional<Index> sample = {}) {
  HeadStatistics s{.layer = attention.layer, .head = h};
  const auto& e = attention.weights.extents();
  Index sink_rows = 0;
  for (Index b = sample.value_or(0); b < (sample ? *sample + 1 : e[0]); ++b) {
    for (Index q = 0; q < e[2]; ++q) {
      ++s.queries;
      Index visible = 0;
      double sum = 0, first = 0, largest = 0, entropy = 0;
      for (Index k = 0; k < e[3]; ++k) {
        if (!attention.mask(b, h, q, k)) continue;
        const double w = attention.weights(b, h, q, k);
        if (visible++ < options.first_tokens) first += w;
        sum += w;
        largest = std::max(largest, w);
        if (w > 0) entropy -= w * std::log(w);
      }
      if (visible == 0) ++s.without_keys;
      if (!std::isfinite(sum)) ++s.not_finite;
      if (visible < 2 || !(sum > 0) || !std::isfinite(sum)) continue;
      ++s.rows;
      // Sinks in the denominator leave less than 1 for the keys.
      s.entropy += (entropy / sum + std::log(sum)) / std::log(static_cast<double>(visible));
      s.saturated += largest > options.saturated_weight;
      if (visible < options.first_tokens + 2) continue;
      ++sink_rows;
      s.first_weight += first;
    }
  }
  s.entropy /= static_cast<double>(s.rows);
  s.saturated /= static_cast<double>(s.rows);
  s.first_weight /= static_cast<double>(sink_rows);
  return s;
}

/// What a head stands out by, where enough queries tell.
inline std::vector<FindingKind> marks_of(const HeadStatistics& s, const DiagnosticOptions& options) {
  std::vector<FindingKind> marks;
  if (s.rows < options.min_rows) return marks;
  if (s.entropy >= options.uniform_entropy) marks.push_back(FindingKind::NearlyUniform);
  if (s.first_weight >= options.sink_weight) marks.push_back(FindingKind::AttentionSink);
  if (s.saturated >= options.saturated_share) marks.push_back(FindingKind::Saturated);
  return marks;
}

/// The finding that many heads of a layer have this mark, if they do.
inline void judge_marks(const std::vector<HeadStatistics>& heads, FindingKind kind, double HeadStatistics::* number,
                        std::string_view what, std::string_view cause, const DiagnosticOptions& options,
                        std::vector<Finding>& findings) {
  Finding finding{.kind = kind, .layer = heads.front().layer};
  Index judged = 0;
  std::string list;
  for (const HeadStatistics& s : heads) {
    judged += s.rows >= options.min_rows;
    if (std::find(s.marks.begin(), s.marks.end(), kind) == s.marks.end()) continue;
    finding.heads.push_back(s.head);
    finding.value += s.*number;
    list += concat(list.empty() ? "" : ", ", s.head);
  }
  const auto count = static_cast<double>(finding.heads.size());
  if (finding.heads.empty() || count < options.share_of_heads * static_cast<double>(judged)) return;
  finding.value /= count;
  finding.text = concat(finding.heads.size(), " of ", heads.size(), " heads (", list, "): ", what, ' ', finding.value,
                        "; ", cause);
  findings.push_back(std::move(finding));
}

inline void judge_layer(const std::vector<HeadStatistics>& heads, const DiagnosticOptions& options,
                        std::vector<Finding>& findings) {
  if (heads.empty()) return;
  judge_marks(heads, FindingKind::NearlyUniform, &HeadStatistics::entropy, "the mean entropy over log(visible keys) is",
              "they take the mean of their keys, whatever the query: look at the scale, at weights still near 0, at a "
              "learning rate that is too small",
              options, findings);
  judge_marks(heads, FindingKind::AttentionSink, &HeadStatistics::first_weight,
              "the mean weight on the first keys that a query sees is",
              "they do nothing, or what stands there is out of bounds", options, findings);
  judge_marks(heads, FindingKind::Saturated, &HeadStatistics::saturated,
              concat("the share of rows with a weight above ", options.saturated_weight, " is"),
              "next to no gradient passes: look at the scale, 1/\u221ADk by default, and at weights that have grown",
              options, findings);
  Index without = 0, queries = 0, broken = 0;
  for (const HeadStatistics& s : heads) {
    without += s.without_keys;
    broken += s.not_finite;
    queries += s.queries;
  }
  const auto find = [&](FindingKind kind, Index count, std::string_view text) {
    if (count == 0) return;
    findings.push_back({.kind = kind,
                        .layer = heads.front().layer,
                        .value = static_cast<double>(count),
                        .text = concat(count, " of ", queries, " rows ", text)});
  };
  find(FindingKind::NoVisibleKey, without,
       "see no key, and attention gives them 0; right for padded queries, else look at the mask with heed::lint");
  find(FindingKind::NotFinite, broken, "have a weight that is not finite");
}

/// The rank-2 parameters of a model by name, and what compares those of one attention layer.
class ProjectionFinder {
 public:
  void add(std::string_view name, const ObservedTensor& value) { parameters_.emplace(std::string(name), value); }

  /// `recorder` tells the number of heads where key heads are shared.
  std::vector<ProjectionCosines> find(const Recorder& recorder) const {
    std::vector<ProjectionCosines> found;
    for (const auto& [name, value] : parameters_) {
      if (const auto layer = without_suffix(name, "in_proj_weight")) {
        if (const auto* out = get(*layer, "out_proj.weight")) {
          found.push_back(joint(*layer, value, out->extent(1), heads_of(recorder, *layer)));
        }
      }
      for (const std::string_view form : {"q_proj_weight", "q_proj.weight"}) {
        const auto layer = without_suffix(name, form);
        if (!layer) continue;
        const auto *k = get(*layer, concat('k', form.substr(1))), *v = get(*layer, concat('v', form.substr(1)));
        if (k && v)
          found.push_back(
              {*layer, cosine(whole(value), whole(*k)), cosine(whole(value), whole(*v)), cosine(whole(*k), whole(*v))});
      }
    }
    return found;
  }

 private:
  /// Rows first, ..., first + rows - 1. Where heads share keys, `repeat` rows of blocks of `block` rows stand for one.
  struct Rows {
    const ObservedTensor* matrix;
    Index first, rows, block = 1, repeat = 1;
    Index row(Index i) const { return first + i / block / repeat * block + i % block; }
  };
  static Rows whole(const ObservedTensor& m) { return {&m, 0, m.extent(0)}; }

  static std::optional<std::string> without_suffix(std::string_view name, std::string_view suffix) {
    if (!name.ends_with(suffix)) return {};
    name.remove_suffix(suffix.size());
    if (!name.empty() && name.back() != '.') return {};
    if (!name.empty()) name.remove_suffix(1);
    return std::string(name);
  }
  const ObservedTensor* get(const std::string& layer, std::string_view name) const {
    const auto entry = parameters_.find(layer.empty() ? std::string(name) : concat(layer, '.', name));
    return entry == parameters_.end() ? nullptr : &entry->second;
  }
  static Index heads_of(const Recorder& recorder, std::string_view layer) {
    for (const RecordedAttention& one : recorder.attention()) {
      if (one.layer == layer) return one.weights.extent(1);
    }
    return 0;
  }

  static double cosine(const Rows& a, const Rows& b) {
    if (a.rows != b.rows || a.matrix->extent(1) != b.matrix->extent(1)) return std::numeric_limits<double>::quiet_NaN();
    double product = 0, squares_a = 0, squares_b = 0;
    for (Index i = 0; i < a.rows; ++i) {
      for (Index j = 0; j < a.matrix->extent(1); ++j) {
        const double x = (*a.matrix)(a.row(i), j), y = (*b.matrix)(b.row(i), j);
        product += x * y;
        squares_a += x * x;
        squares_b += y * y;
      }
    }
    return product / std::sqrt(squares_a * squares_b);
  }
  /// in_proj_weight holds H·Dk rows of queries, G·Dk of keys and G·Dv of values; Dk = Dv is taken for granted.
  static ProjectionCosines joint(const std::string& layer, const ObservedTensor& weight, Index query_rows,
                                 Index heads) {
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    const Index key_rows = (weight.extent(0) - query_rows) / 2;
    if (key_rows < 1 || weight.extent(0) != query_rows + 2 * key_rows || query_rows % key_rows != 0) {
      return {layer, nan, nan, nan};
    }
    const Rows keys{&weight, query_rows, key_rows}, values{&weight, query_rows + key_rows, key_rows};
    ProjectionCosines cosines{layer, nan, nan, cosine(keys, values)};
    const Index repeat = query_rows / key_rows;
    if (repeat > 1 && (heads == 0 || heads % repeat != 0 || query_rows % heads != 0)) return cosines;
    const Rows queries{&weight, 0, query_rows};
    const auto shared = [&](Rows rows) {
      return Rows{rows.matrix, rows.first, query_rows, repeat > 1 ? query_rows / heads : 1, repeat};
    };
    cosines.query_key = cosine(queries, shared(keys));
    cosines.query_value = cosine(queries, shared(values));
    return cosines;
  }

  std::map<std::string, ObservedTensor, std::less<>> parameters_;
};

inline void judge_projections(const ProjectionCosines& one, const DiagnosticOptions& options,
                              std::vector<Finding>& findings) {
  const auto judge = [&](double cosine, std::string_view a, std::string_view b) {
    if (!(std::abs(cosine) >= options.proportional)) return;
    findings.push_back({FindingKind::ProportionalProjections,
                        one.layer,
                        {},
                        cosine,
                        concat("the ", a, " and ", b, " projections are proportional, cosine ", cosine,
                               ": one was loaded or started from the other")});
  };
  judge(one.query_key, "query", "key");
  judge(one.query_value, "query", "value");
  judge(one.key_value, "key", "value");
}

}  // namespace detail

/// Judges what the recorder kept: each head's entropy, weight on the first tokens and saturation, queries without a
/// visible key, and the first number that is not finite.
inline Diagnosis diagnose(const Recorder& recorder, const DiagnosticOptions& options = {}) {
  Diagnosis diagnosis;
  diagnosis.outputs = recorder.outputs();
  if (recorder.finite().found()) {
    diagnosis.findings.push_back({FindingKind::NotFinite,
                                  recorder.finite().layer(),
                                  {},
                                  recorder.finite().value(),
                                  detail::concat("the first output that is not finite: ", recorder.finite().place())});
  }
  for (const RecordedAttention& attention : recorder.attention()) {
    std::vector<HeadStatistics> heads;
    for (Index h = 0; h < attention.weights.extent(1); ++h) {
      heads.push_back(detail::head_statistics(attention, h, options));
      heads.back().marks = detail::marks_of(heads.back(), options);
    }
    detail::judge_layer(heads, options, diagnosis.findings);
    diagnosis.heads.insert(diagnosis.heads.end(), heads.begin(), heads.end());
  }
  return diagnosis;
}

/// The same, and whether the query, key and value projections of an attention layer of the model are nearly
/// proportional. Weights that were released after packing are not compared.
template <class Model>
requires(!std::is_same_v<std::remove_const_t<Model>, DiagnosticOptions>)
Diagnosis diagnose(const Recorder& recorder, Model& model, const DiagnosticOptions& options = {}) {
  Diagnosis diagnosis = diagnose(recorder, options);
  detail::ProjectionFinder finder;
  model.visit("", [&](std::string_view name, auto& parameter) {
    if (parameter.rank() == 2 && !parameter.released()) finder.add(name, ObservedTensor(parameter.matrix()));
  });
  diagnosis.projections = finder.find(recorder);
  for (const ProjectionCosines& one : diagnosis.projections) {
    detail::judge_projections(one, options, diagnosis.findings);
  }
  return diagnosis;
}

inline std::string Diagnosis::text() const {
  using detail::concat;
  std::string report =
      findings.empty() ? "no findings\n" : concat(findings.size(), findings.size() == 1 ? " finding\n" : " findings\n");
  for (const Finding& f : findings) {
    report += concat("  ", to_string(f.kind), ": ", f.layer.empty() ? "the model" : f.layer, ": ", f.text, '\n');
  }
  std::string_view layer;
  for (const HeadStatistics& s : heads) {
    if (s.head == 0 || s.layer != layer) {
      layer = s.layer;
      report += concat(layer.empty() ? "attention" : layer, "\n  head  entropy  first key  saturated\n");
    }
    const auto column = [&](double x, std::size_t width) {
      const std::string number = std::isnan(x) ? "-" : detail::fixed_text(x, 3);
      report += std::string(width > number.size() ? width - number.size() : 0, ' ') + number;
    };
    const std::string head = std::to_string(s.head);
    report += std::string(head.size() < 6 ? 6 - head.size() : 0, ' ') + head;
    column(s.entropy, 9);
    column(s.first_weight, 11);
    column(s.saturated, 11);
    for (const FindingKind mark : s.marks) report += concat("  ", to_string(mark));
    report += '\n';
  }
  return report;
}

inline std::string Diagnosis::json() const {
  detail::JsonWriter json;
  json.open('{').key("findings").open('[');
  for (const Finding& f : findings) {
    json.open('{').key("kind").value(to_string(f.kind)).key("layer").value(f.layer).key("heads").open('[');
    for (const Index head : f.heads) json.value(head);
    json.close(']').key("value").value(f.value).key("text").value(f.text).close('}');
  }
  json.close(']').key("heads").open('[');
  for (const HeadStatistics& s : heads) {
    json.open('{').key("layer").value(s.layer).key("head").value(s.head).key("queries").value(s.queries);
    json.key("without_keys").value(s.without_keys).key("not_finite").value(s.not_finite).key("rows").value(s.rows);
    json.key("entropy").value(s.entropy).key("first_weight").value(s.first_weight);
    json.key("saturated").value(s.saturated).key("marks").open('[');
    for (const FindingKind mark : s.marks) json.value(to_string(mark));
    json.close(']').close('}');
  }
  json.close(']').key("projections").open('[');
  for (const ProjectionCosines& one : projections) {
    json.open('{').key("layer").value(one.layer).key("query_key").value(one.query_key);
    json.key("query_value").value(one.query_value).key("key_value").value(one.key_value).close('}');
  }
  json.close(']').key("outputs").open('[');
  for (const OutputStatistics& s : outputs) {
    json.open('{').key("layer").value(s.layer).key("size").value(s.size).key("not_finite").value(s.not_finite);
    json.key("smallest").value(s.smallest).key("largest").value(s.largest).key("mean").value(s.mean);
    json.key("stddev").value(s.stddev).close('}');
  }
  return json.close(']').close('}').take();
}

HEED_NAMESPACE_END
