// SPDX-License-Identifier: MIT
// The reference path beside the blocked path, one head, over lengths, head widths and masks.
// GFLOP/s counts visible pairs only: 4·D floating-point operations for each.

#include <string>

#include <benchmark/benchmark.h>

#include <heed/heed.hpp>

namespace {

heed::Tensor<float, 4> random_tensor(heed::Index length, heed::Index width, std::uint64_t stream) {
  heed::Tensor<float, 4> t(1, 1, length, width);
  const heed::Philox random(1, stream);
  for (heed::Index i = 0; i < t.size(); ++i)
    t.data()[i] = static_cast<float>(random.normal(static_cast<std::uint64_t>(i)));
  return t;
}

template <heed::Mask M>
double visible_pairs(const M& mask, int length) {
  const auto bound = heed::bind(mask, {.B = 1, .H = 1, .G = 1, .Lq = length, .Lk = length, .Dk = 1, .Dv = 1});
  double pairs = 0;
  for (int q = 0; q < length; ++q) {
    for (int k = 0; k < length; ++k) pairs += heed::is_visible(bound, 0, 0, q, k);
  }
  return pairs;
}

template <heed::Mask M>
void run(benchmark::State& state, heed::Path path, const M& mask) {
  const int length = static_cast<int>(state.range(0)), width = static_cast<int>(state.range(1));
  const auto q = random_tensor(length, width, 0), k = random_tensor(length, width, 1),
             v = random_tensor(length, width, 2);
  heed::Tensor<float, 4> out(1, 1, length, width);
  heed::Context context;
  context.path = path;
  for (auto _ : state) {
    heed::attention_into(out, q, k, v, mask, context);
    benchmark::DoNotOptimize(out.data());
  }
  state.counters["GFLOP/s"] =
      benchmark::Counter(4e-9 * width * visible_pairs(mask, length), benchmark::Counter::kIsIterationInvariantRate);
  state.counters["workspace KiB"] = static_cast<double>(context.workspace().capacity()) / 1024;
}

template <heed::Mask M>
void register_mask(const std::string& name, const M& mask) {
  for (const auto path : {heed::Path::Reference, heed::Path::Blocked}) {
    const bool reference = path == heed::Path::Reference;
    auto* bench = benchmark::RegisterBenchmark(((reference ? "reference/" : "blocked/") + name).c_str(),
                                               [path, mask](benchmark::State& state) { run(state, path, mask); });
    bench->ArgNames({"L", "D"})->Unit(benchmark::kMicrosecond);
    for (const int width : {32, 64, 128}) {
      for (int length = 16; length <= 8192; length *= 2) {
        // The reference needs seconds for what the blocked path does in a fraction of one; one long case is enough.
        if (reference && length > 2048) continue;
        bench->Args({length, width});
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::AddCustomContext("heed instruction set", heed::isa());
  register_mask("none", heed::NoMask{});
  register_mask("causal", heed::Causal{});
  register_mask("window_128", heed::Window(127, 0));
  register_mask("strided_64", heed::Strided(64, 16) & heed::Causal{});
  register_mask("global_8", (heed::Window(64, 64) | heed::GlobalTokens(8)));
  register_mask("lambda", heed::mask([](int q, int k) { return (q ^ k) % 3 != 0; }));
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
