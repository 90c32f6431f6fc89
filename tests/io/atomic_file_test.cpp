// SPDX-License-Identifier: MIT
#include <string>

#include <gtest/gtest.h>

#include <heed/core/error.hpp>
#include <heed/io/atomic_file.hpp>

#include "common/temporary_directory.hpp"

#if __has_include(<sys/resource.h>)
#include <csignal>
#include <sys/resource.h>
#endif

namespace {

using heed::detail::AtomicFile;

TEST(AtomicFile, AppearsOnlyWhenComplete) {
  const heed_test::TemporaryDirectory directory;
  const std::string path = directory.path("out");
  AtomicFile file(path, "test");
  file.write("half ", 5);
  EXPECT_FALSE(std::filesystem::exists(path));
  file.write("whole", 5);
  file.commit();
  EXPECT_EQ(heed_test::read_text(path), "half whole");
  EXPECT_EQ(directory.count(), 1);
}

TEST(AtomicFile, ReplacesTheOldFileAsAWhole) {
  const heed_test::TemporaryDirectory directory;
  const std::string path = directory.path("out");
  heed_test::write_text(path, "the old file, which is longer");
  AtomicFile file(path, "test");
  file.write("new", 3);
  EXPECT_EQ(heed_test::read_text(path), "the old file, which is longer");
  file.commit();
  EXPECT_EQ(heed_test::read_text(path), "new");
}

TEST(AtomicFile, LeavesNothingBehindWhenItIsGivenUp) {
  const heed_test::TemporaryDirectory directory;
  const std::string path = directory.path("out");
  heed_test::write_text(path, "old");
  { AtomicFile(path, "test").write("new", 3); }
  EXPECT_EQ(heed_test::read_text(path), "old");
  EXPECT_EQ(directory.count(), 1);
}

TEST(AtomicFile, SeveralWritersOfOnePathDoNotMix) {
  const heed_test::TemporaryDirectory directory;
  const std::string path = directory.path("out");
  AtomicFile first(path, "test"), second(path, "test");
  first.write("first", 5);
  second.write("second", 6);
  second.commit();
  EXPECT_EQ(heed_test::read_text(path), "second");
  first.commit();
  EXPECT_EQ(heed_test::read_text(path), "first");
  EXPECT_EQ(directory.count(), 1);
}

TEST(AtomicFile, SaysWhyAFileCannotBeCreated) {
  const heed_test::TemporaryDirectory directory;
  const std::string path = directory.path("no/such/directory/out");
  try {
    AtomicFile file(path, "heed::save_something");
    FAIL() << "nothing was thrown";
  } catch (const heed::FormatError& e) {
    EXPECT_EQ(std::string(e.what()),
              "heed::save_something: file \"" + path + "\" cannot be created: No such file or directory");
  }
}

TEST(AtomicFile, RefusesADirectory) {
  const heed_test::TemporaryDirectory directory;
  std::filesystem::create_directory(directory.path("out"));
  try {
    AtomicFile file(directory.path("out"), "test");
    FAIL() << "nothing was thrown";
  } catch (const heed::FormatError& e) {
    EXPECT_NE(std::string(e.what()).find("Is a directory; give the path of a file in it"), std::string::npos)
        << e.what();
  }
  EXPECT_EQ(directory.count(), 1);
}

TEST(AtomicFile, SaysWhyAFileCannotTakeItsPlace) {
  const heed_test::TemporaryDirectory directory;
  {
    AtomicFile file(directory.path("out"), "test");
    file.write("x", 1);
    std::filesystem::create_directory(directory.path("out"));
    EXPECT_THROW(file.commit(), heed::FormatError);
  }
  EXPECT_EQ(directory.count(), 1) << "the temporary file is still there";
}

#if __has_include(<sys/resource.h>)
/// Simulates a full disk: while it exists, files of this program cannot exceed a size.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, SIG_DFL);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
};

TEST(AtomicFile, AFullDiskKeepsTheOldFile) {
  const heed_test::TemporaryDirectory directory;
  const std::string path = directory.path("out");
  heed_test::write_text(path, "old");
  for (const std::size_t size : {5000u, 5000000u}) {  // fits the buffer of the stream, or does not
    const FullDisk full(4096);
    const std::string text(size, 'x');
    EXPECT_THROW(
        {
          AtomicFile file(path, "test");
          file.write(text.data(), text.size());
          file.commit();
        },
        heed::FormatError);
  }
  EXPECT_EQ(heed_test::read_text(path), "old");
  EXPECT_EQ(directory.count(), 1);
}
#endif

}  // namespace
