// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Writes the attention of a whole model on a text as one self-contained HTML page, which shows all heads, one of them
/// enlarged, and the keys that each token attends to. It works offline in any browser.
///
///     const heed::Recorder recorder = heed::record(context, [&] { encoder(x, mask, context); });
///     heed::save_attention_html("attention.html", recorder, {.title = "MiniLM", .labels = {{.queries = tokens}}});

#include <vector>

#include <heed/inspect/color.hpp>
#include <heed/inspect/diagnostics.hpp>
#include <heed/inspect/html/script.hpp>
#include <heed/inspect/html/style.hpp>
#include <heed/inspect/recorder.hpp>
#include <heed/io/atomic_file.hpp>
#include <heed/io/json.hpp>

HEED_NAMESPACE_BEGIN

/// The tokens of some attention layers. They can be any text.
struct TokenLabels {
  std::string layers = "*";            ///< names of the layers; '*' matches any text: "*.multihead_attn"
  std::vector<std::string> queries;    ///< one for each query
  std::vector<std::string> keys = {};  ///< one for each key; empty means the queries' tokens
};

/// Options of attention_html().
struct AttentionPageOptions {
  std::string title = "Attention";  ///< shown at the top of the page
  Index sample = 0;                 ///< index in the batch
  /// Tokens; each layer takes the first entry that matches its name, or shows positions if there is none.
  std::vector<TokenLabels> labels = {};
  std::string layer = {};  ///< the layer whose head is enlarged at first; empty means the first one
  Index head = 0;          ///< the head of that layer
};

namespace detail {

inline std::string base64(const std::vector<std::uint8_t>& bytes) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](std::size_t at) { return at < bytes.size() ? std::uint32_t{bytes[at]} : 0U; };
    const std::uint32_t three = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
    for (std::size_t digit = 0; digit < 4; ++digit) {
      text += i + digit > bytes.size() ? '=' : digits[three >> (18 - 6 * digit) & 63U];
    }
  }
  return text;
}

/// Writes the data of a page as JSON. Texts and masks that layers or heads share are written once.
class AttentionPageData {
 public:
  AttentionPageData(const Recorder& recorder, const AttentionPageOptions& options)
      : layers_(recorder.attention()), options_(options) {
    HEED_CHECK(
        !layers_.empty(), ValueError, kName,
        ": the recorder has no weights; check that it was the context's observer and that its patterns match layers");
    Index count = 0;
    for (const RecordedAttention& layer : layers_) {
      check(layer);
      count += layer.weights.size() / layer.weights.extent(0);
    }
    // 16 bits hold all digits that the page shows, but take many megabytes in large pages.
    bits_ = count <= 500'000 ? 16 : 8;
  }

  std::string write() {
    JsonWriter layers = JsonWriter::for_html();
    layers.open('[');
    for (const RecordedAttention& layer : layers_) write_layer(layer, layers);
    layers.close(']');

    JsonWriter json = JsonWriter::for_html();
    json.open('{').key("title").value(options_.title).key("bits").value(bits_);
    json.key("layer").value(first_layer()).key("head").value(options_.head);
    json.key("colors").value(colors()).key("texts").open('[');
    for (const std::vector<std::string>& text : texts_) {
      json.open('[');
      for (const std::string& token : text) json.value(token);
      json.close(']');
    }
    json.close(']').key("masks").open('[');
    for (const std::string& mask : masks_) json.value(mask);
    return json.close(']').key("layers").raw(layers.take()).close('}').take();
  }

 private:
  static constexpr std::string_view kName = "heed::attention_html";

  void check(const RecordedAttention& layer) const {
    const auto& e = layer.weights.extents();
    HEED_CHECK(options_.sample >= 0 && options_.sample < e[0], ValueError, kName, ": sample = ", options_.sample,
               " but layer ", in_quotes(layer.layer), " has B = ", e[0]);
    const Tensor<double, 4>& w = layer.weights;
    const bool are_weights = std::none_of(w.data(), w.data() + w.size(), [](double x) { return x < 0 || x > 1.01; });
    HEED_CHECK(are_weights, ValueError, kName, ": layer ", in_quotes(layer.layer),
               " has weights outside 0 to 1; record attention weights, not scores");
  }

  std::size_t first_layer() const {
    std::size_t number = 0;
    while (!options_.layer.empty() && number < layers_.size() && layers_[number].layer != options_.layer) ++number;
    HEED_CHECK(number < layers_.size(), ValueError, kName, ": options.layer = ", in_quotes(options_.layer),
               " was not recorded");
    const Index heads = layers_[number].weights.extent(1);
    HEED_CHECK(options_.head >= 0 && options_.head < heads, ValueError, kName, ": options.head = ", options_.head,
               " but layer ", in_quotes(layers_[number].layer), " has H = ", heads);
    return number;
  }

  /// 256 colors, three bytes each.
  static std::string colors() {
    std::vector<std::uint8_t> bytes;
    for (int i = 0; i < 256; ++i) {
      for (const std::uint8_t channel : heat_color(i / 255.0)) bytes.push_back(channel);
    }
    return base64(bytes);
  }

  /// The index of an entry, which is appended if it is new.
  template <class Entry>
  static std::size_t number_of(std::vector<Entry>& entries, Entry entry) {
    const auto found = std::find(entries.begin(), entries.end(), entry);
    const auto number = static_cast<std::size_t>(found - entries.begin());
    if (found == entries.end()) entries.push_back(std::move(entry));
    return number;
  }

  std::vector<std::string> labels_or_positions(const RecordedAttention& layer, const std::vector<std::string>& labels,
                                               Index count, std::string_view what) const {
    HEED_CHECK(labels.empty() || static_cast<Index>(labels.size()) == count, ShapeError, kName, ": ", labels.size(),
               " labels for ", count, ' ', what, " of layer ", in_quotes(layer.layer), "; give one for each, or none");
    if (!labels.empty()) return labels;
    std::vector<std::string> positions;
    for (Index i = 0; i < count; ++i) positions.push_back(std::to_string(i));
    return positions;
  }

  void write_layer(const RecordedAttention& layer, JsonWriter& json) {
    const auto fits = [&](const TokenLabels& labels) { return matches(labels.layers, layer.layer); };
    const auto found = std::find_if(options_.labels.begin(), options_.labels.end(), fits);
    const TokenLabels labels = found == options_.labels.end() ? TokenLabels{} : *found;
    const auto queries = labels_or_positions(layer, labels.queries, layer.weights.extent(2), "queries");
    const auto keys =
        labels_or_positions(layer, labels.keys.empty() ? labels.queries : labels.keys, layer.weights.extent(3), "keys");
    json.open('{').key("name").value(layer.layer).key("queries").value(number_of(texts_, queries));
    json.key("keys").value(number_of(texts_, keys)).key("heads").open('[');
    for (Index h = 0; h < layer.weights.extent(1); ++h) write_head(layer, h, json);
    json.close(']').close('}');
  }

  void write_head(const RecordedAttention& layer, Index h, JsonWriter& json) {
    const Index b = options_.sample, pairs = layer.weights.extent(2) * layer.weights.extent(3);
    std::vector<std::uint8_t> mask(static_cast<std::size_t>((pairs + 7) / 8)), codes;
    double largest = 0;
    std::size_t at = 0;
    for (Index q = 0; q < layer.weights.extent(2); ++q) {
      for (Index k = 0; k < layer.weights.extent(3); ++k, ++at) {
        const double w = layer.weights(b, h, q, k);
        if (layer.mask(b, h, q, k)) mask[at / 8] = static_cast<std::uint8_t>(mask[at / 8] | 1U << at % 8);
        if (w > largest) largest = w;
        append_code(codes, w);
      }
    }
    const HeadStatistics statistics = head_statistics(layer, h, {}, b);
    json.open('{').key("entropy").value(statistics.entropy, 4).key("not_finite").value(statistics.not_finite);
    json.key("largest").value(largest).key("mask").value(number_of(masks_, base64(mask)));
    json.key("weights").value(base64(codes)).close('}');
  }
  /// Encodes √w in equal steps, so that small weights keep their digits; the last code means NaN or infinity.
  void append_code(std::vector<std::uint8_t>& codes, double w) const {
    const unsigned top = bits_ == 16 ? 65534 : 254;
    const unsigned code =
        detail::is_finite(w) ? static_cast<unsigned>(std::lround(std::sqrt(std::min(w, 1.0)) * top)) : top + 1;
    codes.push_back(static_cast<std::uint8_t>(code & 255U));
    if (bits_ == 16) codes.push_back(static_cast<std::uint8_t>(code >> 8));
  }

  const std::vector<RecordedAttention>& layers_;
  const AttentionPageOptions& options_;
  int bits_;
  std::vector<std::vector<std::string>> texts_;
  std::vector<std::string> masks_;
};

}  // namespace detail

/// The page for all recorded attention layers: a grid of all heads with their entropies, one head enlarged, and the
/// tokens, shaded by the weights of the token under the pointer; masked pairs are marked. Up to 500,000 weights are
/// written with 16 bits each, more with 8; the page states the resulting precision. 6 layers of 12 heads on 16 tokens
/// take 90 kB, 12 of 12 on 128 tokens 3 MB. Throws ValueError if no weights were recorded, for weights outside 0 to 1
/// or a sample, layer or head that does not exist; ShapeError if there are labels but not one for each token.
inline std::string attention_html(const Recorder& recorder, const AttentionPageOptions& options = {}) {
  const std::string data = detail::AttentionPageData(recorder, options).write();
  return detail::concat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<meta http-equiv=\"Content-Security-Policy\" "
      "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri "
      "'none'; form-action 'none'\">\n<title>Attention</title>\n<style>",
      detail::kPageStyle, "</style>\n</head>\n<body>", detail::kPageBody,
      "<script type=\"application/json\" id=\"data\">", data, "</script>\n<script>", detail::kPageScript,
      "</script>\n</body>\n</html>\n");
}

/// Writes attention_html(...) to a file atomically. Throws FormatError if it cannot be written.
inline void save_attention_html(const std::string& path, const Recorder& recorder,
                                const AttentionPageOptions& options = {}) {
  detail::write_file(path, attention_html(recorder, options), "heed::save_attention_html");
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
