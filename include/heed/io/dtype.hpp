// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Dtype: the element types of tensors in files. TensorInfo: type, shape and position of such a tensor.

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <string_view>
#include <vector>

#include <heed/core/core.hpp>

HEED_NAMESPACE_BEGIN

static_assert(std::endian::native == std::endian::little,
              "heed reads safetensors files, which are little endian, only on little-endian machines");

/// The element types of safetensors files that heed reads and writes. A file may hold tensors of other types, such as
/// C64 or F8_E4M3: only their bytes can be had.
enum class Dtype { F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8, Bool, Other };

namespace detail {

struct DtypeFacts {
  std::string_view name;
  std::uint64_t bytes;
};
/// In the order of Dtype.
inline constexpr std::array<DtypeFacts, 14> kDtypes{{{"F64", 8},
                                                     {"F32", 4},
                                                     {"F16", 2},
                                                     {"BF16", 2},
                                                     {"I64", 8},
                                                     {"I32", 4},
                                                     {"I16", 2},
                                                     {"I8", 1},
                                                     {"U64", 8},
                                                     {"U32", 4},
                                                     {"U16", 2},
                                                     {"U8", 1},
                                                     {"BOOL", 1},
                                                     {"another type", 0}}};

/// The bits of an element by the name of its type: letters of a kind of number, bits, details ("C64", "F8_E4M3", "F4");
/// 0 for another name.
inline std::uint64_t bits_in_name(std::string_view name) {
  const auto letters = name.substr(0, std::min(name.find_first_of("0123456789"), name.size()));
  constexpr std::array<std::string_view, 5> kinds{"F", "BF", "I", "U", "C"};
  if (std::find(kinds.begin(), kinds.end(), letters) == kinds.end()) return 0;
  name.remove_prefix(letters.size());
  std::uint64_t bits = 0;
  while (!name.empty() && name[0] >= '0' && name[0] <= '9') {
    bits = std::min<std::uint64_t>(1000, 10 * bits + static_cast<std::uint64_t>(name[0] - '0'));
    name.remove_prefix(1);
  }
  const bool detailed = name.starts_with('_') &&
                        name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == std::string_view::npos;
  return (name.empty() || detailed) && bits <= 512 ? bits : 0;
}

/// The stored type of a C++ type.
template <class T>
constexpr Dtype dtype_of() {
  if constexpr (std::is_same_v<T, double>) return Dtype::F64;
  if constexpr (std::is_same_v<T, float>) return Dtype::F32;
  if constexpr (std::is_same_v<T, half>) return Dtype::F16;
  if constexpr (std::is_same_v<T, bfloat16>) return Dtype::BF16;
  if constexpr (std::is_same_v<T, bool>) return Dtype::Bool;
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    constexpr std::array<Dtype, 4> with_sign{Dtype::I8, Dtype::I16, Dtype::I32, Dtype::I64};
    constexpr std::array<Dtype, 4> without{Dtype::U8, Dtype::U16, Dtype::U32, Dtype::U64};
    return (std::is_signed_v<T> ? with_sign : without)[std::countr_zero(sizeof(T))];
  }
}

}  // namespace detail

/// The name of a type in files, such as "BF16".
constexpr std::string_view to_string(Dtype dtype) { return detail::kDtypes[static_cast<std::size_t>(dtype)].name; }
/// The size of one element in bytes; 0 for Dtype::Other.
constexpr std::uint64_t size_of(Dtype dtype) { return detail::kDtypes[static_cast<std::size_t>(dtype)].bytes; }
/// True for floating-point types.
constexpr bool is_float(Dtype dtype) { return dtype <= Dtype::BF16; }
/// True for integers and booleans.
constexpr bool is_integer(Dtype dtype) { return dtype > Dtype::BF16 && dtype < Dtype::Other; }

/// The type, the shape and the position of one tensor in a file.
struct TensorInfo {
  Dtype dtype = Dtype::F32;  ///< type of the elements
  std::vector<Index> shape;  ///< extents; empty for a scalar
  std::uint64_t begin = 0;   ///< first byte, counted from the start of the data
  std::uint64_t end = 0;     ///< one past the last byte
  std::string other = {};    ///< the name in the file of a type that is Dtype::Other
  std::size_t shard = 0;     ///< which file of a model in several files it is in
};

/// The name of a tensor's type in its file, such as "BF16" or "C64".
inline std::string_view dtype_name(const TensorInfo& info) {
  return info.dtype == Dtype::Other ? std::string_view(info.other) : to_string(info.dtype);
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
