// SPDX-License-Identifier: MIT
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <heed/io/safetensors.hpp>

#include "common/message_of.hpp"
#include "common/safetensors_bytes.hpp"

namespace {

using heed::SafeTensors;
using heed_test::as_bytes;
using heed_test::safetensors_bytes;

std::string refusal_of_bytes(const std::string& bytes) {
  try {
    SafeTensors::from_memory(as_bytes(bytes), "model.safetensors");
  } catch (const heed::FormatError& e) {
    return e.what();
  }
  return "(it was accepted)";
}
std::string refusal_of(std::string_view header, std::string_view data = {}) {
  return refusal_of_bytes(safetensors_bytes(header, data));
}
const std::string kFourBytes(4, '\0');

struct Refused {
  std::string_view header;
  /// Parts of the message: the position and the reason.
  std::vector<std::string_view> parts;
};

class RefusedHeader : public testing::TestWithParam<Refused> {};

TEST_P(RefusedHeader, SaysWhereAndWhy) {
  const std::string message = refusal_of(GetParam().header, kFourBytes);
  EXPECT_TRUE(message.starts_with("heed::SafeTensors: file \"model.safetensors\"")) << message;
  for (const std::string_view part : GetParam().parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "expected: " << part << "\nfound: " << message;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Json, RefusedHeader,
    testing::Values(
        Refused{"", {"header must begin with '{'", "the end of the header"}},
        Refused{"[]", {"header must begin with '{', found \"[\""}},
        Refused{"{", {"byte 1", "expected a string, found the end of the header"}},
        Refused{"{}x", {"byte 2", "nothing but spaces may follow", "\"x\""}},
        Refused{"{}{}", {"nothing but spaces may follow"}}, Refused{R"({"a")", {"expected ':'"}},
        Refused{R"({"a":1})", {"tensor \"a\"", "expected '{', found \"1\""}},
        Refused{R"({"a":{},})", {"tensor \"a\"", "\"dtype\" is missing"}},
        Refused{R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},})", {"expected a string, found \"}\""}},
        Refused{R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],}})", {"expected a string, found \"}\""}},
        Refused{R"({"a":{"dtype":"U8","shape":[4,],"data_offsets":[0,4]}})", {"\"shape\"", "expected a non-negative"}},
        Refused{R"({a:{}})", {"expected a string, found \"a\""}}, Refused{R"({'a':{}})", {"expected a string"}},
        Refused{"{\"a\n\":{}}", {"control character"}}, Refused{R"({"\x":{}})", {"unknown escape, \\ and then \"x\""}},
        Refused{R"({"\u12G4":{}})", {"four hexadecimal digits, found \"G\""}},
        Refused{R"({"\u123)", {"four hexadecimal digits, found the end"}},
        Refused{R"({"\ud83d":{}})", {"half a surrogate pair"}}, Refused{R"({"\ud83dx":{}})", {"half a surrogate pair"}},
        Refused{R"({"\ud83d\n":{}})", {"unknown escape"}}, Refused{R"({"\ud83d\ud83d":{}})", {"half a surrogate pair"}},
        Refused{R"({"\ude00":{}})", {"half a surrogate pair"}}, Refused{"{\"\xff\":{}}", {"not UTF-8"}},
        Refused{"{\"\xed\xa0\x80\":{}}", {"not UTF-8"}}, Refused{R"({"endless)", {"a string has no end"}},
        Refused{R"({"a\)", {"unknown escape", "the end of the header"}}));

INSTANTIATE_TEST_SUITE_P(
    Fields, RefusedHeader,
    testing::Values(
        Refused{R"({"w":{"shape":[1],"data_offsets":[0,4]}})", {"tensor \"w\"", "\"dtype\" is missing"}},
        Refused{R"({"w":{"dtype":"F32","data_offsets":[0,4]}})", {"tensor \"w\"", "\"shape\" is missing"}},
        Refused{R"({"w":{"dtype":"F32","shape":[1]}})", {"tensor \"w\"", "\"data_offsets\" is missing"}},
        Refused{R"({"w":{"strides":[1,]}})", {"tensor \"w\"", "expected a value, found \"]\""}},
        Refused{R"({"w":{"strides":nul}})", {"tensor \"w\"", "expected null, found \"n\""}},
        Refused{R"({"w":{"strides":-}})", {"expected a value, found \"}\""}},
        Refused{R"({"w":{"strides":01}})", {"expected '}', found \"1\""}},
        Refused{R"({"w":{"strides":1.}})", {"expected a value"}},
        Refused{R"({"w":{"strides":1e999}})", {"more than 300 digits"}},
        Refused{R"({"w":{"strides":1,"strides":2}})", {"field \"strides\" appears twice"}},
        Refused{R"({"w":{"strides":{"a":1,"a":2}}})", {"a key appears twice"}},
        Refused{R"({"w":{"dtype":"F32","dtype":"F16"}})", {"field \"dtype\"", "appears twice"}},
        Refused{R"({"w":{"dtype":"f32"}})", {"field \"dtype\"", "\"f32\" is no type", "number of bits"}},
        Refused{R"({"w":{"dtype":""}})", {"\"\" is no type"}},
        Refused{R"({"w":{"dtype":"Q7"}})", {"\"Q7\" is no type"}},
        Refused{R"({"w":{"dtype":"F0"}})", {"\"F0\" is no type"}},
        Refused{R"({"w":{"dtype":"F8_e4"}})", {"\"F8_e4\" is no type"}},
        Refused{R"({"w":{"dtype":"F99999999999999999999999"}})", {"is no type"}},
        Refused{R"({"w":{"dtype":3}})", {"field \"dtype\"", "expected a string, found \"3\""}},
        Refused{R"({"w":{"shape":4}})", {"field \"shape\"", "expected '['"}},
        Refused{R"({"w":{"shape":[-1]}})", {"field \"shape\"", "non-negative integer, found \"-\""}},
        Refused{R"({"w":{"shape":[1.0]}})", {"field \"shape\"", "found a fraction"}},
        Refused{R"({"w":{"shape":[1e3]}})", {"field \"shape\"", "found a fraction"}},
        Refused{R"({"w":{"shape":[01]}})", {"field \"shape\"", "must not begin with 0"}},
        Refused{R"({"w":{"shape":["1"]}})", {"field \"shape\"", "non-negative integer"}},
        Refused{R"({"w":{"shape":[[1]]}})", {"field \"shape\"", "non-negative integer, found \"[\""}},
        Refused{R"({"w":{"shape":[null]}})", {"field \"shape\"", "non-negative integer, found \"n\""}},
        Refused{R"({"w":{"shape":[9223372036854775808]}})", {"field \"shape\"", "larger than 9223372036854775807"}},
        Refused{R"({"w":{"shape":[99999999999999999999]}})", {"field \"shape\"", "larger than"}},
        Refused{R"({"w":{"shape":[1 2]}})", {"field \"shape\"", "expected ']', found \"2\""}},
        Refused{R"({"w":{"data_offsets":[0]}})", {"field \"data_offsets\"", "found 1 entry"}},
        Refused{R"({"w":{"data_offsets":[]}})", {"field \"data_offsets\"", "found 0 entries"}},
        Refused{R"({"w":{"data_offsets":[0,1,2]}})", {"field \"data_offsets\"", "third entry"}},
        Refused{R"({"__metadata__":{"k":1}})", {"\"__metadata__\"", "value of \"k\" must be a string, found \"1\""}},
        Refused{R"({"__metadata__":{"k":{}}})", {"value of \"k\" must be a string"}},
        Refused{R"({"__metadata__":{"k":null}})", {"value of \"k\" must be a string"}},
        Refused{R"({"__metadata__":{"k":"1","k":"2"}})", {"key \"k\" appears twice"}},
        Refused{R"({"__metadata__":{},"__metadata__":{}})", {"\"__metadata__\"", "appears twice"}},
        Refused{R"({"__metadata__":[]})", {"\"__metadata__\"", "expected '{'"}}));

INSTANTIATE_TEST_SUITE_P(
    Layout, RefusedHeader,
    testing::Values(
        Refused{"{}", {"the tensors end at byte 0", "there are 4 bytes"}},
        Refused{R"({"w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", {"end at byte 3", "\"w\"", "4 bytes"}},
        Refused{R"({"w":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}})", {"\"w\"", "[0, 5] reach past the 4 bytes"}},
        Refused{R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", {"\"w\"", "[4, 0] end before they begin"}},
        Refused{R"({"w":{"dtype":"F16","shape":[4],"data_offsets":[0,4]}})",
                {"\"w\"", "shape (4) of F16 takes 8 bytes", "[0, 4] hold 4"}},
        Refused{R"({"w":{"dtype":"C64","shape":[1],"data_offsets":[0,4]}})", {"shape (1) of C64 takes 8 bytes"}},
        Refused{R"({"w":{"dtype":"F4","shape":[9],"data_offsets":[0,4]}})", {"shape (9) of F4 takes 5 bytes"}},
        Refused{R"({"w":{"dtype":"I4","shape":[9],"data_offsets":[0,5]}})", {"reach past the 4 bytes"}},
        Refused{R"({"w":{"dtype":"I4","shape":[5],"data_offsets":[1,4]}})", {"leave a gap"}},
        Refused{R"({"w":{"dtype":"U8","shape":[],"data_offsets":[0,4]}})", {"shape () of U8 takes 1 bytes"}},
        Refused{R"({"w":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,4]}})",
                {"\"w\"", "(4294967296, 4294967296)", "63 bits"}},
        Refused{R"({"w":{"dtype":"F64","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}})", {"63 bits"}},
        Refused{R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                R"("b":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})",
                {"tensor \"b\"", "begin at 3 and leave a gap after tensor \"a\", which ends at 2"}},
        Refused{R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                {"tensor \"b\"", "begin at 2 and overlap what comes before, tensor \"a\", which ends at 3"}},
        Refused{R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}})",
                {"tensor \"a\"", "begin at 1 and leave a gap after the start of the data"}},
        Refused{R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                {"tensor \"a\"", "this name appears twice"}},
        Refused{R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                R"("e":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
                {"tensor \"e\"", "overlap"}}));

// F09
TEST(SafeTensorsHeader, F09_FormsThatTheOriginalLoaderTakesAreRead) {
  const std::string w = R"("w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const std::string further = R"("w":{"format":null,"dtype":"U8","strides":[1,{"a":[[],{}],"b":-0.5e+3}],"shape":[4],)"
                              R"("data_offsets":[0,4],"trainable":true,"note":"\u00e9"})";
  for (const std::string& header : {R"({"__metadata__":null,)" + w + "}", R"({"__metadata__": {},)" + w + "}",
                                    "{" + w + R"(, "__metadata__": {"k": "v"}})", "{\n  " + w + "\n}",
                                    "{" + w + "} \n\t\r", " {" + w + "}", "\n\t{" + w + "}", "{" + further + "}"}) {
    EXPECT_EQ(refusal_of(header, kFourBytes), "(it was accepted)") << header;
  }
  for (const char* header : {"{}", R"({"__metadata__":null})", R"({"__metadata__":{"k":"v"}})", " { } "}) {
    EXPECT_EQ(refusal_of(header), "(it was accepted)") << header;
  }
}

// F07
TEST(SafeTensorsHeader, F07_OnlyReadingATypeThatIsNotKnownIsRefused) {
  const std::string bytes = safetensors_bytes(
      R"({"c":{"dtype":"C64","shape":[1],"data_offsets":[0,8]},"f8":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[8,10]},)"
      R"("f4":{"dtype":"F4","shape":[2,2],"data_offsets":[10,12]},"later":{"dtype":"I1","shape":[7],"data_offsets":)"
      R"([12,13]},"w":{"dtype":"U8","shape":[3],"data_offsets":[13,16]}})",
      "0123456789abcdef");
  const SafeTensors file = SafeTensors::from_memory(as_bytes(bytes), "model.safetensors");
  EXPECT_EQ((file.read_integers<int, 1>("w")(2)), 'f');
  EXPECT_EQ(file.dtype("f8"), heed::Dtype::Other);
  EXPECT_EQ(dtype_name(file.info("f8")), "F8_E4M3");
  EXPECT_EQ(file.shape("f4"), (std::vector<heed::Index>{2, 2}));
  EXPECT_EQ(file.bytes("later").size(), 1u);
  for (const char* name : {"c", "f8", "later"}) {
    const auto reads = heed_test::message_of<heed::FormatError>([&] { file.read<float, 1>(name); });
    const auto integers = heed_test::message_of<heed::FormatError>([&] { file.read_integers<int, 1>(name); });
    for (const std::string& message : {reads, integers}) {
      EXPECT_NE(message.find(dtype_name(file.info(name))), std::string::npos) << message;
      EXPECT_NE(message.find("heed does not read; convert it"), std::string::npos) << message;
    }
    EXPECT_FALSE((file.view<std::uint8_t, 1>(name)));
  }
}

TEST(SafeTensorsHeader, EscapedNamesAreTheSameNames) {
  const std::string twice = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                            R"("\u0061":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})";
  EXPECT_NE(refusal_of(twice, kFourBytes).find("appears twice"), std::string::npos);
}

TEST(SafeTensorsHeader, LengthIsCheckedBeforeItIsUsed) {
  EXPECT_NE(refusal_of_bytes("").find("has 0 bytes"), std::string::npos);
  EXPECT_NE(refusal_of_bytes("1234567").find("has 7 bytes"), std::string::npos);
  std::string bytes = safetensors_bytes("{}");
  bytes[0] = 3;
  EXPECT_NE(refusal_of_bytes(bytes).find("announces a header of 3 bytes, but only 2 bytes follow"), std::string::npos);
  bytes[7] = '\x80';
  EXPECT_NE(refusal_of_bytes(bytes).find("announces a header of 9223372036854775811 bytes"), std::string::npos);
  bytes.replace(0, 8, "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF");
  EXPECT_NE(refusal_of_bytes(bytes).find("announces a header of 18446744073709551615 bytes"), std::string::npos);
}

TEST(SafeTensorsHeader, AHeaderHasAtMostAHundredMegabytes) {
  const std::string longest(100'000'000 - 2, ' ');
  EXPECT_EQ(refusal_of("{}" + longest), "(it was accepted)");
  EXPECT_NE(refusal_of("{}" + longest + " ").find("a header may have 100000000"), std::string::npos);
}

TEST(SafeTensorsHeader, ATensorHasAtMost64Dimensions) {
  const auto header = [](int dimensions) {
    std::string shape = "1";
    for (int d = 1; d < dimensions; ++d) shape += ",1";
    return R"({"w":{"dtype":"F32","shape":[)" + shape + R"(],"data_offsets":[0,4]}})";
  };
  EXPECT_EQ(refusal_of(header(64), kFourBytes), "(it was accepted)");
  EXPECT_NE(refusal_of(header(65), kFourBytes).find("more than 64 dimensions"), std::string::npos);
}

TEST(SafeTensorsHeader, NestingDoesNotGrowTheStack) {
  for (const char* opening : {"[", "{\"a\":"}) {
    std::string nested = R"({"__metadata__":)";
    for (int i = 0; i < 1000000; ++i) nested += opening;
    EXPECT_NE(refusal_of(nested).find("\"__metadata__\""), std::string::npos);
    EXPECT_NE(refusal_of(R"({"w":{"shape":)" + nested.substr(16)).find("field \"shape\""), std::string::npos);
    EXPECT_NE(refusal_of(R"({"w":{"other":)" + nested.substr(16)).find("deeper than 100"), std::string::npos);
  }
}

TEST(SafeTensorsHeader, NamesInMessagesAreCutShortAndClean) {
  const std::string message = refusal_of("{\"" + std::string(1000000, 'x') + "\":1}");
  EXPECT_LT(message.size(), 400u);
  EXPECT_NE(message.find("xxx...\""), std::string::npos);
  const std::string control = refusal_of(R"({"\u001b[31m\u0000":1})");
  EXPECT_NE(control.find("\"?[31m?\""), std::string::npos) << control;
}

TEST(SafeTensorsHeader, OtherFormatsAreRecognised) {
  const auto refusal_of_start = [](const std::string& start) {
    return refusal_of_bytes(start + std::string(100, 'x'));
  };
  EXPECT_NE(refusal_of_start(R"({"metadata": {"total_size": 1}, )").find("this is JSON: open the index"),
            std::string::npos);
  EXPECT_NE(refusal_of_start("GGUF").find("GGUF file"), std::string::npos);
  EXPECT_NE(refusal_of_start("PK\x03\x04").find("torch.save"), std::string::npos);
  EXPECT_NE(refusal_of_start("\x80\x02").find("pickle"), std::string::npos);
  EXPECT_NE(refusal_of_start("\x93NUMPY").find("NumPy"), std::string::npos);
  EXPECT_NE(refusal_of_start("version https://git-lfs.github.com/spec/v1").find("git lfs pull"), std::string::npos);
  EXPECT_NE(refusal_of_start("<!DOCTYPE html>").find("web page"), std::string::npos);
  EXPECT_EQ(refusal_of_start("abcdefgh").find("; this is"), std::string::npos);
}

TEST(SafeTensorsHeader, WhatIsLegalIsRead) {
  const std::string bytes = safetensors_bytes(
      "{ \"\\u00e9\\ud83d\\ude00\\n\\\"\\\\\\/\\b\\f\\r\\t\\u0000\" :\t{\"data_offsets\" : [ 0 , 1 ] ,\r\n\"shape\" : "
      "[ ] ,"
      "\"dtype\":\"U8\"},\"__metadata__\":{\"\":\"\",\"k\":\"v\"},\"later\":{\"dtype\":\"F64\",\"shape\":[0,3],"
      "\"data_offsets\":[4,4]},\"\":{\"dtype\":\"I8\",\"shape\":[3,1],\"data_offsets\":[1,4]}} \n\t\r ",
      "abcd");
  const SafeTensors file = SafeTensors::from_memory(as_bytes(bytes));
  using namespace std::string_literals;
  const std::string odd = "\xC3\xA9\xF0\x9F\x98\x80\n\"\\/\b\f\r\t\0"s;
  EXPECT_EQ(file.names(), (std::vector<std::string>{odd, "", "later"}));
  EXPECT_EQ(file.metadata(), (heed::Metadata{{"", ""}, {"k", "v"}}));
  EXPECT_EQ(file.dtype(""), heed::Dtype::I8);
  EXPECT_EQ(file.shape(""), (std::vector<heed::Index>{3, 1}));
  EXPECT_EQ((file.read_integers<int, 2>("")(2, 0)), 'd');
  EXPECT_EQ((file.read_integers<int, 1>(odd)(0)), 'a');
  EXPECT_EQ((file.read<double, 2>("later").extents()), (heed::Extents<2>{0, 3}));
}

TEST(SafeTensorsHeader, WhatIsWrittenIsReadBack) {
  using heed::detail::write_header;
  const heed::Metadata metadata{{"key \"1\"", "\x01\x1F \\ \n"}, {"\xE2\x82\xAC", ""}};
  heed::TensorInfo info{heed::Dtype::BF16, {2, 3}, 0, 12};
  for (std::size_t padding = 0; padding < 9; ++padding) {
    const std::string name(padding, 'n');
    const std::string header = write_header({{name, info}}, metadata);
    EXPECT_EQ(header.size() % 8, 0u);
    const std::string bytes = header + std::string(12, 'x');
    const SafeTensors file = SafeTensors::from_memory(as_bytes(bytes));
    EXPECT_EQ(file.metadata(), metadata);
    EXPECT_EQ(file.shape(name), info.shape);
    EXPECT_EQ(file.dtype(name), info.dtype);
  }
}

}  // namespace
