// SPDX-License-Identifier: MIT
// F39: tokens and names of layers may be any bytes. Pictures and pages stay whole and show them, reports and messages
// for a terminal hold no control characters.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <heed/inspect/diagnostics.hpp>
#include <heed/inspect/grid.hpp>
#include <heed/inspect/heatmap.hpp>
#include <heed/inspect/html.hpp>
#include <heed/io/safetensors.hpp>

#include "common/count.hpp"
#include "common/message_of.hpp"
#include "common/safetensors_bytes.hpp"
#include "common/xml.hpp"

namespace heed_test {
namespace {

using namespace std::string_literals;

const std::vector<std::string>& hostile() {
  static const std::vector<std::string> tokens{"</script>",
                                               "<script>alert(1)</script>",
                                               "<!--",
                                               "-->",
                                               "]]>",
                                               "<![CDATA[",
                                               "</title>",
                                               "</svg>",
                                               "</text>",
                                               "<?xml?>",
                                               "\"",
                                               "'",
                                               "\" onload=\"alert(1)",
                                               "&",
                                               "&lt;",
                                               "&#x0;",
                                               "\\",
                                               "\\u003c",
                                               "a\nb",
                                               "\r\n",
                                               "\r",
                                               "\t",
                                               "\0"s,
                                               "a\0b"s,
                                               "\x7F",
                                               "\x1B[2J\x1B]0;title\x07",
                                               "\b\b\b",
                                               "\xFF",
                                               "\xC3",
                                               "\xC0\x80",
                                               "\xED\xA0\x80",
                                               "\xF4\x90\x80\x80",
                                               "\xE2\x82",
                                               "\u0085",
                                               "\u009B2J",
                                               "\u2028",
                                               "\u2029",
                                               "\uFEFF",
                                               "\uFFFE",
                                               "\uFFFF",
                                               "\U0001FFFE",
                                               "\U0010FFFF",
                                               "\u200B",
                                               "\u200F\u202Eabc\u202C",
                                               "\u2066x\u2069",
                                               "שלום",
                                               "e\u0301\u0301\u0301",
                                               "👩\u200D👩\u200D👧",
                                               "👍🏽",
                                               "{{7*7}}",
                                               "${x}",
                                               "`",
                                               "%s%n",
                                               "../../x",
                                               "",
                                               " ",
                                               std::string(5000, 'w'),
                                               std::string(300, '<')};
  return tokens;
}

/// The text with U+FFFD in the place of each byte that is not UTF-8.
std::string repaired(std::string_view text) {
  std::string whole;
  while (!text.empty()) {
    const std::size_t length = heed::detail::decode_utf8(text).length;
    whole += length == 0 ? "\uFFFD" : text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return whole;
}

/// Each token is the name of a layer and a token of all layers.
heed::Recorder recorder_of_all() {
  heed::Recorder recorder;
  const auto n = static_cast<heed::Index>(hostile().size());
  heed::Tensor<float, 4> weights(1, 1, n, n);
  for (heed::Index i = 0; i < n; ++i) weights(0, 0, i, i) = 1;
  for (const std::string& name : hostile()) recorder.weights(name, heed::TensorView<const float, 4>(weights.view()));
  return recorder;
}

/// Nothing in a text but line breaks could control a terminal.
::testing::AssertionResult is_harmless(std::string_view text) {
  while (!text.empty()) {
    const heed::detail::CodePoint c = heed::detail::decode_utf8(text);
    if (c.length == 0 || (c.value < 0x20 && c.value != '\n') || (c.value >= 0x7F && c.value < 0xA0)) {
      return ::testing::AssertionFailure() << "control character " << c.value << " before " << text.substr(0, 40);
    }
    text.remove_prefix(c.length);
  }
  return ::testing::AssertionSuccess();
}

TEST(Field, F39_HeatMapsAreWellFormed) {
  const auto n = static_cast<Eigen::Index>(hostile().size());
  EXPECT_TRUE(is_well_formed(heed::heatmap_svg(Eigen::MatrixXf::Identity(n, n), hostile(), hostile())));
  for (const std::string& token : hostile()) {
    SCOPED_TRACE(token.substr(0, 40));
    const std::string svg = heed::heatmap_svg(Eigen::MatrixXf::Ones(1, 1), {token}, {token}, {.title = token});
    EXPECT_TRUE(is_well_formed(svg));
    EXPECT_EQ(count(svg, "<svg"), 1);
    EXPECT_EQ(count(svg, "</svg>"), 1);
    EXPECT_EQ(count(svg, "<script"), 0);
    EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
  }
}

TEST(Field, F39_GridsOfLayersAreWellFormed) {
  const std::string svg = heed::attention_grid_svg(recorder_of_all(), {.title = hostile()[0]});
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_EQ(count(svg, "</svg>"), 1);
}

TEST(Field, F39_PagesGiveTheTokensBack) {
  const std::string page =
      heed::attention_html(recorder_of_all(), {.title = "</title></script>", .labels = {{.queries = hostile()}}});
  EXPECT_EQ(count(page, "<script"), 2);
  EXPECT_EQ(count(page, "</script"), 2);
  EXPECT_EQ(count(page, "<!--"), 0);
  EXPECT_TRUE(heed::detail::is_utf8(page));
  constexpr std::string_view opening = "<script type=\"application/json\" id=\"data\">";
  const std::size_t begin = page.find(opening) + opening.size();
  const auto data = nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  EXPECT_EQ(data.at("title"), "</title></script>");
  ASSERT_EQ(data.at("texts").size(), 1u);
  for (std::size_t i = 0; i < hostile().size(); ++i) {
    EXPECT_EQ(data.at("texts")[0][i], repaired(hostile()[i])) << i;
    EXPECT_EQ(data.at("layers")[i].at("name"), repaired(hostile()[i])) << i;
  }
}

TEST(Field, F39_ReportsAndMessagesDoNotControlATerminal) {
  const heed::Diagnosis diagnosis = heed::diagnose(recorder_of_all());
  const std::string text = diagnosis.text();
  EXPECT_TRUE(is_harmless(text));
  EXPECT_EQ(count(text, "\n  head  entropy"), static_cast<int>(hostile().size())) << "a layer has one line";
  const auto json = nlohmann::json::parse(diagnosis.json());
  for (std::size_t i = 0; i < hostile().size(); ++i) {
    EXPECT_EQ(json.at("heads")[i].at("layer"), repaired(hostile()[i])) << i;
  }
  for (const std::string& token : hostile()) {
    const std::string message =
        message_of<heed::FormatError>([&] { heed::SafeTensors::from_memory({}, token).info(token); });
    EXPECT_TRUE(is_harmless(message)) << message;
    EXPECT_EQ(count(message, "\n"), 0) << message;
  }
}

}  // namespace
}  // namespace heed_test
