// SPDX-License-Identifier: MIT
// Replays the fuzzer's corpus. It begins with the malformed files of case C37.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/safetensors_bytes.hpp"
#include "common/temporary_directory.hpp"
#include "fuzz/safetensors_target.hpp"

namespace {

const std::string kCorpus = HEED_TEST_DATA_DIR "/fuzz/corpus/safetensors/";

std::string refusal_of_file(const std::string& name) {
  const std::string bytes = heed_test::read_text(kCorpus + name);
  return heed_test::refusal_of(heed_test::as_bytes(bytes));
}

TEST(SafeTensorsCorpus, EveryFileIsReadOrRefusedAsItsNameSays) {
  int accepted = 0, refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kCorpus)) {
    const std::string name = entry.path().filename().string();
    const std::string refusal = refusal_of_file(name);
    if (name.starts_with("accepted_")) {
      EXPECT_EQ(refusal, "") << name;
      ++accepted;
    } else if (name.starts_with("refused_")) {
      EXPECT_NE(refusal, "") << name;
      ++refused;
    } else {
      ADD_FAILURE() << name << " begins neither with accepted_ nor with refused_";
    }
  }
  EXPECT_GE(accepted, 9);
  EXPECT_GE(refused, 23);
}

TEST(SafeTensorsCorpus, RefusalsNameTheTensorOrTheField) {
  const std::map<std::string, std::vector<std::string>> expected{
      {"file_shorter_than_8_bytes", {"has 3 bytes"}},
      {"header_length_past_the_end_of_the_file", {"a header of 1000000 bytes"}},
      {"header_length_2_63", {"a header of 9223372036854775808 bytes"}},
      {"header_length_0", {"header must begin with '{'"}},
      {"header_is_not_json", {"byte 5"}},
      {"header_is_a_json_array", {"header must begin with '{', found \"[\""}},
      {"header_is_not_utf_8", {"byte 2", "UTF-8"}},
      {"begin_end", {"tensor \"a\"", "[16, 0]"}},
      {"end_past_the_data", {"tensor \"a\"", "[0, 32]", "16 bytes of data"}},
      {"shape_size_range", {"tensor \"a\"", "(1000, 1000)", "[0, 16] hold 16"}},
      {"shape_product_overflows_64_bits", {"tensor \"a\"", "(8589934592, 8589934592)"}},
      {"two_tensors_on_the_same_bytes", {"tensor \"b\"", "overlap", "\"a\""}},
      {"partly_overlapping_ranges", {"tensor \"b\"", "overlap", "\"a\""}},
      {"gap_between_tensors", {"tensor \"b\"", "gap", "\"a\""}},
      {"first_tensor_does_not_begin_at_0", {"tensor \"a\"", "gap"}},
      {"bytes_left_over_after_the_last_tensor", {"\"a\"", "left over"}},
      {"same_name_twice", {"tensor \"a\"", "twice"}},
      {"unknown_dtype", {"tensor \"a\"", "\"dtype\"", "\"Q7\""}},
      {"negative_offset", {"tensor \"a\"", "\"data_offsets\"", "\"-\""}},
      {"fractional_shape", {"tensor \"a\"", "\"shape\"", "fraction"}},
      {"metadata_value_is_not_a_string", {"\"__metadata__\"", "\"x\""}},
      {"data_offsets_has_three_entries", {"tensor \"a\"", "\"data_offsets\"", "third"}},
      {"deeply_nested_json_4000_brackets", {"\"__metadata__\""}}};
  ASSERT_EQ(expected.size(), 23u);
  for (const auto& [name, parts] : expected) {
    const std::string refusal = refusal_of_file("refused_" + name);
    for (const std::string& part : parts) {
      EXPECT_NE(refusal.find(part), std::string::npos) << name << ": expected " << part << "\nfound " << refusal;
    }
  }
}

}  // namespace
