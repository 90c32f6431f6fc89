// SPDX-License-Identifier: MIT
// Runs cases.json: README.md beside it tells what the fields mean and which fault each case stands for.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <heed/attention/attention.hpp>
#include <heed/compiled/attention.hpp>
#include <heed/io/safetensors.hpp>
#include <heed/mask/bool_mask.hpp>
#include <heed/nn/norm.hpp>
#include <heed/nn/positional.hpp>
#include <heed/nn/rotary.hpp>

#include "common/any_mask.hpp"
#include "common/error_budget.hpp"
#include "common/views.hpp"

namespace heed_test {
namespace {

using Json = nlohmann::json;

const Json& all_cases() {
  static const Json file = Json::parse(std::ifstream(HEED_TEST_DATA_DIR "/cases/cases.json"));
  return file.at("cases");
}

double number(const Json& j) {
  if (!j.is_string()) return j.get<double>();
  if (j == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (j == "inf") return std::numeric_limits<double>::infinity();
  if (j == "-inf") return -std::numeric_limits<double>::infinity();
  throw std::runtime_error("no number: " + j.dump());
}

/// {"shape", "data"} as a tensor; missing leading dimensions are 1.
template <class T, int Rank>
heed::Tensor<T, Rank> tensor(const Json& array) {
  const auto shape = array.at("shape").get<std::vector<Index>>();
  heed::Extents<Rank> extents;
  extents.fill(1);
  std::copy(shape.begin(), shape.end(), extents.end() - static_cast<std::ptrdiff_t>(shape.size()));
  heed::Tensor<T, Rank> x(extents);
  const Json& data = array.at("data");
  if (static_cast<Index>(data.size()) != x.size()) throw std::runtime_error("data does not fill its shape");
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<T>(number(data[static_cast<std::size_t>(i)]));
  return x;
}

template <class T, int Rank>
void expect_near(const heed::TensorView<const T, Rank>& computed, const Json& expected, double tolerance,
                 const char* what) {
  const auto wanted = tensor<double, Rank>(expected);
  EXPECT_EQ(computed.extents(), wanted.extents()) << what;
  const auto d = deviation<T, double, Rank>(computed, wanted.view());
  EXPECT_LE(d.error, tolerance + 4 * epsilon<T>() * d.magnitude) << what;
}

/// A check in one element type.
template <class T>
class Check {
 public:
  explicit Check(const Json& check)
      : in_(check.at("inputs")),
        options_(check.value("options", Json::object())),
        expected_(check.at("expected")),
        tolerance_(check.value("tol", 0.0)) {}

  void sdpa() {
    load();
    for (const heed::Path path : {heed::Path::Reference, heed::Path::Blocked}) run(path);
  }

  void sdpa_backward() {
    load();
    const auto dout = tensor<T, 4>(in_.at("dout"));
    for (const heed::Path path : {heed::Path::Reference, heed::Path::Blocked}) {
      run(path);
      const auto expect = [&](const auto& mask, const auto& modifier) {
        const auto [dq, dk, dv] =
            heed::attention_backward(dout, q_, k_, v_, mask, modifier, attention_options_, context_);
        expect_near<T, 4>(dq.view(), expected_.at("dq"), tolerance_, "dq");
        expect_near<T, 4>(dk.view(), expected_.at("dk"), tolerance_, "dk");
        expect_near<T, 4>(dv.view(), expected_.at("dv"), tolerance_, "dv");
      };
      with_masks([&](const auto& mask) {
        if (!in_.contains("bias")) return with_modifier([&](const auto& modifier) { expect(mask, modifier); });
        heed::Tensor<T, 4> dbias(bias_.extents());
        expect(mask, heed::Bias(bias_).with_gradient(dbias.view()));
        expect_near<T, 4>(std::as_const(dbias).view(), expected_.at("dbias"), tolerance_, "dbias");
      });
    }
  }

  void sdpa_paths() {
    load();
    const std::map<std::string, std::function<void()>> ways = {
        {"plain", [&] { run(heed::Path::Automatic); }},
        {"return_weights", [&] { run(heed::Path::Automatic); }},
        {"reference", [&] { run(heed::Path::Reference); }},
        {"fused", [&] { run(heed::Path::Blocked); }},
        {"dropout_p=0 training",
         [&] {
           context_.training = true;
           run(heed::Path::Automatic);
           context_.training = false;
         }},
    };
    for (const auto& way : options_.at("paths")) ways.at(way.get<std::string>())();
  }

  void sdpa_strided() {
    const auto shape = in_.at("shape").get<std::vector<Index>>();
    const heed::Extents<4> extents{1, 1, shape[0], shape[1]};
    // Each of q, k, v: packed columns, a buffer with strides, or a plain matrix.
    std::vector<heed::Tensor<T, 1>> buffers;
    std::vector<heed::TensorView<const T, 4>> views;
    for (std::size_t i = 0; i < 3; ++i) {
      const std::string name(1, "qkv"[i]);
      Index row = shape[1], column = 1, offset = 0;
      if (in_.contains("packed")) {
        buffers.push_back(flat(in_.at("packed")));
        row = in_.at("row_stride");
        offset = in_.at("offsets")[i];
      } else if (in_.contains(name + "_buf")) {
        buffers.push_back(flat(in_.at(name + "_buf")));
        row = in_.at(name + "_strides")[0];
        column = in_.at(name + "_strides")[1];
      } else {
        buffers.push_back(flat(in_.at(name)));
      }
      views.emplace_back(buffers.back().data() + offset, extents, heed::Extents<4>{0, 0, row, column});
    }
    for (const heed::Path path : {heed::Path::Reference, heed::Path::Blocked}) {
      context_.path = path;
      const auto out = heed::attention(views[0], views[1], views[2], AnyMask<true>(heed::NoMask{}), context_);
      expect_near<T, 2>(out.view()[0][0], expected_.at("out"), tolerance_, "out");
    }
  }

  /// Zero scores and v_j = j: a causal row i is i/2, without mask every row is (L-1)/2.
  void sdpa_formula() {
    ASSERT_EQ(expected_.at("causal"), "i/2");
    ASSERT_EQ(expected_.at("full"), "(L-1)/2");
    for (const Index length : in_.at("lengths").get<std::vector<Index>>()) {
      for (const Index width : in_.at("head_dims").get<std::vector<Index>>()) {
        heed::Tensor<T, 4> zero(1, 1, length, width), v(1, 1, length, width);
        for (Index j = 0; j < length; ++j) v.matrix(0, 0).row(j).setConstant(static_cast<T>(j));
        for (const heed::Path path : {heed::Path::Reference, heed::Path::Blocked}) {
          if (path == heed::Path::Reference && length > 130) continue;
          context_.path = path;
          for (const bool causal : {true, false}) {
            const auto mask = causal ? AnyMask<true>(heed::Causal{}) : AnyMask<true>(heed::NoMask{});
            const auto out = heed::attention(zero, zero, v, mask, context_);
            for (Index i = 0; i < length; ++i) {
              for (Index d = 0; d < width; ++d) {
                ASSERT_NEAR(out(0, 0, i, d), static_cast<double>(causal ? i : length - 1) / 2, tolerance_)
                    << length << " × " << width;
              }
            }
          }
        }
      }
    }
  }

  void cached_causal() {
    attend_in_chunks([](const auto& x, Index) { return x; });
  }
  void cached_causal_rope() {
    const heed::RotaryEmbedding<T> rotary = rotary_of(tensor<T, 4>(in_.at("q")).extent(3));
    attend_in_chunks(
        [&](const auto& x, Index first) { return rotary(x, heed::Positions(static_cast<int>(first)), context_); });
  }

  void dropout_support() {
    load();
    attention_options_.dropout = in_.at("p");
    context_.training = true;
    const auto allowed = tensor<double, 1>(expected_.at("allowed_outputs"));
    for (const heed::Path path : {heed::Path::Reference, heed::Path::Blocked}) {
      context_.path = path;
      double mean = 0;
      constexpr int kSeeds = 10000;
      std::set<double> seen;
      for (int seed = 0; seed < kSeeds; ++seed) {
        context_.seed = static_cast<std::uint64_t>(seed);
        context_.restart_streams();
        const double y = attend()(0, 0, 0, 0);
        mean += y / kSeeds;
        seen.insert(y);
      }
      EXPECT_EQ(seen, std::set<double>(allowed.data(), allowed.data() + allowed.size()));
      // Five standard errors of an output whose standard deviation is 5.
      EXPECT_NEAR(mean, number(expected_.at("mean_output_over_seeds")), 5 * 5 / std::sqrt(kSeeds));
    }
  }
  void dropout_eval() {
    load();
    attention_options_.dropout = in_.at("p");
    for (const heed::Path path : {heed::Path::Reference, heed::Path::Blocked}) run(path);
  }
  void dropout_train() {
    context_.training = true;
    dropout_eval();
  }
  void dropout_refused() {
    const heed::Tensor<T, 4> x(1, 1, 1, 1);
    const auto p = tensor<double, 1>(in_.at("p"));
    for_each_element(p.view(), [&](double probability) {
      heed::AttentionOptions options;
      options.dropout = probability;
      EXPECT_THROW(heed::attention(x, x, x, AnyMask<true>(heed::NoMask{}), options, context_), heed::ValueError)
          << probability;
    });
  }

  void rope() {
    const auto x = tensor<T, 4>(in_.at("x"));
    const auto y = rotary_of(x.extent(3))(x, heed::Positions(in_.at("pos").get<int>()), context_);
    expect_near<T, 4>(std::as_const(y).view(), expected_.at("y"), tolerance_, "y");
  }

  void sinusoidal() {
    const Index length = in_.at("length"), width = in_.at("dim");
    const auto table = heed::SinusoidalPositions<T>({.embed_dim = width}).table(length);
    expect_near<T, 2>(heed::view_of(table), expected_.at("pe"), tolerance_, "pe");
  }

  void layernorm() {
    const auto x = tensor<T, 3>(in_.at("x"));
    const heed::LayerNorm<T> norm({.embed_dim = x.extent(2), .eps = in_.at("eps"), .affine = false});
    const auto y = norm(x);
    expect_near<T, 3>(std::as_const(y).view(), expected_.at("y"), tolerance_, "y");
  }

 private:
  static heed::Tensor<T, 1> flat(const Json& array) {
    const auto& data = array.at("data");
    return tensor<T, 1>({{"shape", {data.size()}}, {"data", data}});
  }

  heed::RotaryEmbedding<T> rotary_of(Index width) const {
    return heed::RotaryEmbedding<T>(
        {.head_dim = width,
         .rotary_dim = options_.value("rotary_dim", width),
         .theta = options_.at("base"),
         .pairing = options_.at("interleaved") ? heed::RotaryPairing::Interleaved : heed::RotaryPairing::HalfSplit});
  }

  void load() {
    q_ = tensor<T, 4>(in_.at("q"));
    k_ = tensor<T, 4>(in_.at("k"));
    v_ = tensor<T, 4>(in_.at("v"));
    if (in_.contains("bias")) bias_ = tensor<T, 4>(in_.at("bias"));
    if (options_.contains("scale")) attention_options_.scale = options_.at("scale").get<double>();

    AnyMask<true> ranges = heed::NoMask{};
    if (options_.contains("causal")) {
      const bool top_left = options_.at("causal") == "top_left";
      ASSERT_TRUE(top_left || options_.at("causal") == "bottom_right");
      ranges = AnyMask<true>(ranges & (top_left ? heed::Causal::top_left() : heed::Causal::bottom_right()));
    }
    if (options_.contains("window")) {
      ASSERT_EQ(options_.at("causal"), "top_left");
      ranges = AnyMask<true>(ranges & heed::Window::top_left(options_.at("window")[0], options_.at("window")[1]));
    }
    masks_ = {AnyMask<false>(ranges | ranges)};
    if (in_.contains("keep")) {
      keep_ = tensor<bool, 4>(in_.at("keep"));
      ignore_ = heed::Tensor<bool, 4>(keep_.extents());
      for (Index i = 0; i < keep_.size(); ++i) ignore_.data()[i] = !keep_.data()[i];
      // Both meanings that true can have.
      masks_ = {AnyMask<false>(ranges & heed::BoolMask::keep(keep_)),
                AnyMask<false>(ranges & heed::BoolMask::ignore(ignore_))};
    } else {
      exact_ = {ranges};
    }
  }

  /// f(mask) for every way to write the mask.
  template <class F>
  void with_masks(F&& f) {
    for (const auto& mask : masks_) f(mask);
    for (const auto& mask : exact_) f(mask);
  }

  /// f(modifier) for what the check does to scores.
  template <class F>
  void with_modifier(F&& f) {
    if (!options_.contains("softcap")) {
      if (in_.contains("bias"))
        f(heed::Bias(bias_));
      else
        f(heed::NoModifier{});
    } else {
      const heed::SoftCap cap(options_.at("softcap"));
      if (in_.contains("bias"))
        f(then(cap, heed::Bias(bias_)));
      else
        f(cap);
    }
  }

  heed::Tensor<T, 4> attend() { return heed::attention(q_, k_, v_, masks_.front(), attention_options_, context_); }

  /// All results that the check expects, and the same output whether or not more is asked for.
  void run(heed::Path path) {
    SCOPED_TRACE("path " + std::to_string(static_cast<int>(path)));
    context_.path = path;
    with_modifier([&](const auto& modifier) { with_masks([&](const auto& mask) { run(mask, modifier); }); });
  }
  template <class M, class F>
  void run(const M& mask, const F& modifier) {
    const auto plain = heed::attention(q_, k_, v_, mask, modifier, attention_options_, context_);
    const auto [out, weights] = heed::attention_with_weights(q_, k_, v_, mask, modifier, attention_options_, context_);
    const auto s = heed::attention_with_statistics(q_, k_, v_, mask, modifier, attention_options_, context_);
    EXPECT_TRUE(same_bits(out, plain)) << "with weights";
    EXPECT_TRUE(same_bits(s.out, plain)) << "with statistics";
    if (expected_.contains("out")) expect_near<T, 4>(plain.view(), expected_.at("out"), tolerance_, "out");
    if (expected_.contains("weights")) {
      expect_near<T, 4>(weights.view(), expected_.at("weights"), tolerance_, "weights");
    }
    if (expected_.contains("lse")) {
      heed::Tensor<T, 3> lse(s.sum.extents());
      for (Index i = 0; i < lse.size(); ++i) lse.data()[i] = s.maximum.data()[i] + std::log(s.sum.data()[i]);
      expect_near<T, 3>(std::as_const(lse).view(), expected_.at("lse"), tolerance_, "lse");
    }
  }

  /// The queries in pieces, each against all keys so far; placed(x, first) puts x at its position.
  template <class Place>
  void attend_in_chunks(Place&& placed) {
    load();
    for (const heed::Path path : {heed::Path::Reference, heed::Path::Blocked}) {
      context_.path = path;
      for (const auto& split : in_.at("splits")) {
        heed::Tensor<T, 4> out(1, q_.extent(1), q_.extent(2), v_.extent(3));
        Index first = 0;
        for (const Index count : split.template get<std::vector<Index>>()) {
          const int position[] = {static_cast<int>(first)};
          const auto part = [&](auto& x, Index from, Index n) { return x.view().slice(2, from, n); };
          const auto q = placed(part(std::as_const(q_), first, count), first);
          const auto k = placed(part(std::as_const(k_), 0, first + count), 0);
          heed::attention_into(part(out, first, count), q, k, part(v_, 0, first + count),
                               AnyMask<true>(heed::Causal::from(position)), context_);
          first += count;
        }
        expect_near<T, 4>(std::as_const(out).view(), expected_.at("out"), tolerance_, "out");
      }
    }
  }

  const Json in_, options_, expected_;
  const double tolerance_;
  heed::Tensor<T, 4> q_, k_, v_;
  heed::Tensor<T, 4> bias_;
  heed::Tensor<bool, 4> keep_, ignore_;
  std::vector<AnyMask<false>> masks_;
  std::vector<AnyMask<true>> exact_;
  heed::AttentionOptions attention_options_;
  heed::Context context_;
};

void alibi_slopes(const Json& check) {
  const int heads = check.at("inputs").at("n");
  const auto slopes = tensor<double, 1>(check.at("expected").at("slopes"));
  ASSERT_EQ(slopes.size(), heads);
  for (int h = 0; h < heads; ++h) {
    EXPECT_NEAR(heed::Alibi::slope(heads, h), slopes(h), number(check.at("tol"))) << "head " << h << " of " << heads;
  }
}

void safetensors_load(const Json& check) {
  const std::string hex = check.at("inputs").at("hex");
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  ASSERT_TRUE(check.at("expected").at("error").get<bool>());
  EXPECT_THROW(heed::SafeTensors::from_memory(bytes), heed::FormatError);
}

template <void (Check<float>::*InFloat)(), void (Check<double>::*InDouble)()>
void in_both(const Json& check) {
  SCOPED_TRACE("float");
  (Check<float>(check).*InFloat)();
  SCOPED_TRACE("double");
  (Check<double>(check).*InDouble)();
}
#define HEED_TEST_IN_BOTH(f) in_both<&Check<float>::f, &Check<double>::f>

/// What each op runs.
const std::map<std::string, void (*)(const Json&)>& runners() {
  static const std::map<std::string, void (*)(const Json&)> map = {
      {"sdpa", HEED_TEST_IN_BOTH(sdpa)},
      {"sdpa_backward", HEED_TEST_IN_BOTH(sdpa_backward)},
      {"sdpa_paths", HEED_TEST_IN_BOTH(sdpa_paths)},
      {"sdpa_strided", HEED_TEST_IN_BOTH(sdpa_strided)},
      {"sdpa_formula", HEED_TEST_IN_BOTH(sdpa_formula)},
      {"cached_causal", HEED_TEST_IN_BOTH(cached_causal)},
      {"cached_causal_rope", HEED_TEST_IN_BOTH(cached_causal_rope)},
      {"dropout_support", HEED_TEST_IN_BOTH(dropout_support)},
      {"dropout_eval", HEED_TEST_IN_BOTH(dropout_eval)},
      {"dropout_train_p1", HEED_TEST_IN_BOTH(dropout_train)},
      {"dropout_bad_p", HEED_TEST_IN_BOTH(dropout_refused)},
      {"rope", HEED_TEST_IN_BOTH(rope)},
      {"sinusoidal", HEED_TEST_IN_BOTH(sinusoidal)},
      {"layernorm", HEED_TEST_IN_BOTH(layernorm)},
      {"alibi_slopes", alibi_slopes},
      {"safetensors_load", safetensors_load},
  };
  return map;
}

/// Cases that run.
const std::vector<std::string>& ids() {
  static const std::vector<std::string> list = {"C01", "C03", "C05", "C07", "C09", "C11", "C13", "C15", "C17", "C19",
                                                "C21", "C23", "C25", "C27", "C29", "C31", "C33", "C35", "C37", "C39"};
  return list;
}

class FieldCase : public ::testing::TestWithParam<std::string> {};

TEST_P(FieldCase, Holds) {
  int checks = 0;
  for (const Json& c : all_cases()) {
    if (c.at("id") != GetParam()) continue;
    for (const Json& check : c.at("checks")) {
      SCOPED_TRACE(check.at("name").get<std::string>());
      runners().at(check.at("op").get<std::string>())(check);
      ++checks;
    }
  }
  EXPECT_GT(checks, 0);
}

INSTANTIATE_TEST_SUITE_P(Cases, FieldCase, ::testing::ValuesIn(ids()),
                         [](const auto& instance) { return instance.param; });

TEST(FieldCases, EveryOneIsRun) {
  std::set<std::string> found;
  for (const Json& c : all_cases()) found.insert(c.at("id").get<std::string>());
  EXPECT_EQ(found, std::set<std::string>(ids().begin(), ids().end()));
}

}  // namespace
}  // namespace heed_test
