// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Parses, checks and writes the header of a safetensors file.
///
///     8 bytes   N, the length of the header (little endian)
///     N bytes   JSON: {"__metadata__": {"key": "text"},
///                      "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
///     the rest  the tensors, row-major and little endian, without gaps; offsets count from here
///
/// Files may be malicious. The parser accepts this grammar, with spaces around it and further fields of a tensor, which
/// it skips; its depth is bounded, and every length is checked before use.

#include <map>
#include <set>

#include <heed/core/core.hpp>
#include <heed/io/dtype.hpp>
#include <heed/io/json.hpp>

HEED_NAMESPACE_BEGIN

/// Free text in a file, by key.
using Metadata = std::map<std::string, std::string, std::less<>>;

namespace detail {

/// The numbers with `separator` between them.
inline std::string join_numbers(const std::vector<Index>& numbers, std::string_view separator) {
  std::string text;
  for (const Index number : numbers) {
    if (!text.empty()) text += separator;
    text += std::to_string(number);
  }
  return text;
}
inline std::string shape_text(const std::vector<Index>& shape) { return concat('(', join_numbers(shape, ", "), ')'); }

struct SafeTensorsHeader {
  std::map<std::string, TensorInfo, std::less<>> tensors;
  /// In the order of the data.
  std::vector<std::string> names;
  Metadata metadata;
};

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr std::size_t kMaxTensorRank = 64;
/// Of values in further fields: other readers of JSON have limits too, of brackets and of what a double holds.
inline constexpr int kMaxSkippedDepth = 100;
inline constexpr std::size_t kMaxSkippedDigits = 300;

/// The product of the extents and `factor`, or nothing if it exceeds 63 bits.
inline std::optional<std::uint64_t> checked_product(std::uint64_t factor, const std::vector<Index>& shape) {
  std::uint64_t bytes = factor;
  bool empty = false;
  for (const Index extent : shape) {
    const auto e = static_cast<std::uint64_t>(extent);
    empty = empty || e == 0;
    if (e == 0) continue;
    if (bytes > static_cast<std::uint64_t>(std::numeric_limits<Index>::max()) / e) return std::nullopt;
    bytes *= e;
  }
  return empty ? 0 : bytes;
}
/// The size of a tensor in bytes, or nothing if it exceeds 63 bits.
inline std::optional<std::uint64_t> checked_bytes(Dtype dtype, const std::vector<Index>& shape) {
  return checked_product(size_of(dtype), shape);
}

/// Parses the JSON text of a header. Every failure is a FormatError that names the file (as passed), the tensor, the
/// field and the byte, and says what was expected and what was found.
class HeaderParser {
 public:
  HeaderParser(std::string_view json, std::string_view file) : text_(json), file_(file) {}

  /// The index of a model in several files: {"weight_map": {"tensor": "file"}}, and members to skip. Returns the files
  /// by tensor.
  Metadata parse_index() {
    part_ = "index";
    Metadata files;
    std::set<std::string, std::less<>> seen;
    object([&](const std::string& key) {
      if (!seen.insert(key).second) fail("field ", in_quotes(key), " appears twice");
      if (key != "weight_map") return skip_value();
      field_ = "weight_map";
      skip_space();
      if (peek() != '{') fail("expected '{', found ", found());
      parse_metadata(files);
      field_ = {};
    });
    skip_space();
    if (at_ != text_.size()) fail("nothing but spaces may follow the last '}', found ", found());
    if (seen.count("weight_map") == 0)
      fail("\"weight_map\" is missing, so this is not the index of a model in several files");
    return files;
  }

  SafeTensorsHeader parse() {
    SafeTensorsHeader header;
    skip_space();
    if (peek() != '{') fail("the header must begin with '{', found ", found());
    object([&](std::string name) {
      if (name == "__metadata__") {
        field_ = "__metadata__";
        if (!std::exchange(metadata_seen_, true))
          parse_metadata(header.metadata);
        else
          fail("it appears twice");
      } else {
        tensor_ = name;
        in_tensor_ = true;
        const auto [entry, is_new] = header.tensors.try_emplace(std::move(name));
        if (!is_new) fail("this name appears twice");
        entry->second = parse_tensor();
        in_tensor_ = false;
      }
      field_ = {};
    });
    skip_space();
    if (at_ != text_.size()) fail("nothing but spaces may follow the header's last '}', found ", found());
    return header;
  }

 private:
  void parse_metadata(Metadata& metadata) {
    skip_space();
    if (peek() == 'n') return word("null");
    object([&](const std::string& key) {
      skip_space();
      if (peek() != '"') fail("the value of ", in_quotes(key), " must be a string, found ", found());
      if (!metadata.try_emplace(key, string()).second) fail("the key ", in_quotes(key), " appears twice");
    });
  }

  TensorInfo parse_tensor() {
    TensorInfo info;
    bool has_dtype = false, has_shape = false, has_offsets = false;
    std::set<std::string, std::less<>> further;
    object([&](const std::string& key) {
      const auto once = [&](bool& seen, std::string_view field) {
        field_ = field;
        if (std::exchange(seen, true)) fail("it appears twice");
      };
      if (key == "dtype") {
        once(has_dtype, "dtype");
        parse_dtype(info);
      } else if (key == "shape") {
        once(has_shape, "shape");
        array([&] {
          if (info.shape.size() == kMaxTensorRank) fail("more than ", kMaxTensorRank, " dimensions");
          info.shape.push_back(static_cast<Index>(integer()));
        });
      } else if (key == "data_offsets") {
        once(has_offsets, "data_offsets");
        std::size_t count = 0;
        array([&] {
          if (count == 2) fail("expected [begin, end], found a third entry");
          (count++ == 0 ? info.begin : info.end) = integer();
        });
        if (count != 2) fail("expected [begin, end], found ", count, count == 1 ? " entry" : " entries");
      } else {
        if (!further.insert(key).second) fail("field ", in_quotes(key), " appears twice");
        skip_value();
      }
      field_ = {};
    });
    if (!has_dtype) fail("field \"dtype\" is missing");
    if (!has_shape) fail("field \"shape\" is missing");
    if (!has_offsets) fail("field \"data_offsets\" is missing");
    return info;
  }

  void parse_dtype(TensorInfo& info) {
    skip_space();
    std::string name = string();
    const auto* found = std::find_if(kDtypes.begin(), kDtypes.end() - 1, [&](const auto& d) { return d.name == name; });
    info.dtype = static_cast<Dtype>(found - kDtypes.begin());
    if (info.dtype != Dtype::Other) return;
    if (bits_in_name(name) == 0) {
      fail(in_quotes(name), " is no type; a type has letters of its kind and a number of bits, such as F32 or F8_E4M3");
    }
    info.other = std::move(name);
  }

  // The JSON that the grammar needs.

  template <class Member>
  void object(Member member) {
    expect('{');
    skip_space();
    if (accept('}')) return;
    do {
      skip_space();
      std::string key = string();
      expect(':');
      member(std::move(key));
      skip_space();
    } while (accept(','));
    expect('}');
  }

  template <class Element>
  void array(Element element) {
    expect('[');
    skip_space();
    if (accept(']')) return;
    do {
      skip_space();
      element();
      skip_space();
    } while (accept(','));
    expect(']');
  }

  /// Any JSON value, of which nothing is kept.
  void skip_value(int depth = 0) {
    if (depth == kMaxSkippedDepth) fail("brackets are nested deeper than ", kMaxSkippedDepth);
    skip_space();
    if (peek() == '{') {
      std::set<std::string> seen;
      object([&](std::string key) {
        if (!seen.insert(std::move(key)).second) fail("a key appears twice");
        skip_value(depth + 1);
      });
    } else if (peek() == '[') {
      array([&] { skip_value(depth + 1); });
    } else if (peek() == '"') {
      string();
    } else if (peek() == 't' || peek() == 'f' || peek() == 'n') {
      word(peek() == 't' ? "true" : peek() == 'f' ? "false" : "null");
    } else {
      skip_number();
    }
  }

  void skip_number() {
    accept('-');
    std::size_t exponent = 0, digits = 1;
    if (!accept('0')) digits = skip_digits().size();
    if (accept('.')) skip_digits();
    if (accept('e') || accept('E')) {
      const bool negative = accept('-');
      if (!negative) accept('+');
      for (const char digit : skip_digits()) {
        exponent = std::min<std::size_t>(1000, 10 * exponent + static_cast<std::size_t>(digit - '0'));
      }
      if (negative) exponent = 0;
    }
    if (digits + exponent > kMaxSkippedDigits) fail("a number has more than ", kMaxSkippedDigits, " digits");
  }
  std::string_view skip_digits() {
    if (!is_digit()) fail("expected a value, found ", found());
    const std::size_t first = at_;
    while (is_digit()) ++at_;
    return text_.substr(first, at_ - first);
  }

  void word(std::string_view expected) {
    if (text_.substr(at_, expected.size()) != expected) fail("expected ", expected, ", found ", found());
    at_ += expected.size();
  }

  /// A non-negative integer that fits an Index.
  std::uint64_t integer() {
    if (!is_digit()) fail("expected a non-negative integer, found ", found());
    constexpr auto largest = static_cast<std::uint64_t>(std::numeric_limits<Index>::max());
    const bool leading_zero = peek() == '0';
    std::uint64_t value = static_cast<std::uint64_t>(text_[at_++] - '0');
    while (is_digit()) {
      const auto digit = static_cast<std::uint64_t>(peek() - '0');
      if (leading_zero) fail("a number must not begin with 0, found another digit");
      if (value > (largest - digit) / 10) fail("a number is larger than ", largest);
      value = 10 * value + digit;
      ++at_;
    }
    if (peek() == '.' || peek() == 'e' || peek() == 'E') fail("expected a non-negative integer, found a fraction");
    return value;
  }

  std::string string() {
    if (!accept('"')) fail("expected a string, found ", found());
    std::string value;
    for (;;) {
      if (at_ == text_.size()) fail("a string has no end");
      const CodePoint c = decode_utf8(text_.substr(at_));
      if (c.length == 0) fail("a string is not UTF-8");
      if (c.value < 0x20) fail("a string holds a control character that is not escaped");
      if (c.value == '\\') {
        escape(value);
        continue;
      }
      const std::string_view taken = text_.substr(at_, c.length);
      at_ += c.length;
      if (c.value == '"') return value;
      value += taken;
    }
  }

  void escape(std::string& value) {
    at_ += 1;
    constexpr std::string_view letters = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
    const std::size_t which = at_ < text_.size() ? letters.find(text_[at_]) : std::string_view::npos;
    if (which != std::string_view::npos) {
      value += meanings[which];
      ++at_;
      return;
    }
    std::uint32_t c = escaped_unit();
    if (c >= 0xDC00 && c <= 0xDFFF) fail("a string holds half a surrogate pair");
    if (c >= 0xD800 && c <= 0xDBFF) {
      if (peek() != '\\') fail("a string holds half a surrogate pair");
      ++at_;
      const std::uint32_t low = escaped_unit();
      if (low < 0xDC00 || low > 0xDFFF) fail("a string holds half a surrogate pair");
      c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    append_utf8(value, c);
  }

  /// uXXXX
  std::uint32_t escaped_unit() {
    if (!accept('u')) fail("a string holds an unknown escape, \\ and then ", found());
    std::uint32_t unit = 0;
    for (int i = 0; i < 4; ++i) {
      constexpr std::string_view digits = "0123456789abcdef0123456789ABCDEF";
      const std::size_t digit = at_ < text_.size() ? digits.find(text_[at_]) : std::string_view::npos;
      if (digit == std::string_view::npos) fail("\\u needs four hexadecimal digits, found ", found());
      unit = unit << 4 | static_cast<std::uint32_t>(digit % 16);
      ++at_;
    }
    return unit;
  }

  void skip_space() {
    while (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r') ++at_;
  }
  /// The next byte; at the end 0, which occurs nowhere in the grammar.
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool is_digit() const { return peek() >= '0' && peek() <= '9'; }
  bool accept(char c) {
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    skip_space();
    if (!accept(c)) fail("expected '", c, "', found ", found());
  }
  std::string found() const {
    return at_ < text_.size() ? in_quotes(text_.substr(at_, 1)) : concat("the end of the ", part_);
  }

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    raise<FormatError>("heed::SafeTensors: file ", file_, in_tensor_ ? ", tensor " + in_quotes(tensor_) : "",
                       field_.empty() ? "" : ", field " + in_quotes(field_), ", byte ", at_, " of the ", part_, ": ",
                       parts...);
  }

  std::string_view text_, file_;
  std::size_t at_ = 0;
  std::string tensor_;
  bool in_tensor_ = false, metadata_seen_ = false;
  std::string_view field_, part_ = "header";
};

/// The bytes that a tensor takes by its shape, or nothing if it exceeds 63 bits.
inline std::optional<std::uint64_t> bytes_by_shape(const TensorInfo& info) {
  if (info.dtype != Dtype::Other) return checked_bytes(info.dtype, info.shape);
  const std::optional<std::uint64_t> bits = checked_product(bits_in_name(info.other), info.shape);
  if (!bits) return std::nullopt;
  return (*bits + 7) / 8;
}

/// Checks that the tensors cover `data_bytes` bytes without overlaps, gaps or a rest, and orders their names by
/// position.
inline void check_layout(SafeTensorsHeader& header, std::uint64_t data_bytes, std::string_view file) {
  std::vector<const std::pair<const std::string, TensorInfo>*> in_order;
  in_order.reserve(header.tensors.size());
  for (const auto& entry : header.tensors) {
    const auto& [name, info] = entry;
    const auto fail = [&, &tensor = name](const auto&... parts) {
      raise<FormatError>("heed::SafeTensors: file ", file, ", tensor ", in_quotes(tensor), ": ", parts...);
    };
    const std::optional<std::uint64_t> bytes = bytes_by_shape(info);
    if (!bytes) fail("shape ", shape_text(info.shape), " has more bytes than 63 bits can count");
    if (info.begin > info.end) fail("data_offsets [", info.begin, ", ", info.end, "] end before they begin");
    if (info.end > data_bytes) {
      fail("data_offsets [", info.begin, ", ", info.end, "] reach past the ", data_bytes,
           " bytes of data; the file is cut short or its header is damaged");
    }
    if (info.end - info.begin != *bytes) {
      fail("shape ", shape_text(info.shape), " of ", dtype_name(info), " takes ", *bytes, " bytes, but data_offsets [",
           info.begin, ", ", info.end, "] hold ", info.end - info.begin);
    }
    in_order.push_back(&entry);
  }
  std::sort(in_order.begin(), in_order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });

  std::uint64_t covered = 0;
  header.names.reserve(in_order.size());
  for (const auto* entry : in_order) {
    const TensorInfo& info = entry->second;
    if (info.begin != covered) {
      raise<FormatError>("heed::SafeTensors: file ", file, ", tensor ", in_quotes(entry->first),
                         ": data_offsets begin at ", info.begin,
                         info.begin < covered ? " and overlap what comes before, " : " and leave a gap after ",
                         header.names.empty() ? "the start of the data" : "tensor " + in_quotes(header.names.back()),
                         header.names.empty() ? ", which is at " : ", which ends at ", covered);
    }
    covered = info.end;
    header.names.push_back(entry->first);
  }
  HEED_CHECK(covered == data_bytes, FormatError, "heed::SafeTensors: file ", file, ": the tensors end at byte ",
             covered, " of the data",
             header.names.empty() ? std::string() : " (the last one is " + in_quotes(header.names.back()) + ")",
             ", but there are ", data_bytes, " bytes; those left over belong to no tensor");
}

/// A sentence about the probable format of a file that is not safetensors; empty if unknown.
inline std::string_view guess_other_format(std::string_view bytes) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 7> known{{
      {"{", "; this is JSON: open the index of a model in several files by its name, which ends in .json"},
      {"GGUF", "; this is a GGUF file, convert it to safetensors"},
      {"PK\x03\x04", "; this is a zip archive, perhaps from torch.save: convert it to safetensors"},
      {"\x80\x02", "; this is a Python pickle, perhaps from torch.save: convert it to safetensors"},
      {"\x93NUMPY", "; this is a NumPy file, convert it to safetensors"},
      {"version https://git-lfs", "; this is a Git LFS pointer, fetch the file itself with 'git lfs pull'"},
      {"<", "; this is a web page or XML, the download went wrong"},
  }};
  for (const auto& [start, sentence] : known) {
    if (bytes.starts_with(start)) return sentence;
  }
  return {};
}

/// Parses the header of a file and returns it with the position of the data.
inline std::pair<SafeTensorsHeader, std::uint64_t> read_header(std::string_view bytes, std::string_view file) {
  HEED_CHECK(bytes.size() >= 8, FormatError, "heed::SafeTensors: file ", file, " has ", bytes.size(),
             " bytes, but the length of the header alone takes 8; the file is cut short or no safetensors file",
             guess_other_format(bytes));
  std::uint64_t length = 0;
  for (std::size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(bytes[i]);
  const std::uint64_t rest = bytes.size() - 8;
  HEED_CHECK(length <= kMaxHeaderBytes && length <= rest, FormatError, "heed::SafeTensors: file ", file,
             " announces a header of ", length, " bytes, but ",
             length <= rest ? "a header may have " + std::to_string(kMaxHeaderBytes)
                            : "only " + std::to_string(rest) + " bytes follow",
             "; the file is cut short or no safetensors file", guess_other_format(bytes));
  SafeTensorsHeader header = HeaderParser(bytes.substr(8, static_cast<std::size_t>(length)), file).parse();
  check_layout(header, rest - length, file);
  return {std::move(header), 8 + length};
}

/// The length and the JSON of a header, padded to a multiple of 8 bytes. The tensors are in the order of the data.
inline std::string write_header(const std::vector<std::pair<std::string_view, TensorInfo>>& tensors,
                                const Metadata& metadata) {
  JsonWriter writer;
  writer.open('{');
  if (!metadata.empty()) {
    writer.key("__metadata__").open('{');
    for (const auto& [key, value] : metadata) writer.key(key).value(value);
    writer.close('}');
  }
  for (const auto& [name, info] : tensors) {
    writer.key(name).open('{').key("dtype").value(to_string(info.dtype)).key("shape").open('[');
    for (const auto extent : info.shape) writer.value(extent);
    writer.close(']').key("data_offsets").open('[').value(info.begin).value(info.end).close(']').close('}');
  }
  std::string json = writer.close('}').take();
  json.append((8 - json.size() % 8) % 8, ' ');
  std::string header;
  const std::uint64_t length = json.size();
  for (int i = 0; i < 8; ++i) header += static_cast<char>(static_cast<unsigned char>(length >> 8 * i & 0xFF));
  return header += json;
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
