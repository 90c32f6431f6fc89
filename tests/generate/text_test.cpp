// SPDX-License-Identifier: MIT
// The text around a model: characters out of bytes, and conversations.
#include <stdexcept>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "generate/chat.hpp"
#include "generate/utf8.hpp"

namespace generate {
namespace {

std::string streamed(std::string_view bytes, std::size_t at_once) {
  Utf8Stream stream;
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += at_once) {
    const std::string part = stream.add(bytes.substr(i, at_once));
    for (std::size_t j = 0; j < part.size(); j += next_code_point(std::string_view(part).substr(j)).length) {
      EXPECT_TRUE(next_code_point(std::string_view(part).substr(j)).valid) << "a part of a character came out";
    }
    text += part;
  }
  return text + stream.finish();
}

TEST(Utf8Stream, GivesWholeCharacters) {
  const std::string text = "a\xC3\xA9\xE6\x97\xA5\xF0\x9F\x8D\x95z";  // a, é, 日, 🍕, z
  for (std::size_t n = 1; n <= text.size(); ++n) EXPECT_EQ(streamed(text, n), text) << n;
  Utf8Stream stream;
  EXPECT_EQ(stream.add("\xF0\x9F"), "");
  EXPECT_EQ(stream.add("\x8D"), "");
  EXPECT_EQ(stream.add("\x95!"), "\xF0\x9F\x8D\x95!");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Utf8Stream, ReplacesWhatIsNoCharacter) {
  const std::string replacement = "\xEF\xBF\xBD";
  // The numbers of replacements are those of the Unicode standard's recommended practice (table 3-8 and others).
  const std::pair<std::string, int> cases[] = {
      {"\x80", 1},         {"\xC0\xAF", 2},         {"\xE0\x80\x80", 3},
      {"\xED\xA0\x80", 3}, {"\xF4\x90\x80\x80", 4}, {"\xF5", 1},
      {"\xE6\x97", 1},     {"\xF0\x9F\x8D", 1},     {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF", 4}};
  for (const auto& [bytes, count] : cases) {
    std::string expected;
    for (int i = 0; i < count; ++i) expected += replacement;
    for (std::size_t n = 1; n <= bytes.size(); ++n) {
      EXPECT_EQ(streamed(bytes, n), expected) << testing::PrintToString(bytes);
      EXPECT_EQ(streamed("a" + bytes + "b", n), "a" + expected + "b") << testing::PrintToString(bytes);
    }
  }
}

constexpr std::string_view kSmolLm =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are helpful<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

TEST(ChatTemplate, OfChatMl) {
  const ChatTemplate chat(kSmolLm);
  EXPECT_EQ(chat.begin(), "<|im_start|>system\nYou are helpful<|im_end|>\n");
  EXPECT_EQ(chat.begin("Be brief."), "<|im_start|>system\nBe brief.<|im_end|>\n");
  EXPECT_EQ(chat.ask("Hi!"), "<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(chat.end_of_answer(), "<|im_end|>\n");
  // Line breaks written as \n, and no system message of its own.
  std::string escaped;
  for (const char c : kSmolLm) escaped += c == '\n' ? std::string("\\n") : std::string(1, c);
  EXPECT_EQ(ChatTemplate(escaped).begin(), "<|im_start|>system\nYou are helpful<|im_end|>\n");
  EXPECT_EQ(
      ChatTemplate("{{'<|im_start|>' + message['role'] + message['content'] + '<|im_end|>'}}<|im_start|>assistant")
          .begin(),
      "");
}

TEST(ChatTemplate, RefusesOthers) {
  EXPECT_THROW(ChatTemplate(""), std::runtime_error);
  EXPECT_THROW(ChatTemplate("[INST] {{ message['content'] }} [/INST]"), std::runtime_error);
  EXPECT_THROW(ChatTemplate(std::string(kSmolLm).append("{% if tools %}")), std::runtime_error);
}

}  // namespace
}  // namespace generate
