// SPDX-License-Identifier: MIT
// F49: links, rights, owners, mounts, full and read-only places, killed programs. Some tests need root.
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/error.hpp>
#include <heed/io/atomic_file.hpp>

#include "common/temporary_directory.hpp"

#if defined(__linux__)
#include <csignal>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

namespace fs = std::filesystem;
using heed::detail::AtomicFile;
using heed_test::read_text;
using heed_test::write_text;

void save(const std::string& path, std::string_view text = "new") { heed::detail::write_file(path, text, "test"); }

std::string failure_of_save(const std::string& path, std::string_view text = "new") {
  try {
    save(path, text);
  } catch (const heed::FormatError& e) {
    return e.what();
  }
  return "nothing was thrown";
}

struct ::stat status_of(const std::string& path) {
  struct ::stat status{};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status;
}
unsigned mode_of(const std::string& path) { return status_of(path).st_mode & 07777; }

/// While it exists, root has no more rights than nobody.
class AsNobody {
 public:
  AsNobody() : was_root_(::geteuid() == 0 && ::seteuid(65534) == 0) {}
  ~AsNobody() {
    if (was_root_ && ::seteuid(0) != 0) std::abort();  // other tests would run as nobody
  }
  AsNobody(const AsNobody&) = delete;
  AsNobody& operator=(const AsNobody&) = delete;

 private:
  bool was_root_;
};

/// A mount that ends with the test; empty() where the system does not permit one.
class Mount {
 public:
  Mount(const char* source, std::string path, const char* type, unsigned long flags, const char* data)
      : path_(std::move(path)) {
    if (::mount(source, path_.c_str(), type, flags, data) != 0) path_.clear();
  }
  ~Mount() {
    if (!empty()) ::umount(path_.c_str());
  }
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;
  bool empty() const { return path_.empty(); }

 private:
  std::string path_;
};

TEST(AtomicFileSystem, F49_ALinkStaysAndItsTargetIsReplaced) {
  const heed_test::TemporaryDirectory directory;
  fs::create_directories(directory.path("runs/today"));
  const std::string target = directory.path("runs/today/model"), link = directory.path("latest");
  write_text(target, "old");
  fs::create_symlink("runs/today/model", link);
  save(link);
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(fs::read_symlink(link), "runs/today/model");
  EXPECT_EQ(read_text(target), "new");

  // A link to a link, the first absolute; a link to a directory in the path.
  fs::create_symlink(link, directory.path("runs/again"));
  save(directory.path("runs/again"), "newer");
  EXPECT_TRUE(fs::is_symlink(directory.path("runs/again")) && fs::is_symlink(link));
  EXPECT_EQ(read_text(target), "newer");
  fs::create_symlink("runs/today", directory.path("day"));
  save(directory.path("day/model"), "newest");
  EXPECT_EQ(read_text(target), "newest");
  EXPECT_EQ(std::distance(fs::directory_iterator(directory.path("runs/today")), fs::directory_iterator()), 1);
}

TEST(AtomicFileSystem, ALinkToNothingGetsItsTarget) {
  const heed_test::TemporaryDirectory directory;
  fs::create_symlink("model", directory.path("latest"));
  save(directory.path("latest"));
  EXPECT_TRUE(fs::is_symlink(directory.path("latest")));
  EXPECT_EQ(read_text(directory.path("model")), "new");
  fs::create_symlink("no/such/model", directory.path("lost"));
  EXPECT_NE(failure_of_save(directory.path("lost")).find("cannot be created: No such file"), std::string::npos);
}

TEST(AtomicFileSystem, ALinkToItselfIsRefused) {
  const heed_test::TemporaryDirectory directory;
  fs::create_symlink("b", directory.path("a"));
  fs::create_symlink("a", directory.path("b"));
  EXPECT_NE(failure_of_save(directory.path("a")).find("levels of symbolic links"), std::string::npos);
  EXPECT_EQ(directory.count(), 2);
}

TEST(AtomicFileSystem, F49_AnOldFilesRightsAreKept) {
  const heed_test::TemporaryDirectory directory;
  const std::string path = directory.path("model"), link = directory.path("latest");
  write_text(path, "old");
  fs::create_symlink("model", link);
  for (const ::mode_t mode : {0640u, 0600u, 0666u, 0755u}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    save(path);
    EXPECT_EQ(mode_of(path), mode);
    save(link);
    EXPECT_EQ(mode_of(path), mode);
  }
}

TEST(AtomicFileSystem, ANewFileHasTheRightsThatUmaskLeaves) {
  const heed_test::TemporaryDirectory directory;
  const ::mode_t before = ::umask(027);
  save(directory.path("model"));
  ::umask(before);
  EXPECT_EQ(mode_of(directory.path("model")), 0640u);
}

TEST(AtomicFileSystem, AnOwnerIsKeptWherePermitted) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may give files away";
  const heed_test::TemporaryDirectory directory;
  const std::string path = directory.path("model");
  write_text(path, "old");
  ASSERT_EQ(::chown(path.c_str(), 1234, 2345), 0);
  ASSERT_EQ(::chmod(path.c_str(), 04750), 0);  // a bit that a change of owner clears
  save(path);
  EXPECT_EQ(status_of(path).st_uid, 1234u);
  EXPECT_EQ(status_of(path).st_gid, 2345u);
  EXPECT_EQ(mode_of(path), 04750u);

  ASSERT_EQ(::chmod(directory.path("").c_str(), 0777), 0);
  const AsNobody nobody;
  save(path, "from nobody");
  EXPECT_EQ(status_of(path).st_uid, 65534u);
  EXPECT_EQ(mode_of(path) & 0777u, 0750u);
}

TEST(AtomicFileSystem, ADeviceIsWrittenWhereItIs) {
  save("/dev/null");
  EXPECT_TRUE(S_ISCHR(status_of("/dev/null").st_mode));
  const heed_test::TemporaryDirectory directory;
  const std::string path = directory.path("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  save(path);
  char text[4] = {};
  EXPECT_EQ(::read(reader, text, 3), 3);
  ::close(reader);
  EXPECT_STREQ(text, "new");
}

TEST(AtomicFileSystem, AReadOnlyDirectoryKeepsTheOldFile) {
  const heed_test::TemporaryDirectory directory;
  write_text(directory.path("model"), "old");
  ASSERT_EQ(::chmod(directory.path("").c_str(), 0555), 0);
  {
    const AsNobody nobody;
    EXPECT_NE(failure_of_save(directory.path("model")).find("the directory must permit new files"), std::string::npos);
  }
  ASSERT_EQ(::chmod(directory.path("").c_str(), 0755), 0);
  EXPECT_EQ(read_text(directory.path("model")), "old");
  EXPECT_EQ(directory.count(), 1);
}

TEST(AtomicFileSystem, AMountedFileIsNamedAndKept) {
  const heed_test::TemporaryDirectory directory;
  const std::string source = directory.path("source"), path = directory.path("model");
  write_text(source, "old");
  write_text(path, "");
  const Mount mount(source.c_str(), path, nullptr, MS_BIND, nullptr);
  if (mount.empty()) GTEST_SKIP() << "this user may not mount";
  const std::string text = failure_of_save(path);
  EXPECT_NE(text.find("cannot be put in place"), std::string::npos) << text;
  EXPECT_NE(text.find("it is a mount point, which no new file can replace: mount its directory"), std::string::npos);
  EXPECT_EQ(read_text(path), "old");
  EXPECT_EQ(directory.count(), 2);
}

TEST(AtomicFileSystem, AFullFileSystemKeepsTheOldFile) {
  const heed_test::TemporaryDirectory directory;
  const std::string small = directory.path("small"), path = small + "/model";
  fs::create_directory(small);
  const Mount mount("tmpfs", small, "tmpfs", 0, "size=64k");
  if (mount.empty()) GTEST_SKIP() << "this user may not mount";
  save(path, std::string(40000, 'a'));
  for (const std::size_t size : {40000u, 400000u}) {
    EXPECT_NE(failure_of_save(path, std::string(size, 'b')).find("No space left"), std::string::npos) << size;
    EXPECT_EQ(read_text(path), std::string(40000, 'a'));
    EXPECT_EQ(std::distance(fs::directory_iterator(small), fs::directory_iterator()), 1);
  }
}

TEST(AtomicFileSystem, AKilledSaveKeepsTheOldFileAndTheNextCleansUp) {
  const heed_test::TemporaryDirectory directory;
  const std::string path = directory.path("model");
  write_text(path, "old");
  for (int i = 0; i < 3; ++i) {
    const ::pid_t child = ::fork();
    if (child == 0) {
      AtomicFile file(path, "test");
      const std::string half(100000, 'x');
      file.write(half.data(), half.size());
      ::raise(SIGKILL);
    }
    int how = 0;
    ASSERT_EQ(::waitpid(child, &how, 0), child);
    ASSERT_TRUE(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    EXPECT_EQ(read_text(path), "old");
    EXPECT_EQ(directory.count(), 2) << "each killed save removes what the one before has left";
  }
  save(path);
  EXPECT_EQ(read_text(path), "new");
  EXPECT_EQ(directory.count(), 1);
}

TEST(AtomicFileSystem, ManyProcessesSaveWholeFiles) {
  const heed_test::TemporaryDirectory directory;
  const std::string path = directory.path("model");
  std::vector<::pid_t> children;
  for (char letter = 'a'; letter < 'g'; ++letter) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    for (int i = 0; i < 40; ++i) {
      if (failure_of_save(path, std::string(20000, letter)) != "nothing was thrown") ::_exit(1);
    }
    ::_exit(0);
  }
  for (const ::pid_t child : children) {
    int how = 0;
    ::waitpid(child, &how, 0);
    EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == 0);
  }
  const std::string text = read_text(path);
  EXPECT_EQ(text, std::string(20000, text.at(0)));
  EXPECT_EQ(directory.count(), 1);
}

}  // namespace
#endif
