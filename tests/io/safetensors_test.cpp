// SPDX-License-Identifier: MIT
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/Core>
#include <gtest/gtest.h>

#include <heed/io/safetensors.hpp>

#include "common/message_of.hpp"
#include "common/random_inputs.hpp"
#include "common/safetensors_bytes.hpp"
#include "common/temporary_directory.hpp"

namespace {

using heed::bfloat16;
using heed::Dtype;
using heed::half;
using heed::Index;
using heed::SafeTensors;
using heed::Tensor;
using heed_test::as_bytes;
using heed_test::has_all;
using heed_test::message_of;
using heed_test::safetensors_bytes;

using namespace std::string_literals;

/// The bytes of numbers in a file.
template <class T>
std::string data_of(const std::vector<T>& values) {
  std::string data(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(data.data(), values.data(), data.size());
  return data;
}
/// A file of one tensor "x" of rank 1.
template <class T>
std::string file_of(const std::vector<T>& values, Dtype dtype) {
  const std::string data = data_of(values), n = std::to_string(values.size()), end = std::to_string(data.size());
  return safetensors_bytes(R"({"x":{"dtype":")" + std::string(to_string(dtype)) + R"(","shape":[)" + n +
                               R"(],"data_offsets":[0,)" + end + "]}}",
                           data);
}

// ---- Reading -------------------------------------------------------------------------------------------------------

class OfficialFile : public testing::Test {
 protected:
  const SafeTensors file_ = SafeTensors::open(HEED_TEST_DATA_DIR "/io/data/official.safetensors");
};

TEST_F(OfficialFile, DescribesItsTensors) {
  EXPECT_EQ(file_.names().size(), 9u);
  EXPECT_EQ(file_.metadata(), (heed::Metadata{{"made by", "safetensors"}, {"\xCF\x80", "\\/\t"}}));
  EXPECT_TRUE(file_.contains("matrix"));
  EXPECT_FALSE(file_.contains("Matrix"));
  EXPECT_FALSE(file_.contains("__metadata__"));
  EXPECT_EQ(file_.dtype("half"), Dtype::F16);
  EXPECT_EQ(file_.shape("matrix"), (std::vector<Index>{2, 3}));
  EXPECT_EQ(file_.shape("scalar"), std::vector<Index>{});
  EXPECT_EQ(file_.bytes("double").size(), 32u);
}

TEST_F(OfficialFile, NamesAreInTheOrderOfTheData) {
  std::uint64_t end = 0;
  for (const std::string& name : file_.names()) {
    EXPECT_EQ(file_.info(name).begin, end);
    end = file_.info(name).end;
  }
}

TEST_F(OfficialFile, GivesTheNumbersThatWereSaved) {
  const Tensor<float, 2> matrix = file_.read<float, 2>("matrix");
  EXPECT_EQ(matrix.extents(), (heed::Extents<2>{2, 3}));
  for (int i = 0; i < 6; ++i) EXPECT_EQ(matrix.data()[i], static_cast<float>(i) / 4);

  const Tensor<double, 1> numbers = file_.read<double, 1>("double");
  EXPECT_EQ(numbers(0), 0.1);
  EXPECT_EQ(numbers(1), -2.5e300);
  EXPECT_EQ(numbers(2), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(numbers(3)));

  EXPECT_EQ((file_.read<half, 2>("half")(1, 0)), half(-65504.0f));
  EXPECT_EQ((file_.read<float, 2>("half")(0, 0)), 1.5f);
  EXPECT_EQ((file_.read<float, 1>("scalar")(0)), 42);
  EXPECT_EQ((file_.read<double, 2>("empty").extents()), (heed::Extents<2>{0, 7}));

  const Tensor<int, 2> ids = file_.read_integers<int, 2>("position_ids");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(ids(0, i), i - 2);
  const Tensor<bool, 1> keep = file_.read_integers<bool, 1>("keep");
  EXPECT_TRUE(keep(0) && !keep(1) && keep(2));
  EXPECT_EQ((file_.read_integers<int, 1>("bytes")(1)), 255);
  EXPECT_EQ((file_.read_integers<std::int64_t, 1>("Schl\xC3\xBCssel \"1\"\n\xF0\x9F\x94\x91")(0)), 7);
}

TEST_F(OfficialFile, IsTheSameFromMemory) {
  const std::string bytes = heed_test::read_text(HEED_TEST_DATA_DIR "/io/data/official.safetensors");
  const SafeTensors copy = SafeTensors::from_memory(as_bytes(bytes), "copy");
  EXPECT_EQ(copy.names(), file_.names());
  EXPECT_EQ(copy.file(), "\"copy\"");
  for (const std::string& name : file_.names()) {
    const auto a = file_.bytes(name), b = copy.bytes(name);
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << name;
  }
}

TEST_F(OfficialFile, SaysWhichTensorDoesNotExist) {
  const auto expect_refusal = [&](auto&& read) {
    EXPECT_TRUE(has_all(message_of<heed::FormatError>(read), {"official.safetensors\"", "has no tensor \"matrx\"",
                                                              "it has \"position_ids\"", "and 6 more"}));
  };
  expect_refusal([&] { file_.info("matrx"); });
  expect_refusal([&] { file_.dtype("matrx"); });
  expect_refusal([&] { file_.shape("matrx"); });
  expect_refusal([&] { file_.bytes("matrx"); });
  expect_refusal([&] { file_.read<float, 2>("matrx"); });
  expect_refusal([&] { file_.view<float, 2>("matrx"); });
  expect_refusal([&] { file_.read_integers<int, 2>("matrx"); });
}

TEST_F(OfficialFile, SaysWhichRankTypeAndSizeItHas) {
  EXPECT_TRUE(has_all(message_of<heed::FormatError>([&] { file_.read<float, 3>("matrix"); }),
                      {"tensor \"matrix\"", "shape (2, 3)", "not rank 3", "rank 2"}));
  EXPECT_TRUE(has_all(message_of<heed::FormatError>([&] { file_.view<float, 1>("matrix"); }), {"not rank 1"}));
  EXPECT_TRUE(has_all(message_of<heed::FormatError>([&] { file_.read<float, 2>("position_ids"); }),
                      {"tensor \"position_ids\"", "holds I64", "read_integers"}));
  EXPECT_TRUE(has_all(message_of<heed::FormatError>([&] { file_.read_integers<int, 2>("matrix"); }),
                      {"tensor \"matrix\"", "holds F32", "read it with read"}));
  std::vector<float> five(5);
  EXPECT_TRUE(has_all(message_of<heed::FormatError>([&] { file_.read_into("matrix", std::span(five)); }),
                      {"tensor \"matrix\"", "(2, 3)", "5 elements"}));
}

TEST(SafeTensors, MovesAndCannotBeCopied) {
  static_assert(!std::is_copy_constructible_v<SafeTensors> && std::is_nothrow_move_constructible_v<SafeTensors>);
  SafeTensors a = SafeTensors::open(HEED_TEST_DATA_DIR "/io/data/official.safetensors");
  SafeTensors b = std::move(a);
  EXPECT_EQ((b.read<float, 2>("matrix")(1, 2)), 1.25f);
  b = SafeTensors::open(HEED_TEST_DATA_DIR "/golden/torch/sdpa.safetensors");
  EXPECT_TRUE(b.contains("in.q"));
}

TEST(SafeTensors, OpenSaysWhyItCannot) {
  EXPECT_TRUE(has_all(message_of<heed::FormatError>([] { SafeTensors::open("/no/such/file.safetensors"); }),
                      {"\"/no/such/file.safetensors\"", "cannot be opened", "No such file"}));
  const heed_test::TemporaryDirectory directory;
  heed_test::write_text(directory.path("empty.safetensors"), "");
  EXPECT_TRUE(has_all(message_of<heed::FormatError>([&] { SafeTensors::open(directory.path("empty.safetensors")); }),
                      {"empty.safetensors\" has 0 bytes", "cut short"}));
}

/// Every stored type read as every floating-point type, in lengths around those of blocks and vectors, aligned or not.
template <class S, class T>
void expect_conversion() {
  for (const std::size_t n : {0u, 1u, 7u, 16u, 511u, 512u, 513u, 1100u}) {
    for (const std::size_t shift : {0u, 1u}) {
      std::vector<S> values(n);
      for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<S>(static_cast<float>(i) * 0.37f - 100.0f);
      const std::string bytes = std::string(shift, ' ') + file_of(values, heed::detail::dtype_of<S>());
      const SafeTensors file = SafeTensors::from_memory(as_bytes(bytes).subspan(shift));
      const Tensor<T, 1> read = file.read<T, 1>("x");
      ASSERT_EQ(read.size(), static_cast<Index>(n));
      for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(read.data()[i], static_cast<T>(values[i])) << i << " of " << n;
    }
  }
}
template <class S>
void expect_conversion_to_all() {
  expect_conversion<S, double>();
  expect_conversion<S, float>();
  expect_conversion<S, half>();
  expect_conversion<S, bfloat16>();
}

TEST(SafeTensorsRead, ConvertsEachFloatingPointTypeToEach) {
  expect_conversion_to_all<double>();
  expect_conversion_to_all<float>();
  expect_conversion_to_all<half>();
  expect_conversion_to_all<bfloat16>();
}

TEST(SafeTensorsRead, KeepsInfinityAndNaN) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::string bytes = file_of<float>({infinity, -infinity, std::nanf("")}, Dtype::F32);
  const SafeTensors file = SafeTensors::from_memory(as_bytes(bytes));
  const Tensor<half, 1> x = file.read<half, 1>("x");
  EXPECT_EQ(static_cast<float>(x(0)), infinity);
  EXPECT_EQ(static_cast<float>(x(1)), -infinity);
  EXPECT_TRUE(std::isnan(static_cast<float>(x(2))));
}

template <class T, class S>
void expect_too_large(const std::vector<S>& values, const char* shown, const char* type) {
  const std::string bytes = file_of(values, heed::detail::dtype_of<S>());
  const SafeTensors file = SafeTensors::from_memory(as_bytes(bytes));
  std::vector<T> to(values.size(), T(7));
  EXPECT_TRUE(has_all(message_of<heed::FormatError>([&] { file.read_into("x", std::span(to)); }),
                      {"tensor \"x\"", shown, type, "wider"}));
  for (const T& x : to) EXPECT_EQ(x, T(7)) << "something was written though it threw";
}

TEST(SafeTensorsRead, RefusesFiniteNumbersThatWouldBecomeInfinite) {
  expect_too_large<float>(std::vector<double>{1, 1e300}, "1e+300", "F32");
  expect_too_large<half>(std::vector<float>{1, -65520}, "-65520", "F16");
  expect_too_large<half>(std::vector<bfloat16>{bfloat16(1e30f)}, "1.00026e+30", "F16");
  expect_too_large<bfloat16>(std::vector<float>{std::numeric_limits<float>::max()}, "3.40282e+38", "BF16");
  const std::string largest = file_of<float>({65519}, Dtype::F32);
  EXPECT_EQ((SafeTensors::from_memory(as_bytes(largest)).read<half, 1>("x")(0)), half(65504.0f));
}

template <class S>
void expect_integers(Dtype dtype) {
  const std::vector<S> values{std::numeric_limits<S>::min(), S(0), S(1), S(100), std::numeric_limits<S>::max()};
  const std::string bytes = " " + file_of(values, dtype);
  const SafeTensors file = SafeTensors::from_memory(as_bytes(bytes).subspan(1));
  const Tensor<S, 1> read = file.read_integers<S, 1>("x");
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(read.data()[i], values[i]);
}

TEST(SafeTensorsReadIntegers, ReadsEveryType) {
  expect_integers<std::int64_t>(Dtype::I64);
  expect_integers<std::int32_t>(Dtype::I32);
  expect_integers<std::int16_t>(Dtype::I16);
  expect_integers<std::int8_t>(Dtype::I8);
  expect_integers<std::uint64_t>(Dtype::U64);
  expect_integers<std::uint32_t>(Dtype::U32);
  expect_integers<std::uint16_t>(Dtype::U16);
  expect_integers<std::uint8_t>(Dtype::U8);
}

/// A value read as I must be equal if it is in range, and refused otherwise.
template <class I, class S>
void expect_value(S value, bool fits) {
  const std::string bytes = file_of<S>({S(0), value}, heed::detail::dtype_of<S>());
  const SafeTensors file = SafeTensors::from_memory(as_bytes(bytes));
  if (fits) {
    EXPECT_EQ((file.read_integers<I, 1>("x")(1)), static_cast<I>(value)) << +value;
  } else {
    EXPECT_TRUE(has_all(message_of<heed::FormatError>([&] { file.read_integers<I, 1>("x"); }),
                        {"holds " + std::to_string(value) + " at element 1", "wider"}));
  }
}

TEST(SafeTensorsReadIntegers, RefusesValuesThatDoNotFit) {
  expect_value<std::int32_t>(std::int64_t{2147483647}, true);
  expect_value<std::int32_t>(std::int64_t{2147483648}, false);
  expect_value<std::int32_t>(std::int64_t{-2147483648}, true);
  expect_value<std::int32_t>(std::int64_t{-2147483649}, false);
  expect_value<std::uint8_t>(std::int64_t{-1}, false);
  expect_value<std::uint64_t>(std::int8_t{-1}, false);
  expect_value<std::uint64_t>(std::numeric_limits<std::int64_t>::max(), true);
  expect_value<std::int64_t>(std::numeric_limits<std::uint64_t>::max(), false);
  expect_value<std::int64_t>(std::uint64_t{1} << 63, false);
  expect_value<std::int8_t>(std::uint8_t{127}, true);
  expect_value<std::int8_t>(std::uint8_t{128}, false);
  expect_value<bool>(std::int32_t{1}, true);
  expect_value<bool>(std::int32_t{2}, false);
  expect_value<bool>(std::int32_t{-1}, false);
}

TEST(SafeTensorsReadIntegers, ATruthValueIsZeroOrOne) {
  const std::string good = file_of<std::uint8_t>({0, 1}, Dtype::Bool), bad = file_of<std::uint8_t>({0, 2}, Dtype::Bool);
  EXPECT_TRUE((SafeTensors::from_memory(as_bytes(good)).read_integers<bool, 1>("x")(1)));
  EXPECT_EQ((SafeTensors::from_memory(as_bytes(good)).read_integers<int, 1>("x")(1)), 1);
  EXPECT_TRUE(has_all(
      message_of<heed::FormatError>([&] { SafeTensors::from_memory(as_bytes(bad)).read_integers<int, 1>("x"); }),
      {"tensor \"x\"", "BOOL", "element 1 is 2"}));
}

TEST(SafeTensorsView, ShowsTheMemoryOfTheFileWhereTypeAndAlignmentAllow) {
  alignas(64) char memory[256] = {};
  std::string header = R"({"x":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})";
  header.resize(64, ' ');
  const std::string bytes = safetensors_bytes(header, data_of<float>({1.5f, -2}));
  for (const std::size_t shift : {0u, 1u, 2u, 4u}) {
    std::memcpy(memory + shift, bytes.data(), bytes.size());
    const SafeTensors file = SafeTensors::from_memory(as_bytes({memory + shift, bytes.size()}));
    const auto view = file.view<float, 2>("x");
    ASSERT_EQ(view.has_value(), shift % 4 == 0) << shift;
    if (view) {
      EXPECT_EQ(view->extents(), (heed::Extents<2>{2, 1}));
      EXPECT_EQ((*view)(1, 0), -2);
      EXPECT_EQ(static_cast<const void*>(view->data()), file.bytes("x").data());
    }
    EXPECT_EQ((file.read<float, 2>("x")(0, 0)), 1.5f) << "reading works at any alignment";
    EXPECT_FALSE((file.view<double, 2>("x").has_value()));
    EXPECT_FALSE((file.view<half, 2>("x").has_value()));
    EXPECT_FALSE((file.view<std::int32_t, 2>("x").has_value()));
  }
}

template <class T, class M>
void expect_holds(const Tensor<T, 2>& tensor, const M& matrix) {
  EXPECT_EQ(tensor.matrix(), matrix);
}

TEST(SafeTensorsRead, AnExtentBeyondIntIsRefusedBeforeAnythingIsAllocated) {
  const std::string bytes = safetensors_bytes(R"({"x":{"dtype":"F32","shape":[0,4294967296],"data_offsets":[0,0]}})");
  const SafeTensors file = SafeTensors::from_memory(as_bytes(bytes));
  EXPECT_TRUE(has_all(message_of<heed::FormatError>([&] { file.read<float, 2>("x"); }),
                      {"tensor \"x\"", "(0, 4294967296)", "2147483647"}));
}

// ---- Writing -------------------------------------------------------------------------------------------------------

class SaveSafeTensors : public testing::Test {
 protected:
  SafeTensors save_and_open(const std::vector<heed::NamedTensor>& tensors, const heed::Metadata& metadata = {}) {
    heed::save_safetensors(path_, tensors, metadata);
    return SafeTensors::open(path_);
  }
  const heed_test::TemporaryDirectory directory_;
  const std::string path_ = directory_.path("saved.safetensors");
};

template <class T>
Tensor<T, 3> counting(Index a, Index b, Index c) {
  Tensor<T, 3> t(a, b, c);
  for (Index i = 0; i < t.size(); ++i) t.data()[i] = static_cast<T>(static_cast<float>(i % 100));
  return t;
}

TEST_F(SaveSafeTensors, EveryTypeComesBack) {
  const auto doubles = counting<double>(2, 3, 4);
  const auto floats = counting<float>(1, 1, 5);
  const auto halves = counting<half>(3, 1, 1);
  const auto bfloats = counting<bfloat16>(1, 7, 1);
  const auto longs = counting<std::int64_t>(1, 1, 3);
  const auto shorts = counting<std::uint16_t>(1, 1, 3);
  Tensor<bool, 1> flags(3);
  flags(1) = true;
  const SafeTensors file = save_and_open({{"flags", flags},
                                          {"halves", halves},
                                          {"doubles", doubles},
                                          {"bfloats", bfloats},
                                          {"floats", floats},
                                          {"shorts", shorts},
                                          {"longs", longs}},
                                         {{"by", "test"}, {"\n", "\""}});
  EXPECT_EQ(file.metadata(), (heed::Metadata{{"by", "test"}, {"\n", "\""}}));
  const auto expect_same = [&]<class T>(const std::string& name, const Tensor<T, 3>& saved) {
    const auto view = file.view<T, 3>(name);
    ASSERT_TRUE(view) << name << " is not aligned";
    ASSERT_EQ(view->extents(), saved.extents());
    for (Index i = 0; i < saved.size(); ++i) EXPECT_EQ(view->data()[i], saved.data()[i]) << name;
  };
  expect_same("doubles", doubles);
  expect_same("floats", floats);
  expect_same("halves", halves);
  expect_same("bfloats", bfloats);
  expect_same("longs", longs);
  expect_same("shorts", shorts);
  EXPECT_TRUE((file.read_integers<bool, 1>("flags")(1)));
  EXPECT_FALSE((file.read_integers<bool, 1>("flags")(2)));
}

TEST_F(SaveSafeTensors, WideTypesComeFirstAndEqualOnesInTheirOrder) {
  const Tensor<bool, 1> b(1);
  const Tensor<float, 1> f(1);
  const Tensor<half, 1> h(1);
  const Tensor<double, 1> d(1);
  const SafeTensors file = save_and_open({{"z", f}, {"b", b}, {"h", h}, {"a", f}, {"d", d}, {"k", f}});
  EXPECT_EQ(file.names(), (std::vector<std::string>{"d", "z", "a", "k", "h", "b"}));
}

TEST_F(SaveSafeTensors, ViewsOfAnyStridesAreWrittenInRowMajorOrder) {
  const auto t = counting<float>(3, 4, 5);
  const heed::TensorView<const float, 3> v = t.view();
  const float numbers[4] = {1, 2, 3, 4};
  const std::vector<std::pair<std::string, heed::TensorView<const float, 3>>> views{
      {"whole", v},
      {"transposed", v.transpose(0, 2)},
      {"swapped", v.transpose(1, 2)},
      {"sliced", v.slice(1, 1, 2)},
      {"columns", v.slice(2, 1, 3)},
      {"broadcast", {numbers, {2, 3, 4}, {0, 0, 1}}},
      {"reversed", {numbers + 3, {1, 1, 4}, {0, 0, -1}}},
      {"empty", v.slice(1, 2, 0)},
      {"no columns", v.slice(2, 0, 0)},
      {"one", v.slice(0, 1, 1).slice(1, 2, 1).slice(2, 3, 1)}};
  std::vector<heed::NamedTensor> tensors;
  for (const auto& [name, view] : views) tensors.emplace_back(name, view);
  const SafeTensors file = save_and_open(tensors);
  for (const auto& [name, view] : views) {
    const Tensor<float, 3> read = file.read<float, 3>(name);
    ASSERT_EQ(read.extents(), view.extents()) << name;
    for (Index i = 0; i < view.extent(0); ++i) {
      for (Index j = 0; j < view.extent(1); ++j) {
        for (Index k = 0; k < view.extent(2); ++k) ASSERT_EQ(read(i, j, k), view(i, j, k)) << name;
      }
    }
  }
}

TEST_F(SaveSafeTensors, EigenMatricesAreWrittenAsTheyReadNotAsTheyAreStored) {
  const Eigen::MatrixXf columns = Eigen::MatrixXf::Random(3, 4);
  const Eigen::Matrix<double, 2, 3, Eigen::RowMajor> rows = Eigen::Matrix<double, 2, 3, Eigen::RowMajor>::Random();
  const Eigen::VectorXd vector = Eigen::VectorXd::Random(5);
  const Eigen::RowVectorXf row = Eigen::RowVectorXf::Random(2);
  const SafeTensors file = save_and_open({{"columns", columns},
                                          {"block", columns.block(1, 1, 2, 2)},
                                          {"transposed", columns.transpose()},
                                          {"rows", rows},
                                          {"vector", vector},
                                          {"a column", rows.col(1)},
                                          {"row", row}});
  const auto read_columns = file.read<float, 2>("columns"), block = file.read<float, 2>("block");
  const auto transposed = file.read<float, 2>("transposed");
  const auto read_rows = file.read<double, 2>("rows");
  EXPECT_EQ(read_columns.matrix(), columns);
  EXPECT_EQ(block.matrix(), columns.block(1, 1, 2, 2));
  EXPECT_EQ(transposed.matrix(), columns.transpose());
  EXPECT_EQ(read_rows.matrix(), rows);
  EXPECT_EQ(file.shape("vector"), std::vector<Index>{5});
  EXPECT_EQ((file.read<double, 1>("vector")(4)), vector(4));
  EXPECT_EQ(file.shape("a column"), std::vector<Index>{2});
  EXPECT_EQ((file.read<double, 1>("a column")(1)), rows(1, 1));
  EXPECT_EQ(file.shape("row"), std::vector<Index>{2});
}

TEST_F(SaveSafeTensors, NothingAtAllIsAFileToo) {
  const SafeTensors file = save_and_open({});
  EXPECT_TRUE(file.names().empty());
  EXPECT_TRUE(file.metadata().empty());
}

TEST_F(SaveSafeTensors, TheHeaderIsPaddedToEightBytes) {
  const Tensor<double, 1> x(1);
  for (int length = 0; length < 9; ++length) {
    const std::string name(static_cast<std::size_t>(length), 'n');
    const SafeTensors file = save_and_open({{name, x}});
    EXPECT_EQ((std::filesystem::file_size(path_) - 8) % 8, 0u);
    EXPECT_TRUE((file.view<double, 1>(name).has_value()));
  }
}

TEST_F(SaveSafeTensors, AFileThatIsOpenKeepsItsNumbersWhenItIsSavedOver) {
  Tensor<float, 1> x(1);
  x(0) = 1;
  const SafeTensors before = save_and_open({{"x", x}});
  x(0) = 2;
  const SafeTensors after = save_and_open({{"x", x}});
  EXPECT_EQ((before.read<float, 1>("x")(0)), 1);
  EXPECT_EQ((after.read<float, 1>("x")(0)), 2);
  EXPECT_EQ(directory_.count(), 1);
}

TEST_F(SaveSafeTensors, RefusesNamesThatAFileCannotHave) {
  const Tensor<float, 1> x(1);
  const auto refusal = [&](const std::vector<heed::NamedTensor>& tensors, const heed::Metadata& metadata = {}) {
    return message_of<heed::ValueError>([&] { heed::save_safetensors(path_, tensors, metadata); });
  };
  EXPECT_TRUE(has_all(refusal({{"a", x}, {"a", x}}), {"heed::save_safetensors", "\"a\"", "two tensors"}));
  EXPECT_TRUE(has_all(refusal({{"__metadata__", x}}), {"\"__metadata__\"", "choose another"}));
  EXPECT_TRUE(has_all(refusal({{"\xFF", x}}), {"UTF-8"}));
  EXPECT_TRUE(has_all(refusal({{"a", x}}, {{"\xFF", "x"}}), {"metadata", "UTF-8"}));
  EXPECT_TRUE(has_all(refusal({{"a", x}}, {{"key", "\xFF"}}), {"metadata", "\"key\"", "UTF-8"}));
  EXPECT_TRUE(has_all(refusal({{"a", x}}, {{"key", std::string(100'000'000, 'x')}}), {"header", "100000000"}));
  const float one = 1;
  constexpr Index most = std::numeric_limits<int>::max();
  EXPECT_TRUE(has_all(refusal({{"a", heed::TensorView<const float, 3>(&one, {most, most, most}, {0, 0, 0})}}),
                      {"\"a\"", "(2147483647, 2147483647, 2147483647)", "63 bits"}));
  EXPECT_EQ(directory_.count(), 0) << "a refused file was begun";
}

TEST_F(SaveSafeTensors, SaysWhyAFileCannotBeWritten) {
  const Tensor<float, 1> x(1);
  const std::string path = directory_.path("no/such/directory/x.safetensors");
  EXPECT_TRUE(has_all(message_of<heed::FormatError>([&] { heed::save_safetensors(path, {{"x", x}}); }),
                      {"heed::save_safetensors", path, "cannot be created", "No such file or directory"}));
}

TEST_F(SaveSafeTensors, RandomFilesComeBackToTheLastBit) {
  constexpr std::uint64_t seed = 77;
  for (int round = 0; round < heed_test::effort(100); ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", round " << round);
    heed_test::Random random(seed, round);
    std::vector<Tensor<float, 3>> saved;
    for (int n = random.integer(0, 4); n > 0; --n) {
      Tensor<float, 3>& t = saved.emplace_back(random.integer(0, 3), random.integer(0, 39), random.integer(0, 8));
      for (Index i = 0; i < t.size(); ++i) {
        const auto bits = static_cast<std::uint32_t>(random.bits());
        std::memcpy(&t.data()[i], &bits, sizeof bits);
      }
    }
    std::vector<heed::NamedTensor> named;
    for (std::size_t i = 0; i < saved.size(); ++i)
      named.emplace_back(std::to_string(i), saved[i].view().transpose(0, 2));
    const SafeTensors file = save_and_open(named);
    for (std::size_t i = 0; i < saved.size(); ++i) {
      const Tensor<float, 3> read = file.read<float, 3>(std::to_string(i));
      for (Index a = 0; a < read.extent(0); ++a) {
        for (Index b = 0; b < read.extent(1); ++b) {
          for (Index c = 0; c < read.extent(2); ++c) {
            ASSERT_EQ(std::memcmp(&read(a, b, c), &saved[i](c, b, a), sizeof(float)), 0);
          }
        }
      }
    }
  }
}

TEST(Dtype, NamesAndSizes) {
  EXPECT_EQ(to_string(Dtype::BF16), "BF16");
  EXPECT_EQ(to_string(Dtype::Bool), "BOOL");
  EXPECT_EQ(size_of(Dtype::F64), 8u);
  EXPECT_EQ(size_of(Dtype::U16), 2u);
  EXPECT_TRUE(is_float(Dtype::F16) && is_float(Dtype::BF16) && !is_float(Dtype::I64) && !is_float(Dtype::Bool));
  using heed::detail::dtype_of;
  static_assert(dtype_of<long>() == Dtype::I64 && dtype_of<long long>() == Dtype::I64 &&
                dtype_of<unsigned char>() == Dtype::U8 && dtype_of<std::int16_t>() == Dtype::I16);
}

}  // namespace
