// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Records attention weights and output statistics of a forward pass, for pictures and diagnostics.
///
///     const heed::Recorder recorder = heed::record(context, [&] { encoder(x, mask, context); });
///     heed::save_attention_html("attention.html", recorder, {.labels = {{.queries = tokens}}});
///     std::puts(heed::diagnose(recorder).text().c_str());

#include <vector>

#include <heed/core/core.hpp>
#include <heed/io/text.hpp>

HEED_NAMESPACE_BEGIN

/// Options of a Recorder. In a name, '*' matches any text: "layers.*.self_attn".
struct RecorderOptions {
  /// Names of attention layers whose weights and masks are kept, B·H·Lq·Lk numbers for each.
  std::vector<std::string> weights = {"*"};
  /// Names of layers whose output statistics are kept.
  std::vector<std::string> outputs = {"*"};
};

/// The weights and the mask of one attention layer.
struct RecordedAttention {
  std::string layer;          ///< name of the layer
  Tensor<double, 4> weights;  ///< (B, H, Lq, Lk), before dropout
  /// (B, H, Lq, Lk), 1 where the key is visible. A visible weight can be 0 too, if it is too small for the model's T.
  Tensor<unsigned char, 4> mask;
};

/// Statistics of the output of one layer.
struct OutputStatistics {
  std::string layer;     ///< name of the layer
  Index size = 0;        ///< number of elements
  Index not_finite = 0;  ///< number of elements that are NaN or infinite; the statistics below omit them
  double smallest = 0;   ///< minimum
  double largest = 0;    ///< maximum
  double mean = 0;       ///< mean
  double stddev = 0;     ///< standard deviation
};

/// Keeps the weights and masks of attention layers, statistics of outputs, each of the layer's last call, and the first
/// output that is not finite. Like a Context, it serves one thread at a time.
class Recorder final : public Observer {
 public:
  /// Records everything by default.
  explicit Recorder(RecorderOptions options = {}) : options_(std::move(options)) {}

  /// Keeps statistics of an output. Layers call this and the next three functions through the context.
  void output(std::string_view name, const ObservedTensor& value) override {
    finite_.output(name, value);
    if (is_among(options_.outputs, name)) entry_of(outputs_, name) = statistics_of(name, value);
  }
  /// True if the options name this layer.
  bool wants_weights(std::string_view name) override { return is_among(options_.weights, name); }
  /// Keeps the mask for the call of weights() that follows.
  void mask(std::string_view name, const Extents<4>& extents, ObservedMask visible) override {
    mask_ = Tensor<unsigned char, 4>(extents);
    mask_layer_ = name;
    unsigned char* to = mask_.data();
    for_each(extents, [&](int b, int h, int q, int k) { *to++ = visible(b, h, q, k); });
  }
  /// Keeps the weights. If no call of mask() came before, keys of weight 0 count as hidden.
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

  /// The attention layers, in the order in which they first ran.
  const std::vector<RecordedAttention>& attention() const { return attention_; }
  /// The outputs, in the same order.
  const std::vector<OutputStatistics>& outputs() const { return outputs_; }
  /// The first output that was not finite.
  const FiniteObserver& finite() const { return finite_; }

  /// The attention layer of this name; of(name).weights.view()[b][h] is the matrix of one head. Throws ValueError if it
  /// was not recorded.
  const RecordedAttention& of(std::string_view layer) const {
    std::string seen;
    for (const RecordedAttention& one : attention_) {
      if (one.layer == layer) return one;
      seen += detail::concat(seen.empty() ? "" : ", ", one.layer);
    }
    detail::raise<ValueError>("heed::Recorder: no weights of layer ", detail::in_quotes(layer), "; recorded: ",
                              seen.empty() ? std::string("none, was the recorder the context's observer?") : seen);
  }
  /// Removes everything recorded.
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
      if (!detail::is_finite(x)) {
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

/// Runs f, which calls layers with `context`, and returns a record of it. The context's observer is replaced while f
/// runs and restored afterwards, also if f throws.
template <class F>
Recorder record(Context& context, F&& f, RecorderOptions options = {}) {
  Recorder recorder(std::move(options));
  struct Restore {
    Context& context;
    Observer* before;
    ~Restore() { context.observer = before; }
  } const restore{context, std::exchange(context.observer, &recorder)};
  f();
  return recorder;
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
