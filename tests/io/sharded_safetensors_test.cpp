// SPDX-License-Identifier: MIT
#include <filesystem>
#include <string>

#include <Eigen/Core>
#include <gtest/gtest.h>

#include <heed/io/name_map.hpp>

#include "common/message_of.hpp"
#include "common/temporary_directory.hpp"

namespace {

using heed::load_parameters;
using heed::SafeTensors;
using heed_test::has_all;

/// A weight (3, 2) and a bias (3).
struct Layer {
  heed::Parameter<float> weight{3, 2}, bias{3};
  template <class F>
  void visit(std::string_view prefix, F&& f) {
    heed::detail::visit_parameter(prefix, "weight", weight, f);
    heed::detail::visit_parameter(prefix, "bias", bias, f);
  }
};

class ShardedSafeTensors : public testing::Test {
 protected:
  void SetUp() override {
    heed::save_safetensors(directory_.path(kFirst), {{"weight", weight_}}, {{"format", "pt"}});
    heed::save_safetensors(directory_.path(kSecond), {{"bias", bias_}}, {{"format", "pt"}});
  }
  void write_index(const std::string& weight_map) {
    heed_test::write_text(index_, R"({"metadata": {"total_size": 36, "other": [1.5e3, null]},)"
                                  "\n  \"weight_map\": " +
                                      weight_map + "}\n");
  }
  std::string refusal() const {
    return heed_test::message_of<heed::FormatError>([&] { SafeTensors::open(index_); });
  }

  const std::string kFirst = "model-00001-of-00002.safetensors", kSecond = "model-00002-of-00002.safetensors";
  const std::string kMap = R"({"bias": ")" + kSecond + R"(", "weight": ")" + kFirst + R"("})";
  const Eigen::MatrixXf weight_ = Eigen::MatrixXf::Random(3, 2);
  const Eigen::VectorXf bias_ = Eigen::VectorXf::Random(3);
  const heed_test::TemporaryDirectory directory_;
  const std::string index_ = directory_.path("model.safetensors.index.json");
};

// F11
TEST_F(ShardedSafeTensors, F11_OneCallLoadsAModelInSeveralFiles) {
  write_index(kMap);
  std::string directory = directory_.path("");
  for (const std::string& path : {index_, directory, directory.substr(0, directory.size() - 1)}) {
    Layer layer;
    load_parameters(layer, path);
    EXPECT_EQ(layer.weight.matrix().matrix(), weight_) << path;
    EXPECT_EQ(layer.bias.value()(2), bias_(2)) << path;
  }
  SafeTensors file = SafeTensors::open(index_);
  const SafeTensors moved = std::move(file);
  EXPECT_EQ(moved.names().size(), 2u);
  EXPECT_EQ(moved.metadata().at("format"), "pt");
  EXPECT_EQ((*moved.view<float, 1>("bias"))(1), bias_(1));
  EXPECT_TRUE(has_all(heed_test::message_of<heed::FormatError>([&] { moved.read<float, 1>("weight"); }),
                      {kFirst, "not rank 1"}));
}

TEST_F(ShardedSafeTensors, F11_ADirectoryOfOneFileIsThatFile) {
  heed::save_safetensors(directory_.path("model.safetensors"), {{"weight", weight_}, {"bias", bias_}});
  Layer layer;
  load_parameters(layer, directory_.path(""));
  EXPECT_EQ(layer.bias.value()(2), bias_(2));
}

TEST_F(ShardedSafeTensors, F11_ATensorInNoFileOrInTwoIsNamed) {
  write_index(kMap.substr(0, kMap.size() - 1) + R"(, "scale": ")" + kFirst + R"("})");
  EXPECT_TRUE(has_all(refusal(), {"tensor \"scale\"", "says that it is in \"" + kFirst, "it is in no file"}));
  write_index(R"({"bias": ")" + kFirst + R"(", "weight": ")" + kSecond + R"("})");
  EXPECT_TRUE(has_all(refusal(), {"tensor \"bias\"", "says that it is in \"" + kFirst, "but it is in", kSecond}));
  write_index(kMap);
  heed::save_safetensors(directory_.path(kSecond), {{"weight", weight_}, {"bias", bias_}});
  EXPECT_TRUE(has_all(refusal(), {"tensor \"weight\" is in two files", kFirst, kSecond}));
  std::filesystem::remove(directory_.path(kSecond));
  EXPECT_TRUE(has_all(refusal(), {kSecond, "cannot be opened"}));
}

TEST_F(ShardedSafeTensors, F11_TensorsThatTheIndexDoesNotListAreThereToo) {
  write_index(R"({"bias": ")" + kSecond + R"("})");
  Layer layer;
  EXPECT_TRUE(has_all(heed_test::message_of<heed::FormatError>([&] { load_parameters(layer, index_); }),
                      {"missing in the file (1)", "\"weight\""}));
}

TEST_F(ShardedSafeTensors, DamagedIndexesAreRefused) {
  for (const std::string& name :
       {"../" + kFirst, std::string("/etc/passwd"), std::string("a\\\\b"), std::string(), kFirst + "\\u0000"}) {
    write_index(R"({"bias": ")" + name + R"("})");
    EXPECT_NE(refusal().find("a name without directories"), std::string::npos) << name;
  }
  write_index(R"({"bias": 3})");
  EXPECT_TRUE(has_all(refusal(), {"field \"weight_map\"", "of the index", "must be a string"}));
  write_index(R"({"bias": "a", "bias": "b"})");
  EXPECT_NE(refusal().find("appears twice"), std::string::npos);
  for (const char* text : {"", "[]", "{}", R"({"weight_map":{}} x)", R"({"weight_map":)",
                           R"({"weight_map":{},"weight_map":{}})", R"({"weight_map":null})"}) {
    heed_test::write_text(index_, text);
    EXPECT_TRUE(has_all(refusal(), {"heed::SafeTensors: file \"", "index"})) << text;
  }
}

}  // namespace
