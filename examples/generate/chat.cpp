// SPDX-License-Identifier: MIT
#include "chat.hpp"

#include <stdexcept>

namespace generate {

ChatTemplate::ChatTemplate(std::string_view jinja) {
  const auto has = [&](std::string_view part) { return jinja.find(part) != jinja.npos; };
  const bool is_chatml = has("<|im_start|>") && has("<|im_end|>") && has("message['role']") &&
                         has("message['content']") && has("<|im_start|>assistant") && !has("tools");
  if (!is_chatml) {
    throw std::runtime_error(
        "the model's chat template is not known: only ChatML (<|im_start|>role ... <|im_end|>) is. Write the "
        "conversation into the prompt yourself, without --chat and --instruct");
  }
  // '<|im_start|>system\n...<|im_end|>\n' between quotes, with the line break written out or as \n.
  const std::string opening = std::string(kStart) + "system";
  std::size_t begin = jinja.find(opening);
  if (begin == jinja.npos) return;
  begin += opening.size();
  begin += jinja.substr(begin, 2) == "\\n" ? 2 : 1;
  const std::size_t end = jinja.find(kEnd, begin);
  if (end != jinja.npos) system_ = std::string(jinja.substr(begin, end - begin));
}

std::string ChatTemplate::begin(std::string_view system) const {
  const std::string_view text = system.empty() ? std::string_view(system_) : system;
  if (text.empty()) return "";
  return std::string(kStart).append("system\n").append(text).append(kEnd).append("\n");
}

std::string ChatTemplate::ask(std::string_view message) const {
  return std::string(kStart).append("user\n").append(message).append(kEnd).append("\n").append(kStart).append(
      "assistant\n");
}

}  // namespace generate
