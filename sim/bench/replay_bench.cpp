// What an iteration of replay costs with each sparsifier: nanoseconds per gradient and worker, and the ratio to the least that any of them
// must do, an in-place accumulate over the same n x N values, measured in turns with it. Processor times of one thread. See
// docs/sparsifiers.md.
//
//   sparscale_replay_bench [--benchmark_...] ; SPARSCALE_BENCH_GRADIENTS=10000000 SPARSCALE_BENCH_WORKERS=16 for another size.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "sim/replay.hpp"
#include "sim/sparsifier.hpp"

namespace {

using namespace sparscale;

constexpr std::int64_t pool_vectors = 8;
constexpr double density = 0.01;

std::int64_t from_environment(const char* name, std::int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::max<std::int64_t>(1, std::atoll(text));
}

// Normal values whose scale differs between 20 layers; made once.
struct Inputs {
  std::int64_t gradients = from_environment("SPARSCALE_BENCH_GRADIENTS", 1000000);
  std::int64_t workers = from_environment("SPARSCALE_BENCH_WORKERS", 8);
  std::vector<traces::Layer> layers;
  std::vector<std::vector<float>> pool;
  std::vector<float> accumulators;  // of the bare accumulate

  Inputs() {
    const std::int64_t count = std::min<std::int64_t>(20, gradients);
    for (std::int64_t l = 0; l < count; ++l) {
      const std::int64_t begin = gradients * l / count, end = gradients * (l + 1) / count;
      layers.push_back({"layer" + std::to_string(l), {end - begin, 1}, begin, end - begin});
    }
    for (std::int64_t v = 0; v < pool_vectors; ++v) {
      Random random(stream_key(1, "replay bench", {static_cast<std::uint64_t>(v)}));
      std::vector<float>& values = pool.emplace_back(static_cast<std::size_t>(gradients));
      for (std::size_t l = 0; l < layers.size(); ++l)
        for (std::int64_t i = layers[l].offset; i < layers[l].offset + layers[l].size; ++i)
          values[static_cast<std::size_t>(i)] = static_cast<float>(random.normal() * 0.001 * static_cast<double>(1 + l % 5));
    }
    accumulators.assign(static_cast<std::size_t>(workers * gradients), 0.0F);
  }
  const std::vector<float>& gradient(std::int64_t iteration, std::int64_t worker) const {
    return pool[static_cast<std::size_t>((3 * iteration + worker) % pool_vectors)];
  }
};

Inputs& inputs() {
  static Inputs made;
  return made;
}

// Hands out vectors that lie ready, so that making gradients costs nothing.
class ReadyGradients : public traces::GradientSource {
 public:
  std::int64_t workers() const override { return inputs().workers; }
  std::int64_t gradients() const override { return inputs().gradients; }
  std::span<const float> gradient(std::int64_t iteration, std::int64_t worker) override { return inputs().gradient(iteration, worker); }
  std::int64_t position(std::int64_t iteration) const override { return iteration; }
};

double now_s() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double accumulate_all_s(std::int64_t iteration) {
  const kernels::Kernels& kernels = kernels::cpu_kernels();
  const double start = now_s();
  for (std::int64_t worker = 0; worker < inputs().workers; ++worker)
    kernels.accumulate(
        inputs().gradient(iteration, worker), 1,
        std::span<float>(inputs().accumulators.data() + worker * inputs().gradients, static_cast<std::size_t>(inputs().gradients)));
  return now_s() - start;
}

void replay_iteration(benchmark::State& state, const std::string& name) {
  sim::ReplayOptions options;
  options.sparsifier = name;
  options.density = density;
  options.workers = inputs().workers;
  options.norms = state.range(0) != 0;
  options.warmup = 3;
  sim::Replay replay(std::make_unique<ReadyGradients>(), inputs().layers, options);
  replay.next();
  double replay_s = 0, accumulate_s = 0, selected = 0;
  std::int64_t iteration = 0;
  for (auto _ : state) {
    accumulate_s += accumulate_all_s(iteration++);
    const double start = now_s();
    const Json record = replay.next();
    const double spent = now_s() - start;
    selected += record.at("selected_sum").get<double>();
    state.SetIterationTime(spent);
    replay_s += spent;
  }
  const auto each = static_cast<double>(iteration) * static_cast<double>(inputs().workers) * static_cast<double>(inputs().gradients);
  state.counters["ns_per_gradient_and_worker"] = 1e9 * replay_s / each;
  state.counters["accumulates"] = replay_s / accumulate_s;
  state.counters["selected_density"] = selected / each;
}

}  // namespace

int main(int argc, char** argv) {
  for (const sim::SparsifierInfo& info : sim::sparsifiers())
    if (!info.dense)  // those look at no gradient
      benchmark::RegisterBenchmark(("replay/" + info.name).c_str(),
                                   [name = info.name](benchmark::State& state) { replay_iteration(state, name); })
          ->ArgName("norms")
          ->Arg(0)
          ->Arg(1)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
