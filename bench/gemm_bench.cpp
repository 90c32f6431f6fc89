// SPDX-License-Identifier: MIT
// Products of the sizes that transformers have, m × k → n. "best" figures come from the fastest single call; "% peak"
// holds it against the fastest loop of multiply-adds, "GB/s" counts the elements of B that it read.

#include <algorithm>
#include <limits>
#include <string>

#include <benchmark/benchmark.h>

#include <heed/core/gemm.hpp>
#include <heed/core/parallel.hpp>
#include <heed/core/random.hpp>

#include "machine.hpp"

namespace {

using heed::Activation;
using heed::Index;
using heed::Tensor;

template <class T>
double peak() {
  static const double measured = heed_bench::fma_peak<T>();
  return measured;
}

template <class T>
Tensor<T, 2> random_matrix(Index rows, Index columns, std::uint64_t stream) {
  Tensor<T, 2> x(rows, columns);
  const heed::Philox random(1, stream);
  for (Index i = 0; i < x.size(); ++i)
    x.data()[i] = static_cast<T>(random.uniform(static_cast<std::uint64_t>(i)) - 0.5);
  return x;
}

struct Case {
  Index m, k, n;
  bool packed = true;
  int threads = 1;
  Activation activation = Activation::None;
  bool bias = false, residual = false;
};

template <class T>
void run(benchmark::State& state, const Case& c) {
  const auto a = random_matrix<T>(c.m, c.k, 0), weight = random_matrix<T>(c.n, c.k, 1);
  const auto bias = random_matrix<T>(1, c.n, 2), residual = random_matrix<T>(c.m, c.n, 3);
  const auto b = weight.view().transpose(0, 1);
  const auto packed = heed::PackedMatrix<T>::pack(b);
  Tensor<T, 2> out(c.m, c.n);
  heed::Epilogue<T> epilogue;
  epilogue.activation = c.activation;
  if (c.bias) epilogue.bias = bias.data();
  if (c.residual) epilogue.residual = residual;
  heed::ThreadPool pool(c.threads);
  heed::Context context(pool);

  double fastest = std::numeric_limits<double>::infinity();
  for (auto _ : state) {
    const double start = heed_bench::seconds();
    if (c.packed)
      heed::gemm<T>(a, packed, out.view(), epilogue, context);
    else
      heed::gemm<T>(a, b, out.view(), epilogue, context);
    benchmark::DoNotOptimize(out.data());
    fastest = std::min(fastest, heed_bench::seconds() - start);
  }
  const double flops = 2. * static_cast<double>(c.m) * static_cast<double>(c.k) * static_cast<double>(c.n);
  state.counters["best GFLOP/s"] = flops / fastest * 1e-9;
  state.counters["% peak"] = 100 * flops / fastest / (c.threads * peak<T>());
  state.counters["GB/s"] = static_cast<double>(c.k * c.n) * sizeof(T) / fastest * 1e-9;
}

template <class T = float>
void add(const std::string& name, const Case& c) {
  const std::string size = std::to_string(c.m) + "x" + std::to_string(c.k) + "->" + std::to_string(c.n);
  benchmark::RegisterBenchmark((name + "/" + size).c_str(), [c](benchmark::State& state) { run<T>(state, c); })
      ->Unit(benchmark::kMicrosecond)
      ->UseRealTime();
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const auto rounded = [](double x) { return std::to_string(static_cast<int>(x * 1e-8) / 10.); };
  benchmark::AddCustomContext("heed instruction set", heed::isa());
  benchmark::AddCustomContext("multiply-add peak, GFLOP/s, float", rounded(peak<float>()));
  benchmark::AddCustomContext("plain read, GB/s", rounded(heed_bench::read_bandwidth()));

  add("packed", {16, 768, 3072});
  add("packed", {1, 576, 49152});
  add("packed", {1, 768, 3072});
  add("packed", {4, 768, 3072});
  add("packed", {128, 768, 3072});
  add("packed", {512, 768, 3072});
  add("packed", {512, 3072, 768});
  add("packed", {1024, 512, 1536});
  add("packed", {64, 64, 64});
  add("unpacked", {.m = 1, .k = 768, .n = 3072, .packed = false});
  add("unpacked", {.m = 128, .k = 768, .n = 3072, .packed = false});
  add("unpacked", {.m = 512, .k = 768, .n = 3072, .packed = false});
  add("bias", {.m = 128, .k = 768, .n = 3072, .bias = true});
  add("relu", {.m = 128, .k = 768, .n = 3072, .activation = Activation::ReLU, .bias = true});
  add("gelu", {.m = 128, .k = 768, .n = 3072, .activation = Activation::GELU, .bias = true});
  add("silu", {.m = 128, .k = 768, .n = 3072, .activation = Activation::SiLU, .bias = true});
  add("residual", {.m = 128, .k = 768, .n = 3072, .bias = true, .residual = true});
  add<double>("double", {128, 768, 768});
  for (const int threads : {1, 2}) {
    const std::string name = "threads_" + std::to_string(threads);
    add(name, {.m = 16, .k = 768, .n = 3072, .threads = threads});
    add(name, {.m = 512, .k = 768, .n = 3072, .threads = threads});
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
