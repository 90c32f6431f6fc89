// SPDX-License-Identifier: MIT
// Fuzzes JSON against another library, nlohmann/json: what the writer writes it reads, and the header of a safetensors
// file means the same to both, or is refused.
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <heed/io/json.hpp>
#include <heed/io/safetensors_header.hpp>

#include "fuzz/fuzz_input.hpp"

namespace {

using heed_test::FuzzInput;
using heed_test::require;
using Json = nlohmann::json;

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

void check_writer(FuzzInput& input) {
  const bool for_html = input.chance(0.5);
  heed::detail::JsonWriter writer = for_html ? heed::detail::JsonWriter::for_html() : heed::detail::JsonWriter();
  Json expected = Json::array();
  writer.open('[');
  while (!input.empty()) {
    switch (input.integer(0, 4)) {
      case 0: {
        const auto number = static_cast<std::int64_t>(input.bits());
        writer.value(number);
        expected.push_back(number);
        break;
      }
      case 1: {
        const double number = static_cast<double>(input.integer(-1000000, 1000000)) / 64;
        writer.value(number, 17);
        expected.push_back(number);
        break;
      }
      case 2:
        writer.value(true);
        expected.push_back(true);
        break;
      case 3: {
        const std::string key(input.text(3)), value(input.text(8));
        writer.open('{').key(key).value(value).close('}');
        expected.push_back({{repaired(key), repaired(value)}});
        break;
      }
      default: {
        const std::string_view text = input.text(static_cast<std::size_t>(input.integer(0, 40)));
        writer.value(text);
        expected.push_back(repaired(text));
      }
    }
  }
  const std::string json = writer.close(']').take();
  if (for_html) {
    for (const std::string_view markup : {"<", ">", "&", "\u2028", "\u2029"}) {
      require(json.find(markup) == std::string::npos, "JSON for a page holds no markup");
    }
  }
  const Json read = Json::parse(json, nullptr, false);
  require(read == expected, "another library reads what was written");
}

/// A header as nlohmann/json reads it; nothing if it is no JSON or gives a key of an object twice.
std::optional<Json> other_reading(std::string_view text) {
  std::vector<std::set<std::string>> keys;
  bool twice = false;
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key) twice = twice || !keys.back().insert(value.get<std::string>()).second;
    return true;
  };
  Json json = Json::parse(text, watch, false);
  if (json.is_discarded() || twice) return std::nullopt;
  return json;
}

void check_header(std::string_view text) {
  const std::optional<Json> other = other_reading(text);
  heed::detail::SafeTensorsHeader header;
  try {
    header = heed::detail::HeaderParser(text, "fuzz").parse();
  } catch (const heed::FormatError&) {
    return;
  }
  require(other.has_value(), "what is read as a header is JSON without repeated keys");
  require(other->size() == header.tensors.size() + other->count("__metadata__"), "every member is read");
  for (const auto& [name, info] : header.tensors) {
    require(other->contains(name), "a tensor has the name that the file gives");
    const Json& tensor = other->at(name);
    require(tensor.at("shape") == info.shape, "a tensor has the shape that the file gives");
    require(tensor.at("data_offsets") == std::vector{info.begin, info.end}, "and its place");
    require(tensor.at("dtype") == std::string(dtype_name(info)), "and its type");
  }
  for (const auto& [key, value] : header.metadata) {
    require(other->at("__metadata__").at(key) == value, "metadata are what the file gives");
  }
}

void check_index(std::string_view text) {
  heed::Metadata files;
  try {
    files = heed::detail::HeaderParser(text, "fuzz").parse_index();
  } catch (const heed::FormatError&) {
    return;
  }
  const std::optional<Json> other = other_reading(text);
  require(other.has_value(), "what is read as an index is JSON without repeated keys");
  require(other->at("weight_map").get<heed::Metadata>() == files, "every tensor has the file that the index gives");
}

}  // namespace

void heed_test::fuzz(FuzzInput& input) {
  if (input.chance(0.25)) return check_writer(input);
  const std::string_view text = input.rest();
  check_header(text);
  check_index(text);
}
