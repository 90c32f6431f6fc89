// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <new>
#include <span>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <heed/core/error.hpp>
#include <heed/io/file.hpp>

#include "common/little_memory.hpp"
#include "common/temporary_directory.hpp"

namespace {

using heed::detail::MappedFile;

std::string text_of(const MappedFile& file) {
  const std::span<const std::byte> bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string message_of_open(const std::string& path) {
  try {
    MappedFile::open(path);
  } catch (const heed::FormatError& e) {
    return e.what();
  }
  return "(nothing was thrown)";
}

TEST(MappedFile, MappedAndReadFilesHaveTheSameBytes) {
  const heed_test::TemporaryDirectory directory;
  const std::string path = directory.path("file");
  for (const std::size_t size : {0u, 1u, 4095u, 4096u, 65535u, 65536u, 65537u, 300000u}) {
    std::string text(size, '\0');
    for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 31 % 251);
    heed_test::write_text(path, text);
    const MappedFile mapped = MappedFile::open(path), read = MappedFile::read(path);
    EXPECT_EQ(text_of(mapped), text);
    EXPECT_EQ(text_of(read), text);
    EXPECT_FALSE(read.is_mapped());
#if __has_include(<sys/mman.h>)
    EXPECT_EQ(mapped.is_mapped(), size > 0);
#endif
  }
}

TEST(MappedFile, MovesKeepTheBytes) {
  const heed_test::TemporaryDirectory directory;
  heed_test::write_text(directory.path("a"), "first");
  heed_test::write_text(directory.path("b"), "second");
  for (const auto open : {&MappedFile::open, &MappedFile::read}) {
    MappedFile a = open(directory.path("a")), b = open(directory.path("b"));
    MappedFile c = std::move(a);
    EXPECT_EQ(text_of(c), "first");
    EXPECT_TRUE(a.bytes().empty());
    c = std::move(b);
    EXPECT_EQ(text_of(c), "second");
  }
}

TEST(MappedFile, KeepsTheOldBytesWhenAnotherFileIsRenamedOverIt) {
  const heed_test::TemporaryDirectory directory;
  heed_test::write_text(directory.path("a"), "old");
  const MappedFile file = MappedFile::open(directory.path("a"));
  heed_test::write_text(directory.path("b"), "new and longer");
  std::filesystem::rename(directory.path("b"), directory.path("a"));
  EXPECT_EQ(text_of(file), "old");
  EXPECT_EQ(text_of(MappedFile::open(directory.path("a"))), "new and longer");
}

TEST(MappedFile, SaysWhyAFileCannotBeOpened) {
  const heed_test::TemporaryDirectory directory;
  const std::string missing = directory.path("missing.safetensors");
  EXPECT_NE(message_of_open(missing).find("\"" + missing + "\" cannot be opened: No such file"), std::string::npos)
      << message_of_open(missing);
  EXPECT_NE(message_of_open(directory.path("")).find("is not a regular file"), std::string::npos);
  EXPECT_THROW(MappedFile::read(missing), heed::FormatError);
  EXPECT_THROW(MappedFile::read(directory.path("")), heed::FormatError);
}

#if defined(HEED_TEST_LITTLE_MEMORY)
TEST(MappedFile, ClosesTheFileWhenMemoryRunsOut) {
  const heed_test::TemporaryDirectory directory;
  const std::string path = directory.path("large");
  heed_test::write_text(path, "");
  std::filesystem::resize_file(path, std::uintmax_t{128} << 20);
  const auto open_files = [] {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return std::distance(begin(files), end(files));
  };
  const auto before = open_files();
  {
    const heed_test::LittleMemory little(64LL << 20);
    EXPECT_THROW(MappedFile::read(path), std::bad_alloc);
  }
  EXPECT_EQ(open_files(), before);
}
#endif

}  // namespace
