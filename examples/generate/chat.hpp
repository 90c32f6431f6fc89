// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace generate {

// Conversations in ChatML: <|im_start|>role, a line break, the text, <|im_end|>, a line break.
class ChatTemplate {
 public:
  // From the Jinja template that a model brings. It is not interpreted: it must be recognized as ChatML, and a system
  // message that it begins conversations with is taken out of it. Throws std::runtime_error for another template.
  explicit ChatTemplate(std::string_view jinja);

  // The beginning of a conversation. An empty `system` means the template's own, if it has one.
  std::string begin(std::string_view system = {}) const;
  // A message of the user, up to where the assistant's answer begins.
  std::string ask(std::string_view message) const;
  // The end of the assistant's answer.
  std::string end_of_answer() const { return std::string(kEnd) + "\n"; }

 private:
  static constexpr std::string_view kStart = "<|im_start|>", kEnd = "<|im_end|>";
  std::string system_;
};

}  // namespace generate
