// SPDX-License-Identifier: MIT
// Measures the named workloads: a table, or JSON lines. ../README.md tells what the figures mean.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <heed/core/config.hpp>
#include <heed/core/parallel.hpp>

#include "machine.hpp"
#include "workload.hpp"

namespace heed_bench {
namespace {

// A slice in which the process had less of its cores than this is one that somebody else disturbed.
constexpr double kUndisturbed = 0.95;

struct Settings {
  std::vector<std::string> names;
  int threads = 1;
  double seconds = 1;
  bool json = false, list = false, serve = false;
  std::string save;
};

std::vector<NamedWorkload> all_workloads() {
  std::vector<NamedWorkload> all = attention_workloads();
  const auto add = [&](std::vector<NamedWorkload> more) {
    std::move(more.begin(), more.end(), std::back_inserter(all));
  };
  add(long_sequence_workloads());
  add(training_workloads());
  add(layer_workloads());
  add(recurrent_workloads());
  add(char_lm_workloads());
#ifdef HEED_BENCH_MINILM
  add(minilm_workloads());
#endif
#ifdef HEED_BENCH_SMOLLM2
  add(smollm2_workloads());
#endif
  return all;
}

// The workloads of these names; a name that is none stands for all that begin with it.
std::vector<NamedWorkload> select(const std::vector<NamedWorkload>& all, const std::vector<std::string>& names) {
  if (names.empty()) return all;
  std::vector<NamedWorkload> selected;
  for (const std::string& name : names) {
    const auto has_name = [&](const NamedWorkload& w) { return w.name == name; };
    const bool is_exact = std::any_of(all.begin(), all.end(), has_name);
    const std::size_t before = selected.size();
    std::copy_if(all.begin(), all.end(), std::back_inserter(selected),
                 [&](const NamedWorkload& w) { return is_exact ? w.name == name : w.name.starts_with(name); });
    if (selected.size() == before) throw std::invalid_argument("there is no workload " + name + "; --list prints all");
  }
  return selected;
}

// Some calls of a workload, one right after the other.
struct Slice {
  double seconds;  // a call
  double share;    // processor time over wall time, of each thread

  bool counts() const { return share >= kUndisturbed; }
};

Slice run_slice(Workload& workload, int calls, heed::Context& context) {
  const double cpu = cpu_seconds(), start = seconds();
  for (int i = 0; i < calls; ++i) workload.run(context);
  const double wall = seconds() - start;
  return {wall / calls, (cpu_seconds() - cpu) / wall / context.executor().concurrency()};
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  const std::size_t middle = x.size() / 2;
  return x.size() % 2 == 1 ? x[middle] : (x[middle - 1] + x[middle]) / 2;
}

struct Result {
  double median_seconds = 0, best_seconds = 0, share = 0;
  double peak_flops = 0, read_bandwidth = 0;  // best slices
  int slices = 0, counted = 0;
};

// Slices of the workload between slices of the machine's limits, so that all have seen the same moments.
Result measure(const NamedWorkload& named, const Settings& settings, heed::Executor& executor) {
  // The processor time of other threads is known to a tick of the scheduler only.
  const double slice_seconds = settings.threads == 1 ? 4e-3 : 40e-3;
  constexpr double warm_up_seconds = 0.1;
  constexpr std::size_t fewest_slices = 5;

  const std::unique_ptr<Workload> workload = named.make();
  const std::vector<float> memory(static_cast<std::size_t>(named.bytes) / sizeof(float), 1.f);
  heed::Context context(executor);
  workload->run(context);
  double call = run_slice(*workload, 1, context).seconds;
  for (const double start = seconds(); seconds() - start < warm_up_seconds;) {
    call = std::min(call, run_slice(*workload, 1, context).seconds);
  }
  const int calls = std::max(1, static_cast<int>(slice_seconds / call));

  Result result;
  std::vector<Slice> slices, counted;
  const double start = seconds();
  const auto goes_on = [&] {
    const double spent = seconds() - start;
    if (slices.size() < fewest_slices || spent < settings.seconds) return true;
    return counted.size() < fewest_slices && spent < 4 * settings.seconds;
  };
  while (goes_on()) {
    const double peak = named.is_double ? fma_slice<double>(executor) : fma_slice<float>(executor);
    result.peak_flops = std::max(result.peak_flops, peak);
    if (!memory.empty()) result.read_bandwidth = std::max(result.read_bandwidth, read_slice(memory, executor));
    slices.push_back(run_slice(*workload, calls, context));
    if (slices.back().counts()) counted.push_back(slices.back());
  }
  result.slices = static_cast<int>(slices.size());
  result.counted = static_cast<int>(counted.size());

  std::vector<double> times, shares;
  for (const Slice& slice : counted.empty() ? slices : counted) {
    times.push_back(slice.seconds);
    shares.push_back(slice.share);
  }
  result.median_seconds = median(times);
  result.share = median(shares);
  result.best_seconds = *std::min_element(times.begin(), times.end());
  return result;
}

// std::printf into a string.
template <class... A>
std::string format(const char* pattern, A... values) {
  std::string text(static_cast<std::size_t>(std::snprintf(nullptr, 0, pattern, values...)), '\0');
  std::snprintf(text.data(), text.size() + 1, pattern, values...);
  return text;
}

void print_json(const NamedWorkload& w, const Settings& settings, const Result& r) {
  std::string line = format(
      R"({"peer": "heed", "workload": "%s", "threads": %d, "ms": %.5f, "ms_min": %.5f, "gflops": %.2f, )"
      R"("pct_peak": %.1f, "cpu_share": %.3f, "peak_gflops": %.1f, "slices": %d, "counted": %d, "isa": "%s")",
      w.name.c_str(), settings.threads, 1e3 * r.median_seconds, 1e3 * r.best_seconds, 1e-9 * w.flops / r.median_seconds,
      100 * w.flops / r.best_seconds / r.peak_flops, r.share, 1e-9 * r.peak_flops, r.slices, r.counted, heed::isa());
  if (w.bytes > 0) {
    line += format(R"(, "gbps": %.2f, "pct_read": %.1f, "read_gbps": %.2f)", 1e-9 * w.bytes / r.best_seconds,
                   100 * w.bytes / r.best_seconds / r.read_bandwidth, 1e-9 * r.read_bandwidth);
  }
  std::cout << line << '}' << std::endl;
}

void print_header(const Settings& settings) {
  std::cout << format(
                   "heed, %s, %d thread%s; the best slices of each row over those of multiply-adds (%% peak) and of"
                   " plain reading (%% read)\n",
                   heed::isa(), settings.threads, settings.threads > 1 ? "s" : "")
            << format("%-24s %-24s %10s %10s %8s %7s %6s %7s %9s %9s\n", "workload", "shape", "ms", "best ms",
                      "GFLOP/s", "% peak", "GB/s", "% read", "cpu share", "counted");
}

void print_row(const NamedWorkload& w, const Result& r) {
  std::string memory = format("%6s %7s", "", "");
  if (w.bytes > 0) {
    memory = format("%6.1f %7.1f", 1e-9 * w.bytes / r.best_seconds, 100 * w.bytes / r.best_seconds / r.read_bandwidth);
  }
  const std::string counted = format("%d/%d", r.counted, r.slices);
  std::cout << format("%-24s %-24s %10.4f %10.4f %8.1f %7.1f %s %9.3f %9s", w.name.c_str(), w.shape.c_str(),
                      1e3 * r.median_seconds, 1e3 * r.best_seconds, 1e-9 * w.flops / r.best_seconds,
                      100 * w.flops / r.best_seconds / r.peak_flops, memory.c_str(), r.share, counted.c_str())
            << std::endl;
}

// Answers each line "NAME CALLS" of stdin with one JSON line, after that many calls in one slice. The workload stays
// until another one is asked for.
void serve(const std::vector<NamedWorkload>& all, heed::Executor& executor) {
  heed::Context context(executor);
  std::string current;
  std::unique_ptr<Workload> workload;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream fields(line);
    std::string name;
    int calls = 0;
    if (!(fields >> name >> calls) || calls < 1) throw std::invalid_argument("not a line NAME CALLS: " + line);
    if (name != current) {
      workload = nullptr;
      workload = select(all, {name}).front().make();
      workload->run(context);
      current = name;
    }
    const Slice slice = run_slice(*workload, calls, context);
    std::cout << format(R"({"workload": "%s", "ms": %.6f, "cpu_share": %.3f})", name.c_str(), 1e3 * slice.seconds,
                        slice.share)
              << std::endl;
  }
}

void save(const NamedWorkload& named, const std::filesystem::path& directory, heed::Executor& executor) {
  heed::Context context(executor);
  const std::unique_ptr<Workload> workload = named.make();
  workload->run(context);
  workload->save((directory / (named.name + ".safetensors")).string());
}

// Runs f; a workload that can't be made (a model that is missing) is told and skipped.
template <class F>
void try_workload(const NamedWorkload& w, F&& f) {
  try {
    f();
  } catch (const heed::FormatError& error) {
    std::cerr << "workloads: " << w.name << " is left out: " << error.what() << "\n";
  }
}

void run(const Settings& settings) {
  const std::vector<NamedWorkload> all = all_workloads();
  heed::ThreadPool pool(settings.threads);
  if (settings.serve) return serve(all, pool);

  const std::vector<NamedWorkload> selected = select(all, settings.names);
  if (!settings.save.empty()) std::filesystem::create_directories(settings.save);
  if (settings.save.empty() && !settings.list && !settings.json) print_header(settings);
  for (const NamedWorkload& w : selected) {
    if (settings.list) {
      std::cout << format("%-24s %s\n", w.name.c_str(), w.shape.c_str());
      continue;
    }
    try_workload(w, [&] {
      if (!settings.save.empty()) return save(w, settings.save, pool);
      const Result result = measure(w, settings, pool);
      if (settings.json)
        print_json(w, settings, result);
      else
        print_row(w, result);
    });
  }
}

}  // namespace
}  // namespace heed_bench

int main(int argc, char** argv) {
  heed_bench::Settings settings;
  CLI::App app("Measures heed on named workloads.", "workloads");
  app.get_formatter()->column_width(30);
  app.add_option("NAMES", settings.names, "Workloads, or prefixes of their names. Default: all")->option_text(" ");
  app.add_option("--threads", settings.threads, "Threads, including the caller")
      ->check(CLI::Range(1, 1024))
      ->option_text("N [1]");
  app.add_option("--seconds", settings.seconds, "Time to measure each")
      ->check(CLI::PositiveNumber)
      ->option_text("S [1]");
  auto* json = app.add_flag("--json", settings.json, "Print one JSON object a line, not a table");
  auto* list = app.add_flag("--list", settings.list, "Print names and shapes only");
  auto* save = app.add_option("--save", settings.save, "Measure nothing; write inputs and output of each to DIR")
                   ->option_text("DIR");
  auto* serve = app.add_flag("--serve", settings.serve, "Run workloads as lines NAME CALLS of stdin ask");
  serve->excludes(json)->excludes(list)->excludes(save);
  list->excludes(save);
  CLI11_PARSE(app, argc, argv);
  try {
    heed_bench::run(settings);
  } catch (const std::exception& error) {
    std::cerr << "workloads: " << error.what() << "\n";
    return 1;
  }
}
