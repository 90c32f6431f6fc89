// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// What must hold for a safetensors file of any bytes: shared by the fuzzer and by the test that replays its corpus.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>

#include <heed/io/safetensors.hpp>

namespace heed_test {

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

/// Opens the bytes as a file and reads all of it. Returns the refusal, or nothing when the file was accepted; ends the
/// program when the file was accepted though something in it is wrong.
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
      require(elements * size_of(info.dtype) == info.end - info.begin, "the shape fills the bytes");
      const std::span<const std::byte> data = file.bytes(name);
      require(data.size() == info.end - info.begin, "a tensor has the bytes that its offsets say");
      require(data.empty() || (data.data() >= bytes.data() && data.data() + data.size() <= bytes.data() + bytes.size()),
              "a tensor lies inside the file");
      try {
        if (is_float(info.dtype)) {
          heed::Tensor<double, 1> to(static_cast<heed::Index>(elements));
          file.read_into(name, std::span<double>(to.data(), static_cast<std::size_t>(elements)));
        } else {
          file.read_integers<std::int16_t, 1>(name);
        }
      } catch (const heed::Error&) {
        // Another rank, a value that does not fit: the reader said so.
      }
    }
    return {};
  } catch (const heed::FormatError& e) {
    require(std::string_view(e.what()).size() > 20, "a refusal says why");
    return e.what();
  }
}

}  // namespace heed_test
