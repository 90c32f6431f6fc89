// SPDX-License-Identifier: MIT
// The cost of long sequences: attention that stores its scores, attention in blocks, and patterns that leave pairs out.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <Eigen/Core>

#include <heed/attention/attention.hpp>
#include <heed/attention/linear/linear.hpp>
#include <heed/attention/segmented/segmented.hpp>
#include <heed/core/random.hpp>
#include <heed/mask/basic.hpp>
#include <heed/mask/sparse.hpp>

#include "common/claim.hpp"

namespace {

constexpr int kHeads = 4, kWidth = 64;

struct Inputs {
  heed::Tensor<float, 4> q, k, v, out;
  explicit Inputs(int L) : q(1, kHeads, L, kWidth), k(q), v(q), out(q) {
    std::uint64_t stream = 0;
    for (heed::Tensor<float, 4>* tensor : {&q, &k, &v}) {
      const heed::Philox random(1, ++stream);
      for (heed::Index i = 0; i < tensor->size(); ++i) {
        tensor->data()[i] = static_cast<float>(random.normal(static_cast<std::uint64_t>(i)));
      }
    }
  }
};

struct Cost {
  double seconds = 1e9;
  double bytes = 0;  // the output and intermediate results, without the inputs
};

// softmax(q·kᵀ / √D)·v of each head as it is written down: all scores of all heads first.
Cost naive(Inputs& x) {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  std::vector<Matrix> weights;
  for (int h = 0; h < kHeads; ++h) {
    weights.push_back(x.q.matrix(0, h) * x.k.matrix(0, h).transpose() / std::sqrt(static_cast<float>(kWidth)));
  }
  for (int h = 0; h < kHeads; ++h) {
    Matrix& w = weights[static_cast<std::size_t>(h)];
    for (Eigen::Index row = 0; row < w.rows(); ++row) {
      w.row(row) = (w.row(row).array() - w.row(row).maxCoeff()).exp();
      w.row(row) /= w.row(row).sum();
    }
    x.out.matrix(0, h).noalias() = w * x.v.matrix(0, h);
  }
  return {0, 4.0 * static_cast<double>(kHeads * weights[0].size() + x.out.size())};
}

using Call = std::function<void(Inputs&, heed::Context&)>;

template <class Mask>
Call masked(const Mask& mask) {
  return [mask](Inputs& x, heed::Context& context) { heed::attention_into(x.out, x.q, x.k, x.v, mask, context); };
}

template <class Run>
double best_seconds(int repeats, Run&& run) {
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

void measure(article::Report& report) {
  const int longest = report.pick(16384, 2048), longest_naive = report.pick(4096, 2048);
  report.text(
      "Four heads of width 64, float, one thread, forward. Memory is the output and what is stored on the way to "
      "it. The naive path keeps all scores, L x L for each head; the others keep some rows of a block. The window "
      "is 128 positions to either side; strided sees every 64th key and 64 around its own; segments have 128 "
      "positions and one summary each.");
  const std::vector<std::pair<std::string, Call>> paths{
      {"blocked", masked(heed::NoMask{})},
      {"window", masked(heed::Window(128, 128))},
      {"strided", masked(heed::Strided(64, 64))},
      {"segmented",
       [](Inputs& x, heed::Context& c) {
         heed::attention_into(x.out, x.q, x.k, x.v, heed::SegmentedAttention(heed::Segment{128}), c);
       }},
      {"linear",
       [](Inputs& x, heed::Context& c) { heed::attention_into(x.out, x.q, x.k, x.v, heed::LinearAttention(), c); }}};
  std::vector<examples::Curve> times{{"naive", {}}}, memory{{"naive", {}}};
  std::vector<std::string> columns{"L", "naive"};
  for (const auto& [name, call] : paths) {
    times.push_back({name, {}});
    memory.push_back({name, {}});
    columns.push_back(name);
  }
  article::Table& time_table = report.table("milliseconds", columns);
  article::Table& memory_table = report.table("megabytes", columns);
  for (int L = 256; L <= longest; L *= 2) {
    Inputs x(L);
    const int repeats = L <= 1024 ? 5 : 2;
    std::vector<article::Cell> time_row{L}, memory_row{L};
    const auto add = [&](std::size_t path, const Cost& cost) {
      times[path].points.push_back({static_cast<double>(L), 1e3 * cost.seconds});
      memory[path].points.push_back({static_cast<double>(L), cost.bytes / 1e6});
      time_row.emplace_back(1e3 * cost.seconds);
      memory_row.emplace_back(cost.bytes / 1e6);
    };
    if (L <= longest_naive) {
      Cost cost;
      cost.seconds = best_seconds(repeats, [&] { cost.bytes = naive(x).bytes; });
      add(0, cost);
    } else {
      time_row.emplace_back("-");
      memory_row.emplace_back("-");
    }
    for (std::size_t p = 0; p < paths.size(); ++p) {
      heed::Context context;
      paths[p].second(x, context);  // memory is taken once
      Cost cost{best_seconds(repeats, [&] { paths[p].second(x, context); })};
      cost.bytes = static_cast<double>(context.workspace().peak()) + 4.0 * static_cast<double>(x.out.size());
      add(p + 1, cost);
    }
    time_table.row(time_row);
    memory_table.row(memory_row);
  }
  const examples::Axes log{.x = examples::Scale::Log2, .y = examples::Scale::Log10};
  report.curves("Time over the length", times, "L", "milliseconds", log);
  report.curves("Memory over the length", memory, "L", "megabytes", log);

  // How the last doubling of L multiplies a cost.
  const auto growth = [](const examples::Curve& curve) {
    return curve.points.back().y / curve.points[curve.points.size() - 2].y;
  };
  const double naive_memory = growth(memory[0]), blocked_memory = growth(memory[1]);
  const double linear_time = growth(times[5]), window_time = growth(times[2]), full_time = growth(times[1]);
  report
      .table("the last doubling of L multiplies", {"", "naive", "blocked", "window", "strided", "segmented", "linear"})
      .row({"time", growth(times[0]), growth(times[1]), growth(times[2]), growth(times[3]), growth(times[4]),
            growth(times[5])})
      .row({"memory", growth(memory[0]), growth(memory[1]), growth(memory[2]), growth(memory[3]), growth(memory[4]),
            growth(memory[5])});

  const bool naive_grows = report.expect("naive memory, growth with 2 L", naive_memory, article::between(3.6, 4.1));
  const bool blocked_grows = report.expect("blocked memory, growth with 2 L", blocked_memory, article::at_most(2.2));
  const double saved = times[1].points.back().y / times[2].points.back().y;
  report.expect("time of full attention / of the window at the longest L", saved, article::at_least(2));
  report.expect("time of full attention / of linear at the longest L",
                times[1].points.back().y / times[5].points.back().y, article::at_least(2));
  report.verdict(
      naive_grows && blocked_grows,
      article::format("when L doubles, naive memory grows %.2f times and blocked %.2f times; time grows %.1f times "
                      "in full, %.1f under a window, %.1f in linear attention",
                      {naive_memory, blocked_memory, full_time, window_time, linear_time}));
}

}  // namespace

int main(int argc, char** argv) {
  return article::run(argc, argv,
                      {.name = "long_sequences",
                       .claim = "The memory of naive attention grows four times when L doubles, that of blocked "
                                "attention twice; windows, strides, segments and linear attention save time too."},
                      measure);
}
