// SPDX-License-Identifier: MIT
#include "sentence_search/text.hpp"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace sentence_search {

bool operator==(const Passage& a, const Passage& b) { return a.text == b.text && a.file == b.file && a.line == b.line; }
std::ostream& operator<<(std::ostream& out, const Passage& passage) {
  return out << passage.file << ':' << passage.line << " \"" << passage.text << '"';
}

namespace {

using Passages = std::vector<Passage>;
using Lines = std::vector<std::string>;

class File {
 public:
  explicit File(std::string_view content) { std::ofstream(path_, std::ios::binary) << content; }
  ~File() { std::filesystem::remove(path_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_ =
      std::filesystem::path(testing::TempDir()) /
      (std::string("heed_text_test_") + testing::UnitTest::GetInstance()->current_test_info()->name());
};

std::string message_of_reading(const std::filesystem::path& file) {
  try {
    read_text_file(file);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Text, IsReadWithoutByteOrderMarkAndCarriageReturns) {
  EXPECT_EQ(read_text_file(File("\xef\xbb\xbfone\r\ntwo\r\n\r\nthr\ree\r").path()), "one\ntwo\n\nthr\ree\r");
}

TEST(Text, SaysWhyAFileCannotBeSearched) {
  using namespace std::string_view_literals;
  EXPECT_EQ(message_of_reading("/nowhere/x"), "cannot read '/nowhere/x': No such file or directory");
  EXPECT_NE(message_of_reading(testing::TempDir()).find("it is a directory"), std::string::npos);
  EXPECT_NE(message_of_reading(File("").path()).find("is empty"), std::string::npos);
  EXPECT_NE(message_of_reading(File(" \r\n\t\n").path()).find("is empty"), std::string::npos);
  EXPECT_NE(message_of_reading(File("a\0b"sv).path()).find("NUL"), std::string::npos);
}

TEST(Text, IsSplitIntoLines) {
  EXPECT_EQ(split_passages("one\n\n  two \n \t\nthree", "f", SplitBy::Line),
            (Passages{{"one", "f", 1}, {"two", "f", 3}, {"three", "f", 5}}));
}

TEST(Text, IsSplitIntoParagraphs) {
  EXPECT_EQ(split_passages("\n\none\n two\n\n \nthree\n", "f", SplitBy::Paragraph),
            (Passages{{"one\ntwo", "f", 3}, {"three", "f", 7}}));
}

std::size_t count_words(std::string_view text) {
  std::size_t words = 0;
  for (std::size_t i = 0; i < text.size(); ++i) words += text[i] > ' ' && (i == 0 || text[i - 1] <= ' ');
  return words;
}

TEST(Text, IsCutAtEndsOfSentencesWhereAPassageIsLong) {
  const Passages passages = {{"One two. Three\nfour! (\"Five six?\") Seven\neight nine.", "f", 4},
                             {"Short one.", "f", 9}};
  EXPECT_EQ(split_long_passages(passages, 4, count_words), (Passages{{"One two. Three\nfour!", "f", 4},
                                                                     {"(\"Five six?\")", "f", 5},
                                                                     {"Seven\neight nine.", "f", 5},
                                                                     {"Short one.", "f", 9}}));
  EXPECT_EQ(split_long_passages(passages, 100, count_words), passages);
}

TEST(Text, IsNotCutInsideASentence) {
  const Passages passages = {{"A very long sentence of Mr. Bennet, 3.5 lines. No.", "f", 1}};
  EXPECT_EQ(split_long_passages(passages, 3, count_words),
            (Passages{{"A very long sentence of Mr. Bennet, 3.5 lines.", "f", 1}, {"No.", "f", 1}}));
  const Passages chinese = {{"机器学习很有趣。今天天气很好。", "f", 1}};
  EXPECT_EQ(split_long_passages(chinese, 24, [](std::string_view text) { return text.size(); }),
            (Passages{{"机器学习很有趣。", "f", 1}, {"今天天气很好。", "f", 1}}));
}

TEST(Text, IsWrappedByCodePoints) {
  EXPECT_EQ(wrap("one  two\nthree", 7), (Lines{"one two", "three"}));
  EXPECT_EQ(wrap("ééé ééé x", 7), (Lines{"ééé ééé", "x"}));
  EXPECT_EQ(wrap("incomprehensible a", 5), (Lines{"incomprehensible", "a"}));
  EXPECT_EQ(wrap("a b c", 1, 2), (Lines{"a", "b ..."}));
  EXPECT_EQ(wrap("a b", 1, 2), (Lines{"a", "b"}));
  EXPECT_EQ(wrap(" \n", 5), Lines{});
}

}  // namespace
}  // namespace sentence_search
