// SPDX-License-Identifier: MIT
// Writes pages for the test in the browser into a directory: pages DIRECTORY

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <limits>
#include <string>
#include <vector>

#include <heed/core/context.hpp>
#include <heed/core/tensor.hpp>
#include <heed/inspect/grid.hpp>
#include <heed/inspect/html.hpp>
#include <heed/inspect/png.hpp>
#include <heed/inspect/recorder.hpp>

namespace {

using heed::Index;

/// Shows a recorder attention as a layer would: weights that fall with the distance from q·slope, at a pace that
/// differs from head to head.
struct Layer {
  std::string name;
  Index heads, queries, keys;
  bool causal = false;
  double unit = 1;  // what the weights of a row sum to
  int seed = 0;

  void show(heed::Recorder& recorder) const {
    heed::Tensor<double, 4> weights(1, heads, queries, keys);
    const auto visible = [&](int, int, int q, int k) { return !causal || k <= q; };
    for (int h = 0; h < heads; ++h) {
      for (int q = 0; q < queries; ++q) {
        double sum = 0;
        for (int k = 0; k < keys; ++k) {
          const double distance = q * static_cast<double>(keys) / static_cast<double>(queries) - k - (h + seed) % 5;
          const double pace = 0.02 * (1 + (h * 7 + seed * 3) % 11);
          const double wave = 0.5 + 0.5 * std::cos(0.9 * k + h + seed);
          weights(0, h, q, k) = visible(0, h, q, k) ? std::exp(-pace * std::abs(distance)) * (0.1 + wave) : 0;
          sum += weights(0, h, q, k);
        }
        for (int k = 0; k < keys; ++k) weights(0, h, q, k) *= unit / sum;
      }
    }
    recorder.mask(name, weights.extents(), visible);
    recorder.weights(name, heed::TensorView<const double, 4>(weights.view()));
  }
};

/// Labels that would break out of markup, scripts and lines.
std::vector<std::string> hostile() {
  return {"</script><script>document.title='broken'</script>",
          "<img src=x onerror=\"document.title='broken'\">",
          "\"'&amp;&lt;",
          "",
          " ",
          "\n\t\x01",
          "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x9A\x80",  // an emoji of three code points
          "\xD7\xA9\xD7\x9C\xD7\x95\xD7\x9D",              // Hebrew
          "\xE2\x80\xAE"
          "override",
          "\xFF\xC3",
          std::string(5000, 'x'),
          "\xE2\x80\xA8<!--",
          "]]>",
          "${1+1}`"};
}

void write(const std::string& path) {
  {
    heed::Recorder recorder;
    const std::vector<std::string> labels = hostile();
    const auto count = static_cast<Index>(labels.size());
    Layer{"<b>layer</b>", 2, count, count}.show(recorder);
    heed::save_attention_html(
        path + "/hostile.html", recorder,
        {.title = "</title><script>document.title='broken'</script>", .labels = {{.queries = labels}}});
  }
  {
    heed::Recorder recorder;
    for (int l = 0; l < 12; ++l)
      Layer{"layers." + std::to_string(l) + ".self_attn", 12, 128, 128, true, 1, l}.show(recorder);
    std::vector<std::string> tokens;
    for (int i = 0; i < 128; ++i) tokens.push_back("token" + std::to_string(i));
    heed::save_attention_grid(path + "/large.svg", recorder, {.title = "12 < 13 layers"});
    heed::save_attention_grid_png(path + "/large.png", recorder);
    heed::save_attention_html(path + "/large.html", recorder,
                              {.title = "12 layers of 12 heads", .labels = {{.queries = tokens}}});
  }
  {
    heed::Recorder recorder;
    Layer{"layers.0.self_attn", 4, 3, 3, true}.show(recorder);
    Layer{"layers.0.multihead_attn", 4, 3, 5}.show(recorder);
    heed::save_attention_html(
        path + "/cross.html", recorder,
        {.title = "A decoder block",
         .labels = {{"*.multihead_attn", {"le", "chat", "dort"}, {"the", "cat", "is", "asleep", "."}},
                    {.queries = {"le", "chat", "dort"}}}});
  }
  {
    // A visible weight of 0, one that is not a number, and a query that sees nothing.
    heed::Recorder recorder;
    heed::Tensor<double, 4> weights(1, 1, 3, 3);
    const double numbers[] = {1, 0, 0, 0, 0, 0, 0, 0, std::numeric_limits<double>::quiet_NaN()};
    std::copy(std::begin(numbers), std::end(numbers), weights.data());
    recorder.mask("a", weights.extents(), [](int, int, int q, int k) { return q == 0 ? k < 2 : q == 2 && k == 2; });
    recorder.weights("a", heed::TensorView<const double, 4>(weights.view()));
    heed::save_attention_html(path + "/special.html", recorder);
    heed::save_attention_grid(path + "/special.svg", recorder);
    heed::save_heatmap_png(path + "/special.png", recorder.of("a"), 0, {.cell = 10});
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: pages DIRECTORY\n", stderr);
    return 2;
  }
  try {
    write(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pages: %s\n", error.what());
    return 1;
  }
  return 0;
}
