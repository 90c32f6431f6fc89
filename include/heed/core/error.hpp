// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The exceptions, and the macro that checks arguments at a public boundary.

#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include <heed/core/config.hpp>

HEED_NAMESPACE_BEGIN

/// Base of the exceptions that heed throws.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// Extents that do not fit each other.
struct ShapeError : Error {
  using Error::Error;
};
/// A value outside its range: an option, a position, an index, an ambiguous choice.
struct ValueError : Error {
  using Error::Error;
};
/// A file that cannot be read or written, is broken or hostile, or is not what it claims to be.
struct FormatError : Error {
  using Error::Error;
};
/// Something around the call that heed relies on: flags that change arithmetic, an executor that breaks its contract,
/// a weight that code for another instruction set packed, a fork() inside a task.
struct EnvironmentError : Error {
  using Error::Error;
};

namespace detail {

/// Nothing may go on after an error. A handler of HEED_THROW that returns ends the program here.
[[noreturn]] HEED_NOINLINE inline void handler_returned(const char* error) {
  std::fprintf(stderr, "heed: HEED_THROW returned, so the program ends. The error was: %s\n", error);
  std::abort();
}

// append() writes one part of a message. Numbers do not depend on the locale: 0.1 has a point everywhere.

inline void append(std::string& text, std::string_view part) { text += part; }
inline void append(std::string& text, const char* part) { text += part; }
inline void append(std::string& text, char part) { text += part; }
inline void append(std::string& text, bool part) { text += part ? "true" : "false"; }
template <class T>
requires std::is_integral_v<T>
void append(std::string& text, T part) {
  text += std::to_string(part);
}

/// Writes x with so many digits, and returns the end. Format is std::chars_format; the libraries of some compilers
/// (libc++ before 14) have its names, but no std::to_chars for them: their printf stands in, which has a point
/// everywhere but where a program sets a locale.
template <class Format>
char* write_number(char* begin, char* end, double x, Format format, int digits) {
  if constexpr (requires { std::to_chars(begin, end, x, format, digits); }) {
    return std::to_chars(begin, end, x, format, digits).ptr;
  } else {
    const auto size = static_cast<std::size_t>(end - begin);
    return begin + std::snprintf(begin, size, format == Format::fixed ? "%.*f" : "%.*g", digits, x);
  }
}
template <class T>
requires std::is_floating_point_v<T>
void append(std::string& text, T part) {
  char digits[40];
  text.append(digits,
              write_number(digits, digits + sizeof digits, static_cast<double>(part), std::chars_format::general, 6));
}

template <std::size_t Rank>
void append(std::string& text, const std::array<Index, Rank>& extents) {
  text += '(';
  for (std::size_t d = 0; d < Rank; ++d) {
    if (d > 0) text += ", ";
    text += std::to_string(extents[d]);
  }
  text += ')';
}

/// The parts of a message, one after the other.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  (append(text, parts), ...);
  return text;
}

/// Out of line, so that a check costs its caller one compare and one cold call.
template <class Exception, class... Parts>
[[noreturn]] HEED_NOINLINE void raise(const Parts&... parts) {
  const Exception error(concat(parts...));
  HEED_THROW(error);
  handler_returned(error.what());
}

}  // namespace detail

HEED_NAMESPACE_END

/// Throws `Exception` with the concatenated parts unless `condition` holds. The text names the function, the argument,
/// both values and the fix: HEED_CHECK(a == b, ShapeError, "heed::attention: k has Dk = ", a, " but q has Dk = ", b).
#define HEED_CHECK(condition, Exception, ...)                                \
  do {                                                                       \
    if (!(condition)) ::heed::detail::raise<::heed::Exception>(__VA_ARGS__); \
  } while (false)

#include <heed/core/restore_macros.hpp>
