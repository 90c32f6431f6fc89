// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// diagnose(): computes statistics of each attention head and reports unusual ones as findings.
///
///     const heed::Recorder recorder = heed::record(context, [&] { encoder(x, mask, context); });
///     const heed::Diagnosis diagnosis = heed::diagnose(recorder, encoder);
///     std::puts(diagnosis.text().c_str());                   // or .json()

#include <map>
#include <vector>

#include <heed/inspect/recorder.hpp>
#include <heed/io/json.hpp>

HEED_NAMESPACE_BEGIN

/// Thresholds of diagnose(). The defaults do not flag healthy trained encoders.
struct DiagnosticOptions {
  /// Minimum number of queries for judging a head, since a few queries can have any statistics by chance.
  Index min_rows = 8;
  /// Share of a layer's heads that must have the same mark for a finding. Single heads of healthy models have marks: of
  /// the 12 heads in a layer of MiniLM, one attends only to its own position, one or two to the first token, and three
  /// are uniform on repetitive text. A fault of the layer affects all heads.
  double share_of_heads = 0.5;
  /// Minimum mean entropy / log(visible keys) of a uniform head, which averages its keys and ignores the query. Scores
  /// near 0 give 0.999; broad heads of trained models seldom exceed 0.97.
  double uniform_entropy = 0.985;
  /// Number of visible keys, from the first on, that count as first tokens.
  Index first_tokens = 1;
  /// Minimum mean weight on the first tokens of an attention sink (Xiao et al., 2023).
  double sink_weight = 0.95;
  /// A row is saturated if its largest weight exceeds this: almost no gradient passes its softmax.
  double saturated_weight = 0.99;
  /// Minimum share of saturated rows of a saturated head. Healthy heads that attend to a neighbor saturate most rows;
  /// scores without the factor 1/√Dk saturate nearly all.
  double saturated_share = 0.9;
  /// Minimum absolute cosine of two proportional projections, taken as vectors. Independent ones of n numbers have
  /// about 1/√n; trained ones stay below 0.5.
  double proportional = 0.9;
};

/// The kind of a finding. DiagnosticOptions has the thresholds.
enum class FindingKind {
  NearlyUniform,           ///< heads average their keys and ignore the query
  AttentionSink,           ///< heads attend to the first tokens only
  Saturated,               ///< almost all weight is on one key in nearly all rows
  NoVisibleKey,            ///< queries see no key
  NotFinite,               ///< a weight or an output is NaN or infinite
  ProportionalProjections  ///< two of the query, key and value weights are proportional
};

/// The name in snake case, such as "nearly_uniform".
inline std::string_view to_string(FindingKind kind) {
  constexpr std::string_view names[] = {"nearly_uniform", "attention_sink", "saturated",
                                        "no_visible_key", "not_finite",     "proportional_projections"};
  return names[static_cast<std::size_t>(kind)];
}

/// An unusual property of a layer or of the model.
struct Finding {
  FindingKind kind;               ///< its kind
  std::string layer;              ///< name of the layer
  std::vector<Index> heads = {};  ///< the heads concerned; empty for the whole layer
  /// The number behind the finding: the heads' mean entropy, weight or share; a number of rows; a cosine; or the value
  /// that is not finite.
  double value = 0;
  std::string text = {};  ///< a sentence for people, with advice
};

/// Statistics of one head over the queries of all samples. Means are NaN if there is no query to average.
struct HeadStatistics {
  std::string layer;       ///< name of the layer
  Index head = 0;          ///< index of the head
  Index queries = 0;       ///< all queries
  Index without_keys = 0;  ///< queries that see no key
  Index not_finite = 0;    ///< queries with a weight that is NaN or infinite
  /// Queries with finite weights that see at least two keys. Only these are averaged below.
  Index rows = 0;
  /// Mean of -Σ w·log w / log(visible keys): 0 if all weight is on one key, 1 if it is uniform.
  double entropy = 0;
  /// Mean weight on the first tokens, over queries that see at least two keys more.
  double first_weight = 0;
  /// Share of rows whose largest weight exceeds saturated_weight.
  double saturated = 0;
  /// Any of NearlyUniform, AttentionSink, Saturated.
  std::vector<FindingKind> marks = {};
};

/// Cosines between the weights of one attention layer, each taken as a vector. NaN if their shapes differ.
struct ProjectionCosines {
  std::string layer;   ///< name of the layer
  double query_key;    ///< query and key weights
  double query_value;  ///< query and value weights
  double key_value;    ///< key and value weights
};

/// The result of diagnose().
struct Diagnosis {
  std::vector<Finding> findings;               ///< unusual properties, in the order of the layers
  std::vector<HeadStatistics> heads;           ///< all recorded heads
  std::vector<ProjectionCosines> projections;  ///< all attention layers, if a model was given
  std::vector<OutputStatistics> outputs;       ///< all recorded outputs

  /// A report for people: the findings, then the statistics of each head.
  std::string text() const;
  /// All of it as JSON: {"findings": [...], "heads": [...], "projections": [...], "outputs": [...]}.
  std::string json() const;
};

namespace detail {

/// Statistics of head h, over all samples or one.
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
      if (!detail::is_finite(sum)) ++s.not_finite;
      if (visible < 2 || !(sum > 0) || !detail::is_finite(sum)) continue;
      ++s.rows;
      // With sinks in the denominator, the weights of the keys sum to less than 1.
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

/// The marks of a head; none if it has too few queries.
inline std::vector<FindingKind> marks_of(const HeadStatistics& s, const DiagnosticOptions& options) {
  std::vector<FindingKind> marks;
  if (s.rows < options.min_rows) return marks;
  if (s.entropy >= options.uniform_entropy) marks.push_back(FindingKind::NearlyUniform);
  if (s.first_weight >= options.sink_weight) marks.push_back(FindingKind::AttentionSink);
  if (s.saturated >= options.saturated_share) marks.push_back(FindingKind::Saturated);
  return marks;
}

/// Adds a finding if enough heads of a layer have this mark.
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
              "they average their keys and ignore the query; check the scale, weights that are still near 0, and the "
              "learning rate",
              options, findings);
  judge_marks(heads, FindingKind::AttentionSink, &HeadStatistics::first_weight,
              "the mean weight on the first keys that a query sees is",
              "they do nothing, or the inputs at these positions are out of range", options, findings);
  judge_marks(heads, FindingKind::Saturated, &HeadStatistics::saturated,
              concat("the share of rows with a weight above ", options.saturated_weight, " is"),
              "almost no gradient passes; check the scale, 1/\u221ADk by default, and weights that have grown", options,
              findings);
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
       "see no key, so that their output is 0; this is right for padded queries, otherwise check the mask with "
       "heed::lint");
  find(FindingKind::NotFinite, broken, "have a weight that is not finite");
}

/// Collects the rank-2 parameters of a model and compares those of each attention layer.
class ProjectionFinder {
 public:
  void add(std::string_view name, const ObservedTensor& value) { parameters_.emplace(std::string(name), value); }

  /// `recorder` supplies the number of heads, which is needed if key heads are shared.
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
  /// Rows first, ..., first + rows - 1. If heads share keys, each block of `block` rows is repeated `repeat` times.
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
  /// in_proj_weight has H·Dk rows for queries, G·Dk for keys and G·Dv for values; assumes Dk = Dv.
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
                               "; check that one was not loaded or initialized from the other")});
  };
  judge(one.query_key, "query", "key");
  judge(one.query_value, "query", "value");
  judge(one.key_value, "key", "value");
}

}  // namespace detail

/// Judges a record: the entropy, the weight on the first tokens and the saturation of each head, queries without
/// visible keys, and the first output that is not finite.
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

/// Also compares the query, key and value projections of each attention layer of the model. Weights that were released
/// after packing are skipped.
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
    report += concat("  ", to_string(f.kind), ": ", f.layer.empty() ? "the model" : detail::printable(f.layer), ": ",
                     f.text, '\n');
  }
  std::string_view layer;
  for (const HeadStatistics& s : heads) {
    if (s.head == 0 || s.layer != layer) {
      layer = s.layer;
      report +=
          concat(layer.empty() ? "attention" : detail::printable(layer), "\n  head  entropy  first key  saturated\n");
    }
    const auto column = [&](double x, std::size_t width) {
      const std::string number = detail::is_nan(x) ? "-" : detail::fixed_text(x, 3);
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

#include <heed/core/restore_macros.hpp>
