// SPDX-License-Identifier: MIT
#include <string>

#include <gtest/gtest.h>

#include <heed/core/error.hpp>
#include <heed/io/file.hpp>

#include "common/message_of.hpp"
#include "common/temporary_directory.hpp"

#if __has_include(<sys/resource.h>)
#include <csignal>
#include <sys/resource.h>
#endif
#if __has_include(<sys/mount.h>) && defined(__linux__)
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
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

TEST(AtomicFile, ADirectoryIsNoFile) {
  const heed_test::TemporaryDirectory directory;
  std::filesystem::create_directory(directory.path("out"));
  EXPECT_THROW(
      {
        AtomicFile file(directory.path("out"), "test");
        file.write("x", 1);
        file.commit();
      },
      heed::FormatError);
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

#if __has_include(<sys/mount.h>) && defined(__linux__)
namespace fs = std::filesystem;

void save(const std::string& path, const std::string& text) { heed::detail::write_file(path, text, "test"); }
std::string refusal(const std::string& path) {
  return heed_test::message_of<heed::FormatError>([&] { save(path, "new"); });
}

// F49
TEST(AtomicFile, F49_ALinkStaysALink) {
  const heed_test::TemporaryDirectory directory;
  fs::create_directories(directory.path("runs/today"));
  heed_test::write_text(directory.path("runs/today/weights"), "old");
  fs::create_symlink("runs/today/weights", directory.path("latest"));
  fs::create_symlink(directory.path("latest"), directory.path("newest"));  // a chain, relative and absolute
  fs::create_directory_symlink("runs/today", directory.path("day"));
  int count = 0;
  for (const char* name : {"latest", "newest", "day/weights"}) {
    const std::string text = "new " + std::to_string(count++);
    save(directory.path(name), text);
    EXPECT_EQ(heed_test::read_text(directory.path("runs/today/weights")), text) << name;
  }
  EXPECT_TRUE(fs::is_symlink(directory.path("latest")));
  EXPECT_TRUE(fs::is_symlink(directory.path("newest")));
  EXPECT_FALSE(fs::is_symlink(directory.path("runs/today/weights")));
  EXPECT_EQ(std::distance(fs::directory_iterator(directory.path("runs/today")), {}), 1) << "temporary files";
}

TEST(AtomicFile, F49_ALinkToNothingMakesItsTarget) {
  const heed_test::TemporaryDirectory directory;
  fs::create_symlink("later", directory.path("latest"));
  save(directory.path("latest"), "new");
  EXPECT_TRUE(fs::is_symlink(directory.path("latest")));
  EXPECT_EQ(heed_test::read_text(directory.path("later")), "new");
  fs::create_symlink("b", directory.path("a"));
  fs::create_symlink("a", directory.path("b"));
  EXPECT_NE(refusal(directory.path("a")).find("Too many levels of symbolic links"), std::string::npos);
}

TEST(AtomicFile, F49_RightsAreKept) {
  const heed_test::TemporaryDirectory directory;
  const std::string path = directory.path("out");
  heed_test::write_text(path, "old");
  for (const unsigned mode : {0640u, 0600u, 0664u, 0444u, 0755u, 02750u}) {
    fs::permissions(path, static_cast<fs::perms>(mode));
    save(path, "new");
    EXPECT_EQ(static_cast<unsigned>(fs::status(path).permissions()), mode);
  }
  const auto before = ::umask(0027);
  save(directory.path("fresh"), "new");
  ::umask(before);
  EXPECT_EQ(static_cast<unsigned>(fs::status(directory.path("fresh")).permissions()), 0640u);
}

TEST(AtomicFile, F49_LeftoversOfKilledWritersAreUsed) {
  const heed_test::TemporaryDirectory directory;
  const std::string path = directory.path("out");
  heed_test::write_text(path, "the old file");
  for (int i = 0; i < 5; ++i) {
    const ::pid_t child = ::fork();
    if (child == 0) {
      AtomicFile file(path, "test");
      file.write("half", 4);
      ::kill(::getpid(), SIGKILL);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(heed_test::read_text(path), "the old file");
    EXPECT_LE(directory.count(), 2);
  }
  save(path, "new");
  EXPECT_EQ(heed_test::read_text(path), "new");
  EXPECT_EQ(directory.count(), 1);
}

TEST(AtomicFile, F49_AForeignTemporaryFileIsLeftAlone) {
  const heed_test::TemporaryDirectory directory;
  heed_test::write_text(directory.path("victim"), "precious");
  fs::create_hard_link(directory.path("victim"), directory.path("out.0.tmp"));
  fs::create_symlink("victim", directory.path("out.1.tmp"));
  fs::create_directory(directory.path("out.2.tmp"));
  save(directory.path("out"), "new");
  EXPECT_EQ(heed_test::read_text(directory.path("victim")), "precious");
  EXPECT_EQ(heed_test::read_text(directory.path("out")), "new");
}

TEST(AtomicFile, F49_DevicesAreWrittenAsTheyAre) {
  save("/dev/null", "new");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_NE(refusal("/dev/full").find("cannot be written: No space left on device"), std::string::npos);
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST(AtomicFile, F49_ADirectoryThatIsNotWritableIsNamedAsTheCause) {
  if (::geteuid() == 0) GTEST_SKIP() << "rights do not bind the administrator";
  const heed_test::TemporaryDirectory directory;
  heed_test::write_text(directory.path("out"), "old");
  fs::permissions(directory.path(""), fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_NE(refusal(directory.path("out")).find("its directory must be writable"), std::string::npos);
  fs::permissions(directory.path(""), fs::perms::owner_all);
  EXPECT_EQ(heed_test::read_text(directory.path("out")), "old");
}

TEST(AtomicFile, F49_AMountedFileSaysWhatToDo) {
  const heed_test::TemporaryDirectory directory;
  heed_test::write_text(directory.path("outside"), "old");
  heed_test::write_text(directory.path("out"), "");
  if (::mount(directory.path("outside").c_str(), directory.path("out").c_str(), nullptr, MS_BIND, nullptr) != 0) {
    GTEST_SKIP() << "this process may not mount";
  }
  const std::string message = refusal(directory.path("out"));
  const std::string kept = heed_test::read_text(directory.path("out"));
  ::umount(directory.path("out").c_str());
  EXPECT_NE(message.find("mount its directory instead"), std::string::npos) << message;
  EXPECT_EQ(kept, "old");
  EXPECT_EQ(directory.count(), 2);
}

TEST(AtomicFile, F49_ASmallFileSystemThatIsFullKeepsTheOldFile) {
  const heed_test::TemporaryDirectory directory;
  fs::create_directory(directory.path("disk"));
  if (::mount("tmpfs", directory.path("disk").c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "this process may not mount";
  }
  const std::string path = directory.path("disk/out");
  save(path, "old");
  const std::string message =
      heed_test::message_of<heed::FormatError>([&] { save(path, std::string(std::size_t{1} << 20, 'x')); });
  const std::string kept = heed_test::read_text(path);
  const auto files = std::distance(fs::directory_iterator(directory.path("disk")), {});
  ::mount("tmpfs", directory.path("disk").c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr);
  const std::string read_only = refusal(path);
  ::umount(directory.path("disk").c_str());
  EXPECT_NE(message.find("No space left"), std::string::npos) << message;
  EXPECT_NE(read_only.find("Read-only file system"), std::string::npos) << read_only;
  EXPECT_EQ(kept, "old");
  EXPECT_EQ(files, 1);
}
#endif

}  // namespace
