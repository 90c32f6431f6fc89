// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Checks SafeTensors on arbitrary bytes. The fuzzer and the test that replays its corpus share it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <heed/io/safetensors.hpp>

#include "fuzz/fuzz_input.hpp"

namespace heed_test {

/// Opens the bytes as a file and reads all of it. Returns the error message, or nothing if the file was accepted. Ends
/// the program if an invalid file was accepted.
inline std::string refusal_of(std::span<const std::byte> bytes) {
  try {
    const heed::SafeTensors file = heed::SafeTensors::from_memory(bytes, "fuzz");
    std::uint64_t end = 0;
    for (const std::string& name : file.names()) {
      const heed::TensorInfo& info = file.info(name);
      require(file.contains(name), "a listed name is contained");
      require(info.begin == end, "tensors follow each other without gap or overlap");
      end = info.end;
      std::uint64_t elements = 1;
      for (const heed::Index extent : info.shape) elements *= static_cast<std::uint64_t>(extent);
      require(info.dtype == heed::Dtype::Other || elements * size_of(info.dtype) == info.end - info.begin,
              "the shape fills the bytes");
      const std::span<const std::byte> data = file.bytes(name);
      require(data.size() == info.end - info.begin, "a tensor has the bytes that its offsets say");
      require(data.empty() || (data.data() >= bytes.data() && data.data() + data.size() <= bytes.data() + bytes.size()),
              "a tensor is inside the file");
      try {
        if (is_float(info.dtype)) {
          heed::Tensor<double, 1> to(static_cast<heed::Index>(elements));
          file.read_into(name, std::span<double>(to.data(), static_cast<std::size_t>(elements)));
        } else {
          file.read_integers<std::int16_t, 1>(name);
          require(info.dtype != heed::Dtype::Other, "a type that is not read is refused");
        }
      } catch (const heed::Error&) {
        // The reader refused another rank or a value out of range.
      }
    }
    return {};
  } catch (const heed::FormatError& e) {
    require(std::string_view(e.what()).size() > 20, "a refusal says why");
    return e.what();
  }
}

}  // namespace heed_test
