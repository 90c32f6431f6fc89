// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// GGUF files as strings, also broken ones.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace heed_test {

/// Numbers and texts as the format writes them.
class GgufText {
 public:
  template <class T>
  requires std::is_arithmetic_v<T>
  GgufText& put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  /// Its length, then its bytes.
  GgufText& put(std::string_view text) {
    put(std::uint64_t{text.size()});
    bytes_.append(text);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

/// A file of metadata and tensors. What is wrong with it is up to the test.
class GgufFile {
 public:
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;
  std::string magic = "GGUF";

  /// A value with its type's number.
  template <class T>
  void value(std::string_view key, std::uint32_t type, const T& value) {
    values_.put(key).put(type).put(value);
    ++value_count_;
  }
  /// Bytes that follow the key: type, value.
  void raw_value(std::string_view key, std::string_view bytes) {
    std::string all = GgufText().put(key).bytes();
    all += bytes;
    raw_values_ += all;
    ++value_count_;
  }
  /// An array of strings.
  void strings(std::string_view key, const std::vector<std::string>& texts) {
    GgufText array;
    array.put(std::uint32_t{9}).put(std::uint32_t{8}).put(std::uint64_t{texts.size()});
    for (const std::string& text : texts) array.put(std::string_view(text));
    raw_value(key, array.bytes());
  }
  /// A tensor at the next place; extents as files have them, columns first.
  void tensor(std::string_view name, std::uint32_t type, const std::vector<std::uint64_t>& extents,
              std::string_view data) {
    tensor_at(name, type, extents, data_.size());
    data_ += data;
    while (data_.size() % alignment != 0) data_ += '\0';
  }
  /// A tensor at any place, without data.
  void tensor_at(std::string_view name, std::uint32_t type, const std::vector<std::uint64_t>& extents,
                 std::uint64_t offset) {
    tensors_.put(name).put(static_cast<std::uint32_t>(extents.size()));
    for (const std::uint64_t extent : extents) tensors_.put(extent);
    tensors_.put(type).put(offset);
    ++tensor_count_;
  }

  std::string bytes() const {
    GgufText head;
    head.put(version).put(tensor_count_).put(value_count_);
    std::string all = magic + head.bytes() + values_.bytes() + raw_values_ + tensors_.bytes();
    while (all.size() % alignment != 0) all += '\0';
    return all + data_;
  }

 private:
  GgufText values_, tensors_;
  std::string raw_values_, data_;
  std::uint64_t value_count_ = 0, tensor_count_ = 0;
};

}  // namespace heed_test
