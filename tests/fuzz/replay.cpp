// SPDX-License-Identifier: MIT
// Runs a fuzzer on files, so that a corpus is a test with every compiler: NAME_fuzz FILE_OR_DIRECTORY...
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz/fuzz_input.hpp"

namespace {

int replayed = 0;

void replay(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) replay(entry.path());
    return;
  }
  std::fprintf(stderr, "%s\n", path.c_str());  // the last one is the input that ended the program
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
  heed_test::FuzzInput input(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  heed_test::fuzz(input);
  ++replayed;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) replay(argv[i]);
  std::fprintf(stderr, "%d inputs\n", replayed);
  return replayed > 0 ? 0 : 1;
}
