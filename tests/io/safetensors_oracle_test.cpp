// SPDX-License-Identifier: MIT
// Compares the header parser with nlohmann-json on random files, valid and damaged: both must accept the same files
// with the same content.
#include <cstdint>
#include <iostream>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <heed/io/safetensors.hpp>

#include "common/random_inputs.hpp"
#include "common/safetensors_bytes.hpp"

namespace {

using heed::SafeTensors;
using heed_test::as_bytes;
using heed_test::Random;
using heed_test::safetensors_bytes;
using nlohmann::json;

constexpr std::uint64_t kSeed = 20240229;

std::size_t below(Random& random, std::size_t n) { return static_cast<std::size_t>(random.bits() % n); }
template <class T>
const T& one_of(Random& random, const std::vector<T>& values) {
  return values[below(random, values.size())];
}

const std::vector<std::pair<std::string, std::uint64_t>> kTypes{
    {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8}, {"I32", 4}, {"I16", 2},
    {"I8", 1},  {"U64", 8}, {"U32", 4}, {"U16", 2},  {"U8", 1},  {"BOOL", 1}};

const std::vector<std::pair<std::string, std::uint64_t>> kOthers{{"C64", 8}, {"F8_E5M2", 1}, {"I16_X", 2}, {"F32_", 4}};

/// The text as JSON without repeated keys at any level, or nothing.
std::optional<json> strict_json(std::string_view text) {
  bool repeated = false;
  std::vector<std::set<std::string>> keys;
  const json parsed = json::parse(
      text.begin(), text.end(),
      [&](int, json::parse_event_t event, json& value) {
        if (event == json::parse_event_t::object_start) keys.emplace_back();
        if (event == json::parse_event_t::object_end) keys.pop_back();
        if (event == json::parse_event_t::key) repeated |= !keys.back().insert(value.get<std::string>()).second;
        return true;
      },
      false);
  if (parsed.is_discarded() || repeated) return std::nullopt;
  return parsed;
}

std::optional<std::uint64_t> size_in(const json& value) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT64_MAX) return std::nullopt;
  return value.get<std::uint64_t>();
}

/// True if the description of one tensor is valid; receives the position of its bytes.
bool is_tensor(const json& tensor, std::uint64_t data_size, std::pair<std::uint64_t, std::uint64_t>& range) {
  if (!tensor.is_object()) return false;
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    if (!tensor.contains(field)) return false;
  }
  const json &dtype = tensor["dtype"], &shape = tensor["shape"], &offsets = tensor["data_offsets"];
  if (!dtype.is_string() || !shape.is_array() || shape.size() > 64 || !offsets.is_array() || offsets.size() != 2) {
    return false;
  }
  __extension__ using Wide = unsigned __int128;
  Wide bytes = 0;
  for (const auto& [name, size] : kTypes) {
    if (dtype == name) bytes = size;
  }
  // A type that heed does not read; its name says the bits.
  static const std::regex others("(F|BF|I|U|C)0*([1-9][0-9]{0,2})(_[A-Z0-9_]*)?");
  const std::string type = dtype.get<std::string>();
  std::smatch parts;
  const bool in_bits = bytes == 0 && std::regex_match(type, parts, others) && std::stoi(parts[2]) <= 512;
  if (in_bits) bytes = static_cast<Wide>(std::stoi(parts[2]));
  if (bytes == 0) return false;
  bool empty = false;
  for (const json& extent : shape) {
    const std::optional<std::uint64_t> e = size_in(extent);
    if (!e) return false;
    empty |= *e == 0;
    if (*e != 0) bytes *= *e;
    if (bytes > INT64_MAX) return false;
  }
  if (empty) bytes = 0;
  if (in_bits) bytes = (bytes + 7) / 8;
  const std::optional<std::uint64_t> begin = size_in(offsets[0]), end = size_in(offsets[1]);
  if (!begin || !end || *begin > *end || *end > data_size || *end - *begin != bytes) return false;
  range = {*begin, *end};
  return true;
}

/// The header of a valid file, or nothing.
std::optional<json> oracle(std::string_view bytes) {
  if (bytes.size() < 8) return std::nullopt;
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length * 256 + static_cast<unsigned char>(bytes[static_cast<std::size_t>(i)]);
  if (length > bytes.size() - 8) return std::nullopt;
  const std::string_view text = bytes.substr(8, length);
  // A zero byte is never JSON, but nlohmann-json takes one for the end of the text.
  if (text.find('\0') != std::string_view::npos) return std::nullopt;
  // Nor is a byte order mark, which nlohmann-json skips.
  if (text.starts_with("\xEF\xBB\xBF")) return std::nullopt;
  const std::optional<json> header = strict_json(text);
  if (!header || !header->is_object()) return std::nullopt;

  const std::uint64_t data_size = bytes.size() - 8 - length;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const auto& [name, value] : header->items()) {
    if (name == "__metadata__") {
      if (!value.is_object() && !value.is_null()) return std::nullopt;
      for (const json& text_value : value) {
        if (!text_value.is_string()) return std::nullopt;
      }
    } else if (!is_tensor(value, data_size, ranges.emplace_back())) {
      return std::nullopt;
    }
  }
  std::sort(ranges.begin(), ranges.end());
  std::uint64_t end = 0;
  for (const auto& [first, last] : ranges) {
    if (first != end) return std::nullopt;
    end = last;
  }
  if (end != data_size) return std::nullopt;
  return header;
}

/// Empty when the parser and the oracle agree about a file.
std::string disagreement(const std::string& bytes, bool& accepted) {
  const std::optional<json> right = oracle(bytes);
  accepted = right.has_value();
  try {
    const SafeTensors file = SafeTensors::from_memory(as_bytes(bytes));
    if (!right) return "accepted";
    const std::size_t metadata_members = right->contains("__metadata__") ? 1 : 0;
    if (file.names().size() + metadata_members != right->size()) return "has another number of tensors";
    json metadata = right->value("__metadata__", json::object());
    if (metadata.is_null()) metadata = json::object();
    if (file.metadata() != metadata.get<heed::Metadata>()) return "has other metadata";
    for (const std::string& name : file.names()) {
      const heed::TensorInfo& info = file.info(name);
      const json read{
          {"dtype", std::string(dtype_name(info))}, {"shape", info.shape}, {"data_offsets", {info.begin, info.end}}};
      const json written = right->value(name, json::object());
      for (const auto& [field, value] : read.items()) {
        if (written.value(field, json()) != value) return "tensor " + name + " is " + read.dump();
      }
    }
    return {};
  } catch (const heed::FormatError& e) {
    return right ? std::string("refused: ") + e.what() : std::string();
  }
}

std::string random_name(Random& random) {
  static const std::vector<std::string> pieces{"a",
                                               "layers.",
                                               "0",
                                               "weight",
                                               "\n",
                                               "\"",
                                               "\\",
                                               "\t",
                                               "\x01",
                                               "\x7F",
                                               "\xC3\xA9",
                                               "\xE2\x82\xAC",
                                               "\xF0\x9F\x98\x80",
                                               " "};
  std::string name;
  for (std::size_t n = below(random, 5); n > 0; --n) name += one_of(random, pieces);
  return name;
}

struct File {
  std::string header, data;
};

File random_file(Random& random) {
  json header = json::object();
  if (random.chance(0.05)) header["__metadata__"] = nullptr;
  if (random.chance(1.0 / 3)) {
    header["__metadata__"] = json::object();
    for (std::size_t n = below(random, 3); n > 0; --n)
      header["__metadata__"][random_name(random)] = random_name(random);
  }
  std::uint64_t end = 0;
  for (std::size_t n = below(random, 4); n > 0; --n) {
    const std::string name = random_name(random);
    if (header.contains(name)) continue;
    const auto& [dtype, size] = one_of(random, random.chance(0.1) ? kOthers : kTypes);
    json shape = json::array();
    std::uint64_t bytes = size;
    for (std::size_t d = below(random, 4); d > 0; --d) {
      shape.push_back(below(random, 5));
      bytes *= shape.back().get<std::uint64_t>();
    }
    header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {end, end + bytes}}};
    if (random.chance(0.2)) {
      header[name][random_name(random)] =
          one_of<json>(random, {nullptr, true, -1.5e-3, "text", {1, {2, nullptr}}, {{"a", {{"b", json::array()}}}}, 0});
    }
    end += bytes;
  }
  const bool ascii = random.chance(0.5);
  return {std::string(below(random, 8) == 0, ' ') + header.dump(random.chance(0.25) ? 1 : -1, ' ', ascii) +
              std::string(below(random, 3), ' '),
          std::string(static_cast<std::size_t>(end), 'd')};
}

/// A header with one relevant change.
void damage(Random& random, std::string& text) {
  static const std::vector<std::string> pieces{"{",
                                               "}",
                                               "[",
                                               "]",
                                               ",",
                                               ":",
                                               "\"",
                                               "\\",
                                               "\\u0041",
                                               "\\ud83d",
                                               "\\ude00",
                                               "0",
                                               "1",
                                               "00",
                                               "-1",
                                               "1.0",
                                               "1e1",
                                               "null",
                                               "true",
                                               " ",
                                               "\n",
                                               "\x01",
                                               "\xC3",
                                               "\xFF",
                                               "\"a\"",
                                               "{}",
                                               "[]",
                                               "\"shape\"",
                                               "\"dtype\"",
                                               "\"__metadata__\"",
                                               "9223372036854775807",
                                               "9223372036854775808",
                                               "18446744073709551616",
                                               "\"U8\"",
                                               "\"F32\"",
                                               "\xEF\xBB\xBF",
                                               "\xED\xA0\x80",
                                               "/**/",
                                               "\"further\":",
                                               "\"further\":[{\"a\":-0.5E+7},null],",
                                               "\"C64\""};
  const std::size_t at = below(random, text.size() + 1);
  const std::size_t rest = text.size() - at;
  switch (below(random, 5)) {
    case 0:
      text.insert(at, one_of(random, pieces));
      break;
    case 1:
      text.erase(at, below(random, 4));
      break;
    case 2:
      text.replace(at, std::min(rest, below(random, 4)), one_of(random, pieces));
      break;
    case 3:
      text.insert(at, text.substr(below(random, text.size() + 1), below(random, 40)));
      break;
    default:
      if (rest > 0) text[at] = static_cast<char>(below(random, 256));
  }
}

class SafeTensorsOracle : public testing::Test {
 protected:
  void SetUp() override { std::cout << "seed " << kSeed << '\n'; }
  int accepted_ = 0, refused_ = 0;

  void check(const std::string& bytes, int file) {
    bool accepted = false;
    const std::string wrong = disagreement(bytes, accepted);
    ASSERT_EQ(wrong, "") << "file " << file << ", header: " << bytes.substr(std::min<std::size_t>(8, bytes.size()));
    ++(accepted ? accepted_ : refused_);
  }
};

TEST_F(SafeTensorsOracle, AgreesOnWholeFiles) {
  for (int n = 0; n < heed_test::effort(3000); ++n) {
    Random random(kSeed, n);
    const File file = random_file(random);
    check(safetensors_bytes(file.header, file.data), n);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(refused_, 0);
}

TEST_F(SafeTensorsOracle, AgreesOnDamagedHeaders) {
  for (int n = 0; n < heed_test::effort(30000); ++n) {
    Random random(kSeed, n);
    File file = random_file(random);
    for (std::size_t times = 1 + below(random, 2); times > 0; --times) damage(random, file.header);
    check(safetensors_bytes(file.header, file.data), n);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(accepted_, heed_test::effort(1000));
  EXPECT_GT(refused_, heed_test::effort(10000));
}

TEST_F(SafeTensorsOracle, AgreesOnDamagedFiles) {
  for (int n = 0; n < heed_test::effort(10000); ++n) {
    Random random(kSeed, n);
    const File file = random_file(random);
    std::string bytes = safetensors_bytes(file.header, file.data);
    if (random.chance(0.5))
      bytes.resize(below(random, bytes.size() + 4), 'x');
    else
      bytes[below(random, 16) % bytes.size()] = static_cast<char>(below(random, 256));
    check(bytes, n);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(accepted_, heed_test::effort(10));
  EXPECT_GT(refused_, heed_test::effort(1000));
}

}  // namespace
