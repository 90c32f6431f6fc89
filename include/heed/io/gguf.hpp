// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Reads GGUF files, the format of llama.cpp: weights, often in few bits, with the model's configuration and tokenizer.
///
///     const heed::Gguf file = heed::Gguf::open("model.gguf");
///     const auto layers = file.metadata<int>("llama.block_count");
///     const heed::Tensor<float, 2> table = file.read<float, 2>("token_embd.weight");
///     heed::load_parameters(model, file, heed::name_maps::gguf_llama(), {.keep_blocks = true});

#include <heed/core/simd.hpp>
#include <heed/io/file.hpp>
#include <heed/io/gguf_header.hpp>

HEED_NAMESPACE_BEGIN

/// An open, checked GGUF file of version 2 or 3. Several threads may read from one object.
class Gguf {
 public:
  /// Maps the file into memory (or reads it if mapping is not supported) and checks the header. While the object
  /// exists, replace the file only by renaming another over it; never truncate it. Throws FormatError, with the place
  /// and the reason, if the file cannot be opened, is truncated or inconsistent. Tensors of types that heed does not
  /// read, such as Q4_K, have names and shapes; only reading them throws.
  static Gguf open(const std::string& path) {
    detail::MappedFile memory = detail::MappedFile::open(path);
    const std::span<const std::byte> bytes = memory.bytes();
    return Gguf(std::move(memory), bytes, path);
  }
  /// Reads bytes in memory, which must outlive the object. `name` replaces the path in messages. Throws as open() does.
  static Gguf from_memory(std::span<const std::byte> bytes, std::string_view name = "(memory)") {
    return Gguf({}, bytes, name);
  }

  /// The path in quotes, for messages.
  const std::string& file() const& { return file_; }
  /// The same of a temporary object, as a copy.
  std::string file() const&& { return file_; }

  /// @{
  /// Metadata. True if there is a value of this key.
  bool has(std::string_view key) const { return header_.metadata.find(key) != header_.metadata.end(); }
  /// All keys, in alphabetical order.
  std::vector<std::string> keys() const {
    std::vector<std::string> all;
    for (const auto& [key, value] : header_.metadata) all.push_back(key);
    return all;
  }
  /// The value of a key: metadata<int>("llama.block_count"), of any integer type that holds it, bool, float or double,
  /// or std::string. Throws FormatError for a key that is missing, or a value of another kind or out of range.
  template <class T>
  T metadata(std::string_view key) const {
    const detail::GgufValue& value = value_of(key);
    HEED_CHECK(!value.is_array, FormatError, where(key), "is an array of ", value.count, " ", to_string(value.type),
               "; read it with metadata_array");
    std::span<const std::byte> bytes = value.bytes;
    return next<T>(key, value.type, bytes);
  }
  /// The same, or `otherwise` where the key is missing.
  template <class T>
  T metadata(std::string_view key, T otherwise) const {
    return has(key) ? metadata<T>(key) : otherwise;
  }
  /// The elements of an array. Throws as metadata() does.
  template <class T>
  std::vector<T> metadata_array(std::string_view key) const {
    const detail::GgufValue& value = value_of(key);
    HEED_CHECK(value.is_array, FormatError, where(key), "is one ", to_string(value.type),
               ", not an array; read it with metadata");
    std::vector<T> elements;
    std::span<const std::byte> bytes = value.bytes;
    for (std::uint64_t i = 0; i < value.count; ++i) elements.push_back(next<T>(key, value.type, bytes));
    return elements;
  }
  /// @}

  /// The names of all tensors, in the order of the file.
  const std::vector<std::string>& names() const& { return header_.names; }
  /// The same of a temporary object, as a copy.
  std::vector<std::string> names() const&& { return header_.names; }
  /// True if there is a tensor of this name.
  bool contains(std::string_view name) const { return header_.tensors.find(name) != header_.tensors.end(); }
  /// Type and shape. Throws FormatError if there is no tensor of this name, as the functions below do.
  const GgufTensor& info(std::string_view name) const& {
    const auto entry = header_.tensors.find(name);
    HEED_CHECK(entry != header_.tensors.end(), FormatError, "heed::Gguf: file ", file_, " has no tensor ",
               detail::in_quotes(name),
               names().empty() ? std::string("; it has none") : "; the first is " + detail::in_quotes(names()[0]));
    return entry->second;
  }
  /// The same of a temporary object, as a copy.
  GgufTensor info(std::string_view name) const&& { return info(name); }
  /// The extents, rows first.
  const std::vector<Index>& shape(std::string_view name) const& { return info(name).shape; }
  /// The same of a temporary object, as a copy.
  std::vector<Index> shape(std::string_view name) const&& { return info(name).shape; }
  /// The stored bytes, little endian; empty for a type that heed does not read. A temporary object has none.
  std::span<const std::byte> bytes(std::string_view name) const& {
    const GgufTensor& tensor = info(name);
    return bytes_.subspan(static_cast<std::size_t>(header_.data_begin + tensor.begin),
                          static_cast<std::size_t>(tensor.end - tensor.begin));
  }
  void bytes(std::string_view name) const&& = delete;
  /// Gives up the memory that the pages of a tensor took when they were read; reading it again brings them back.
  void forget(std::string_view name) const& { memory_.forget(bytes(name)); }
  /// The format of a tensor; nothing for one of float. Throws FormatError for a type that heed does not read.
  std::optional<WeightFormat> format(std::string_view name) const {
    require_readable<float>(name);
    const std::string_view type = detail::ggml_type(info(name).type).name;
    for (std::size_t i = 0; i < detail::kWeightFormats.size(); ++i) {
      if (detail::kWeightFormats[i].name == type) return static_cast<WeightFormat>(i);
    }
    return std::nullopt;
  }

  /// Copies a tensor as numbers: read<float, 2>("blk.0.ffn_up.weight"). Throws FormatError if the rank differs, or for
  /// a type that heed does not read.
  template <class T, int Rank>
  Tensor<T, Rank> read(std::string_view name) const {
    const std::vector<Index>& shape = info(name).shape;
    HEED_CHECK(shape.size() == static_cast<std::size_t>(Rank), FormatError, where(name), "has rank ", shape.size(),
               ", not ", Rank, "; read it with that rank");
    Extents<Rank> extents{};
    for (std::size_t i = 0; i < shape.size(); ++i) {
      HEED_CHECK(shape[i] <= std::numeric_limits<int>::max(), FormatError, where(name), "has an extent of ", shape[i],
                 ", but an extent of a heed tensor is at most 2147483647");
      extents[i] = shape[i];
    }
    require_readable<T>(name);
    Tensor<T, Rank> tensor(extents);
    read_into(name, std::span<T>(tensor.data(), static_cast<std::size_t>(tensor.size())));
    return tensor;
  }
  /// Copies a tensor into `to` in row-major order. Throws as read() does, and FormatError if `to` has another size;
  /// nothing is written then.
  template <class T>
  void read_into(std::string_view name, std::span<T> to) const {
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>);
    const std::optional<WeightFormat> format = this->format(name);
    const std::span<const std::byte> from = bytes(name);
    const Index block = format ? detail::facts_of(*format).block : 1;
    const auto block_bytes = static_cast<std::size_t>(format ? detail::facts_of(*format).block_bytes : 4);
    const std::size_t elements = from.size() / block_bytes * static_cast<std::size_t>(block);
    HEED_CHECK(to.size() == elements, FormatError, where(name), "has ", elements, " elements, but `to` has ", to.size(),
               "; allocate as many as info(name).shape requires");
    for (std::size_t first = 0, n; first < elements; first += n) {
      n = std::min<std::size_t>(detail::kBlock, elements - first);
      const std::byte* at = from.data() + first / static_cast<std::size_t>(block) * block_bytes;
      if (!format) {
        std::array<float, detail::kBlock> numbers;
        std::memcpy(numbers.data(), at, n * sizeof(float));
        std::copy_n(numbers.data(), n, to.data() + first);
        continue;
      }
      const detail::WeightBlock numbers = detail::read_block(*format, at, static_cast<Index>(n));
      for (std::size_t i = 0; i < n; ++i) to[first + i] = static_cast<T>(detail::value_of(*format, numbers, i));
    }
  }
  /// Throws the FormatError that read() would throw, except for a wrong rank.
  template <class T>
  void require_readable(std::string_view name) const {
    const GgufTensor& tensor = info(name);
    HEED_CHECK(detail::is_readable(tensor), FormatError, where(name), "is ", detail::ggml_type(tensor.type).name,
               " (type ", tensor.type, "), which heed does not read; convert it to F32, F16, BF16, Q8_0, Q4_0 or Q4_1");
  }

 private:
  Gguf(detail::MappedFile memory, std::span<const std::byte> bytes, std::string_view name)
      : memory_(std::move(memory)),
        file_(detail::in_quotes(name, name.size())),
        bytes_(bytes),
        header_(detail::read_gguf_header(bytes, file_)) {}

  std::string where(std::string_view name) const {
    return detail::concat("heed::Gguf: file ", file_, ", ", detail::in_quotes(name), ": it ");
  }
  const detail::GgufValue& value_of(std::string_view key) const {
    const auto entry = header_.metadata.find(key);
    HEED_CHECK(entry != header_.metadata.end(), FormatError, "heed::Gguf: file ", file_, " has no metadata ",
               detail::in_quotes(key));
    return entry->second;
  }

  /// One value from the front of `bytes`, which then begin after it.
  template <class T>
  T next(std::string_view key, GgufType type, std::span<const std::byte>& bytes) const {
    detail::GgufCursor cursor(bytes, file_);
    T result{};
    if constexpr (std::is_same_v<T, std::string>) {
      HEED_CHECK(type == GgufType::String, FormatError, where(key), "is ", to_string(type), ", not a string");
      result = std::string(cursor.string("a string"));
    } else {
      static_assert(std::is_arithmetic_v<T>, "heed: metadata are integers, bool, float, double or std::string");
      convert_next(key, type, cursor, result);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(cursor.position()));
    return result;
  }
  template <class T>
  void convert_next(std::string_view key, GgufType type, detail::GgufCursor& cursor, T& to) const {
    const auto from = [&](auto value) {
      using S = decltype(value);
      value = cursor.number<S>("a value");
      constexpr bool same_kind =
          std::is_same_v<T, bool> ? false : std::is_floating_point_v<S> == std::is_floating_point_v<T>;
      HEED_CHECK(same_kind, FormatError, where(key), "is ", to_string(type), ", not ",
                 std::is_same_v<T, bool> ? "bool"
                 : std::is_integral_v<T> ? "an integer"
                                         : "a floating-point number");
      if constexpr (same_kind && std::is_integral_v<T>) {
        HEED_CHECK(std::in_range<T>(value), FormatError, where(key), "is ", +value,
                   ", which the requested integer type cannot represent; use a wider one");
      }
      to = static_cast<T>(value);
    };
    switch (type) {
      case GgufType::UInt8:
        return from(std::uint8_t{});
      case GgufType::Int8:
        return from(std::int8_t{});
      case GgufType::UInt16:
        return from(std::uint16_t{});
      case GgufType::Int16:
        return from(std::int16_t{});
      case GgufType::UInt32:
        return from(std::uint32_t{});
      case GgufType::Int32:
        return from(std::int32_t{});
      case GgufType::UInt64:
        return from(std::uint64_t{});
      case GgufType::Int64:
        return from(std::int64_t{});
      case GgufType::Float32:
        return from(float{});
      case GgufType::Float64:
        return from(double{});
      case GgufType::Bool: {
        const auto value = cursor.number<std::uint8_t>("a value");
        HEED_CHECK((std::is_same_v<T, bool>) && value <= 1, FormatError, where(key), "is bool ", +value,
                   std::is_same_v<T, bool> ? ", but must be 0 or 1" : "; read it with metadata<bool>");
        to = static_cast<T>(value);
        return;
      }
      case GgufType::String:
      case GgufType::Array:
        break;
    }
    detail::raise<FormatError>(where(key), "is ", to_string(type), ", not a number");
  }

  detail::MappedFile memory_;
  std::string file_;
  std::span<const std::byte> bytes_;
  detail::GgufHeader header_;
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
