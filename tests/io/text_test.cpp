// SPDX-License-Identifier: MIT
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <heed/io/text.hpp>

namespace {

using heed::detail::append_utf8;
using heed::detail::decode_utf8;
using heed::detail::in_quotes;
using heed::detail::is_utf8;
using heed::detail::matches;
using heed::detail::substitute;

using namespace std::string_literals;

TEST(Utf8, EveryCodePointSurvivesEncodingAndDecoding) {
  for (std::uint32_t c = 0; c <= 0x10FFFF; ++c) {
    std::string text;
    append_utf8(text, c);
    const auto decoded = decode_utf8(text + "x");
    if (c >= 0xD800 && c <= 0xDFFF) {
      ASSERT_EQ(decoded.length, 0u) << "surrogate " << std::hex << c;
      continue;
    }
    ASSERT_EQ(decoded.value, c);
    ASSERT_EQ(decoded.length, text.size());
    ASSERT_EQ(text.size(), c < 0x80 ? 1u : c < 0x800 ? 2u : c < 0x10000 ? 3u : 4u);
  }
}

TEST(Utf8, KnownEncodings) {
  const auto encoded = [](std::uint32_t c) {
    std::string text;
    append_utf8(text, c);
    return text;
  };
  EXPECT_EQ(encoded(0x24), "$");
  EXPECT_EQ(encoded(0xA3), "\xC2\xA3");
  EXPECT_EQ(encoded(0x20AC), "\xE2\x82\xAC");
  EXPECT_EQ(encoded(0x10348), "\xF0\x90\x8D\x88");
}

TEST(Utf8, RefusesEverythingElse) {
  const std::string wrong[] = {
      "\x80"s,              // a continuation alone
      "\xBF"s,              //
      "\xC0\x80"s,          // overlong 0
      "\xC1\xBF"s,          // overlong 7F
      "\xE0\x9F\xBF"s,      // overlong 7FF
      "\xF0\x8F\xBF\xBF"s,  // overlong FFFF
      "\xED\xA0\x80"s,      // surrogate D800
      "\xF4\x90\x80\x80"s,  // 110000
      "\xF5\x80\x80\x80"s,  //
      "\xFF"s,              //
      "\xC2"s,              // cut short
      "\xE2\x82"s,          //
      "\xF0\x90\x8D"s,      //
      "\xC2x"s,             // no continuation
      "\xE2\x82x"s,         //
  };
  for (const std::string& text : wrong) {
    EXPECT_EQ(decode_utf8(text).length, 0u) << in_quotes(text);
    EXPECT_FALSE(is_utf8("ok" + text));
  }
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("\0ok \xE2\x82\xAC"s));
}

TEST(InQuotes, IsFitForAMessage) {
  EXPECT_EQ(in_quotes("layers.0"), "\"layers.0\"");
  EXPECT_EQ(in_quotes("a\n\x7F\xFF\xE2\x82\xAC"), "\"a???\xE2\x82\xAC\"");
  EXPECT_EQ(in_quotes(std::string(100, 'x')), '"' + std::string(100, 'x') + '"');
  EXPECT_EQ(in_quotes(std::string(101, 'x')), '"' + std::string(100, 'x') + "...\"");
  EXPECT_EQ(in_quotes("12345\xE2\x82\xAC", 7), "\"12345...\"") << "a character is not cut in two";
  EXPECT_EQ(in_quotes(std::string(101, '\xFF')), '"' + std::string(100, '?') + "...\"");
  EXPECT_EQ(in_quotes("\u0080\u009B2J\u00A0"), "\"??2J\u00A0\"") << "control characters of 8 bits";
}

TEST(Pattern, StarsMatchAnyText) {
  EXPECT_TRUE(matches("a.b", "a.b"));
  EXPECT_FALSE(matches("a.b", "a.c"));
  EXPECT_FALSE(matches("a.b", "a.b.c"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("*", "anything.at.all"));
  EXPECT_TRUE(matches("a.*", "a."));
  EXPECT_FALSE(matches("a.*", "a"));
  EXPECT_TRUE(matches("*.bias", "layers.0.bias"));
  EXPECT_FALSE(matches("*.bias", "layers.0.bias_hh"));
  EXPECT_TRUE(matches("a*a", "aa"));
  EXPECT_FALSE(matches("a*a", "a")) << "the same letter can't be used twice";
  EXPECT_TRUE(matches("*ab*ab", "abab"));
  EXPECT_FALSE(matches("*ab*ab", "ab"));
  EXPECT_TRUE(matches("*a*b*", "xxaxxbxx"));
  EXPECT_FALSE(matches("*a*b*", "xxbxxaxx"));
  EXPECT_TRUE(matches("", ""));
  EXPECT_FALSE(matches("", "a"));
}

/// The definition, one letter at a time.
bool matches_by_definition(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*') {
    for (std::size_t n = 0; n <= name.size(); ++n) {
      if (matches_by_definition(pattern.substr(1), name.substr(n))) return true;
    }
    return false;
  }
  return !name.empty() && pattern[0] == name[0] && matches_by_definition(pattern.substr(1), name.substr(1));
}

/// All texts of up to `longest` letters out of `letters`.
std::vector<std::string> all_texts(std::string_view letters, std::size_t longest) {
  std::vector<std::string> texts{""};
  for (std::size_t first = 0; first < texts.size(); ++first) {
    if (texts[first].size() == longest) break;
    for (const char c : letters) texts.push_back(texts[first] + c);
  }
  return texts;
}

TEST(Pattern, AgreesWithItsDefinitionAndSubstitutesBack) {
  const std::vector<std::string> names = all_texts("ab", 6);
  int matching = 0;
  for (const std::string& pattern : all_texts("ab*", 5)) {
    for (const std::string& name : names) {
      std::vector<std::string_view> parts;
      const bool fits = matches(pattern, name, &parts);
      ASSERT_EQ(fits, matches_by_definition(pattern, name)) << pattern << " and " << name;
      if (!fits) continue;
      ++matching;
      ASSERT_EQ(substitute(pattern, parts), name) << pattern;
    }
  }
  EXPECT_GT(matching, 1000);
}

TEST(Pattern, TakesTheShortestFromTheLeft) {
  std::vector<std::string_view> parts;
  ASSERT_TRUE(matches("layers.*.*", "layers.10.norm1.weight", &parts));
  EXPECT_EQ(parts, (std::vector<std::string_view>{"10", "norm1.weight"}));
  EXPECT_EQ(substitute("h.*.ln_1/*!", parts), "h.10.ln_1/norm1.weight!");
  EXPECT_EQ(substitute("fixed", parts), "fixed");
  ASSERT_TRUE(matches("a", "a", &parts));
  EXPECT_TRUE(parts.empty());
}

}  // namespace
