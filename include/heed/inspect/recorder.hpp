// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Recorder: an observer that keeps what the layers of one forward did, for pictures and diagnostics.
///
///     heed::Recorder recorder({.weights = {"layers.*.self_attn"}});
///     context.observer = &recorder;
///     encoder.forward(x, mask, y, context);
///     context.observer = nullptr;
///     heed::save_attention_html("attention.html", recorder, {.labels = {{.queries = tokens}}});
///     std::puts(heed::diagnose(recorder).text().c_str());

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/core/tensor.hpp>
#include <heed/io/text.hpp>
#include <heed/train/monitor.hpp>

HEED_NAMESPACE_BEGIN

struct RecorderOptions {
  /// Names of attention layers, "layers.0.self_attn", whose weights and masks are kept; a '*' stands for any text. Each
  /// costs B·H·Lq·Lk numbers.
  std::vector<std::string> weights = {"*"};
  /// Names of layers of whose outputs statistics are kept.
  std::vector<std::string> outputs = {"*"};
};

/// What one attention layer did.
struct RecordedAttention {
  std::string layer;
  /// (B, H, Lq, Lk), before dropout.
  Tensor<double, 4> weights;
  /// (B, H, Lq, Lk), 1 where the key is visible. A visible weight may be 0 too, when it is too small for the model's T.
  Tensor<unsigned char, 4> mask;
};

/// The numbers of one layer's output. All but the count of those that are not finite leave these out.
struct OutputStatistics {
  std::string layer;
  Index size = 0, not_finite = 0;              ///< how many numbers
  double smallest = 0, largest = 0, mean = 0;  ///< of the finite ones
  /// The standard deviation.
  double stddev = 0;
};

/// Keeps the weights and masks of chosen attention layers and statistics of chosen outputs, each from the layer's
/// latest call, and the first number that is not finite. One thread at a time uses it, as it does a Context.
class Recorder final : public Observer {
 public:
  /// Everything, unless the options name less.
  explicit Recorder(RecorderOptions options = {}) : options_(std::move(options)) {}

  void output(std::string_view name, const ObservedTensor& value) override {
    finite_.output(name, value);
    if (is_among(options_.outputs, name)) entry_of(outputs_, name) = statistics_of(name, value);
  }
  bool wants_weights(std::string_view name) override { return is_among(options_.weights, name); }
  void mask(std::string_view name, const Extents<4>& extents, ObservedMask visible) override {
    mask_ = Tensor<unsigned char, 4>(extents);
    mask_layer_ = name;
    unsigned char* to = mask_.data();
    for_each(extents, [&](int b, int h, int q, int k) { *to++ = visible(b, h, q, k); });
  }
  /// Without a mask() before it, keys of weight 0 count as hidden.
  void weights(std::string_view name, const ObservedTensor& value) override {
    const Extents<4> extents{value.extent(0), value.extent(1), value.extent(2), value.extent(3)};
    RecordedAttention record{std::string(name), Tensor<double, 4>(extents), {}};
    double* to = record.weights.data();
    for_each(extents, [&](int b, int h, int q, int k) { *to++ = value(b, h, q, k); });
    if (mask_layer_ != name || mask_.extents() != extents) {
      mask_ = Tensor<unsigned char, 4>(extents);
      std::transform(record.weights.data(), to, mask_.data(), [](double w) { return w != 0; });
    }
    record.mask = std::exchange(mask_, {});
    mask_layer_.clear();
    entry_of(attention_, name) = std::move(record);
  }

  /// What was recorded, in the order in which the layers first ran.
  const std::vector<RecordedAttention>& attention() const { return attention_; }
  /// The outputs, in the same order.
  const std::vector<OutputStatistics>& outputs() const { return outputs_; }
  /// The first output that was not finite: found(), layer(), value(), index(), place().
  const FiniteObserver& finite() const { return finite_; }

  /// One attention layer; of(name).weights.view()[b][h] is the matrix of one head. Throws ValueError when it was not
  /// seen.
  const RecordedAttention& of(std::string_view layer) const {
    std::string seen;
    for (const RecordedAttention& one : attention_) {
      if (one.layer == layer) return one;
      seen += detail::concat(seen.empty() ? "" : ", ", one.layer);
    }
    detail::raise<ValueError>("heed::Recorder: no weights of layer ", detail::in_quotes(layer), "; recorded: ",
                              seen.empty() ? std::string("none, was the recorder the context's observer?") : seen);
  }
  /// Forgets everything, for another forward.
  void clear() {
    attention_.clear();
    outputs_.clear();
    finite_ = {};
  }

 private:
  static bool is_among(const std::vector<std::string>& patterns, std::string_view name) {
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](const std::string& pattern) { return detail::matches(pattern, name); });
  }
  template <class F>
  static void for_each(const Extents<4>& extents, F&& f) {
    for (int b = 0; b < extents[0]; ++b) {
      for (int h = 0; h < extents[1]; ++h) {
        for (int q = 0; q < extents[2]; ++q) {
          for (int k = 0; k < extents[3]; ++k) f(b, h, q, k);
        }
      }
    }
  }
  template <class Record>
  static Record& entry_of(std::vector<Record>& records, std::string_view name) {
    const auto found =
        std::find_if(records.begin(), records.end(), [&](const Record& record) { return record.layer == name; });
    return found != records.end() ? *found : records.emplace_back();
  }

  static OutputStatistics statistics_of(std::string_view name, const ObservedTensor& value) {
    OutputStatistics s{.layer = std::string(name)};
    Extents<4> extents{1, 1, 1, 1};
    for (int d = 0; d < value.rank(); ++d) extents[static_cast<std::size_t>(d)] = value.extent(d);
    double count = 0, squares = 0;
    // Dimensions beyond the rank have the stride 0. Welford's recurrence: a mean far from 0 costs no digits.
    for_each(extents, [&](int b, int h, int q, int k) {
      const double x = value(b, h, q, k);
      ++s.size;
      if (!std::isfinite(x)) {
        ++s.not_finite;
        return;
      }
      s.smallest = count == 0 ? x : std::min(s.smallest, x);
      s.largest = count == 0 ? x : std::max(s.largest, x);
      const double step = x - s.mean;
      s.mean += step / ++count;
      squares += step * (x - s.mean);
    });
    if (count > 0) s.stddev = std::sqrt(squares / count);
    return s;
  }

  RecorderOptions options_;
  std::vector<RecordedAttention> attention_;
  std::vector<OutputStatistics> outputs_;
  FiniteObserver finite_;
  Tensor<unsigned char, 4> mask_;
  std::string mask_layer_;
};

HEED_NAMESPACE_END
