// SPDX-License-Identifier: MIT
#include "files.hpp"

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <ios>
#include <stdexcept>
#include <system_error>

namespace examples {

std::string in_quotes(const std::filesystem::path& path) { return std::string(1, '\'').append(path.string()) += '\''; }

std::string read_file(const std::filesystem::path& file) {
  const auto fail = [&file](const std::string& reason) {
    throw std::runtime_error("cannot read " + in_quotes(file) + ": " + reason);
  };
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) fail("it is a directory");
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  if (!stream) fail(errno != 0 ? std::generic_category().message(errno) : "it cannot be opened");
  std::string text;
  constexpr std::size_t chunk = std::size_t{1} << 16;
  while (stream) {
    const std::size_t size = text.size();
    text.resize(size + chunk);
    stream.read(text.data() + size, static_cast<std::streamsize>(chunk));
    text.resize(size + static_cast<std::size_t>(stream.gcount()));
  }
  if (stream.bad()) fail("reading failed");
  return text;
}

std::filesystem::path cache_directory() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::filesystem::path(value != nullptr ? value : "");
  };
  if (const auto cache = variable("HEED_CACHE_DIR"); !cache.empty()) return cache;
  if (const auto cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache / "heed";
  return variable("HOME") / ".cache" / "heed";
}

}  // namespace examples
