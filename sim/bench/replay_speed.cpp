// How near the replay comes to what memory allows, and how long a large one takes. See docs/sparsifiers.md, "What a replay costs".
//
//   sparscale_replay_speed limit [METHOD [SPARSIFIER]]
//                                   threshold sparsifiers over expanded workers against a bare in-place accumulate of the same
//                                   n x N values, run in turns with it: time of the accumulate / time of an iteration
//   sparscale_replay_speed large    100 iterations of ExDyna, n = 256, N = 10^6
//
// SPARSCALE_BENCH_GRADIENTS, _WORKERS, _THREADS and _ITERATIONS for other sizes. Makes a synthetic trace in a temporary folder.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "kernels/kernels.hpp"
#include "sim/replay.hpp"
#include "sim/sparsifier.hpp"
#include "traces/synthesis.hpp"

namespace {

using namespace sparscale;
namespace fs = std::filesystem;

std::int64_t from_environment(const char* name, std::int64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::max<std::int64_t>(1, std::atoll(text));
}

double processor_s() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double wall_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

const int threads = static_cast<int>(from_environment("SPARSCALE_BENCH_THREADS", std::max(1U, std::thread::hardware_concurrency())));
const std::int64_t gradients = from_environment("SPARSCALE_BENCH_GRADIENTS", 1000000);

struct TemporaryTrace {
  fs::path folder;
  TemporaryTrace(std::int64_t captured, std::int64_t iterations) {
    std::string name = (fs::temp_directory_path() / "sparscale-speed-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw RunError("no temporary folder");
    folder = name;
    traces::SynthesisOptions options;
    options.workers = captured;
    options.iterations = iterations;
    options.gradients = gradients;
    traces::synthesize_trace(traces::load_model("resnet18"), "resnet18", options, folder / "trace", false);
  }
  ~TemporaryTrace() {
    std::error_code code;
    fs::remove_all(folder, code);
  }
};

// The bare limit: what every replay must at least do, on as many threads, over samples of captured gradients that lie ready as those of
// expansion boot do.
void accumulate_all(const std::vector<std::unique_ptr<traces::GradientSource>>& sources, std::int64_t workers, std::int64_t iteration,
                    const sim::Residuals& accumulators) {
  const kernels::Kernels& kernels = kernels::cpu_kernels();
  const auto size = static_cast<std::size_t>(sources.front()->gradients());
  std::vector<std::jthread> others;
  for (int thread = 0; thread < threads; ++thread)
    others.emplace_back([&, thread] {
      for (std::int64_t worker = thread; worker < workers; worker += threads)
        kernels.accumulate(sources[static_cast<std::size_t>(thread)]->gradient(iteration, worker), 1,
                           {accumulators.in_place(worker), size});
    });
}

sim::ReplayOptions options_of(const std::string& sparsifier, std::int64_t workers, const Json& parameters) {
  sim::ReplayOptions options;
  options.sparsifier = sparsifier;
  options.parameters = parameters;
  options.workers = workers;
  options.threads = threads;
  options.warmup = 3;
  return options;
}

void against_limit(const std::string& only_method, const std::string& only_sparsifier) {
  const std::int64_t workers = from_environment("SPARSCALE_BENCH_WORKERS", 16);
  const std::int64_t repeats = from_environment("SPARSCALE_BENCH_ITERATIONS", 9);
  const TemporaryTrace made(8, 5);
  const traces::Trace trace = traces::Trace::open(made.folder / "trace");
  // A constant threshold that selects about as much as it should: the one of the k-th largest.
  sim::ReplayOptions top = options_of("topk", workers, Json::object());
  sim::Replay first(trace, top);
  const double threshold = first.next().at("threshold").at(0).get<double>();
  // As the replay's: on cache lines, in large pages.
  const sim::Residuals accumulators(sim::MemoryChoice::Mode::full, 0, workers, trace.gradients(), {}, 0);
  std::vector<std::unique_ptr<traces::GradientSource>> sources;
  for (int thread = 0; thread < threads; ++thread) sources.push_back(traces::make_gradient_source(trace, {"boot", workers, 0, 1}));
  std::printf("n = %lld, N = %lld, d = 0.01, %d threads; processor time of all threads, medians of %lld\n", static_cast<long long>(workers),
              static_cast<long long>(trace.gradients()), threads, static_cast<long long>(repeats));
  std::printf("%-16s %-9s %-6s %12s %12s %10s %10s\n", "sparsifier", "expansion", "norms", "limit ms", "replay ms", "ratio", "selected");
  for (const char* const method : {"boot", "hybrid"})
    for (const char* const name : {"hard_threshold", "micro", "exdyna", "sage", "topk"})
      for (const bool norms : {false, true}) {
        if ((!only_method.empty() && only_method != method) || (!only_sparsifier.empty() && only_sparsifier != name)) continue;
        Json parameters = Json::object();
        if (std::strcmp(name, "hard_threshold") == 0) parameters["threshold"] = threshold;
        sim::ReplayOptions options = options_of(name, workers, parameters);
        options.expansion = method;
        options.norms = norms;
        // Their thresholds start low and take some hundred iterations to settle.
        if (std::strcmp(name, "micro") == 0 || std::strcmp(name, "exdyna") == 0) options.warmup = 400;
        sim::Replay replay(trace, options);
        replay.next();
        std::vector<double> limit, spent;
        double density = 0;
        for (std::int64_t i = 0; i < repeats; ++i) {
          const double start = processor_s();
          accumulate_all(sources, workers, options.warmup + 1 + i, accumulators);
          const double between = processor_s();
          density = replay.next().at("selected_sum").get<double>() / static_cast<double>(workers * trace.gradients());
          limit.push_back(between - start);
          spent.push_back(processor_s() - between);
        }
        std::printf("%-16s %-9s %-6s %12.2f %12.2f %10.2f %10.4f\n", name, method, norms ? "yes" : "no", 1e3 * median(limit),
                    1e3 * median(spent), median(limit) / median(spent), density);
        std::fflush(stdout);
      }
}

void large() {
  const std::int64_t workers = from_environment("SPARSCALE_BENCH_WORKERS", 256);
  const std::int64_t iterations = from_environment("SPARSCALE_BENCH_ITERATIONS", 100);
  const TemporaryTrace made(8, 64);
  const traces::Trace trace = traces::Trace::open(made.folder / "trace");
  std::printf("exdyna, n = %lld, N = %lld, %lld iterations, d = 0.01, expansion auto, %d threads\n", static_cast<long long>(workers),
              static_cast<long long>(trace.gradients()), static_cast<long long>(iterations), threads);
  struct Case {
    const char* memory;
    bool norms;
  };
  for (const Case& one : {Case{"full", false}, Case{"full", true}, Case{"f16", false}, Case{"recompute", false}}) {
    sim::ReplayOptions options = options_of("exdyna", workers, Json::object());
    options.warmup = 0;
    options.iterations = iterations;
    options.norms = one.norms;
    options.memory = sim::MemoryChoice::parse(one.memory, "memory");
    const double start = wall_s(), start_processor = processor_s();
    sim::Replay replay(trace, options);
    double density = 0;
    for (std::int64_t i = 0; i < iterations; ++i) density = replay.next().at("density").get<double>();
    std::printf("memory %-10s norms %-4s %8.1f s wall, %8.1f s of processors (expansion %s, last density %.4f)\n", one.memory,
                one.norms ? "yes" : "no", wall_s() - start, processor_s() - start_processor, replay.expansion().method.c_str(), density);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string what = arguments.empty() ? "" : arguments[0];
  if (what == "limit" && argc <= 4) {
    against_limit(argc > 2 ? arguments[1] : "", argc > 3 ? arguments[2] : "");
  } else if (what == "large" && argc == 2) {
    large();
  } else {
    std::fprintf(stderr, "usage: %s limit [METHOD [SPARSIFIER]]|large\n", argv[0]);
    return 2;
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
