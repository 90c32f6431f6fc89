// SPDX-License-Identifier: MIT
#include "sentence_search/minilm.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <Eigen/Core>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/core/parallel.hpp>
#include <heed/inspect/diagnostics.hpp>
#include <heed/inspect/recorder.hpp>
#include <heed/io/safetensors.hpp>
#include <heed/nn/parameter.hpp>

#include "model/minilm_files.hpp"
#include "sentence_search/wordpiece.hpp"

namespace sentence_search {
namespace {

using Texts = std::vector<std::vector<int>>;

class MiniLmTest : public testing::Test {
 protected:
  void SetUp() override { HEED_SKIP_WITHOUT_MINILM(); }

  static const WordPiece& tokenizer() {
    static const WordPiece tokenizer(minilm_directory() / "vocab.txt");
    return tokenizer;
  }
  static const MiniLm& model() {
    static const MiniLm model(minilm_directory());
    return model;
  }
  static std::vector<int> ids(const std::string& text) { return tokenizer().encode(text, MiniLm::kMaxLength); }
  static Embeddings embed(const Texts& texts) {
    heed::Context context;
    return model().embed(texts, context);
  }
};

struct GoldenTexts {
  std::vector<std::string> names;
  Texts ids;
  Embeddings embeddings;
};

GoldenTexts golden_texts(const WordPiece& tokenizer) {
  GoldenTexts texts;
  std::vector<std::vector<float>> embeddings;
  for (const char* group : {"cases", "cases512"}) {
    for (const auto& entry : minilm_golden().at(group)) {
      texts.names.push_back(entry.at("name").get<std::string>() + ", at most " + entry.at("max_length").dump());
      texts.ids.push_back(
          tokenizer.encode(entry.at("text").get<std::string>(), entry.at("max_length").get<std::size_t>()));
      embeddings.push_back(entry.at("embedding").get<std::vector<float>>());
    }
  }
  texts.embeddings.resize(static_cast<Eigen::Index>(embeddings.size()), MiniLm::kWidth);
  for (std::size_t i = 0; i < embeddings.size(); ++i) {
    texts.embeddings.row(static_cast<Eigen::Index>(i)) =
        Eigen::Map<const Eigen::RowVectorXf>(embeddings[i].data(), MiniLm::kWidth);
  }
  return texts;
}

// The peers differ among themselves by 1.6e-7 in single precision; GELU by tanh or another epsilon would cost 1e-4.
constexpr float kTolerance = 2e-6F;

TEST_F(MiniLmTest, EmbedsEachTextAsTheOriginalDoes) {
  const GoldenTexts golden = golden_texts(tokenizer());
  ASSERT_EQ(golden.ids.size(), 21U);
  ASSERT_EQ(golden.ids.back().size(), 512U);
  for (std::size_t i = 0; i < golden.ids.size(); ++i) {
    const Embeddings embedding = embed({golden.ids[i]});
    ASSERT_EQ(embedding.cols(), MiniLm::kWidth);
    EXPECT_LE((embedding.row(0) - golden.embeddings.row(static_cast<Eigen::Index>(i))).cwiseAbs().maxCoeff(),
              kTolerance)
        << golden.names[i];
    EXPECT_NEAR(embedding.norm(), 1, 1e-6);
  }
}

TEST_F(MiniLmTest, EmbedsTextsTogetherAsItDoesAlone) {
  const GoldenTexts golden = golden_texts(tokenizer());
  // The others are of one length, and slow under sanitizers; these take two batches.
  std::vector<std::size_t> chosen;
  Texts texts;
  std::size_t tokens = 0;
  for (std::size_t i = 0; i < golden.ids.size(); ++i) {
    if (golden.ids[i].size() == MiniLm::kMaxLength) continue;
    chosen.push_back(i);
    texts.push_back(golden.ids[i]);
    tokens += texts.back().size();
  }
  ASSERT_GT(tokens, 1024U);

  heed::Context context;
  std::size_t done = 0;
  const Embeddings together = model().embed(texts, context, [&done](std::size_t n) { done += n; });
  ASSERT_EQ(together.rows(), std::ssize(texts));
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const auto expected = golden.embeddings.row(static_cast<Eigen::Index>(chosen[i]));
    EXPECT_LE((together.row(static_cast<Eigen::Index>(i)) - expected).cwiseAbs().maxCoeff(), kTolerance)
        << golden.names[chosen[i]];
  }
  EXPECT_EQ(done, tokens);
}

TEST_F(MiniLmTest, FindsTheSameMeaningInOtherWords) {
  std::map<std::string, std::string> texts;
  for (const auto& entry : minilm_golden().at("cases")) {
    texts[entry.at("name").get<std::string>()] = entry.at("text").get<std::string>();
  }
  const auto cosine = [&texts](const std::string& a, const std::string& b) {
    const Embeddings both = embed({ids(texts.at(a)), ids(texts.at(b))});
    return both.row(0).dot(both.row(1));
  };
  for (const auto& entry : minilm_golden().at("cosine")) {
    EXPECT_NEAR(cosine(entry.at("a").get<std::string>(), entry.at("b").get<std::string>()),
                entry.at("value").get<float>(), 2e-6);
  }
  EXPECT_NEAR(cosine("plain", "plain2"), 0.552046, 2e-6);
}

// Keeps the first and last row of what it is shown, and the norm of the whole.
class Trace : public heed::Observer {
 public:
  struct State {
    std::vector<double> first_row, last_row;
    double norm = 0;
  };
  void output(std::string_view name, const heed::ObservedTensor& value) override {
    State& state = states[std::string(name)];
    state = {};
    double squares = 0;
    for (heed::Index l = 0; l < value.extent(1); ++l) {
      for (heed::Index e = 0; e < value.extent(2); ++e) squares += std::pow(value(0, l, e), 2);
    }
    state.norm = std::sqrt(squares);
    for (heed::Index e = 0; e < value.extent(2); ++e) {
      state.first_row.push_back(value(0, 0, e));
      state.last_row.push_back(value(0, value.extent(1) - 1, e));
    }
  }
  std::map<std::string, State> states;
};

TEST_F(MiniLmTest, HasTheHiddenStatesOfTheOriginal) {
  const auto& golden = minilm_golden().at("trace");
  const auto& hidden = golden.at("hidden");
  ASSERT_EQ(hidden.size(), MiniLm::kLayers + 1U);
  Trace trace;
  heed::Context context;
  context.observer = &trace;
  const std::vector<int> text = ids(golden.at("text").get<std::string>());
  model().embed({&text, 1}, context);
  for (int i = 0; i <= MiniLm::kLayers; ++i) {
    const std::string name = i == 0 ? MiniLm::embeddings_name() : MiniLm::block_name(i - 1);
    ASSERT_EQ(trace.states.count(name), 1U) << name;
    const Trace::State& state = trace.states.at(name);
    const auto& expected = hidden.at(static_cast<std::size_t>(i));
    EXPECT_NEAR(state.norm, expected.at("norm").get<double>(), 2e-5) << name;
    for (std::size_t e = 0; e < 8; ++e) {
      EXPECT_NEAR(state.first_row[e], expected.at("first_row").at(e).get<double>(), 5e-6) << name << ", element " << e;
      EXPECT_NEAR(state.last_row[e], expected.at("last_row").at(e).get<double>(), 5e-6) << name << ", element " << e;
    }
  }
}

TEST_F(MiniLmTest, GivesTheSameBitsWithAnyNumberOfThreads) {
  Texts texts = {ids("A man is eating a piece of bread."), {101, 102}, std::vector<int>(70, 2773)};
  for (int word = 2000; word < 2020; ++word) texts.push_back({101, word, word + 1, word + 2, 102});
  const Embeddings serial = embed(texts);
  for (const int count : {2, 3, 7}) {
    heed::ThreadPool threads(count);
    heed::Context context(threads);
    EXPECT_EQ(model().embed(texts, context), serial) << count << " threads";
  }
}

TEST_F(MiniLmTest, ShowsTheWeightsOfAHead) {
  const std::vector<int> text = ids("She walked to the bank of the river.");
  heed::Recorder recorder({.weights = {MiniLm::attention_name(2)}});
  heed::Context context;
  context.observer = &recorder;
  const Embeddings observed = model().embed({&text, 1}, context);
  const auto& weights = recorder.of(MiniLm::attention_name(2)).weights;
  const auto length = static_cast<heed::Index>(text.size());
  EXPECT_EQ(weights.extents(), (heed::Extents<4>{1, MiniLm::kHeads, length, length}));
  for (heed::Index h = 0; h < MiniLm::kHeads; ++h) {
    for (heed::Index q = 0; q < length; ++q) {
      double sum = 0;
      for (heed::Index k = 0; k < length; ++k) sum += weights(0, h, q, k);
      EXPECT_NEAR(sum, 1, 1e-5);
    }
  }
  EXPECT_LE((observed - embed({text})).cwiseAbs().maxCoeff(), kTolerance);
}

// The projections of the attention layers, which MiniLm gives up once it has packed them.
struct Projections {
  explicit Projections(const std::filesystem::path& directory) {
    const auto file = heed::SafeTensors::open((directory / "model.safetensors").string());
    for (int layer = 0; layer < MiniLm::kLayers; ++layer) {
      for (const std::string part : {"query", "key", "value"}) {
        const auto weight =
            file.read<float, 2>("encoder.layer." + std::to_string(layer) + ".attention.self." + part + ".weight");
        heed::Parameter<float> parameter(weight.extent(0), weight.extent(1));
        std::copy_n(weight.data(), weight.size(), parameter.mutable_value().data());
        parameters.emplace_back(MiniLm::attention_name(layer) + "." + part[0] + "_proj_weight", std::move(parameter));
      }
    }
  }
  template <class F>
  void visit(std::string_view, F&& f) const {
    for (const auto& [name, parameter] : parameters) f(std::string_view(name), parameter);
  }
  std::vector<std::pair<std::string, heed::Parameter<float>>> parameters;
};

TEST_F(MiniLmTest, DiagnosticsAreSilent) {
  heed::Recorder recorder;
  heed::Context context;
  context.observer = &recorder;
  for (const auto& entry : minilm_golden().at("cases")) {
    const std::vector<int> text = ids(entry.at("text").get<std::string>());
    model().embed({&text, 1}, context);
    const heed::Diagnosis diagnosis = heed::diagnose(recorder);
    EXPECT_TRUE(diagnosis.findings.empty()) << entry.at("name") << '\n' << diagnosis.text();
    EXPECT_EQ(diagnosis.heads.size(), static_cast<std::size_t>(MiniLm::kLayers * MiniLm::kHeads));
  }
  const Projections projections(minilm_directory());
  const heed::Diagnosis diagnosis = heed::diagnose(heed::Recorder(), projections);
  EXPECT_TRUE(diagnosis.findings.empty()) << diagnosis.text();
  ASSERT_EQ(diagnosis.projections.size(), static_cast<std::size_t>(MiniLm::kLayers));
  for (const heed::ProjectionCosines& one : diagnosis.projections) {
    EXPECT_LT(std::abs(one.query_key), 0.5) << one.layer;
    EXPECT_LT(std::abs(one.query_value), 0.5) << one.layer;
    EXPECT_LT(std::abs(one.key_value), 0.5) << one.layer;
  }
}

TEST_F(MiniLmTest, RefusesIdsThatItHasNoPlaceFor) {
  EXPECT_EQ(embed({}).rows(), 0);
  EXPECT_THROW(embed({{101, 102}, {}}), heed::ValueError);
  EXPECT_THROW(embed({std::vector<int>(513, 101)}), heed::ValueError);
  EXPECT_THROW(embed({{101, 30522, 102}}), heed::ValueError);
  EXPECT_THROW(embed({{101, -1, 102}}), heed::ValueError);
}

TEST_F(MiniLmTest, SaysWhatIsWrongWithAFile) {
  const auto directory = std::filesystem::path(testing::TempDir()) / "heed_minilm_test";
  std::filesystem::create_directories(directory);
  EXPECT_THROW(MiniLm{directory}, heed::FormatError);  // no file
  const auto file = directory / "model.safetensors";
  std::string start(1'000'000, '\0');
  std::ifstream(minilm_directory() / "model.safetensors", std::ios::binary).read(start.data(), std::ssize(start));
  std::ofstream(file, std::ios::binary) << start;
  EXPECT_THROW(MiniLm{directory}, heed::FormatError);  // cut short
  std::ofstream(file, std::ios::binary | std::ios::trunc) << std::string("\2\0\0\0\0\0\0\0{}", 10);
  try {
    const MiniLm model(directory);
    ADD_FAILURE() << "a file without tensors was accepted";
  } catch (const heed::FormatError& error) {
    EXPECT_NE(std::string(error.what()).find("embeddings.word_embeddings.weight"), std::string::npos) << error.what();
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace sentence_search
