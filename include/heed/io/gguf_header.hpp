// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The header of GGUF files: metadata and the places of tensors, from bytes that may be malicious. Format: ggml's
/// docs/gguf.md, versions 2 and 3.

#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <span>

#include <heed/core/weight_format.hpp>
#include <heed/io/dtype.hpp>
#include <heed/io/text.hpp>

HEED_NAMESPACE_BEGIN

/// The types of metadata in GGUF files, with their numbers.
enum class GgufType : std::uint32_t {
  UInt8,
  Int8,
  UInt16,
  Int16,
  UInt32,
  Int32,
  Float32,
  Bool,
  String,
  Array,
  UInt64,
  Int64,
  Float64
};

/// The name of a type, such as "uint32".
constexpr std::string_view to_string(GgufType type) {
  constexpr std::array<std::string_view, 13> names{"uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
                                                   "bool",  "string", "array",  "uint64", "int64",  "float64"};
  return names[static_cast<std::size_t>(type)];
}

/// The type, the shape and the place of one tensor of a GGUF file.
struct GgufTensor {
  std::uint32_t type = 0;    ///< ggml's number of the type
  std::vector<Index> shape;  ///< extents as heed orders them, rows first; a matrix is (out, in)
  std::uint64_t begin = 0;   ///< first byte, counted from the start of the data
  std::uint64_t end = 0;     ///< one past the last byte; begin, for a type that heed does not read
};

namespace detail {

struct GgmlTypeFacts {
  std::uint32_t number;
  std::string_view name;
  std::uint64_t block, block_bytes;  // 0: heed does not read it
};
/// ggml's types of numbers.
inline constexpr GgmlTypeFacts kGgmlTypes[] = {
    {0, "F32", 1, 4},     {1, "F16", 1, 2},      {2, "Q4_0", 32, 18}, {3, "Q4_1", 32, 20},  {6, "Q5_0", 0, 0},
    {7, "Q5_1", 0, 0},    {8, "Q8_0", 32, 34},   {9, "Q8_1", 0, 0},   {10, "Q2_K", 0, 0},   {11, "Q3_K", 0, 0},
    {12, "Q4_K", 0, 0},   {13, "Q5_K", 0, 0},    {14, "Q6_K", 0, 0},  {15, "Q8_K", 0, 0},   {16, "IQ2_XXS", 0, 0},
    {17, "IQ2_XS", 0, 0}, {18, "IQ3_XXS", 0, 0}, {19, "IQ1_S", 0, 0}, {20, "IQ4_NL", 0, 0}, {21, "IQ3_S", 0, 0},
    {22, "IQ2_S", 0, 0},  {23, "IQ4_XS", 0, 0},  {24, "I8", 0, 0},    {25, "I16", 0, 0},    {26, "I32", 0, 0},
    {27, "I64", 0, 0},    {28, "F64", 0, 0},     {29, "IQ1_M", 0, 0}, {30, "BF16", 1, 2},   {34, "TQ1_0", 0, 0},
    {35, "TQ2_0", 0, 0},  {39, "MXFP4", 0, 0}};
inline const GgmlTypeFacts& ggml_type(std::uint32_t number) {
  static constexpr GgmlTypeFacts unknown{0, "an unknown type", 0, 0};
  for (const GgmlTypeFacts& type : kGgmlTypes) {
    if (type.number == number) return type;
  }
  return unknown;
}
inline bool is_readable(const GgufTensor& tensor) { return ggml_type(tensor.type).block > 0; }

/// Bytes of a value; 0 for strings and arrays.
constexpr std::size_t size_of(GgufType type) {
  constexpr std::array<std::size_t, 13> sizes{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return sizes[static_cast<std::size_t>(type)];
}
/// A value of the metadata: where its bytes are. Of an array, the type and number of its elements; those of an array of
/// strings are walked through anew when it is read.
struct GgufValue {
  GgufType type = GgufType::UInt8;
  bool is_array = false;
  std::uint64_t count = 1;
  std::span<const std::byte> bytes;
};

struct GgufHeader {
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<std::string> names;  // of tensors, in the order of the file
  std::map<std::string, GgufTensor, std::less<>> tensors;
  std::uint64_t data_begin = 0;
};

/// Reads forward through bytes. Every length is compared with what is left.
class GgufCursor {
 public:
  GgufCursor(std::span<const std::byte> bytes, const std::string& file) : bytes_(bytes), file_(&file) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t left() const { return bytes_.size() - position_; }
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    raise<FormatError>("heed::Gguf: file ", *file_, ", byte ", position_, ": ", parts...);
  }
  std::span<const std::byte> take(std::uint64_t count, std::string_view what) {
    if (count > left()) refuse(what, " needs ", count, " bytes, but the file has ", left(), " more; it is truncated");
    const auto result = bytes_.subspan(static_cast<std::size_t>(position_), static_cast<std::size_t>(count));
    position_ += count;
    return result;
  }
  template <class T>
  T number(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }
  std::string_view string(std::string_view what) {
    const auto bytes = take(number<std::uint64_t>(what), what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  GgufType type(std::string_view what) {
    const auto number_of_type = number<std::uint32_t>(what);
    if (number_of_type > static_cast<std::uint32_t>(GgufType::Float64)) {
      refuse(what, " is ", number_of_type, ", but types are 0 to 12");
    }
    return static_cast<GgufType>(number_of_type);
  }
  /// Skips `count` values of a type.
  void skip(GgufType type, std::uint64_t count, int depth = 0) {
    if (const std::size_t size = size_of(type)) {
      if (count > left() / size) {
        refuse(count, " ", to_string(type), " need more than the ", left(),
               " bytes that the file has left; it is truncated");
      }
      take(count * size, "a value");
      return;
    }
    // A string takes 8 bytes at least, an array 12: the loop ends with the file.
    for (std::uint64_t i = 0; i < count; ++i) {
      if (type == GgufType::String) {
        string("a string");
      } else {
        constexpr int deepest = 8;
        if (depth == deepest) refuse("arrays are nested more than ", deepest, " deep");
        const GgufType inner = this->type("the type of an array");
        skip(inner, number<std::uint64_t>("the length of an array"), depth + 1);
      }
    }
  }
  GgufValue value() {
    GgufValue value{type("the type of a value"), false, 1, {}};
    if (value.type == GgufType::Array) {
      value.is_array = true;
      value.type = type("the type of an array");
      value.count = number<std::uint64_t>("the length of an array");
    }
    const std::uint64_t first = position_;
    skip(value.type, value.count);
    value.bytes = bytes_.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(position_ - first));
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string* file_;
  std::uint64_t position_ = 0;
};

/// Keys and names are short texts.
inline std::string gguf_name(GgufCursor& cursor, std::string_view what) {
  const std::string_view name = cursor.string(what);
  constexpr std::size_t longest = 65535;
  if (name.size() > longest) cursor.refuse(what, " has ", name.size(), " bytes, but may have ", longest);
  if (!is_utf8(name)) cursor.refuse(what, " ", in_quotes(name), " is not valid UTF-8");
  return std::string(name);
}

/// One tensor of the list.
inline GgufTensor gguf_tensor(GgufCursor& cursor, std::string_view name) {
  GgufTensor tensor;
  const auto rank = cursor.number<std::uint32_t>("the number of extents");
  if (rank > 4) cursor.refuse("tensor ", in_quotes(name), " has ", rank, " extents, but may have 4");
  std::uint64_t elements = 1;
  for (std::uint32_t i = 0; i < rank; ++i) {
    const auto extent = cursor.number<std::uint64_t>("an extent");
    constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<Index>::max()) / 8;
    if (extent > most || (extent > 0 && elements > most / extent)) {
      cursor.refuse("tensor ", in_quotes(name), " has too many elements");
    }
    elements *= extent;
    // The file names the extent of neighbours in memory first.
    tensor.shape.insert(tensor.shape.begin(), static_cast<Index>(extent));
  }
  tensor.type = cursor.number<std::uint32_t>("the type of a tensor");
  tensor.begin = tensor.end = cursor.number<std::uint64_t>("the place of a tensor");
  const GgmlTypeFacts& type = ggml_type(tensor.type);
  if (type.block == 0) return tensor;
  const auto columns = tensor.shape.empty() ? 1 : static_cast<std::uint64_t>(tensor.shape.back());
  if (columns % type.block != 0) {
    cursor.refuse("tensor ", in_quotes(name), " is ", type.name, " with rows of ", columns,
                  " numbers, which are no multiple of ", type.block);
  }
  const std::uint64_t bytes = elements / type.block * type.block_bytes;
  if (tensor.begin > std::numeric_limits<std::uint64_t>::max() - bytes) {
    cursor.refuse("tensor ", in_quotes(name), " ends beyond 64 bits");
  }
  tensor.end = tensor.begin + bytes;
  return tensor;
}

/// Reads and checks the header. `file` begins every message.
inline GgufHeader read_gguf_header(std::span<const std::byte> bytes, const std::string& file) {
  GgufCursor cursor(bytes, file);
  GgufHeader header;
  if (bytes.size() < 4 || std::memcmp(bytes.data(), "GGUF", 4) != 0) cursor.refuse("it does not begin with \"GGUF\"");
  cursor.take(4, "the first word");
  const auto version = cursor.number<std::uint32_t>("the version");
  if (version != 2 && version != 3) cursor.refuse("the version is ", version, ", but heed reads 2 and 3");
  const auto tensor_count = cursor.number<std::uint64_t>("the number of tensors");
  const auto value_count = cursor.number<std::uint64_t>("the number of values");
  // No loop below is longer than the file: each entry takes bytes.
  for (std::uint64_t i = 0; i < value_count; ++i) {
    std::string key = gguf_name(cursor, "a key");
    const GgufValue value = cursor.value();
    if (!header.metadata.try_emplace(key, value).second) cursor.refuse("the key ", in_quotes(key), " occurs twice");
  }
  std::uint64_t alignment = 32;
  if (const auto entry = header.metadata.find("general.alignment"); entry != header.metadata.end()) {
    const GgufValue& value = entry->second;
    if (value.is_array || value.type != GgufType::UInt32) cursor.refuse("\"general.alignment\" is not a uint32");
    std::uint32_t stored;
    std::memcpy(&stored, value.bytes.data(), sizeof stored);
    alignment = stored;
    if (alignment < 8 || alignment > 1u << 20 || (alignment & (alignment - 1)) != 0) {
      cursor.refuse("\"general.alignment\" is ", alignment, ", but must be a power of two from 8 to 1048576");
    }
  }
  for (std::uint64_t i = 0; i < tensor_count; ++i) {
    std::string name = gguf_name(cursor, "the name of a tensor");
    GgufTensor tensor = gguf_tensor(cursor, name);
    if (tensor.begin % alignment != 0) {
      cursor.refuse("tensor ", in_quotes(name), " begins at ", tensor.begin, ", which is no multiple of ", alignment);
    }
    if (!header.tensors.try_emplace(name, std::move(tensor)).second) {
      cursor.refuse("the tensor ", in_quotes(name), " occurs twice");
    }
    header.names.push_back(std::move(name));
  }
  header.data_begin = (cursor.position() + alignment - 1) / alignment * alignment;
  const std::uint64_t data = header.data_begin <= bytes.size() ? bytes.size() - header.data_begin : 0;
  std::vector<std::pair<const GgufTensor*, const std::string*>> in_order;
  for (const auto& [name, tensor] : header.tensors) {
    if (tensor.end > data) {
      cursor.refuse("tensor ", in_quotes(name), " is at bytes ", tensor.begin, " to ", tensor.end,
                    " of the data, but the file has ", data, " bytes of it; it is truncated");
    }
    if (tensor.end > tensor.begin) in_order.emplace_back(&tensor, &name);
  }
  std::sort(in_order.begin(), in_order.end(),
            [](const auto& a, const auto& b) { return a.first->begin < b.first->begin; });
  for (std::size_t i = 1; i < in_order.size(); ++i) {
    if (in_order[i].first->begin < in_order[i - 1].first->end) {
      cursor.refuse("the tensors ", in_quotes(*in_order[i - 1].second), " and ", in_quotes(*in_order[i].second),
                    " share bytes");
    }
  }
  return header;
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
