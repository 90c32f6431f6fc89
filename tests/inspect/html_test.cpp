// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <heed/inspect/html.hpp>

#include "common/message_of.hpp"
#include "common/temporary_directory.hpp"

namespace {

using heed::attention_html;
using heed::Index;
using heed::Recorder;
using heed::Tensor;
using heed_test::has_all;
using heed_test::message_of;

/// A layer in which keys k <= q + shift are visible, with weights that increase with k.
void show(Recorder& recorder, std::string_view name, const heed::Extents<4>& extents, int shift = 1000) {
  Tensor<double, 4> weights(extents);
  for (Index b = 0; b < extents[0]; ++b) {
    for (Index h = 0; h < extents[1]; ++h) {
      for (Index q = 0; q < extents[2]; ++q) {
        const Index visible = std::min(extents[3], q + shift + 1);
        for (Index k = 0; k < visible; ++k) {
          weights(b, h, q, k) = 2.0 * static_cast<double>(k + 1) / static_cast<double>(visible * (visible + 1));
        }
      }
    }
  }
  recorder.mask(name, extents, [&](int, int, int q, int k) { return k <= q + shift; });
  recorder.weights(name, heed::TensorView<const double, 4>(weights.view()));
}

nlohmann::json data_of(const std::string& page) {
  constexpr std::string_view opening = "<script type=\"application/json\" id=\"data\">";
  const std::size_t begin = page.find(opening) + opening.size();
  return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

std::vector<std::uint8_t> decode(const std::string& base64) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<std::uint8_t> bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : base64.substr(0, base64.find('='))) {
    bits = bits << 6 | static_cast<std::uint32_t>(digits.find(c));
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<std::uint8_t>(bits >> count & 255U));
  }
  return bytes;
}

std::vector<double> weights_of(const nlohmann::json& page, const nlohmann::json& head) {
  const std::vector<std::uint8_t> bytes = decode(head.at("weights"));
  const bool wide = page.at("bits") == 16;
  const double top = wide ? 65534 : 254;
  std::vector<double> weights;
  for (std::size_t i = 0; i < bytes.size(); i += wide ? 2 : 1) {
    const double code = wide ? bytes[i] + 256 * bytes[i + 1] : bytes[i];
    weights.push_back(code > top ? std::numeric_limits<double>::quiet_NaN() : code / top * (code / top));
  }
  return weights;
}

TEST(Html, KeepsWeightsWithinWhatItStates) {
  for (const Index L : {Index{9}, Index{200}}) {
    Recorder recorder;
    show(recorder, "a", {1, 14, L, L}, 0);
    const nlohmann::json page = data_of(attention_html(recorder));
    EXPECT_EQ(page.at("bits"), L == 9 ? 16 : 8);
    const double step = L == 9 ? 1.0 / 65534 : 1.0 / 254;
    const std::vector<double> kept = weights_of(page, page.at("layers")[0].at("heads")[13]);
    ASSERT_EQ(static_cast<Index>(kept.size()), L * L);
    const double* exact = &recorder.of("a").weights(0, 13, 0, 0);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      ASSERT_LE(std::abs(kept[i] - exact[i]), std::sqrt(exact[i]) * step + step * step) << i;
    }
  }
}

TEST(Html, WritesEachMaskAndTextOnce) {
  Recorder recorder;
  show(recorder, "layers.0.self_attn", {1, 3, 5, 5}, 0);
  show(recorder, "layers.1.self_attn", {1, 3, 5, 5}, 0);
  show(recorder, "layers.1.multihead_attn", {1, 3, 5, 4});
  const std::vector<std::string> words{"a", "b", "c", "d", "e"}, memory{"w", "x", "y", "z"};
  const nlohmann::json page = data_of(attention_html(
      recorder, {.labels = {{.layers = "*.multihead_attn", .queries = words, .keys = memory}, {.queries = words}}}));
  EXPECT_EQ(page.at("masks").size(), 2u);
  EXPECT_EQ(page.at("texts"), (nlohmann::json{words, memory}));
  EXPECT_EQ(page.at("layers")[0].at("keys"), 0);
  EXPECT_EQ(page.at("layers")[2].at("name"), "layers.1.multihead_attn");
  EXPECT_EQ(page.at("layers")[2].at("keys"), 1);
  const std::vector<std::uint8_t> causal = decode(page.at("masks")[0]);
  for (std::size_t i = 0; i < 25; ++i) EXPECT_EQ(causal[i / 8] >> (i % 8) & 1, i % 5 <= i / 5) << i;
}

TEST(Html, ShowsEntropyAndTheRequestedSample) {
  Recorder recorder;
  Tensor<double, 4> weights(2, 1, 2, 2);
  const double numbers[] = {0.5, 0.5, 0.5, 0.5, 1, 0, 1, 0};
  std::copy(std::begin(numbers), std::end(numbers), weights.data());
  recorder.mask("a", weights.extents(), [](int, int, int, int) { return true; });
  recorder.weights("a", heed::TensorView<const double, 4>(weights.view()));
  const auto head = [&](Index sample) {
    return data_of(attention_html(recorder, {.sample = sample})).at("layers")[0].at("heads")[0];
  };
  EXPECT_EQ(head(0).at("entropy"), 1);
  EXPECT_EQ(head(0).at("largest"), 0.5);
  EXPECT_EQ(head(1).at("entropy"), 0);
  EXPECT_EQ(head(1).at("largest"), 1);
}

TEST(Html, IsSelfContainedWhateverTheLabelsSay) {
  Recorder recorder;
  show(recorder, "</script><b>", {1, 1, 4, 4});
  const std::vector<std::string> labels{"</script><script>alert(1)</script>", "\"\\\n\x01", "\xFF<!--",
                                        "\xE2\x80\xA8&amp;"};
  const std::string page = attention_html(recorder, {.title = "</title>\"<", .labels = {{.queries = labels}}});
  const auto count = [&](std::string_view part) {
    int n = 0;
    for (std::size_t at = page.find(part); at != std::string::npos; at = page.find(part, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("<script"), 2);
  EXPECT_EQ(count("</script"), 2);
  EXPECT_EQ(count("</title"), 1);
  EXPECT_EQ(count("<!--"), 0);
  EXPECT_EQ(count("http:"), 0);
  EXPECT_EQ(count("https:"), 0);
  EXPECT_EQ(count(" src="), 0);
  EXPECT_EQ(count("@import"), 0);
  EXPECT_TRUE(heed::detail::is_utf8(page));
  const nlohmann::json data = data_of(page);
  EXPECT_EQ(data.at("title"), "</title>\"<");
  EXPECT_EQ(data.at("texts")[0][0], labels[0]);
  EXPECT_EQ(data.at("texts")[0][1], labels[1]);
  EXPECT_EQ(data.at("texts")[0][2], "\xEF\xBF\xBD<!--");
  EXPECT_EQ(data.at("texts")[0][3], labels[3]);
}

TEST(Html, NaNHasASpecialCode) {
  Recorder recorder;
  Tensor<double, 4> weights(1, 1, 1, 2);
  weights(0, 0, 0, 1) = std::numeric_limits<double>::quiet_NaN();
  recorder.weights("a", heed::TensorView<const double, 4>(weights.view()));
  const nlohmann::json page = data_of(attention_html(recorder));
  const std::vector<double> kept = weights_of(page, page.at("layers")[0].at("heads")[0]);
  EXPECT_EQ(kept[0], 0);
  EXPECT_TRUE(std::isnan(kept[1]));
  EXPECT_TRUE(page.at("layers")[0].at("heads")[0].at("entropy").is_null());
}

TEST(Html, RefusesWhatItCannotShow) {
  Recorder recorder;
  const auto message = [&](const heed::AttentionPageOptions& options) {
    return message_of<heed::Error>([&] { attention_html(recorder, options); });
  };
  EXPECT_TRUE(has_all(message({}), {"heed::attention_html", "has no weights"}));
  show(recorder, "a", {1, 2, 3, 3});
  EXPECT_TRUE(has_all(message({.sample = 1}), {"sample = 1", "B = 1"}));
  EXPECT_TRUE(has_all(message({.labels = {{.queries = {"x", "y"}}}}), {"2 labels for 3 queries of layer \"a\""}));
  EXPECT_TRUE(has_all(message({.layer = "b"}), {"options.layer = \"b\" was not recorded"}));
  EXPECT_TRUE(has_all(message({.head = 2}), {"head = 2", "has H = 2"}));
  Tensor<double, 4> scores(1, 1, 1, 2);
  scores(0, 0, 0, 0) = -3;
  recorder.weights("b", heed::TensorView<const double, 4>(scores.view()));
  EXPECT_TRUE(has_all(message({}), {"\"b\"", "not scores"}));
}

TEST(Html, SavesToAFile) {
  const heed_test::TemporaryDirectory directory;
  Recorder recorder;
  show(recorder, "a", {1, 1, 2, 2});
  heed::save_attention_html(directory.path("page.html"), recorder, {.title = "t"});
  EXPECT_EQ(heed_test::read_text(directory.path("page.html")), attention_html(recorder, {.title = "t"}));
  EXPECT_EQ(directory.count(), 1) << "nothing else is left behind";
  EXPECT_TRUE(has_all(
      message_of<heed::FormatError>([&] { heed::save_attention_html(directory.path("no/such/page.html"), recorder); }),
      {"heed::save_attention_html: file "}));
}

}  // namespace
