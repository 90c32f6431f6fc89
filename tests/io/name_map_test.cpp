// SPDX-License-Identifier: MIT
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <Eigen/Core>
#include <gtest/gtest.h>

#include <heed/core/scalar.hpp>
#include <heed/io/name_map.hpp>
#include <heed/nn/parameter.hpp>

#include "common/message_of.hpp"
#include "common/safetensors_bytes.hpp"
#include "common/temporary_directory.hpp"

namespace {

using heed::Index;
using heed::load_parameters;
using heed::NameMap;
using heed::Parameter;
using heed::SafeTensors;
using heed_test::has_all;

/// Two blocks of a packed projection (6, 2) with bias (6) and a matrix (2, 3), and a scale (4) of another type.
struct Layer {
  struct Block {
    Parameter<float> in_proj_weight{6, 2}, in_proj_bias{6}, linear{2, 3};
    template <class Self, class F>
    static void visit(Self& self, std::string_view prefix, F& f) {
      heed::detail::visit_parameter(prefix, "attn.in_proj_weight", self.in_proj_weight, f);
      heed::detail::visit_parameter(prefix, "attn.in_proj_bias", self.in_proj_bias, f);
      heed::detail::visit_parameter(prefix, "linear.weight", self.linear, f);
    }
  };
  Block blocks[2];
  Parameter<double> scale{4};
  Parameter<float> absent;

  template <class F>
  void visit(std::string_view prefix, F& f) {
    visit_all(*this, prefix, f);
  }
  template <class F>
  void visit(std::string_view prefix, F& f) const {
    visit_all(*this, prefix, f);
  }

 private:
  template <class Self, class F>
  static void visit_all(Self& self, std::string_view prefix, F& f) {
    for (int i = 0; i < 2; ++i) Block::visit(self.blocks[i], heed::detail::join(prefix, "layers", i), f);
    heed::detail::visit_parameter(prefix, "scale", self.scale, f);
    heed::detail::visit_parameter(prefix, "absent", self.absent, f);
  }
};

/// Grouped queries: fewer key and value rows than query rows in one matrix.
struct Grouped {
  Parameter<float> w{7, 2};
  template <class F>
  void visit(std::string_view prefix, F& f) {
    heed::detail::visit_parameter(prefix, "w", w, f);
  }
};

/// Parameters of several types.
struct Narrow {
  Parameter<heed::half> w{2, 2};
  Parameter<double> v{3};
  template <class F>
  void visit(std::string_view prefix, F& f) {
    heed::detail::visit_parameter(prefix, "w", w, f);
    heed::detail::visit_parameter(prefix, "v", v, f);
  }
};

/// Numbers that differ in every element of every parameter.
void fill(Layer& layer) {
  double next = 1;
  auto f = [&](std::string_view, auto& parameter) {
    const auto value = parameter.mutable_value();
    using T = typename decltype(value)::value_type;
    for (Index i = 0; i < value.size(); ++i) value(i) = static_cast<T>(next++ / 8);
  };
  layer.visit("", f);
}
std::vector<double> numbers_of(const Layer& layer) {
  std::vector<double> numbers;
  auto f = [&](std::string_view, const auto& parameter) {
    for (Index i = 0; i < parameter.size(); ++i) numbers.push_back(static_cast<double>(parameter.value()(i)));
  };
  layer.visit("", f);
  return numbers;
}

/// The names of the same parameters in a BERT-like file.
const NameMap kMap{.rules = {{"layers.*.attn.in_proj_*", {"enc.*.query.*", "enc.*.key.*", "enc.*.value.*"}},
                             {"layers.*.linear.weight", {"enc.*.dense"}, true},
                             {"scale", {"norm.gamma"}}},
                   .ignored = {"position_ids", "pooler.*"}};

class NameMapTest : public testing::Test {
 protected:
  /// A file with the names of kMap, from the parameters of `source_`, which are 1/8, 2/8, ...
  std::vector<heed::NamedTensor> foreign_tensors() {
    std::vector<heed::NamedTensor> tensors;
    for (int i = 0; i < 2; ++i) {
      const std::string prefix = "enc." + std::to_string(i) + ".";
      const Layer::Block& block = source_.blocks[i];
      const char* const names[] = {"query", "key", "value"};
      for (int part = 0; part < 3; ++part) {
        tensors.emplace_back(prefix + names[part] + ".weight", block.in_proj_weight.matrix().slice(0, 2 * part, 2));
        tensors.emplace_back(prefix + names[part] + ".bias", block.in_proj_bias.value().slice(0, 2 * part, 2));
      }
      tensors.emplace_back(prefix + "dense", block.linear.matrix().transpose(0, 1));
    }
    tensors.emplace_back("norm.gamma", source_.scale.value());
    tensors.emplace_back("position_ids", position_ids_);
    tensors.emplace_back("pooler.dense.weight", pooler_);
    return tensors;
  }
  SafeTensors saved(const std::vector<heed::NamedTensor>& tensors) {
    heed::save_safetensors(path_, tensors);
    return SafeTensors::open(path_);
  }
  static std::vector<heed::NamedTensor> without(std::vector<heed::NamedTensor> tensors, std::string_view name) {
    std::erase_if(tensors, [&](const heed::NamedTensor& t) { return t.name() == name; });
    return tensors;
  }
  /// The error message; fails if the layer was changed in spite of the error.
  template <class Exception = heed::FormatError>
  std::string refusal(const SafeTensors& file, const NameMap& map) {
    Layer layer;
    fill(layer);
    const std::vector<double> before = numbers_of(layer);
    const std::string message = heed_test::message_of<Exception>([&] { load_parameters(layer, file, map); });
    EXPECT_EQ(numbers_of(layer), before) << "something was loaded";
    return message;
  }

  void SetUp() override { fill(source_); }

  Layer source_;
  const heed::Tensor<std::int64_t, 2> position_ids_{1, 5};
  const heed::Tensor<float, 2> pooler_{2, 2};
  const heed_test::TemporaryDirectory directory_;
  const std::string path_ = directory_.path("model.safetensors");
};

TEST_F(NameMapTest, WhatIsSavedLoadsWithoutAMap) {
  heed::save_parameters(source_, path_, {{"epoch", "3"}});
  const SafeTensors file = SafeTensors::open(path_);
  EXPECT_EQ(file.metadata(), (heed::Metadata{{"epoch", "3"}}));
  EXPECT_EQ(file.names().size(), 7u);
  EXPECT_EQ(file.dtype("scale"), heed::Dtype::F64);
  EXPECT_EQ(file.shape("layers.1.attn.in_proj_weight"), (std::vector<Index>{6, 2}));
  EXPECT_EQ(file.shape("layers.1.attn.in_proj_bias"), std::vector<Index>{6});
  Layer layer;
  load_parameters(layer, file);
  EXPECT_EQ(numbers_of(layer), numbers_of(source_));

  Layer by_path;
  load_parameters(by_path, path_);
  EXPECT_EQ(numbers_of(by_path), numbers_of(source_));
  EXPECT_THROW(load_parameters(by_path, "/no/such/file.safetensors"), heed::FormatError);
}

TEST_F(NameMapTest, RulesRenameJoinRowsAndTranspose) {
  Layer layer;
  load_parameters(layer, saved(foreign_tensors()), kMap);
  EXPECT_EQ(numbers_of(layer), numbers_of(source_));
}

TEST_F(NameMapTest, PartsMayHaveDifferentNumbersOfRows) {
  const NameMap map{.rules = {{"w", {"q", "k", "v"}}}};
  Grouped layer;
  const Eigen::MatrixXf w = Eigen::MatrixXf::Random(7, 2);
  load_parameters(layer, saved({{"q", w.topRows(4)}, {"k", w.middleRows(4, 1)}, {"v", w.bottomRows(2)}}), map);
  EXPECT_EQ(layer.w.matrix().matrix(), w);
}

TEST_F(NameMapTest, ConvertsBetweenFloatingPointTypes) {
  Narrow layer;
  const Eigen::Matrix2d w = Eigen::Matrix2d::Constant(0.5);
  const Eigen::VectorXf v = Eigen::VectorXf::Constant(3, 0.25f);
  load_parameters(layer, saved({{"w", w}, {"v", v}}));
  EXPECT_EQ(layer.w.matrix()(1, 1), heed::half(0.5f));
  EXPECT_EQ(layer.v.value()(2), 0.25);

  const Eigen::Matrix2d large = Eigen::Matrix2d::Constant(1e9);
  const Eigen::VectorXf other = Eigen::VectorXf::Constant(3, 7.0f);
  EXPECT_THROW(load_parameters(layer, saved({{"w", large}, {"v", other}})), heed::FormatError);
  EXPECT_EQ(layer.v.value()(2), 0.25) << "something was loaded";
}

TEST_F(NameMapTest, TheFirstRuleThatFitsDecides) {
  NameMap map = kMap;
  map.rules.insert(map.rules.begin(), {"layers.1.linear.*", {"special"}});
  auto tensors = without(foreign_tensors(), "enc.1.dense");
  tensors.emplace_back("special", source_.blocks[1].linear.matrix());
  Layer layer;
  load_parameters(layer, saved(tensors), map);
  EXPECT_EQ(numbers_of(layer), numbers_of(source_));
}

TEST_F(NameMapTest, OneTensorMayServeSeveralParameters) {
  const NameMap map{.rules = {{"layers.*.attn.in_proj_weight", {"shared.weight"}},
                              {"layers.*.attn.in_proj_bias", {"shared.bias"}},
                              {"layers.*.linear.*", {"linear"}}}};
  const Layer::Block& block = source_.blocks[0];
  Layer layer;
  load_parameters(layer,
                  saved({{"shared.weight", block.in_proj_weight.matrix()},
                         {"shared.bias", block.in_proj_bias.value()},
                         {"linear", block.linear.matrix()},
                         {"scale", source_.scale.value()}}),
                  map);
  EXPECT_EQ(layer.blocks[1].in_proj_weight.matrix()(5, 1), block.in_proj_weight.matrix()(5, 1));
}

TEST_F(NameMapTest, LoadingDropsPackedCopies) {
  Layer layer;
  const auto version = layer.blocks[0].linear.version();
  load_parameters(layer, saved(foreign_tensors()), kMap);
  EXPECT_NE(layer.blocks[0].linear.version(), version);
}

TEST_F(NameMapTest, EverythingThatIsWrongIsInOneMessage) {
  auto tensors = without(without(foreign_tensors(), "enc.0.key.bias"), "norm.gamma");
  tensors = without(std::move(tensors), "enc.1.dense");
  const Eigen::MatrixXf square = Eigen::MatrixXf::Zero(3, 3);
  tensors.emplace_back("enc.1.dense", square);
  tensors.emplace_back("lm_head.weight", square);
  tensors = without(std::move(tensors), "enc.1.query.bias");
  tensors.emplace_back("enc.1.query.bias", position_ids_);
  const std::string message = refusal(saved(tensors), kMap);
  EXPECT_TRUE(has_all(
      message,
      {"heed::load_parameters: file \"" + path_ + "\" does not fit the layer's 7 parameters; nothing was loaded",
       "missing in the file (2):", "\"layers.0.attn.in_proj_bias\" (in the file: \"enc.0.key.bias\")",
       "\"scale\" (in the file: \"norm.gamma\")", "of another shape or type (2):",
       "\"layers.1.linear.weight\": it has shape (2, 3), but the file has \"enc.1.dense\" (3, 3), to be transposed",
       "\"layers.1.attn.in_proj_bias\": \"enc.1.query.bias\" holds I64",
       "in the file, but not in the layer (1):", "\"lm_head.weight\" (3, 3)", "NameMap"}));
}

TEST_F(NameMapTest, ShapesMustBeTheSame) {
  const auto refusal_with = [&](const char* name, const auto& tensor) {
    auto tensors = without(foreign_tensors(), name);
    tensors.emplace_back(name, tensor);
    return refusal(saved(tensors), kMap);
  };
  const Eigen::MatrixXf wide = Eigen::MatrixXf::Zero(2, 3), tall = Eigen::MatrixXf::Zero(3, 2);
  const Eigen::VectorXf four = Eigen::VectorXf::Zero(4);
  EXPECT_TRUE(
      has_all(refusal_with("enc.0.key.weight", wide),
              {"(6, 2)", "\"enc.0.query.weight\" (2, 2), \"enc.0.key.weight\" (2, 3)", "whose rows are joined"}));
  EXPECT_TRUE(has_all(refusal_with("enc.0.key.weight", tall), {"(6, 2)", "\"enc.0.key.weight\" (3, 2)"}));
  EXPECT_TRUE(has_all(refusal_with("enc.0.key.weight", four), {"(6, 2)", "\"enc.0.key.weight\" (4)"}));
  EXPECT_TRUE(has_all(refusal_with("enc.0.dense", wide), {"(2, 3)", "\"enc.0.dense\" (2, 3), to be transposed"}));
  const heed::Tensor<double, 2> column(4, 1);
  EXPECT_TRUE(
      has_all(refusal_with("norm.gamma", column), {"it has shape (4), but the file has \"norm.gamma\" (4, 1)"}));
  const heed::Tensor<double, 1> none(0);
  EXPECT_TRUE(has_all(refusal_with("norm.gamma", none), {"it has shape (4), but the file has \"norm.gamma\" (0)"}));
}

TEST_F(NameMapTest, ExtentsThatOverflowTheirSumAreRefused) {
  const std::string huge = R"({"dtype":"F16","shape":[4611686018427387903,0],"data_offsets":[0,0]})";
  const std::string bytes =
      heed_test::safetensors_bytes(R"({"q":)" + huge + R"(,"k":)" + huge + R"(,"v":)" + huge + "}");
  const SafeTensors file = SafeTensors::from_memory(heed_test::as_bytes(bytes));
  Grouped layer;
  EXPECT_TRUE(has_all(heed_test::message_of<heed::FormatError>(
                          [&] { load_parameters(layer, file, {.rules = {{"w", {"q", "k", "v"}}}}); }),
                      {"(7, 2)", "\"q\" (4611686018427387903, 0)"}));
}

TEST_F(NameMapTest, LongListsAreCutShort) {
  auto tensors = foreign_tensors();
  const Eigen::VectorXf x(1);
  for (int i = 0; i < 100; ++i) tensors.emplace_back("extra." + std::to_string(i), x);
  const std::string message = refusal(saved(tensors), kMap);
  EXPECT_TRUE(has_all(message, {"not in the layer (100):", "\"extra.0\" (1)", "and 70 more"}));
  EXPECT_LT(message.size(), 1500u);
}

TEST_F(NameMapTest, UnusedTensorsMayAllBeIgnored) {
  auto tensors = foreign_tensors();
  const Eigen::VectorXf x(1);
  tensors.emplace_back("anything", x);
  NameMap map = kMap;
  map.ignored = {"*"};
  Layer layer;
  load_parameters(layer, saved(tensors), map);
  EXPECT_EQ(numbers_of(layer), numbers_of(source_));
}

TEST_F(NameMapTest, AMissingParameterIsNamedAsTheFileWouldCallIt) {
  heed::save_safetensors(path_, {});
  const std::string message = refusal(SafeTensors::open(path_), {});
  EXPECT_TRUE(has_all(message, {"missing in the file (7):", "\n    \"layers.0.attn.in_proj_weight\"\n"}));
}

TEST_F(NameMapTest, AReleasedParameterIsReportedBeforeAnythingIsLoaded) {
  const SafeTensors file = saved(foreign_tensors());
  Layer layer;
  fill(layer);
  layer.scale.release();
  const float before = layer.blocks[0].linear.value()(0);
  layer.blocks[0].linear.mutable_value()(0) = -1;
  EXPECT_THROW(load_parameters(layer, file, kMap), heed::ValueError);
  EXPECT_EQ(layer.blocks[0].linear.value()(0), -1);
  EXPECT_NE(before, -1);
  EXPECT_THROW(heed::save_parameters(layer, path_), heed::ValueError);
}

TEST_F(NameMapTest, RulesThatCannotWorkAreRefused) {
  const SafeTensors file = saved(foreign_tensors());
  EXPECT_TRUE(
      has_all(refusal<heed::ValueError>(file, {.rules = {{"scale", {}}}}), {"rule for \"scale\"", "no tensor"}));
  EXPECT_TRUE(has_all(refusal<heed::ValueError>(file, {.rules = {{"layers.*.linear", {"enc.*.*"}}}}),
                      {"rule for \"layers.*.linear\"", "1 stars", "\"enc.*.*\""}));
}

/// A matrix (rows, 2) with its number in each row: r, r + 1/2.
Eigen::MatrixXf counted(int rows) {
  Eigen::MatrixXf m(rows, 2);
  for (int r = 0; r < rows; ++r) m.row(r) << static_cast<float>(r), static_cast<float>(r) + 0.5f;
  return m;
}
/// Parameters w (6, 2) and b (6).
struct Rows {
  Parameter<float> w{6, 2}, b{6};
  template <class F>
  void visit(std::string_view prefix, F&& f) {
    heed::detail::visit_parameter(prefix, "w", w, f);
    heed::detail::visit_parameter(prefix, "b", b, f);
  }
  std::vector<int> order() const {
    std::vector<int> rows;
    for (Index i = 0; i < 6; ++i) {
      rows.push_back(static_cast<int>(w.matrix()(i, 0)));
      EXPECT_EQ(w.matrix()(i, 1), w.matrix()(i, 0) + 0.5f);
      EXPECT_EQ(b.value()(i), w.matrix()(i, 0));
    }
    return rows;
  }
};
using Order = std::vector<int>;

// F03
TEST_F(NameMapTest, F03_APartThatTheFileLacksIsZeros) {
  const Eigen::VectorXf q = Eigen::VectorXf::Constant(2, 1), v = Eigen::VectorXf::Constant(2, 3);
  const Eigen::MatrixXf w = counted(6);
  const heed::RowSelection zeros{.if_missing = 0};
  const NameMap map{.rules = {{"b", {{"q", zeros}, {"k", zeros}, {"v", zeros}}}}};
  Rows layer;
  load_parameters(layer, saved({{"w", w}, {"q", q}, {"v", v}}), map);
  EXPECT_EQ(std::vector<float>(layer.b.value().data(), layer.b.value().data() + 6),
            (std::vector<float>{1, 1, 0, 0, 3, 3}));
  load_parameters(layer, saved({{"w", w}, {"v", v}}), map);
  EXPECT_EQ(layer.b.value()(3), 0);
  EXPECT_EQ(layer.b.value()(4), 3);
  load_parameters(layer, saved({{"w", w}}), {.rules = {{"b", {{"gone", {.if_missing = 1}}}}}});
  EXPECT_EQ(layer.b.value()(5), 1);
  const Eigen::VectorXf odd = Eigen::VectorXf::Constant(3, 1), much = Eigen::VectorXf::Constant(7, 1);
  for (const Eigen::VectorXf* bias : {&odd, &much}) {
    const auto file = saved({{"w", w}, {"q", *bias}});
    EXPECT_TRUE(has_all(heed_test::message_of<heed::FormatError>([&] { load_parameters(layer, file, map); }),
                        {"\"b\": it has shape (6)", "\"q\" ("}));
  }
}

// F05
TEST_F(NameMapTest, F05_ATensorIsTakenApart) {
  const Eigen::MatrixXf w = counted(12);
  const Eigen::VectorXf b = w.col(0);
  const SafeTensors file = saved({{"gate_up.w", w}, {"gate_up.b", b}});
  const auto order = [&](heed::RowSelection rows) {
    Rows layer;
    load_parameters(layer, file, {.rules = {{"*", {{"gate_up.*", rows}}}}});
    return layer.order();
  };
  EXPECT_EQ(order({.parts = 2, .part = 0}), (Order{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(order({.parts = 2, .part = 1}), (Order{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(order({.heads = 3, .parts = 2, .part = 1}), (Order{2, 3, 6, 7, 10, 11}));
  EXPECT_EQ(order({.heads = 6, .parts = 2, .part = 0}), (Order{0, 2, 4, 6, 8, 10}));
  EXPECT_TRUE(has_all(heed_test::message_of<heed::FormatError>([&] { order({.parts = 5, .part = 0}); }),
                      {"\"gate_up.w\" (12, 2), of which part 0 of 5"}));
  EXPECT_TRUE(has_all(heed_test::message_of<heed::FormatError>([&] { order({.heads = 2, .parts = 3, .part = 0}); }),
                      {"it has shape (6, 2)", "of which part 0 of 3 of 2 heads"}));
  for (const heed::RowSelection& wrong : {heed::RowSelection{.heads = 0},
                                          {.parts = -1},
                                          {.parts = 2, .part = 2},
                                          {.part = -1},
                                          {.heads = Index{1} << 30}}) {
    EXPECT_THROW(order(wrong), heed::ValueError);
  }
}

TEST_F(NameMapTest, F05_RowsAreReorderedHeadByHead) {
  const Eigen::MatrixXf w = counted(6);
  const Eigen::VectorXf b = w.col(0);
  const auto order = [&](std::vector<heed::FileRows> from) {
    Rows layer;
    load_parameters(layer, saved({{"w", w}, {"b", b}}), {.rules = {{"*", std::move(from)}}});
    return layer.order();
  };
  // One row each of q, k, v for two heads, as GPT-NeoX and BLOOM store them.
  const auto part = [](Index p) { return heed::FileRows("*", {.heads = 2, .parts = 3, .part = p}); };
  EXPECT_EQ(order({part(0), part(1), part(2)}), (Order{0, 3, 1, 4, 2, 5}));
  // The rotary halves of a head become pairs, and pairs halves.
  EXPECT_EQ(order({{"*", {.heads = 1, .parts = 2}}}), (Order{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(order({{"*", {.heads = 1, .parts = 3}}}), (Order{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(order({{"*", {.heads = 3, .parts = 2}}}), (Order{0, 1, 2, 3, 4, 5}));
}

// Phi-3 has H query heads, then G key and G value heads; Falcon and InternLM2 have such a group for each key head.
TEST_F(NameMapTest, F05_PartsMayBeUnequal) {
  const Eigen::MatrixXf w = counted(12);
  const Eigen::VectorXf b = w.col(0);
  const SafeTensors file = saved({{"qkv.w", w}, {"qkv.b", b}});
  const auto order = [&](std::vector<heed::RowSelection> rows) {
    std::vector<heed::FileRows> from;
    for (const heed::RowSelection& selection : rows) from.emplace_back("qkv.*", selection);
    Rows layer;
    load_parameters(layer, file, {.rules = {{"*", from}}});
    return layer.order();
  };
  // Two rows a head: four query heads, a key and a value head.
  EXPECT_EQ(order({{.parts = 6, .part = 0, .count = 3}}), (Order{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(order({{.parts = 6, .part = 5}, {.parts = 6, .part = 2, .count = 2}}), (Order{10, 11, 4, 5, 6, 7}));
  EXPECT_EQ(order({{.parts = 2, .part = 1, .count = 1}}), (Order{6, 7, 8, 9, 10, 11}));
  // In each of several heads.
  EXPECT_EQ(order({{.heads = 2, .parts = 3, .part = 1}, {.parts = 6, .part = 1}}), (Order{2, 3, 8, 9, 2, 3}));
  EXPECT_EQ(order({{.heads = 2, .parts = 6, .part = 0, .count = 3}}), (Order{0, 1, 2, 6, 7, 8}));
  EXPECT_EQ(order({{.heads = 3, .parts = 4, .part = 2, .count = 2}}), (Order{2, 3, 6, 7, 10, 11}));
  EXPECT_TRUE(has_all(heed_test::message_of<heed::FormatError>([&] { order({{.parts = 6, .part = 1, .count = 5}}); }),
                      {"it has shape (6, 2)", "\"qkv.w\" (12, 2), of which 5 parts from 1 of 6"}));
  for (const heed::RowSelection& wrong : {heed::RowSelection{.parts = 6, .part = 4, .count = 3},
                                          {.parts = 6, .part = 4, .count = 0},
                                          {.parts = 6, .part = 1, .count = -1},
                                          {.parts = 6, .part = 1, .count = std::numeric_limits<Index>::max()},
                                          {.parts = 6, .count = 2}}) {
    EXPECT_TRUE(has_all(heed_test::message_of<heed::ValueError>([&] { order({wrong}); }), {"count = ", "qkv.*"}));
  }
}

TEST_F(NameMapTest, F05_AFusedTransposedTensorIsTakenApart) {
  const Eigen::MatrixXf all = counted(18), columns = all.transpose();
  const Eigen::VectorXf b = all.col(0);
  Rows layer;
  const heed::RowSelection keys{.parts = 3, .part = 1};
  load_parameters(layer, saved({{"c_attn.w", columns}, {"c_attn.b", b}}),
                  {.rules = {{"*", {{"c_attn.*", keys}}, true}}});
  EXPECT_EQ(layer.order(), (Order{6, 7, 8, 9, 10, 11}));
}

TEST_F(NameMapTest, ARuleFoldsDimensions) {
  heed::Tensor<float, 4> kernel(6, 1, 2, 1);
  heed::Tensor<float, 3> token(1, 1, 6);
  for (Index i = 0; i < 12; ++i) kernel.data()[i] = static_cast<float>(i / 2) + (i % 2 ? 0.5f : 0.0f);
  for (Index i = 0; i < 6; ++i) token.data()[i] = static_cast<float>(i);
  const SafeTensors file = saved({{"w", kernel}, {"b", token}});
  Rows layer;
  load_parameters(layer, file, {.rules = {{"*", {"*"}}}});
  EXPECT_EQ(layer.order(), (Order{0, 1, 2, 3, 4, 5}));
  EXPECT_THROW(load_parameters(layer, file), heed::FormatError) << "without a rule";
}

}  // namespace
