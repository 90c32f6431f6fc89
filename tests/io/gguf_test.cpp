// SPDX-License-Identifier: MIT
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <heed/io/gguf.hpp>
#include <heed/io/name_map.hpp>
#include <heed/io/name_maps.hpp>
#include <heed/nn/embedding.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/transformer.hpp>

#include "common/gguf_bytes.hpp"
#include "common/message_of.hpp"
#include "common/random_inputs.hpp"
#include "common/safetensors_bytes.hpp"
#include "common/temporary_directory.hpp"

namespace {

using heed::Gguf;
using heed::Index;
using heed::Tensor;
using heed::WeightFormat;
using heed_test::as_bytes;
using heed_test::GgufFile;
using heed_test::GgufText;
using heed_test::message_of;

constexpr std::uint32_t kUInt8 = 0, kInt8 = 1, kUInt32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8,
                        kUInt64 = 10, kInt64 = 11, kFloat64 = 12;
constexpr std::uint32_t kF32 = 0, kF16 = 1, kQ40 = 2, kQ41 = 3, kQ80 = 8, kQ4K = 12, kBF16 = 30;

std::string refusal_of(const std::string& bytes) {
  return message_of<heed::FormatError>([&] { Gguf::from_memory(as_bytes(bytes), "model.gguf"); });
}
void expect_refused(const GgufFile& file, std::string_view why) {
  const std::string message = refusal_of(file.bytes());
  EXPECT_TRUE(message.starts_with("heed::Gguf: file \"model.gguf\", byte ")) << message;
  EXPECT_NE(message.find(why), std::string::npos) << "expected: " << why << "\nfound: " << message;
}
std::string floats(const std::vector<float>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)};
}

TEST(GgufMetadata, OfEveryType) {
  GgufFile file;
  file.value("u8", kUInt8, std::uint8_t{200});
  file.value("i8", kInt8, std::int8_t{-100});
  file.value("u16", 2, std::uint16_t{60000});
  file.value("i16", 3, std::int16_t{-30000});
  file.value("u32", kUInt32, std::uint32_t{4000000000});
  file.value("i32", kInt32, std::int32_t{-2000000000});
  file.value("u64", kUInt64, std::numeric_limits<std::uint64_t>::max());
  file.value("i64", kInt64, std::numeric_limits<std::int64_t>::min());
  file.value("f32", kFloat32, 0.1f);
  file.value("f64", kFloat64, 0.1);
  file.value("yes", kBool, std::uint8_t{1});
  file.value("text", kString, std::string_view("h\xC3\xA9"));
  file.strings("texts", {"a", "", "ccc"});
  file.raw_value("numbers", GgufText().put(9u).put(kInt32).put(std::uint64_t{2}).put(-1).put(7).bytes());
  const std::string bytes = file.bytes();
  const Gguf gguf = Gguf::from_memory(as_bytes(bytes), "model.gguf");
  EXPECT_EQ(gguf.metadata<int>("u8"), 200);
  EXPECT_EQ(gguf.metadata<long>("i8"), -100);
  EXPECT_EQ(gguf.metadata<std::uint16_t>("u16"), 60000);
  EXPECT_EQ(gguf.metadata<std::int16_t>("i16"), -30000);
  EXPECT_EQ(gguf.metadata<std::int64_t>("u32"), 4000000000);
  EXPECT_EQ(gguf.metadata<int>("i32"), -2000000000);
  EXPECT_EQ(gguf.metadata<std::uint64_t>("u64"), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(gguf.metadata<std::int64_t>("i64"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(gguf.metadata<float>("f32"), 0.1f);
  EXPECT_EQ(gguf.metadata<double>("f32"), static_cast<double>(0.1f));
  EXPECT_EQ(gguf.metadata<double>("f64"), 0.1);
  EXPECT_TRUE(gguf.metadata<bool>("yes"));
  EXPECT_EQ(gguf.metadata<std::string>("text"), "h\xC3\xA9");
  EXPECT_EQ(gguf.metadata_array<std::string>("texts"), (std::vector<std::string>{"a", "", "ccc"}));
  EXPECT_EQ(gguf.metadata_array<std::int64_t>("numbers"), (std::vector<std::int64_t>{-1, 7}));
  EXPECT_EQ(gguf.metadata<int>("absent", 5), 5);
  EXPECT_FALSE(gguf.has("absent"));
  EXPECT_EQ(gguf.keys().size(), 14u);

  const auto refused = [&](auto read, std::string_view why) {
    const std::string message = message_of<heed::FormatError>(read);
    EXPECT_NE(message.find(why), std::string::npos) << message;
  };
  refused([&] { gguf.metadata<int>("absent"); }, "has no metadata \"absent\"");
  refused([&] { gguf.metadata<std::int8_t>("u8"); }, "\"u8\": it is 200, which the requested integer type cannot");
  refused([&] { gguf.metadata<unsigned>("i8"); }, "is -100, which");
  refused([&] { gguf.metadata<std::int64_t>("u64"); }, "is 18446744073709551615, which");
  refused([&] { gguf.metadata<int>("f32"); }, "is float32, not an integer");
  refused([&] { gguf.metadata<double>("u8"); }, "is uint8, not a floating-point number");
  refused([&] { gguf.metadata<bool>("u8"); }, "is uint8, not bool");
  refused([&] { gguf.metadata<int>("yes"); }, "read it with metadata<bool>");
  refused([&] { gguf.metadata<int>("text"); }, "is string, not a number");
  refused([&] { gguf.metadata<std::string>("u8"); }, "is uint8, not a string");
  refused([&] { gguf.metadata<int>("texts"); }, "is an array of 3 string; read it with metadata_array");
  refused([&] { gguf.metadata_array<int>("u8"); }, "is one uint8, not an array");
}

TEST(GgufTensors, OfEveryTypeThatIsRead) {
  GgufFile file;
  file.tensor("vector", kF32, {3}, floats({1, 2.5f, -3}));
  file.tensor("matrix", kF32, {2, 3}, floats({1, 2, 3, 4, 5, 6}));
  const heed::half halves[2] = {heed::half(1.5f), heed::half(-2.f)};
  file.tensor("half", kF16, {2}, {reinterpret_cast<const char*>(halves), 4});
  const heed::bfloat16 bfloats[2] = {heed::bfloat16(1.5f), heed::bfloat16(-2.f)};
  file.tensor("bfloat16", kBF16, {2}, {reinterpret_cast<const char*>(bfloats), 4});
  std::string block(34, '\3');
  std::memcpy(block.data(), halves, 2);
  file.tensor("q8", kQ80, {32, 1}, block);
  std::string four(18, '\x4f');
  std::memcpy(four.data(), halves, 2);
  file.tensor("q4_0", kQ40, {32, 1}, four);
  std::string with_minimum(20, '\x4f');
  std::memcpy(with_minimum.data(), halves, 4);
  file.tensor("q4_1", kQ41, {32, 1}, with_minimum);
  file.tensor("other", kQ4K, {256, 1}, std::string(144, '\0'));
  const std::string bytes = file.bytes();
  const heed_test::TemporaryDirectory directory;
  heed_test::write_text(directory.path("model.gguf"), bytes);
  const Gguf gguf = Gguf::open(directory.path("model.gguf"));

  EXPECT_EQ(gguf.names().size(), 8u);
  EXPECT_EQ((gguf.read<double, 1>("vector")(1)), 2.5);
  const Tensor<float, 2> matrix = gguf.read<float, 2>("matrix");
  EXPECT_EQ(matrix.extents(), (heed::Extents<2>{3, 2})) << "rows first";
  EXPECT_EQ(matrix(2, 0), 5.f);
  EXPECT_EQ((gguf.read<float, 1>("half")(1)), -2.f);
  EXPECT_EQ((gguf.read<float, 1>("bfloat16")(0)), 1.5f);
  EXPECT_EQ((gguf.read<float, 2>("q8")(0, 31)), 1.5f * 3);
  EXPECT_EQ((gguf.read<float, 2>("q4_0")(0, 0)), 1.5f * (15 - 8));
  EXPECT_EQ((gguf.read<float, 2>("q4_0")(0, 16)), 1.5f * (4 - 8));
  EXPECT_EQ((gguf.read<float, 2>("q4_1")(0, 16)), 1.5f * 4 - 2);
  EXPECT_EQ(gguf.format("q4_1"), WeightFormat::Q4_1);
  EXPECT_EQ(gguf.format("matrix"), std::nullopt);
  EXPECT_EQ(gguf.bytes("q8").size(), 34u);

  const auto refused = [&](auto read, std::string_view why) {
    const std::string message = message_of<heed::FormatError>(read);
    EXPECT_NE(message.find(why), std::string::npos) << message;
  };
  refused([&] { gguf.read<float, 2>("other"); },
          "\"other\": it is Q4_K (type 12), which heed does not read; convert it");
  refused([&] { gguf.read<float, 1>("matrix"); }, "has rank 2, not 1");
  refused([&] { gguf.info("absent"); }, "has no tensor \"absent\"; the first is \"vector\"");
  float small[2];
  refused([&] { gguf.read_into("vector", std::span<float>(small)); }, "has 3 elements, but `to` has 2");
  EXPECT_NE(message_of<heed::FormatError>([&] { Gguf::open(directory.path("none.gguf")); }).find("cannot be opened"),
            std::string::npos);
}

TEST(GgufHostile, IsRefusedWithItsPlace) {
  const std::string good = [] {
    GgufFile file;
    file.value("n", kUInt32, 1u);
    file.strings("texts", {"ab", "c"});
    file.tensor("x", kF32, {2}, floats({1, 2}));
    file.tensor("y", kF32, {2}, floats({1, 2}));
    return file.bytes();
  }();
  Gguf::from_memory(as_bytes(good));
  // Only the padding after the last tensor may be missing.
  for (std::size_t size = 0; size + 24 < good.size(); ++size) {
    EXPECT_NE(refusal_of(good.substr(0, size)).find(size < 4 ? "GGUF" : "trunc"), std::string::npos) << size;
  }
  GgufFile file;
  file.magic = "GGML";
  expect_refused(file, "does not begin with \"GGUF\"");
  file = {};
  file.version = 1;
  expect_refused(file, "the version is 1, but heed reads 2 and 3");
  file.version = 0x03000000;
  expect_refused(file, "the version is 50331648");
  file = {};
  file.value("a", kUInt8, std::uint8_t{1});
  file.value("a", kUInt8, std::uint8_t{1});
  expect_refused(file, "the key \"a\" occurs twice");
  file = {};
  file.raw_value("a", GgufText().put(13u).bytes());
  expect_refused(file, "the type of a value is 13, but types are 0 to 12");
  file = {};
  file.raw_value("a", GgufText().put(9u).put(kUInt64).put(std::uint64_t{1} << 61).bytes());
  expect_refused(file, "uint64 need more than");
  file = {};
  file.raw_value("a", GgufText().put(9u).put(kString).put(std::numeric_limits<std::uint64_t>::max()).bytes());
  expect_refused(file, "it is truncated");
  file = {};
  file.raw_value("a", GgufText().put(kString).put(std::numeric_limits<std::uint64_t>::max()).bytes());
  expect_refused(file, "needs 18446744073709551615 bytes");
  GgufText deep;
  for (int i = 0; i < 20; ++i) deep.put(9u).put(std::uint64_t{1}).put(9u).put(std::uint64_t{1});
  file = {};
  file.raw_value("a", GgufText().put(9u).bytes() + deep.bytes());
  expect_refused(file, "");
  file = {};
  GgufText nested;
  nested.put(9u).put(9u).put(std::uint64_t{1});
  for (int i = 0; i < 9; ++i) nested.put(9u).put(std::uint64_t{1});
  nested.put(kUInt8).put(std::uint64_t{1}).put(std::uint8_t{1});
  file.raw_value("a", nested.bytes());
  expect_refused(file, "nested more than 8 deep");
  file = {};
  file.value(std::string(70000, 'k'), kUInt8, std::uint8_t{1});
  expect_refused(file, "a key has 70000 bytes, but may have 65535");
  file = {};
  file.value("\xff", kUInt8, std::uint8_t{1});
  expect_refused(file, "is not valid UTF-8");
  for (const std::uint32_t alignment : {0u, 4u, 33u, 1u << 21}) {
    file = {};
    file.value("general.alignment", kUInt32, alignment);
    expect_refused(file, "must be a power of two from 8 to 1048576");
  }
  file = {};
  file.value("general.alignment", kString, std::string_view("32"));
  expect_refused(file, "is not a uint32");
  file = {};
  file.tensor_at("x", kF32, {1, 1, 1, 1, 1}, 0);
  expect_refused(file, "has 5 extents, but may have 4");
  for (const auto& extents : std::vector<std::vector<std::uint64_t>>{
           {std::uint64_t{1} << 62}, {std::uint64_t{1} << 31, std::uint64_t{1} << 31, 2}, {~std::uint64_t{0}}}) {
    file = {};
    file.tensor_at("x", kF32, extents, 0);
    expect_refused(file, "has too many elements");
  }
  file = {};
  file.tensor_at("x", kQ80, {33}, 0);
  expect_refused(file, "is Q8_0 with rows of 33 numbers, which are no multiple of 32");
  file = {};
  file.tensor_at("x", kF32, {2}, 4);
  expect_refused(file, "begins at 4, which is no multiple of 32");
  file = {};
  file.tensor_at("x", kF32, {2}, ~std::uint64_t{31});
  expect_refused(file, "truncated");
  file = {};
  file.tensor_at("x", kF32, {16}, ~std::uint64_t{31});
  expect_refused(file, "ends beyond 64 bits");
  file = {};
  file.tensor("x", kF32, {2}, floats({1, 2}));
  file.tensor_at("x", kF32, {2}, 0);
  expect_refused(file, "the tensor \"x\" occurs twice");
  file = {};
  file.tensor("x", kF32, {16}, std::string(64, '\0'));
  file.tensor_at("y", kF32, {2}, 32);
  expect_refused(file, "the tensors \"x\" and \"y\" share bytes");
  // Alignment of the file's own, and an empty tensor, are fine.
  file = {};
  file.alignment = 64;
  file.value("general.alignment", kUInt32, 64u);
  file.tensor("x", kF32, {2}, floats({3, 4}));
  file.tensor("none", kF32, {0, 5}, "");
  const std::string bytes = file.bytes();
  const Gguf gguf = Gguf::from_memory(as_bytes(bytes));
  EXPECT_EQ((gguf.read<float, 1>("x")(1)), 4.f);
  EXPECT_EQ((gguf.read<float, 2>("none").size()), 0);
}

/// A block as files of Llama's kind have it, with random weights; matrices are of type `type`.
std::string llama_file(std::uint32_t type) {
  heed_test::Random random(4);
  GgufFile file;
  const auto matrix = [&](const std::string& name, std::uint64_t rows, std::uint64_t columns) {
    std::string data;
    if (type == kF32) {
      for (std::uint64_t i = 0; i < rows * columns; ++i) data += floats({static_cast<float>(random.normal())});
    } else {
      for (std::uint64_t i = 0; i < rows * columns / 32; ++i) {
        const heed::half d(static_cast<float>(random.uniform()) * 0.1f);
        data.append(reinterpret_cast<const char*>(&d), 2);
        const heed::half m(static_cast<float>(d) * -7.5f);
        if (type == kQ41) data.append(reinterpret_cast<const char*>(&m), 2);
        for (int j = 0; j < (type == kQ80 ? 32 : 16); ++j) data += static_cast<char>(random.integer(-128, 127));
      }
    }
    file.tensor(name, type, {columns, rows}, data);
  };
  matrix("token_embd.weight", 10, 32);
  for (const char* part : {"q", "output"}) matrix("blk.0.attn_" + std::string(part) + ".weight", 32, 32);
  for (const char* part : {"k", "v"}) matrix("blk.0.attn_" + std::string(part) + ".weight", 16, 32);
  for (const char* part : {"gate", "up"}) matrix("blk.0.ffn_" + std::string(part) + ".weight", 64, 32);
  matrix("blk.0.ffn_down.weight", 32, 64);
  for (const char* norm : {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"}) {
    std::vector<float> numbers;
    for (int i = 0; i < 32; ++i) numbers.push_back(1 + 0.1f * static_cast<float>(random.normal()));
    file.tensor(norm, kF32, {32}, floats(numbers));
  }
  return file.bytes();
}

struct Llama : heed::Module<Llama> {
  heed::Embedding<float> tokens{{.vocab_size = 10, .embed_dim = 32}};
  heed::Encoder<float> layers;
  explicit Llama(heed::RotaryPairing pairing)
      : layers({.num_layers = 1,
                .layer = {.embed_dim = 32,
                          .num_heads = 4,
                          .ffn_dim = 64,
                          .norm_placement = heed::NormPlacement::Pre,
                          .activation = heed::Activation::SiLU,
                          .gated = true,
                          .bias = false,
                          .num_kv_heads = 2,
                          .rotary = {.pairing = pairing},
                          .norm = heed::NormKind::RMS},
                .final_norm = true}) {}
  static void members(auto&& f) {
    f("tokens", &Llama::tokens);
    f("", &Llama::layers);
  }
  Eigen::MatrixXf logits() const {
    const std::vector<int> ids{3, 1, 4, 1, 5, 9};
    heed::Context context;
    const Eigen::MatrixXf x = tokens(ids, context), y = layers(x, heed::Causal{}, context);
    return tokens.project(y, context);
  }
};

TEST(GgufWeights, FillAModelAsNumbersOrInTheirBlocks) {
  for (const std::uint32_t type : {kF32, kQ40, kQ41, kQ80}) {
    const std::string bytes = llama_file(type);
    const Gguf file = Gguf::from_memory(as_bytes(bytes));
    Llama numbers(heed::RotaryPairing::Interleaved), blocks(heed::RotaryPairing::Interleaved);
    heed::load_parameters(numbers, file, heed::name_maps::gguf_llama());
    heed::load_parameters(blocks, file, heed::name_maps::gguf_llama(), {.keep_blocks = true});
    EXPECT_EQ(blocks.tokens.weight.quantized() != nullptr, type != kF32);
    EXPECT_EQ(blocks.layers.layers[0].self_attn.in_proj_weight.quantized() != nullptr, type != kF32);
    const Eigen::MatrixXf expected = numbers.logits();
    EXPECT_GT(expected.norm(), 0);
    EXPECT_EQ(blocks.logits(), expected) << type;
    EXPECT_EQ(numbers.layers.layers[0].self_attn.in_proj_weight.matrix()(32 + 3, 7),
              (file.read<float, 2>("blk.0.attn_k.weight")(3, 7)));

    // Rotary pairs in the other order, with the rows in the order for it: the same scores.
    Llama half_split(heed::RotaryPairing::HalfSplit);
    heed::load_parameters(half_split, file, heed::name_maps::gguf_llama_half_split(4, 2, 8), {.keep_blocks = true});
    EXPECT_LE((half_split.logits() - expected).cwiseAbs().maxCoeff(), 1e-4f * expected.cwiseAbs().maxCoeff()) << type;
    Llama wrong(heed::RotaryPairing::HalfSplit);
    heed::load_parameters(wrong, file, heed::name_maps::gguf_llama());
    EXPECT_GT((wrong.logits() - expected).cwiseAbs().maxCoeff(), 1e-3f * expected.cwiseAbs().maxCoeff()) << type;
  }
}

TEST(GgufWeights, ThatDoNotFitAreListed) {
  GgufFile file;
  file.tensor("weight", kQ4K, {256, 1}, std::string(144, '\0'));
  file.tensor("more", kF32, {2}, floats({1, 2}));
  const std::string bytes = file.bytes();
  const Gguf gguf = Gguf::from_memory(as_bytes(bytes), "model.gguf");
  heed::Linear<float> layer(256, 1, false);
  const std::string message = message_of<heed::FormatError>([&] { heed::load_parameters(layer, gguf); });
  EXPECT_TRUE(
      heed_test::has_all(message, {"file \"model.gguf\" does not fit", "\"weight\" holds Q4_K", "\"more\" (2)"}))
      << message;
  EXPECT_THROW(layer.weight.value(), heed::ValueError) << "nothing was loaded";
}

// Formats that differ within one parameter leave no blocks to keep.
TEST(GgufWeights, JoinedTensorsOfDifferentFormatsBecomeNumbers) {
  GgufFile file;
  file.tensor("a", kF32, {32, 1}, floats(std::vector<float>(32, 2)));
  std::string block(34, '\3');
  const heed::half d(0.5f);
  std::memcpy(block.data(), &d, 2);
  file.tensor("b", kQ80, {32, 1}, block);
  const std::string bytes = file.bytes();
  const Gguf gguf = Gguf::from_memory(as_bytes(bytes));
  heed::Linear<float> layer(32, 2, false);
  heed::load_parameters(layer, gguf, {.rules = {{"weight", {"a", "b"}}}}, {.keep_blocks = true});
  EXPECT_EQ(layer.weight.matrix()(0, 5), 2.f);
  EXPECT_EQ(layer.weight.matrix()(1, 5), 1.5f);
}

}  // namespace
