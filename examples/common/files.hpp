// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <string>

namespace examples {

// A path for messages.
std::string in_quotes(const std::filesystem::path& path);

// The whole file as bytes. Throws std::runtime_error, which names the file and says why, if it cannot be read.
std::string read_file(const std::filesystem::path& file);

// The directory of fetched files: ${HEED_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/heed}.
std::filesystem::path cache_directory();

}  // namespace examples
