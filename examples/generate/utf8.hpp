// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace generate {

struct CodePoint {
  std::uint32_t value;
  std::size_t length;  // in bytes, at least 1
  bool valid;          // false: U+FFFD, in place of `length` bytes
};
// The code point at the start of a text that is not empty.
CodePoint next_code_point(std::string_view text);

// Bytes in, whole characters out: tokens end within characters. What can't become UTF-8 becomes U+FFFD.
class Utf8Stream {
 public:
  // The characters that the bytes complete.
  std::string add(std::string_view bytes);
  // The rest, at the end.
  std::string finish();

 private:
  std::string rest_;
};

}  // namespace generate
