// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Checks Gguf on arbitrary bytes. The fuzzer and the test that replays its corpus share it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <heed/io/gguf.hpp>

#include "fuzz/fuzz_input.hpp"

namespace heed_test {

/// Opens the bytes as a file and reads all of it. Returns the error message, or nothing if the file was accepted. Ends
/// the program if a promise does not hold.
inline std::string gguf_refusal_of(std::span<const std::byte> bytes) {
  try {
    const heed::Gguf file = heed::Gguf::from_memory(bytes, "fuzz");
    for (const std::string& key : file.keys()) {
      require(file.has(key), "a listed key is there");
      const auto read = [&](auto get) {
        try {
          get();
        } catch (const heed::FormatError&) {
          // The value is of another kind.
        }
      };
      read([&] { file.metadata<std::int16_t>(key); });
      read([&] { file.metadata<double>(key); });
      read([&] { file.metadata<bool>(key); });
      read([&] { file.metadata<std::string>(key); });
      read([&] { file.metadata_array<std::string>(key); });
      read([&] { file.metadata_array<std::uint64_t>(key); });
    }
    for (const std::string& name : file.names()) {
      require(file.contains(name), "a listed name is contained");
      const std::span<const std::byte> data = file.bytes(name);
      require(data.empty() || (data.data() >= bytes.data() && data.data() + data.size() <= bytes.data() + bytes.size()),
              "a tensor is inside the file");
      std::uint64_t elements = 1;
      for (const heed::Index extent : file.shape(name)) elements *= static_cast<std::uint64_t>(extent);
      try {
        file.require_readable<float>(name);
        require(elements <= bytes.size(), "the shape fills the bytes");
        std::vector<float> numbers(elements);
        file.read_into(name, std::span<float>(numbers));
      } catch (const heed::FormatError&) {
        require(data.empty(), "only a type that is not read is refused");
      }
    }
    return {};
  } catch (const heed::FormatError& e) {
    require(std::string_view(e.what()).size() > 20, "a refusal says why");
    return e.what();
  }
}

}  // namespace heed_test
