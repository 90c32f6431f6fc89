// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Checks that a text is an XML document, as far as the pictures need it.

#include <ios>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <heed/io/text.hpp>

#include "common/count.hpp"

namespace heed_test {

/// True if all elements of an XML document are closed in order, no text contains a bare '<', '>' or '&', and every
/// character is one that XML allows.
inline testing::AssertionResult is_well_formed(std::string_view xml) {
  for (std::string_view rest = xml; !rest.empty();) {
    const heed::detail::CodePoint c = heed::detail::decode_utf8(rest);
    const bool control = c.value < 0x20 && c.value != '\t' && c.value != '\n' && c.value != '\r';
    if (c.length == 0 || control || c.value == 0xFFFE || c.value == 0xFFFF) {
      return testing::AssertionFailure() << "no character of XML: U+" << std::hex << c.value;
    }
    rest.remove_prefix(c.length);
  }
  std::vector<std::string_view> open;
  while (!xml.empty()) {
    const std::size_t at = xml.find_first_of("<>&");
    if (at == std::string_view::npos) break;
    xml.remove_prefix(at);
    if (xml[0] == '&') {
      if (!xml.starts_with("&lt;") && !xml.starts_with("&gt;") && !xml.starts_with("&amp;")) {
        return testing::AssertionFailure() << "bare & at " << xml.substr(0, 40);
      }
      xml.remove_prefix(1);
      continue;
    }
    const std::size_t end = xml.find('>');
    if (xml[0] != '<' || end == std::string_view::npos) {
      return testing::AssertionFailure() << "bare bracket at " << xml.substr(0, 40);
    }
    const std::string_view tag = xml.substr(1, end - 1);
    xml.remove_prefix(end + 1);
    if (heed_test::count(tag, "\"") % 2 != 0) return testing::AssertionFailure() << "odd quotes in " << tag;
    const std::string_view name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag.ends_with('/')) continue;
    if (tag.starts_with('/')) {
      if (open.empty() || open.back() != tag.substr(1)) return testing::AssertionFailure() << "unmatched " << tag;
      open.pop_back();
    } else {
      open.push_back(name);
    }
  }
  if (!open.empty()) return testing::AssertionFailure() << open.back() << " is not closed";
  return testing::AssertionSuccess();
}

}  // namespace heed_test
