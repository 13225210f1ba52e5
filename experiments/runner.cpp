#include "experiments/runner.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <thread>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/machine.hpp"
#include "experiments/coverage.hpp"
#include "experiments/environment.hpp"
#include "experiments/progress.hpp"
#include "experiments/results.hpp"
#include "experiments/task_pool.hpp"
#include "kernels/profile.hpp"
#include "sim/disturbed_networks.hpp"
#include "sim/iteration_view.hpp"
#include "sim/network.hpp"
#include "sim/sparsifier.hpp"

namespace sparscale::experiments {
namespace fs = std::filesystem;
namespace {

// Only for the estimate: accumulate, generate and select, per gradient, worker and iteration, on one core; and the timing of one worker in
// one iteration, on the recurrence.
constexpr double seconds_per_element_iteration = 2e-9;
constexpr double seconds_per_worker_iteration = 4e-6;

fs::path replay_records(const fs::path& directory, const std::string& key) { return directory / "replays" / (key + ".jsonl"); }
fs::path replay_header(const fs::path& directory, const std::string& key) { return directory / "replays" / (key + ".json"); }
fs::path run_file(const fs::path& directory, const std::string& key) { return directory / "runs" / (key + ".json"); }

fs::path failure_file(const fs::path& directory, const std::string& key) { return directory / "failed" / (key + ".json"); }

/// A file that this program wrote for this identity.
bool is_cached(const fs::path& file, const Json& identity) {
  if (!path_exists(file)) return false;
  try {
    const Json document = load_json(file);
    return document.value("program_sha256", "") == program_sha256() && document.value("identity", Json()) == identity;
  } catch (const std::exception&) {
    return false;  // unreadable: computed again
  }
}

bool replay_is_cached(const fs::path& directory, const ReplayPoint& replay) {
  return path_exists(replay_records(directory, replay.key)) && is_cached(replay_header(directory, replay.key), replay.identity);
}

double weight_of(const Experiment& experiment, const std::string& trace, const sim::ReplayOptions& options) {
  if (sim::find_sparsifier(options.sparsifier).dense) return 1;
  // memory.fraction is 1 unless coordinates are sampled; then the others are not even generated.
  return static_cast<double>(experiment.traces.at(trace).gradients()) * options.memory.fraction * static_cast<double>(options.workers) *
         static_cast<double>(options.warmup + options.iterations);
}

/// A self-check replays n generated and twice the captured workers over the window.
double weight_of_check(const Experiment& experiment, const SelfCheckPoint& check) {
  const traces::Trace& trace = experiment.traces.at(check.trace);
  return static_cast<double>(trace.gradients()) * check.options.memory.fraction *
         static_cast<double>(check.options.workers + 2 * trace.workers()) * static_cast<double>(trace.iterations());
}

void do_replay(const Experiment& experiment, const ReplayPoint& point, const fs::path& directory, int threads) {
  sim::ReplayOptions options = point.options;
  options.threads = threads;
  sim::Replay replay(experiment.traces.at(point.trace), options);
  std::string lines;
  for (std::int64_t i = 0; i < point.options.iterations; ++i) lines += replay.next().dump() + "\n";
  const traces::ExpansionChoice& choice = replay.expansion();
  const Json header = {{"schema_version", 1},
                       {"program_sha256", program_sha256()},
                       {"identity", point.identity},
                       {"records_sha256", sha256_hex(lines)},
                       {"expansion",
                        {{"method", choice.method},
                         {"captured_workers", choice.captured},
                         {"ratio", choice.ratio},
                         {"pool", choice.pool},
                         {"validated", choice.validated},
                         {"warnings", choice.warnings}}}};
  write_file_atomic(replay_records(directory, point.key), lines);
  write_file_atomic(replay_header(directory, point.key), header.dump(1) + "\n");
}

void do_self_check(const Experiment& experiment, const SelfCheckPoint& point, const fs::path& directory, int threads) {
  sim::ReplayOptions options = point.options;
  options.threads = threads;
  const Json document = {{"schema_version", 1},
                         {"program_sha256", program_sha256()},
                         {"identity", point.identity},
                         {"self_check", sim::expansion_self_check(experiment.traces.at(point.trace), options)}};
  write_file_atomic(replay_header(directory, point.key), document.dump(1) + "\n");
}

/// The records of one replay, read once and timed for several runs.
std::vector<Json> read_records(const fs::path& directory, const std::string& key) {
  const fs::path file = replay_records(directory, key);
  const std::string text = read_file(file), sha256 = load_json(replay_header(directory, key)).value("records_sha256", "");
  if (sha256_hex(text) != sha256)
    throw RunError(file.string() + ": expected the records that were written, of SHA-256 " + sha256 +
                   ", found others (--force computes them again)");
  std::vector<Json> records;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    records.push_back(parse_json(std::string_view(text).substr(begin, end - begin), file.string()));
    begin = end + 1;
  }
  return records;
}

std::string label_of(const Experiment& experiment, const ReplayPoint& replay) {
  return replay.options.sparsifier + " at n = " + std::to_string(replay.options.workers) + " on " +
         experiment.traces.at(replay.trace).info().name;
}

std::string label_of(const SelfCheckPoint& check) { return "self-check of the expansion to n = " + std::to_string(check.options.workers); }

/// Why something has failed, for 'sparscale status' and for whoever is not at the terminal.
void note_failure(const fs::path& directory, const std::string& key, const Json& identity, const std::string& what,
                  const std::string& reason) {
  const Json document = {
      {"schema_version", 1}, {"program_sha256", program_sha256()}, {"identity", identity}, {"what", what}, {"reason", reason}};
  write_file_atomic(failure_file(directory, key), document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

void forget_failure(const fs::path& directory, const std::string& key) {
  std::error_code code;
  fs::remove(failure_file(directory, key), code);
}

/// What tells a run apart from others of the same replay on the same platform.
std::string settings_of(const RunPoint& run) {
  return (run.timeline.mode == "sequential" ? "" : ", timeline " + run.timeline.mode) + ", network " + run.network +
         (run.value_encoding == "fp32" ? "" : ", values as " + run.value_encoding) +
         (run.index_encoding == "as_sent" ? "" : ", indices as " + run.index_encoding);
}

void note_run_failure(const Experiment& experiment, const RunPoint& run, const fs::path& directory, const std::string& reason) {
  note_failure(directory, run.key, run.identity,
               "timing of " + label_of(experiment, experiment.replays.at(run.replay)) + " on " +
                   experiment.platforms.at(run.platform).name + " with " + experiment.profiles.at(run.profile).name() + settings_of(run),
               reason);
}

/// Times runs of one replay. One that fails is noted and fails alone; the error, if any, is that of the first.
void do_runs(const Experiment& experiment, const std::vector<std::size_t>& runs, const fs::path& directory) {
  const ReplayPoint& replay = experiment.replays.at(experiment.runs.at(runs.front()).replay);
  const Json header = load_json(replay_header(directory, replay.key));
  const std::vector<Json> records = read_records(directory, replay.key);
  if (std::ssize(records) != replay.options.iterations)
    throw RunError(replay_records(directory, replay.key).string() + ": expected " + std::to_string(replay.options.iterations) +
                   " records, found " + std::to_string(records.size()) + " (--force computes them again)");
  const auto do_run = [&](const RunPoint& run) {
    Json self_check;
    if (run.self_check >= 0)
      self_check =
          load_json(replay_header(directory, experiment.self_checks.at(static_cast<std::size_t>(run.self_check)).key)).at("self_check");
    const kernels::Profile& profile = experiment.profiles.at(run.profile);
    sim::DisturbedNetworks networks(run.network, experiment.platform_of(run), replay.options.workers, run.timeline.disturbance.slowed);
    sim::Timeline timeline(
        profile, [&](std::int64_t iteration) -> sim::Network& { return networks.at(iteration); }, run.timeline);
    std::vector<sim::IterationTime> times;
    times.reserve(records.size());
    const auto gradients = static_cast<std::uint64_t>(experiment.traces.at(replay.trace).gradients());
    sim::WireUse wire;
    for (const Json& record : records) {
      timeline.keep_log(&record == &records.back());
      times.push_back(run.wire.is_plain() ? timeline.time(record) : timeline.time(sim::encoded_record(record, run.wire, gradients, wire)));
    }
    // The same with the quartiles of the measured kernel times.
    std::vector<sim::IterationTime> bounds[2];
    for (const bool upper : {false, true}) {
      if (profile.origin() != "measured") break;
      const kernels::Profile quartile = profile.at_quartile(upper);
      sim::Timeline bound(
          quartile, [&](std::int64_t iteration) -> sim::Network& { return networks.at(iteration); }, run.timeline);
      for (const Json& record : records)
        bounds[upper].push_back(run.wire.is_plain() ? bound.time(record)
                                                    : bound.time(sim::encoded_record(record, run.wire, gradients, wire)));
    }
    const Json document =
        run_document(experiment, run, header.at("expansion"), self_check, records, times, wire, timeline.log(), bounds[0], bounds[1]);
    write_file_atomic(run_file(directory, run.key), document.dump(1) + "\n");
  };
  std::size_t failed = 0;
  std::string first;
  for (const std::size_t index : runs) try {
      do_run(experiment.runs.at(index));
    } catch (const std::exception& error) {
      if (failed++ == 0) first = error.what();
      note_run_failure(experiment, experiment.runs.at(index), directory, error.what());
    }
  if (failed > 0)
    throw RunError(first + (runs.size() > 1 ? " (" + std::to_string(failed) + " of " + std::to_string(runs.size()) + " runs of it)" : ""));
}

/// Shares of about equal weight, the same whatever is finished: task -> share.
std::vector<std::size_t> share_out(const std::vector<double>& weights, std::size_t shares) {
  std::vector<std::size_t> order(weights.size()), share_of(weights.size(), 0);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });
  std::vector<double> load(shares, 0);
  for (const std::size_t task : order) {
    const auto least = std::min_element(load.begin(), load.end());
    share_of[task] = static_cast<std::size_t>(least - load.begin());
    *least += weights[task];
  }
  return share_of;
}

/// What an experiment names by path, as its result directory names it, which is thereby complete when it is copied: platforms and profiles
/// are kept in inputs/; traces, which may be large, are named relative to the directory (absolute where they share no folder with it).
struct OwnInputs {
  std::map<std::string, std::string> names;  // path in the effective experiment -> path relative to the directory
  std::map<std::string, std::string> files;  // file of the directory -> content

  std::string name_of(const std::string& name) const {
    const auto found = names.find(name);
    return found == names.end() ? name : found->second;
  }
  /// The experiment as it stands in the directory.
  Json portable(Json value) const {
    if (value.is_string()) return name_of(value.get<std::string>());
    if (value.is_structured())
      for (Json& inner : value) inner = portable(inner);
    return value;
  }
};

/// Errors: InputError when a file cannot be read, or two different ones would have one name.
OwnInputs own_inputs(const Experiment& experiment, const fs::path& directory, bool with_files) {
  OwnInputs own;
  const auto keep = [&](const std::string& path, const std::string& file, const std::string& folder, std::string name, const char* what) {
    for (char& c : name)
      if (std::string_view("/\\ ").find(c) != std::string_view::npos || static_cast<unsigned char>(c) < 0x20) c = '_';
    const std::string kept = "inputs/" + folder + "/" + name + ".json";
    own.names[path] = kept + path.substr(file.size());
    if (!with_files) return;
    const std::string content = read_file(file);
    if (own.files.try_emplace(kept, content).first->second != content)
      throw InputError(file, "/name", std::string("a ") + what + " with a name of its own in it (a copy of it is kept by it)",
                       '"' + name + '"');
  };
  for (const auto& [path, platform] : experiment.platforms)
    if (fs::path(path).is_absolute()) keep(path, path, "platforms", platform.name, "platform");
  for (const auto& [path, profile] : experiment.profiles) {
    if (!fs::path(path).is_absolute()) continue;
    const std::string file = kernels::profile_file(path), variants = path.substr(file.size()), name = profile.name();
    keep(path, file, "profiles", name.substr(0, name.size() - variants.size()), "profile");
  }
  const fs::path here = fs::weakly_canonical(fs::absolute(directory));
  for (const auto& [path, trace] : experiment.traces) {
    if (!fs::path(path).is_absolute()) continue;
    const fs::path there = fs::weakly_canonical(path);
    const auto [ours, theirs] = std::mismatch(here.begin(), here.end(), there.begin(), there.end());
    if (std::distance(here.begin(), ours) < 2) continue;  // nothing but the root in common: where it is says more
    const std::string relative = there.lexically_relative(here).generic_string();
    own.names[path] = relative.starts_with("..") ? relative : "./" + relative;
  }
  return own;
}

void write_reproduce_script(const fs::path& directory, const std::string& commit) {
  const std::string script =
      "#!/usr/bin/env bash\n"
      "# Makes these results again from experiment.json into a new directory and compares results.csv byte by byte.\n"
      "# Source: sparscale " SPARSCALE_VERSION ", commit " +
      (commit.empty() ? std::string("unknown") : commit) +
      " (environment.json has the versions and the SHA-256 of every input).\n"
      "# Usage: SPARSCALE=/path/to/sparscale bash reproduce.sh [NEW_DIRECTORY]\n"
      "set -euo pipefail\n"
      "here=$(cd \"$(dirname \"${BASH_SOURCE[0]}\")\" && pwd)\n"
      "new=${1:-$here/reproduced}\n"
      "\"${SPARSCALE:-sparscale}\" run \"$here/experiment.json\" --out \"$new\" --force\n"
      "cmp \"$here/results.csv\" \"$new/results.csv\" && echo \"results.csv is the same, byte by byte\"\n";
  write_file_atomic(directory / "reproduce.sh", script);
  fs::permissions(directory / "reproduce.sh", fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec,
                  fs::perm_options::add);
}

/// A directory holds one experiment, by name; when that or one of its inputs has changed, what was made of the old one must not stand
/// beside the new one.
void claim_directory(const Experiment& experiment, const Json& portable, const fs::path& directory, const Json& inputs_sha256) {
  const auto written = [&](const char* name) -> Json {
    try {
      if (path_exists(directory / name)) return load_json(directory / name);
    } catch (const InputError&) {
      // not what it should be: written again
    }
    return {};
  };
  const Json before = written("experiment.json"), environment = written("environment.json");
  if (before == portable && environment.is_object() && environment.value("inputs_sha256", Json()) == inputs_sha256) return;
  if (before.is_object() && before.contains("name") && before.at("name") != experiment.name)
    throw InputError(directory.string(), "", "a new directory, or one with results of the experiment \"" + experiment.name + '"',
                     "results of " + brief(before.at("name")));
  std::error_code code;
  for (const char* name : {"results.csv", "summary.json", "report.html"}) fs::remove(directory / name, code);
}

double weight_of_runs(const ReplayPoint& replay) { return static_cast<double>(replay.options.workers * replay.options.iterations); }

/// Runs by what they need, those that are finished left out.
struct Plan {
  std::vector<std::vector<std::size_t>> runs_of_replay;
  std::vector<bool> replay_to_do, check_to_do;
};

Plan make_plan(const Experiment& experiment, const fs::path& directory, bool force) {
  Plan plan;
  plan.runs_of_replay.resize(experiment.replays.size());
  plan.replay_to_do.resize(experiment.replays.size(), false);
  plan.check_to_do.resize(experiment.self_checks.size(), false);
  for (std::size_t i = 0; i < experiment.runs.size(); ++i) {
    const RunPoint& run = experiment.runs[i];
    if (!force && is_cached(run_file(directory, run.key), run.identity)) continue;
    plan.runs_of_replay[run.replay].push_back(i);
    if (run.self_check >= 0) plan.check_to_do[static_cast<std::size_t>(run.self_check)] = true;
  }
  for (std::size_t i = 0; i < experiment.replays.size(); ++i)
    plan.replay_to_do[i] = !plan.runs_of_replay[i].empty() && (force || !replay_is_cached(directory, experiment.replays[i]));
  for (std::size_t i = 0; i < experiment.self_checks.size(); ++i) {
    const SelfCheckPoint& check = experiment.self_checks[i];
    if (!force && is_cached(replay_header(directory, check.key), check.identity)) plan.check_to_do[i] = false;
  }
  return plan;
}

std::vector<TaskResult> run_stage(const std::string& what, const std::vector<Task>& tasks, int jobs) {
  double total = 0;
  for (const Task& task : tasks) total += task.weight;
  if (tasks.empty()) return {};
  Progress progress(what, tasks.size(), total);
  return run_tasks(tasks, jobs, available_memory_bytes(), [&](std::size_t task, const TaskResult& result) {
    progress.step(tasks[task].label + ": " + result.error, tasks[task].weight, !result.done);
  });
}

/// Replays and self-checks of this share; what fails is noted.
void run_replays(const Experiment& experiment, const RunOptions& options, const Plan& plan) {
  const fs::path& directory = options.directory;
  std::vector<double> weights;
  for (const ReplayPoint& replay : experiment.replays) weights.push_back(weight_of(experiment, replay.trace, replay.options));
  for (const SelfCheckPoint& check : experiment.self_checks) weights.push_back(weight_of_check(experiment, check));
  const std::vector<std::size_t> share_of = share_out(weights, options.shares);
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  int threads = 1;
  std::vector<Task> tasks;
  std::vector<std::pair<std::string, Json>> meaning;  // key, identity
  for (std::size_t i = 0; i < experiment.replays.size(); ++i) {
    const ReplayPoint& replay = experiment.replays[i];
    if (!plan.replay_to_do[i] || share_of[i] != options.share) continue;
    tasks.push_back({"replay of " + label_of(experiment, replay), weights[i],
                     sim::replay_memory_bytes(experiment.traces.at(replay.trace), replay.options),
                     [&experiment, &replay, &directory, &threads] { do_replay(experiment, replay, directory, threads); }});
    meaning.emplace_back(replay.key, replay.identity);
  }
  for (std::size_t i = 0; i < experiment.self_checks.size(); ++i) {
    const SelfCheckPoint& check = experiment.self_checks[i];
    const std::size_t place = experiment.replays.size() + i;
    if (!plan.check_to_do[i] || share_of[place] != options.share) continue;
    sim::ReplayOptions on_all_threads = check.options;
    on_all_threads.threads = options.threads > 0 ? options.threads : cores;
    tasks.push_back({label_of(check), weights[place],
                     sim::expansion_self_check_memory_bytes(experiment.traces.at(check.trace), on_all_threads),
                     [&experiment, &check, &directory, &threads] { do_self_check(experiment, check, directory, threads); }});
    meaning.emplace_back(check.key, check.identity);
  }
  for (const auto& [key, identity] : meaning) forget_failure(directory, key);
  const int at_a_time = std::max(1, std::min(options.jobs, static_cast<int>(std::min<std::size_t>(tasks.size(), 4096))));
  threads = options.threads > 0 ? options.threads : std::max(1, cores / at_a_time);
  const std::vector<TaskResult> results = run_stage("replays", tasks, options.jobs);
  for (std::size_t i = 0; i < results.size(); ++i)
    if (!results[i].done) note_failure(directory, meaning[i].first, meaning[i].second, tasks[i].label, results[i].error);
}

/// Timing of this share's runs whose replay and self-check are there.
void run_timing(const Experiment& experiment, const RunOptions& options, const Plan& plan) {
  const fs::path& directory = options.directory;
  std::vector<double> weights;
  for (const ReplayPoint& replay : experiment.replays) weights.push_back(weight_of_runs(replay));
  const std::vector<std::size_t> share_of = share_out(weights, options.shares);
  std::vector<bool> check_is_there;
  for (const SelfCheckPoint& check : experiment.self_checks)
    check_is_there.push_back(is_cached(replay_header(directory, check.key), check.identity));
  std::vector<Task> tasks;
  std::vector<std::vector<std::size_t>> runs_of_task;
  for (std::size_t i = 0; i < experiment.replays.size(); ++i) {
    const ReplayPoint& replay = experiment.replays[i];
    std::vector<std::size_t> runs;
    for (const std::size_t run : plan.runs_of_replay[i])
      if (const std::int64_t check = experiment.runs[run].self_check; check < 0 || check_is_there[static_cast<std::size_t>(check)])
        runs.push_back(run);
    if (share_of[i] != options.share || runs.empty() || !replay_is_cached(directory, replay)) continue;
    for (const std::size_t run : runs) forget_failure(directory, experiment.runs[run].key);
    runs_of_task.push_back(runs);
    tasks.push_back({"timing of " + label_of(experiment, replay), weights[i], 0,
                     [&experiment, &directory, runs] { do_runs(experiment, runs, directory); }});
  }
  const std::vector<TaskResult> results = run_stage("timing", tasks, options.jobs);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].done) continue;
    for (const std::size_t run : runs_of_task[i])
      // What the task noted itself stands; the rest it did not come to.
      if (const RunPoint& point = experiment.runs[run];
          !is_cached(run_file(directory, point.key), point.identity) && !is_cached(failure_file(directory, point.key), point.identity))
        note_run_failure(experiment, point, directory, results[i].error);
  }
}

/// results.csv and summary.json of the runs that are there; the number of those that are not.
std::size_t write_results(const Experiment& experiment, const fs::path& directory) {
  std::vector<Json> documents;
  for (const RunPoint& run : experiment.runs)
    if (is_cached(run_file(directory, run.key), run.identity)) {
      documents.push_back(load_json(run_file(directory, run.key)));
      documents.back()["key"]["labels"] = run.labels;
    }
  write_file_atomic(directory / "results.csv", results_csv(documents));
  write_file_atomic(directory / "summary.json", summarise(experiment, documents).dump(1) + "\n");
  return experiment.runs.size() - documents.size();
}

}  // namespace

Estimate estimate(const Experiment& experiment, const fs::path& directory, int jobs) {
  const Plan plan = make_plan(experiment, directory, false);
  Estimate result;
  result.runs = experiment.runs.size();
  result.runs_cached = result.runs;
  result.replays = experiment.replays.size();
  result.self_checks = experiment.self_checks.size();
  double longest_s = 0;
  for (std::size_t i = 0; i < experiment.replays.size(); ++i) {
    const ReplayPoint& replay = experiment.replays[i];
    result.runs_cached -= plan.runs_of_replay[i].size();
    result.timing_time_s += static_cast<double>(plan.runs_of_replay[i].size()) * weight_of_runs(replay) * seconds_per_worker_iteration;
    if (!plan.replay_to_do[i]) {
      if (replay_is_cached(directory, replay)) ++result.replays_cached;
      continue;
    }
    const ReplayCost cost{i, sim::replay_memory_bytes(experiment.traces.at(replay.trace), replay.options),
                          weight_of(experiment, replay.trace, replay.options) * seconds_per_element_iteration};
    result.replays_time_s += cost.time_s;
    longest_s = std::max(longest_s, cost.time_s);
    result.to_do.push_back(cost);
  }
  std::vector<std::uint64_t> memory;
  for (const ReplayCost& cost : result.to_do) memory.push_back(cost.memory_bytes);
  for (std::size_t i = 0; i < experiment.self_checks.size(); ++i) {
    const SelfCheckPoint& check = experiment.self_checks[i];
    if (plan.check_to_do[i]) {
      result.self_checks_time_s += weight_of_check(experiment, check) * seconds_per_element_iteration;
      memory.push_back(sim::expansion_self_check_memory_bytes(experiment.traces.at(check.trace), check.options));
    } else if (is_cached(replay_header(directory, check.key), check.identity))
      ++result.self_checks_cached;
  }
  std::sort(memory.rbegin(), memory.rend());
  if (!memory.empty()) result.memory_bytes = memory.front();
  for (std::size_t i = 0; i < std::min(memory.size(), static_cast<std::size_t>(std::max(jobs, 1))); ++i)
    result.memory_together_bytes += memory[i];
  std::stable_sort(result.to_do.begin(), result.to_do.end(), [](const ReplayCost& a, const ReplayCost& b) { return a.time_s > b.time_s; });
  result.time_s = result.replays_time_s + result.self_checks_time_s + result.timing_time_s;
  result.elapsed_s = std::max(longest_s, result.time_s / std::max(jobs, 1));
  return result;
}

void check_memory(const Experiment& experiment, const Estimate& estimate) {
  const std::uint64_t available = available_memory_bytes();
  if (estimate.memory_bytes > available)
    throw InputError(experiment.file, "/workers",
                     "replays and self-checks that fit into the " + std::to_string(available / 1000000) + " MB of memory available",
                     std::to_string(estimate.memory_bytes / 1000000) +
                         " MB for the largest (/memory: sample:FRACTION, f16, disk and recompute need less)");
}

void prepare_directory(const Experiment& experiment, const fs::path& directory, bool force) {
  const OwnInputs own = own_inputs(experiment, directory, true);
  const Json portable = own.portable(experiment.effective);
  const Json environment = [&] {
    Json value = describe_environment();
    Json inputs = Json::object();
    for (const auto& [name, trace] : experiment.traces) inputs["trace " + own.name_of(name)] = trace.content_sha256();
    for (const auto& [name, platform] : experiment.platforms) inputs["platform " + own.name_of(name)] = platform.sha256;
    for (const auto& [name, profile] : experiment.profiles) inputs["profile " + own.name_of(name)] = profile.content_sha256();
    for (const auto& [file, sum] : experiment.parents) inputs["extended experiment " + file] = sum;
    value["inputs_sha256"] = inputs;
    for (const auto& [name, platform] : experiment.platforms) value["platforms"][platform.name] = platform.document;
    Json placements = Json::object();  // of every platform, those of its runs
    for (const RunPoint& run : experiment.runs) {
      Json& list = placements[own.name_of(run.platform)];
      if (std::find(list.begin(), list.end(), Json(run.placement)) == list.end()) list.push_back(run.placement);
    }
    value["placements"] = placements;
    return value;
  }();
  claim_directory(experiment, portable, directory, environment.at("inputs_sha256"));
  for (const auto& [file, content] : own.files) write_file_atomic(directory / file, content);
  write_file_atomic(directory / "experiment.json", portable.dump(1) + "\n");
  write_file_atomic(directory / "environment.json", environment.dump(1) + "\n");
  write_reproduce_script(directory, environment.at("git_commit").get<std::string>());
  if (!force) return;
  for (const RunPoint& run : experiment.runs) fs::remove(run_file(directory, run.key));
  for (const ReplayPoint& replay : experiment.replays) fs::remove(replay_header(directory, replay.key));
  for (const SelfCheckPoint& check : experiment.self_checks) fs::remove(replay_header(directory, check.key));
}

std::size_t run_experiment(const Experiment& experiment, const RunOptions& options) {
  const fs::path& directory = options.directory;
  if (options.stage == Stage::all) {
    check_memory(experiment, estimate(experiment, directory));
    check_profiles(experiment, directory);
    prepare_directory(experiment, directory, options.force);
  } else if (load_json(directory / "experiment.json") != own_inputs(experiment, directory, false).portable(experiment.effective)) {
    throw InputError((directory / "experiment.json").string(), "", "the experiment of which this is a part", "another");
  }
  const bool every = options.stage == Stage::all;
  if (every || options.stage == Stage::replays) run_replays(experiment, options, make_plan(experiment, directory, false));
  if (every || options.stage == Stage::runs) run_timing(experiment, options, make_plan(experiment, directory, false));
  if (every || options.stage == Stage::results) return write_results(experiment, directory);
  const Status now = status(experiment, directory);
  return now.failed;
}

Status status(const Experiment& experiment, const fs::path& directory) {
  Status result;
  result.runs = experiment.runs.size();
  result.replays = experiment.replays.size();
  std::map<std::string, std::pair<bool, Status::Failure>> known;  // key -> has it failed, how
  const auto failure_of = [&](const std::string& key, const Json& identity) -> Status::Failure* {
    const auto [place, is_new] = known.try_emplace(key);
    if (is_new && is_cached(failure_file(directory, key), identity)) {
      const Json document = load_json(failure_file(directory, key));
      place->second = {true, {document.value("what", ""), document.value("reason", ""), 0}};
    }
    return place->second.first ? &place->second.second : nullptr;
  };
  std::vector<std::string> order;
  for (const ReplayPoint& replay : experiment.replays)
    if (replay_is_cached(directory, replay)) ++result.replays_done;
  for (const RunPoint& run : experiment.runs) {
    if (is_cached(run_file(directory, run.key), run.identity)) {
      ++result.done;
      continue;
    }
    bool failed = false;
    const auto look = [&](const std::string& key, const Json& identity) {
      Status::Failure* failure = failed ? nullptr : failure_of(key, identity);
      if (failure == nullptr) return;
      failed = true;
      if (failure->runs++ == 0) order.push_back(key);
    };
    const ReplayPoint& replay = experiment.replays[run.replay];
    if (!replay_is_cached(directory, replay)) look(replay.key, replay.identity);
    if (run.self_check >= 0) {
      const SelfCheckPoint& check = experiment.self_checks[static_cast<std::size_t>(run.self_check)];
      if (!is_cached(replay_header(directory, check.key), check.identity)) look(check.key, check.identity);
    }
    look(run.key, run.identity);
    ++(failed ? result.failed : result.missing);
  }
  for (const std::string& key : order) result.failures.push_back(known.at(key).second);
  if (path_exists(directory / "results.csv")) {
    const std::string csv = read_file(directory / "results.csv");
    result.results_written = std::all_of(experiment.runs.begin(), experiment.runs.end(),
                                         [&](const RunPoint& run) { return csv.find("\n" + run.key + ",") != std::string::npos; });
  }
  return result;
}

std::vector<const RunPoint*> unfinished_runs(const Experiment& experiment, const fs::path& directory) {
  std::vector<const RunPoint*> runs;
  for (const RunPoint& run : experiment.runs)
    if (!is_cached(run_file(directory, run.key), run.identity)) runs.push_back(&run);
  return runs;
}

TimedIteration time_iteration(const Experiment& experiment, const fs::path& directory, const std::string& run_id, std::int64_t iteration) {
  TimedIteration timed;
  const auto found = std::find_if(experiment.runs.begin(), experiment.runs.end(), [&](const RunPoint& run) { return run.key == run_id; });
  if (run_id.empty() ? experiment.runs.size() != 1 : found == experiment.runs.end())
    throw InputError("--run", "a run_id of " + (directory / "results.csv").string(),
                     run_id.empty() ? "none, and " + std::to_string(experiment.runs.size()) + " runs" : '"' + run_id + '"');
  timed.run = run_id.empty() ? 0 : static_cast<std::size_t>(found - experiment.runs.begin());
  const RunPoint& run = experiment.runs[timed.run];
  const ReplayPoint& replay = experiment.replays.at(run.replay);
  if (!path_exists(replay_records(directory, replay.key)))
    throw InputError(replay_records(directory, replay.key).string(), "", "the records of the run (sparscale run makes them)",
                     "no such file");
  const std::vector<Json> records = read_records(directory, replay.key);
  if (iteration < 0) iteration = std::ssize(records) - 1;
  if (iteration >= std::ssize(records))
    throw InputError("--iteration", "0 to " + std::to_string(std::ssize(records) - 1), std::to_string(iteration));
  sim::DisturbedNetworks networks(run.network, experiment.platform_of(run), replay.options.workers, run.timeline.disturbance.slowed);
  sim::Timeline timeline(
      experiment.profiles.at(run.profile), [&](std::int64_t number) -> sim::Network& { return networks.at(number); }, run.timeline);
  const auto gradients = static_cast<std::uint64_t>(experiment.traces.at(replay.trace).gradients());
  sim::WireUse wire;
  for (std::int64_t number = 0; number <= iteration; ++number) {
    timeline.keep_log(number == iteration);
    timed.time = timeline.time(sim::encoded_record(records[static_cast<std::size_t>(number)], run.wire, gradients, wire));
  }
  timed.log = timeline.log();
  const sim::Network& network = networks.at(iteration);
  timed.goal =
      sim::goal_schedule(replay.options.workers, sim::goal_parts(timed.log, network, run.timeline), sim::goal_unit(network.topology()));
  return timed;
}

std::vector<std::string> summary_lines(const fs::path& directory) {
  return load_json(directory / "summary.json").at("lines").get<std::vector<std::string>>();
}

}  // namespace sparscale::experiments
