// Selection kernels against the memory they have to touch: every line carries its ratio to a plain read, or to an in-place accumulate, of
// the same round. Times are processor times of one thread. See docs/kernels.md.
//
//   sparscale_kernel_bench [--benchmark_...] ; SPARSCALE_BENCH_ELEMENTS=25000000 for one size.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "kernels/kernels.hpp"
#include "kernels/measure_device.hpp"

namespace {

using namespace sparscale::kernels;

double now_s() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double timed(const std::function<void()>& work) {
  const double start = now_s();
  work();
  return now_s() - start;
}

// Buffers of one size, made once: setting up between samples would empty the caches.
struct Inputs {
  explicit Inputs(std::int64_t size) : values(measured_values(size, 1)), gradient(measured_values(size, 2)), accumulator(gradient) {}
  std::vector<float> values, gradient, accumulator;
};
Inputs& inputs(std::int64_t size) {
  static std::map<std::int64_t, Inputs> all;
  const auto found = all.find(size);
  if (found != all.end()) return found->second;
  all.clear();  // one size at a time
  return all.try_emplace(size, size).first->second;
}

// Compiled for the widest registers of the machine: a reference that lags would flatter everything compared with it.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__)
__attribute__((target_clones("default", "avx2", "avx512f")))
#endif
std::uint32_t
plain_read(const std::vector<float>& values) {
  // Integer additions, so that the compiler may use vector registers.
  const auto* words = reinterpret_cast<const std::uint32_t*>(values.data());
  std::array<std::uint32_t, 64> sums{};
  std::size_t i = 0;
  for (; i + 64 <= values.size(); i += 64)
    for (std::size_t lane = 0; lane < 64; ++lane) sums[lane] += words[i + lane];
  std::uint32_t sum = 0;
  for (const std::uint32_t lane : sums) sum += lane;
  return sum;
}

double median(std::vector<double> list) {
  std::nth_element(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(list.size() / 2), list.end());
  return list[list.size() / 2];
}

// Each iteration times the reference and the operation next to each other; what is printed is the median of each and of their ratio.
void compare(benchmark::State& state, const std::function<void()>& reference, const std::function<void()>& operation, double elements) {
  reference();
  operation();
  const int inner = std::max(1, static_cast<int>(4e5 / elements));
  std::vector<double> operation_s, reference_s, ratio;
  for (auto ignored : state) {
    const double r = timed([&] {
      for (int i = 0; i < inner; ++i) reference();
    });
    const double o = timed([&] {
      for (int i = 0; i < inner; ++i) operation();
    });
    state.SetIterationTime(o / inner);
    reference_s.push_back(r / inner);
    operation_s.push_back(o / inner);
    ratio.push_back(r / o);
  }
  state.counters["ns_per_element"] = 1e9 * median(operation_s) / elements;
  state.counters["limit_ns"] = 1e9 * median(reference_s) / elements;
  state.counters["of_limit"] = median(ratio);
}

void run(benchmark::State& state, const std::string& backend, const std::string& operation, double density) {
  const std::int64_t size = state.range(0);
  Inputs& in = inputs(size);
  const Kernels& kernels = cpu_kernels(backend);
  const auto n = static_cast<double>(size);
  const auto k = static_cast<Index>(density * n);
  std::vector<Index> picked;
  const auto read = [&] { benchmark::DoNotOptimize(plain_read(in.values)); };
  const auto add = [&] {
    float* const sum = in.accumulator.data();
    const float* const gradient = in.gradient.data();
    for (std::int64_t i = 0; i < size; ++i) sum[i] += gradient[i];
    benchmark::ClobberMemory();
  };
  if (operation == "threshold_select" || operation == "count") {
    kernels.topk(in.values, k, 0, picked);
    float threshold = std::numeric_limits<float>::infinity();
    for (const Index index : picked) threshold = std::min(threshold, std::fabs(in.values[static_cast<std::size_t>(index)]));
    if (operation == "count")
      compare(
          state, read, [&] { benchmark::DoNotOptimize(kernels.count(in.values, threshold)); }, n);
    else
      compare(
          state, read,
          [&] {
            picked.clear();
            kernels.threshold_select(in.values, threshold, 0, picked);
          },
          n);
  } else if (operation == "topk") {
    compare(
        state, read,
        [&] {
          picked.clear();
          kernels.topk(in.values, k, 0, picked);
        },
        n);
  } else if (operation == "accumulate") {
    compare(
        state, add, [&] { kernels.accumulate(in.gradient, 1e-6F, in.accumulator); }, n);
  } else if (operation == "accumulate_select" || operation == "accumulate_topk") {
    // The sums hardly change, so the threshold goes on selecting what it selects now.
    kernels.topk(in.accumulator, k, 0, picked);
    float threshold = std::numeric_limits<float>::infinity();
    for (const Index index : picked) threshold = std::min(threshold, std::fabs(in.accumulator[static_cast<std::size_t>(index)]));
    const bool by_threshold = operation == "accumulate_select";
    compare(
        state, [&] { kernels.accumulate(in.gradient, 1e-9F, in.accumulator); },
        [&] {
          picked.clear();
          if (by_threshold)
            kernels.accumulate_select(in.gradient, 1e-9F, in.accumulator, threshold, 0, picked);
          else
            kernels.accumulate_topk(in.gradient, 1e-9F, in.accumulator, k, 0, picked);
        },
        n);
  } else if (operation == "moments") {
    compare(
        state, read, [&] { benchmark::DoNotOptimize(kernels.moments(in.values)); }, n);
  } else if (operation == "block_maxima") {
    std::vector<float> maxima(static_cast<std::size_t>((size + 255) / 256));
    compare(
        state, read, [&] { kernels.block_maxima(in.values, 256, maxima); }, n);
  } else if (operation == "l2_norm") {
    compare(
        state, read, [&] { benchmark::DoNotOptimize(kernels.l2_norm(in.values)); }, n);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::int64_t> sizes{1000000, 25000000, 60000000};
  if (const char* set = std::getenv("SPARSCALE_BENCH_ELEMENTS")) sizes = {std::max<std::int64_t>(1024, std::atoll(set))};
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  for (const std::int64_t size : sizes)
    for (const std::string& backend : cpu_kernel_names())
      for (const auto& [operation, density] : std::vector<std::pair<std::string, double>>{{"accumulate", 1},
                                                                                          {"l2_norm", 1},
                                                                                          {"moments", 1},
                                                                                          {"block_maxima", 1},
                                                                                          {"count", 0.01},
                                                                                          {"threshold_select", 0.01},
                                                                                          {"threshold_select", 0.001},
                                                                                          {"topk", 0.01},
                                                                                          {"topk", 0.001},
                                                                                          {"accumulate_select", 0.01},
                                                                                          {"accumulate_topk", 0.01},
                                                                                          {"accumulate_topk", 0.001}})
        benchmark::RegisterBenchmark((backend + "/" + operation + "/" + std::to_string(density).substr(0, 5)).c_str(),
                                     [backend, operation, density](benchmark::State& state) { run(state, backend, operation, density); })
            ->Arg(size)
            ->UseManualTime()
            ->Unit(benchmark::kMicrosecond)
            ->Iterations(size > 4000000 ? 15 : 60);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
