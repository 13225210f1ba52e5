// What timing stored replay records costs: 1,000 iterations x 6 sparsifiers x n = 2, 4, ..., 1024 x 3 platforms on 2 cores, and one ring
// all-gather of 1,024 workers in both back-ends. See docs/network.md.
//
//   sparscale_timeline_bench [--perf]      --perf: one process, so that a profiler sees all of it
//
// Records come from replays of the trace digits-cnn-8w, 20 iterations each, written 50 times over into files of 1,000 lines before the
// clock starts. Prints processor seconds; ratios are to the budgets of the table in docs/network.md.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include "base/files.hpp"
#include "base/random.hpp"
#include "kernels/profile.hpp"
#include "sim/replay.hpp"
#include "sim/sparsifier.hpp"
#include "sim/timeline.hpp"
#include "traces/trace.hpp"

namespace {

using namespace sparscale;
namespace fs = std::filesystem;

constexpr std::int64_t iterations = 1000, replayed = 20, most_workers = 1024;
const std::vector<std::string> sparsifiers{"dense", "dense_fp16", "topk", "hard_threshold", "micro", "exdyna"};
const std::vector<std::string> platforms_used{"crossbar-100g", "nvlink8-ib", "dgx-a100"};

struct Task {
  std::string sparsifier;
  std::int64_t workers;
};

fs::path records_of(const fs::path& folder, const Task& task) {
  return folder / (task.sparsifier + "-" + std::to_string(task.workers) + ".jsonl");
}

void write_records(const traces::Trace& trace, const fs::path& folder, const Task& task) {
  sim::ReplayOptions options;
  options.sparsifier = task.sparsifier;
  options.parameters = sim::resolve_parameters(sim::find_sparsifier(task.sparsifier), Json::object(), "", "");
  options.workers = task.workers;
  options.iterations = replayed;
  sim::Replay replay(trace, options);
  std::vector<std::string> lines;
  for (std::int64_t i = 0; i < replayed; ++i) lines.push_back(replay.next().dump() + "\n");
  std::string text;
  for (std::int64_t i = 0; i < iterations; ++i) text += lines[static_cast<std::size_t>(i % replayed)];
  write_file_atomic(records_of(folder, task), text);
}

// As a sweep does it: the records are read once and timed on every platform.
double time_records(const kernels::Profile& profile, const fs::path& folder, const Task& task) {
  const std::string text = read_file(records_of(folder, task));
  std::vector<Json> records;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    records.push_back(parse_json(std::string_view(text).substr(begin, end - begin), "records"));
    begin = end + 1;
  }
  double sum_s = 0;
  for (const std::string& name : platforms_used) {
    const auto platform = platforms::Platform::load(platforms::find_platform(name));
    const auto network = sim::make_network("auto", platform, task.workers);
    sim::TimelineOptions options;
    options.forward_time_s = 0.01;
    options.backward_time_s = 0.02;
    options.extrapolate_profile = true;
    sim::Timeline timeline(profile, *network, options);
    for (const Json& record : records) sum_s += timeline.time(record).iteration_time_s;
  }
  return sum_s;
}

double processor_s(int who) {
  rusage usage{};
  getrusage(who, &usage);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Runs every task in one of two processes, the largest first.
template <typename Work>
void on_two_cores(const std::vector<Task>& tasks, bool in_one, const Work& work) {
  if (in_one) {
    for (const Task& task : tasks) work(task);
    return;
  }
  std::size_t running = 0;
  const auto wait_for_one = [&] {
    int status = 0;
    wait(&status);
    --running;
    if (status != 0) {
      std::fprintf(stderr, "a task failed\n");
      std::exit(1);
    }
  };
  for (const Task& task : tasks) {
    if (running == 2) wait_for_one();
    std::fflush(nullptr);
    if (fork() == 0) {
      work(task);
      _exit(0);
    }
    ++running;
  }
  while (running > 0) wait_for_one();
}

// Processor seconds of one ring all-gather of 1,024 workers, this process's and its children's.
double ring_s(const std::string& back_end, bool equal) {
  const auto platform = platforms::Platform::load(platforms::find_platform("crossbar-100g"));
  Random random(stream_key(1, "timeline bench", {}));
  std::vector<std::uint64_t> bytes(most_workers, 1000000);
  if (!equal)
    for (std::uint64_t& one : bytes) one = 500000 + random.below(1000000);
  const auto program = sim::find_collective(sim::Operation::all_gather, "ring").make(bytes, 0);
  const std::vector<double> start_s(most_workers, 0.0);
  const auto used = [] { return processor_s(RUSAGE_SELF) + processor_s(RUSAGE_CHILDREN); };
  double least = 1e9;
  for (int round = 0; round < (back_end == "simgrid" ? 1 : 5); ++round) {
    const auto network = sim::make_network(back_end, platform, most_workers);
    const double before = used();
    network->time(*program, start_s);
    least = std::min(least, used() - before);
  }
  return least;
}

}  // namespace

int main(int argc, char** argv) {
  const bool perf = argc > 1 && std::string(argv[1]) == "--perf";
  std::string name = (fs::temp_directory_path() / "sparscale-bench-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) return 1;
  const fs::path folder = name;
  const auto trace = traces::Trace::open(data_directory() / "traces" / "samples" / "digits-cnn-8w");
  const auto profile = kernels::Profile::load(kernels::find_profile("cpu-epyc-zen5-1t"));
  std::vector<Task> tasks;
  for (std::int64_t workers = most_workers; workers >= 2; workers /= 2)
    for (const std::string& sparsifier : sparsifiers) tasks.push_back({sparsifier, workers});
  std::fprintf(stderr, "replaying ...\n");
  on_two_cores(tasks, false, [&](const Task& task) { write_records(trace, folder, task); });
  std::uint64_t stored = 0;
  for (const Task& task : tasks) stored += fs::file_size(records_of(folder, task));
  std::fprintf(stderr, "timing %.0f MB of records ...\n", 1e-6 * static_cast<double>(stored));
  const auto used = [&] { return processor_s(RUSAGE_SELF) + processor_s(RUSAGE_CHILDREN); };
  const double before = used();
  const auto start = std::chrono::steady_clock::now();
  on_two_cores(tasks, perf, [&](const Task& task) {
    const double own = used();
    if (!(time_records(profile, folder, task) > 0)) _exit(1);
    std::printf("%s n = %lld: %.3f s\n", task.sparsifier.c_str(), static_cast<long long>(task.workers), used() - own);
    std::fflush(stdout);
  });
  const double wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), cpu_s = used() - before;
  const double timelines = static_cast<double>(iterations) * static_cast<double>(tasks.size()) * static_cast<double>(platforms_used.size());
  std::printf(
      "%.0f iterations timed (1,000 x %zu sparsifiers x %zu n x %zu platforms): %.1f processor seconds, %.1f s on 2 cores, "
      "%.2f ms each; 300 s are %.1f times that\n",
      timelines, sparsifiers.size(), tasks.size() / sparsifiers.size(), platforms_used.size(), cpu_s, wall_s, 1e3 * cpu_s / timelines,
      600 / cpu_s);
  for (const bool equal : {true, false}) {
    const double simgrid = ring_s("simgrid", equal), recurrence = ring_s("recurrence", equal);
    std::printf(
        "ring all-gather, n = 1024, %s blocks: simgrid %.2f s (3 s are %.2f times that), recurrence %.2f ms (5 ms are %.1f times "
        "that), ratio %.0f\n",
        equal ? "equal" : "unequal", simgrid, 3 / simgrid, 1e3 * recurrence, 5e-3 / recurrence, simgrid / recurrence);
    std::fflush(stdout);
  }
  fs::remove_all(folder);
}
