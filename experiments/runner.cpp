#include "experiments/runner.hpp"

#include <algorithm>
#include <cmath>
#include <iostream>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/machine.hpp"
#include "experiments/environment.hpp"
#include "experiments/progress.hpp"
#include "experiments/results.hpp"
#include "experiments/task_pool.hpp"
#include "sim/network.hpp"
#include "sim/sparsifier.hpp"

namespace sparscale::experiments {
namespace fs = std::filesystem;
namespace {

// Accumulate, generate and select, per gradient, worker and iteration, on one core; only for the estimate.
constexpr double seconds_per_element_iteration = 3e-9;

fs::path replay_records(const fs::path& directory, const std::string& key) { return directory / "replays" / (key + ".jsonl"); }
fs::path replay_header(const fs::path& directory, const std::string& key) { return directory / "replays" / (key + ".json"); }
fs::path run_file(const fs::path& directory, const std::string& key) { return directory / "runs" / (key + ".json"); }

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
  return static_cast<double>(experiment.traces.at(trace).gradients()) * static_cast<double>(options.workers) *
         static_cast<double>(options.warmup + options.iterations);
}

/// A self-check replays n generated and twice the captured workers over the window.
double weight_of_check(const Experiment& experiment, const SelfCheckPoint& check) {
  const traces::Trace& trace = experiment.traces.at(check.trace);
  return static_cast<double>(trace.gradients()) * static_cast<double>(check.options.workers + 2 * trace.workers()) *
         static_cast<double>(trace.iterations());
}

void do_replay(const Experiment& experiment, const ReplayPoint& point, const fs::path& directory) {
  sim::Replay replay(experiment.traces.at(point.trace), point.options);
  std::string lines;
  for (std::int64_t i = 0; i < point.options.iterations; ++i) lines += replay.next().dump() + "\n";
  const traces::ExpansionChoice& choice = replay.expansion();
  const Json header = {{"schema_version", 1},
                       {"program_sha256", program_sha256()},
                       {"identity", point.identity},
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

void do_self_check(const Experiment& experiment, const SelfCheckPoint& point, const fs::path& directory) {
  const Json document = {{"schema_version", 1},
                         {"program_sha256", program_sha256()},
                         {"identity", point.identity},
                         {"self_check", sim::expansion_self_check(experiment.traces.at(point.trace), point.options)}};
  write_file_atomic(replay_header(directory, point.key), document.dump(1) + "\n");
}

/// The records of one replay, read once and timed for several runs.
std::vector<Json> read_records(const fs::path& file) {
  const std::string text = read_file(file);
  std::vector<Json> records;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    records.push_back(parse_json(std::string_view(text).substr(begin, end - begin), file.string()));
    begin = end + 1;
  }
  return records;
}

void do_runs(const Experiment& experiment, const std::vector<std::size_t>& runs, const fs::path& directory) {
  const ReplayPoint& replay = experiment.replays.at(experiment.runs.at(runs.front()).replay);
  const std::vector<Json> records = read_records(replay_records(directory, replay.key));
  if (std::ssize(records) != replay.options.iterations)
    throw RunError(replay_records(directory, replay.key).string() + ": expected " + std::to_string(replay.options.iterations) +
                   " records, found " + std::to_string(records.size()) + " (--force computes them again)");
  const Json header = load_json(replay_header(directory, replay.key));
  for (const std::size_t index : runs) {
    const RunPoint& run = experiment.runs.at(index);
    Json self_check;
    if (run.self_check >= 0)
      self_check =
          load_json(replay_header(directory, experiment.self_checks.at(static_cast<std::size_t>(run.self_check)).key)).at("self_check");
    const kernels::Profile& profile = experiment.profiles.at(run.profile);
    const std::unique_ptr<sim::Network> network = sim::make_network(run.network, experiment.platform_of(run), replay.options.workers);
    sim::Timeline timeline(profile, *network, run.timeline);
    std::vector<sim::IterationTime> times;
    times.reserve(records.size());
    const auto gradients = static_cast<std::uint64_t>(experiment.traces.at(replay.trace).gradients());
    sim::WireUse wire;
    for (const Json& record : records)
      times.push_back(run.wire.is_plain() ? timeline.time(record) : timeline.time(sim::encoded_record(record, run.wire, gradients, wire)));
    const Json document = run_document(experiment, run, header.at("expansion"), self_check, records, times, wire);
    write_file_atomic(run_file(directory, run.key), document.dump(1) + "\n");
  }
}

std::string label_of(const Experiment& experiment, const ReplayPoint& replay) {
  return replay.options.sparsifier + " at n = " + std::to_string(replay.options.workers) + " on " +
         experiment.traces.at(replay.trace).info().name;
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

/// A directory holds one experiment, by name; when that has changed, what was made of the old one must not stand beside the new one.
void claim_directory(const Experiment& experiment, const fs::path& directory) {
  const fs::path file = directory / "experiment.json";
  Json before;
  try {
    if (path_exists(file)) before = load_json(file);
  } catch (const InputError&) {
    // not an experiment: written again
  }
  if (before == experiment.effective) return;
  if (before.is_object() && before.contains("name") && before.at("name") != experiment.name)
    throw InputError(directory.string(), "", "a new directory, or one with results of the experiment \"" + experiment.name + '"',
                     "results of " + brief(before.at("name")));
  std::error_code code;
  for (const char* name : {"results.csv", "summary.json"}) fs::remove(directory / name, code);
}

}  // namespace

Estimate estimate(const Experiment& experiment, const fs::path& directory) {
  Estimate result;
  result.runs = experiment.runs.size();
  result.replays = experiment.replays.size();
  for (const RunPoint& run : experiment.runs)
    if (is_cached(run_file(directory, run.key), run.identity)) ++result.runs_cached;
  for (const ReplayPoint& replay : experiment.replays) {
    if (replay_is_cached(directory, replay)) {
      ++result.replays_cached;
      continue;
    }
    result.memory_bytes = std::max(result.memory_bytes, sim::replay_memory_bytes(experiment.traces.at(replay.trace), replay.options));
    result.element_iterations += weight_of(experiment, replay.trace, replay.options);
  }
  for (const SelfCheckPoint& check : experiment.self_checks)
    if (!is_cached(replay_header(directory, check.key), check.identity)) result.element_iterations += weight_of_check(experiment, check);
  result.time_s = result.element_iterations * seconds_per_element_iteration;
  return result;
}

void check_memory(const Experiment& experiment, const Estimate& estimate) {
  const std::uint64_t available = available_memory_bytes();
  if (estimate.memory_bytes > available)
    throw InputError(experiment.file, "/workers",
                     "replays that fit into the " + std::to_string(available / 1000000) + " MB of memory available",
                     std::to_string(estimate.memory_bytes / 1000000) + " MB for the largest");
}

std::size_t run_experiment(const Experiment& experiment, const RunOptions& options) {
  const fs::path& directory = options.directory;
  check_memory(experiment, estimate(experiment, directory));
  claim_directory(experiment, directory);
  const Json environment = [&] {
    Json value = describe_environment();
    Json inputs = Json::object();
    for (const auto& [name, trace] : experiment.traces) inputs["trace " + name] = trace.content_sha256();
    for (const auto& [name, platform] : experiment.platforms) inputs["platform " + name] = platform.sha256;
    for (const auto& [name, profile] : experiment.profiles) inputs["profile " + name] = profile.content_sha256();
    value["inputs_sha256"] = inputs;
    Json placements = Json::object();  // of every platform, those of its runs
    for (const RunPoint& run : experiment.runs) {
      Json& list = placements[run.platform];
      if (std::find(list.begin(), list.end(), Json(run.placement)) == list.end()) list.push_back(run.placement);
    }
    value["placements"] = placements;
    return value;
  }();
  write_file_atomic(directory / "experiment.json", experiment.effective.dump(1) + "\n");
  write_file_atomic(directory / "environment.json", environment.dump(1) + "\n");
  write_reproduce_script(directory, environment.at("git_commit").get<std::string>());

  std::vector<bool> run_failed(experiment.runs.size(), false);
  const auto run_stage = [&](const std::string& what, const std::vector<Task>& tasks) {
    double total = 0;
    for (const Task& task : tasks) total += task.weight;
    std::vector<TaskResult> results;
    if (tasks.empty()) return results;
    Progress progress(what, tasks.size(), total);
    return run_tasks(tasks, options.jobs, [&](std::size_t task, const TaskResult& result) {
      progress.step(tasks[task].label + ": " + result.error, tasks[task].weight, !result.done);
    });
  };

  // Which runs are to be timed, and which replays and checks they need.
  std::vector<std::vector<std::size_t>> runs_of_replay(experiment.replays.size());
  std::vector<bool> check_needed(experiment.self_checks.size(), false);
  for (std::size_t i = 0; i < experiment.runs.size(); ++i) {
    const RunPoint& run = experiment.runs[i];
    if (!options.force && is_cached(run_file(directory, run.key), run.identity)) continue;
    fs::remove(run_file(directory, run.key));  // so that what is there afterwards was made now
    runs_of_replay[run.replay].push_back(i);
    if (run.self_check >= 0) check_needed[static_cast<std::size_t>(run.self_check)] = true;
  }

  std::vector<Task> tasks;
  std::vector<std::pair<bool, std::size_t>> meaning;  // (is a replay, index)
  for (std::size_t i = 0; i < experiment.replays.size(); ++i) {
    const ReplayPoint& replay = experiment.replays[i];
    if (runs_of_replay[i].empty() || (!options.force && replay_is_cached(directory, replay))) continue;
    tasks.push_back({"replay of " + label_of(experiment, replay), weight_of(experiment, replay.trace, replay.options),
                     [&experiment, &replay, &directory] { do_replay(experiment, replay, directory); }});
    meaning.emplace_back(true, i);
  }
  for (std::size_t i = 0; i < experiment.self_checks.size(); ++i) {
    const SelfCheckPoint& check = experiment.self_checks[i];
    if (!check_needed[i] || (!options.force && is_cached(replay_header(directory, check.key), check.identity))) continue;
    tasks.push_back({"self-check of the expansion to n = " + std::to_string(check.options.workers), weight_of_check(experiment, check),
                     [&experiment, &check, &directory] { do_self_check(experiment, check, directory); }});
    meaning.emplace_back(false, i);
  }
  const std::vector<TaskResult> replayed = run_stage("replays", tasks);
  for (std::size_t i = 0; i < replayed.size(); ++i) {
    if (replayed[i].done) continue;
    for (const std::vector<std::size_t>& runs : runs_of_replay)  // what is finished already stays
      for (const std::size_t run : runs) {
        const RunPoint& point = experiment.runs[run];
        if (meaning[i].first ? point.replay == meaning[i].second : point.self_check == static_cast<std::int64_t>(meaning[i].second))
          run_failed[run] = true;
      }
  }

  tasks.clear();
  std::vector<std::vector<std::size_t>> runs_of_task;
  for (std::size_t i = 0; i < experiment.replays.size(); ++i) {
    std::vector<std::size_t> runs;
    for (const std::size_t run : runs_of_replay[i])
      if (!run_failed[run]) runs.push_back(run);
    if (runs.empty()) continue;
    const ReplayPoint& replay = experiment.replays[i];
    runs_of_task.push_back(runs);
    tasks.push_back({"timing of " + label_of(experiment, replay), static_cast<double>(replay.options.workers * replay.options.iterations),
                     [&experiment, &directory, runs] { do_runs(experiment, runs, directory); }});
  }
  const std::vector<TaskResult> timed = run_stage("timing", tasks);
  for (std::size_t i = 0; i < timed.size(); ++i)
    if (!timed[i].done)
      for (const std::size_t run : runs_of_task[i])
        run_failed[run] = !is_cached(run_file(directory, experiment.runs[run].key), experiment.runs[run].identity);

  std::vector<Json> documents;
  for (std::size_t i = 0; i < experiment.runs.size(); ++i)
    if (!run_failed[i]) documents.push_back(load_json(run_file(directory, experiment.runs[i].key)));
  write_file_atomic(directory / "results.csv", results_csv(documents));
  write_file_atomic(directory / "summary.json", summarise(experiment, documents).dump(1) + "\n");
  return static_cast<std::size_t>(std::count(run_failed.begin(), run_failed.end(), true));
}

std::vector<std::string> summary_lines(const fs::path& directory) {
  return load_json(directory / "summary.json").at("lines").get<std::vector<std::string>>();
}

}  // namespace sparscale::experiments
