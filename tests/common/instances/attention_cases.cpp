// SPDX-License-Identifier: MIT
#include "common/attention_cases.hpp"

#include <limits>
#include <memory>
#include <utility>

#include <heed/mask/bool_mask.hpp>
#include <heed/mask/sparse.hpp>

namespace heed_test {

namespace {

using heed::AttentionShape;
using List = std::vector<int>;

/// One number a sample: low, low + step, ..., around and around below `limit` + 1.
std::shared_ptr<List> list(int n, int low, int step, int limit) {
  auto numbers = std::make_shared<List>();
  for (int b = 0; b < n; ++b) numbers->push_back((low + b * step) % (limit + 1));
  return numbers;
}
int at(const std::shared_ptr<List>& numbers, int b) { return (*numbers)[static_cast<std::size_t>(b)]; }

MaskCase no_mask() {
  return MaskCase("none", heed::NoMask{}, [](int, int, int, int) { return true; });
}
MaskCase causal(const AttentionShape& s) {
  return MaskCase("causal", heed::Causal::bottom_right(), [s](int, int, int q, int k) { return k <= q + s.Lk - s.Lq; });
}
MaskCase causal_from(const AttentionShape& s) {
  const auto first = list(s.B, 0, 3, s.Lk);
  return MaskCase(
      "causal from", heed::Causal::from(*first), [first](int b, int, int q, int k) { return k <= q + at(first, b); },
      first);
}
MaskCase window() {
  return MaskCase("window", heed::Window::top_left(5, 2),
                  [](int, int, int q, int k) { return q - 5 <= k && k <= q + 2; });
}
MaskCase padding(const AttentionShape& s) {
  const auto lengths = list(s.B, s.Lk, 7, s.Lk);
  return MaskCase(
      "padding", heed::Padding(*lengths), [lengths](int b, int, int, int k) { return k < at(lengths, b); }, lengths);
}
MaskCase queries_and_keys(const AttentionShape& s) {
  const auto both = std::make_shared<std::pair<List, List>>(*list(s.B, s.Lq, 5, s.Lq), *list(s.B, s.Lk, 7, s.Lk));
  return MaskCase(
      "queries and keys", heed::Padding::queries_and_keys(both->first, both->second),
      [both](int b, int, int q, int k) {
        const auto i = static_cast<std::size_t>(b);
        return q < both->first[i] && k < both->second[i];
      },
      both);
}
MaskCase packed(const AttentionShape& s) {
  const auto offsets =
      std::make_shared<std::pair<List, List>>(List{0, s.Lq / 3, s.Lq / 3, s.Lq}, List{0, s.Lk / 4, s.Lk / 2, s.Lk});
  const auto sequence = [](const List& list, int position) {
    int i = 0;
    while (list[static_cast<std::size_t>(i) + 1] <= position) ++i;
    return i;
  };
  return MaskCase(
      "packed", heed::DocumentMask(offsets->first, offsets->second),
      [offsets, sequence](int, int, int q, int k) {
        return sequence(offsets->first, q) == sequence(offsets->second, k);
      },
      offsets);
}
MaskCase strided() {
  return MaskCase("strided", heed::Strided::top_left(7, 2),
                  [](int, int, int q, int k) { return k % 7 == 0 || std::abs(k - q) <= 2; });
}
MaskCase global() {
  return MaskCase("global", heed::GlobalTokens(2), [](int, int, int q, int k) { return q < 2 || k < 2; });
}
MaskCase dense(const AttentionShape& s) {
  const auto keep = std::make_shared<heed::Tensor<bool, 4>>(1, s.H, s.Lq, s.Lk);
  Random random(7);
  for (Index i = 0; i < keep->size(); ++i) keep->data()[i] = random.chance(0.4);
  return MaskCase(
      "dense", heed::BoolMask::keep(*keep), [keep](int, int h, int q, int k) { return (*keep)(0, h, q, k); }, keep);
}
MaskCase checkerboard() {
  const auto f = [](int q, int k) { return (q + k) % 2 == 0; };
  return MaskCase("checkerboard", heed::mask(f), [f](int, int, int q, int k) { return f(q, k); });
}

std::vector<MaskCase> masks(const AttentionShape& s) {
  return {no_mask(),
          causal(s),
          causal_from(s),
          window(),
          padding(s),
          queries_and_keys(s),
          packed(s),
          strided(),
          global(),
          dense(s),
          checkerboard(),
          causal(s) & padding(s),
          window() | global(),
          (!strided()) & causal(s)};
}

std::string text(const AttentionShape& s) {
  std::string result;
  for (const int n : {s.B, s.H, s.G, s.Lq, s.Lk, s.Dk, s.Dv}) result += (result.empty() ? "" : " ") + std::to_string(n);
  return result;
}

}  // namespace

std::vector<AttentionCase> attention_cases() {
  std::vector<AttentionCase> cases;
  const auto add = [&](const AttentionShape& s, const MaskCase& mask) -> AttentionCase& {
    return cases.emplace_back(AttentionCase{"(" + text(s) + ") " + mask.text(), s, mask});
  };

  // B, H, G, Lq, Lk, Dk, Dv
  const AttentionShape shapes[] = {
      {2, 2, 2, 70, 70, 16, 16},    // more than one tile and block
      {3, 4, 2, 33, 97, 20, 12},    // grouped heads, few queries
      {2, 4, 1, 64, 37, 8, 40},     // one key head, few keys, wide values
      {1, 3, 3, 130, 131, 32, 32},  // one beyond every border
  };
  for (const auto& s : shapes) {
    for (const auto& mask : masks(s)) add(s, mask);
  }
  // One query: fewer than there are lanes.
  add({4, 4, 2, 1, 300, 64, 64}, no_mask());
  add({4, 4, 2, 1, 300, 64, 64}, padding({4, 4, 2, 1, 300, 64, 64}));

  for (const int width : {1, 2, 3, 4, 5, 7, 8, 9, 15, 17, 31, 33, 63, 64, 65, 80, 96, 127, 128, 129, 130}) {
    add({1, 2, 2, 40, 50, width, 24}, checkerboard());
    add({1, 2, 2, 40, 50, 24, width}, window());
  }
  for (const int length : {1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 66, 80, 81, 127, 128, 129, 257}) {
    add({1, 2, 2, 50, length, 24, 24}, no_mask());
    add({1, 2, 2, length, 50, 24, 24}, dense({1, 2, 2, length, 50, 24, 24}));
    add({1, 2, 2, length, length, 24, 24}, causal({1, 2, 2, length, length, 24, 24}));
  }

  // Large scores leave one key a row that counts; only where two come close is there an error to speak of. It takes
  // many rows until the largest error of the naive path is not small by chance.
  for (const double stddev : {0.0, 0.01, 3.0, 8.0, 20.0}) {
    for (const bool on_grid : {false, true}) {
      for (const int width : {16, 20}) {
        if (stddev > 8 && !on_grid) continue;
        const AttentionShape s{stddev > 3 ? 20 : stddev > 1 ? 6 : 2, 2, 2, 70, 70, width, 16};
        for (const auto& mask : {no_mask(), dense(s)}) {
          auto& c = add(s, mask);
          c.stddev = stddev;
          c.on_grid = on_grid;
          c.name += " stddev " + std::to_string(stddev) + (on_grid ? " on a grid" : "");
        }
      }
    }
  }

  const AttentionShape s{2, 2, 1, 45, 70, 24, 24};
  for (const double scale : {1.0, 0.7, -0.7, 1e-3}) {
    auto& c = add(s, causal(s));
    c.scale = scale;
    c.name += " scale " + std::to_string(scale);
  }
  for (const auto& mask : {no_mask(), window()}) {
    auto& low = add(s, mask);
    low.sinks = {-3, 0.5};
    low.name += " sinks";
    auto& high = add(s, mask);
    high.sinks = {20, -std::numeric_limits<double>::infinity()};
    high.name += " a high sink and none";
    auto& capped = add(s, mask);
    capped.modifier = AnyModifier::soft_cap(2);
    capped.name += " soft cap";
    auto& distant = add(s, mask);
    distant.modifier = AnyModifier::distance(0.25);
    distant.sinks = {1, 2};
    distant.name += " distance and sinks";
  }
  return cases;
}

}  // namespace heed_test
