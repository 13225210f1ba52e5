// Runs an experiment into a result directory (docs/results.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "experiments/experiment.hpp"

namespace sparscale::experiments {

/// What one call does of a sweep. On a cluster the stages are calls of their own, of which each does its share.
enum class Stage { all, replays, runs, results };

struct RunOptions {
  std::filesystem::path directory;
  int jobs = 1;
  int threads = 0;     // of each replay; 0: the cores that the replays to do leave idle
  bool force = false;  // compute again what is there already
  Stage stage = Stage::all;
  std::size_t share = 0, shares = 1;  // stages replays and runs: the part that falls to this call, 0 <= share < shares
};

/// What one replay that is still to be done costs.
struct ReplayCost {
  std::size_t replay = 0;  // index into Experiment::replays
  std::uint64_t memory_bytes = 0;
  double time_s = 0;
};

/// What a run would do and cost. Times are those of one core, from rates that docs/experiments.md gives: right within a factor of about 3.
struct Estimate {
  std::size_t runs = 0, runs_cached = 0;
  std::size_t replays = 0, replays_cached = 0;
  std::size_t self_checks = 0, self_checks_cached = 0;
  std::vector<ReplayCost> to_do;            // dearest first
  std::uint64_t memory_bytes = 0;           // of the largest replay or self-check that is to be done
  std::uint64_t memory_together_bytes = 0;  // of the `jobs` largest together
  double replays_time_s = 0, self_checks_time_s = 0, timing_time_s = 0;
  double time_s = 0;     // of one core, all of it
  double elapsed_s = 0;  // with that many jobs: no less than the longest replay
};

/// Estimates without running anything. `directory` is looked at for cached results.
Estimate estimate(const Experiment& experiment, const std::filesystem::path& directory, int jobs = 1);

/// Errors: InputError when the largest replay that is not finished does not fit into the memory that is available. (Several that do not fit
/// together are run one after another.)
void check_memory(const Experiment& experiment, const Estimate& estimate);

/// Runs what is missing of the stage; at the end (stages all and results) writes results.csv, summary.json and the other files. Returns the
/// number of runs that failed or, in stage results, are missing; their errors are on stderr and under failed/, and in no result. Errors:
/// InputError when the directory holds the results of an experiment with another name, the memory does not suffice, or a part of a sweep
/// finds another experiment in the directory; RunError when interrupted.
std::size_t run_experiment(const Experiment& experiment, const RunOptions& options);

/// Writes experiment.json, environment.json and reproduce.sh, and with `force` removes what the directory has of these runs: what has to
/// stand in a directory before parts of the sweep run in it. Errors as above.
void prepare_directory(const Experiment& experiment, const std::filesystem::path& directory, bool force);

/// What is there of a sweep.
struct Status {
  struct Failure {
    std::string what, reason;
    std::size_t runs = 0;  // that it stops
  };
  std::size_t runs = 0, done = 0, failed = 0, missing = 0;
  std::size_t replays = 0, replays_done = 0;
  std::vector<Failure> failures;  // each replay, self-check or run that failed once
  bool results_written = false;   // results.csv has all runs
};
Status status(const Experiment& experiment, const std::filesystem::path& directory);

/// The runs whose results the directory does not have.
std::vector<const RunPoint*> unfinished_runs(const Experiment& experiment, const std::filesystem::path& directory);

/// The summary lines of a finished directory (summary.json).
std::vector<std::string> summary_lines(const std::filesystem::path& directory);

/// What happened in one recorded iteration of a finished run, and the networks that it was timed on.
struct TimedIteration {
  std::size_t run = 0;  // index into Experiment::runs
  sim::IterationTime time;
  sim::IterationLog log;
  std::string goal;  // its exchange as a GOAL schedule
};

/// Times a run of a result directory again, up to an iteration (-1: the last one). `run_id`: as in results.csv; empty: the only run. Errors:
/// InputError when there is no such run or iteration or its replay is not in the directory.
TimedIteration time_iteration(const Experiment& experiment, const std::filesystem::path& directory, const std::string& run_id,
                              std::int64_t iteration);

}  // namespace sparscale::experiments
